"""Which known faults of the installed torch and Triton matter for a plan, for a launch that was seen, or for nothing yet."""

from __future__ import annotations

from collections.abc import Mapping

from flexwarm import known_faults, toolchain
from flexwarm.known_faults import Applying, Condition
from flexwarm.ops.prepare import PACKAGE
from flexwarm.plan import Plan
from flexwarm.programs import LaunchRecord

#: The table, beside the modules.
TABLE = PACKAGE / "known_faults.toml"


def of_plan(plan: Plan, environ: Mapping[str, str]) -> tuple[Applying, ...]:
    """Those of a spec's launch under ``environ``."""
    return applying(known_faults.facts_of_plan(plan, environ))


def of_launch(record: LaunchRecord | None) -> tuple[Applying, ...]:
    """Those of a launch line, as far as its calls were seen; none of one of which nothing was seen."""
    if record is None or not any(program.graphs for program in record.programs):
        return ()
    calls = [graph.call for program in record.programs for graph in program.graphs if graph.call is not None]
    devices = {tensor.device for call in calls for tensor in call.inputs}
    lanes = [{graph.lane for graph in program.graphs if graph.call is not None} for program in record.programs]
    wrappers = {name for call in calls for name in call.nesting}
    facts = {
        Condition.CPU: "cpu" in devices and devices == {"cpu"},
        Condition.CUDA: any(device.startswith("cuda") for device in devices),
        Condition.GRADIENTS: any(call.grad and any(tensor.requires_grad for tensor in call.inputs) for call in calls),
        Condition.CHECKPOINT: any("checkpoint" in name for name in wrappers),
        Condition.SELECTIVE_CHECKPOINT: "selective_checkpoint" in wrappers,
        Condition.SEVERAL_LANES: any(len(seen) > 1 for seen in lanes),
        Condition.SEVERAL_DEVICES: len({device for device in devices if device.startswith("cuda")}) > 1,
        Condition.SEVERAL_RANKS: len(record.ranks) > 1,
        Condition.OWN_CODE: any(not call.attention for call in calls),
        Condition.THREADS_UNSET: any("OMP_NUM_THREADS" not in program.program.environ for program in record.judged),
    }
    # What was not seen may come in a later step, but what was seen is so.
    return applying({name: True for name, value in facts.items() if value} | _never(facts))


def _never(facts: Mapping[Condition, bool]) -> dict[Condition, bool]:
    """What a launch cannot become later."""
    kinds = (Condition.CPU, Condition.CUDA, Condition.SEVERAL_RANKS, Condition.THREADS_UNSET)
    return {name: False for name in kinds if not facts[name]}


def applying(facts: Mapping[Condition, bool]) -> tuple[Applying, ...]:
    """Those of what is installed, where ``facts`` are so or not so.

    Raises:
        ValueError: the table is not one: a fault of this installation.
    """
    torch, triton = toolchain.find_torch(), toolchain.find_triton()
    installed = {"torch": torch.version if torch else "", "triton": triton.version if triton else ""}
    return known_faults.applying(known_faults.parse(TABLE.read_text(encoding="utf-8")), installed, facts)
