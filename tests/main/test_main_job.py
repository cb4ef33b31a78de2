"""The main job with the real torch: build, prove, clean, and see the proof fail."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from flexwarm.inventory import changed, snapshot
from tests.harness import SECOND, SMALL, Flexwarm

pytestmark = pytest.mark.torch


def test_a_newcomers_story_build_verify_clean_verify(flexwarm: Flexwarm, repository: Path) -> None:
    spec = str(repository / "examples" / "cpu.toml")

    built = flexwarm.run_json("build", spec)
    assert (built.code, built.json["verdict"]) == (0, "built"), built.err
    outcomes = {job["id"]: job["outcome"] for job in built.json["jobs"]}
    # One rank compiles, the other must hit: what two ranks share is compiled once.
    assert outcomes == {
        "causal/trainer:0": "compiled",
        "window-alibi/trainer:0": "compiled",
        "causal/trainer:1": "hit",
        "window-alibi/trainer:1": "hit",
    }
    assert all(job["compiles"] == [] for job in built.json["jobs"] if job["rank"] == 1)

    proven = flexwarm.run_json("verify", spec)
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages()
    for job in proven.json["jobs"]:
        assert job["counters"]["inductor.fxgraph_cache_hit"] == 1
        assert job["counters"]["aot_autograd.autograd_cache_hit"] == 1
        assert job["compiles"] == []
        assert all(shape["agrees"] for shape in job["shapes"])

    assert flexwarm("clean", "--all", "--yes").code == 0
    gone = flexwarm.run_json("verify", spec)
    assert (gone.code, gone.json["verdict"], gone.codes()) == (1, "cold", {"no-bucket"})


def test_a_build_over_a_warm_bucket_compiles_nothing_changes_nothing_and_says_so(warm: Flexwarm) -> None:
    manifest, before = warm.bucket.manifest.read_bytes(), snapshot(warm.bucket)
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"]) == (0, "warm")
    assert [job["outcome"] for job in done.json["jobs"]] == ["hit"]
    assert warm.bucket.manifest.read_bytes() == manifest
    assert changed(before, snapshot(warm.bucket)) == ()


def test_a_store_that_was_moved_is_still_warm(warm: Flexwarm) -> None:
    done = warm.run_json("verify")  # the fixture's store is a copy at another path
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()


def test_a_caller_that_ignores_the_end_of_children_changes_nothing(warm: Flexwarm) -> None:
    program = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    ignoring = (sys.executable, "-c", program)
    done = warm.run_json("verify", prefix=ignoring)
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.err


def test_a_workload_that_was_never_built_is_cold_and_verify_neither_runs_nor_compiles_it(warm: Flexwarm) -> None:
    warm.spec(SMALL + SECOND)
    before = snapshot(warm.bucket)
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"], done.codes()) == (1, "cold", {"not-built"})
    outcomes = {job["workload"]: job["outcome"] for job in done.json["jobs"]}
    assert outcomes == {"small": "hit", "second": "not_run"}
    assert changed(before, snapshot(warm.bucket)) == ()


def test_another_thread_count_is_cold_and_the_variable_is_named_with_both_values(flexwarm: Flexwarm, built_store: Path) -> None:
    # Built without OMP_NUM_THREADS; torchrun sets it to 1 where there are several processes.
    shutil.copytree(built_store, flexwarm.store)
    flexwarm.spec(SMALL.replace("[[workload]]", '[[role]]\nname = "r"\nprocesses = 2\n\n[[workload]]'))
    before = snapshot(flexwarm.bucket)
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (1, "cold")
    assert "env-changed" in done.codes()
    assert "OMP_NUM_THREADS was unset when this was built and is '1' now" in done.messages()
    # The miss was seen, and the job stopped there: no compiler ran and nothing was written.
    assert {"aot-miss", "fx-miss"} & done.codes()
    assert all(job["compiles"] == [] for job in done.json["jobs"])
    assert changed(before, snapshot(flexwarm.bucket)) == ()


def test_a_mask_whose_source_changed_is_cold_and_the_module_is_named(warm: Flexwarm) -> None:
    mask = "def banded(b, h, q, kv):\n    return (q >= kv) & (q - kv < {})\n"
    warm.module(mask.format(64))
    warm.spec(SMALL.replace('"causal"', '"mymasks:banded"'))
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").json["verdict"] == "warm"
    warm.module(mask.format(32))
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (1, "cold")
    assert "source-changed" in done.codes()
    assert "mymasks" in done.messages()
    assert warm.run_json("verify", "--fast").codes() == {"source-changed"}


def test_fast_says_warm_only_for_what_a_full_verification_proved_and_nothing_changed(warm: Flexwarm) -> None:
    unproven = warm.run_json("verify", "--fast")
    assert (unproven.code, unproven.json["verdict"], unproven.codes()) == (1, "unknown", {"not-proven"})

    assert warm.run_json("verify").code == 0
    proven = warm.run_json("verify", "--fast")
    assert (proven.code, proven.json["verdict"], proven.json["fast"]) == (0, "warm", True)

    changed_env = warm.run_json("verify", "--fast", env={"OMP_NUM_THREADS": "1"})
    assert (changed_env.code, changed_env.codes()) == (1, {"env-changed"})
    unknown_env = warm.run_json("verify", "--fast", env={"TORCHINDUCTOR_SOMETHING_NEW": "1"})
    assert unknown_env.code == 1  # a variable that nobody has classified must not be green
    logs = warm.run_json("verify", "--fast", env={"TORCH_LOGS": ""})
    assert logs.code == 0

    warm.spec(SMALL + SECOND)
    assert warm.run_json("verify", "--fast").codes() == {"not-built"}
    warm.spec(SMALL)

    library = next(warm.bucket.inductor.rglob("*.so"))
    os.utime(library)
    touched = warm.run_json("verify", "--fast")
    assert (touched.code, touched.json["verdict"], touched.codes()) == (1, "unknown", {"not-proven"})
    assert library.name in touched.messages()
    # A full verification reads the file, and finds that it is what was built: then that is proven again.
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0
    library.write_bytes(library.read_bytes()[:-1])
    cut = warm.run_json("verify", "--fast")
    assert (cut.code, cut.json["verdict"], cut.codes()) == (7, "broken", {"corrupt-file"})


def test_a_cache_that_a_variable_turns_off_is_cold_for_verify_and_refused_by_build(warm: Flexwarm) -> None:
    off = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    done = warm.run_json("verify", env=off)
    assert (done.code, done.json["verdict"], done.codes()) == (1, "cold", {"cache-disabled"})
    refused = warm.run_json("build", env=off)
    assert refused.code == 2
    assert "TORCHINDUCTOR_FORCE_DISABLE_CACHES" in refused.json["error"]["message"]


def test_a_plan_is_printed_and_nothing_is_started_or_made(flexwarm: Flexwarm) -> None:
    flexwarm.spec(SMALL)
    done = flexwarm.run_json("build", "--dry-run")
    (worker,) = done.json["workers"]
    assert worker["jobs"][0]["shapes"] == ["1x2x128x32 float32"]
    assert worker["env"]["TORCHINDUCTOR_CACHE_DIR"].startswith(str(flexwarm.store))
    assert not flexwarm.store.exists()
    assert "small: 1 shapes" in flexwarm("build", "--dry-run").out


def test_several_lengths_through_one_compiled_function_are_warm(warm: Flexwarm) -> None:
    warm.spec(SMALL.replace("q_len = 128", "q_len = [128, 256, 384]").replace('"small"', '"lengths"'))
    built = warm.run_json("build")
    assert built.code == 0, built.messages()
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    (job,) = done.json["jobs"]
    # The first length is static, the second makes the graph dynamic, the third runs the dynamic one.
    assert job["counters"]["inductor.fxgraph_cache_hit"] == 2
    assert [shape["agrees"] for shape in job["shapes"]] == [True] * 3


def test_a_launch_with_the_printed_environment_hits_every_layer(warm: Flexwarm, tmp_path: Path) -> None:
    import subprocess

    variables = warm.run_json("env").json["variables"]
    script = tmp_path / "train.py"
    script.write_text(
        "import json, torch\n"
        "from torch.nn.attention.flex_attention import create_block_mask, flex_attention\n"
        "from torch._dynamo.utils import counters\n"
        "def causal(b, h, q, kv):\n    return q >= kv\n"
        "q, k, v = (torch.randn(1, 2, 128, 32) for _ in range(3))\n"
        "mask = create_block_mask(causal, None, None, 128, 128, device='cpu')\n"
        "with torch.no_grad():\n    torch.compile(flex_attention)(q, k, v, block_mask=mask)\n"
        "print(json.dumps({group: dict(counters[group]) for group in ('inductor', 'aot_autograd')}))\n"
    )
    done = subprocess.run([sys.executable, script], env=warm.environ(variables), capture_output=True, text=True, check=True)
    counters = json.loads(done.stdout.splitlines()[-1])
    assert counters["inductor"].get("fxgraph_cache_hit") == 1, counters
    assert counters["aot_autograd"].get("autograd_cache_hit") == 1
    assert "fxgraph_cache_miss" not in counters["inductor"]
