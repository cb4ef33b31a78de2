"""What a rank of a launcher takes of a spec, and what is refused before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flexwarm import spec
from flexwarm.errors import ExitCode, SpecError, UnsupportedError, UsageError
from flexwarm.events import Event, Hazard, JobFailed, ShapeDone
from flexwarm.hazards import HazardCode
from flexwarm.observer.recorder import Recorder
from flexwarm.replay import Assignment, Outcome, assign, check_devices, main
from flexwarm.request import Purpose

WORKLOAD = '\n[[workload]]\nname = "w"\nmask_mod = "causal"\nq_heads = 2\nhead_dim = 32\nq_len = 128\n'


def assigned(roles: str, **environ: str) -> Assignment:
    return assign(spec.parse(f"schema = 1\n{roles}{WORKLOAD}", "s"), environ)


def role(keys: str, name: str = "trainer") -> str:
    return f'[[role]]\nname = "{name}"\n{keys}\n'


def test_each_rank_takes_the_worker_of_its_number_through_all_roles() -> None:
    roles = role("processes = 2", "front") + role("processes = 2", "back")
    found = [assigned(roles, RANK=str(rank), WORLD_SIZE="4", LOCAL_RANK=str(rank % 2)) for rank in range(4)]
    assert [(x.worker.rank, x.role.name, x.local_rank) for x in found] == [
        (0, "front", 0),
        (1, "front", 1),
        (2, "back", 0),
        (3, "back", 1),
    ]


def test_other_launchers_variables_say_it_as_well() -> None:
    found = assigned(role("processes = 2"), SLURM_PROCID="1", SLURM_NTASKS="2", SLURM_LOCALID="0")
    assert (found.worker.rank, found.world_size, found.local_rank) == (1, 2, 0)


def test_devices_are_dealt_again_on_each_node() -> None:
    roles = role('processes = 16\ndevices = "cuda:0-7"')
    for rank in range(16):
        found = assigned(roles, RANK=str(rank), WORLD_SIZE="16", LOCAL_RANK=str(rank % 8))
        assert [lane.device for lane in found.worker.lanes] == [f"cuda:{rank % 8}"]
        check_devices(found, 8)


def test_without_a_launcher_it_is_said_how_to_start_it() -> None:
    with pytest.raises(UsageError, match="no launcher") as caught:
        assigned("")
    assert "torchrun" in caught.value.hint
    assert "flexwarm build SPEC" in caught.value.hint


def test_a_launch_of_another_size_is_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError, match=r"has 4 ranks .* spec have 2"):
        assigned(role("processes = 2"), RANK="3", WORLD_SIZE="4")


@pytest.mark.parametrize(("environ", "told"), [({}, "is not set"), ({"OMP_NUM_THREADS": "1"}, "is '1'")])
def test_an_environment_that_the_launcher_did_not_give_is_refused_by_name(environ: dict[str, str], told: str) -> None:
    roles = role('env = { OMP_NUM_THREADS = "4" }')
    with pytest.raises(SpecError, match=f"env.OMP_NUM_THREADS is '4', and in rank 0 it {told}"):
        assigned(roles, RANK="0", WORLD_SIZE="1", **environ)
    assigned(roles, RANK="0", WORLD_SIZE="1", OMP_NUM_THREADS="4")


def test_a_device_that_this_rank_does_not_see_is_refused() -> None:
    found = assigned(role('processes = 2\ndevices = "cuda:0-1"'), RANK="1", WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="1")
    with pytest.raises(UnsupportedError, match=r"cuda:1 is not there: rank 1 sees 1 CUDA devices") as caught:
        check_devices(found, 1)
    assert "isolate" in caught.value.hint


def test_ranks_that_are_isolated_must_have_been_shown_their_own_devices_by_the_launcher() -> None:
    roles = role('processes = 2\ndevices = "cuda:0-1"\nisolate = true')
    found = assigned(roles, RANK="1", WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="5")
    assert [lane.device for lane in found.worker.lanes] == ["cuda:0"]
    check_devices(found, 1)
    with pytest.raises(UnsupportedError, match="see 1 devices of its own, and sees 8"):
        check_devices(found, 8)


class Said(Recorder):
    """What the observer of a launch is told."""

    def __init__(self) -> None:
        super().__init__(Path("/dev/null"), Purpose.BUILD)
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


def shape(**changes: float | bool | None) -> ShapeDone:
    values = {"error": 0.001, "tolerance": 0.01, "agrees": True, **changes}
    return ShapeDone(
        t=1.0, job="w/r:0", shape=0, calls=2, checks=2, first_seconds=1.0, repeat_seconds=0.1, **values  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_fails_is_kept_with_its_job_and_hazards_go_to_the_observer() -> None:
    observer = Said()
    outcome = Outcome(observer, Purpose.BUILD)
    outcome.emit(shape())
    assert outcome.failures == []
    outcome.emit(shape(agrees=False, error=0.5))
    outcome.emit(shape(agrees=False, error=None))
    outcome.emit(shape(agrees=False))
    outcome.emit(JobFailed(t=1.0, job="w/r:1", error="ValueError", message="no", traceback=""))
    assert [(job, kind) for job, kind, _ in outcome.failures] == [*[("w/r:0", "WrongResult")] * 3, ("w/r:1", "ValueError")]
    messages = [message for _, _, message in outcome.failures]
    assert "by 0.5" in messages[0]
    assert "not finite" in messages[1]
    assert "gradient" in messages[2]
    outcome.emit(Hazard(t=1.0, job="w/r:0", code=HazardCode.LANE_CONFIG_DRIFT, message="m"))
    (hazard,) = observer.events
    assert isinstance(hazard, Hazard)
    assert hazard.job is None  # the observer's own seat, which this thread has not taken


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "one spec file is needed"),
        (["--help"], "one spec file is needed"),
        (["nowhere.toml"], "there is no spec file nowhere.toml"),
    ],
)
def test_a_command_line_that_cannot_be_right_is_one_sentence_and_exit_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEXWARM_OBSERVE", raising=False)
    assert main(arguments) is ExitCode.USAGE
    assert told in capsys.readouterr().err


def test_a_refusal_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f"schema = 1\n{WORKLOAD}")
    program = (
        "import sys; from flexwarm.replay import main; code = main(['s.toml']); "
        "assert 'torch' not in sys.modules, 'torch was imported'; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"WORLD_SIZE": "2", "RANK": "0"}, capture_output=True, text=True
    )
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "the launch has 2 ranks (this one is rank 0), and the roles of the spec have 1" in done.stderr
    assert "next: " in done.stderr
