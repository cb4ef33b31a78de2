"""Run one attention workload as training would: make the mask, compile at the call site, call, and check the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from flexwarm import canonical
from flexwarm.events import Phase, ShapeDone
from flexwarm.observer.guard import GuardWatch
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


def compiled_call(workload: Workload, **changes: Any) -> Callable[..., Any]:
    """The compiled function that all shapes of the workload are called through, as one call site in training is.

    ``changes`` go over the options of the workload's compile.
    """
    options = replace(workload.compile, **changes)
    target = flex_attention if workload.call_site is CallSite.COMPILED else FlexModule(workload.call_site)
    compiled: Callable[..., Any] = torch.compile(
        target, dynamic=options.dynamic, mode=options.mode, fullgraph=options.fullgraph, options=_options(workload)
    )
    return compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What one step calls with: q, k and v, keyword arguments, and the functions that the reference needs."""

    inputs: tuple[torch.Tensor, ...]
    keywords: dict[str, Any]
    mask_mod: masks.MaskMod | None
    score_mod: masks.MaskMod | None


def _options(workload: Workload) -> dict[str, Any] | None:
    return dict(workload.compile.options) if workload.compile.options else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The functions that every shape, step and lane of a workload calls, as one call site in training is."""

    compiled: Callable[..., Any]
    make_mask: Callable[..., BlockMask]


def share(workload: Workload) -> Shared:
    """Wrap what the workload calls; nothing is compiled yet."""
    make_mask = torch.compile(create_block_mask) if workload.compile_mask else create_block_mask
    return Shared(compiled=compiled_call(workload), make_mask=make_mask)


def load_functions(workload: Workload) -> None:
    """Import the modules of the user's own functions: in the main thread, as training does, before lanes start."""
    for _, function in workload.functions:
        if not function.is_builtin:
            import_module(function.module)


class Runner:
    """One workload on one device, called as training does; events say what happened, an exception is the job's failure."""

    def __init__(
        self,
        workload: Workload,
        device_name: str,
        shared: Shared,
        recorder: Recorder,
        guard: GuardWatch,
        *,
        computes: bool = True,
    ) -> None:
        self._workload, self._shared, self._recorder, self._guard = workload, shared, recorder, guard
        self._computes = computes
        self._device = torch.device(device_name)
        # From what is compiled and not from the process or the name: every rank and run has the same inputs and masks.
        self._generator = torch.Generator().manual_seed(int(canonical.digest(workload.subject(), 8), 16))

    def enter(self) -> None:
        """Make the device current in the calling thread."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def arguments(self, shape: Shape, **changes: Any) -> Arguments:
        """Fresh masks, scores and inputs for one step; ``changes`` go over the keyword arguments of the call."""
        workload = self._workload
        context = masks.Context(
            device=self._device,
            batch=shape.batch,
            q_heads=shape.q_heads,
            kv_heads=shape.kv_heads,
            q_len=shape.q_len,
            kv_len=shape.kv_len,
            dtype=getattr(torch, shape.dtype.value),
            generator=self._generator,
        )
        mask_mod = masks.make(workload.mask, masks.MASKS, context)
        score_mod = masks.make(workload.score, masks.SCORES, context)
        block_mask = None
        if mask_mod is not None:
            block_mask = self._guarded(
                lambda: self._shared.make_mask(mask_mod, None, None, shape.q_len, shape.kv_len, device=self._device)
            )
        keywords = {
            "score_mod": score_mod,
            "block_mask": block_mask,
            "scale": workload.scale,
            "enable_gqa": shape.q_heads != shape.kv_heads,
            "kernel_options": dict(workload.kernel_options) if workload.kernel_options else None,
            **changes,
        }
        return Arguments(inputs=_inputs(workload, shape, context), keywords=keywords, mask_mod=mask_mod, score_mod=score_mod)

    def call(self, arguments: Arguments, compiled: Callable[..., Any] | None = None) -> torch.Tensor:
        """One forward of the compiled function, and its backward where the workload has one."""
        result = self.forward(arguments, compiled)
        if self._workload.grad:
            self.backward(arguments, result)
        _synchronize(self._device)
        return result

    def forward(self, arguments: Arguments, compiled: Callable[..., Any] | None = None) -> torch.Tensor:
        function = compiled or self._shared.compiled
        with torch.set_grad_enabled(self._workload.grad):
            result: torch.Tensor = self._guarded(lambda: function(*arguments.inputs, **arguments.keywords))
        return result

    def backward(self, arguments: Arguments, result: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gradients of a scalar of the result with respect to q, k and v."""
        gradients: tuple[torch.Tensor, ...] = self._guarded(
            lambda: torch.autograd.grad(result.float().square().mean(), arguments.inputs, retain_graph=False)
        )
        return gradients

    def _guarded(self, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return call()
        except Exception as error:
            self._guard.blame(error, began)
            raise

    def shape(self, number: int, shape: Shape) -> None:
        """All steps of one shape, each held against dense attention."""
        self._recorder.phase(Phase.TRACE)
        seat = self._recorder.own_seat
        assert seat is not None, "a shape is run by a job"
        checks_before = seat.checks
        seconds: list[float] = []
        agreements = []
        finite = True
        for step in range(self._workload.steps):
            arguments = self.arguments(shape)
            output = None
            for call in range(max(2, self._workload.calls)):
                if step == 0 and call == 1:
                    self._recorder.phase(Phase.RUN)
                with nullcontext() if seconds else self._recorder.first_call():
                    started = time.perf_counter()
                    result = self.call(arguments)
                    seconds.append(time.perf_counter() - started)
                output = result.detach() if output is None else output
            assert output is not None
            last = step == self._workload.steps - 1
            if last:
                self._recorder.phase(Phase.CHECK)
                finite = self._gradients_finite(arguments)
            if self._computes:
                agreements.append(self._compare(shape, arguments, output))
        worst = max(agreements, key=lambda agreement: (not agreement.agrees, agreement.error or 0.0), default=None)
        self._recorder.emit(
            ShapeDone(
                t=time.time(),
                job=seat.job,
                shape=number,
                calls=len(seconds),
                checks=seat.checks - checks_before,
                first_seconds=seconds[0],
                repeat_seconds=min(seconds[1:]),
                error=worst.error if worst else None,
                tolerance=worst.tolerance if worst else 0.0,
                agrees=all(agreement.agrees for agreement in agreements) and finite if worst else None,
            )
        )

    def _compare(self, shape: Shape, arguments: Arguments, output: torch.Tensor) -> reference.Agreement:
        rows = reference.sample_rows(shape.q_len, self._generator)
        q, k, v = (tensor.detach() for tensor in arguments.inputs)
        expected = reference.attention_rows(q, k, v, rows, arguments.mask_mod, arguments.score_mod, self._workload.scale)
        return reference.compare(output[:, :, rows.to(self._device)], expected, output.dtype)

    def _gradients_finite(self, arguments: Arguments) -> bool:
        if not self._workload.grad:
            return True
        gradients = self.backward(arguments, self.forward(arguments))
        return not self._computes or all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


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


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
