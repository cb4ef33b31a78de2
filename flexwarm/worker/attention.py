"""Run one attention workload as training would: make the mask, compile at the call site, call, and check the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from flexwarm import canonical
from flexwarm.events import Phase, ShapeDone
from flexwarm.observer.recorder import Recorder
from flexwarm.worker import masks, reference
from flexwarm.workload import CallSite, Layout, Shape, Workload


class FlexModule(torch.nn.Module):  # type: ignore[misc] # torch is untyped for us
    """A module whose forward calls flex_attention, plainly or under activation checkpointing."""

    def __init__(self, call_site: CallSite) -> None:
        super().__init__()
        self.call_site = call_site

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

        attention = partial(flex_attention, **kwargs)
        if self.call_site is CallSite.MODULE:
            return attention(q, k, v)
        if self.call_site is CallSite.CHECKPOINT:
            return checkpoint(attention, q, k, v, use_reentrant=False)
        saved = [torch.ops.higher_order.flex_attention]
        contexts = partial(create_selective_checkpoint_contexts, saved)
        return checkpoint(attention, q, k, v, use_reentrant=False, context_fn=contexts)


def compiled_call(workload: Workload) -> Callable[..., Any]:
    """The compiled function that all shapes of the workload are called through, as one call site in training is."""
    options = workload.compile
    target = flex_attention if workload.call_site is CallSite.COMPILED else FlexModule(workload.call_site)
    compiled: Callable[..., Any] = torch.compile(
        target, dynamic=options.dynamic, mode=options.mode, fullgraph=options.fullgraph, options=_options(workload)
    )
    return compiled


def _options(workload: Workload) -> dict[str, Any] | None:
    return dict(workload.compile.options) if workload.compile.options else None


def run(workload: Workload, device_name: str, recorder: Recorder) -> None:
    """Every shape of the workload, in order; events say what happened, an exception is the job's failure."""
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # From what is compiled and not from the process or the name: every rank and every run has the same inputs and masks.
    seed = int(canonical.digest(workload.subject(), 8), 16)
    generator = torch.Generator().manual_seed(seed)
    compiled = compiled_call(workload)
    make_mask = torch.compile(create_block_mask) if workload.compile_mask else create_block_mask
    for number, shape in enumerate(workload.shapes):
        _run_shape(workload, number, shape, device, generator, compiled, make_mask, recorder)


def _run_shape(
    workload: Workload,
    number: int,
    shape: Shape,
    device: torch.device,
    generator: torch.Generator,
    compiled: Callable[..., Any],
    make_mask: Callable[..., BlockMask],
    recorder: Recorder,
) -> None:
    recorder.phase(Phase.TRACE)
    context = masks.Context(
        device=device,
        batch=shape.batch,
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        q_len=shape.q_len,
        kv_len=shape.kv_len,
        dtype=getattr(torch, shape.dtype.value),
        generator=generator,
    )
    mask_mod = masks.make(workload.mask, masks.MASKS, context)
    score_mod = masks.make(workload.score, masks.SCORES, context)
    block_mask = None
    if mask_mod is not None:
        block_mask = make_mask(mask_mod, None, None, shape.q_len, shape.kv_len, device=device)
    q, k, v = _inputs(workload, shape, context)
    arguments = {
        "score_mod": score_mod,
        "block_mask": block_mask,
        "scale": workload.scale,
        "enable_gqa": shape.q_heads != shape.kv_heads,
        "kernel_options": dict(workload.kernel_options) if workload.kernel_options else None,
    }
    seconds: list[float] = []
    output = None
    with torch.set_grad_enabled(workload.grad):
        for call in range(max(2, workload.calls)):
            if call == 1:
                recorder.phase(Phase.RUN)
            started = time.perf_counter()
            result = compiled(q, k, v, **arguments)
            if workload.grad:
                torch.autograd.grad(result.float().square().mean(), (q, k, v), retain_graph=False)
            _synchronize(device)
            seconds.append(time.perf_counter() - started)
            output = result.detach() if output is None else output
    assert output is not None
    recorder.phase(Phase.CHECK)
    gradients_finite = _gradients_finite(workload, compiled, q, k, v, arguments)
    rows = reference.sample_rows(shape.q_len, generator)
    expected = reference.attention_rows(q.detach(), k.detach(), v.detach(), rows, mask_mod, score_mod, workload.scale)
    agreement = reference.compare(output[:, :, rows.to(device)], expected, output.dtype)
    recorder.emit(
        ShapeDone(
            t=time.time(),
            job=recorder.job or "",
            shape=number,
            calls=len(seconds),
            first_seconds=seconds[0],
            repeat_seconds=min(seconds[1:]),
            error=agreement.error,
            tolerance=agreement.tolerance,
            agrees=agreement.agrees and gradients_finite,
        )
    )


def _inputs(workload: Workload, shape: Shape, context: masks.Context) -> tuple[torch.Tensor, ...]:
    """q, k and v in the workload's memory order, each in memory of its own: flex on CPU refuses views of one buffer."""

    def make(heads: int, length: int) -> torch.Tensor:
        size: tuple[int, ...] = (shape.batch, heads, length, shape.head_dim)
        if workload.layout is Layout.BSHD:
            size = (shape.batch, length, heads, shape.head_dim)
        made = torch.randn(size, generator=context.generator).to(device=context.device, dtype=context.dtype)
        made = made.transpose(1, 2) if workload.layout is Layout.BSHD else made
        return made.detach().requires_grad_(workload.grad)

    return make(shape.q_heads, shape.q_len), make(shape.kv_heads, shape.kv_len), make(shape.kv_heads, shape.kv_len)


def _gradients_finite(workload: Workload, compiled: Any, q: Any, k: Any, v: Any, arguments: dict[str, Any]) -> bool:
    if not workload.grad:
        return True
    gradients = torch.autograd.grad(compiled(q, k, v, **arguments).float().square().mean(), (q, k, v))
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
