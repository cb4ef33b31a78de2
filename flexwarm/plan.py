"""Spec x topology: which process runs which job, with which environment, and who waits for whom. Pure and printable."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flexwarm import canonical, environment
from flexwarm.environment import Effect
from flexwarm.errors import SpecError
from flexwarm.spec import Spec
from flexwarm.topology import LaneContext, Role
from flexwarm.workload import Workload

COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"

#: What a launch must set, beside the two cache directories, to use a bucket. Inductor keeps a precompiled C++ header
#: in the machine's temporary directory, outside of every cache: after a reboot a launch that hits every key would
#: still compile for seconds. Without the header nothing is compiled outside of the bucket.
SELF_CONTAINED = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload on one lane.

    Attributes:
        id: unique in the plan and readable: ``workload/role:rank``, and ``.lane`` where a rank has several.
        device: the device as the job sees it, such as ``cpu`` or ``cuda:0``.
        subject: digest of what is compiled, and for which device index.
        share: digest of the subject and the environment that enters keys: equal shares have equal keys.
        leader: the job that compiles this share first, or None when this job is it.
    """

    id: str
    workload: Workload
    role: str
    rank: int
    lane: int
    device: str
    subject: str
    share: str
    leader: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One thread of a process that calls compiled code; the main thread where there is only one.

    Attributes:
        physical: the machine's own name of the device, such as ``cuda:5``.
        device: the device as the thread names it.
    """

    index: int
    physical: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process of the plan.

    Attributes:
        env: variables that are laid over the parent's environment.
        jobs: of all lanes, those of the first lane first.
    """

    rank: int
    local_rank: int
    role: str
    lanes: tuple[Lane, ...]
    stagger_seconds: float
    context: LaneContext
    env: Mapping[str, str]
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All processes of a run, in order of rank."""

    workers: tuple[Worker, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(job for worker in self.workers for job in worker.jobs)


def bucket_environment(bucket_path: str) -> dict[str, str]:
    """The variables with which any Python process uses the bucket at ``bucket_path`` (an absolute path)."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": posixpath.join(bucket_path, "inductor"),
        # One directory for all devices: Inductor would make one for each index, and compile each kernel again.
        "TRITON_CACHE_DIR": posixpath.join(bucket_path, "triton"),
        **SELF_CONTAINED,
    }


def make_plan(spec: Spec, *, environ: Mapping[str, str], bucket_path: str, cores: int) -> Plan:
    """The plan of a spec.

    Args:
        spec: a spec whose shapes fit.
        environ: the environment that the workers inherit.
        bucket_path: absolute path of the bucket.
        cores: processor cores that compile workers may use, all ranks together.

    Raises:
        SpecError: a role's environment moves or disables the caches.
    """
    for role in spec.roles:
        _check_environment(role)
    world = sum(role.processes for role in spec.roles)
    leaders: dict[str, str] = {}
    workers: list[Worker] = []
    for role in spec.roles:
        for process in range(role.processes):
            workers.append(_make_worker(spec, role, process, len(workers), world, environ, bucket_path, leaders))
    leading = [worker.rank for worker in workers if any(job.leader is None for job in worker.jobs)]
    threads = max(1, cores // max(1, len(leading)))
    return Plan(workers=tuple(_with_compile_threads(w, environ, str(threads if w.rank in leading else 1)) for w in workers))


def _make_worker(
    spec: Spec,
    role: Role,
    process: int,
    rank: int,
    world: int,
    environ: Mapping[str, str],
    bucket_path: str,
    leaders: dict[str, str],
) -> Worker:
    lanes = _lanes(role, process)
    env = {
        **_rank_variables(role, process, rank, world, spec.roles.index(role), len(spec.roles)),
        **_thread_default(role, environ),
        **_visible_devices(role, process, environ),
        **bucket_environment(bucket_path),
        **role.env,
    }
    # A bucket's own path is no part of what is compiled: the same bucket may lie elsewhere tomorrow.
    key_env = environment.key_variables({**environ, **env})
    jobs = []
    for lane in lanes:
        for workload in spec.workloads_of(role):
            subject = canonical.digest(_subject(workload, lane, role))
            share = canonical.digest({"subject": subject, "env": key_env})
            job_id = f"{workload.name}/{role.name}:{rank}" + (f".{lane.index}" if role.lanes > 1 else "")
            leader = leaders.setdefault(share, job_id)
            jobs.append(
                Job(
                    id=job_id,
                    workload=workload,
                    role=role.name,
                    rank=rank,
                    lane=lane.index,
                    device=lane.device,
                    subject=subject,
                    share=share,
                    leader=None if leader == job_id else leader,
                )
            )
    return Worker(
        rank=rank,
        local_rank=process,
        role=role.name,
        lanes=lanes,
        stagger_seconds=role.stagger_seconds,
        context=role.context,
        env=env,
        jobs=tuple(jobs),
    )


def _subject(workload: Workload, lane: Lane, role: Role) -> dict[str, object]:
    """What a job compiles, as data: equal where one job's kernels serve the other."""
    parts: dict[str, object] = {"workload": workload.subject(), "device": lane.device}
    if workload.step is not None:
        parts["role"] = role.name  # its context says the role, so roles may call different things
    return parts


def _lanes(role: Role, process: int) -> tuple[Lane, ...]:
    """The lanes of a process; with isolation its own devices are counted from zero there."""
    own = role.process_devices(process)
    lanes = []
    for index in range(role.lanes):
        physical = role.device(process, index)
        device = f"cuda:{own.index(physical)}" if role.isolate else physical
        lanes.append(Lane(index=index, physical=physical, device=device))
    return tuple(lanes)


def _rank_variables(role: Role, process: int, rank: int, world: int, group: int, groups: int) -> dict[str, str]:
    """As torchrun sets them where each role is an agent of one job; ranks are counted through the roles."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(process),
        "GROUP_RANK": str(group),
        "ROLE_RANK": str(process),
        "ROLE_NAME": role.name,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(role.processes),
        "GROUP_WORLD_SIZE": str(groups),
        "ROLE_WORLD_SIZE": str(role.processes),
        # Read by training modules when they are imported; nothing connects here.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "flexwarm",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _thread_default(role: Role, environ: Mapping[str, str]) -> dict[str, str]:
    """torchrun sets OMP_NUM_THREADS to 1 where it is unset and there are several processes; on CPU it is in the key."""
    if role.processes > 1 and "OMP_NUM_THREADS" not in environ:
        return {"OMP_NUM_THREADS": "1"}
    return {}


def _visible_devices(role: Role, process: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Isolation hides the other devices; names that are already in CUDA_VISIBLE_DEVICES are kept as they are."""
    if not role.isolate or role.uses_cpu:
        return {}
    names = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    visible = []
    for device in role.process_devices(process):
        index = int(device.partition(":")[2])
        if names and index >= len(names):
            raise SpecError(
                f"role {role.name!r}: devices: cuda:{index} is not visible, CUDA_VISIBLE_DEVICES has {len(names)} devices"
            )
        visible.append(names[index] if names else str(index))
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible)}


def _with_compile_threads(worker: Worker, environ: Mapping[str, str], threads: str) -> Worker:
    """Compile workers are budgeted for the host: torch's own default is up to 32 for every rank."""
    name = COMPILE_THREADS
    if name in environ or name in worker.env:
        return worker
    return replace(worker, env={**worker.env, name: threads})


def _check_environment(role: Role) -> None:
    if role.isolate and "CUDA_VISIBLE_DEVICES" in role.env:
        raise SpecError(f"role {role.name!r}: env.CUDA_VISIBLE_DEVICES: isolate = true sets it", "leave one of the two out")
    for name in role.env:
        if environment.effect(name) is Effect.MOVES:
            raise SpecError(
                f"role {role.name!r}: env.{name}: would move the cache out of the bucket", "leave it out; flexwarm sets it"
            )
    for name in environment.SELECTING:
        if name in role.env:
            raise SpecError(
                f"role {role.name!r}: env.{name}: all roles have it alike or none",
                f"leave it out, and set {name} for flexwarm itself",
            )
    for name in environment.disabling(role.env):
        raise SpecError(f"role {role.name!r}: env.{name}: turns a cache off, so nothing could be warm", "leave it out")
