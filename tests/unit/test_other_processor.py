"""A target's machine with another processor: C++ that the workers of a spec compile here is not for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm import spec
from flexwarm.errors import ExitCode
from flexwarm.events import Compiled
from flexwarm.fingerprint import Fingerprint
from flexwarm.ops import publish
from flexwarm.ops.prepare import Machine
from flexwarm.plan import make_plan
from flexwarm.reasons import Kind, weigh
from flexwarm.record import Record, fold
from flexwarm.store import Store
from flexwarm.target import DeviceProfile, Target

TARGET = Target(
    asked="./test.json",
    profile=DeviceProfile(name="NVIDIA Test", total_memory_bytes=1, attributes={}, measured=True),
    count=1,
)
BUCKET = f"/store/buckets-v1/{'ab' * 10}"
INDUCTORS = f"g++ {BUCKET}/inductor/ab/cxyz.main.cpp -D TORCH_INDUCTOR_CPP_WRAPPER"
TRITONS = "gcc /venv/triton/backends/nvidia/driver.c -O3 -shared -fPIC -o /tmp/t/cuda_utils.so"


def machine(target: Target | None, **explain: str) -> Machine:
    store = Store(root=Path("/store"))
    names = {name.replace("__", "."): value for name, value in explain.items()}
    return Machine(
        fingerprint=Fingerprint(select={}, explain=names), store=store, bucket=store.bucket("ab" * 10), target=target
    )


def record(*lines: str) -> Record:
    plan = make_plan(
        spec.parse('schema = 1\n[[workload]]\nname = "w"\nstep = "m:f"\n', "s"), environ={}, bucket_path=BUCKET, cores=2
    )
    return fold(plan, {0: [Compiled(t=0, job=plan.jobs[0].id, what="cxx", detail=line) for line in lines]}, {})


OTHER = machine(TARGET, built_on__cpu__capability="AVX2", env__X="1")


@pytest.mark.parametrize(
    ("here", "lines", "found"),
    [
        (OTHER, (INDUCTORS,), 1),
        (OTHER, (TRITONS, INDUCTORS, INDUCTORS), 1),
        (OTHER, (TRITONS,), 0),
        (OTHER, (), 0),
        (machine(TARGET, built_on__platform__libc="glibc 2.36"), (INDUCTORS,), 0),
        (machine(TARGET), (INDUCTORS,), 0),
        (machine(None), (INDUCTORS,), 0),
    ],
)
def test_only_cxx_for_another_processor_is_refused(here: Machine, lines: tuple[str, ...], found: int) -> None:
    reasons = publish.processor_reasons(here, record(*lines))
    assert len(reasons) == found
    if found:
        assert weigh(reasons, best=Kind.BUILT) == (Kind.BROKEN, ExitCode.UNSUPPORTED)
        assert not publish.is_whole(reasons)
