"""Built without the GPU, launched with it: what a bucket that was made on a null GPU is worth on the real one.

    python benchmarks/absent_gpu.py [--profile h200] [--programs]

Needs one GPU of that kind; with --programs also transformers. Each step is a command of its own, in one store: build and
verify for the target, with the real GPU hidden behind the null one; verify, build and verify on the real GPU; and a build
from nothing there, in another store.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPEC = """
schema = 1

[[role]]
name = "trainer"
processes = 1
devices = "cuda:0"

[[workload]]
name = "grouped"
mask_mod = "causal"
q_heads = 8
kv_heads = 2
head_dim = 64
q_len = [512, 1024]
dtype = "bfloat16"
grad = true

[[workload]]
name = "checkpointed"
mask_mod = "sliding_window"
mask_args = { window = 128 }
q_heads = 4
head_dim = 64
q_len = 512
dtype = "bfloat16"
grad = true
call_site = "checkpoint"

[[workload]]
name = "forward"
mask_mod = "causal"
q_heads = 4
head_dim = 128
q_len = 1024
dtype = "float16"
grad = false
"""


#: Linear layers, attention and an optimizer's step, as a training program has them.
STEP = """
schema = 1

[[role]]
name = "trainer"
processes = 1
devices = "cuda:0"

[[workload]]
name = "step"
step = "training:step"
"""
TRAINING = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def step(context):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    net = net.to(device=context.device, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    flex, update = torch.compile(flex_attention), torch.compile(optimizer.step)
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 512, 512, device=context.device)
    q, k, v = (net(torch.randn(1, 4, 512, 64, device=context.device, dtype=torch.bfloat16)) for _ in range(3))
    flex(q, k, v, block_mask=mask).float().square().mean().backward()
    update()
"""

#: Each of these is chosen by time, and the choice is part of the code.
TUNED = """
schema = 1

[[role]]
name = "trainer"
processes = 1
devices = "cuda:0"

[[workload]]
name = "max-autotune"
mask_mod = "causal"
q_heads = 8
kv_heads = 2
head_dim = 64
q_len = 1024
dtype = "bfloat16"
grad = true
compile = { mode = "max-autotune-no-cudagraphs" }
"""


#: Two lengths, the first step of each timed; then what the compiled attention gives against dense attention.
TRAIN = """
import sys, time
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)
flex = torch.compile(flex_attention)
net = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(net.parameters(), betas=(0.75, 0.875), fused=False)
update = torch.compile(optimizer.step)

def causal(b, h, q, kv):
    return q >= kv

marks = []
for length in (512, 768):
    began = time.perf_counter()
    mask = create_block_mask(causal, None, None, length, length, device="cuda")
    q, k, v = (net(torch.randn(1, 2, length, 64, device="cuda", dtype=torch.bfloat16)) for _ in range(3))
    out = flex(q, k, v, block_mask=mask)
    out.float().square().mean().backward()
    update()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    marks.append(time.perf_counter() - began)
print("steps", " + ".join(f"{mark:.1f}" for mark in marks))
if "check" in sys.argv:
    dense = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    print(f"largest difference {(out.float() - dense).abs().max():.4f} of {dense.abs().max():.3f}")
"""
LLAMA = """
import sys, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = dict(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=2048)
model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="flex_attention")).cuda().bfloat16()
marks = []
for length in (512, 768):
    ids = torch.randint(0, 256, (1, length), device="cuda")
    began = time.perf_counter()
    model(ids, labels=ids).loss.backward()
    torch.cuda.synchronize()
    marks.append(time.perf_counter() - began)
print("steps", " + ".join(f"{mark:.1f}" for mark in marks))
if "check" in sys.argv:
    dense = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="eager")).cuda().bfloat16()
    dense.load_state_dict(model.state_dict())
    with torch.no_grad():
        ids = torch.randint(0, 256, (1, 512), device="cuda")
        flex, dense = model(ids).logits.float(), dense(ids).logits.float()
    print(f"largest difference {(flex - dense).abs().max():.4f} of {dense.abs().max():.3f}")
"""


def flexwarm(command: str, spec: Path, store: Path, *options: str) -> tuple[dict[str, Any], float]:
    """One command: its document, and how long it took in seconds."""
    began = time.perf_counter()
    argv = [sys.executable, "-m", "flexwarm", command, "--store", str(store), "--format", "json", *options]
    argv += ["--", sys.executable, str(spec)] if spec.suffix == ".py" else [str(spec)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=spec.parent)
    seconds = time.perf_counter() - began
    document: dict[str, Any] = json.loads(done.stdout or "{}")
    if "jobs" not in document:
        raise SystemExit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return document, seconds


def keys(store: Path) -> set[tuple[str, str, str]]:
    """Every key that a store's only bucket recorded, with its workload."""
    (manifest,) = store.glob("buckets-v1/*/manifest.json")
    jobs = json.loads(manifest.read_text())["jobs"].values()
    return {(job["workload"], key["layer"], key["key"]) for job in jobs for key in job["keys"]}


def choices(store: Path) -> int:
    """Files in which torch keeps which variant of a kernel was the fastest."""
    return len(list(store.rglob("*.best_config")))


def row(what: str, document: dict[str, Any], seconds: float) -> None:
    lookups = [key["answer"] for job in document["jobs"] for key in job.get("keys", ())]
    compiles = sorted({compile["what"] for job in document["jobs"] for compile in job.get("compiles", ())})
    hits = f"{lookups.count('hit')}/{len(lookups)}"
    first = sum(job["first_call_seconds"] or 0 for job in document["jobs"])
    tuned = sum(sum(job.get("tuned", {}).values()) for job in document["jobs"])
    print(
        f"| {what} | {document['verdict']} | {hits} | {', '.join(compiles) or 'none'} | {tuned:.2f} s | {first:.1f} s "
        f"| {seconds:.1f} s |",
        flush=True,
    )


def steps(text: str, target: tuple[str, ...]) -> None:
    """Build a spec without the GPU and go on with it; and build it from nothing with the GPU."""
    with tempfile.TemporaryDirectory() as base:
        spec, made, real = Path(base, "spec.toml"), Path(base, "made"), Path(base, "real")
        spec.write_text(text)
        Path(base, "training.py").write_text(TRAINING)
        print("| step | verdict | hits | compilers | tuning | first calls | command |\n|---|---|---|---|---|---|---|")
        row("build, null GPU", *flexwarm("build", spec, made, *target))
        row("verify, null GPU", *flexwarm("verify", spec, made, *target))
        before = choices(made)
        row("verify, real GPU", *flexwarm("verify", spec, made))
        row("verify --allow-tuning, real GPU", *flexwarm("verify", spec, made, "--allow-tuning"))
        allowed = choices(made)
        row("build, real GPU: tunes", *flexwarm("build", spec, made))
        row("verify, real GPU", *flexwarm("verify", spec, made))
        row("build from nothing, real GPU", *flexwarm("build", spec, real))
        print(f"keys: {len(keys(made))} and {len(keys(real))}, {len(keys(made) & keys(real))} in both")
        print(f"choices by time in the bucket: {before} after the null GPU, {allowed} when the launch may tune", end=", ")
        print(f"{choices(made)} after a build on the real one")


def run(program: Path, store: Path, *arguments: str) -> str:
    """What a program says with a bucket."""
    argv = [sys.executable, "-m", "flexwarm", "run", "--store", str(store), "--", sys.executable, str(program), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True)
    return "; ".join(line for line in done.stdout.splitlines() if line.startswith(("steps", "largest")))


def programs(target: tuple[str, ...], names: Sequence[str] = ("adamw", "llama")) -> None:
    """The first steps of training scripts, with each kind of bucket."""
    with tempfile.TemporaryDirectory() as base:
        for name in names:
            program, made, real = (Path(base, part) for part in (f"{name}.py", f"{name}-made", f"{name}-real"))
            program.write_text({"adamw": TRAIN, "llama": LLAMA}[name])

            def told(command: str, *options: str, name: str = name, program: Path = program, made: Path = made) -> None:
                document, seconds = flexwarm(command, program, made, *options)
                print(f"{name}: {' '.join((command, *options))}: {document['verdict']}, {seconds:.1f} s", flush=True)

            told("build", *target)
            told("verify", *target)
            told("verify")
            told("verify", "--allow-tuning")
            print(f"{name}: not tuned: {run(program, made)}", flush=True)
            told("verify")
            print(f"{name}: tuned by that launch: {run(program, made, 'check')}", flush=True)
            print(f"{name}: cold: {run(program, real)}", flush=True)
            print(f"{name}: built here: {run(program, real)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="h200")
    parser.add_argument("--programs", action="store_true")
    asked = parser.parse_args()
    target = ("--target", asked.profile)
    import torch

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.cuda.get_device_name(0)}")
    if asked.programs:
        programs(target)
        return
    for text in (SPEC, STEP, TUNED):
        steps(text, target)


if __name__ == "__main__":
    main()
