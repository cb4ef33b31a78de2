"""The command as tests run it, and the smallest specs that are worth compiling."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexwarm.manifest import Manifest, load
from flexwarm.reaper import members
from flexwarm.store import Bucket, Store

#: The smallest kernel that is worth compiling; one rank, so that nothing but it is measured.
SMALL = """schema = 1

[[workload]]
name = "small"
mask_mod = "causal"
q_heads = 2
head_dim = 32
q_len = 128
dtype = "float32"
"""

SECOND = """
[[workload]]
name = "second"
mask_mod = "causal"
score_mod = "alibi"
q_heads = 2
head_dim = 32
q_len = 128
dtype = "float32"
"""

TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON document and nothing else."""
        data: dict[str, Any] = json.loads(self.out)
        return data

    def codes(self) -> set[str]:
        """Every reason's code, of the run and of its jobs."""
        data = self.json
        found = {reason["code"] for reason in data["reasons"]}
        return found.union(*({reason["code"] for reason in job["reasons"]} for job in data["jobs"]), set())

    def messages(self) -> str:
        data = self.json
        reasons = [*data["reasons"], *(reason for job in data["jobs"] for reason in job["reasons"])]
        return "\n".join(reason["message"] for reason in reasons)


@dataclass(slots=True)
class Flexwarm:
    """The command in one directory with one store."""

    directory: Path
    store: Path

    def environ(self, env: Mapping[str, str | None] | None = None) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("FLEXWARM_", "TORCH", "OMP_"))}
        base |= {"FLEXWARM_STORE": str(self.store)}
        for name, value in (env or {}).items():
            base.pop(name, None)
            if value is not None:
                base[name] = value
        return base

    def spec(self, text: str, name: str = "flexwarm.toml") -> str:
        (self.directory / name).write_text(text)
        return name

    def module(self, text: str, name: str = "mymasks") -> None:
        """A module of the user's, beside the spec."""
        (self.directory / f"{name}.py").write_text(text)

    def argv(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "flexwarm", *arguments]

    def start(
        self, *arguments: str, env: Mapping[str, str | None] | None = None, prefix: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, *self.argv(arguments)],
            cwd=self.directory,
            env=self.environ(env),
            stdin=subprocess.DEVNULL,
            # A shell that runs the tests in the background makes them ignore Ctrl-C, and what they start inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, env: Mapping[str, str | None] | None = None, prefix: Sequence[str] = ()) -> Done:
        with self.start(*arguments, env=env, prefix=prefix) as process:
            try:
                out, err = process.communicate(timeout=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # else its end is waited for
                raise
        return Done(process.returncode, out, err)

    def run_json(self, *arguments: str, env: Mapping[str, str | None] | None = None, prefix: Sequence[str] = ()) -> Done:
        # After the command's name: what stands after -- belongs to a launch line.
        return self(*arguments[:1], "--format", "json", *arguments[1:], env=env, prefix=prefix)

    @property
    def bucket(self) -> Bucket:
        """The store's only bucket."""
        (bucket,) = Store(root=self.store).buckets()
        return bucket

    def manifest(self) -> Manifest:
        manifest = load(self.bucket)
        assert manifest is not None
        return manifest

    def run_ids(self) -> list[str]:
        return sorted(os.listdir(self.bucket.runs)) if self.bucket.runs.exists() else []

    def processes_left(self) -> list[int]:
        """Processes that still belong to any run of this store."""
        return [pid for run in self.run_ids() for pid in members(run)]
