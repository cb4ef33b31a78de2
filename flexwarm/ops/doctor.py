"""Whether this machine, its torch and its store can do the work: one check after the other, each done and not guessed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flexwarm import environment, plan, store, toolchain
from flexwarm.canonical import StrEnum
from flexwarm.errors import ExitCode, FlexwarmError
from flexwarm.files import user_name
from flexwarm.known_faults import Applying
from flexwarm.ops import known_faults
from flexwarm.ops.prepare import check_devices
from flexwarm.ops.publish import SPACE_BYTES
from flexwarm.spec import Spec
from flexwarm.specfile import read_spec
from flexwarm.store import Store


class Status(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        message: what was found, in one sentence.
        hint: what to do, where that is not nothing.
        exit_code: what a failure alone would give.
    """

    name: str
    status: Status
    message: str
    hint: str = ""
    exit_code: ExitCode = ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All checks, and the known faults of what is installed."""

    checks: tuple[Check, ...]
    faults: tuple[Applying, ...]

    @property
    def exit_code(self) -> ExitCode:
        """That of the first check that failed: they go from what all else needs to what is needed last."""
        return next((check.exit_code for check in self.checks if check.status is Status.FAIL), ExitCode.OK)


def diagnose(environ: Mapping[str, str], *, root: Path | None, trust_shared: bool, spec: Path | None) -> Diagnosis:
    """Look at everything.

    Args:
        spec: the launch that is meant: its devices must be here, and a compiler where it needs one. Without one, of
            known faults it is only said for which launches they matter.

    Raises:
        UsageError, SpecError: the spec cannot be read.
    """
    wanted = read_spec(spec) if spec is not None else None
    where = root if root is not None else store.default_root(environ)
    checks = [
        _check("toolchain", _toolchain),
        _check("GPU", lambda: _gpu(environ, wanted)),
        _check("C++ compiler", lambda: _compiler(environ, wanted)),
        *_variables(environ),
        _check("store", lambda: _store(where, trust_shared)),
        _check("space", lambda: _space(where)),
        _check("bucket", lambda: _bucket(environ, where, trust_shared)),
    ]
    if wanted is None:
        return Diagnosis(checks=tuple(checks), faults=known_faults.applying([{}]))
    planned = plan.make_plan(wanted, environ=environ, bucket_path="", cores=os.cpu_count() or 1)
    faults = known_faults.of_plan(planned, environ)
    return Diagnosis(checks=tuple(checks), faults=faults)


def _check(name: str, look: Callable[[], Check]) -> Check:
    """The check; what it raises is its failure."""
    try:
        return look()
    except FlexwarmError as error:
        return Check(name=name, status=Status.FAIL, message=error.message, hint=error.hint, exit_code=error.exit_code)


def _toolchain() -> Check:
    install, triton = toolchain.require_supported(), toolchain.find_triton()
    found = f"torch {install.version}, {f'Triton {triton.version}' if triton else 'no Triton'}"
    return Check(name="toolchain", status=Status.OK, message=found)


def _gpu(environ: Mapping[str, str], wanted: Spec | None) -> Check:
    if wanted is not None:
        check_devices(wanted.roles, environ)
    found = toolchain.gpus()
    if not found:
        return Check(name="GPU", status=Status.OK, message="none here: specs for cpu, and --target for GPUs elsewhere")
    names = dict.fromkeys(gpu.name for gpu in found)
    return Check(name="GPU", status=Status.OK, message=f"{len(found)}: {', '.join(names)}")


def _compiler(environ: Mapping[str, str], wanted: Spec | None) -> Check:
    """A GPU needs none; so it is a failure only for a spec with a role on the CPU, or where nothing but a CPU is."""
    needed = any(role.uses_cpu for role in wanted.roles) if wanted is not None else not toolchain.gpus()
    try:
        # As build and verify start their workers.
        own = {**environ, **plan.SELF_CONTAINED}
        compiler = toolchain.require_cxx(own, building=True, headers=toolchain.python_headers())
    except FlexwarmError as error:
        if needed:
            raise
        return Check(name="C++ compiler", status=Status.WARN, message=error.message, hint=error.hint)
    return Check(name="C++ compiler", status=Status.OK, message=f"{compiler.version} ({compiler.path})")


def _variables(environ: Mapping[str, str]) -> list[Check]:
    off = [
        Check(
            name="variables",
            status=Status.FAIL,
            message=f"{name}={environ[name]} turns a cache off, so a launch compiles",
            hint=f"unset {name}",
            exit_code=ExitCode.NOT_WARM,
        )
        for name in environment.disabling(environ)
    ]
    moved = [
        Check(
            name="variables",
            status=Status.WARN,
            message=f"{name}={environ[name]} is set; a launch with the bucket's own variables does not use it",
            hint=f"unset {name}, unless another tool needs it",
        )
        for name in environment.moving(environ)
    ]
    return [*off, *moved] or [Check(name="variables", status=Status.OK, message="none turns a cache off or moves one")]


def _store(root: Path, trust_shared: bool) -> Check:
    opened = Store.open(root, create=False, trust_shared=trust_shared)
    there = _nearest(opened.root)
    user = user_name(os.geteuid())
    if not os.access(there, os.W_OK | os.X_OK):
        message = f"{there} cannot be written by {user}: what is built there can be used, and nothing be built"
        return Check(name="store", status=Status.WARN, message=message, hint="another store: --store DIR")
    made = "is there" if opened.root.exists() else "is made by the first build"
    return Check(name="store", status=Status.OK, message=f"{opened.root} {made}, and {user} can write it")


def _space(root: Path) -> Check:
    there = _nearest(root)
    room = os.statvfs(there)
    free = room.f_bavail * room.f_frsize
    inodes = f"{room.f_favail} inodes" if room.f_files else "inodes without a limit"
    message = f"{free // 1_000_000} MB and {inodes} free at {there}"
    if free < SPACE_BYTES or (room.f_files and not room.f_favail):
        hint = "flexwarm clean --max-size SIZE, or another store with --store DIR"
        return Check(name="space", status=Status.FAIL, message=message, hint=hint, exit_code=ExitCode.UNSUPPORTED)
    return Check(name="space", status=Status.OK, message=message)


def _bucket(environ: Mapping[str, str], root: Path, trust_shared: bool) -> Check:
    opened = Store.open(root, create=False, trust_shared=trust_shared)
    bucket = opened.bucket(toolchain.fingerprint(environ, store=None).digest)
    if bucket.exists() and bucket.manifest.exists():
        return Check(name="bucket", status=Status.OK, message=f"{bucket.digest} was built for this toolchain")
    message = f"nothing was built for this toolchain yet (bucket {bucket.digest})"
    return Check(name="bucket", status=Status.OK, message=message, hint="flexwarm build SPEC")


def _nearest(path: Path) -> Path:
    """The directory that is there, of a path that may not be."""
    return next(one for one in (path, *path.absolute().parents) if one.exists())
