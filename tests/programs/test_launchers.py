"""Launchers that are no part of torch, unmodified: Open MPI's mpirun, Slurm's srun, deepspeed and accelerate, two ranks each.

An optional group: ``make programs`` installs deepspeed and accelerate and runs it. Open MPI, and Slurm with munge, are
packages of the system. Slurm's daemons are started here, as a cluster of one node with a configuration of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness import Flexwarm

pytestmark = [pytest.mark.torch]

#: Ranks under MPI and Slurm have other variables than those that torch asks for, so users' scripts translate them.
JOB = """
import argparse, os, signal

for of_launcher, of_torch in (
    ("OMPI_COMM_WORLD_RANK", "RANK"), ("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"), ("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK"),
    ("SLURM_PROCID", "RANK"), ("SLURM_NTASKS", "WORLD_SIZE"), ("SLURM_LOCALID", "LOCAL_RANK"),
):
    if of_launcher in os.environ:
        os.environ[of_torch] = os.environ[of_launcher]

import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import flex_attention

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)  # deepspeed passes it
parser.add_argument("--lengths", default="128")
parser.add_argument("--dies", type=int)
options = parser.parse_args()

dist.init_process_group("gloo")
assert dist.get_world_size() == 2
if options.dies == dist.get_rank():
    os.kill(os.getpid(), signal.SIGKILL)
attention = torch.compile(flex_attention)
with torch.no_grad():
    for length in map(int, options.lengths.split(",")):
        q, k, v = (torch.randn(1, 2, length, 16) for _ in range(3))
        attention(q, k, v)
dist.barrier()
print(f"rank {dist.get_rank()} is done", flush=True)
dist.destroy_process_group()
"""

CALL = next(number for number, line in enumerate(JOB.splitlines(), 1) if "attention(q, k, v)" in line)

#: The address at which the ranks meet: where the launcher has no option for it, users set it in their job script.
MEET = {"MASTER_ADDR": "127.0.0.1"}

DAEMONS = ("munged", "slurmctld", "slurmd")
SLURM_SECONDS = 60.0
#: What Slurm may take to free the node of a job that has ended.
COMPLETING_SECONDS = 10.0

#: One node, which is this machine. It has room for two tasks whatever the machine has, and no service but these daemons.
SLURM_CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_port() -> int:
    """A port that nobody has, and that no connection is given before it is used: not one of the kernel's own choosing."""
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(given_from // 2, given_from), 100):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def script(name: str) -> str:
    """A console script of the environment that runs the tests."""
    return str(Path(sys.executable).with_name(name))


def is_open_mpi() -> bool:
    if shutil.which("mpirun") is None:
        return False
    return "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=30).stdout


def why_no_slurm() -> str:
    if os.geteuid() != 0:
        return "only root can start a Slurm cluster: its node starts tasks in the name of their users"
    lacking = [name for name in (*DAEMONS, "mungekey", "srun") if find_daemon(name) is None]
    return f"{', '.join(lacking)} not found; on Debian: apt install slurmctld slurmd slurm-client munge" if lacking else ""


def find_daemon(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))


needs_open_mpi = pytest.mark.skipif(not is_open_mpi(), reason="Open MPI is not installed; on Debian: apt install openmpi-bin")
needs_slurm = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())
needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed; `make programs` installs and runs this group"
)
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed; `make programs` installs and runs this group"
)


# ---- what each launcher has in common --------------------------------------------------------------------------------------


def is_built_proven_and_cold_for_another_length(
    flexwarm: Flexwarm, launcher: str, line: Sequence[str], env: Mapping[str, str | None]
) -> None:
    """``line`` runs ``job.py`` as two ranks, and ends with the script's name."""
    flexwarm.module(JOB, "job")
    built = flexwarm.run_json("build", "--", *line, env=env)
    assert (built.code, built.json["verdict"], built.json["published"]) == (0, "built", True), built.messages() + built.err
    assert built.json["notes"] == []
    assert (built.json["launch"]["launcher"], built.json["launch"]["expected_ranks"]) == (launcher, 2)

    proven = flexwarm.run_json("verify", "--", *line, env=env)
    assert (proven.code, proven.json["verdict"], proven.codes()) == (0, "warm", set()), proven.messages() + proven.err
    assert (proven.json["launch"]["ranks"], proven.json["command_exit_code"]) == ([0, 1], 0)
    ranks = [(job["rank"], job["outcome"], len(job["calls"])) for job in proven.json["jobs"]]
    assert ranks == [(0, "hit", 1), (1, "hit", 1)]
    assert len({job["pid"] for job in proven.json["jobs"]}) == 2
    # Without a look at lines: deepspeed's ranks are unbuffered, so the ends of both lines may come last.
    assert "rank 0 is done" in proven.err
    assert "rank 1 is done" in proven.err

    longer = flexwarm.run_json("verify", "--", *line, "--lengths", "128,256", env=env)
    assert (longer.code, longer.json["verdict"]) == (1, "cold"), longer.messages() + longer.err
    assert longer.codes() == {"aot-miss", "fx-miss", "key-changed", "recompiled"}
    assert longer.json["launch"]["ended"] == "at a miss"
    assert "flex_attention 1x2x256*x16 float32" in longer.messages()
    assert f"job.py:{CALL} in <module>" in longer.messages()


@needs_open_mpi
def test_ranks_of_open_mpi_are_built_and_proven(flexwarm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    # Both options only lift limits: that on root, and that on ranks per core.
    line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "job.py"]
    env = MEET | {"MASTER_PORT": str(free_port())}
    is_built_proven_and_cold_for_another_length(flexwarm, "mpirun", line, env)
    no_process_left()


@needs_deepspeed
def test_ranks_of_deepspeed_are_built_and_proven(flexwarm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    line = [script("deepspeed"), "--num_gpus", "2", "--master_port", str(free_port()), "job.py"]
    is_built_proven_and_cold_for_another_length(flexwarm, "deepspeed", line, {"DS_ACCELERATOR": "cpu"})
    no_process_left()


@needs_accelerate
def test_ranks_of_accelerate_are_built_and_proven(flexwarm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    # With --cpu accelerate starts one process, whatever the number; --multi_gpu starts them, and asks for no GPU.
    options = ["--multi_gpu", "--num_processes", "2", "--main_process_port", str(free_port())]
    line = [script("accelerate"), "launch", *options, "job.py"]
    # Nothing of a configuration that the user of this machine has made.
    is_built_proven_and_cold_for_another_length(flexwarm, "accelerate", line, {"HF_HOME": str(flexwarm.directory)})
    no_process_left()


# ---- Slurm -----------------------------------------------------------------------------------------------------------------


class Cluster:
    """Slurm on this machine alone, for as long as :func:`running` lasts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {"SLURM_CONF": str(directory / "slurm.conf")}

    def ask(self, *argv: str) -> str:
        """The answer of one of Slurm's commands; empty if there is none yet."""
        done = subprocess.run(argv, env=os.environ | self.env, capture_output=True, text=True, timeout=SLURM_SECONDS)
        return done.stdout.strip() if done.returncode == 0 else ""

    def jobs_left(self) -> str:
        """Jobs that hold the node, also after the moment that Slurm takes to complete one."""
        deadline = time.monotonic() + COMPLETING_SECONDS
        while (jobs := self.ask("squeue", "--noheader", "--format", "%i %j %T")) and time.monotonic() < deadline:
            time.sleep(0.1)
        return jobs

    @contextmanager
    def running(self) -> Iterator[None]:
        fields = {"host": socket.gethostname(), "directory": self.directory, "controller": free_port(), "node": free_port()}
        (self.directory / "slurm.conf").write_text(SLURM_CONF.format_map(fields))
        (self.directory / "state").mkdir()
        (self.directory / "spool").mkdir()
        of_munge = {name: f"--{name}-file={self.directory}/munge.{name}" for name in ("key", "pid", "log", "seed")}
        subprocess.run([str(find_daemon("mungekey")), "--create", of_munge["key"].replace("key-file", "keyfile")], check=True)
        with ExitStack() as daemons:
            # The socket is for root alone, which munged takes for a mistake, so it is told to go on.
            socket_file = self.directory / "munge.socket"
            daemons.enter_context(
                self._daemon("munged", "--foreground", "--force", f"--socket={socket_file}", *of_munge.values())
            )
            self._wait_for(socket_file.exists)
            daemons.enter_context(self._daemon("slurmctld", "-D"))
            daemons.enter_context(self._daemon("slurmd", "-D", "-N", "node"))
            daemons.callback(self._end_tasks)
            self._wait_for(lambda: self.ask("sinfo", "--noheader", "--format", "%T") == "idle")
            yield

    @contextmanager
    def _daemon(self, name: str, *options: str) -> Iterator[None]:
        with (self.directory / f"{name}.out").open("wb") as output:
            daemon = subprocess.Popen(
                [str(find_daemon(name)), *options], env=os.environ | self.env, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            yield
        finally:
            daemon.terminate()
            try:
                daemon.wait(SLURM_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SLURM_SECONDS
        while not condition():
            said = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.directory.glob("*.out")))
            assert time.monotonic() < deadline, said
            time.sleep(0.1)

    def _end_tasks(self) -> None:
        """Jobs that a failed test leaves behind, and their processes: the end of the node's daemon does not end them."""
        self.ask("scancel", "--partition=all", "--signal=KILL")
        self.ask("scancel", "--partition=all")
        self.jobs_left()

    def tasks_left(self) -> list[int]:
        """Processes that a task of this cluster is, or has started."""
        mine = f"SLURM_CONF={self.env['SLURM_CONF']}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if mine in variables and any(variable.startswith(b"SLURM_PROCID=") for variable in variables):
                    found.append(int(entry.name))
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    with found.running():
        yield found
    assert found.tasks_left() == []


@needs_slurm
def test_ranks_of_slurm_are_built_and_proven_and_their_job_ends_with_them(
    flexwarm: Flexwarm, cluster: Cluster, no_process_left: Callable[[], None]
) -> None:
    env = MEET | cluster.env | {"MASTER_PORT": str(free_port())}
    line = ["srun", "-n", "2", sys.executable, "job.py"]
    # The last of it is a verification that is stopped at a miss. Slurm started the ranks, so only srun can free their node.
    is_built_proven_and_cold_for_another_length(flexwarm, "srun", line, env)
    no_process_left()
    assert (cluster.jobs_left(), cluster.tasks_left()) == ("", [])

    died = flexwarm.run_json("verify", "--", *line, "--dies", "1", env=env)
    assert (died.code, died.json["verdict"]) == (6, "broken"), died.messages() + died.err
    assert died.json["command_exit_code"] == 128 + signal.SIGKILL
    (crashed,) = [job for job in died.json["jobs"] if "crashed" in {reason["code"] for reason in job["reasons"]}]
    assert crashed["rank"] == 1
    no_process_left()
    assert (cluster.jobs_left(), cluster.tasks_left()) == ("", [])
