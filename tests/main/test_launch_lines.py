"""Launch lines, as users start them: torchrun, DDP over gloo, data loaders; what a build keeps and what takes warm away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flexwarm import reaper
from flexwarm.inventory import changed, snapshot
from flexwarm.manifest import JobEntry
from tests.harness import Done, Flexwarm

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("launch lines")]

#: Data-parallel, with attention in a module. Ranks may call more than others, or come to grief on their way.
TRAIN = """
import argparse, os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

flex = torch.compile(flex_attention)

def causal(b, h, q, kv):
    return q >= kv

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(32, 32)

    def forward(self, x, mask):
        return self.project(flex(x, x, x, block_mask=mask))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="128")
    parser.add_argument("--trouble", default="")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    if options.trouble == "death" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if options.trouble == "error" and dist.get_rank() == 1:
        raise ValueError("this rank has no data")
    if options.trouble == "status" and dist.get_rank() == 1:
        sys.exit(3)  # LEFT
    model = torch.nn.parallel.DistributedDataParallel(Model())
    for length in map(int, options.lengths.split(",")):
        mask = create_block_mask(causal, None, None, length, length, device="cpu")
        with torch.no_grad():
            model(torch.randn(1, 2, length, 32), mask)
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()

main()
"""

#: One process with one small compiled function, and what else programs do.
SOLO = """
import os, sys
if "moves" in sys.argv:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.getcwd(), "own-cache")
import torch

@torch.compile
def work(x):
    return x.sin() * 2 + 1

def other(x):
    return x.cos() - 3

class Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, at):
        return torch.full((4,), float(at))

def main(asked):
    for method in {"spawn", "fork"} & set(asked):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=method)
        print(method, "read", sum(len(batch) for batch in loader), flush=True)
    work(torch.ones(8))
    if "forks" in asked:
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        print('{"event": "bye"}', flush=True)
    if "other" in asked:
        torch.compile(other)(torch.ones(8))  # NEW
        print("went on", flush=True)
    if "slope" in asked:
        torch.compile(lambda x: Slope.apply(x) + 1)(torch.ones(8, requires_grad=True)).sum().backward()
    if "dense" in asked:
        from torch.nn.attention.flex_attention import flex_attention
        flex_attention(*(torch.randn(1, 2, 64, 32) for _ in range(3)))  # DENSE
    if "selective" in asked:
        from functools import partial
        from torch.nn.attention.flex_attention import flex_attention
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
        contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
        q, k, v = (torch.randn(1, 2, 64, 32) for _ in range(3))
        with torch.compiler.set_stance("force_eager"):
            checkpoint(torch.compile(flex_attention), q, k, v, use_reentrant=False, context_fn=contexts)  # KEPT
    if "tunes" in asked:
        import triton
        from triton.runtime.autotuner import Autotuner

        class Kernel:  # Triton's own tuning, of what needs no GPU
            fn = staticmethod(other)
            run = staticmethod(lambda x, BLOCK, **options: None)

        configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
        Autotuner(Kernel(), ["x"], configs, ["x"], None, None, do_bench=lambda call, quantiles: [float(bool(call()))]).run(1)
    if "waits" in asked:
        open("here", "w").close()
        while not os.path.exists("go"):
            import time
            time.sleep(0.01)
    if "three" in asked:
        sys.exit(3)
    if "killed" in asked:
        os.kill(os.getpid(), 15)

if __name__ == "__main__":
    main(sys.argv[1:])
"""

#: Each rank calls another number of functions.
UNEVEN = """
import os
import torch

def plain(x):
    return x + 1

def only_one(x):
    return x * 2

torch.compile(plain)(torch.ones(8))
if os.environ["RANK"] == "1":
    torch.compile(only_one)(torch.ones(8))
"""

PYTHON = sys.executable


def torchrun(*arguments: str, processes: int = 2) -> list[str]:
    return ["--", PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *arguments]


def solo(*arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
    return ["--", PYTHON, *flags, "solo.py", *arguments]


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    """A project, and a store in which its lines were built."""
    base = tmp_path_factory.mktemp("lines")
    (base / "project").mkdir()
    command = Flexwarm(base / "project", base / "store")
    for name, text in (("train", TRAIN), ("solo", SOLO), ("uneven", UNEVEN)):
        command.module(text, name)
    done = command.run_json("build", *torchrun("train.py"))
    assert (done.code, done.json["verdict"], done.json["published"]) == (0, "built", True), done.err
    assert done.json["notes"] == []
    done = command.run_json("build", *solo())
    assert (done.code, done.json["verdict"], done.json["published"]) == (0, "built", True), done.err
    return command


@pytest.fixture
def lines(prepared: Flexwarm, tmp_path: Path) -> Flexwarm:
    """The same project with a copy of the store."""
    shutil.copytree(prepared.store, tmp_path / "store", symlinks=True)
    return Flexwarm(prepared.directory, tmp_path / "store")


def entries_of(command: Flexwarm) -> dict[str, JobEntry]:
    return {entry.workload: entry for entry in command.manifest().jobs.values()}


@contextmanager
def unchanged(command: Flexwarm) -> Iterator[None]:
    """Nothing that a launch would read is written."""
    before, manifest = snapshot(command.bucket), command.bucket.manifest.read_bytes()
    yield
    assert changed(before, snapshot(command.bucket)) == ()
    assert command.bucket.manifest.read_bytes() == manifest


# ---- the main job ----------------------------------------------------------------------------------------------------------


def test_a_data_parallel_job_that_was_built_is_proven_by_itself(lines: Flexwarm, no_process_left: Callable[[], None]) -> None:
    with unchanged(lines):
        done = lines.run_json("verify", *torchrun("train.py"))
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages()
    assert (done.json["launch"]["launcher"], done.json["launch"]["expected_ranks"]) == ("torchrun", 2)
    assert (done.json["launch"]["ranks"], done.json["command_exit_code"]) == ([0, 1], 0)
    assert [(job["rank"], job["outcome"], len(job["calls"])) for job in done.json["jobs"]] == [(0, "hit", 1), (1, "hit", 1)]
    for job in done.json["jobs"]:
        (made,) = job["calls"]
        assert (made["hit"], made["call"]["attention"][0]["query"]["shape"]) == (True, [1, 2, 128, 32])
        assert made["call"]["caller"].endswith(f"train.py:{line_of(TRAIN, 'self.project(flex(')} in forward")
    # What the job printed is for people, where the document is on standard output.
    assert "rank 1 is done" in done.err
    assert {"rank 0", "rank 1"} <= entries_of(lines).keys()
    assert lines.processes_left() == []


def test_a_length_that_was_not_built_is_cold_and_named_with_its_line(lines: Flexwarm) -> None:
    with unchanged(lines):
        done = lines.run_json("verify", *torchrun("train.py", "--lengths", "128,256"))
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert done.codes() <= {"aot-miss", "fx-miss", "key-changed", "recompiled"}
    assert "256" in done.messages()
    assert f"train.py:{line_of(TRAIN, 'self.project(flex(')} in forward" in done.messages()
    assert done.json["command_exit_code"] is None
    assert done.json["launch"]["ended"] == "at a miss"
    assert lines.processes_left() == []


def test_a_variable_that_the_launcher_sets_otherwise_is_named_with_both_values(lines: Flexwarm) -> None:
    """torchrun sets OMP_NUM_THREADS to 1 where it is not set, and the number of threads is in the kernels' keys."""
    done = lines.run_json("verify", *torchrun("train.py"), env={"OMP_NUM_THREADS": "2"})
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert "env-changed" in done.codes()
    (said,) = {line for line in done.messages().splitlines() if "OMP_NUM_THREADS" in line}
    assert "1" in said.partition("OMP_NUM_THREADS")[2]
    assert "2" in said.partition("OMP_NUM_THREADS")[2]


def test_a_rank_that_is_killed_is_named_and_the_others_error_is_its_consequence(lines: Flexwarm) -> None:
    done = lines.run_json("verify", *torchrun("train.py", "--trouble", "death"))
    assert (done.code, done.json["verdict"]) == (6, "broken"), done.messages()
    assert "crashed" in {reason["code"] for reason in done.json["jobs"][1]["reasons"]}
    assert done.json["jobs"][1]["rank"] == 1
    assert done.json["command_exit_code"] == 1


def test_a_rank_that_raises_fails_the_command_and_nobody_else_is_blamed(lines: Flexwarm) -> None:
    done = lines.run_json("verify", *torchrun("train.py", "--trouble", "error"))
    assert (done.code, done.json["verdict"], done.codes()) == (5, "broken", {"command-failed"}), done.messages()
    assert "rank 1: ValueError: this rank has no data" in done.messages()
    assert done.json["command_exit_code"] == 1


def test_a_rank_that_leaves_with_a_status_fails_the_command_and_is_named_with_its_line(lines: Flexwarm) -> None:
    """It raises nothing that anybody is told of, and the launcher kills the others for it."""
    done = lines.run_json("verify", *torchrun("train.py", "--trouble", "status"))
    assert (done.code, done.json["verdict"], done.codes()) == (5, "broken", {"command-failed"}), done.messages()
    assert "rank 1: exit status 3 at " in done.messages()
    assert f"train.py:{line_of(TRAIN, '# LEFT')} in main" in done.messages()
    assert {program["status"] for program in done.json["launch"]["programs"] if program["place"].get("rank") == 1} == {3}


def test_ranks_that_call_different_things_are_noted_and_one_that_is_missing_is_a_finding(lines: Flexwarm) -> None:
    before = lines.bucket.manifest.read_bytes()
    done = lines.run_json("build", "--expect-ranks", "3", *torchrun("uneven.py"))
    assert (done.code, done.json["verdict"], done.codes()) == (1, "unknown", {"rank-missing"}), done.messages()
    assert "2 ranks reported, and 3 were expected (--expect-ranks)" in done.messages()
    assert done.json["published"] is False
    assert lines.bucket.manifest.read_bytes() == before
    only, why = done.json["notes"]
    assert only.startswith("only rank 1 compiles only_one")
    assert f"uneven.py:{line_of(UNEVEN, 'torch.compile(only_one)')}" in only
    assert "collectives" in why


# ---- one process, and what programs do -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_data_loader_is_observed_and_not_disturbed(lines: Flexwarm, method: str) -> None:
    done = lines.run_json("verify", *solo(method))
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages()
    assert f"{method} read 8" in done.err
    assert len(done.json["jobs"]) == 1
    if method == "spawn":
        (job,) = done.json["jobs"]
        others = [one for one in done.json["launch"]["programs"] if one["pid"] != job["pid"]]
        assert len(others) == 2


def test_a_program_that_prints_and_forks_disturbs_no_event_and_no_output(lines: Flexwarm) -> None:
    done = lines.run_json("verify", *solo("forks"))
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages()
    assert '{"event": "bye"}' in done.err
    human = lines("verify", *solo("forks"))
    assert human.code == 0
    assert human.out.splitlines()[0] == '{"event": "bye"}'
    assert "verdict: warm" in human.out


def test_attention_that_is_not_compiled_in_one_branch_is_dense_with_its_line(lines: Flexwarm) -> None:
    done = lines.run_json("verify", *solo("dense"))
    assert (done.code, done.json["verdict"], done.codes()) == (8, "unsafe", {"dense-fallback"}), done.messages()
    assert f"solo.py:{line_of(SOLO, '# DENSE')} in main" in done.messages()
    (hazard,) = done.json["hazards"]
    assert any("solo.py" in line for line in hazard["stack"])


def test_attention_that_a_selective_checkpoint_keeps_from_compiling_is_dense_by_evidence(lines: Flexwarm) -> None:
    """The call goes through the wrapper of ``torch.compile``, so only what ran can tell."""
    done = lines.run_json("verify", *solo("selective"))
    assert (done.code, done.json["verdict"], done.codes()) == (8, "unsafe", {"dense-fallback"}), done.messages()
    assert f"solo.py:{line_of(SOLO, '# KEPT')} in main" in done.messages()


def test_a_kernel_that_a_program_tunes_itself_is_not_warm_also_where_tuning_is_allowed(lines: Flexwarm) -> None:
    """The program can read what was chosen, and compile something else for it."""
    for allowed in ((), ("--allow-tuning",)):
        cold = lines.run_json("verify", *allowed, *solo("tunes"))
        assert (cold.code, cold.json["verdict"], cold.codes()) == (1, "cold", {"compiled"}), cold.messages()
        assert cold.json["tuning"] == ("try" if allowed else "miss")
        assert "kernels are tuned: @triton.autotune of other, 2 configurations" in cold.messages()
        assert "TRITON_CACHE_AUTOTUNING=1" in cold.json["jobs"][0]["reasons"][0]["hint"]
    warm = lines.run_json("verify", "--allow-tuning", *solo())
    assert (warm.code, warm.json["verdict"], warm.json["notes"]) == (0, "warm", []), warm.messages()


def test_a_python_that_leaves_the_observer_out_is_unknown_with_the_flag(lines: Flexwarm) -> None:
    done = lines.run_json("verify", *solo(flags=("-I",)))
    assert (done.code, done.json["verdict"], done.codes()) == (1, "unknown", {"not-observed"}), done.messages()
    assert "-I" in done.messages()


def test_a_program_that_sets_its_cache_itself_is_cold_with_the_variable(lines: Flexwarm) -> None:
    with unchanged(lines):
        done = lines.run_json("verify", *solo("moves"))
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert "cache-moved" in done.codes()
    assert "changed TORCHINDUCTOR_CACHE_DIR from" in done.messages()


def test_a_graph_that_torch_does_not_cache_is_cold_with_torchs_own_reason(lines: Flexwarm) -> None:
    before = lines.bucket.manifest.read_bytes()
    done = lines.run_json("build", *solo("slope"))
    assert (done.code, done.json["verdict"], done.json["published"]) == (1, "cold", False), done.messages()
    assert done.codes() & {"aot-bypass", "fx-bypass"}
    assert "autograd" in done.messages()
    assert lines.bucket.manifest.read_bytes() == before


# ---- run -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "code"), [("three", 3), ("killed", 128 + signal.SIGTERM)])
def test_the_exit_code_of_a_real_launch_is_its_commands(lines: Flexwarm, asked: str, code: int) -> None:
    with unchanged(lines):
        done = lines.run_json("run", *solo(asked))
    assert (done.code, done.json["exit_code"], done.json["command_exit_code"]) == (code, code, code)
    assert (done.json["hits"], done.json["compiles"]) == (1, 0)


#: The command with a fault of its own in one place, after the job has ended.
FAULTY = """
import sys
from flexwarm import errors, launch_verdict
from flexwarm.cli import launching, main
from flexwarm.ops import launch_line, run_launch

def fails(*args, **kwargs):
    raise {error}

{place} = fails
main.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("launch_line.fold_launch", "LookupError('a fault')", "this is a bug in flexwarm"),
        ("run_launch.judge_verified_launch", "LookupError('a fault')", "this is a bug in flexwarm"),
        ("run_launch.why_missed", "errors.StoreError('the store is gone')", "the store is gone"),
        ("launching.render_result", "OSError(5, 'a fault')", "input/output error"),
        ("run_launch.result_of", "errors.Interrupted(2)", "interrupted"),
    ],
)
@pytest.mark.parametrize("code", [0, 3])
def test_a_fault_after_the_end_of_a_real_job_is_told_and_takes_nothing_from_its_exit_code(
    lines: Flexwarm, place: str, error: str, said: str, code: int
) -> None:
    script = FAULTY.format(place=place, error=error)
    done = subprocess.run(
        [PYTHON, "-c", script, "run", "--", "sh", "-c", f"exit {code}"],
        cwd=lines.directory, env=lines.environ(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert ("Traceback" in done.stderr) is ("LookupError" in error)


def test_a_fault_in_a_verification_is_never_green(lines: Flexwarm) -> None:
    script = FAULTY.format(place="launch_line.fold_launch", error="LookupError('a fault')")
    argv = [PYTHON, "-c", script, "verify", "--", "sh", "-c", "exit 0"]
    done = subprocess.run(argv, cwd=lines.directory, env=lines.environ(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 70, done.stderr


def test_an_output_that_cannot_be_written_takes_nothing_from_a_real_jobs_exit_code(lines: Flexwarm) -> None:
    with open("/dev/full", "w") as full:
        argv = lines.argv(["run", "--format", "json", "--", "sh", "-c", "exit 0"])
        done = subprocess.run(argv, cwd=lines.directory, env=lines.environ(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert "standard output cannot be written" in done.stderr


#: Fills the disk that the store is on, at a moment of a program.
FILLS = """
import os, sys
import torch

def fill():
    with open(os.path.join(os.environ["FLEXWARM_STORE"], "fill"), "wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                size //= 2

work, other = torch.compile(lambda x: x.sin() + 1), torch.compile(lambda *many: sum(many))
work(torch.ones(8))
if "full" in sys.argv:
    fill()
# What is said of so many inputs is more than what is left of a page that the file has already.
other(*[torch.ones(8) for _ in range(64)])
if "freed" in sys.argv:
    os.unlink(os.path.join(os.environ["FLEXWARM_STORE"], "fill"))
print("went on", flush=True)
"""


def test_a_disk_that_fills_under_a_program_is_named_and_nothing_is_said_to_have_crashed(
    lines: Flexwarm, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("a small disk can only be mounted by root")
    try:
        lines.module(FILLS, "fills")
        on = Flexwarm(lines.directory, small)
        built = on.run_json("build", "--", PYTHON, "fills.py")
        assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
        for asked in (["full"], ["full", "freed"]):
            done = on.run_json("verify", "--", PYTHON, "fills.py", *asked)
            (small / "fill").unlink(missing_ok=True)
            assert (done.code, done.json["verdict"], done.codes()) == (3, "broken", {"no-space"}), done.messages()
            assert f"{small} takes no more" in done.messages()
            assert "went on" in done.err
        done = on.run_json("run", "--", PYTHON, "fills.py", "full")
        assert (done.code, done.codes()) == (0, {"no-space"}), done.messages()
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_real_launch_that_stops_at_a_miss_compiles_nothing_and_leaves_nothing(lines: Flexwarm) -> None:
    with unchanged(lines):
        done = lines("run", "--on-miss", "fail", *solo("other"))
    assert done.code == 1
    assert "went on" not in done.out
    assert "other of 8 float32" in done.err
    assert f"solo.py:{line_of(SOLO, '# NEW')} in main" in done.err
    assert lines.processes_left() == []


def test_a_real_launch_warns_of_a_miss_and_compiles(lines: Flexwarm) -> None:
    done = lines("run", "--on-miss", "warn", *solo("other"))
    assert (done.code, done.out) == (0, "went on\n")
    said = [line for line in done.err.splitlines() if "which is not in the bucket" in line]
    assert len(said) == 1
    assert "compiles other of 8 float32" in said[0]
    assert "verdict: cold" in done.err


def test_a_real_launch_holds_its_bucket_against_a_clean(lines: Flexwarm) -> None:
    for name in ("here", "go"):
        (lines.directory / name).unlink(missing_ok=True)
    with lines.start("run", *solo("waits")) as process:
        try:
            wait_for(lambda: (lines.directory / "here").exists(), process)
            cleaned = lines("clean", "--all", "--yes")
            assert lines.bucket.exists()
            assert "solo.py waits" in cleaned.out + cleaned.err
        finally:
            (lines.directory / "go").touch()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "verdict: warm" in err
    lines("clean", "--all", "--yes")
    assert list(lines.store.glob("buckets-v1/*")) == []


# ---- two nodes -------------------------------------------------------------------------------------------------------------


def two_nodes(first: Flexwarm, second: Flexwarm, verb: str) -> list[Done]:
    """Two launchers, as of two machines, that wait for each other: each under a flexwarm of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rendezvous = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    line = torchrun(*rendezvous, "train.py", processes=1)
    started = [command.start(verb, "--format", "json", "--lock-wait", "60", *line) for command in (first, second)]
    try:
        outputs = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    return [Done(process.returncode, *output) for process, output in zip(started, outputs, strict=True)]


def test_two_nodes_with_a_store_each_are_built_and_proven(prepared: Flexwarm, tmp_path: Path) -> None:
    nodes = []
    for number in range(2):
        shutil.copytree(prepared.store, tmp_path / f"store-{number}", symlinks=True)
        nodes.append(Flexwarm(prepared.directory, tmp_path / f"store-{number}"))
    # The kernels are those that two ranks of one node were built with, but for the number of threads.
    built = two_nodes(*nodes, "build")
    assert [done.code for done in built] == [0, 0], built[0].err + built[1].err
    assert sorted(rank for done in built for rank in done.json["launch"]["ranks"]) == [0, 1]
    proven = two_nodes(*nodes, "verify")
    assert [(done.code, done.json["verdict"]) for done in proven] == [(0, "warm")] * 2, proven[0].messages()


def test_two_nodes_that_share_a_store_are_built_together_and_proven_at_the_same_time(lines: Flexwarm) -> None:
    """With a lock that one of them holds alone, the other would wait for it, and the first one's rank for the other's."""
    built = two_nodes(lines, lines, "build")
    assert [done.code for done in built] == [0, 0], built[0].err + built[1].err
    assert {"rank 0", "rank 1"} <= entries_of(lines).keys()
    proven = two_nodes(lines, lines, "verify")
    assert [(done.code, done.json["verdict"]) for done in proven] == [(0, "warm")] * 2, proven[0].messages()


# ---- a spec and a line -----------------------------------------------------------------------------------------------------

#: The workload of ``SMALL`` as a program calls it.
SMALL_JOB = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def causal(b, h, q, kv):
    return q >= kv

with torch.no_grad():
    mask = create_block_mask(causal, None, None, 128, 128, device="cpu")
    q, k, v = (torch.randn(1, 2, 128, 32) for _ in range(3))
    torch.compile(flex_attention)(q, k, v, block_mask=mask)
"""


def test_what_a_spec_built_serves_a_program_that_calls_the_same(warm: Flexwarm) -> None:
    warm.module(SMALL_JOB, "small_job")
    done = warm.run_json("verify", "--", PYTHON, "small_job.py")
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages()
    assert done.json["hits"] == 1


# ---- endings ---------------------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.005)


def started_programs(command: Flexwarm, known: set[str]) -> list[dict[str, object]]:
    """What the programs of a run that is not ``known`` have said so far."""
    said = []
    for run in set(command.run_ids()) - known:
        for file in (command.bucket.runs / run / "programs").glob("*.jsonl"):
            said += [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return said


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_verification_that_is_ended_leaves_no_process_and_a_store_that_is_whole(
    lines: Flexwarm, signum: signal.Signals, code: int
) -> None:
    for name in ("here", "go"):
        (lines.directory / name).unlink(missing_ok=True)
    known = set(lines.run_ids())
    with unchanged(lines):
        with lines.start("verify", "--format", "json", *solo("waits")) as process:
            wait_for(lambda: (lines.directory / "here").exists(), process)
            pids = [int(str(event["pid"])) for event in started_programs(lines, known) if event["event"] == "program"]
            assert pids
            process.send_signal(signum)
            out, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        assert "bug in flexwarm" not in err
        if signum is not signal.SIGKILL:
            assert json.loads(out)["exit_code"] == code
            assert lines.processes_left() == []
        deadline = time.monotonic() + 30  # nobody is left to wait for them
        while not all(map(reaper.is_zombie, pids)) or lines.processes_left():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert lines.run_json("verify", *solo()).json["verdict"] == "warm"


# ---- compilers that no cache of torch keeps --------------------------------------------------------------------------------

#: A compiled function, and an extension that torch builds with ninja.
EXTENDED = """
import torch
from torch.utils.cpp_extension import load

load("small", ["small.cpp"], is_python_module=False)

@torch.compile
def work(x):
    return x.sin() * 2 + 1

work(torch.ones(8))
"""
SMALL = '#include <regex>\nbool small() { return std::regex_match("%s", std::regex("a")); }\n'


def test_an_extension_that_a_build_tool_compiles_takes_warm_away(lines: Flexwarm, tmp_path: Path) -> None:
    lines.module(EXTENDED, "extended")
    source = lines.directory / "small.cpp"
    source.write_text(SMALL % "a")
    # ninja lies beside the interpreter, whatever the shell's own path is.
    path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"), "PATH": path}
    line = ["--", PYTHON, "extended.py"]
    done = lines.run_json("build", *line, env=env)
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err
    assert any(compiler["compiles"].endswith("small.cpp") for compiler in done.json["launch"]["compilers"])
    # ninja runs each time; what it has made it does not make again.
    done = lines.run_json("verify", *line, env=env)
    assert (done.code, done.json["verdict"], done.json["launch"]["compilers"]) == (0, "warm", []), done.messages()
    source.write_text(SMALL % "b")
    done = lines.run_json("verify", *line, env=env)
    assert (done.code, done.json["verdict"], done.codes()) == (1, "cold", {"compiled"}), done.messages()
    assert "small.cpp" in done.messages()
    assert lines.run_json("verify", *line, env=env).json["verdict"] == "warm"
