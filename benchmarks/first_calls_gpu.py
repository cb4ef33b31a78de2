"""What a launch pays for compiling one attention call on a GPU: cold, warm, and on another device index.

    python benchmarks/first_calls_gpu.py [--rounds 2]

Prints one table, in Markdown: seconds of the first forward, the first backward, and forward and backward at a second
length, each in new processes. Needs an NVIDIA GPU; the rows of another index need two. It does not use flexwarm: it is
what flexwarm is for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CALL = """
import json, sys, time
start = time.perf_counter()
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
device = torch.device(sys.argv[1])
torch.cuda.set_device(device)

def causal(b, h, q, kv):
    return q >= kv

def timed(function):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    return result, time.perf_counter() - begin

def inputs(length):
    shapes = ((1, heads, length, 128) for heads in (32, 8, 8))
    q, k, v = (torch.randn(s, device=device, dtype=torch.bfloat16, requires_grad=True) for s in shapes)
    return q, k, v, create_block_mask(causal, None, None, length, length, device=device)

attention = torch.compile(flex_attention)
q, k, v, mask = inputs(4096)
imported = time.perf_counter() - start
out, forward = timed(lambda: attention(q, k, v, block_mask=mask, enable_gqa=True))
_, backward = timed(lambda: out.sum().backward())
q, k, v, mask = inputs(2048)
_, second = timed(lambda: attention(q, k, v, block_mask=mask, enable_gqa=True).sum().backward())
print(json.dumps([forward, backward, second, imported]))
"""


def run(script: Path, device: str, cache: Path, *, shared: bool) -> list[float]:
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    env.pop("TRITON_CACHE_DIR", None)
    if shared:
        env["TRITON_CACHE_DIR"] = str(cache / "triton")
    done = subprocess.run([sys.executable, script, device], env=env, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    import torch

    taken: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "call.py"
        script.write_text(CALL)
        for number in range(rounds):
            plain, shared = (Path(name) / f"{kind}{number}" for kind in ("plain", "shared"))
            taken.setdefault("cold", []).append(run(script, "cuda:0", plain, shared=False))
            taken.setdefault("warm, the same cache", []).append(run(script, "cuda:0", plain, shared=False))
            if torch.cuda.device_count() > 1:
                other = taken.setdefault("cuda:1 after warming cuda:0", [])
                other.append(run(script, "cuda:1", plain, shared=False))
                run(script, "cuda:0", shared, shared=True)
                other = taken.setdefault("cuda:1 after warming cuda:0, `TRITON_CACHE_DIR` shared", [])
                other.append(run(script, "cuda:1", shared, shared=True))
    print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}; Python {platform.python_version()}; ", end="")
    print(f"torch {torch.__version__}; medians of {rounds} rounds, spread in brackets")
    print()
    print("| start | first forward | first backward | second length | import and inputs |")
    print("|---|---|---|---|---|")
    for start, figures in taken.items():
        columns = zip(*figures, strict=True)
        cells = [f"{statistics.median(column):.3g} s ({min(column):.3g} to {max(column):.3g})" for column in columns]
        print(f"| {start} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
