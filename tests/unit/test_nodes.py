"""The nodes of one launch are compared: what may differ, what must not, and what a verdict makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from flexwarm import commandline, nodes
from flexwarm.canonical import plain
from flexwarm.errors import ExitCode
from flexwarm.fingerprint import Change
from flexwarm.launch_verdict import LaunchVerdict, judge_built_launch
from flexwarm.nodes import NodeFacts, NodeFinding
from flexwarm.observation import Observation, OnMiss
from flexwarm.ops import publish
from flexwarm.program_events import Nodes
from flexwarm.programs import Ended
from flexwarm.reasons import Code, Kind
from flexwarm.render.launch import _nodes_json
from flexwarm.request import Backward, Guard
from tests.launches import KEYS, codes, expectation, judge, messages, plus, raised, rank, record, warm, without

COMPONENTS = {"torch.version": "2.13.0", "gpu.arch": "sm_90", "python.version": "3.12.1"}


def facts(host: str, **changes: Any) -> NodeFacts:
    values: dict[str, Any] = {
        "host": host,
        "store": "/scratch/flexwarm",
        "bucket": "b" * 20,
        "components": COMPONENTS,
        "built": True,
        "keys": 24,
        "keys_digest": "k",
    }
    return NodeFacts(**{**values, **changes})


def cold(host: str, **changes: Any) -> NodeFacts:
    return facts(host, **{"built": False, "keys": 0, "keys_digest": "", **changes})


def told(known: Mapping[str, NodeFacts], missed: Mapping[str, str] | None = None, own: str = "run-a") -> Nodes:
    return Nodes(t=4.0, own=own, nodes={node: plain(value) for node, value in known.items()}, missed=missed or {})


def verdict(known: Mapping[str, NodeFacts], missed: Mapping[str, str] | None = None, **changes: Any) -> LaunchVerdict:
    """Of the verification on the first node, whose one rank is warm."""
    return judge([plus(told(known, missed))(warm(rank(0, local=1)))], **changes)


# --- the comparison ---------------------------------------------------------------------------------------------------------


def test_nodes_that_have_the_same_have_nothing_to_say() -> None:
    assert nodes.compare({"1": facts("a"), "2": facts("b"), "3": facts("c")}) == ()
    assert nodes.compare({"1": facts("a")}) == ()
    assert nodes.compare({}) == ()


def test_where_their_stores_are_is_no_difference() -> None:
    assert nodes.compare({"1": facts("a"), "2": facts("b", store="/local/flexwarm")}) == ()


def test_a_node_with_nothing_built_is_named_with_its_store() -> None:
    (found,) = nodes.compare({"1": facts("a"), "2": cold("b", store="/local")})
    assert (found.what, found.node) == (NodeFinding.COLD, "2")
    assert "node b" in found.message
    assert "/local" in found.message


def test_a_manifest_that_lists_no_key_is_as_cold_as_none() -> None:
    (found,) = nodes.compare({"1": facts("a"), "2": facts("b", keys=0)})
    assert found.what is NodeFinding.COLD


def test_two_nodes_of_one_host_name_are_told_apart_by_their_stores() -> None:
    known = {"1": facts("vm", store="/a"), "2": facts("vm", store="/b"), "3": facts("other")}
    assert nodes.names(known) == {"1": "vm (store /a)", "2": "vm (store /b)", "3": "other"}


def test_the_node_that_stands_alone_with_its_fingerprint_is_named_with_three_components() -> None:
    other = {"torch.version": "2.14.1", "gpu.arch": "sm_100", "python.version": "3.11.2", "triton.version": "3.8"}
    known = {"1": facts("c", bucket="d" * 20, components=other), "2": facts("a"), "3": facts("b")}
    (found,) = nodes.compare(known)
    assert (found.what, found.node) == (NodeFinding.FINGERPRINT, "1")
    assert found.message == (
        "node c has another fingerprint than node a: gpu.arch is 'sm_100', not 'sm_90'; "
        "python.version is '3.11.2', not '3.12.1'; torch.version is '2.14.1', not '2.13.0'; and 1 more"
    )


def test_each_node_comes_to_the_same_whatever_the_order_in_which_it_was_told() -> None:
    known = {"1": facts("a"), "2": facts("b", bucket="d" * 20), "3": cold("c"), "4": facts("d", keys_digest="other")}
    assert nodes.compare(known) == nodes.compare(dict(reversed(known.items())))


def test_keys_are_the_same_set_in_whatever_order_they_are_listed() -> None:
    keys = [("fx", "1"), ("aot", "2")]
    assert nodes.digest_of_keys(keys) == nodes.digest_of_keys([*reversed(keys), keys[0]])
    assert nodes.digest_of_keys(keys) != nodes.digest_of_keys(keys[:1])


def test_other_keys_are_a_note_for_ranks_of_other_nodes_may_call_other_things() -> None:
    (found,) = nodes.compare({"1": facts("a"), "2": facts("b", keys=12, keys_digest="other")})
    assert (found.what, found.node) == (NodeFinding.KEYS, "2")
    assert "(12 and 24)" in found.message
    # Another fingerprint, or nothing at all, explains other keys.
    assert [x.what for x in nodes.compare({"1": facts("a"), "2": cold("b")})] == [NodeFinding.COLD]
    other = facts("b", bucket="d" * 20, keys_digest="other")
    assert [x.what for x in nodes.compare({"1": facts("a"), "2": other})] == [NodeFinding.FINGERPRINT]


def test_every_component_in_which_a_node_differs_is_told_with_both_values() -> None:
    usual = {"gpu.driver": "580.1", "env.CI": "true", "env.TRITON_CACHE_DIR": "/a"}
    known = {
        "1": facts("a", explain=usual),
        "2": facts("b", explain={**usual, "env.TRITON_CACHE_DIR": "/b"}),
        "3": facts("c", bucket="d" * 20, components={**COMPONENTS, "gpu.arch": "sm_80"}, explain={"gpu.driver": "570.2"}),
    }
    assert nodes.changes(known) == {
        "1": (),
        "2": (),
        "3": (
            Change(component="gpu.arch", old="sm_90", new="sm_80", selects=True),
            Change(component="env.CI", old="true", new=None, selects=False),
            Change(component="gpu.driver", old="580.1", new="570.2", selects=False),
        ),
    }
    assert nodes.changes({}) == {}


def test_what_a_fingerprint_only_records_is_a_note_that_names_both_values() -> None:
    known = {"run-a": facts("a", explain={"gpu.driver": "1"}), "run-b": facts("b", explain={"gpu.driver": "2"})}
    (found,) = nodes.compare(known)
    assert (found.what, found.node) == (NodeFinding.RECORDED, "run-b")
    assert found.message == "node b is not as node a in what can make a key miss: gpu.driver is '2', not '1'"
    judged = verdict(known)
    assert (judged.kind, judged.notes) == (Kind.WARM, (found.message,))
    built = judge_built_launch(record([plus(told(known))(warm(rank(0, local=1)))]), expectation(), KEYS)
    assert (built.exit_code, built.notes) == (ExitCode.OK, (found.message,))


def test_a_node_that_told_only_what_selects_is_not_held_against_the_rest() -> None:
    known = {"1": facts("a", explain={"gpu.driver": "1"}), "2": facts("b")}
    assert nodes.compare(known) == ()
    assert NodeFacts.from_json({name: value for name, value in plain(facts("b")).items() if name != "explain"}) == facts("b")


# --- the verdict ------------------------------------------------------------------------------------------------------------


def test_a_launch_whose_nodes_have_the_same_is_warm() -> None:
    found = verdict({"run-a": facts("a"), "run-b": facts("b")})
    assert (found.kind, found.notes) == (Kind.WARM, ())


def test_the_verdict_on_a_warm_node_names_the_cold_one() -> None:
    found = verdict({"run-a": facts("a"), "run-b": cold("b")})
    assert (found.kind, found.exit_code, codes(found)) == (Kind.COLD, ExitCode.NOT_WARM, {Code.NO_BUCKET})
    assert "node b" in messages(found)


def test_that_nothing_is_built_here_is_told_by_the_ranks_and_not_twice() -> None:
    assert codes(verdict({"run-a": cold("a"), "run-b": facts("b")})) == set()


def test_another_fingerprint_is_a_reason_on_both_nodes() -> None:
    known = {"run-a": facts("a"), "run-b": facts("b", bucket="d" * 20, components={**COMPONENTS, "gpu.arch": "sm_80"})}
    for own in known:
        found = judge([plus(told(known, own=own))(warm(rank(0, local=1)))])
        assert (found.kind, codes(found)) == (Kind.COLD, {Code.FINGERPRINT_CHANGED})
        assert "node b" in messages(found)
        assert "gpu.arch" in messages(found)


def test_other_keys_are_a_note_and_the_launch_stays_warm() -> None:
    found = verdict({"run-a": facts("a"), "run-b": facts("b", keys_digest="other")})
    assert found.kind is Kind.WARM
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    "ended", [{"ended": Ended.AT_A_MISS, "status": -9}, {"ended": Ended.BY_ITSELF, "status": 1}], ids=["ended", "failed"]
)
def test_a_miss_on_another_node_is_what_ended_the_launch_and_not_a_failure_of_the_command(ended: dict[str, Any]) -> None:
    known = {"run-a": facts("a"), "run-b": facts("b")}
    missed = {"run-b": "rank 1: attend of 1x2x128x32 float32, called at /job/train.py:9 in step"}
    failed = plus(told(known, missed), raised(error="RuntimeError", message="Connection closed by peer"))
    found = judge([failed(warm(rank(0, local=1)))], **ended)
    assert (found.kind, found.exit_code, codes(found)) == (Kind.COLD, ExitCode.NOT_WARM, {Code.NOT_BUILT})
    assert "node b: rank 1: attend of 1x2x128x32 float32" in messages(found)
    assert any("Connection closed" in note for note in found.notes) is (ended["ended"] is Ended.BY_ITSELF)


def test_a_rank_that_died_of_a_miss_on_another_node_is_no_crash() -> None:
    said = plus(told({"run-a": facts("a"), "run-b": facts("b")}, {"run-b": "rank 1: attend"}))(warm(rank(0, local=1)))
    found = judge([[event for event in said if event.KIND not in ("summary", "bye")]], status=1)
    assert codes(found) == {Code.NOT_BUILT}


def test_a_command_that_fails_beside_a_cold_node_has_failed_all_the_same() -> None:
    found = verdict({"run-a": facts("a"), "run-b": cold("b")}, status=3)
    assert (found.exit_code, codes(found)) == (ExitCode.JOB_FAILED, {Code.NO_BUCKET, Code.COMMAND_FAILED})


def test_a_miss_of_a_rank_here_is_not_told_as_one_of_another_node() -> None:
    found = verdict({"run-a": facts("a"), "run-b": facts("b")}, {"run-a": "rank 0: attend"})
    assert codes(found) == set()


def test_in_a_build_a_cold_node_is_what_is_expected_and_another_fingerprint_is_not() -> None:
    known = {"run-a": cold("a"), "run-b": cold("b"), "run-c": facts("c", keys_digest="other"), "run-d": facts("d")}
    built = judge_built_launch(record([plus(told(known))(warm(rank(0, local=1)))]), expectation(), KEYS)
    assert (built.exit_code, built.reasons, built.notes) == (ExitCode.OK, (), ())
    known = {"run-a": cold("a"), "run-b": cold("b", bucket="d" * 20)}
    other = judge_built_launch(record([plus(told(known))(warm(rank(0, local=1)))]), expectation(), KEYS)
    assert codes(other) == {Code.FINGERPRINT_CHANGED}
    # What was compiled here is right here.
    assert publish.is_whole(other.reasons)


def test_what_another_flexwarm_tells_of_its_node_is_left_out() -> None:
    known = {"run-a": facts("a"), "run-b": facts("b")}
    strange = replace(told(known), nodes={**told(known).nodes, "run-c": {"host": "c", "party": True}})
    found = record([plus(strange)(warm(rank(0, local=1)))])
    assert found.nodes == known


def test_where_no_other_node_tells_anything_that_is_noted() -> None:
    alone = judge([warm(rank(0, of=2, local=1))])
    assert alone.kind is Kind.WARM
    (note,) = alone.notes
    assert note.startswith("1 of 2 ranks")
    assert judge([warm(rank(0, of=2)), warm(rank(1, of=2))]).notes == ()


def test_what_nodes_told_is_in_the_json() -> None:
    known = {"run-a": facts("a"), "run-b": cold("b")}
    found = record([plus(told(known, {"run-b": "rank 1: attend"}))(warm(rank(0)))])
    assert [(node["host"], node["own"], node["built"], node["missed"]) for node in _nodes_json(found)] == [
        ("a", True, True, None),
        ("b", False, False, "rank 1: attend"),
    ]
    assert _nodes_json(record([without(Nodes)(warm(rank(0)))])) == []


def test_in_what_a_node_differs_is_in_the_json() -> None:
    other = {**COMPONENTS, "gpu.arch": "sm_80"}
    known = {"run-a": facts("a"), "run-b": facts("b", bucket="d" * 20, components=other)}
    first, second = _nodes_json(record([plus(told(known))(warm(rank(0)))]))
    assert first["changes"] == []
    assert second["changes"] == [{"component": "gpu.arch", "old": "sm_90", "new": "sm_80", "selects": True}]


# --- what is told, and to whom ----------------------------------------------------------------------------------------------


def test_an_observation_comes_back_with_its_node() -> None:
    told_of = Observation(
        run="run-a", directory="/d", site="/s", home="/h", on_miss=OnMiss.FAIL, guard=Guard.REPORT, backward=Backward.ENGINE,
        hang_seconds=60.0, variables={}, node=facts("a"),
    )  # fmt: skip
    assert Observation.from_json(told_of.to_json()) == told_of
    assert Observation.from_json(replace(told_of, node=None).to_json()).node is None


@pytest.mark.parametrize(
    ("line", "environ", "elsewhere"),
    [
        ("torchrun --nproc-per-node 8 train.py", {}, False),
        ("torchrun --nnodes 1 train.py", {}, False),
        ("torchrun --nnodes=1:1 train.py", {}, False),
        ("torchrun --nnodes 2 --nproc-per-node 8 train.py", {}, True),
        ("torchrun --nnodes=1:4 train.py", {}, True),
        ("torchrun train.py", {"PET_NNODES": "2"}, True),
        ("python -m torch.distributed.run --nnodes $NODES train.py", {}, True),
        ("accelerate launch --num_processes 8 train.py", {}, False),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py", {}, True),
        ("srun -N 2 -n 16 python train.py", {"SLURM_NTASKS": "16"}, False),
        ("python train.py", {}, False),
        ("python train.py", {"WORLD_SIZE": "1"}, False),
        ("python train.py", {"RANK": "0", "WORLD_SIZE": "16"}, True),
        ("./train.sh", {"SLURM_NTASKS": "16"}, True),
    ],
)
def test_a_line_says_whether_other_commands_start_ranks_of_the_same_launch(
    line: str, environ: dict[str, str], elsewhere: bool
) -> None:
    assert commandline.read(line.split(), environ).elsewhere is elsewhere


@pytest.mark.parametrize("changes", [{"components": 3}, {"keys": "24"}, {"host": None}, {"color": "blue"}])
def test_facts_that_are_not_of_their_types_are_not_compared(changes: dict[str, Any]) -> None:
    data = plain(facts("node0"))
    assert NodeFacts.from_json(data) == facts("node0")
    assert NodeFacts.from_json({**data, **changes}) is None
    assert NodeFacts.from_json(["node0"]) is None  # type: ignore[arg-type]
