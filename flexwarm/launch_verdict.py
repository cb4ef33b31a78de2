"""From the record of a launch line to a verdict. Pure: as for a spec, ``warm`` needs every witness, and each to have spoken."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from flexwarm import evidence, lookups, nodes, tuning
from flexwarm.commandline import read, title
from flexwarm.compiler_lines import cxx_source, subject
from flexwarm.errors import ExitCode
from flexwarm.events import Answer, Compiled, Layer, Lookup
from flexwarm.hazards import HazardCode
from flexwarm.nodes import NodeFinding
from flexwarm.program_events import Raised
from flexwarm.programs import Ended, GraphRecord, LaunchRecord, ProgramRecord, is_rank, signature_groups
from flexwarm.reasons import Code, Kind, Reason, hazard, is_hazard, weigh
from flexwarm.verdict import Outcome, outcome_of

#: Calls that a note about ranks names.
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramVerdict:
    """One program's outcome, and why it is not warm."""

    record: ProgramRecord
    outcome: Outcome
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchVerdict:
    """The verdict on a launch line.

    Attributes:
        reasons: those that belong to no single program.
        notes: what is worth knowing and decides nothing, such as ranks that compile different things.
    """

    kind: Kind
    exit_code: ExitCode
    programs: tuple[ProgramVerdict, ...]
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the parent knows beside the record.

    Attributes:
        ranks: how many must have reported; None to go by what the ranks themselves say of their number.
        said_by: who says so.
        components: what the parent read from files, to be held against what each program sees.
        listed: (layer, key) of every key of the bucket's manifest.
        recorded: identity of a program -> keys that a build of this very line recorded; empty if there was none.
        disk: files of the bucket that differ before and after.
        blind: why programs of this line cannot be observed, as far as the line says; empty if they can.
        left_open: identity of a program -> what a build of this very line left to a GPU, so that it has no key of.
        other_processor: the bucket, where the machine that it is for has another processor than this one; else empty.
    """

    ranks: int | None
    said_by: str
    components: Mapping[str, str]
    listed: Set[tuple[str, str]]
    recorded: Mapping[str, Set[tuple[str, str]]]
    disk: Sequence[str]
    blind: str
    other_processor: str = ""
    left_open: Mapping[str, Sequence[Reason]] = field(default_factory=dict)


def judge_verified_launch(record: LaunchRecord, expected: Expectation, notes: Mapping[str, Sequence[Reason]]) -> LaunchVerdict:
    """The verdict of a verification, or of a real run.

    Args:
        notes: :attr:`flexwarm.programs.ProgramRecord.process` -> why it might miss; they count only for one that did.
    """
    programs: list[ProgramVerdict] = []
    hits = _hits_by_identity(record)
    for program in record.judged:
        reasons = [reason for graph in program.graphs for reason in _miss_reasons(graph)]
        missed = bool(reasons)
        reasons += lookups.recompiled_reasons(program.recompiled)
        if program.held is not None and not missed:
            # Held at a miss that no layer reported would be our own fault, and must not be silence.
            reasons.append(Reason(code=Code.NO_EVIDENCE, message="the program was stopped, and no layer said why"))
        reasons += _common_reasons(program, record, expected)
        if program.said_bye and not missed and record.ended is not Ended.AT_A_MISS:
            reasons += _key_reasons(program, expected, hits[program.identity])
        if missed or any(reason.code is Code.KEY_NOT_LISTED for reason in reasons):
            reasons += notes.get(program.process, ())
        programs.append(_concluded(program, reasons))
    ended_well = record.ended is Ended.BY_ITSELF and record.status == 0 and all(x.record.said_bye for x in programs)
    absent = _absent_reasons(expected, hits) if ended_well else []
    # What has no key is not missed where it is not asked for.
    told = {reason for program in programs for reason in program.reasons}
    absent += [x for x in dict.fromkeys(x for reasons in expected.left_open.values() for x in reasons) if x not in told]
    return _judge(record, expected, programs, absent, best=Kind.WARM, verified=True)


def judge_built_launch(record: LaunchRecord, expected: Expectation, stored: Set[tuple[str, str]]) -> LaunchVerdict:
    """The verdict of a build: ``built`` when all is stored, ``warm`` when in addition nothing had to be compiled.

    Args:
        stored: (layer, key) of the entries that are in the bucket after the run.
    """
    programs = []
    for program in record.judged:
        reasons = [reason for graph in program.graphs for reason in _bypass_reasons(graph)]
        reasons += _common_reasons(program, record, expected)
        for graph in program.graphs:
            reasons += processor_reasons(graph.compiled, expected.other_processor, f"{_where(graph)}: ")
        reasons += evidence.not_stored_reasons(program.keys - stored - program.left_out)
        programs.append(_concluded(program, reasons))
    only_hits = all(program.outcome is Outcome.HIT for program in programs) and not record.compilers
    return _judge(record, expected, programs, best=Kind.WARM if only_hits else Kind.BUILT)


def _concluded(program: ProgramRecord, reasons: Sequence[Reason]) -> ProgramVerdict:
    compiled = bool(program.compiled) or any(lookup.answer is Answer.MISS for lookup in program.lookups)
    outcome = outcome_of(reasons, compiled=compiled, untuned=tuning.left_to_the_gpu(program.untuned))
    return ProgramVerdict(record=program, outcome=outcome, reasons=tuple(reasons))


def _judge(
    record: LaunchRecord,
    expected: Expectation,
    programs: Sequence[ProgramVerdict],
    more: Sequence[Reason] = (),
    *,
    best: Kind,
    verified: bool = False,
) -> LaunchVerdict:
    """``verified``: what is compiled here, or not built on another node, speaks against the launch; a build is for that."""
    reasons = [*_node_reasons(record, verified), *_command_reasons(record), *_coverage_reasons(record, expected), *more]
    if verified and not _compiling([*reasons, *(reason for program in programs for reason in program.reasons)]):
        reasons += _compiler_reasons(record)
    if expected.disk and not _compiling([*reasons, *(reason for program in programs for reason in program.reasons)]):
        names = ", ".join(expected.disk[:3]) + (f" and {len(expected.disk) - 3} more" if len(expected.disk) > 3 else "")
        reasons.append(
            Reason(
                code=Code.DISK_CHANGED,
                message=f"the bucket changed during a run that says it compiled nothing: {names}",
                hint="another process may be using the bucket; verify again when it is idle",
            )
        )
    every = [*reasons, *(reason for program in programs for reason in program.reasons)]
    kind, exit_code = weigh(every, best=best)
    return LaunchVerdict(
        kind=kind,
        exit_code=exit_code,
        programs=tuple(programs),
        reasons=tuple(reasons),
        notes=(*_rank_notes(record), *_node_notes(record, verified), *_tuning_notes(record)),
    )


def _compiling(reasons: Sequence[Reason]) -> bool:
    """Whether any of them says that something was compiled."""
    compiling = (Code.AOT_MISS, Code.FX_MISS, Code.TRITON_MISS, Code.AOT_BYPASS, Code.FX_BYPASS, Code.COMPILED)
    return any(reason.code in compiling for reason in reasons)


def _compiler_reasons(record: LaunchRecord) -> list[Reason]:
    """Compilers that no program reported: those under a build tool or a shell."""
    if not record.compilers:
        return []
    first, *others = record.compilers
    more = f", and {len(others)} more" if others else ""
    return [
        Reason(
            code=Code.COMPILED,
            message=f"a compiler ran beside the caches: {lookups.cut(subject(first.argv))} (process {first.pid}){more}",
            hint="what build tools make is not kept in the bucket: let the line run once more, or build it before the launch",
        )
    ]


# ---- of one program --------------------------------------------------------------------------------------------------------


def _where(graph: GraphRecord) -> str:
    """The call that a reason is about: what was called, and the user's line."""
    call = graph.call
    return call.called if call else "outside of a graph that was seen"


def _miss_reasons(graph: GraphRecord) -> list[Reason]:
    """One reason for each layer of a graph that missed, with the call; a compiler that ran for another cause as well."""
    reasons = _bypass_reasons(graph)
    for lookup in graph.answers(Answer.MISS):
        reasons.append(
            Reason(
                code=lookups.MISSES[lookup.layer],
                message=f"{_where(graph)}: {lookups.missed(lookup)}",
                hint="flexwarm build -- with this launch line",
            )
        )
    asked = bool(graph.answers(Answer.MISS) or graph.answers(Answer.BYPASS))
    for event in graph.compiled:
        if not (asked and event.what == "inductor"):
            reasons.append(lookups.compiled_reason(event, f"{_where(graph)}: "))
    return reasons


def _bypass_reasons(graph: GraphRecord) -> list[Reason]:
    return [lookups.bypassed(lookup, f"{_where(graph)}: ") for lookup in graph.answers(Answer.BYPASS)]


def _common_reasons(program: ProgramRecord, record: LaunchRecord, expected: Expectation) -> list[Reason]:
    """What speaks against a program whatever was asked of it."""
    reasons = [Reason(code=Code.REFUSED, message=refused.message, hint=refused.hint) for refused in program.refused]
    for name, value in program.program.components.items():
        read = expected.components.get(name)
        if read is not None and read != value:
            reasons.append(
                Reason(
                    code=Code.TOOLCHAIN_MISMATCH,
                    message=f"it sees {name} = {value}, the fingerprint says {read}",
                    hint="run flexwarm with the Python that the launch uses: python -m flexwarm",
                )
            )
    for moved in program.moved:
        old, new = (repr(value) if value is not None else "unset" for value in (moved.old, moved.new))
        reasons.append(
            Reason(
                code=Code.CACHE_MOVED,
                message=f"the program changed {moved.name} from {old} to {new}, so the bucket was not what it used",
                hint=f"leave {moved.name} to flexwarm in the training code",
            )
        )
    reasons += evidence.seen_hazard_reasons(program.hazards)
    reasons += evidence.dense_reasons(program.dense)
    reasons += tuning.untuned_reasons(program.untuned)
    if program.hang is not None:
        reasons.append(hazard(HazardCode.COMPILE_DEADLOCK, program.hang.message))
        if record.ended is Ended.HUNG:
            message = f"nothing moved for {program.hang.seconds:g} s: its threads wait for each other"
            reasons.append(Reason(code=Code.HUNG, message=message, hint="--hang-timeout changes the limit"))
    reasons += _end_reasons(program, record)
    if program.said_bye:
        reasons += _evidence_reasons(program)
    return reasons


def processor_reasons(compiled: Iterable[Compiled], bucket: str, where: str = "") -> list[Reason]:
    """What was compiled from C++ is for the processor here, and nothing in its key says so.

    Args:
        bucket: its path, where the machine that it is for has another processor; empty where it has the same.
        where: what the sentence begins with.
    """
    sources = [source for event in compiled if bucket and (source := cxx_source(event.detail, bucket))]
    if not sources:
        return []
    return [
        Reason(
            code=Code.REFUSED,
            message=f"{where}C++ was compiled for the processor here, and the target's machine has another",
            hint="build what is compiled for the CPU on that machine",
        )
    ]


#: How gloo, NCCL and the rendezvous say that a peer has gone.
_PEER_LOST = (
    *("Connection reset by peer", "Connection closed by peer", "Connection refused", "Broken pipe", "Connection was likely"),
    *("remote process exit", "remote process has terminated", "Socket closed", "failed to recv, got 0 bytes"),
)


def _end_reasons(program: ProgramRecord, record: LaunchRecord) -> list[Reason]:
    """A program that ended without a word was killed; unless we did that, or the launcher, because another had failed.

    An error that the launch as a whole got over is one all the same: what came after it was not made.
    """
    if program.silenced is not None:
        return [_silence(program.name, program.silenced, record)]
    if record.ended is not Ended.BY_ITSELF:
        return []
    if program.raised is not None and record.status == 0:
        # Also one that ended without a word afterwards: its own error is no excuse for that.
        message = f"{_error(program.raised)}, and the command went on"
        return [Reason(code=Code.RAISED, message=message, hint=evidence.unanswered_hint(_unanswered([program])))]
    if program.said_bye:
        return []
    if program.went_on:
        message = "it made calls after it had told its end, and what came of these is not known"
        hint = "does something call compiled functions while Python shuts down, such as a __del__?"
        return [Reason(code=Code.NO_EVIDENCE, message=message, hint=hint)]
    if record.missed_elsewhere:
        return []  # the collective that it was in has lost a rank
    if any(_may_have_ended(other, program, record) for other in record.programs):
        return []
    if program.gone_unix is not None and program.gone_unix > _first_death(record):
        return []  # the launcher ends the others when one has died
    return [
        Reason(
            code=Code.CRASHED,
            message=f"process {program.program.pid} on {program.program.host} ended without a word: it was killed, or crashed",
            hint="the launcher's own output says by what",
        )
    ]


def _silence(who: str, error: int, record: LaunchRecord) -> Reason:
    """Why a program could not say everything. It may have ended well; that is not known."""
    if error in (errno.ENOSPC, errno.EDQUOT):
        why = "no space is left" if error == errno.ENOSPC else "the disk quota is used up"
        message = f"{record.store} takes no more, so {who} could not say everything: {why}"
        hint = "flexwarm clean --max-size SIZE, or another store with --store DIR"
        return Reason(code=Code.NO_SPACE, message=message, hint=hint)
    why = f"error {errno.errorcode.get(error, error)}" if error else "it is not whole"
    message = f"the event file of {who} could not be written any more: {why}"
    return Reason(code=Code.NO_EVIDENCE, message=message, hint=f"is {record.store} still there, and its disk sound?")


#: How soon a launcher kills the others where a program leaves. After longer than that, only a program is blamed for it of
#: which it is known that it failed.
_AT_ONCE_SECONDS = 5.0


def _may_have_ended(other: ProgramRecord, program: ProgramRecord, record: LaunchRecord) -> bool:
    """Whether another program failed before this one ended without a word, and in a way for which launchers kill."""
    raised, summary = other.raised, other.summary
    # What a rank says that has lost another one is no cause of that one's death.
    said = raised.message if raised is not None else summary.why if summary is not None else ""
    if any(words in said for words in _PEER_LOST):
        return False
    # The launcher acts when a program has ended, which is a moment after its error.
    if raised is not None:
        # One that the command got over is an excuse only where its own error is a reason.
        at = summary.t if summary is not None else raised.t
        return (record.status != 0 or other in record.judged) and (program.gone_unix is None or at < program.gone_unix)
    if record.status == 0 or summary is None or summary.how == "exec" or summary.status == 0 or not other.said_bye:
        return False
    # A program that only looks whether there is a GPU may say by its status that there is none.
    known = summary.status is not None and other in record.judged
    if program.gone_unix is None:
        return known
    return summary.t < program.gone_unix and (known or program.gone_unix - summary.t < _AT_ONCE_SECONDS)


def _first_death(record: LaunchRecord) -> float:
    """When the first program that counts was seen to be gone without a word."""
    gone = [x.gone_unix for x in record.judged if not x.said_bye and x.gone_unix is not None]
    return min(gone, default=float("inf"))


def _evidence_reasons(program: ProgramRecord) -> list[Reason]:
    """Each graph must have been asked for, and torch's own counters must say what was seen of the questions."""
    reasons = []
    for graph in program.graphs:
        asked = {lookup.layer for lookup in graph.lookups}
        if graph.call is None and Layer.FX not in asked:
            continue
        for layer in (Layer.AOT, Layer.FX):
            if layer not in asked:
                reasons.append(
                    Reason(
                        code=Code.NO_EVIDENCE,
                        message=f"{_where(graph)}: the {lookups.LAYER_NAMES[layer]} cache was never asked",
                        hint="is it switched off, by a variable or in the training code?",
                    )
                )
    summary = program.summary
    if summary is None:
        message = "the program ended and did not say what torch counted"
        return [*reasons, Reason(code=Code.NO_EVIDENCE, message=message)]
    reasons += evidence.counter_reasons(program.lookups, summary.counters)
    unserved = [x for x in program.lookups if x.layer is Layer.FX and x.answer is not Answer.HIT]
    reasons += evidence.unserved_reasons(program.compiled, unserved)
    if not sum(summary.checks.values()) and any(graph.call for graph in program.graphs):
        reasons.append(
            Reason(
                code=Code.NO_EVIDENCE,
                message="graphs were made, and torch was not seen to ask whether FX traces",
                hint="--guard report looks at each call",
            )
        )
    return reasons


def _hits(program: ProgramRecord) -> frozenset[tuple[str, str]]:
    return frozenset((x.layer.value, x.key) for x in _graph_lookups(program) if x.answer is Answer.HIT)


def _hits_by_identity(record: LaunchRecord) -> dict[str, frozenset[tuple[str, str]]]:
    """What hit in the programs that cannot be told apart, taken together: a build records them as one."""
    found: dict[str, frozenset[tuple[str, str]]] = {}
    for program in record.judged:
        found[program.identity] = found.get(program.identity, frozenset()) | _hits(program)
    return found


def _key_reasons(program: ProgramRecord, expected: Expectation, alike: Set[tuple[str, str]]) -> list[Reason]:
    """Every key that hit must be one that a build recorded; and every key that this line's build recorded must have hit.

    Args:
        alike: what hit in this program or in one that cannot be told from it.
    """
    hits = _hits(program)
    reasons = [
        Reason(
            code=Code.KEY_NOT_LISTED,
            message=f"{layer} key {lookups.short(key)} hit, but no build recorded it",
            hint="flexwarm build -- with this launch line",
        )
        for layer, key in sorted(hits - expected.listed)
    ]
    return [*reasons, *_unseen_reasons("", expected.recorded.get(program.identity, frozenset()) - alike)]


def _absent_reasons(expected: Expectation, hits: Mapping[str, Set[tuple[str, str]]]) -> list[Reason]:
    """What a program of this line's build recorded, where no such program made a call, and no other one asked for it.

    Ranks are counted, and may be on another node; a program whose command line is another one each time asks for the same.
    """
    asked = frozenset[tuple[str, str]]().union(*hits.values())
    absent = {name: keys - asked for name, keys in expected.recorded.items() if name not in hits and not is_rank(name)}
    return [reason for name, keys in sorted(absent.items()) for reason in _unseen_reasons(f" of {name}", keys)]


def _unseen_reasons(of: str, keys: Set[tuple[str, str]]) -> list[Reason]:
    """Keys that this line's build recorded, and nobody asked for; ``of``: of whom, with a space before it."""
    missing = sorted(keys)
    if not missing:
        return []
    layer, key = missing[0]
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return [
        Reason(
            code=Code.KEY_NOT_SEEN,
            message=f"the build of this line recorded {layer} key {lookups.short(key)}{more}{of}, and it was not asked for",
            hint="does the program make other calls each time? build and verify with enough steps to make them all",
        )
    ]


def _graph_lookups(program: ProgramRecord) -> list[Lookup]:
    return [lookup for lookup in program.lookups if lookup.layer is not Layer.TRITON]


# ---- of the launch ---------------------------------------------------------------------------------------------------------


def _command_reasons(record: LaunchRecord) -> list[Reason]:
    if record.ended is Ended.TIMED_OUT:
        message = f"the command ran past {record.seconds:.0f} s"
        return [Reason(code=Code.TIMED_OUT, message=message, hint="--job-timeout changes the limit")]
    if record.ended is Ended.INTERRUPTED:
        return [Reason(code=Code.NO_EVIDENCE, message="the command was interrupted before its end")]
    if record.missed_elsewhere and record.ended in (Ended.AT_A_MISS, Ended.BY_ITSELF):
        return []  # its ranks were stopped there, so the command could not go on here: see `_node_notes`
    if record.ended is Ended.AT_A_MISS and not any(program.held for program in record.judged):
        return [Reason(code=Code.NO_EVIDENCE, message="the command was stopped at a miss, and no program said at which")]
    if record.ended is Ended.HUNG and not any(program.hang for program in record.judged):
        return [Reason(code=Code.NO_EVIDENCE, message="the command was stopped at a hang, and no program said at which")]
    if record.ended is not Ended.BY_ITSELF or record.status == 0:
        return []
    hint = evidence.unanswered_hint(_unanswered(_failed(record)))
    return [Reason(code=Code.COMMAND_FAILED, message=_how_it_failed(record), hint=hint)]


def _failed(record: LaunchRecord) -> list[ProgramRecord]:
    """The programs that are known to have failed, the first of them first."""
    failed = [program for program in record.programs if program.raised or (_left(program) and program in record.judged)]
    # A program of which nothing else is known, if the command ended as it did.
    failed = failed or [program for program in record.programs if _left(program) == record.status]
    return sorted(failed, key=_failed_at)


#: The errors that torch itself raises for a call that fails.
_OF_TORCH = ("RuntimeError", "AcceleratorError", "DistBackendError", "DistError", "TorchRuntimeError", "InductorError")


def _unanswered(failed: Sequence[ProgramRecord]) -> str:
    """The last call that a GPU that is not there did not answer, in the first of some programs that this may have failed."""
    suspects = (x for x in failed if x.raised is None or x.raised.error in _OF_TORCH)
    return next((x.summary.unanswered for x in suspects if x.summary is not None and x.summary.unanswered), "")


def _how_it_failed(record: LaunchRecord) -> str:
    first = next(iter(_failed(record)), None)
    why = ""
    if first is not None:
        told = _error(first.raised) if first.raised is not None else _leave(first)
        why = f"; {first.name}: {told}"
    return f"the command {describe_status(record.status)}{why}"


def _failed_at(program: ProgramRecord) -> float:
    if program.raised is not None:
        return program.raised.t
    return program.summary.t if program.summary is not None else float("inf")


def _left(program: ProgramRecord) -> int:
    """The status with which a program ended by itself, where that is known and is not 0."""
    summary = program.summary
    return summary.status or 0 if summary is not None and program.said_bye else 0


def _leave(program: ProgramRecord) -> str:
    """How a program left, on one line."""
    why = next(iter(program.summary.why.splitlines()), "") if program.summary is not None else ""
    told = f" {why}" if why.startswith("at ") else f": {why}" if why else ""
    return f"exit status {_left(program)}{told}"


def _error(raised: Raised) -> str:
    """An error on one line: of a message with several, the first that has words."""
    said = next((line.strip() for line in raised.message.splitlines() if any(map(str.isalnum, line))), "")
    return f"{raised.error}: {said} ({raised.place})" if said else f"{raised.error} ({raised.place})"


def describe_status(status: int) -> str:
    """``exited with status 3`` or ``was killed by SIGKILL``."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _coverage_reasons(record: LaunchRecord, expected: Expectation) -> list[Reason]:
    """Nobody may be missing: a rank that did not report, a program that could not be observed, or all of them."""
    reasons = [Reason(code=Code.REFUSED, message=refused.message, hint=refused.hint) for refused in record.nameless]
    # One that was killed as it began could say nothing either, and is not missed where the launch was ended.
    well = record.ended is Ended.BY_ITSELF and record.status == 0
    reasons += [_silence("a program", error, record) for error in dict.fromkeys(record.silenced) if error or well]
    for unseen in record.unseen:
        why = (read(unseen.argv).blind if unseen.argv else "") or "its environment or its path was changed on the way"
        reasons.append(
            Reason(
                code=Code.NOT_OBSERVED,
                message=f"process {unseen.pid} ({title(unseen.argv)}) used torch and could not be observed: {why}",
                hint="start it without that, and pass PYTHONPATH and FLEXWARM_* on to it",
            )
        )
    if record.ended is not Ended.BY_ITSELF:
        return reasons
    for program in record.programs:
        # A data loader that a rank leaves behind makes no calls.
        beside = program.is_compile_worker or (program.rank is not None and not program.used_torch)
        if program.program.pid in record.left and not program.said_bye and not beside:
            message = f"{program.name} was still running when the command ended, and what it would have called is not known"
            hint = "let the line wait for all that it starts"
            reasons.append(Reason(code=Code.NO_EVIDENCE, message=message, hint=hint))
    # A command that failed has its reason already.
    if not any(program.used_torch for program in record.programs) and (record.status == 0 or expected.blind):
        blind = f": {expected.blind}" if expected.blind else ""
        code = Code.NOT_OBSERVED if expected.blind else Code.NO_EVIDENCE
        told = (
            f"{len(record.programs)} programs imported torch, and none of them"
            if record.programs
            else "no program that was seen"
        )
        hint = "" if expected.blind else "does the line reach its compiled calls, and is torch.compile switched on?"
        reasons.append(Reason(code=code, message=f"{told} made a compiled call{blind}", hint=hint))
    return reasons + _rank_reasons(record, expected)


def _rank_reasons(record: LaunchRecord, expected: Expectation) -> list[Reason]:
    there = len(record.ranks)
    reasons = []
    if expected.ranks is not None and there != expected.ranks and not (expected.ranks == 1 and there == 0):
        why = expected.said_by or "the launcher starts one"
        message = f"{there} {'rank' if there == 1 else 'ranks'} reported, and {expected.ranks} were expected ({why})"
        reasons.append(Reason(code=Code.RANK_MISSING, message=message, hint="--expect-ranks N says how many there are"))
    elif expected.ranks is None:
        reasons += _missing_by_their_own_words(record)
    return reasons


def _missing_by_their_own_words(record: LaunchRecord) -> list[Reason]:
    """Each rank knows how many of them its launcher started on its machine."""
    by_host: dict[str, list[ProgramRecord]] = {}
    for program in record.ranks.values():
        by_host.setdefault(program.program.host, []).append(program)
    reasons = []
    for host, programs in sorted(by_host.items()):
        wanted = max((program.place.get("local_world_size", 0) for program in programs), default=0)
        if wanted > len(programs):
            message = f"{len(programs)} of the {wanted} ranks on {host} reported"
            reasons.append(Reason(code=Code.RANK_MISSING, message=message, hint="the launcher's output may say why"))
    return reasons


def _node_reasons(record: LaunchRecord, verified: bool) -> list[Reason]:
    """What speaks against other nodes, and a toolchain that is not the same on all. Misses here are told by the ranks."""
    known = record.nodes
    called = nodes.names(known)
    reasons = []
    for finding in nodes.compare(known):
        if finding.what is NodeFinding.FINGERPRINT:
            hint = "make the nodes the same; flexwarm fingerprint prints what a node has"
            reasons.append(Reason(code=Code.FINGERPRINT_CHANGED, message=finding.message, hint=hint))
        elif finding.what is NodeFinding.COLD and verified and finding.node != record.own_node:
            hint = "flexwarm build -- with this launch line on all nodes"
            reasons.append(Reason(code=Code.NO_BUCKET, message=finding.message, hint=hint))
    for node, what in sorted(record.missed_elsewhere.items()):
        message = f"node {called.get(node, node)}: {what}, which is not in its bucket; the launch was stopped there"
        hint = "flexwarm build -- with this launch line on all nodes"
        reasons.append(Reason(code=Code.NOT_BUILT, message=message, hint=hint))
    return reasons


def _node_notes(record: LaunchRecord, verified: bool) -> list[str]:
    known = record.nodes
    # Before a build nodes may have anything.
    wanted = {NodeFinding.RECORDED, NodeFinding.KEYS} if verified else {NodeFinding.RECORDED}
    notes = [finding.message for finding in nodes.compare(known) if finding.what in wanted]
    if record.missed_elsewhere and record.ended is Ended.BY_ITSELF and record.status != 0:
        notes.append(f"{_how_it_failed(record)}: it may be for the ranks that were stopped on another node")
    world_size = max((program.place.get("world_size", 0) for program in record.ranks.values()), default=0)
    if verified and record.ended is Ended.BY_ITSELF and len(record.ranks) < world_size and len(known) < 2:
        others = world_size - len(record.ranks)
        notes.append(f"{others} of {world_size} ranks are on other nodes, and nothing is known of these from here")
    return notes


def _rank_notes(record: LaunchRecord) -> list[str]:
    """Ranks that compile different things at different times wait for each other in the first collective."""
    silent = [str(rank) for rank, program in sorted(record.ranks.items()) if not program.used_torch]
    notes = [f"rank {', '.join(silent)} made no compiled call"] if 0 < len(silent) < len(record.ranks) else []
    groups = signature_groups([program for program in record.ranks.values() if program.used_torch])
    if len(groups) < 2:
        return notes
    shared = frozenset.intersection(*(signatures for signatures, _ in groups))
    for signatures, members in groups:
        ranks = ", ".join(str(program.rank) for program in members)
        own = [members[0].signatures[signature] for signature in sorted(signatures - shared)]
        if own:
            told = "; ".join(call.called for call in own[:_NAMED])
            more = f"; and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
            notes.append(f"only rank {ranks} compiles {told}{more}")
    return [*notes, "ranks that compile different calls wait for each other in collectives while one of them compiles"]


def _tuning_notes(record: LaunchRecord) -> list[str]:
    programs = record.judged
    untuned, tuned = [x for program in programs for x in program.untuned], [x for program in programs for x in program.tuned]
    return tuning.notes(untuned, tuned, [(program.name, read) for program in programs for read in program.reads])


def only_hazards(verdict: LaunchVerdict) -> bool:
    """Whether everything is warm or stored, hazards aside."""
    return all(is_hazard(reason) for reason in [*verdict.reasons, *(x for p in verdict.programs for x in p.reasons)])
