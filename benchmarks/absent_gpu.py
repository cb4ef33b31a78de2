"""Built without the GPU, launched with it: what a bucket that was made on a null GPU is worth on the real one.

    python benchmarks/absent_gpu.py [--profile h200]

Needs one GPU of that kind. Each step is a command of its own, in one store: build and verify for the target, with the real
GPU hidden behind the null one; verify, build and verify on the real GPU; and a build from nothing there, in another store.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
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


def flexwarm(command: str, spec: Path, store: Path, *options: str) -> tuple[dict[str, Any], float]:
    """One command: its document, and how long it took in seconds."""
    began = time.perf_counter()
    argv = [sys.executable, "-m", "flexwarm", command, str(spec), "--store", str(store), "--format", "json", *options]
    done = subprocess.run(argv, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    try:
        return json.loads(done.stdout), seconds
    except ValueError:
        raise SystemExit(f"{' '.join(argv)} failed:\n{done.stderr}") from None


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
    print(
        f"| {what} | {document['verdict']} | {hits} | {', '.join(compiles) or 'none'} | {first:.1f} s | {seconds:.1f} s |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="h200")
    target = ("--target", parser.parse_args().profile)
    import torch

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.cuda.get_device_name(0)}")
    with tempfile.TemporaryDirectory() as base:
        spec, made, real = Path(base, "spec.toml"), Path(base, "made"), Path(base, "real")
        spec.write_text(SPEC)
        print("| step | verdict | hits | compilers | first calls | command |\n|---|---|---|---|---|---|")
        row("build, null GPU", *flexwarm("build", spec, made, *target))
        row("verify, null GPU", *flexwarm("verify", spec, made, *target))
        before = choices(made)
        row("verify, real GPU", *flexwarm("verify", spec, made))
        row("build, real GPU: tunes", *flexwarm("build", spec, made))
        row("verify, real GPU", *flexwarm("verify", spec, made))
        row("build from nothing, real GPU", *flexwarm("build", spec, real))
        print(f"keys: {len(keys(made))} and {len(keys(real))}, {len(keys(made) & keys(real))} in both")
        print(f"choices by time in the bucket: {before} after the null GPU, {choices(made)} after the real one")


if __name__ == "__main__":
    main()
