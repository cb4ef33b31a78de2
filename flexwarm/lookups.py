"""What the questions to the caches say, and the compilers that started: each miss, bypass and compile as a reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flexwarm.bypasses import advice
from flexwarm.events import Answer, Compiled, Layer, Lookup, Recompiled
from flexwarm.reasons import Code, Reason
from flexwarm.record import JobRecord

#: The reason of a miss, or of a bypass, of each layer, and the layer's name for people.
MISSES = {Layer.AOT: Code.AOT_MISS, Layer.FX: Code.FX_MISS, Layer.TRITON: Code.TRITON_MISS}
BYPASSES = {Layer.AOT: Code.AOT_BYPASS, Layer.FX: Code.FX_BYPASS}
#: Characters that are quoted of a command line.
_QUOTED = 120
LAYER_NAMES = {Layer.AOT: "AOTAutograd", Layer.FX: "FX graph", Layer.TRITON: "Triton"}


def layer_reasons(record: JobRecord) -> list[Reason]:
    reasons = []
    for lookup in record.lookups:
        if lookup.answer is Answer.MISS:
            reasons.append(Reason(code=MISSES[lookup.layer], message=missed(lookup)))
        elif lookup.answer is Answer.BYPASS:
            reasons.append(bypassed(lookup))
    return reasons


def bypassed(lookup: Lookup, where: str = "") -> Reason:
    """That a cache was not asked, with torch's reason and what to do; ``where``: what the sentence begins with."""
    why = " ".join(lookup.reason.split())
    message = f"{where}{LAYER_NAMES[lookup.layer]} cache was bypassed: {why}"
    return Reason(code=BYPASSES[lookup.layer], message=message, hint=advice(lookup.reason))


def missed(lookup: Lookup) -> str:
    """That a key was missed, in a sentence: an entry of another size is no entry for this one."""
    which = f"{LAYER_NAMES[lookup.layer]} key {short(lookup.key)}"
    if lookup.reason == _GUARD_MISS:
        return f"{which} is in the bucket for other sizes alone: what was assumed of them does not hold"
    detail = f" ({lookup.reason})" if lookup.reason else ""
    return f"{which} is not in the bucket{detail}"


def recompiled_reasons(recompiled: Sequence[Recompiled]) -> list[Reason]:
    """Why functions were compiled again whose graphs then missed: each once, the first three."""
    reasons = []
    for event in recompiled:
        why = "no variant of it fits"
        if event.guards:
            variant, colon, guard = event.guards[0].partition(": ")
            known = bool(colon) and _VARIANT.fullmatch(variant) is not None
            which = f"variant {variant}: {guard}" if known else f"an earlier variant: {event.guards[0]}"
            why = f"this call fails a guard of {which}"
        message = f"Dynamo compiles {event.function} ({event.file}:{event.line}) again, for {why}"
        reasons.append(Reason(code=Code.RECOMPILED, message=message))
    return list(dict.fromkeys(reasons))[:_RECOMPILES]


#: Dynamo's number of a variant of a function.
_VARIANT = re.compile(r"\d+/\d+(_\d+)?")
#: Recompiles that are told of a job.
_RECOMPILES = 3

#: What torch says where an entry of dynamic sizes was found, and none that fits.
_GUARD_MISS = "guard_miss"


def compiled_reason(event: Compiled, where: str = "") -> Reason:
    """A compiler or an autotuner that started; ``where``: what the sentence begins with."""
    if event.what != "autotune":
        message = f"{where}{event.what} compiler started: {cut(event.detail)}"
        return Reason(code=Code.COMPILED, message=message)
    hint = "flexwarm build keeps what is chosen; --allow-tuning lets each launch tune"
    if "@triton.autotune" in event.detail:
        hint = "TRITON_CACHE_AUTOTUNING=1 lets Triton keep what it tunes"
    return Reason(code=Code.COMPILED, message=f"{where}kernels are tuned: {cut(event.detail)}", hint=hint)


def cut(text: str) -> str:
    """What is quoted of a compiler's command line."""
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 1]}…"


def short(key: str) -> str:
    return key[:12] + "…" if len(key) > 12 else key
