"""The plan says which process runs what, where, with which variables, and who compiles for whom."""

from __future__ import annotations

import pytest

from flexwarm import spec
from flexwarm.errors import SpecError
from flexwarm.plan import Plan, bucket_environment, make_plan

WORKLOAD = '\n[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = 256\n'


def plan(roles: str, environ: dict[str, str] | None = None, *, bucket: str = "/b", cores: int = 8) -> Plan:
    return make_plan(spec.parse("schema = 1\n" + roles + WORKLOAD, "s"), environ=environ or {}, bucket_path=bucket, cores=cores)


def role(extra: str = "", *, name: str = "r", processes: int = 2) -> str:
    return f'[[role]]\nname = "{name}"\nprocesses = {processes}\n{extra}\n'


def test_on_the_cpu_one_rank_compiles_and_the_others_follow_it() -> None:
    jobs = plan(role(processes=3)).jobs
    assert [job.leader for job in jobs] == [None, "w/r:0", "w/r:0"]
    assert len({job.share for job in jobs}) == 1


def test_each_device_index_has_a_leader_of_its_own() -> None:
    jobs = plan(role('devices = "cuda:0-1"', processes=4)).jobs
    assert [(job.device, job.leader) for job in jobs] == [
        ("cuda:0", None),
        ("cuda:1", None),
        ("cuda:0", "w/r:0"),
        ("cuda:1", "w/r:1"),
    ]


def test_isolated_ranks_all_see_device_zero_so_one_compiles_for_all() -> None:
    workers = plan(role('devices = "cuda:4-5"\nisolate = true')).workers
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["4", "5"]
    assert [job.leader for worker in workers for job in worker.jobs] == [None, "w/r:0"]


def test_isolation_keeps_the_names_that_are_already_visible() -> None:
    workers = plan(role('devices = "cuda:0-1"\nisolate = true'), {"CUDA_VISIBLE_DEVICES": "GPU-aa, GPU-bb"}).workers
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["GPU-aa", "GPU-bb"]


def test_an_isolated_device_that_is_not_visible_is_refused() -> None:
    with pytest.raises(SpecError, match="cuda:1 is not visible"):
        plan(role('devices = "cuda:0-1"\nisolate = true'), {"CUDA_VISIBLE_DEVICES": "7"})


def test_ranks_have_the_variables_that_torchrun_sets() -> None:
    workers = plan(role(processes=2) + role(name="s", processes=1)).workers
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_NAME")
    assert [[worker.env[name] for name in names] for worker in workers] == [
        ["0", "0", "3", "2", "r"],
        ["1", "1", "3", "2", "r"],
        ["2", "0", "3", "1", "s"],
    ]


def test_torchruns_thread_default_applies_to_several_processes_only_and_yields_to_the_users() -> None:
    assert plan(role(processes=2)).workers[0].env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in plan(role(processes=1)).workers[0].env
    assert "OMP_NUM_THREADS" not in plan(role(processes=2), {"OMP_NUM_THREADS": "6"}).workers[0].env
    assert plan(role('env = { OMP_NUM_THREADS = "3" }')).workers[0].env["OMP_NUM_THREADS"] == "3"


def test_an_environment_that_enters_a_key_makes_another_share_of_the_same_subject() -> None:
    one, two = (plan(role(), {"OMP_NUM_THREADS": value}).jobs[0] for value in ("1", "2"))
    assert one.subject == two.subject
    assert one.share != two.share


def test_where_the_bucket_lies_and_what_is_only_logged_are_no_part_of_a_share() -> None:
    here, there = plan(role(), bucket="/a").jobs[0], plan(role(), {"TORCH_LOGS": "+dynamo"}, bucket="/b").jobs[0]
    assert here.share == there.share


def test_unset_and_zero_are_different_environments() -> None:
    name = "TORCHINDUCTOR_MAX_AUTOTUNE"
    assert plan(role()).jobs[0].share != plan(role(), {name: "0"}).jobs[0].share


def test_compile_threads_are_budgeted_for_the_host_and_not_for_each_rank() -> None:
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    assert [w.env[name] for w in plan(role('devices = "cuda:0-1"'), cores=8).workers] == ["4", "4"]
    assert [w.env[name] for w in plan(role('devices = "cuda:0-7"', processes=8), cores=4).workers] == ["1"] * 8
    assert name not in plan(role(), {name: "5"}).workers[0].env


def test_a_role_may_not_move_the_cache_out_of_the_bucket_nor_turn_it_off() -> None:
    with pytest.raises(SpecError, match="TORCHINDUCTOR_CACHE_DIR"):
        plan(role('env = { TORCHINDUCTOR_CACHE_DIR = "/elsewhere" }'))
    with pytest.raises(SpecError, match="turns a cache off"):
        plan(role('env = { TORCHINDUCTOR_FORCE_DISABLE_CACHES = "1" }'))


@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "PYTHONPATH", "PYTHONHOME"])
def test_what_all_roles_must_have_alike_is_refused_in_one(name: str) -> None:
    with pytest.raises(SpecError, match=name):
        plan(role(f'env = {{ {name} = "x" }}'))


def test_isolation_and_a_role_that_sets_the_visible_devices_contradict_each_other() -> None:
    with pytest.raises(SpecError, match="CUDA_VISIBLE_DEVICES"):
        plan(role('devices = "cuda:0-1"\nisolate = true\nenv = { CUDA_VISIBLE_DEVICES = "3" }'))


def test_a_rank_that_only_follows_compiles_nothing_and_gets_one_thread() -> None:
    workers = plan(role(processes=3), cores=8).workers
    assert [worker.env["TORCHINDUCTOR_COMPILE_THREADS"] for worker in workers] == ["8", "1", "1"]


def test_all_ranks_share_one_triton_directory_in_the_bucket() -> None:
    assert bucket_environment("/store/b")["TRITON_CACHE_DIR"] == "/store/b/triton"
    assert {worker.env["TRITON_CACHE_DIR"] for worker in plan(role('devices = "cuda:0-1"')).workers} == {"/b/triton"}
