"""A warm CPU launch, with torch's precompiled C++ header in the temporary directory, without it, and with it switched off.

    python benchmarks/header_outside_the_cache.py [--rounds 3]

Prints one table, in Markdown: seconds of the first call in new processes that hit every cache key. Each run has a temporary
directory of its own, so that the machine's is not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CALL = """
import json, time, torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention
q, k, v = (torch.randn(1, heads, 256, 64) for heads in (4, 2, 2))
start = time.perf_counter()
with torch.no_grad():
    torch.compile(flex_attention)(q, k, v, enable_gqa=True)
inductor = counters["inductor"]
print(json.dumps([time.perf_counter() - start, inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"]]))
"""


def run(cache: Path, temporary: Path, header: str) -> tuple[float, int]:
    """Seconds of the first call, and cache misses."""
    temporary.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": header,
    }
    done = subprocess.run([sys.executable, "-c", CALL], env=env, capture_output=True, text=True, check=True)
    seconds, _, misses = json.loads(done.stdout.splitlines()[-1])
    return seconds, misses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    from importlib.metadata import version

    taken: dict[str, list[float]] = {"header there": [], "temporary directory emptied": [], "header switched off": []}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        kept, emptied = root / "kept", root / "emptied"
        run(root / "on", kept, "1")
        run(root / "off", kept, "0")
        size = sum(file.stat().st_size for file in kept.rglob("*.gch"))
        for _ in range(rounds):
            shutil.rmtree(emptied, ignore_errors=True)
            for start, (seconds, misses) in (
                ("header there", run(root / "on", kept, "1")),
                ("temporary directory emptied", run(root / "on", emptied, "1")),
                ("header switched off", run(root / "off", kept, "0")),
            ):
                assert misses == 0, f"{start}: {misses} misses"
                taken[start].append(seconds)
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores; Python {platform.python_version()}; torch {version('torch')}; header of {size / 1e6:.0f} MB")
    print()
    print("| start, every cache key hits | min | median | max | unit | runs |")
    print("|---|---|---|---|---|---|")
    for start, seconds in taken.items():
        figures = " | ".join(f"{value:.2f}" for value in (min(seconds), statistics.median(seconds), max(seconds)))
        print(f"| {start} | {figures} | s | {len(seconds)} |")


if __name__ == "__main__":
    main()
