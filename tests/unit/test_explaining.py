"""Which reasons an explanation gives, and which it takes away."""

from __future__ import annotations

import pytest

from flexwarm.errors import ExitCode
from flexwarm.explanation import Explained
from flexwarm.key_differences import Cause, CauseKind
from flexwarm.ops import explaining
from flexwarm.ops.run import RunResult
from flexwarm.plan import Plan
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.render.explain import print_explained
from flexwarm.verdict import Verdict


def explained(layer: str, *causes: Cause) -> Explained:
    return Explained(layer=layer, key="f" * 20, nearest="e" * 20, causes=causes, differences=())


def cause(number: int, kind: CauseKind = CauseKind.SHAPE) -> Cause:
    return Cause(kind=kind, subject=f"input {number}", old="1", new="2")


def test_a_cause_in_the_keys_of_two_layers_is_one_reason() -> None:
    (reason,) = explaining.reasons([explained("aot", cause(0)), explained("fx", cause(0))], "build it")
    assert reason.code is Code.KEY_CHANGED
    assert reason.message.endswith("(in the AOTAutograd and FX graph key)")
    assert reason.hint == "build it"


def test_an_input_that_one_layer_knows_by_name_is_one_reason_with_its_name() -> None:
    """Inductor's keys have no names: the same change of an input is the same cause."""
    named = Cause(kind=CauseKind.SHAPE, subject="input query", old="1", new="2")
    other = Cause(kind=CauseKind.SHAPE, subject="input 1", old="1", new="3")
    told = [reason.message for reason in explaining.reasons([explained("fx", cause(0), other), explained("aot", named)])]
    assert told == [
        "input query has the shape 2, and 1 when this was built (in the AOTAutograd and FX graph key)",
        "input 1 has the shape 3, and 1 when this was built (in the FX graph key)",
    ]


def test_of_many_causes_the_rest_is_counted() -> None:
    reasons = explaining.reasons([explained("fx", *map(cause, range(9)))])
    assert len(reasons) == 5
    assert reasons[-1].message == "5 more parts of the keys are not as they were"


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ((), True),
        ((explained("fx"),), True),
        ((explained("fx", cause(0)),), True),
        ((explained("fx", cause(0, CauseKind.SETTING)),), False),
        # A setting that is only counted is still to be named.
        ((explained("fx", *map(cause, range(4)), cause(9, CauseKind.SETTING)),), True),
    ],
)
def test_changed_settings_are_told_unless_the_keys_say_which_matter(told: tuple[Explained, ...], kept: bool) -> None:
    config = Reason(code=Code.CONFIG_CHANGED, message="a setting")
    env = Reason(code=Code.ENV_CHANGED, message="a variable")
    assert explaining.unless_explained([config, env], told) == ([config, env] if kept else [env])


def test_people_read_what_is_to_be_known_beside_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """A launch that is warm and has kernels to tune is not one that has nothing to do."""
    verdict = Verdict(kind=Kind.WARM, exit_code=ExitCode.OK, jobs=(), reasons=())
    plan = Plan(workers=())
    result = RunResult(
        verdict=verdict, bucket="b", bucket_path="/b", plan=plan, record=None, cold_seconds={}, seconds=1.0, notes=["told"]
    )
    print_explained(result, verbosity=0)
    assert capsys.readouterr().out.splitlines() == [
        "note: told",
        "verdict: warm (everything hits, so there is nothing to explain)",
    ]
    print_explained(result, verbosity=-1)
    assert "told" not in capsys.readouterr().out


def test_two_inputs_that_changed_alike_in_two_graphs_are_both_named() -> None:
    """By an input's change alone it is not known of which of them Inductor's input is."""
    x, weight = (Cause(kind=CauseKind.SHAPE, subject=f"input {name}", old="1", new="2") for name in ("x", "weight"))
    told = [
        one.message for one in explaining.reasons([explained("aot", x), explained("aot", weight), explained("fx", cause(7))])
    ]
    assert [text.partition(" has ")[0] for text in told] == ["input x", "input weight", "input 7"]


def test_a_setting_of_a_triton_kernel_hides_no_setting_of_inductors() -> None:
    config = Reason(code=Code.CONFIG_CHANGED, message="a setting")
    kernel = Cause(kind=CauseKind.SETTING, subject="num_warps of Triton kernel add", old="4", new="8")
    assert explaining.unless_explained([config], [explained("triton", kernel)]) == [config]
