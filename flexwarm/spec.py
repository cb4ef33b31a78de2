"""The user's file as values: workloads and topology. Says what is wrong with it before anything else happens."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from flexwarm import catalogue
from flexwarm.errors import SpecError
from flexwarm.tables import Table, kind_of, suggestion
from flexwarm.topology import Role, check_unique, read_role
from flexwarm.workload import (
    MODES,
    RECOMPILE_LIMIT,
    STEP_CALLS,
    CallSite,
    Compile,
    Dtype,
    Function,
    Layout,
    Shape,
    Workload,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1

#: Keys that describe an attention call: a step function makes its calls itself.
ATTENTION_KEYS = (
    *("mask_mod", "mask_args", "score_mod", "score_args", "batch", "q_heads", "kv_heads", "head_dim", "q_len", "kv_len"),
    *("mask_q_len", "mask_kv_len", "grad", "calls", "call_site", "layout", "compile", "compile_mask", "kernel_options"),
    "scale",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A spec file as a value; shapes fit, names exist, nothing was looked up outside of the file."""

    roles: tuple[Role, ...]
    workloads: tuple[Workload, ...]

    def workloads_of(self, role: Role) -> tuple[Workload, ...]:
        return tuple(w for w in self.workloads if not w.roles or role.name in w.roles)


def parse(text: str, source: str) -> Spec:
    """The spec in ``text``.

    Args:
        text: TOML, as in the reference page "The spec file".
        source: the file's name, for messages.

    Raises:
        SpecError: the first thing that is wrong, with table and key.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{source} is not TOML: {error}", "examples and every key: docs/reference/spec.md") from error
    top = Table(data, source)
    schema = top.integer("schema", 0, minimum=0)
    if schema != SCHEMA:
        problem = f"{schema} is not known" if top.has("schema") else "is missing"
        top.fail("schema", problem, f"write schema = {SCHEMA} as the first line")
    roles = tuple(read_role(item, f"role[{number}]") for number, item in enumerate(top.tables("role"), 1)) or (
        Role(name="default", env={}),
    )
    check_unique([role.name for role in roles], "role")
    workloads = tuple(_read_workload(item, f"workload[{number}]") for number, item in enumerate(top.tables("workload"), 1))
    top.finish()
    if not workloads:
        top.fail("workload", "there is none, so there is nothing to compile", "add a [[workload]] table")
    check_unique([workload.name for workload in workloads], "workload")
    spec = Spec(roles=roles, workloads=workloads)
    _check_roles(spec)
    return spec


def _check_roles(spec: Spec) -> None:
    names = [role.name for role in spec.roles]
    for workload in spec.workloads:
        for name in workload.roles:
            if name not in names:
                raise SpecError(
                    f"workload {workload.name!r}: roles: there is no role {name!r}",
                    suggestion(name, names) or f"roles of this spec: {', '.join(names)}",
                )
    for role in spec.roles:
        workloads = spec.workloads_of(role)
        if not workloads:
            raise SpecError(f"role {role.name!r}: no workload names it", f'add roles = ["{role.name}"] to a workload')
        for workload in workloads:
            if workload.grad and role.uses_cpu:
                raise SpecError(
                    f"workload {workload.name!r}: grad: flex_attention has no backward on the cpu, "
                    f"where role {role.name!r} runs",
                    'say grad = false, or give the role devices = "cuda:0"',
                )
            _check_variants(role, workload)


def _check_variants(role: Role, workload: Workload) -> None:
    """The lanes of a process share one compiled function, and each device is a variant of its own."""
    devices = max(len(role.process_devices(process)) for process in range(role.processes))
    variants = devices * len(workload.shapes)
    if workload.compile.dynamic is False and devices > 1 and variants > workload.recompile_limit:
        raise SpecError(
            f"workload {workload.name!r}: recompile_limit: {len(workload.shapes)} shapes on the {devices} devices of a process "
            f"of role {role.name!r} are {variants} variants with dynamic = false, but Dynamo compiles one function at most "
            f"{workload.recompile_limit} times and then runs dense attention",
            "use dynamic = true, fewer variants, or set recompile_limit as the training code does",
        )


def _read_workload(data: Any, label: str) -> Workload:
    table = Table(data, label)
    name = table.name()
    table.label = f"workload {name!r}"
    step = _read_step(table)
    if step is not None:
        return _read_step_workload(table, name, step)
    mask = _read_function(table, "mask_mod", "mask_args", catalogue.MASKS)
    score = _read_function(table, "score_mod", "score_args", catalogue.SCORES)
    shapes = _read_shapes(table)
    mask_lengths = tuple(table.optional_integer(key) for key in ("mask_q_len", "mask_kv_len"))
    compile_options = _read_compile(table.table("compile") or {}, f"workload {name!r}: compile")
    workload = Workload(
        name=name,
        roles=table.texts("roles") or (),
        mask=mask,
        score=score,
        shapes=shapes,
        grad=table.flag("grad", False),
        calls=table.integer("calls", 1),
        steps=table.integer("steps", 1),
        call_site=table.choice("call_site", CallSite, CallSite.COMPILED),
        layout=table.choice("layout", Layout, Layout.BHSD),
        compile=compile_options,
        compile_mask=table.flag("compile_mask", False),
        kernel_options=_scalars(table, "kernel_options"),
        recompile_limit=table.integer("recompile_limit", RECOMPILE_LIMIT),
        scale=table.optional_number("scale"),
    )
    table.finish()
    _check_shapes(table, workload, mask_lengths)
    _check_call(table, workload)
    return workload


def _read_function(table: Table, key: str, args_key: str, builtins: Mapping[str, catalogue.Builtin]) -> Function | None:
    name, args = table.text(key), table.table(args_key)
    if name is None:
        if args is not None:
            table.fail(args_key, f"there is no {key} that it could belong to")
        return None
    if ":" in name:
        _check_path(table, key, name)
        return Function(name=name, args=args)
    builtin = builtins.get(name)
    if builtin is None:
        known = f"builtins: {', '.join(builtins)}; anything else is written module:attribute"
        table.fail(key, f"{name!r} is not a builtin", suggestion(name, list(builtins)) or known)
    problem = catalogue.argument_problem(builtin, args or {})
    if problem:
        table.fail(args_key, f"{name}: {problem}")
    return Function(name=name, args=args or {})


def _check_path(table: Table, key: str, name: str) -> None:
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not attribute.isidentifier():
        table.fail(key, f"{name!r} is not of the form module:attribute")


def _read_step(table: Table) -> Function | None:
    name, args = table.text("step"), table.table("step_args")
    if name is None:
        if args is not None:
            table.fail("step_args", "there is no step that it could belong to")
        return None
    _check_path(table, "step", name)
    for key, value in (args or {}).items():
        _check_data(table, f"step_args.{key}", value)
    return Function(name=name, args=args or {})


def _check_data(table: Table, key: str, value: object) -> None:
    """Arguments go to the worker as JSON, and their text decides what they are compiled for."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_data(table, f"{key}.{name}", item)
    elif isinstance(value, list):
        for item in value:
            _check_data(table, key, item)
    elif not isinstance(value, (bool, int, float, str)):
        table.fail(key, f"expected a number, text, true or false, a list or a table of them, found {kind_of(value)}")
    elif isinstance(value, float) and not math.isfinite(value):
        table.fail(key, f"expected a finite number, found {value}")


def _read_step_workload(table: Table, name: str, step: Function) -> Workload:
    for key in ATTENTION_KEYS:
        if table.has(key):
            table.fail(
                key,
                f"describes an attention call, and this workload calls {step.name!r}, which makes its calls itself",
                f"leave {key} out, or put the call in a workload of its own",
            )
    workload = Workload(
        name=name,
        roles=table.texts("roles") or (),
        mask=None,
        score=None,
        shapes=(),
        grad=False,
        calls=1,
        steps=table.integer("steps", STEP_CALLS),
        call_site=CallSite.COMPILED,
        layout=Layout.BHSD,
        compile=Compile(),
        compile_mask=False,
        kernel_options=None,
        recompile_limit=table.integer("recompile_limit", RECOMPILE_LIMIT),
        scale=None,
        step=step,
        step_dtype=table.choice("dtype", Dtype, Dtype.BFLOAT16),
    )
    table.finish()
    return workload


def _read_shapes(table: Table) -> tuple[Shape, ...]:
    q_heads, head_dim, q_len = (table.require_integers(key) for key in ("q_heads", "head_dim", "q_len"))
    kv_heads, kv_len = table.integers("kv_heads"), table.integers("kv_len")
    batch = table.integers("batch") or (1,)
    names = table.texts("dtype") or (Dtype.BFLOAT16.value,)
    dtypes = []
    for text in names:
        try:
            dtypes.append(Dtype(text))
        except ValueError:
            table.fail("dtype", f"{text!r} is not one of {', '.join(d.value for d in Dtype)}")
    if len(set(dtypes)) != len(dtypes):
        table.fail("dtype", f"a value is there twice: {list(names)}")
    return tuple(
        Shape(batch=b, q_heads=hq, kv_heads=hk, head_dim=d, q_len=lq, kv_len=lk, dtype=t)
        for t, b, hq, d, lq in product(dtypes, batch, q_heads, head_dim, q_len)
        for hk in (kv_heads or (hq,))
        for lk in (kv_len or (lq,))
    )


def _read_compile(data: Mapping[str, Any], label: str) -> Compile:
    table = Table(data, label)
    value = Compile(
        dynamic=table.optional_flag("dynamic"),
        mode=table.text("mode"),
        fullgraph=table.flag("fullgraph", False),
        options=_scalars(table, "options"),
    )
    table.finish()
    if value.mode is not None and value.mode not in MODES:
        table.fail("mode", f"{value.mode!r} is not one of {', '.join(MODES)}", suggestion(value.mode, MODES))
    if value.mode and value.options:
        table.fail("options", "torch.compile takes mode or options, not both")
    return value


def _scalars(table: Table, key: str) -> dict[str, Any] | None:
    value = table.table(key)
    for name, item in (value or {}).items():
        if not isinstance(item, (bool, int, float, str)):
            table.fail(f"{key}.{name}", f"expected a number, text, true or false, found {kind_of(item)}")
    return value


def _check_shapes(table: Table, workload: Workload, mask_lengths: tuple[int | None, ...]) -> None:
    for shape in workload.shapes:
        if shape.q_heads % shape.kv_heads:
            table.fail(
                "kv_heads",
                f"q_heads = {shape.q_heads} cannot be shared by kv_heads = {shape.kv_heads}",
                "grouped-query attention needs q_heads to be a multiple of kv_heads",
            )
        for made, key, called in zip(mask_lengths, ("q_len", "kv_len"), (shape.q_len, shape.kv_len), strict=True):
            if made is not None and made != called:
                table.fail(
                    f"mask_{key}",
                    f"the mask is built for {made}, the call has {key} = {called}",
                    "build the mask for the lengths of the call",
                )
        if workload.mask and workload.mask.is_builtin:
            check = catalogue.MASKS[workload.mask.name].check
            problem = check(shape.q_len, shape.kv_len, workload.mask.args or {}) if check else None
            if problem:
                table.fail("mask_args", f"{workload.mask.name}: {problem}")


def _check_call(table: Table, workload: Workload) -> None:
    variants = len(workload.shapes)
    if workload.compile.dynamic is False and variants > workload.recompile_limit:
        table.fail(
            "q_len" if len({shape.q_len for shape in workload.shapes}) > 1 else "compile.dynamic",
            f"{variants} variants with dynamic = false, but Dynamo compiles one function at most "
            f"{workload.recompile_limit} times and then runs dense attention",
            "use dynamic = true, fewer variants, or set recompile_limit as the training code does",
        )
    if workload.call_site in (CallSite.CHECKPOINT, CallSite.SELECTIVE_CHECKPOINT) and not workload.grad:
        table.fail("call_site", f"{workload.call_site.value!r} recomputes in the backward, so it needs grad = true")
