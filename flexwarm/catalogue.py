"""The builtin mask and score functions: their names, their arguments, and what shapes they fit. Data without torch.

The functions themselves are in ``flexwarm.worker.masks``; a test holds the two lists together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: (q_len, kv_len, arguments) -> what is wrong, or None.
Check = Callable[[int, int, Mapping[str, Any]], "str | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a builtin: its type and whether it may be left out."""

    kind: type
    required: bool = False
    minimum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """One builtin function."""

    summary: str
    arguments: Mapping[str, Argument]
    check: Check | None = None


def _prefix_fits(q_len: int, kv_len: int, args: Mapping[str, Any]) -> str | None:
    if args["prefix"] > kv_len:
        return f"prefix = {args['prefix']} is longer than kv_len = {kv_len}"
    return None


def _documents_fit(q_len: int, kv_len: int, args: Mapping[str, Any]) -> str | None:
    if ("lengths" in args) == ("documents" in args):
        return "give either lengths (a list) or documents (how many)"
    if q_len != kv_len:
        return f"a document mask needs q_len = kv_len, found {q_len} and {kv_len}"
    if "documents" in args:
        return None if args["documents"] <= q_len else f"documents = {args['documents']} is more than q_len = {q_len}"
    lengths = args["lengths"]
    if not lengths or not all(isinstance(n, int) and n > 0 for n in lengths):
        return f"lengths must be whole numbers of at least 1, found {lengths}"
    if sum(lengths) != q_len:
        return f"lengths add up to {sum(lengths)}, q_len is {q_len}"
    return None


def _anchors_fit(q_len: int, kv_len: int, args: Mapping[str, Any]) -> str | None:
    if kv_len < q_len:
        return f"anchor_block needs kv_len (context and blocks) of at least q_len, found {kv_len} and {q_len}"
    return None


MASKS: Mapping[str, Builtin] = {
    "causal": Builtin(summary="a query sees itself and what is before it", arguments={}),
    "sliding_window": Builtin(
        summary="causal, and at most `window` keys back",
        arguments={"window": Argument(kind=int, required=True, minimum=1)},
    ),
    "prefix_lm": Builtin(
        summary="causal, and every query sees the first `prefix` keys",
        arguments={"prefix": Argument(kind=int, required=True, minimum=1)},
        check=_prefix_fits,
    ),
    "document": Builtin(
        summary="causal inside each of several packed documents",
        arguments={"lengths": Argument(kind=list), "documents": Argument(kind=int, minimum=1)},
        check=_documents_fit,
    ),
    "anchor_block": Builtin(
        summary="block diffusion: each query block sees the context before its sampled anchor, and its own block",
        arguments={"block": Argument(kind=int, minimum=1), "window": Argument(kind=int, minimum=1)},
        check=_anchors_fit,
    ),
}

SCORES: Mapping[str, Builtin] = {
    "alibi": Builtin(summary="a linear bias with distance, a slope for each head", arguments={}),
    "soft_cap": Builtin(
        summary="cap * tanh(score / cap)", arguments={"cap": Argument(kind=float, required=True, minimum=1e-6)}
    ),
    "relative_bias": Builtin(
        summary="a captured table of biases by head and clipped distance",
        arguments={"max_distance": Argument(kind=int, minimum=1)},
    ),
}


def argument_problem(builtin: Builtin, args: Mapping[str, Any]) -> str | None:
    """What is wrong with a builtin's arguments, apart from any shape; None if nothing is."""
    for name, value in args.items():
        wanted = builtin.arguments.get(name)
        if wanted is None:
            known = ", ".join(builtin.arguments) or "none"
            return f"unknown argument {name!r}; its arguments: {known}"
        kinds = (int, float) if wanted.kind is float else (wanted.kind,)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return f"{name} must be {wanted.kind.__name__}, found {value!r}"
        if wanted.minimum is not None and isinstance(value, (int, float)) and value < wanted.minimum:
            return f"{name} must be at least {wanted.minimum}, found {value}"
    for name, wanted in builtin.arguments.items():
        if wanted.required and name not in args:
            return f"{name} is missing"
    return None
