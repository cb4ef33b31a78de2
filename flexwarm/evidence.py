"""What one record proves and does not prove, reason by reason. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from flexwarm.events import (
    Answer,
    Compiled,
    Dense,
    Hazard,
    JobFailed,
    JobStopped,
    Layer,
    Lookup,
)
from flexwarm.hazards import SAID_AT_MOST, HazardCode
from flexwarm.lookups import LAYER_NAMES, short
from flexwarm.plan import Job
from flexwarm.reasons import Code, Reason, hazard
from flexwarm.record import End, Exit, JobRecord, Record, WorkerRecord
from flexwarm.target import NOTHING, STANDS_IN

#: How torch's error for a compiled call while FX traces begins.
GUARD_MESSAGE = "Detected that you are using FX to symbolically trace"
#: How the sentence of a reason that a drill gave begins.
IN_DRILL = "in the drill: "


def end_reasons(record: JobRecord, worker: WorkerRecord) -> list[Reason]:
    job = record.job
    match record.end:
        case JobFailed() as failed:
            if is_guards_own(failed) and any(seen.fate == "raise" for seen in record.hazards):
                return []  # the hazard is the reason, and says more
            if any(seen.code is HazardCode.FOREIGN_PATCH and seen.fate == "raise" for seen in record.hazards):
                return []
            hints = [unanswered_hint(failed.unanswered), f"log: {worker.exit.log}" if worker.exit else ""]
            message = f"{failed.error}: {failed.message}"
            return [Reason(code=Code.RAISED, message=message, hint="; ".join(filter(None, hints)))]
        case JobStopped():
            # Stopped at a miss that no layer reported would be our own fault, and must not be silence.
            if record.compiled or record.answers(Answer.MISS) or record.answers(Answer.BYPASS):
                return []
            return [Reason(code=Code.NO_EVIDENCE, message="the job was stopped, and no layer said why")]
        case None:
            return [_missing_end(job, record, worker)]
        case _:
            if record.ran_to_end:
                return []
            done, what = len(record.shapes), "shapes were checked"
            if job.workload.step is not None:
                done, what = len(record.steps), "calls of the step returned"
            return [Reason(code=Code.NO_EVIDENCE, message=f"only {done} of {job.workload.parts} {what}")]


def unanswered_hint(call: str) -> str:
    """What to do about a call that a GPU that is not there did not answer; empty if there was none."""
    return f"a GPU that is not there did not answer {call}" if call else ""


def is_guards_own(failed: JobFailed) -> bool:
    """Whether a job ended with the error that torch raises for a compiled call while FX traces."""
    return failed.error == "RuntimeError" and failed.message.startswith(GUARD_MESSAGE)


def hazard_reasons(record: JobRecord) -> list[Reason]:
    """Each hazard of a job once."""
    return seen_hazard_reasons(record.hazards)


def seen_hazard_reasons(hazards: Sequence[Hazard]) -> list[Reason]:
    """Each hazard once, with the first thread that brought it about."""
    found: dict[tuple[HazardCode, str, str], list[Hazard]] = {}
    for seen in hazards:
        # Without an owner it is the sentence that tells them apart, such as the settings of two threads.
        found.setdefault((seen.code, seen.owner, "" if seen.owner else seen.message), []).append(seen)
    reasons = []
    for alike in found.values():
        times = f" ({len(alike)} {'or more ' if len(alike) >= SAID_AT_MOST else ''}times)" if len(alike) > 1 else ""
        reasons.append(hazard(alike[0].code, alike[0].message + times))
    return reasons


def _missing_end(job: Job, record: JobRecord, worker: WorkerRecord) -> Reason:
    exit = worker.exit
    if worker.refused is not None:
        return Reason(code=Code.REFUSED, message=worker.refused.message, hint=worker.refused.hint)
    if exit is None:
        return Reason(code=Code.NOT_RUN, message="its worker was never started")
    if exit.end is End.FINISHED and worker.said_bye:
        leader = job.leader or "the job before it"
        return Reason(code=Code.LEADER_FAILED, message=f"not run, because {leader} did not compile")
    where = f"in phase {record.phase.value}" if record.phase else "before it began"
    hint = f"log: {exit.log}"
    match exit.end:
        case End.HUNG:
            return Reason(
                code=Code.HUNG,
                message=f"nothing moved for {exit.limit_seconds:g} s {where}: threads of its rank wait for each other",
                hint=f"{hint}; --hang-timeout changes the limit",
            )
        case End.TIMED_OUT:
            return Reason(
                code=Code.TIMED_OUT,
                message=f"ran past {exit.limit_seconds:g} s {where}; its stacks are in the log",
                hint=f"{hint}; --job-timeout changes the limit",
            )
        case End.SILENT:
            return Reason(
                code=Code.SILENT,
                message=f"said nothing for {exit.limit_seconds:g} s {where}; its stacks are in the log",
                hint=f"{hint}; --silence-timeout changes the limit",
            )
        case _:
            return Reason(code=Code.CRASHED, message=f"its worker {describe_status(exit)} {where}", hint=hint)


def describe_status(exit: Exit) -> str:
    """``was killed by SIGSEGV`` or ``exited with status 3``."""
    if exit.status < 0:
        try:
            name = signal.Signals(-exit.status).name
        except ValueError:
            name = f"signal {-exit.status}"
        return f"was killed by {name}"
    return f"exited with status {exit.status}"


def key_reasons(lanes: Sequence[JobRecord], expected: frozenset[tuple[str, str]]) -> list[Reason]:
    """The expected keys of a workload's lanes, each of them, must have hit, and no other may have been asked for."""
    hits = frozenset(
        (x.layer.value, x.key) for record in lanes for x in record.answers(Answer.HIT) if x.layer is not Layer.TRITON
    )
    reasons = []
    for layer, key in sorted(hits - expected):
        reasons.append(
            Reason(code=Code.KEY_NOT_LISTED, message=f"{layer} key {short(key)} hit, but no build of this job recorded it")
        )
    for layer, key in sorted(expected - hits):
        reasons.append(
            Reason(code=Code.KEY_NOT_SEEN, message=f"{layer} key {short(key)} was recorded by the build and not asked for")
        )
    return reasons


def check_reasons(record: JobRecord) -> list[Reason]:
    """The guard must have been checked at each compiled call: a check that was not made found no hazard either.

    How many compiled calls a step makes only the user knows; that it makes any is what can be asked for.
    """
    if record.job.workload.step is not None:
        if any(done.checks for done in record.steps):
            return []
        return [
            Reason(
                code=Code.NO_EVIDENCE,
                message="the step made no compiled call",
                hint="is torch.compile switched off, or called in another thread than the one that calls the step?",
            )
        ]
    return [
        Reason(
            code=Code.NO_EVIDENCE,
            message=f"{done.calls} compiled calls were made, and torch asked {done.checks} times whether FX traces",
            hint="is torch.compile switched off, by a variable or in a module that the spec names?",
        )
        for done in record.shapes
        if done.checks < done.calls
    ]


def layer_evidence_reasons(lanes: Sequence[JobRecord]) -> list[Reason]:
    """Each layer must have been asked, and torch's own counters must say what was seen of the questions.

    A layer that a setting of the user's turned off answers nothing, in the build as in the proof: silence is not a hit.
    The lanes of a rank share a compiled function and torch's counters, so the evidence is of all of them.

    Args:
        lanes: the jobs of one workload in one rank, each of which ran to its end.
    """
    reasons = []
    end = lanes[0].end
    counters = end.counters if end and not isinstance(end, JobFailed) else {}
    lookups = [lookup for record in lanes for lookup in record.lookups]
    for layer in (Layer.AOT, Layer.FX):
        if not any(lookup.layer is layer for lookup in lookups):
            reasons.append(
                Reason(
                    code=Code.NO_EVIDENCE,
                    message=f"the {LAYER_NAMES[layer]} cache was never asked",
                    hint="is it or torch.compile switched off, by a variable or in a module that the spec names?",
                )
            )
    reasons += counter_reasons(lookups, counters)
    unserved = [x for x in lookups if x.layer is Layer.FX and x.answer is not Answer.HIT]
    reasons += unserved_reasons([event for record in lanes for event in record.compiled], unserved)
    return reasons


def counter_reasons(lookups: Sequence[Lookup], counters: Mapping[str, int]) -> list[Reason]:
    """torch's own counters must say what was seen of the questions to the two graph caches."""
    reasons = []
    for layer, counter in ((Layer.AOT, "aot_autograd.autograd_cache"), (Layer.FX, "inductor.fxgraph_cache")):
        seen = {answer: sum(x.layer is layer and x.answer is answer for x in lookups) for answer in Answer}
        counted = {answer: counters.get(f"{counter}_{answer.value}", 0) for answer in Answer}
        if seen != counted:
            told, shown = (", ".join(f"{count} {answer.value}" for answer, count in x.items()) for x in (counted, seen))
            reasons.append(
                Reason(
                    code=Code.WITNESSES_DISAGREE,
                    message=f"{LAYER_NAMES[layer]} lookups: seen were {shown}; torch counted {told}",
                )
            )
    return reasons


def unserved_reasons(compiled: Sequence[Compiled], unserved: Sequence[Lookup]) -> list[Reason]:
    """Inductor compiles what the FX graph cache did not serve, and nothing else: what it was not asked for is not stored."""
    graphs = sum(event.what == "inductor" for event in compiled)
    if graphs <= len(unserved):
        return []
    return [
        Reason(
            code=Code.NOT_STORED,
            message=f"Inductor compiled {graphs} graphs, and the FX graph cache was asked for {len(unserved)} of them",
            hint="is the cache switched off in a module that the spec names, or in the training code?",
        )
    ]


def not_stored_reasons(keys: Set[tuple[str, str]]) -> list[Reason]:
    """What was compiled under (layer, key) and has no entry."""
    return [
        Reason(
            code=Code.NOT_STORED,
            message=f"torch compiled {layer} entry {short(key)} and stored nothing for it",
            hint="a launch would compile it again; run with TORCH_LOGS=+inductor to see why",
        )
        for layer, key in sorted(keys)
    ]


def result_reasons(record: JobRecord, worker: WorkerRecord) -> list[Reason]:
    """What the results say; nothing where a GPU that is not there computed none."""
    computed = worker.hello is None or worker.hello.components.get(STANDS_IN, NOTHING) == NOTHING
    reasons = []
    for done in record.shapes:
        if done.agrees or (done.agrees is None and not computed):
            continue
        shape = record.job.workload.shapes[done.shape]
        if done.agrees is None:
            message = f"{shape}: the result was not held against dense attention"
            reasons.append(Reason(code=Code.NO_EVIDENCE, message=message))
        else:
            error = "is not finite" if done.error is None else f"differs by {done.error:.3g}, allowed {done.tolerance:g}"
            reasons.append(
                Reason(code=Code.WRONG_RESULT, message=f"{shape}: the result {error} from dense attention in float32")
            )
    return reasons + dense_reasons(record.dense)


def dense_reasons(dense: Sequence[Dense]) -> list[Reason]:
    """Attention that materialised its score matrix, with the first line that called it."""
    if not dense:
        return []
    first = dense[0]
    # Flex called on its own is run through code that torch generates; a line of that tells nobody anything.
    lines = [line for line in first.stack if not line.startswith("<")] or first.stack
    where = f", called from {lines[-1]}" if lines else ""
    number = f"{len(dense)} {'or more ' if len(dense) >= SAID_AT_MOST else ''}calls"
    message = f"{number} materialised the score matrix of a query {first.shape}{where}"
    return [hazard(HazardCode.DENSE_FALLBACK, message)]


def drill_reasons(record: JobRecord, drill: Record) -> list[Reason]:
    """What a drill found in one job, and whether it tried everything that it should."""
    reasons = [_in_drill(reason) for reason in hazard_reasons(record)]
    worker = drill.worker_of(record.job)
    if record.dense:
        reasons += [_in_drill(reason) for reason in result_reasons(record, worker)]
    ended_well = worker.exit is not None and worker.exit.end is End.FINISHED
    if isinstance(record.end, JobFailed):
        reasons += [_in_drill(reason) for reason in end_reasons(record, worker)]
    elif record.drill is None:
        if ended_well and worker.refused is None:
            reasons.append(_no_evidence(f"the drill did not hold lane {record.job.lane} in a trace"))
    else:
        done, others = record.drill, len(drill.round_of(record.job)) - 1
        tried = done.callers == others and done.calls + done.waited >= done.holds * others
        if not done.holds or done.unanswered or not tried:
            reasons.append(
                _no_evidence(
                    f"the drill held lane {record.job.lane} in {done.holds} traces, and {done.callers} of the {others} "
                    f"other lanes made {done.calls} calls meanwhile"
                )
            )
    met = record.drill_lock is not None and record.drill_lock.met
    if ended_well and not isinstance(record.end, JobFailed) and compiles_beside_backward(record, drill) and not met:
        reasons.append(
            _no_evidence(f"the drill did not make lane {record.job.lane} compile while a backward on its device waited to be")
        )
    return reasons


def compiles_beside_backward(record: JobRecord, drill: Record) -> bool:
    """Whether the drill must make this lane compile beside a backward: the second of the lanes that share its device."""
    mates = sorted(x.job.lane for x in drill.round_of(record.job) if x.job.device == record.job.device)
    return record.job.workload.grad and mates[1:2] == [record.job.lane]


def drilled_worker_reasons(drill: Record) -> list[Reason]:
    """What became of the processes of a drill: one that hung or died of a signal is a finding."""
    reasons = []
    for worker in drill.workers:
        exit = worker.exit
        log = f"log: {exit.log}" if exit else ""
        if worker.refused is not None:
            reasons.append(Reason(code=Code.REFUSED, message=worker.refused.message, hint=worker.refused.hint))
        elif exit is None:
            reasons.append(_no_evidence(f"nobody saw how rank {worker.rank} ended its drill"))
        elif worker.hang is not None:
            reasons.append(_in_drill(hazard(HazardCode.COMPILE_DEADLOCK, f"rank {worker.rank}: {worker.hang.message}")))
        elif exit.end is End.DIED and exit.status < 0:
            doing = next((x.phase.value for x in drill.jobs.values() if x.job.rank == worker.rank and x.phase), "start")
            message = f"rank {worker.rank} {describe_status(exit)} in phase {doing}"
            reasons.append(_in_drill(hazard(HazardCode.CRASH, message)))
        elif exit.end is not End.FINISHED:
            code = {End.TIMED_OUT: Code.TIMED_OUT, End.SILENT: Code.SILENT}.get(exit.end, Code.CRASHED)
            message = f"in the drill rank {worker.rank} {exit.end.value.replace('_', ' ')} ({describe_status(exit)})"
            reasons.append(Reason(code=code, message=message, hint=log))
        for seen in worker.stray_hazards:
            reasons.append(_in_drill(hazard(seen.code, f"rank {worker.rank}: {seen.message}")))
    return reasons


def _in_drill(reason: Reason) -> Reason:
    return replace(reason, message=f"{IN_DRILL}{reason.message}")


def _no_evidence(message: str) -> Reason:
    return Reason(code=Code.NO_EVIDENCE, message=message, hint="--no-drill leaves the drill out, and the verdict says so")


def worker_reasons(record: Record, parent_components: Mapping[str, str]) -> list[Reason]:
    """What belongs to a worker and not to a job: another toolchain than the parent read, compiles outside of jobs."""
    reasons = []
    for worker in record.workers:
        if worker.hang is not None:
            reasons.append(hazard(HazardCode.COMPILE_DEADLOCK, f"rank {worker.rank}: {worker.hang.message}"))
        for seen in worker.stray_hazards:
            reasons.append(hazard(seen.code, f"rank {worker.rank}: {seen.message}"))
        for event in worker.stray_compiles:
            reasons.append(
                Reason(code=Code.COMPILED, message=f"rank {worker.rank}: {event.what} compiler started outside of a job")
            )
        exit, ended = (
            worker.exit,
            all(record.jobs[job].end is not None for job in record.jobs if record.jobs[job].job.rank == worker.rank),
        )
        if exit is not None and exit.end is not End.FINISHED and ended:
            # Every job had said that it was done, so no job's own reason tells of it.
            reasons.append(
                Reason(
                    code=Code.CRASHED,
                    message=f"rank {worker.rank} {describe_status(exit)} after its last job",
                    hint=f"log: {exit.log}",
                )
            )
        if exit is None and ended:
            reasons.append(Reason(code=Code.NO_EVIDENCE, message=f"nobody saw how rank {worker.rank} ended"))
        if worker.hello is None:
            if any(job.end is not None for job in record.jobs.values() if job.job.rank == worker.rank):
                reasons.append(Reason(code=Code.NO_EVIDENCE, message=f"rank {worker.rank} never said which torch it runs"))
            continue
        for name, value in worker.hello.components.items():
            read = parent_components.get(name, "")
            if read != value:
                reasons.append(
                    Reason(
                        code=Code.TOOLCHAIN_MISMATCH,
                        message=f"rank {worker.rank} sees {name} = {value}, the fingerprint says {read}",
                    )
                )
    return reasons
