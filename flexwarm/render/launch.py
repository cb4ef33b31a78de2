"""The result of an operation on a launch line as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flexwarm import nodes
from flexwarm.calls import CompiledCall
from flexwarm.canonical import plain
from flexwarm.commandline import title
from flexwarm.compiler_lines import subject
from flexwarm.events import Answer, Hazard
from flexwarm.explanation import Explained
from flexwarm.launch_verdict import ProgramVerdict
from flexwarm.ops.launch_line import LaunchResult
from flexwarm.programs import GraphRecord, LaunchRecord, ProgramRecord, SeenCompiler
from flexwarm.reasons import Code, Kind, Reason, is_hazard
from flexwarm.render.costs import cost_lines, costs_json
from flexwarm.render.known_faults import fault_lines
from flexwarm.render.run import TUNING_LEFT, VERDICT_STYLES, origin_notes, outcome_style, tuned_json
from flexwarm.render.text import duration, size
from flexwarm.request import Guard

#: A program's reasons beyond these are counted; -v shows all.
_REASONS_SHOWN = 4
#: Of a compiler's command line in JSON, in characters.
_COMMAND = 400


def launch_json(result: LaunchResult, exit_code: int) -> dict[str, Any]:
    """What docs/reference/json.md says, numbers raw and with their unit in the name."""
    record = result.record
    return {
        "verdict": result.verdict.kind.value,
        "exit_code": exit_code,
        "command_exit_code": result.command_exit_code,
        "bucket": result.bucket,
        "bucket_path": result.bucket_path,
        "bucket_bytes": result.bucket_bytes,
        "bucket_files": result.bucket_files,
        "published": result.published,
        "seconds": round(result.seconds, 3),
        "reasons": [plain(reason) for reason in result.verdict.reasons],
        "notes": list(result.verdict.notes),
        "launch": {
            "argv": list(result.line.argv),
            "launcher": result.line.launcher,
            "expected_ranks": result.expected_ranks,
            "ranks": sorted(record.ranks) if record else [],
            "ended": record.ended.value if record else None,
            "programs": [_program_json(program) for program in record.programs] if record else [],
            "nodes": _nodes_json(record) if record else [],
            "compilers": [_compiler_json(compiler) for compiler in record.compilers] if record else [],
        },
        "jobs": [_job_json(program, result.explained) for program in result.verdict.programs],
        "guard": result.remedy,
        "tuning": result.tuning.value,
        "target": result.target,
        "built_for": list(result.built_for),
        "hazards": list(_hazards_json(result)),
        "known_faults": [fault.to_json() for fault in result.faults],
        "environment": [compare.to_json() for compare in result.environment],
        "compiles": _compiles(result),
        "hits": _hits(result),
        "compile_seconds": round(_compile_seconds(result), 3),
    }


def _nodes_json(record: LaunchRecord) -> list[dict[str, Any]]:
    """What the nodes told each other; empty where there is one, or where they could not."""
    differing = nodes.changes(record.nodes)
    return [
        {
            "host": facts.host,
            "store": facts.store,
            "own": node == record.own_node,
            "bucket": facts.bucket,
            "built": facts.built,
            "keys": facts.keys,
            "missed": record.missed_elsewhere.get(node),
            "changes": plain(differing.get(node, ())),
        }
        for node, facts in sorted(record.nodes.items(), key=lambda item: (item[1].host, item[1].store, item[0]))
    ]


def _compiler_json(compiler: SeenCompiler) -> dict[str, Any]:
    return {"pid": compiler.pid, "compiles": subject(compiler.argv)[:_COMMAND], "command": " ".join(compiler.argv)[:_COMMAND]}


def _program_json(program: ProgramRecord) -> dict[str, Any]:
    return {
        "host": program.program.host,
        "pid": program.program.pid,
        "argv": list(program.program.argv),
        "place": dict(program.place),
        "forked_from": program.program.forked_from,
        "ended": program.summary.how if program.summary else None,
        "status": program.summary.status if program.summary else None,
        "error": plain(program.raised) if program.raised else None,
    }


def _job_json(verdict: ProgramVerdict, explained: Mapping[str, Sequence[Explained]]) -> dict[str, Any]:
    """One rank of the line, or one program without a rank: what a job is for a spec."""
    record = verdict.record
    summary = record.summary
    return {
        "id": record.name,
        "workload": title(record.program.argv),
        "role": "launch",
        "rank": record.rank,
        "local_rank": record.place.get("local_rank"),
        "world_size": record.place.get("world_size"),
        "host": record.program.host,
        "pid": record.program.pid,
        "lane": 0,
        "device": next((x.device for graph in record.graphs if graph.call for x in graph.call.inputs), None),
        "outcome": verdict.outcome.value,
        "counters": dict(summary.counters) if summary else {},
        "checks": dict(summary.checks) if summary else {},
        "reasons": [plain(reason) for reason in verdict.reasons],
        "compile_seconds": round(record.seconds, 3),
        "costs": costs_json(record.costs),
        "misses": [one.to_json() for one in explained.get(record.process, ())],
        "untuned": sorted({event.kernel for event in record.untuned}),
        "tuned": tuned_json(record.tuned),
        "reads": list(dict.fromkeys(read.place for read in record.reads)),
        "calls": [_call_json(graph) for graph in record.graphs],
    }


def _call_json(graph: GraphRecord) -> dict[str, Any]:
    lane = graph.lane.rpartition("-")[2]
    return {
        "lane": int(lane) if lane.isdigit() else None,
        "hit": graph.hit,
        "call": _plain_call(graph.call),
        "keys": [{"layer": x.layer.value, "key": x.key, "answer": x.answer.value, "reason": x.reason} for x in graph.lookups],
        "compiles": [{"what": event.what, "detail": event.detail} for event in graph.compiled],
        "compile_seconds": round(graph.seconds, 3),
    }


def _plain_call(call: CompiledCall | None) -> Mapping[str, Any] | None:
    return {**plain(call), "signature": call.signature()} if call is not None else None


def _hazards_json(result: LaunchResult) -> Iterable[dict[str, Any]]:
    for program in result.verdict.programs:
        for reason in program.reasons:
            if is_hazard(reason):
                seen = _seen(program, reason)
                dense = program.record.dense[0] if reason.code is Code.DENSE_FALLBACK and program.record.dense else None
                hang = program.record.hang if reason.code is Code.COMPILE_DEADLOCK else None
                yield {
                    "code": reason.code.value,
                    "message": reason.message,
                    "hint": reason.hint,
                    "lane": _lane(seen),
                    "job": program.record.name,
                    "fate": (seen.fate or None) if seen else None,
                    "owner": (seen.owner or None) if seen else None,
                    "owner_lane": seen.owner_lane if seen else None,
                    "stack": list(seen.stack if seen else dense.stack if dense else ()),
                    "stacks": {name: list(lines) for name, lines in hang.stacks.items()} if hang else {},
                }


def _lane(seen: Hazard | None) -> int | None:
    number = (seen.job or "").rpartition("-")[2] if seen else ""
    return int(number) if number.isdigit() else None


def _seen(program: ProgramVerdict, reason: Reason) -> Hazard | None:
    """The first event behind a hazard's reason: its sentence is the event's own."""
    found = (x for x in program.record.hazards if x.code.value == reason.code.value and x.message in reason.message)
    return next(found, None)


def _compiles(result: LaunchResult) -> int:
    """Graphs that some program compiled."""
    programs = result.record.judged if result.record else ()
    return sum(bool(graph.compiled) for program in programs for graph in program.graphs)


def _hits(result: LaunchResult) -> int:
    programs = result.record.judged if result.record else ()
    return sum(graph.hit and graph.call is not None for program in programs for graph in program.graphs)


def _compile_seconds(result: LaunchResult) -> float:
    """The longest of the programs: they compile beside each other, and each waits for the slowest."""
    return max((program.seconds for program in result.record.judged), default=0.0) if result.record else 0.0


def print_launch(result: LaunchResult, *, verbosity: int, to_stderr: bool = False) -> None:
    """The table, the reasons and the verdict; on standard output unless the command's output has that for itself."""
    from rich.text import Text

    from flexwarm.render.console import make_console

    console = make_console(stderr=to_stderr)

    def line(text: str | Text) -> None:
        console.print(text, soft_wrap=not console.is_terminal, highlight=False, markup=False)

    if verbosity >= 0 and result.verdict.programs:
        console.print(_table(result))
    for owner, reasons in _owned_reasons(result) if verbosity >= 0 else ():
        shown = reasons if verbosity > 0 else reasons[:_REASONS_SHOWN]
        for reason in shown:
            line(Text.assemble((f"{owner}: " if owner else ""), (reason.code.value, "yellow"), f": {reason.message}"))
        if len(reasons) > len(shown):
            line(f"{owner}: and {len(reasons) - len(shown)} more reasons (-v shows them)")
    for note in (*result.verdict.notes, *origin_notes(result)) if verbosity >= 0 else ():
        line(Text.assemble(("note", "cyan"), f": {note}"))
    for fault in fault_lines(result.faults, verbosity, warm=result.verdict.kind is Kind.WARM) if verbosity >= 0 else ():
        line(fault)
    for cost in cost_lines(result, verbosity) if verbosity >= 0 else ():
        line(cost)
    kind = result.verdict.kind
    line(Text.assemble("verdict: ", (kind.value, VERDICT_STYLES[kind]), _summary(result)))
    for hint in _hints(result) if verbosity >= 0 else ():
        line(f"  next: {hint}")


def _owned_reasons(result: LaunchResult) -> Iterable[tuple[str, tuple[Reason, ...]]]:
    """Reasons with the programs that they belong to; ranks with the same reasons are named once."""
    if result.verdict.reasons:
        yield "", result.verdict.reasons
    grouped: dict[tuple[Reason, ...], list[str]] = {}
    for program in result.verdict.programs:
        if program.reasons:
            grouped.setdefault(program.reasons, []).append(program.record.name)
    for reasons, names in grouped.items():
        yield (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"), reasons


def _hints(result: LaunchResult) -> list[str]:
    hints = [reason.hint for reason in result.verdict.reasons]
    hints += [reason.hint for program in result.verdict.programs for reason in program.reasons]
    return list(dict.fromkeys(hint for hint in hints if hint))[:4]


def _summary(result: LaunchResult) -> str:
    programs = len(result.verdict.programs)
    calls = sum(
        graph.call is not None for program in (result.record.judged if result.record else ()) for graph in program.graphs
    )
    hits = f"{_hits(result)}/{_count(calls, 'call')} hit"
    parts = [f"{programs} {_noun(result, programs)}", hits, _count(_compiles(result), "compile")]
    if result.record is None:
        parts = ["nothing was started"]
    if seconds := _compile_seconds(result):
        parts.append(f"{duration(seconds)} lost to compiling")
    if hazards := sum(is_hazard(reason) for program in result.verdict.programs for reason in program.reasons):
        parts.append(_count(hazards, "hazard"))
    parts.append(duration(result.seconds))
    if result.bucket_bytes is not None:
        parts.append(f"bucket {result.bucket[:8]} holds {size(result.bucket_bytes)}")
    if result.target is not None:
        parts.append(f"for {result.target} not here")
    if any(not event.kept for program in (result.record.judged if result.record else ()) for event in program.tuned):
        parts.append(TUNING_LEFT)
    if result.remedy != Guard.REPORT.value:
        parts.append(f"guard {result.remedy}")
    return f" ({', '.join(parts)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _noun(result: LaunchResult, count: int) -> str:
    noun = "rank" if result.record is not None and result.record.ranks else "program"
    return noun if count == 1 else f"{noun}s"


def _table(result: LaunchResult) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("program", overflow="fold")
    table.add_column("outcome", no_wrap=True)
    for name in ("calls", "hit", "miss", "compiling"):
        table.add_column(name, justify="right", no_wrap=True)
    for verdict in result.verdict.programs:
        record = verdict.record
        hits, misses = (sum(x.answer is answer for x in record.lookups) for answer in (Answer.HIT, Answer.MISS))
        table.add_row(
            Text(record.name),
            Text(verdict.outcome.value, style=outcome_style(verdict.outcome)),
            str(sum(graph.call is not None for graph in record.graphs)),
            str(hits),
            str(misses),
            duration(record.seconds) if record.seconds else "-",
        )
    return table
