"""Builtin mask and score functions, as training code writes them, and the loading of the user's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from flexwarm.workload import Function

#: (batch, head, query index, key index) -> bool tensor
MaskMod = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a mask or score factory is given, the user's too.

    Attributes:
        device: where captured tensors belong.
        batch, q_heads, kv_heads, q_len, kv_len: of the call; lengths in tokens.
        dtype: of q, k and v.
        generator: a seeded CPU generator; draw from it, so that every rank and every run builds the same mask.
    """

    device: torch.device
    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    dtype: torch.dtype
    generator: torch.Generator


def causal(context: Context) -> MaskMod:
    """A query sees itself and what is before it."""

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    return mask_mod


def sliding_window(context: Context, *, window: int) -> MaskMod:
    """Causal, and at most ``window`` keys back."""

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (q - kv < window)

    return mask_mod


def prefix_lm(context: Context, *, prefix: int) -> MaskMod:
    """Causal, and every query sees the first ``prefix`` keys."""

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (kv < prefix) | (q >= kv)

    return mask_mod


def document(context: Context, *, lengths: list[int] | None = None, documents: int | None = None) -> MaskMod:
    """Causal inside each packed document; with ``documents`` the boundaries are drawn at random, as a loader packs them."""
    if lengths is None:
        assert documents is not None  # the spec has one of the two
        cuts = torch.randperm(context.q_len - 1, generator=context.generator)[: documents - 1].sort().values + 1
        edges = [0, *cuts.tolist(), context.q_len]
        lengths = [b - a for a, b in pairwise(edges)]
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(context.device)

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (ids[q] == ids[kv]) & (q >= kv)

    return mask_mod


def anchor_block(context: Context, *, block: int = 16, window: int | None = None) -> MaskMod:
    """Block diffusion over sampled anchors.

    Queries are blocks of ``block`` tokens. Keys are the context, then the blocks themselves: ``kv_len - q_len`` context
    tokens, or none of their own where both lengths are equal; then the sequence is its own context. A query sees the
    context before its block's anchor, at most ``window`` tokens of it, and its own block.
    """
    offset = context.kv_len - context.q_len
    blocks = -(-context.q_len // block)
    anchors = torch.randint(1, (offset or context.q_len) + 1, (blocks,), generator=context.generator)
    anchors = anchors.sort().values.to(context.device)
    context_len = offset or context.q_len
    back = context_len if window is None else window

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        anchor = anchors[q // block]
        before = (kv < context_len) & (kv < anchor) & (kv >= anchor - back)
        own = (kv >= offset) & ((kv - offset) // block == q // block)
        return before | own

    return mask_mod


def alibi(context: Context) -> MaskMod:
    """A linear bias with distance; slopes of 2 ** (-8 * (head + 1) / heads)."""
    heads = torch.arange(1, context.q_heads + 1, dtype=torch.float32, device=context.device)
    slopes = torch.exp2(-8.0 * heads / context.q_heads)

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + slopes[h] * (kv - q)

    return score_mod


def soft_cap(context: Context, *, cap: float) -> MaskMod:
    """``cap * tanh(score / cap)``."""

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return cap * torch.tanh(score / cap)

    return score_mod


def relative_bias(context: Context, *, max_distance: int = 128) -> MaskMod:
    """A captured table of biases by head and clipped distance."""
    size = (context.q_heads, 2 * max_distance + 1)
    table = (torch.randn(size, generator=context.generator) / math.sqrt(max_distance)).to(context.device)

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        distance = torch.clamp(q - kv, -max_distance, max_distance) + max_distance
        return score + table[h, distance]

    return score_mod


MASKS: Mapping[str, Callable[..., MaskMod]] = {
    f.__name__: f for f in (causal, sliding_window, prefix_lm, document, anchor_block)
}
SCORES: Mapping[str, Callable[..., MaskMod]] = {f.__name__: f for f in (alibi, soft_cap, relative_bias)}


def make(function: Function | None, builtins: Mapping[str, Callable[..., MaskMod]], context: Context) -> MaskMod | None:
    """The function that a workload names, made for one call's context.

    Raises:
        ImportError, AttributeError: the user's module does not load or has no such attribute.
        TypeError: what it gave is not a function; None would be no mask at all, and nobody would see it.
    """
    if function is None:
        return None
    if function.is_builtin:
        return builtins[function.name](context, **(function.args or {}))
    value = getattr(import_module(function.module), function.attribute)
    made: MaskMod = value if function.args is None else _from_factory(value, context, function.args)
    if not callable(made):
        what = "returned" if function.args is not None else "is"
        raise TypeError(f"{function.name} {what} {made!r}, which is no function of (b, h, q, kv)")
    return made


def _from_factory(factory: Callable[..., MaskMod], context: Context, args: Mapping[str, Any]) -> MaskMod:
    """A factory that has no place for the context is called without: it is the training code's own, made for its callers."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # written in C
        return factory(context, **args)
    # Where neither fits, the call says what is wrong.
    alone = not _fits(signature, context, **args) and _fits(signature, **args)
    return factory(**args) if alone else factory(context, **args)


def _fits(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
