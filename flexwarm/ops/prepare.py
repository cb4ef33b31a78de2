"""What build and verify do alike before any process starts: read the spec, know the machine, find the bucket, plan."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexwarm import __version__, environment, modules, store, toolchain
from flexwarm.errors import StoreError, UnsupportedError, UsageError
from flexwarm.fingerprint import Fingerprint
from flexwarm.modules import Source
from flexwarm.plan import SELF_CONTAINED, Job, Plan, bucket_environment, make_plan
from flexwarm.request import Conduct
from flexwarm.spec import Spec
from flexwarm.specfile import read_spec
from flexwarm.store import Bucket, Store
from flexwarm.target import BUILT_ON, NOTHING, STANDS_IN, Target
from flexwarm.toolchain import nullgpu
from flexwarm.topology import Role

#: Where this flexwarm is installed.
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is known of this machine, and which bucket is its own; or of the one that has the target's GPUs."""

    fingerprint: Fingerprint
    store: Store
    bucket: Bucket
    target: Target | None = None

    @property
    def components(self) -> dict[str, str]:
        """What each child must see as this process does: also which GPUs are not really there."""
        explain = self.fingerprint.explain.items()
        # What the target's machine has otherwise, a child here cannot see.
        here = {name.removeprefix(BUILT_ON): value for name, value in explain if name.startswith(BUILT_ON)}
        stands_in = self.target.identity if self.target is not None else NOTHING
        return {**self.fingerprint.select, **here, STANDS_IN: stands_in}

    @property
    def has_other_processor(self) -> bool:
        """The target's machine has another processor than this one, for which C++ is compiled here."""
        return self.target is not None and any(name.startswith(f"{BUILT_ON}cpu.") for name in self.fingerprint.explain)

    def child_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What a child is given beside the bucket's own variables: a target's GPUs.

        Raises:
            UnsupportedError, StoreError: as :func:`flexwarm.toolchain.nullgpu.environment`.
        """
        return nullgpu.environment(self.target, self.store, environ) if self.target is not None else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Machine):
    """Everything that is known before the first worker."""

    spec: Spec
    sources: Mapping[str, Source]
    plan: Plan

    def sources_of(self, job: Job) -> dict[str, Source]:
        """Module -> its source, of the user's functions that the job calls."""
        names = [function.module for _, function in job.workload.functions if not function.is_builtin]
        return {name: self.sources[name] for name in names}


def prepare(
    path: Path,
    *,
    environ: Mapping[str, str],
    root: Path | None,
    trust_shared: bool,
    building: bool,
    create: bool,
    target: Target | None = None,
) -> Prepared:
    """Read and check everything that can be checked without torch.

    Raises:
        SpecError, UsageError: the file is not there or is wrong.
        UnsupportedError: this machine, Python or torch cannot do it.
        StoreError: the store cannot be used.
    """
    toolchain.require_supported()
    found = read_spec(path)
    sources = modules.check_functions(found, modules.search_path(environ))
    check_devices(found.roles, environ, target)
    if any(role.uses_cpu for role in found.roles):
        toolchain.require_cxx({**environ, **SELF_CONTAINED}, building=building, headers=toolchain.python_headers())
    uses_cpu = any(role.uses_cpu for role in found.roles)
    machine = find_machine(environ, root=root, trust_shared=trust_shared, create=create, uses_cpu=uses_cpu, target=target)
    if uses_cpu and machine.has_other_processor:
        raise UnsupportedError(
            "a role on the CPU would be compiled for this processor, and the target's machine has another",
            "build roles on the CPU on that machine",
        )
    cores = len(os.sched_getaffinity(0))
    plan = make_plan(found, environ=environ, bucket_path=str(machine.bucket.path), cores=cores)
    return Prepared(
        spec=found,
        sources=sources,
        fingerprint=machine.fingerprint,
        store=machine.store,
        bucket=machine.bucket,
        target=target,
        plan=plan,
    )


def find_machine(
    environ: Mapping[str, str],
    *,
    root: Path | None,
    trust_shared: bool,
    create: bool,
    uses_cpu: bool,
    target: Target | None = None,
) -> Machine:
    """This machine's fingerprint and bucket.

    Args:
        create: make what is missing of the store.
        uses_cpu: C++ is compiled for the processor.

    Raises:
        UnsupportedError: no torch that flexwarm knows.
        StoreError: the store cannot be used.
    """
    root = root if root is not None else store.default_root(environ)
    opened = Store.open(root, create=create, trust_shared=trust_shared)
    if uses_cpu and any(letter.isspace() for letter in str(opened.root)):
        raise StoreError(
            f"torch's C++ builder cannot use a path with a space in it: {str(opened.root)!r}", "name another with --store DIR"
        )
    if target is not None:
        refuse_remote_caches(environ)
    fingerprint = toolchain.fingerprint(environ, store=opened, target=target)
    bucket = opened.bucket(fingerprint.digest)
    if not trust_shared:
        opened.refuse_bucket_of_others(bucket)
    return Machine(fingerprint=fingerprint, store=opened, bucket=bucket, target=target)


#: Names of what a verification did beside looking at keys, in a proof's context.
GUARD, DRILL, TUNING = "the guard", "the drill", "tuning"
#: What is said under the last.
NO_TUNING, TUNING_LEFT = "none", "left to the launch"


def context(prepared: Prepared, environ: Mapping[str, str], *, guard: str, drill: str, tuning: str) -> dict[str, str]:
    """All that the parent can see and that may decide whether a launch hits: what ``--fast`` compares with the proof.

    The variables that flexwarm sets itself are left out, so that it does not matter whether a shell has them already.

    Args:
        guard: as :attr:`flexwarm.request.Conduct.remedy`: what is proven with the remedy is not proven without.
        drill: a :class:`flexwarm.ops.drill.DrillState` that the proof has.
        tuning: whether a launch still has some to do, ``NO_TUNING`` or ``TUNING_LEFT``.
    """
    own = {f"env.{name}" for name in bucket_environment(str(prepared.bucket.path))}
    table = {**prepared.fingerprint.select, **prepared.fingerprint.explain}
    table["flexwarm.version"], table["flexwarm.path"] = __version__, str(PACKAGE)
    # Equal shares have equal keys is what a plan assumes; a proof is of the ranks that ran.
    table["topology.ranks"] = str(len(prepared.plan.workers))
    table["topology.lanes"] = " ".join(f"{len(x.lanes)}:{x.context.value}:{x.stagger_seconds:g}" for x in prepared.plan.workers)
    table[GUARD], table[DRILL], table[TUNING] = guard, drill, tuning
    # What is proven on a GPU that is not there is proven of no real one.
    table[STANDS_IN] = prepared.components[STANDS_IN]
    if prepared.sources:  # the same name may find another file from elsewhere
        table["python.cwd"], table["env.PYTHONPATH"] = os.getcwd(), environ.get("PYTHONPATH", "")
    if "CUDA_VISIBLE_DEVICES" in environ:
        table["env.CUDA_VISIBLE_DEVICES"] = environ["CUDA_VISIBLE_DEVICES"]
    return {name: value for name, value in table.items() if name not in own}


def worker_components(prepared: Prepared, conduct: Conduct) -> dict[str, str]:
    """What each worker must see as the parent does."""
    own = {"flexwarm.version": __version__, "flexwarm.path": str(PACKAGE), "flexwarm.guard": conduct.remedy}
    return {**prepared.components, **own}


def foreign_cache(environ: Mapping[str, str], bucket: Bucket) -> str | None:
    """A variable that takes the caches out of the bucket, and that the bucket's own variables do not overrule."""
    overruled = bucket_environment(str(bucket.path))
    return next((name for name in environment.moving(environ) if name not in overruled), None)


#: Caches of torch that others share.
_REMOTE = re.compile(r"TORCHINDUCTOR_\w*REMOTE_CACHE\w*")
#: What remembers choices by time outside of the bucket, and what compiles where nobody looks.
_UNSEEN = {
    "TORCHINDUCTOR_ENABLE_CACHING_MODULE": "keeps choices by time outside of the bucket",
    "TORCHINDUCTOR_FX_COMPILE_MODE": "compiles in processes in which choices by time are not seen",
}


def refuse_remote_caches(environ: Mapping[str, str]) -> None:
    """Raises:
    UsageError: what is compiled for a GPU that is not there would be shared before anybody has judged it, or not be seen.
    """
    for name in sorted(environ):
        what = "shares what is compiled" if _REMOTE.fullmatch(name) else _UNSEEN.get(name)
        if what is not None and environ[name] not in ("", "0"):
            raise UsageError(f"{name}={environ[name]} {what}, and --target must not", f"unset {name}")


#: (some are there, a target was given) -> what to do.
_DEVICE_HINTS = {
    (False, False): '--target PROFILE builds for a GPU that is not here; devices = "cpu" tries the spec without one',
    (True, False): "",
    (True, True): "--target PROFILE:COUNT says how many there are",
}


def check_devices(roles: tuple[Role, ...], environ: Mapping[str, str], target: Target | None = None) -> None:
    """Refuse CUDA devices that are not there.

    Raises:
        UnsupportedError: names the role, the device and what is there.
    """
    wanted = [(role, index) for role in roles for index in role.cuda_indices]
    if not wanted:
        return
    gpus = toolchain.gpus() if target is None else toolchain.absent_gpus(target)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else [name for name in visible.split(",") if name.strip()]
    count = len(gpus) if names is None else min(len(gpus), len(names))
    for role, index in wanted:
        if index >= count:
            there = "no NVIDIA GPU was found" if not gpus else f"{count} of {len(gpus)} GPUs are visible"
            raise UnsupportedError(
                f"role {role.name!r}: devices: cuda:{index} is not there: {there}",
                _DEVICE_HINTS[bool(gpus), target is not None],
            )
