"""The result of build and verify as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flexwarm.canonical import plain
from flexwarm.events import Answer, Dense, Hazard, JobFailed, Tuned
from flexwarm.evidence import IN_DRILL
from flexwarm.ops.drill import DrillState
from flexwarm.ops.launch_line import LaunchResult
from flexwarm.ops.run import RunResult
from flexwarm.plan import Lane, Plan
from flexwarm.reasons import Code, Kind, Reason, is_hazard
from flexwarm.record import Record
from flexwarm.render.costs import cost_lines, costs_json
from flexwarm.render.known_faults import fault_lines
from flexwarm.render.text import duration, size
from flexwarm.request import Guard
from flexwarm.verdict import JobVerdict, Outcome
from flexwarm.workload import Workload


def run_json(result: RunResult) -> dict[str, Any]:
    """What docs/reference/json.md says, numbers raw and with their unit in the name."""
    return {
        "verdict": result.verdict.kind.value,
        "exit_code": int(result.verdict.exit_code),
        "bucket": result.bucket,
        "bucket_path": result.bucket_path,
        "bucket_bytes": result.bucket_bytes,
        "bucket_files": result.bucket_files,
        "published": result.published,
        "fast": result.fast,
        "seconds": round(result.seconds, 3),
        "reasons": [plain(reason) for reason in result.verdict.reasons],
        "notes": list(result.notes),
        "jobs": [_job_json(result, job) for job in result.verdict.jobs],
        "guard": result.remedy,
        "tuning": result.tuning.value,
        "target": result.target,
        "built_for": list(result.built_for),
        "drill": _drill_json(result),
        "hazards": list(_hazards_json(result)),
        "known_faults": [fault.to_json() for fault in result.faults],
        "environment": [compare.to_json() for compare in result.environment],
        "workers": _workers_json(result),
    }


def _job_json(result: RunResult, verdict: JobVerdict) -> dict[str, Any]:
    job, record = verdict.job, verdict.record
    end = record.end if record else None
    counters = dict(end.counters) if end is not None and not isinstance(end, JobFailed) else {}
    data: dict[str, Any] = {
        "id": job.id,
        "workload": job.workload.name,
        "role": job.role,
        "rank": job.rank,
        "lane": job.lane,
        "device": job.device,
        "leader": job.leader,
        "outcome": verdict.outcome.value,
        "counters": counters,
        "reasons": [plain(reason) for reason in verdict.reasons],
        "cold_seconds": result.cold_seconds.get(job.id),
        "first_call_seconds": record.first_seconds if record else None,
    }
    if record is not None:
        data["costs"] = costs_json(record.costs)
        data["misses"] = [one.to_json() for one in result.explained.get(job.id, ())]
        data["keys"] = [
            {"layer": x.layer.value, "key": x.key, "answer": x.answer.value, "reason": x.reason} for x in record.lookups
        ]
        data["compiles"] = [{"what": event.what, "detail": event.detail} for event in record.compiled]
        data["untuned"] = sorted({event.kernel for event in record.untuned})
        data["tuned"] = tuned_json(record.tuned)
        data["reads"] = list(dict.fromkeys(read.place for read in record.reads))
        data["shapes"] = [
            {
                "shape": str(job.workload.shapes[done.shape]),
                "calls": done.calls,
                "checks": done.checks,
                "first_seconds": done.first_seconds,
                "repeat_seconds": done.repeat_seconds,
                "error": done.error,
                "tolerance": done.tolerance,
                "agrees": done.agrees,
            }
            for done in record.shapes
        ]
        if job.workload.step is not None:
            data["steps"] = [{"number": done.number, "checks": done.checks, "seconds": done.seconds} for done in record.steps]
        if isinstance(end, JobFailed):
            data["traceback"] = end.traceback
    return data


def tuned_json(tuned: Iterable[Tuned]) -> dict[str, float]:
    """Kernel -> seconds that its variants were timed."""
    seconds: dict[str, float] = {}
    for event in tuned:
        seconds[event.kernel] = round(seconds.get(event.kernel, 0.0) + event.seconds, 6)
    return dict(sorted(seconds.items()))


def _drill_json(result: RunResult) -> dict[str, Any] | None:
    drill = result.drill
    if drill is None:
        return None
    return {"state": drill.state.value, "ranks": list(drill.ranks), "holds": drill.holds, "calls": drill.calls}


def _hazards_json(result: RunResult) -> Iterable[dict[str, Any]]:
    for reason in result.verdict.reasons:
        if is_hazard(reason):
            yield _hazard_json(result, None, reason)
    for job in result.verdict.jobs:
        for reason in job.reasons:
            if is_hazard(reason):
                yield _hazard_json(result, job, reason)


def _hazard_json(result: RunResult, verdict: JobVerdict | None, reason: Reason) -> dict[str, Any]:
    seen = _seen(result, verdict, reason)
    dense = _dense(result, verdict, reason)
    return {
        "code": reason.code.value,
        "message": reason.message,
        "hint": reason.hint,
        "lane": verdict.job.lane if verdict else None,
        "job": verdict.job.id if verdict else None,
        "fate": (seen.fate or None) if seen else None,
        "owner": (seen.owner or None) if seen else None,
        "owner_lane": seen.owner_lane if seen else None,
        "stack": list(seen.stack if seen else dense.stack if dense else ()),
        "stacks": {name: list(lines) for name, lines in _stacks(result, reason).items()},
    }


def _record_of(result: RunResult, reason: Reason) -> Record | None:
    """The run that a reason is of: the verification, or its drill."""
    if reason.message.startswith(IN_DRILL):
        return result.drill.record if result.drill else None
    return result.record


def _seen(result: RunResult, verdict: JobVerdict | None, reason: Reason) -> Hazard | None:
    """The first event behind a hazard's reason: its sentence is the event's own."""
    record = _record_of(result, reason)
    if record is None:
        return None
    if verdict is None:
        ranks = [worker for worker in record.workers if f"rank {worker.rank}: " in reason.message]
        events = [seen for worker in ranks for seen in worker.stray_hazards]
    else:
        job = record.jobs.get(verdict.job.id)
        events = list(job.hazards) if job else []
    return next((seen for seen in events if seen.code.value == reason.code.value and seen.message in reason.message), None)


def _dense(result: RunResult, verdict: JobVerdict | None, reason: Reason) -> Dense | None:
    """The first call that ran dense, of a job."""
    record = _record_of(result, reason)
    job = record.jobs.get(verdict.job.id) if record is not None and verdict is not None else None
    return job.dense[0] if reason.code is Code.DENSE_FALLBACK and job is not None and job.dense else None


def _stacks(result: RunResult, reason: Reason) -> Mapping[str, tuple[str, ...]]:
    """All threads of a rank that hung."""
    if reason.code is not Code.COMPILE_DEADLOCK:
        return {}
    record = _record_of(result, reason)
    hangs = [worker.hang for worker in record.workers if worker.hang] if record is not None else []
    return next((hang.stacks for hang in hangs if hang.message in reason.message), {})


def _workers_json(result: RunResult) -> list[dict[str, Any]]:
    if result.record is None:
        return []
    return [
        {
            "rank": worker.rank,
            "pid": worker.hello.pid if worker.hello else None,
            "import_seconds": worker.hello.import_seconds if worker.hello else None,
            "end": worker.exit.end.value if worker.exit else None,
            "status": worker.exit.status if worker.exit else None,
            "log": worker.exit.log if worker.exit else None,
        }
        for worker in result.record.workers
    ]


def plan_json(plan: Plan, bucket: str) -> dict[str, Any]:
    """``build --dry-run --format json``."""
    return {
        "verdict": None,
        "exit_code": 0,
        "bucket": bucket,
        "workers": [
            {
                "rank": worker.rank,
                "local_rank": worker.local_rank,
                "role": worker.role,
                "lanes": [
                    {"lane": lane.index, "physical_device": lane.physical, "device": lane.device} for lane in worker.lanes
                ],
                "stagger_seconds": worker.stagger_seconds,
                "context": worker.context.value,
                "env": dict(sorted(worker.env.items())),
                "jobs": [
                    {
                        "id": job.id,
                        "workload": job.workload.name,
                        "lane": job.lane,
                        "device": job.device,
                        "share": job.share,
                        "leader": job.leader,
                        "shapes": [str(shape) for shape in job.workload.shapes],
                        "step": job.workload.step.name if job.workload.step else None,
                        "steps": job.workload.steps,
                    }
                    for job in worker.jobs
                ],
            }
            for worker in plan.workers
        ],
    }


#: How a verdict is shown.
VERDICT_STYLES = {
    Kind.WARM: "bold green",
    Kind.BUILT: "bold cyan",
    Kind.COLD: "bold yellow",
    Kind.UNSAFE: "bold red",
    Kind.BROKEN: "bold red",
    Kind.UNKNOWN: "bold yellow",
}
#: Said of a warm verdict on a launch that compiles nothing, and has kernels to tune.
TUNING_LEFT = "tuning left to the launch"
_OUTCOME_STYLES = {Outcome.HIT: "green", Outcome.COMPILED: "cyan", Outcome.UNTUNED: "cyan"}
#: A narrower terminal has no room for the counts.
_TIMES_COLUMNS = 56
#: A job's reasons beyond these are counted; -v shows all.
_REASONS_SHOWN = 4
#: Lines of a hazard's stack; -v shows all.
_STACK_SHOWN = 3


def print_run(result: RunResult, *, verbosity: int) -> None:
    """The table, the reasons and the verdict, on standard output."""
    from flexwarm.render.console import make_console

    console = make_console()
    if verbosity >= 0 and result.verdict.jobs:
        console.print(_table(result, console.width))
    from rich.text import Text

    for owner, reasons in _owned_reasons(result) if verbosity >= 0 else ():
        shown = reasons if verbosity > 0 else reasons[:_REASONS_SHOWN]
        for reason in shown:
            line = Text.assemble((f"{owner}: " if owner else ""), (reason.code.value, "yellow"), f": {reason.message}")
            console.print(line, soft_wrap=not console.is_terminal)
            for place in _stack_lines(result, reason, verbosity):
                console.print(f"    {place}", soft_wrap=not console.is_terminal, highlight=False, markup=False)
        if len(reasons) > len(shown):
            console.print(f"{owner}: and {len(reasons) - len(shown)} more reasons (-v shows them)", markup=False)
    for note in (*result.notes, *origin_notes(result)) if verbosity >= 0 else ():
        console.print(Text.assemble(("note", "cyan"), f": {note}"), soft_wrap=not console.is_terminal)
    for fault in fault_lines(result.faults, verbosity, warm=result.verdict.kind is Kind.WARM) if verbosity >= 0 else ():
        console.print(fault, soft_wrap=not console.is_terminal, highlight=False, markup=False)
    for cost in cost_lines(result, verbosity) if verbosity >= 0 else ():
        console.print(cost, soft_wrap=not console.is_terminal, highlight=False, markup=False)
    kind = result.verdict.kind
    console.print(Text.assemble("verdict: ", (kind.value, VERDICT_STYLES[kind]), _summary(result)))
    for hint in _hints(result) if verbosity >= 0 else ():
        console.print(f"  next: {hint}", soft_wrap=not console.is_terminal, highlight=False, markup=False)


def origin_notes(result: RunResult | LaunchResult) -> list[str]:
    """Where a bucket was built without the GPU: who launches on it may want to know whom to ask."""
    if result.target is not None:
        return []
    told = [
        f"built for {origin['gpu']} without it" + (f", on {origin['host']} by {origin['user']}" if origin["host"] else "")
        for origin in result.built_for
    ]
    return list(dict.fromkeys(told))


def _stack_lines(result: RunResult, reason: Reason, verbosity: int) -> tuple[str, ...]:
    """Where the thread that brought a hazard about began its trace; the innermost lines, all with -v."""
    for job in result.verdict.jobs:
        if reason in job.reasons and (seen := _seen(result, job, reason)) is not None and seen.stack:
            return seen.stack if verbosity > 0 else seen.stack[-_STACK_SHOWN:]
    return ()


def _owned_reasons(result: RunResult) -> Iterable[tuple[str, tuple[Reason, ...]]]:
    """Reasons with the job or jobs that they belong to; jobs of one workload with the same reasons are named once."""
    if result.verdict.reasons:
        yield "", result.verdict.reasons
    grouped: dict[tuple[Reason, ...], list[str]] = {}
    for job in result.verdict.jobs:
        if job.reasons:
            grouped.setdefault(job.reasons, []).append(job.job.id)
    for reasons, ids in grouped.items():
        yield (ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"), reasons


def _hints(result: RunResult) -> list[str]:
    """The distinct next steps, in the order of the reasons; after a build, what proves it."""
    hints = [reason.hint for reason in result.verdict.reasons]
    hints += [reason.hint for job in result.verdict.jobs for reason in job.reasons]
    found = list(dict.fromkeys(hint for hint in hints if hint))
    if result.verdict.kind is Kind.BUILT:
        found.append("flexwarm verify proves it in new processes")
    if result.verdict.kind is Kind.COLD and not found:
        found.append("flexwarm build")
    return found[:4]


def _summary(result: RunResult) -> str:
    jobs = len(result.verdict.jobs)
    good = sum(job.outcome in _OUTCOME_STYLES and not job.reasons for job in result.verdict.jobs)
    held = ""
    if result.bucket_bytes is not None:
        held = f", bucket {result.bucket[:8]} holds {size(result.bucket_bytes)} in {result.bucket_files} files"
    absent = f", for {result.target} not here" if result.target is not None else ""
    left = f", {TUNING_LEFT}" if result.tuning_left else ""
    return f" ({good} of {jobs} jobs, {duration(result.seconds)}{held}{absent}{left}{_drilled(result)})"


def _drilled(result: RunResult) -> str:
    """What a warm verdict rests on beside keys: nobody may take it for more than it is."""
    fixed = "" if result.remedy == Guard.REPORT.value else f", guard {result.remedy}"
    if result.drill is None:
        return fixed
    if result.drill.state is DrillState.LEFT_OUT:
        return f"{fixed}, the drill was left out"
    if result.drill.state is DrillState.RAN and not result.fast:
        return f"{fixed}, drill: {result.drill.calls} calls in {result.drill.holds} holds"
    return fixed


def _table(result: RunResult, width: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    narrow = width < 76
    several = any(len(worker.lanes) > 1 for worker in result.plan.workers)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload", overflow="fold")
    if narrow:
        table.add_column("on", overflow="fold")
    else:
        table.add_column("role")
        table.add_column("rank.lane" if several else "rank", justify="right")
        table.add_column("device")
    table.add_column("outcome", no_wrap=True)
    for name in ("hit", "miss", "cold", "warm") if width >= _TIMES_COLUMNS else ("cold", "warm"):
        table.add_column(name, justify="right", no_wrap=True)
    for verdict in result.verdict.jobs:
        job, record = verdict.job, verdict.record
        rank = f"{job.rank}.{job.lane}" if several else str(job.rank)
        where = (f"{job.role}:{rank}",) if narrow else (job.role, rank, job.device)
        hits, misses = (len(record.answers(answer)) if record else None for answer in (Answer.HIT, Answer.MISS))
        warm = record.first_seconds if record and verdict.outcome is Outcome.HIT else None
        style = outcome_style(verdict.outcome)
        table.add_row(
            Text(job.workload.name),
            *map(Text, where),
            Text(verdict.outcome.value, style=style),
            *((_count(hits), _count(misses)) if width >= _TIMES_COLUMNS else ()),
            duration(result.cold_seconds.get(job.id)),
            duration(warm),
        )
    return table


def outcome_style(outcome: Outcome) -> str:
    """How an outcome is shown."""
    return _OUTCOME_STYLES.get(outcome, "yellow")


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _where(lane: Lane) -> str:
    return lane.device if lane.device == lane.physical else f"{lane.physical}, seen as {lane.device}"


def _parts(workload: Workload) -> str:
    """What a job goes through."""
    if workload.step is not None:
        return f"{workload.steps} steps of {workload.step.name}"
    return f"{len(workload.shapes)} shapes"


def print_plan(plan: Plan, bucket_path: str) -> None:
    """``build --dry-run``: every process, its variables and its jobs."""
    from flexwarm.render.console import make_console

    console = make_console()

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)

    line(f"bucket {bucket_path}")
    for worker in plan.workers:
        several = len(worker.lanes) > 1
        line(f"rank {worker.rank}: role {worker.role}, {', '.join(dict.fromkeys(_where(lane) for lane in worker.lanes))}")
        for job in worker.jobs:
            follows = f" after {job.leader}" if job.leader else ""
            lane = f"lane {job.lane} on {job.device}, " if several else ""
            line(f"  {lane}{job.workload.name}: {_parts(job.workload)}{follows}")
            for shape in job.workload.shapes:
                line(f"    {shape}")
    leaders = sum(job.leader is None for job in plan.jobs)
    line(f"{len(plan.jobs)} jobs, {leaders} to compile, the others must hit; nothing was started")
