"""Which known faults of the installed torch and Triton matter for a plan, for a launch that was seen, or for nothing yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flexwarm import known_faults, toolchain
from flexwarm.known_faults import Applying, Condition, Facts
from flexwarm.ops.prepare import PACKAGE
from flexwarm.plan import Plan
from flexwarm.programs import LaunchRecord, ProgramRecord

#: The table, beside the modules.
TABLE = PACKAGE / "known_faults.toml"


def of_plan(plan: Plan, environ: Mapping[str, str]) -> tuple[Applying, ...]:
    """Those of a spec's launch under ``environ``."""
    return applying(known_faults.facts_of_plan(plan, environ))


def of_launch(record: LaunchRecord | None) -> tuple[Applying, ...]:
    """Those of a launch line, as far as its calls were seen; none of one of which nothing was seen."""
    if record is None:
        return ()
    return applying([facts_of_program(record, program) for program in record.programs if program.graphs])


def facts_of_program(record: LaunchRecord, program: ProgramRecord) -> Facts:
    """What one program of a launch was seen to do; what is not in it is not known."""
    calls = [graph.call for graph in program.graphs if graph.call is not None]
    devices = {tensor.device for call in calls for tensor in call.inputs}
    of_lanes: dict[str, set[str]] = {}
    for graph in program.graphs:
        if graph.call is not None:
            of_lanes.setdefault(graph.lane, set()).update(tensor.device for tensor in graph.call.inputs)
    wrappers = {name for call in calls for name in call.nesting}
    facts = {
        Condition.CPU: devices == {"cpu"},
        Condition.CUDA: any(device.startswith("cuda") for device in devices),
        Condition.GRADIENTS: any(call.grad and any(tensor.requires_grad for tensor in call.inputs) for call in calls),
        Condition.CHECKPOINT: any("checkpoint" in name for name in wrappers),
        Condition.SELECTIVE_CHECKPOINT: "selective_checkpoint" in wrappers,
        Condition.AUTOGRAD_FUNCTION: "autograd_function_apply" in wrappers,
        Condition.SEVERAL_LANES: len(of_lanes) > 1,
        Condition.SHARED_DEVICE: any(sum(gpu in seen for seen in of_lanes.values()) > 1 for gpu in devices - {"cpu"}),
        Condition.SEVERAL_DEVICES: len(_gpus(record)) > 1,
        Condition.SEVERAL_RANKS: len(record.ranks) > 1,
        Condition.THREADS_UNSET: "OMP_NUM_THREADS" not in program.program.environ,
    }
    # What was not seen may come in a later step, but what was seen is so.
    return {name: True for name, value in facts.items() if value} | _never(facts)


def _gpus(record: LaunchRecord) -> set[str]:
    calls = (graph.call for program in record.programs for graph in program.graphs if graph.call is not None)
    return {tensor.device for call in calls for tensor in call.inputs if tensor.device.startswith("cuda")}


def _never(facts: Facts) -> dict[Condition, bool]:
    """What a launch cannot become later."""
    kinds = (Condition.CPU, Condition.CUDA, Condition.SEVERAL_RANKS, Condition.THREADS_UNSET)
    return {name: False for name in kinds if not facts[name]}


def applying(cases: Iterable[Facts]) -> tuple[Applying, ...]:
    """Those of what is installed; see :func:`flexwarm.known_faults.applying`.

    Raises:
        ValueError: the table is not one: a fault of this installation.
    """
    torch, triton = toolchain.find_torch(), toolchain.find_triton()
    installed = {"torch": torch.version if torch else "", "triton": triton.version if triton else ""}
    return known_faults.applying(known_faults.parse(TABLE.read_text(encoding="utf-8")), installed, cases)
