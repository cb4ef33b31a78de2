"""How much flexwarm adds: to a cold compile, to a warm start, and to the start of a command that starts no torch.

    python benchmarks/main_job.py [--rounds 5] [--starts 21]

Prints one table, in Markdown. Every figure is the wall time of a whole process; those that are compared are taken in turn
in one run, and the ratio is of medians. The workload is ``WORKLOAD`` below on one CPU rank; the plain script makes the same
mask, compiles the same call and calls it twice, with the variables of ``flexwarm env``, so that both compile the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flexwarm import inventory, manifest
from flexwarm.plan import SELF_CONTAINED
from flexwarm.store import Bucket, Store

FILES = 10_000

WORKLOAD = """schema = 1

[[workload]]
name = "causal"
mask_mod = "causal"
q_heads = 4
kv_heads = 2
head_dim = 64
q_len = 256
dtype = "float32"
"""

PLAIN = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def causal(b, h, q, kv):
    return q >= kv

q, k, v = (torch.randn(1, heads, 256, 64) for heads in (4, 2, 2))
mask = create_block_mask(causal, None, None, 256, 256, device="cpu")
attention = torch.compile(flex_attention)
with torch.no_grad():
    for _ in range(2):
        attention(q, k, v, block_mask=mask, enable_gqa=True)
"""


class Bench:
    """A directory to work in, and processes timed in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        (directory / "flexwarm.toml").write_text(WORKLOAD)
        (directory / "plain.py").write_text(PLAIN)
        # An installed package has its bytecode; a checkout may write it too.
        names = ("FLEXWARM_", "TORCH", "TRITON", "OMP_", "PYTHONDONTWRITEBYTECODE")
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(names)}

    def seconds(self, *argv: str, env: Mapping[str, str] | None = None, expect: int = 0) -> float:
        """Wall seconds of one process, which must end with ``expect``."""
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *argv], cwd=self.directory, env={**self.environ, **(env or {})}, capture_output=True, text=True
        )
        seconds = time.perf_counter() - started
        if done.returncode != expect:
            raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return seconds

    def flexwarm(self, *arguments: str) -> float:
        return self.seconds("-m", "flexwarm", *arguments, "-q", "--store", str(self.store))

    def plain(self) -> float:
        return self.seconds("plain.py", env={"TORCHINDUCTOR_CACHE_DIR": str(self.directory / "cache"), **SELF_CONTAINED})

    def forget(self) -> None:
        """Make the next compile a cold one, for both."""
        shutil.rmtree(self.directory / "cache", ignore_errors=True)
        shutil.rmtree(self.store, ignore_errors=True)

    @property
    def bucket(self) -> Bucket:
        (bucket,) = Store(root=self.store).buckets()
        return bucket


def in_turn(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each measure once a round, forwards and backwards by turns, so that a drift of the machine meets all alike."""
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        names = list(measures) if number % 2 == 0 else list(reversed(measures))
        for name in names:
            taken[name].append(measures[name]())
    return taken


def cold_and_warm(bench: Bench, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        bench.forget()
        cold = in_turn(1, {"plain script, cold": bench.plain, "build, cold": lambda: bench.flexwarm("build")})
        warm = in_turn(2, {"plain script, warm": bench.plain, "verify, warm": lambda: bench.flexwarm("verify")})
        for name, seconds in (cold | warm).items():
            taken.setdefault(name, []).extend(seconds)
    return taken


def make_large(bench: Bench) -> int:
    """Fill the bucket up to ``FILES`` files that its manifest lists, in directories as torch makes them; prove it again."""
    bucket = bench.bucket
    known = manifest.load(bucket)
    assert known is not None
    for number in range(FILES - len(known.files)):
        directory = bucket.inductor / f"{number % 1000:03d}"
        directory.mkdir(exist_ok=True)
        (directory / f"c{number:048d}.so").write_bytes(b"%d" % number)
    manifest.save(bucket, dataclasses.replace(known, files=inventory.scan(bucket)))
    bench.flexwarm("verify")
    saved = manifest.load(bucket)
    assert saved is not None
    return len(saved.files)


def starts(bench: Bench, count: int) -> dict[str, list[float]]:
    measures = {
        "python -c pass": lambda: bench.seconds("-c", "pass"),
        "flexwarm --help": lambda: bench.seconds("-m", "flexwarm", "--help"),
        "verify --fast": lambda: bench.flexwarm("verify", "--fast"),
    }
    in_turn(1, measures)  # bytecode and the page cache
    return in_turn(count, measures)


def machine() -> str:
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    torch = subprocess.run(
        [sys.executable, "-c", "import importlib.metadata as m, json; print(json.dumps([m.version('torch')]))"],
        capture_output=True,
        text=True,
        check=True,
    )
    (version,) = json.loads(torch.stdout)
    return f"{model}, {len(os.sched_getaffinity(0))} cores; Python {platform.python_version()}; torch {version}"


def row(name: str, taken: Mapping[str, list[float]], base: str | None, aim: str, unit: str) -> str:
    seconds = taken[name]
    scale = 1000 if unit == "ms" else 1
    digits = 0 if unit == "ms" else 2
    low, median, high = min(seconds), statistics.median(seconds), max(seconds)
    ratio = f"{median / statistics.median(taken[base]):.2f}" if base else ""
    figures = " | ".join(f"{value * scale:.{digits}f}" for value in (low, median, high))
    return f"| {name} | {figures} | {unit} | {len(seconds)} | {ratio} | {aim} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="cold rounds; twice as many warm ones")
    parser.add_argument("--starts", type=int, default=21, help="starts of each command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flexwarm-bench-") as name:
        bench = Bench(Path(name))
        taken = cold_and_warm(bench, options.rounds)
        files = make_large(bench)
        quick = starts(bench, options.starts)
    print(machine())
    print()
    print("| what | min | median | max | unit | runs | ratio of medians | aim |")
    print("|---|---|---|---|---|---|---|---|")
    print(row("plain script, cold", taken, None, "", "s"))
    print(row("build, cold", taken, "plain script, cold", "1.15 of plain", "s"))
    print(row("plain script, warm", taken, None, "", "s"))
    print(row("verify, warm", taken, "plain script, warm", "1.25 of plain", "s"))
    print(row("python -c pass", quick, None, "", "ms"))
    print(row("flexwarm --help", quick, None, "150 ms", "ms"))
    print(row("verify --fast", quick, None, f"300 ms, {files:,} files", "ms"))


if __name__ == "__main__":
    main()
