"""The result of build and verify as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flexwarm.canonical import plain
from flexwarm.events import Answer, JobFailed
from flexwarm.ops.run import RunResult
from flexwarm.plan import Plan
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.render.text import duration, size
from flexwarm.verdict import JobVerdict, Outcome


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
        "jobs": [_job_json(result, job) for job in result.verdict.jobs],
        "hazards": [_hazard_json(job, reason) for job in result.verdict.jobs for reason in job.reasons if _is_hazard(reason)],
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
        data["keys"] = [
            {"layer": x.layer.value, "key": x.key, "answer": x.answer.value, "reason": x.reason} for x in record.lookups
        ]
        data["compiles"] = [{"what": event.what, "detail": event.detail} for event in record.compiled]
        data["shapes"] = [
            {
                "shape": str(job.workload.shapes[done.shape]),
                "calls": done.calls,
                "first_seconds": done.first_seconds,
                "repeat_seconds": done.repeat_seconds,
                "error": done.error,
                "tolerance": done.tolerance,
                "agrees": done.agrees,
            }
            for done in record.shapes
        ]
        if isinstance(end, JobFailed):
            data["traceback"] = end.traceback
    return data


def _is_hazard(reason: Reason) -> bool:
    return reason.code is Code.DENSE_FALLBACK


def _hazard_json(verdict: JobVerdict, reason: Reason) -> dict[str, Any]:
    stack = verdict.record.dense[0].stack if verdict.record and verdict.record.dense else ()
    return {
        "code": reason.code.value,
        "message": reason.message,
        "hint": reason.hint,
        "lane": verdict.job.lane,
        "job": verdict.job.id,
        "owner": None,
        "stack": list(stack),
    }


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
                "physical_device": worker.physical,
                "device": worker.device,
                "env": dict(sorted(worker.env.items())),
                "jobs": [
                    {
                        "id": job.id,
                        "workload": job.workload.name,
                        "device": job.device,
                        "share": job.share,
                        "leader": job.leader,
                        "shapes": [str(shape) for shape in job.workload.shapes],
                    }
                    for job in worker.jobs
                ],
            }
            for worker in plan.workers
        ],
    }


_STYLES = {
    Kind.WARM: "bold green",
    Kind.BUILT: "bold cyan",
    Kind.COLD: "bold yellow",
    Kind.UNSAFE: "bold red",
    Kind.BROKEN: "bold red",
    Kind.UNKNOWN: "bold yellow",
}
_OUTCOME_STYLES = {Outcome.HIT: "green", Outcome.COMPILED: "cyan"}
#: A narrower terminal has no room for the counts.
_TIMES_COLUMNS = 56
#: A job's reasons beyond these are counted; -v shows all.
_REASONS_SHOWN = 3


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
        if len(reasons) > len(shown):
            console.print(f"{owner}: and {len(reasons) - len(shown)} more reasons (-v shows them)", markup=False)
    console.print(Text.assemble("verdict: ", (result.verdict.kind.value, _STYLES[result.verdict.kind]), _summary(result)))
    for hint in _hints(result) if verbosity >= 0 else ():
        console.print(f"  next: {hint}", soft_wrap=not console.is_terminal, highlight=False, markup=False)


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
    good = sum(job.outcome in (Outcome.HIT, Outcome.COMPILED) and not job.reasons for job in result.verdict.jobs)
    held = ""
    if result.bucket_bytes is not None:
        held = f", bucket {result.bucket[:8]} holds {size(result.bucket_bytes)} in {result.bucket_files} files"
    return f" ({good} of {jobs} jobs, {duration(result.seconds)}{held})"


def _table(result: RunResult, width: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    narrow = width < 76
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload", overflow="fold")
    if narrow:
        table.add_column("on", overflow="fold")
    else:
        table.add_column("role")
        table.add_column("rank", justify="right")
        table.add_column("device")
    table.add_column("outcome", no_wrap=True)
    for name in ("hit", "miss", "cold", "warm") if width >= _TIMES_COLUMNS else ("cold", "warm"):
        table.add_column(name, justify="right", no_wrap=True)
    for verdict in result.verdict.jobs:
        job, record = verdict.job, verdict.record
        where = (f"{job.role}:{job.rank}",) if narrow else (job.role, str(job.rank), job.device)
        hits, misses = (len(record.answers(answer)) if record else None for answer in (Answer.HIT, Answer.MISS))
        warm = record.first_seconds if record and verdict.outcome is Outcome.HIT else None
        style = _OUTCOME_STYLES.get(verdict.outcome, "yellow")
        table.add_row(
            Text(job.workload.name),
            *map(Text, where),
            Text(verdict.outcome.value, style=style),
            *((_count(hits), _count(misses)) if width >= _TIMES_COLUMNS else ()),
            duration(result.cold_seconds.get(job.id)),
            duration(warm),
        )
    return table


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def print_plan(plan: Plan, bucket_path: str) -> None:
    """``build --dry-run``: every process, its variables and its jobs."""
    from flexwarm.render.console import make_console

    console = make_console()

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)

    line(f"bucket {bucket_path}")
    for worker in plan.workers:
        where = worker.device if worker.device == worker.physical else f"{worker.physical}, seen as {worker.device}"
        line(f"rank {worker.rank}: role {worker.role}, {where}")
        for job in worker.jobs:
            follows = f" after {job.leader}" if job.leader else ""
            line(f"  {job.workload.name}: {len(job.workload.shapes)} shapes{follows}")
            for shape in job.workload.shapes:
                line(f"    {shape}")
    leaders = sum(job.leader is None for job in plan.jobs)
    line(f"{len(plan.jobs)} jobs, {leaders} to compile, the others must hit; nothing was started")
