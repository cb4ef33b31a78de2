"""What observation costs: a compiled step with it and without it, and a start under ``flexwarm run`` and bare.

    python benchmarks/observation_overhead.py [--rounds 40] [--starts 5] [--device cpu|cuda]

The step: one program under ``flexwarm run`` takes the only thing that observation adds to a warm call, the check in the
question that torch asks, off and puts it on again, block after block in changing order, and times each block. So both sides
are of one process. The start: the same program to the end of its first step, bare with the bucket's variables and under
``flexwarm run``, in turns. Everything is warm.
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

PROGRAM = """
import json, sys, time
began = time.perf_counter()
import torch
from torch.nn.attention.flex_attention import flex_attention
rounds, device = int(sys.argv[1]), sys.argv[2]
flex = torch.compile(flex_attention)
size, dtype = ((1, 2, 128, 32), torch.float32) if device == "cpu" else ((1, 8, 1024, 64), torch.bfloat16)
q, k, v = (torch.randn(size, device=device, dtype=dtype) for _ in range(3))
w = torch.randn(512, 512, device=device, dtype=dtype)
def call():
    flex(q, k, v)
def step():
    # Six layers: the attention is compiled, and what is around it is not.
    x = w
    for _ in range(6):
        x = torch.relu(x @ w)
        flex(q, k, v)
def seconds(function, count):
    t = time.perf_counter()
    for _ in range(count):
        function()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - t) / count
with torch.no_grad():
    call()
    print("FIRST", time.perf_counter() - began, flush=True)
    if rounds:
        import random
        from flexwarm.observer.torch_api import tracing
        api = tracing.resolve_tracing(autotune=False)
        check, seats = tracing._hooks.queries, tracing._hooks.seats
        assert check is not None, "not observed"
        found = {name: {"with": [], "without": []} for name in ("call", "step")}
        for name, function, count in (("call", call, 1000), ("step", step, 50)):
            seconds(function, count)
            for number in range(rounds):
                for side in random.Random(number).sample(["with", "without"], 2):
                    tracing.observe_queries(api, check if side == "with" else None, seats)
                    found[name][side].append(seconds(function, count))
        tracing.observe_queries(api, check, seats)
        print("RESULT", json.dumps(found), flush=True)
"""


def output(command: list[str], environ: dict[str, str], word: str) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(word)]
    return line.removeprefix(word)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "steps.py"
        program.write_text(PROGRAM)
        flexwarm = [sys.executable, "-m", "flexwarm"]
        environ = {**os.environ, "FLEXWARM_STORE": str(Path(directory) / "store")}
        line = [sys.executable, str(program), "0", given.device]
        subprocess.run([*flexwarm, "build", "-q", "--", *line], env=environ, check=True, stdout=subprocess.DEVNULL)
        told = subprocess.run([*flexwarm, "env", "--format", "json"], env=environ, check=True, capture_output=True, text=True)
        starts: dict[str, tuple[list[str], dict[str, str]]] = {
            "bare": (line, {**environ, **json.loads(told.stdout)["variables"]}),
            "flexwarm run": ([*flexwarm, "run", "-q", "--", *line], environ),
        }
        firsts: dict[str, list[float]] = {kind: [] for kind in starts}
        for number in range(given.starts):
            for kind in random.Random(number).sample(list(starts), 2):
                firsts[kind].append(float(output(*starts[kind], "FIRST")))
        timed = [*flexwarm, "run", "-q", "--", line[0], line[1], str(given.rounds), given.device]
        steps = json.loads(output(timed, environ, "RESULT"))
    import torch

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, {given.device}")
    print("| | without | with | ratio of medians | more |")
    print("|---|---|---|---|---|")
    for name, text in (("call", "one compiled call"), ("step", "a step of six layers")):
        pairs = list(zip(steps[name]["without"], steps[name]["with"], strict=True))
        without, beside = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
        more = statistics.median(b - a for a, b in pairs) * 1e6
        print(f"| {text} | {without:.1f} us | {beside:.1f} us | {beside / without:.4f} | {more:+.2f} us |")
    bare, observed = (statistics.median(firsts[kind]) for kind in starts)
    spread = ", ".join(f"{kind} {min(x):.2f} to {max(x):.2f} s" for kind, x in firsts.items())
    print(f"| import to first step | {bare:.2f} s | {observed:.2f} s | {observed / bare:.4f} | {observed - bare:+.2f} s |")
    print(f"starts: {spread}")


if __name__ == "__main__":
    main()
