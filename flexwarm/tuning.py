"""What only a GPU can choose, by timing: what is left open where there was none, and what one has timed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from flexwarm.events import Open, Read, Tuned, Untuned
from flexwarm.reasons import Code, Reason

#: Said of a launch that compiles nothing, and has kernels to tune.
AT_EACH_LAUNCH = "each rank of a launch tunes for itself, until flexwarm build on the GPU keeps what is chosen"


def untuned_reasons(untuned: Sequence[Untuned]) -> list[Reason]:
    """What was read from a GPU that is not there, to be part of what was compiled."""
    return [
        Reason(code=Code.UNTUNED, message=f"a GPU that is not there was asked for {what}", hint="build this on the GPU")
        for what in sorted({event.kernel for event in untuned if event.open is Open.VALUE})
    ]


def left_to_the_gpu(untuned: Sequence[Untuned]) -> bool:
    """Whether a graph was compiled and not stored, because its code is chosen by time."""
    return any(event.open is Open.GRAPH for event in untuned)


def notes(untuned: Sequence[Untuned], tuned: Sequence[Tuned], reads: Sequence[tuple[str, Read]]) -> list[str]:
    """What a GPU that is not there leaves open; and what a GPU has timed.

    Args:
        reads: whose, such as ``rank 0``; and from where.
    """
    told = []
    for left, what in _LEFT_OPEN.items():
        names = sorted({event.kernel for event in untuned if event.open is left})
        if names:
            told.append(f"untuned: {and_more(names)}: {what}")
    if reads:
        places = list(dict.fromkeys(read.place for _, read in reads))
        what = "what depends on them may be otherwise on the GPU"
        told.append(f"{reads[0][0]} reads values from a GPU that is not there, at {and_more(places)}: {what}")
    for kept, what in ((True, ""), (False, f", and nothing of it is kept: {AT_EACH_LAUNCH}")):
        events = [event for event in tuned if event.kept is kept]
        kernels, seconds = sorted({event.kernel for event in events}), sum(event.seconds for event in events)
        if kernels:
            counted = f"{len(kernels)} {'kernel was' if len(kernels) == 1 else 'kernels were'}"
            told.append(f"{counted} tuned, in {seconds:.2g} s{what}")
    return told


_LEFT_OPEN = {
    Open.VARIANT: "flexwarm build on the GPU times the variants, which are all compiled",
    Open.GRAPH: "flexwarm build on the GPU chooses, of kernels that are compiled, and makes the graph",
}


def and_more(names: Sequence[str]) -> str:
    """The first of some names, and how many others there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
