"""Dense attention in float32 on sampled query rows: what the compiled kernel must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

ROWS = 16

#: (absolute, relative) tolerance of one output element; inputs are standard normal.
TOLERANCES = {
    torch.float32: (2e-3, 2e-3),  # leaves room for TF32 where the device uses it
    torch.float16: (5e-3, 5e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The largest absolute difference over the sampled rows, or None where one side is not finite."""

    error: float | None
    tolerance: float
    agrees: bool


def sample_rows(q_len: int, generator: torch.Generator) -> torch.Tensor:
    """Up to ``ROWS`` distinct query indices, sorted; the first and the last are among them, where masks go wrong."""
    if q_len <= ROWS:
        return torch.arange(q_len)
    inner = torch.randperm(q_len - 2, generator=generator)[: ROWS - 2] + 1
    return torch.cat([torch.tensor([0, q_len - 1]), inner]).sort().values


def attention_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: torch.Tensor,
    mask_mod: Callable[..., Any] | None,
    score_mod: Callable[..., Any] | None,
    scale: float | None,
) -> torch.Tensor:
    """Dense attention for ``rows`` of q.

    Args:
        q: (batch, q_heads, q_len, head_dim); k, v: (batch, kv_heads, kv_len, head_dim).
        rows: query indices, on the CPU.

    Returns:
        float32 (batch, q_heads, len(rows), head_dim); a row whose keys are all masked is zero, as flex defines it.
    """
    rows = rows.to(q.device)  # q, k and v are detached, so no graph is kept
    group = q.shape[1] // k.shape[1]
    picked = q[:, :, rows].float()
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    scores = picked @ keys.transpose(-1, -2) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    index = [torch.arange(n, device=q.device) for n in (q.shape[0], q.shape[1])]
    grid = (*index, rows, torch.arange(k.shape[2], device=q.device))
    if score_mod is not None:
        scores = _over_grid(score_mod, leading=True)(scores, *grid).float()
    if mask_mod is not None:
        visible = _over_grid(mask_mod, leading=False)(*grid)
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return torch.nan_to_num(weights, nan=0.0) @ values if mask_mod is not None else weights @ values


def _over_grid(function: Callable[..., Any], *, leading: bool) -> Callable[..., Any]:
    """``function(b, h, q, kv)`` over the whole grid, with the same nesting of vmap as flex_attention's own."""
    prefix = (0,) if leading else ()
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=(*prefix, *axes))
    return function


def compare(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> Agreement:
    """Elementwise comparison of ``actual`` (dtype) with ``expected`` (float32)."""
    absolute, relative = TOLERANCES[dtype]
    difference = (actual.float() - expected).abs()
    largest = float(difference.max())
    agrees = bool((difference <= absolute + relative * expected.abs()).all())
    return Agreement(error=largest if math.isfinite(largest) else None, tolerance=absolute, agrees=agrees)
