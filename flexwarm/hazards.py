"""Conditions in which a compiled call would raise, hang, crash or run dense: the closed list, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexwarm.canonical import StrEnum

#: Hazards of one kind that one job, or one thread of a program, says; what is beyond is the same again.
SAID_AT_MOST: Final = 50


class HazardCode(StrEnum):
    """A hazard. Its text is a reason's code as well."""

    FX_RACE = "fx-race"
    """Another thread traced with FX, and torch took this thread's compiled call for a part of that trace."""
    FX_NESTED = "fx-nested"
    """The calling thread itself was tracing with FX."""
    FX_LEAK = "fx-leak"
    """The flag said that FX traces, and no thread did."""
    FX_SILENCED = "fx-silenced"
    """``error_on_nested_fx_trace`` is off: where torch would raise it runs the function uncompiled."""
    DENSE_FALLBACK = "dense-fallback"
    """The implementation that materialises the score matrix ran."""
    COMPILE_DEADLOCK = "compile-deadlock"
    """The thread that holds torch's compile lock waits for one that waits for the lock."""
    CRASH = "crash"
    """The process died of a signal while lanes compiled beside each other."""
    LANE_CONFIG_DRIFT = "lane-config-drift"
    """A lane, or an autograd thread, does not see the settings that the main thread made."""
    RECOMPILE_LIMIT = "recompile-limit"
    """Dynamo gave up compiling a function and runs it as it is written."""
    FOREIGN_PATCH = "foreign-patch"
    """A thread compiled, or called a module, while another thread's trace had patched torch's classes."""


#: What to do, as the hint of the reason.
REMEDIES: Final[Mapping[HazardCode, str]] = {
    HazardCode.FX_RACE: "flexwarm.guard.install() in the training code; flexwarm verify --guard fix proves that it is enough",
    HazardCode.FX_NESTED: "call the compiled function outside of make_fx and symbolic_trace",
    HazardCode.FX_LEAK: "find the trace that was cut off (the log has the stacks); flexwarm.guard.install() repairs the flag",
    HazardCode.FX_SILENCED: "leave torch._dynamo.config.error_on_nested_fx_trace on, and use flexwarm.guard.install()",
    HazardCode.DENSE_FALLBACK: "call flex_attention through torch.compile and keep within recompile_limit",
    HazardCode.COMPILE_DEADLOCK: "build first, so that no lane compiles at run time; "
    'or flexwarm.guard.install(), with backward="caller" where that is not enough; flexwarm verify --guard fix proves it',
    HazardCode.CRASH: "build first, so that no lane compiles at run time; or flexwarm.guard.install()",
    HazardCode.LANE_CONFIG_DRIFT: "set it in each thread, or start threads with contextvars.copy_context().run "
    '(context = "copy" in the role says so); for autograd\'s threads flexwarm.guard.install(backward="caller")',
    HazardCode.RECOMPILE_LIMIT: "use dynamic = true, fewer variants, or raise recompile_limit as the training code may",
    HazardCode.FOREIGN_PATCH: "flexwarm.guard.install() in the training code; flexwarm verify --guard fix proves it",
}
