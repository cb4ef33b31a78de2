"""The fold of what the programs of a launch said: which graph an event belongs to, and which program a rank is."""

from __future__ import annotations

import pytest

from flexwarm.events import Answer, Layer
from flexwarm.program_events import Forked, Placed, Program, Spent
from flexwarm.programs import signature_groups
from tests.launches import (
    bye,
    called,
    compiled,
    lookup,
    plus,
    program,
    raised,
    rank,
    record,
    refused,
    silent,
    summary,
    warm,
    warm_ranks,
)


def test_a_launch_is_its_ranks_and_the_launcher_is_none() -> None:
    folded = record(warm_ranks())
    assert sorted(folded.ranks) == [0, 1]
    assert [one.name for one in folded.judged] == ["rank 0", "rank 1"]
    assert len(folded.programs) == 3


def test_nothing_said_is_a_launch_without_programs() -> None:
    folded = record([[]])
    assert (folded.programs, folded.ranks, folded.judged) == ((), {}, ())


@pytest.mark.parametrize("child_is_read_first", [True, False])
def test_a_data_loader_with_the_variables_of_its_rank_is_not_the_rank(child_is_read_first: bool) -> None:
    own = rank(0, of=1)
    child = silent(rank(0, of=1, pid=200, parent=own.pid, argv=("python", "-c", "spawn_main()")))
    said = [child, warm(own)] if child_is_read_first else [warm(own), child]
    folded = record(said)
    assert folded.ranks[0].program.pid == own.pid
    assert len(folded.judged) == 1


@pytest.mark.parametrize("child_is_read_first", [True, False])
def test_a_data_loader_that_calls_compiled_code_is_judged_beside_its_rank(child_is_read_first: bool) -> None:
    own = rank(0, of=1)
    child = warm(rank(0, of=1, pid=200, parent=own.pid))
    said = [child, warm(own)] if child_is_read_first else [warm(own), child]
    folded = record(said)
    assert folded.ranks[0].program.pid == own.pid
    assert [one.program.pid for one in folded.judged] == [own.pid, 200]


def test_a_rank_whose_work_is_all_done_in_a_child_is_that_child() -> None:
    own = rank(0, of=1)
    folded = record([silent(own), warm(rank(0, of=1, pid=200, parent=own.pid))])
    assert folded.ranks[0].program.pid == 200


def test_a_rank_that_was_restarted_is_judged_each_time() -> None:
    folded = record([[rank(0, of=1), called(), raised(), summary(), bye()], warm(rank(0, of=1, pid=300, started=2000))])
    assert {one.program.pid for one in folded.judged} == {100, 300}


def test_ranks_of_two_nodes_with_the_same_process_ids_are_told_apart() -> None:
    folded = record([warm(rank(0, local=1)), warm(rank(1, local=1, pid=100, parent=100, host="node1"))])
    assert {number: one.program.host for number, one in folded.ranks.items()} == {0: "node0", 1: "node1"}


def test_a_rank_that_is_learnt_late_is_the_rank() -> None:
    """A program that spawns its ranks itself tells each who it is only in its arguments."""
    placed = Placed(t=1.5, place={"rank": 3, "world_size": 4})
    folded = record([[program(), placed, *warm()[1:]]])
    assert sorted(folded.ranks) == [3]
    assert folded.programs[0].place == {"rank": 3, "world_size": 4}


def test_a_fork_is_no_program_until_it_says_something() -> None:
    forked = Forked(t=2.0, pid=400, started=4000)
    folded = record([plus(forked)(warm())])
    assert len(folded.programs) == 1
    assert folded.programs[0].said_bye
    child = warm(program(pid=400, parent=100, started=4000, forked_from=100))
    assert [one.program.forked_from for one in record([plus(forked)(warm()), child]).judged] == [None, 100]


def test_a_fork_after_the_end_takes_the_end_from_nobody() -> None:
    folded = record([[*warm(), Forked(t=9.5, pid=400, started=4000)]])
    assert folded.programs[0].said_bye


def test_a_program_that_goes_on_after_it_said_its_end_has_not_ended() -> None:
    """It was about to put another program in its place, and could not."""
    folded = record([[*warm(), called("1/0", 256), lookup(Layer.FX, Answer.MISS, "other", graph="1/0")]])
    assert not folded.programs[0].said_bye


def test_a_program_that_another_one_took_the_place_of_is_two_programs() -> None:
    first = [program(argv=("python", "wrapper.py")), summary(counters={}, checks={}, how="exec"), bye()]
    folded = record([[*first, *warm(program(t=2.0))]])
    assert [one.program.argv[1] for one in folded.programs] == ["wrapper.py", "train.py"]
    assert [one.program.argv[1] for one in folded.judged] == ["train.py"]
    assert all(one.said_bye for one in folded.programs)


def test_each_event_belongs_to_the_graph_that_it_names() -> None:
    said = [
        program(),
        called("0/0", 128),
        called("1/0", 256, job="lane-1"),
        lookup(Layer.FX, Answer.HIT, "zero", graph="0/0"),
        lookup(Layer.FX, Answer.MISS, "one", graph="1/0"),
        compiled(graph="1/0"),
        Spent(t=4, job="lane-1", graph="1/0", seconds=2.5),
        summary(),
        bye(),
    ]
    first, second = record([said]).programs[0].graphs
    assert ([x.key for x in first.lookups], first.seconds, first.hit, first.lane) == (["zero"], 0.0, True, "lane-0")
    assert ([x.key for x in second.lookups], second.seconds, second.hit, second.lane) == (["one"], 2.5, False, "lane-1")
    assert second.compiled


def test_a_number_that_comes_again_is_another_graph() -> None:
    """Dynamo counts from zero again once it was reset."""
    said = [
        program(),
        called("0/0", 128),
        lookup(Layer.FX, Answer.HIT, "before"),
        called("0/0", 256),
        lookup(Layer.FX, Answer.MISS, "after"),
        summary(),
        bye(),
    ]
    first, second = record([said]).programs[0].graphs
    assert [x.key for x in first.lookups] == ["before"]
    assert [x.key for x in second.lookups] == ["after"]
    assert first.call is not None
    assert second.call is not None
    assert (first.call.inputs[0].shape[2], second.call.inputs[0].shape[2]) == (128, 256)


def test_lookups_of_no_graph_that_was_seen_are_kept() -> None:
    late = lookup(Layer.FX, Answer.MISS, "late", graph="")
    folded = record([plus(late)(warm())])
    last = folded.programs[0].graphs[-1]
    assert (last.call, [x.key for x in last.lookups]) == (None, ["late"])
    assert ("fx", "late") in folded.programs[0].keys


def test_a_graph_that_nothing_was_asked_of_is_no_hit() -> None:
    (graph,) = record([[program(), called(), summary(), bye()]]).programs[0].graphs
    assert not graph.hit


def test_an_observer_that_could_not_even_say_where_it_is_is_kept() -> None:
    folded = record([[refused("the observer could not begin")], *warm_ranks()])
    assert [one.message for one in folded.nameless] == ["the observer could not begin"]


def test_words_without_a_name_are_not_lost() -> None:
    folded = record([warm()[1:]])
    assert len(folded.nameless) == 1
    assert folded.programs == ()


def test_ranks_are_grouped_by_what_they_call_whatever_the_device_and_the_number_of_the_graph() -> None:
    other = [rank(1), called("7/0", 128), *warm()[2:]]
    third = [rank(2), called("0/0", 256), *warm()[2:]]
    folded = record([warm(rank(0)), other, third])
    groups = signature_groups(list(folded.ranks.values()))
    assert [[one.rank for one in members] for _, members in groups] == [[0, 1], [2]]


def test_identity_is_the_rank_or_the_command_line() -> None:
    first, second = record([warm(rank(5)), warm(program())]).programs
    assert first.identity == "rank 5"
    assert second.identity == "python train.py"
    assert "pid 100" in second.name


def test_what_is_said_last_of_a_programs_end_counts() -> None:
    said = [program(), raised(4.0), raised(5.0, error="KeyError"), summary(), bye()]
    (folded,) = record([said]).programs
    assert folded.raised is not None
    assert folded.raised.error == "KeyError"
    assert isinstance(folded.program, Program)
