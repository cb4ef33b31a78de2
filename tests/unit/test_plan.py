"""The plan says which process runs what, where, with which variables, and who compiles for whom."""

from __future__ import annotations

import pytest

from flexwarm import spec
from flexwarm.errors import SpecError
from flexwarm.plan import Plan, bucket_environment, make_plan
from flexwarm.topology import LaneContext

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


LANES = 'lanes = 2\ndevices = "cuda:0-1"'


def test_a_job_of_a_rank_with_several_lanes_has_its_lane_in_its_id_and_the_first_lanes_come_first() -> None:
    workers = make_plan(
        spec.parse("schema = 1\n" + role(LANES) + WORKLOAD + WORKLOAD.replace('"w"', '"x"').replace("256", "512"), "s"),
        environ={},
        bucket_path="/b",
        cores=8,
    ).workers
    assert [[job.id for job in worker.jobs] for worker in workers] == [
        ["w/r:0.0", "x/r:0.0", "w/r:0.1", "x/r:0.1"],
        ["w/r:1.0", "x/r:1.0", "w/r:1.1", "x/r:1.1"],
    ]
    assert [(job.rank, job.lane) for job in workers[1].jobs] == [(1, 0), (1, 0), (1, 1), (1, 1)]


def test_a_single_lane_has_no_lane_in_its_id() -> None:
    (job,) = plan(role("lanes = 1", processes=1)).jobs
    assert (job.id, job.lane) == ("w/r:0", 0)


def test_each_lane_has_the_device_that_was_dealt_to_it() -> None:
    workers = plan(role('lanes = 3\ndevices = "cuda:4-7"')).workers
    assert [[(lane.index, lane.physical, lane.device) for lane in worker.lanes] for worker in workers] == [
        [(0, "cuda:4", "cuda:4"), (1, "cuda:5", "cuda:5"), (2, "cuda:6", "cuda:6")],
        [(0, "cuda:7", "cuda:7"), (1, "cuda:4", "cuda:4"), (2, "cuda:5", "cuda:5")],
    ]
    assert [job.device for job in workers[1].jobs] == ["cuda:7", "cuda:4", "cuda:5"]


def test_the_lanes_of_an_isolated_rank_count_its_own_devices_in_the_order_of_the_visible_ones() -> None:
    first, second = plan(role('lanes = 2\ndevices = ["cuda:5", "cuda:3", "cuda:0", "cuda:7"]\nisolate = true')).workers
    assert first.env["CUDA_VISIBLE_DEVICES"] == "5,3"
    assert [(lane.physical, lane.device) for lane in first.lanes] == [("cuda:5", "cuda:0"), ("cuda:3", "cuda:1")]
    assert second.env["CUDA_VISIBLE_DEVICES"] == "0,7"
    assert [(lane.physical, lane.device) for lane in second.lanes] == [("cuda:0", "cuda:0"), ("cuda:7", "cuda:1")]


def test_lanes_of_an_isolated_rank_that_share_a_device_name_it_alike() -> None:
    (worker,) = plan(role('lanes = 3\ndevices = ["cuda:4", "cuda:2"]\nisolate = true', processes=1)).workers
    assert worker.env["CUDA_VISIBLE_DEVICES"] == "4,2"
    assert [lane.device for lane in worker.lanes] == ["cuda:0", "cuda:1", "cuda:0"]


def test_isolation_of_lanes_keeps_the_names_that_are_already_visible() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb, GPU-cc"}
    (worker,) = plan(role('lanes = 2\ndevices = ["cuda:2", "cuda:0"]\nisolate = true', processes=1), environ).workers
    assert worker.env["CUDA_VISIBLE_DEVICES"] == "GPU-cc,GPU-aa"
    with pytest.raises(SpecError, match=r"cuda:3 is not visible, CUDA_VISIBLE_DEVICES has 3 devices"):
        plan(role('lanes = 2\ndevices = "cuda:2-3"\nisolate = true', processes=1), environ)


def test_lanes_that_are_not_isolated_leave_the_visible_devices_alone() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in plan(role(LANES)).workers[0].env


def test_the_first_lane_of_a_device_compiles_for_the_others_of_that_device() -> None:
    (worker,) = plan(role('lanes = 4\ndevices = "cuda:0-1"', processes=1)).workers
    assert [job.leader for job in worker.jobs] == [None, None, "w/r:0.0", "w/r:0.1"]


def test_on_the_cpu_one_lane_compiles_for_all_lanes_of_all_ranks() -> None:
    assert [job.leader for job in plan(role("lanes = 2")).jobs] == [None, "w/r:0.0", "w/r:0.0", "w/r:0.0"]


def test_isolated_lanes_of_several_ranks_have_leaders_by_the_index_that_they_see() -> None:
    jobs = plan(role('lanes = 2\ndevices = "cuda:4-7"\nisolate = true')).jobs
    assert [(job.id, job.device, job.leader) for job in jobs] == [
        ("w/r:0.0", "cuda:0", None),
        ("w/r:0.1", "cuda:1", None),
        ("w/r:1.0", "cuda:0", "w/r:0.0"),
        ("w/r:1.1", "cuda:1", "w/r:0.1"),
    ]


def test_lanes_of_one_device_share_keys_and_lanes_of_two_do_not() -> None:
    jobs = plan(role('lanes = 4\ndevices = "cuda:0-1"', processes=1)).jobs
    shares = [job.share for job in jobs]
    assert shares[0] == shares[2] != shares[1] == shares[3]
    # Which lane it is, and how many there are, is no part of what is compiled.
    alone = plan(role('devices = "cuda:1"', processes=1)).jobs[0]
    assert alone.share == shares[1]


def test_lanes_are_threads_so_torchrun_knows_nothing_of_them() -> None:
    (worker,) = plan(role(LANES, processes=1)).workers
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"):
        assert worker.env[name] == "1"
    assert "OMP_NUM_THREADS" not in worker.env


def test_a_rank_knows_how_its_lanes_start() -> None:
    (worker,) = plan(role(LANES + '\nstagger = 1.5\ncontext = "copy"', processes=1)).workers
    assert (worker.stagger_seconds, worker.context) == (1.5, LaneContext.COPY)
    (worker,) = plan(role(LANES, processes=1)).workers
    assert (worker.stagger_seconds, worker.context) == (0.0, LaneContext.NEW)


def test_lanes_take_turns_to_compile_so_their_rank_has_all_its_threads_for_each() -> None:
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    assert [worker.env[name] for worker in plan(role(LANES, processes=1), cores=8).workers] == ["8"]
    assert [worker.env[name] for worker in plan(role('lanes = 2\ndevices = "cuda:0-3"'), cores=8).workers] == ["4", "4"]
    # A rank whose lanes all follow compiles nothing.
    assert [worker.env[name] for worker in plan(role(LANES), cores=8).workers] == ["8", "1"]
