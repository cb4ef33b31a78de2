"""Why something is not warm: the closed list of reasons, and the verdict and exit code that each alone would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexwarm.canonical import StrEnum
from flexwarm.errors import ExitCode
from flexwarm.hazards import REMEDIES, HazardCode


class Kind(StrEnum):
    """The verdict on a run."""

    WARM = "warm"  # proven in new processes: a launch compiles nothing
    BUILT = "built"  # everything is stored; not proven in new processes yet
    COLD = "cold"  # something would compile
    UNSAFE = "unsafe"  # warm, but a hazard is open: a call would raise, hang, crash or run dense
    BROKEN = "broken"  # a job, a worker or a file failed
    UNKNOWN = "unknown"  # the evidence is missing or disagrees


class Code(StrEnum):
    """Why a job or a bucket is not warm. Each has one verdict."""

    NO_BUCKET = "no-bucket"
    NOT_BUILT = "not-built"
    FINGERPRINT_CHANGED = "fingerprint-changed"
    ENV_CHANGED = "env-changed"
    CONFIG_CHANGED = "config-changed"
    SOURCE_CHANGED = "source-changed"
    DEVICE_CHANGED = "device-changed"
    KEY_CHANGED = "key-changed"
    RECOMPILED = "recompiled"
    CACHE_DISABLED = "cache-disabled"
    AOT_MISS = "aot-miss"
    FX_MISS = "fx-miss"
    TRITON_MISS = "triton-miss"
    AOT_BYPASS = "aot-bypass"
    FX_BYPASS = "fx-bypass"
    COMPILED = "compiled"
    KEY_NOT_SEEN = "key-not-seen"
    KEY_NOT_LISTED = "key-not-listed"
    NOT_STORED = "not-stored"
    UNTUNED = "untuned"
    DISK_CHANGED = "disk-changed"
    NO_EVIDENCE = "no-evidence"
    WITNESSES_DISAGREE = "witnesses-disagree"
    NOT_PROVEN = "not-proven"
    FX_RACE = "fx-race"
    FX_NESTED = "fx-nested"
    FX_LEAK = "fx-leak"
    FX_SILENCED = "fx-silenced"
    DENSE_FALLBACK = "dense-fallback"
    COMPILE_DEADLOCK = "compile-deadlock"
    CRASH = "crash"
    LANE_CONFIG_DRIFT = "lane-config-drift"
    RECOMPILE_LIMIT = "recompile-limit"
    FOREIGN_PATCH = "foreign-patch"
    WRONG_RESULT = "wrong-result"
    RAISED = "raised"
    LEADER_FAILED = "leader-failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    SILENT = "silent"
    HUNG = "hung"
    COMMAND_FAILED = "command-failed"
    RANK_MISSING = "rank-missing"
    NOT_OBSERVED = "not-observed"
    CACHE_MOVED = "cache-moved"
    REFUSED = "refused"
    TOOLCHAIN_MISMATCH = "toolchain-mismatch"
    NO_SPACE = "no-space"
    CORRUPT_FILE = "corrupt-file"
    NOT_RUN = "not-run"


_COLD = (Kind.COLD, ExitCode.NOT_WARM)
_UNKNOWN = (Kind.UNKNOWN, ExitCode.NOT_WARM)
_FAILED = (Kind.BROKEN, ExitCode.JOB_FAILED)
_DIED = (Kind.BROKEN, ExitCode.WORKER_DIED)

#: Reason -> the verdict and exit code that it alone would give.
MEANING: Mapping[Code, tuple[Kind, ExitCode]] = {
    Code.NO_BUCKET: _COLD,
    Code.NOT_BUILT: _COLD,
    Code.FINGERPRINT_CHANGED: _COLD,
    Code.ENV_CHANGED: _COLD,
    Code.CONFIG_CHANGED: _COLD,
    Code.SOURCE_CHANGED: _COLD,
    Code.DEVICE_CHANGED: _COLD,
    Code.KEY_CHANGED: _COLD,
    Code.RECOMPILED: _COLD,
    Code.CACHE_DISABLED: _COLD,
    Code.AOT_MISS: _COLD,
    Code.FX_MISS: _COLD,
    Code.TRITON_MISS: _COLD,
    Code.AOT_BYPASS: _COLD,
    Code.FX_BYPASS: _COLD,
    Code.COMPILED: _COLD,
    Code.NOT_STORED: _COLD,
    Code.UNTUNED: _COLD,
    Code.KEY_NOT_SEEN: _UNKNOWN,
    Code.KEY_NOT_LISTED: _COLD,
    Code.DISK_CHANGED: _UNKNOWN,
    Code.NO_EVIDENCE: _UNKNOWN,
    Code.WITNESSES_DISAGREE: _UNKNOWN,
    Code.NOT_PROVEN: _UNKNOWN,
    Code.NOT_RUN: _UNKNOWN,
    **{Code(hazard.value): (Kind.UNSAFE, ExitCode.UNSAFE) for hazard in HazardCode},
    Code.WRONG_RESULT: _FAILED,
    Code.RAISED: _FAILED,
    Code.LEADER_FAILED: _FAILED,
    Code.CRASHED: _DIED,
    Code.TIMED_OUT: _DIED,
    Code.SILENT: _DIED,
    Code.HUNG: _DIED,
    Code.COMMAND_FAILED: _FAILED,
    Code.RANK_MISSING: _UNKNOWN,
    Code.NOT_OBSERVED: _UNKNOWN,
    Code.CACHE_MOVED: _COLD,
    Code.REFUSED: (Kind.BROKEN, ExitCode.UNSUPPORTED),
    Code.NO_SPACE: (Kind.BROKEN, ExitCode.UNSUPPORTED),
    Code.TOOLCHAIN_MISMATCH: _UNKNOWN,
    Code.CORRUPT_FILE: (Kind.BROKEN, ExitCode.CORRUPT),
}

#: Where several apply, the first of these is the exit code.
EXIT_ORDER = (
    ExitCode.CORRUPT,
    ExitCode.WORKER_DIED,
    ExitCode.JOB_FAILED,
    ExitCode.UNSUPPORTED,
    ExitCode.UNSAFE,
    ExitCode.NOT_WARM,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One cause: its code, one sentence, and what to do."""

    code: Code
    message: str
    hint: str = ""


def weigh(reasons: Sequence[Reason], *, best: Kind) -> tuple[Kind, ExitCode]:
    """The verdict and exit code that all reasons together give; ``best`` where there is none."""
    if not reasons:
        return best, ExitCode.OK
    meanings = [MEANING[reason.code] for reason in reasons]
    exit_code = next(code for code in EXIT_ORDER if any(code is meaning[1] for meaning in meanings))
    kinds = [kind for kind, code in meanings if code is exit_code]
    # Cold is a fact and unknown the lack of one: a run with both is cold.
    return (Kind.COLD if Kind.COLD in kinds else kinds[0]), exit_code


def hazard(code: HazardCode, message: str, hint: str = "") -> Reason:
    """A hazard as a reason, with its remedy as the hint."""
    return Reason(code=Code(code.value), message=message, hint=hint or REMEDIES[code])


def is_hazard(reason: Reason) -> bool:
    return reason.code.value in set(HazardCode)
