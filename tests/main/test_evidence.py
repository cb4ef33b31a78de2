"""What would fool a tool that only counts errors: dense attention, a wrong result, a compiler outside of every cache."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from flexwarm import proof
from flexwarm.inventory import changed, snapshot
from flexwarm.ops.prepare import NO_TUNING, TUNING, TUNING_LEFT
from tests.harness import SMALL, Flexwarm

pytestmark = pytest.mark.torch


def user_mask(flexwarm: Flexwarm, source: str) -> None:
    flexwarm.module(source)
    flexwarm.spec(SMALL.replace('"causal"', '"mymasks:mask"').replace('"small"', '"user"'))


PLAIN = "def mask(b, h, q, kv):\n    return q >= kv\n"


def test_flex_that_runs_dense_is_unsafe_with_the_calling_line_and_never_warm(warm: Flexwarm) -> None:
    """Past its recompile limit Dynamo runs the call uncompiled: one warning, then dense attention for ever."""
    user_mask(warm, "import torch\ntorch._dynamo.config.recompile_limit = 1\n" + PLAIN)
    text = (warm.directory / "flexwarm.toml").read_text()
    warm.spec(text.replace("q_len = 128", "q_len = [128, 256]\ncompile = { dynamic = false }"))
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"]) == (8, "unsafe"), done.messages()
    assert done.codes() == {"dense-fallback", "recompile-limit"}
    assert "(1, 2, 256, 32)" in done.messages()
    hazards = {hazard["code"]: hazard for hazard in done.json["hazards"]}
    assert hazards.keys() == {"dense-fallback", "recompile-limit"}
    assert hazards["dense-fallback"]["stack"]


def test_a_compiled_result_that_differs_from_dense_attention_is_broken(warm: Flexwarm) -> None:
    source = (
        "import torch\n\n"
        "def mask(b, h, q, kv):\n"
        "    # Traced and eager disagree, as after a miscompile.\n"
        "    return q >= kv + (1 if torch.compiler.is_compiling() else 0)\n"
    )
    user_mask(warm, source)
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"]) == (5, "broken")
    assert "wrong-result" in done.codes()


def test_a_compiler_that_runs_while_every_layer_hits_is_seen_stopped_and_named(warm: Flexwarm) -> None:
    """As torch itself does with its precompiled header when the machine's temporary directory was emptied."""
    user_mask(warm, PLAIN)
    assert warm.run_json("build").code == 0
    # The same mask in the same place: the keys are the same, so both caches hit.
    compiler = "import subprocess\nsubprocess.run(['g++', '-c', 'x.cpp', '-o', 'made.o'], check=False)\n"
    user_mask(warm, PLAIN + compiler)
    before = snapshot(warm.bucket)
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (1, "cold")
    assert "compiled" in done.codes()
    assert "g++ -c x.cpp" in done.messages()
    assert not (warm.directory / "made.o").exists()
    assert changed(before, snapshot(warm.bucket)) == ()


def test_a_file_that_changes_while_every_layer_hits_is_a_witness_that_disagrees(warm: Flexwarm) -> None:
    user_mask(warm, PLAIN)
    assert warm.run_json("build").code == 0
    writer = "import os, pathlib\n(pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR']) / 'stray').write_text('x')\n"
    user_mask(warm, PLAIN + writer)
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"], done.codes()) == (1, "unknown", {"disk-changed"})
    assert "stray" in done.messages()


def test_a_setting_of_inductor_that_changed_is_named(warm: Flexwarm) -> None:
    source = "import torch._inductor.config as c\nc.max_fusion_size = {}\n" + PLAIN
    user_mask(warm, source.format(64))
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").json["verdict"] == "warm"
    user_mask(warm, source.format(32))
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (1, "cold")
    # The key says which setting it is; that others may have changed as well is nothing to it.
    assert "key-changed" in done.codes() <= {"aot-miss", "fx-miss", "key-changed", "source-changed"}
    assert "max_fusion_size is 32, and 64 when this was built" in done.messages()


def test_a_role_that_switches_compiling_off_is_refused(warm: Flexwarm) -> None:
    role = '[[role]]\nname = "default"\nenv = { TORCH_COMPILE_DISABLE = "1" }\n\n'
    warm.spec(SMALL.replace("[[workload]]", role + "[[workload]]"))
    refused = warm.run_json("verify")
    assert refused.code == 2
    assert "TORCH_COMPILE_DISABLE" in refused.json["error"]["message"]


def test_a_layer_that_a_module_switched_off_gives_no_evidence_although_everything_else_hits(warm: Flexwarm) -> None:
    user_mask(warm, "import torch._functorch.config as c\nc.enable_autograd_cache = False\n" + PLAIN)
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"], done.codes()) == (1, "unknown", {"no-evidence"})
    assert "AOTAutograd cache was never asked" in done.messages()


def test_a_graph_that_is_compiled_past_every_cache_is_not_built(warm: Flexwarm) -> None:
    source = (
        "import torch._inductor.config as c\n"
        "def mask(context):\n"
        "    c.force_disable_caches = context.q_len > 128\n"
        "    return lambda b, h, q, kv: q >= kv\n"
    )
    user_mask(warm, source)
    text = (warm.directory / "flexwarm.toml").read_text()
    warm.spec(text.replace("q_len = 128", "q_len = [128, 256]\nmask_args = {}\ncompile = { dynamic = false }"))
    done = warm.run_json("build")
    assert done.code == 1, done.messages()
    assert "not-stored" in done.codes()


def test_a_module_that_moves_the_cache_is_named_and_never_green(warm: Flexwarm) -> None:
    user_mask(warm, "import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = os.path.abspath('elsewhere')\n" + PLAIN)
    for command in ("build", "verify"):
        done = warm.run_json(command)
        assert done.code != 0
    assert "TORCHINDUCTOR_CACHE_DIR" in warm.run_json("build").messages()


def test_a_factory_that_returns_nothing_is_not_taken_for_no_mask(warm: Flexwarm) -> None:
    user_mask(warm, "def mask(context):\n    lambda b, h, q, kv: q >= kv\n")
    text = (warm.directory / "flexwarm.toml").read_text()
    warm.spec(text.replace('mask_mod = "mymasks:mask"', 'mask_mod = "mymasks:mask"\nmask_args = {}'))
    done = warm.run_json("build")
    assert (done.code, done.codes()) == (5, {"raised"})
    assert "mymasks:mask returned None" in done.messages()


def test_fast_sees_what_a_launch_would_see_of_cores_modules_and_flexwarm_itself(warm: Flexwarm) -> None:
    warm.module("def keep(q, kv):\n    return q >= kv\n", name="helper")
    user_mask(warm, "from helper import keep\n\ndef mask(b, h, q, kv):\n    return keep(q, kv)\n")
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").json["verdict"] == "warm"
    assert warm.run_json("verify", "--fast").code == 0
    # On the cpu the thread count is in the key, and it comes from the cores where OMP_NUM_THREADS is unset.
    if len(os.sched_getaffinity(0)) > 1:
        one = warm.run_json("verify", "--fast", prefix=("taskset", "-c", str(min(os.sched_getaffinity(0)))))
        assert (one.code, one.codes()) == (1, {"fingerprint-changed"})
        assert "host.cores" in one.messages()
    warm.module("def keep(q, kv):\n    return q > kv\n", name="helper")
    done = warm.run_json("verify", "--fast")
    assert (done.code, done.codes()) == (1, {"source-changed"})
    assert "helper.py" in done.messages()


def test_a_changed_comment_costs_one_build_and_one_proof_and_then_fast_is_warm_again(warm: Flexwarm) -> None:
    user_mask(warm, PLAIN)
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").code == 0
    user_mask(warm, PLAIN + "# a comment\n")
    assert warm.run_json("verify", "--fast").codes() == {"source-changed"}
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0


def test_a_file_beside_the_spec_does_not_take_the_place_of_pythons_own(warm: Flexwarm) -> None:
    warm.module("raise RuntimeError('not the standard library')\n", name="queue")
    assert warm.run_json("verify").json["verdict"] == "warm"


def test_a_proof_is_of_the_place_it_was_made_in(warm: Flexwarm, tmp_path: Path) -> None:
    user_mask(warm, PLAIN)
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mymasks.py").write_text(PLAIN.replace(">=", ">"))
    there = Flexwarm(elsewhere, warm.store)
    done = there.run_json("verify", str(warm.directory / "flexwarm.toml"), "--fast")
    assert (done.code, done.codes()) == (1, {"fingerprint-changed", "source-changed"})


def test_a_proof_is_of_the_ranks_that_ran_and_of_no_other(warm: Flexwarm) -> None:
    # The thread count is given, so that a second rank changes the number of ranks and no key.
    role = '[[role]]\nname = "default"\nprocesses = {}\nenv = {{ OMP_NUM_THREADS = "2" }}\n\n[[workload]]'
    warm.spec(SMALL.replace("[[workload]]", role.format(1)))
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0
    warm.spec(SMALL.replace("[[workload]]", role.format(2)))
    done = warm.run_json("verify", "--fast")
    assert (done.code, done.codes()) == (1, {"fingerprint-changed", "not-proven"})
    assert "topology.ranks" in done.messages()
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0


def test_a_proof_that_left_tuning_to_the_launch_is_enough_where_that_is_allowed_alone(warm: Flexwarm) -> None:
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast", "--allow-tuning").code == 0  # nothing was left: a better proof
    # Only a GPU tunes; what a verification there keeps is this.
    known = proof.load(warm.bucket)
    assert known is not None
    assert {job.context[TUNING] for job in known.jobs.values()} == {NO_TUNING}
    jobs = {name: replace(job, context={**job.context, TUNING: TUNING_LEFT}) for name, job in known.jobs.items()}
    proof.save(warm.bucket, replace(known, jobs=jobs))
    strict = warm.run_json("verify", "--fast")
    assert (strict.code, strict.codes()) == (1, {"not-proven"})
    assert "tuning was 'left to the launch' when this was proven and is 'none' now" in strict.messages()
    allowed = warm.run_json("verify", "--fast", "--allow-tuning")
    assert (allowed.code, allowed.json["verdict"]) == (0, "warm")
    (note,) = allowed.json["notes"]
    assert note.startswith("when this was proven, kernels were tuned: each rank")
    assert "tuning left to the launch" in warm("verify", "-q", "--fast", "--allow-tuning").out
    refused = warm("verify", "--allow-tuning", "--target", "h200")
    assert (refused.code, "--allow-tuning and --target" in refused.err) == (2, True)


def test_a_choice_that_a_launch_has_added_is_a_part_of_what_was_proven(warm: Flexwarm) -> None:
    """While it is there a launch need not tune; without it, it does."""
    choice = warm.bucket.inductor / "ab" / "kernel.best_config"
    choice.parent.mkdir(exist_ok=True)
    choice.write_text("{}")
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0
    choice.unlink()
    assert warm.run_json("verify", "--fast").codes() == {"not-proven"}


def test_after_a_build_that_failed_a_verification_proves_again_what_is_there(warm: Flexwarm) -> None:
    user_mask(warm, "raise RuntimeError('no')\n" + PLAIN)
    assert warm.run_json("build").code == 5
    warm.spec(SMALL)
    assert warm.run_json("verify", "--fast").code == 1
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0
