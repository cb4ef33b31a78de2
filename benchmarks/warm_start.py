"""What a warm start still costs on a CPU, by part, with several installations of torch.

    python benchmarks/warm_start.py [--python PATH ...] [--rounds 5]

Each Python must have flexwarm and its torch. Each builds one attention call of its own (forward, at one length) and verifies
it in new processes, in rounds: every Python, as torch comes and with ``TORCHINDUCTOR_VEC_ISA_OK=1``, in changing order. The
numbers are those of ``flexwarm verify --format json``. Last, what the measuring itself costs: how many times a warm start
tells the clock that it enters or leaves something, and how long the clock takes for that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SPEC = """schema = 1

[[workload]]
name = "small"
mask_mod = "causal"
q_heads = 2
head_dim = 32
q_len = 128
dtype = "float32"
"""
VARIANTS = {"as it comes": {}, "VEC_ISA_OK": {"TORCHINDUCTOR_VEC_ISA_OK": "1"}}
PARTS = ("import", "dynamo", "guards", "aot", "keys", "load", "probe", "run")

CLOCK = """
import json, time
from pathlib import Path
from flexwarm.costs import Part
from flexwarm.observer.costs import Meter
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import resolve
from flexwarm.request import Purpose
import torch
from torch.nn.attention.flex_attention import flex_attention
recorder = Recorder(Path("clock.jsonl"), Purpose.BUILD)
told = 0
class Counting(Meter):
    def begin(self, name, part):
        global told
        told += 1
        super().begin(name, part)
meter = Counting.of_worker(resolve(), recorder)
q = torch.randn(1, 2, 128, 32)
with torch.no_grad(), meter.first_call():
    torch.compile(flex_attention)(q, q.clone(), q.clone())
plain = Meter(recorder, alone=False)
with plain.first_call():
    began = time.perf_counter()
    for _ in range(100_000):
        plain.begin("x", Part.LOAD)
        plain.end("x")
    pair = (time.perf_counter() - began) / 100_000
print(json.dumps({"told": told, "pair": pair}))
"""


def flexwarm(python: str, directory: Path, variant: str, command: str) -> dict[str, Any]:
    environ = {**os.environ, "FLEXWARM_STORE": str(directory / "store"), **VARIANTS[variant]}
    argv = [python, "-m", "flexwarm", command, "--format", "json"]
    done = subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if done.returncode != 0:
        sys.exit(f"{python} {command}: {found['verdict']}\n{done.stderr}")
    return found


def start(found: dict[str, Any]) -> dict[str, float]:
    """Seconds of each part of one warm start."""
    (job,) = found["jobs"]
    costs = {part: job["costs"][f"{part}_seconds"] for part in PARTS}
    costs["import"] += found["workers"][0]["import_seconds"]
    return {**costs, "whole": job["costs"]["whole_seconds"] + found["workers"][0]["import_seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--python", action="append", help="an interpreter with flexwarm and a torch; may be given several times"
    )
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    pythons = given.python or [sys.executable]
    sides = [(python, variant) for python in pythons for variant in VARIANTS]
    seen: dict[tuple[str, str], list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "flexwarm.toml").write_text(SPEC)
        # The other builds of a Python find its C++ code compiled, if not its graphs: only the first is cold.
        cold: dict[str, float] = {}
        for side in sides:
            built = flexwarm(*side_in(side, directory), "build")
            cold.setdefault(side[0], built["jobs"][0]["first_call_seconds"])
        for number in range(given.rounds):
            for side in random.Random(number).sample(sides, len(sides)):
                seen[side].append(start(flexwarm(*side_in(side, directory), "verify")))
        clocks = {python: clock(python, directory) for python in pythons}
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {given.rounds} starts each")
    print(f"| torch | variables | {' | '.join(PARTS)} | whole |")
    print("|" + "---|" * (len(PARTS) + 3))
    for side, starts in seen.items():
        cells = [middle([one[part] for one in starts]) for part in (*PARTS, "whole")]
        print(f"| {version(side[0])} | {side[1]} | {' | '.join(cells)} |")
    for python, told in clocks.items():
        print(f"torch {version(python)}: the first call of the first build took {cold[python]:.1f} s")
        microseconds = told["pair"] * 1e6
        print(f"torch {version(python)}: {told['told']} parts entered and left, {microseconds:.2f} us each")


def side_in(side: tuple[str, str], directory: Path) -> tuple[str, Path, str]:
    return side[0], directory, side[1]


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def clock(python: str, directory: Path) -> dict[str, float]:
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "clock")}
    outputs = [
        subprocess.run([python, "-c", CLOCK], cwd=directory, env=environ, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    found: dict[str, float] = json.loads(outputs[1].splitlines()[-1])  # of the second start, which is warm
    return found


def version(python: str) -> str:
    text = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", text], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
