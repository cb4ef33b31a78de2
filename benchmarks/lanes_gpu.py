"""What threads of one process do to each other while one compiles, on real GPUs: without the remedy and with it.

    python benchmarks/lanes_gpu.py [--steps 10] [--rounds 2] [--only commands]

Prints two tables, in Markdown. The first is of a plain training-like program without flexwarm's commands: one thread a
GPU, six layers, the second thread three seconds later, fresh masks at each step, on an empty cache. The second is of
``flexwarm verify`` and its drill: one thread a GPU, and three threads that share one. Needs two NVIDIA GPUs.
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
import time
from pathlib import Path

STEP_SECONDS = 240

PROGRAM = """
import faulthandler, json, sys, threading, time
faulthandler.dump_traceback_later(200, exit=True)
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
steps, stagger, remedy = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "guard"
if remedy:
    from flexwarm import guard
    guard.install()
flex = torch.compile(flex_attention)
LAYERS, LENGTH = 6, 2048
errors, spent = [], {}

def lane(index):
    time.sleep(stagger * index)
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    generator = torch.Generator().manual_seed(index)
    began = time.perf_counter()
    for step in range(steps):
        anchors = torch.randint(1, LENGTH, (LENGTH // 16,), generator=generator).sort().values.to(device)
        def mask_mod(b, h, q, kv):
            return (kv < anchors[q // 16]) | (kv // 16 == q // 16)
        # A second length in the middle: what a run-time recompile does.
        length = LENGTH if step < steps // 2 else LENGTH // 2
        try:
            mask = create_block_mask(mask_mod, None, None, length, length, device=device)
            shapes = ((1, heads, length, 128) for heads in (32, 8, 8))
            q, k, v = (torch.randn(s, device=device, dtype=torch.bfloat16, requires_grad=True) for s in shapes)
            x = q
            for _ in range(LAYERS):
                x = flex(x, k, v, block_mask=mask, enable_gqa=True)
            x.float().square().mean().backward()
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            errors.append(str(error).splitlines()[0][:80])
    spent[index] = time.perf_counter() - began

began = time.perf_counter()
lanes = [threading.Thread(target=lane, args=(index,)) for index in range(torch.cuda.device_count())]
for thread in lanes: thread.start()
for thread in lanes: thread.join()
print(json.dumps({"seconds": time.perf_counter() - began, "errors": errors, "steps": steps * len(lanes)}))
"""

SPEC = """schema = 1

[[role]]
name = "drafter"
lanes = {lanes}
devices = {devices}
stagger = {stagger}

[[workload]]
name = "anchors"
mask_mod = "anchor_block"
q_heads = 32
kv_heads = 8
head_dim = 128
q_len = 2048
dtype = "bfloat16"
grad = true
calls = 6
steps = 3
"""

HANG = ("--hang-timeout", "10")
FIX = ("--guard", "fix")
CALLER = ("--guard-backward", "caller")

#: name -> GPUs that it needs, its spec, and the options of its verifications
LAYOUTS = {
    "one thread a GPU": (2, SPEC.format(lanes=2, devices='"cuda:0-1"', stagger=1), ((), FIX)),
    "three threads on one GPU": (1, SPEC.format(lanes=3, devices='"cuda:0"', stagger=0), (HANG, FIX, (*FIX, *CALLER))),
}


def run_program(directory: Path, steps: int, stagger: float, remedy: str) -> dict[str, object]:
    """One run of the training-like program on an empty cache."""
    script = directory / "program.py"
    script.write_text(PROGRAM)
    with tempfile.TemporaryDirectory(dir=directory) as cache:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        argv = [sys.executable, str(script), str(steps), str(stagger), remedy]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=STEP_SECONDS, check=False)
    if done.returncode:
        return {"seconds": float("nan"), "errors": [done.stderr.strip().splitlines()[-1][:80]], "steps": 0}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def flexwarm(directory: Path, *arguments: str) -> tuple[int, dict[str, object], float]:
    """One command: exit code, JSON document, seconds."""
    began = time.perf_counter()
    argv = [sys.executable, "-m", "flexwarm", *arguments, "--format", "json", "--store", str(directory / "store")]
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=STEP_SECONDS, check=False)
    print(done.stderr, file=sys.stderr)
    return done.returncode, json.loads(done.stdout), time.perf_counter() - began


def program_rows(directory: Path, steps: int, rounds: int) -> None:
    print("| program, cold | steps that raised | seconds, median | seconds, all |\n|---|---|---|---|")
    taken: dict[str, list[dict[str, object]]] = {"bare": [], "guard": []}
    for _ in range(rounds):
        for remedy, runs in taken.items():
            runs.append(run_program(directory, steps, 3.0, remedy))
    for remedy, runs in taken.items():
        name = "guard.install()" if remedy == "guard" else "as it is"
        raised = sum(len(run["errors"]) for run in runs)  # type: ignore[arg-type]
        seconds = [float(run["seconds"]) for run in runs]  # type: ignore[arg-type]
        total = sum(int(run["steps"]) for run in runs)  # type: ignore[call-overload]
        told = ", ".join(f"{value:.1f}" for value in seconds)
        print(f"| {name} | {raised} of {total} | {statistics.median(seconds):.1f} | {told} |")
        for error in sorted({error for run in runs for error in run["errors"]}):  # type: ignore[attr-defined]
            print(error, file=sys.stderr)


def command_rows(directory: Path, gpus: int) -> None:
    print("\n| layout | command | exit | verdict | hazards | drill | seconds |\n|---|---|---|---|---|---|---|")
    for layout, (needed, text, options) in LAYOUTS.items():
        if needed > gpus:
            print(f"| {layout} | needs {needed} GPUs, {gpus} are there | | | | | |")
            continue
        (directory / "flexwarm.toml").write_text(text)
        for arguments in (("build",), *(("verify", *option) for option in options)):
            code, document, seconds = flexwarm(directory, *arguments)
            hazards = ", ".join(sorted({hazard["code"] for hazard in document.get("hazards", [])})) or "none"  # type: ignore[attr-defined]
            drill = document.get("drill") or {}
            told = f"{drill.get('calls')} calls in {drill.get('holds')} holds" if drill else "-"  # type: ignore[attr-defined]
            command = " ".join(arguments)
            verdict = document.get("verdict")
            print(f"| {layout} | `{command}` | {code} | {verdict} | {hazards} | {told} | {seconds:.1f} |", flush=True)
            for reason in [*document.get("reasons", []), *document.get("hazards", [])]:  # type: ignore[misc]
                print(reason["code"], reason["message"], file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("commands", "program"), help="one of the two tables")
    options = parser.parse_args()
    import torch

    with tempfile.TemporaryDirectory() as name:
        if options.only != "program":
            command_rows(Path(name), torch.cuda.device_count())
        if options.only != "commands" and torch.cuda.device_count() > 1:
            program_rows(Path(name), options.steps, options.rounds)
    gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    print(f"\n{gpus}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
