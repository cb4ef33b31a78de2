"""A launch line says how many ranks it starts, and what keeps an observer out of them; what it does not say is not guessed."""

from __future__ import annotations

import shlex
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexwarm import commandline
from flexwarm.commandline import LaunchLine


def read(line: str, **environ: str) -> LaunchLine:
    return commandline.read(shlex.split(line), environ)


def said(line: str, **environ: str) -> tuple[str, int | None, str]:
    found = read(line, **environ)
    return found.launcher, found.expected_ranks, found.said_by


# Ranks


@pytest.mark.parametrize(
    ("line", "ranks", "by"),
    [
        ("torchrun --nproc-per-node 8 train.py --steps 2", 8, "--nproc-per-node 8"),
        ("torchrun --nproc_per_node=8 train.py", 8, "--nproc_per_node=8"),
        ("torchrun --nproc-per-node=8 --nproc_per_node 4 train.py", 4, "--nproc_per_node 4"),
        ("/venv/bin/torchrun --standalone --nproc-per-node 2 train.py", 2, "--nproc-per-node 2"),
        ("torchrun train.py", 1, ""),
        ("torchrun --standalone train.py", 1, ""),
        ("torchrun --nnodes 2 --node-rank 1 --nproc-per-node 4 train.py", 4, "--nproc-per-node 4"),
        ("torchrun --nnodes=1:4 --max-restarts 3 --nproc-per-node 4 train.py", 4, "--nproc-per-node 4"),
        ("torchrun --rdzv-conf a=b --rdzv_endpoint h:1 -r 3 -t3 --nproc-per-node 4 train.py", 4, "--nproc-per-node 4"),
        ("torchrun --nproc-per-node 2 -- train.py", 2, "--nproc-per-node 2"),
        ("torchrun --nproc-per-node 2 -m pkg.train --nproc-per-node 5", 2, "--nproc-per-node 2"),
        ("torchrun --nproc-per-node 2 --module pkg.train", 2, "--nproc-per-node 2"),
        ("torchrun --nproc-per-node 2 --no-python python -u train.py", 2, "--nproc-per-node 2"),
        ("torchrun --nproc-per-node 2 --run-path /a/train.py", 2, "--nproc-per-node 2"),
        ("python -m torch.distributed.run --nproc-per-node 3 train.py", 3, "--nproc-per-node 3"),
        ("python3.12 -u -X dev -mtorch.distributed.run --nproc-per-node 3 train.py", 3, "--nproc-per-node 3"),
        ("python -m torch.distributed.launch --use-env --nproc_per_node 3 train.py", 3, "--nproc_per_node 3"),
        ("python /venv/bin/torchrun --nproc-per-node 3 train.py", 3, "--nproc-per-node 3"),
        # What belongs to the script is not the launcher's.
        ("torchrun train.py --nproc-per-node 8", 1, ""),
        ("torchrun -m pkg.train --nproc-per-node 8", 1, ""),
        ("torchrun --no-python python train.py --nproc-per-node 8", 1, ""),
        ("torchrun --role --nproc-per-node train.py", None, ""),
        # What torchrun counts by itself, or refuses.
        ("torchrun --nproc-per-node gpu train.py", None, ""),
        ("torchrun --nproc-per-node cpu train.py", None, ""),
        ("torchrun --nproc-per-node=auto train.py", None, ""),
        ("torchrun --nproc-per-node -1 train.py", None, ""),
        ("torchrun --nproc-per-node 0 train.py", None, ""),
        ("torchrun --nproc-per-node= train.py", None, ""),
        ("torchrun --nproc-per-node 8", None, ""),
        ("torchrun", None, ""),
        ("torchrun --no-python --module pkg.train", None, ""),
        # What is not known exactly may take a word or may not, and an abbreviation may stand for anything.
        ("torchrun --nproc 8 train.py", None, ""),
        ("torchrun --nproc-per_node 8 train.py", None, ""),
        ("torchrun --nproc-per-node 8 --from-the-future 2 train.py", None, ""),
        ("torchrun --use-env --nproc-per-node 8 train.py", None, ""),
        ("torchrun --standalone=1 --nproc-per-node 8 train.py", None, ""),
        ("torchrun -mr 3 pkg.train", None, ""),
        ("torchrun --nproc-per-node 8 --help train.py", None, ""),
        # What it starts may start more.
        ("torchrun --nproc-per-node 2 --no-python ./wrap.sh train.py", None, ""),
        ("torchrun --nproc-per-node 2 --no-python bash -c 'python train.py'", None, ""),
        ("torchrun --nproc-per-node 2 --no-python numactl -N 0 python train.py", 2, "--nproc-per-node 2"),
        (
            "torchrun --nproc-per-node 2 --no-python torchrun --nproc-per-node 2 train.py",
            4,
            "--nproc-per-node 2 --nproc-per-node 2",
        ),
    ],
)
def test_torchrun_says_how_many_ranks_it_starts_on_this_node(line: str, ranks: int | None, by: str) -> None:
    assert said(line) == ("torchrun", ranks, by)


def test_torchrun_takes_from_its_environment_what_its_options_do_not_give() -> None:
    assert said("torchrun train.py", PET_NPROC_PER_NODE="4") == ("torchrun", 4, "PET_NPROC_PER_NODE=4")
    assert said("env PET_NPROC_PER_NODE=4 torchrun train.py") == ("torchrun", 4, "PET_NPROC_PER_NODE=4")
    assert said("torchrun --nproc-per-node 2 train.py", PET_NPROC_PER_NODE="4")[1] == 2
    assert said("torchrun train.py", PET_NPROC_PER_NODE="gpu")[1] is None
    assert said("env -u PET_NPROC_PER_NODE torchrun train.py", PET_NPROC_PER_NODE="4")[1] == 1
    assert said("env -i torchrun train.py", PET_NPROC_PER_NODE="4")[1] == 1


@pytest.mark.parametrize("name", ["PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PYTHON_EXEC"])
def test_a_variable_that_changes_what_torchrun_starts_leaves_the_number_open(name: str) -> None:
    assert said("torchrun --nproc-per-node 2 train.py", **{name: "1"}) == ("torchrun", None, "")


@pytest.mark.parametrize(
    ("line", "ranks", "by"),
    [
        ("accelerate launch --num_processes 8 train.py", 8, "--num_processes 8"),
        ("accelerate launch --num-processes=8 --multi_gpu train.py", 8, "--num-processes=8"),
        ("accelerate launch --multi-gpu --num_processes 8 --num_machines 1 train.py", 8, "--num_processes 8 --num_machines 1"),
        ("accelerate-launch --num_processes 8 -m pkg.train", 8, "--num_processes 8"),
        ("python -m accelerate.commands.launch --num_processes 8 train.py", 8, "--num_processes 8"),
        ("accelerate launch --num_processes 8 --no_python python train.py", 8, "--num_processes 8"),
        (
            "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 --machine_rank 1 train.py",
            4,
            "--num_processes 8 --num_machines 2",
        ),
        ("accelerate launch --multi_gpu --num_processes 8 --num_machines 3 train.py", None, ""),
        ("accelerate launch --num_processes 8 --num_machines 2 train.py", None, ""),  # its file may say: started through ssh
        ("accelerate launch --use_deepspeed --num_processes 8 --num_machines 2 train.py", None, ""),
        ("accelerate launch --multi_gpu --num_processes 2 --main_process_port 1 train.py", 2, "--num_processes 2"),
        ("accelerate launch --parallelism_config_sp_size 2 --num_processes 8 train.py", 8, "--num_processes 8"),
        ("accelerate launch --megatron-lm-recompute-granularity full --num_processes 8 train.py", 8, "--num_processes 8"),
        ("accelerate launch --cpu --num_processes 8 train.py", None, ""),
        ("accelerate launch --mpirun_hostfile h --num_processes 8 train.py", None, ""),
        ("accelerate launch train.py", None, ""),
        ("accelerate launch train.py --num_processes 8", None, ""),
        ("accelerate launch --num_proc 8 train.py", None, ""),
    ],
)
def test_accelerate_says_how_many_ranks_it_starts_on_this_machine(line: str, ranks: int | None, by: str) -> None:
    assert said(line) == ("accelerate", ranks, by)


def test_another_command_of_accelerate_launches_nothing() -> None:
    assert said("accelerate config --num_processes 8") == ("", None, "")


@pytest.mark.parametrize(
    ("line", "ranks", "by"),
    [
        ("deepspeed --num_gpus 8 train.py --deepspeed", 8, "--num_gpus 8"),
        ("deepspeed --num_gpus=8 --num_nodes 1 --master_port 1 train.py", 8, "--num_gpus=8 --num_nodes 1"),
        ("/venv/bin/deepspeed --num_accelerators 2 --master_port 1 train.py", 2, "--num_accelerators 2"),
        ("deepspeed --bind_cores_to_rank --no_local_rank --num_gpus 2 train.py", 2, "--num_gpus 2"),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py", None, ""),
        ("deepspeed --hostfile h --num_gpus 8 train.py", None, ""),
        ("deepspeed -H h --num_gpus 8 train.py", None, ""),
        ("deepspeed --include localhost:0,1 train.py", None, ""),
        ("deepspeed --num_gpus 8 --force_multi train.py", None, ""),
        ("deepspeed train.py --num_gpus 8", None, ""),
    ],
)
def test_deepspeed_says_how_many_ranks_it_starts_if_there_is_one_node(line: str, ranks: int | None, by: str) -> None:
    assert said(line) == ("deepspeed", ranks, by)


@pytest.mark.parametrize(
    ("line", "ranks", "by"),
    [
        ("srun -n 4 python train.py", 4, "-n 4"),
        ("srun -n4 python train.py", 4, "-n4"),
        ("srun --ntasks=4 python train.py", 4, "--ntasks=4"),
        ("srun -lun4 python train.py", 4, "-lun4"),
        ("srun -N 2 --ntasks-per-node 4 python train.py", 8, "-N 2 --ntasks-per-node 4"),
        ("srun --nodes=2 -n 3 --ntasks-per-node=4 python -m pkg", 3, "-n 3"),
        ("srun -K -N2 --ntasks-per-node=4 --exclusive --cpu-bind none python train.py", 8, "-N2 --ntasks-per-node=4"),
        ("srun -K1 -n 2 -- python train.py", 2, "-n 2"),
        (
            "srun -N 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 4 train.py",
            8,
            "-N 2 --ntasks-per-node 1 --nproc-per-node 4",
        ),
        ("srun -n 2 env A=b numactl -N 0 torchrun --nproc-per-node 4 train.py", 8, "-n 2 --nproc-per-node 4"),
        ("srun python train.py", None, ""),
        ("srun -N 2 python train.py", None, ""),
        ("srun --ntasks-per-node 4 python train.py", None, ""),
        ("srun -N 1-2 --ntasks-per-node 4 python train.py", None, ""),
        ("srun -N 2 --ntasks-per-node 4 --ntasks-per-gpu 1 python train.py", None, ""),
        ("srun -n 2 bash run.sh", None, ""),
        ("srun -n 2 ./train", None, ""),
        ("srun -n 2 torchrun --nproc-per-node gpu train.py", None, ""),
        ("srun torchrun --nproc-per-node 4 train.py", None, ""),
        ("srun -n 2 --multi-prog tasks.conf", None, ""),
        ("srun -n 2 python a.py : -n 4 python b.py", None, ""),
        ("srun -n 2 --container-image x python train.py", None, ""),
        ("srun -n 2 --ntask 4 python train.py", None, ""),
        ("srun -n 2", None, ""),
        ("srun -n", None, ""),
    ],
)
def test_srun_says_how_many_tasks_there_are_and_each_may_start_several_ranks(line: str, ranks: int | None, by: str) -> None:
    assert said(line) == ("srun", ranks, by)


def test_an_allocation_that_says_another_number_of_tasks_leaves_the_product_open() -> None:
    line = "srun -N 2 --ntasks-per-node 4 python train.py"
    assert said(line, SLURM_NTASKS="8")[1] == 8
    assert said(line, SLURM_NTASKS="2")[1] is None
    assert said("srun -n 8 python train.py", SLURM_NTASKS="2")[1] == 8


@pytest.mark.parametrize(
    ("line", "ranks", "by"),
    [
        ("mpirun -n 4 python train.py", 4, "-n 4"),
        ("mpiexec -np 4 python train.py", 4, "-np 4"),
        ("mpirun --allow-run-as-root --mca btl tcp,self -x A -np 4 --bind-to none python train.py", 4, "-np 4"),
        ("mpirun --allow-run-as-root --oversubscribe -n 2 /venv/bin/python train.py", 2, "-n 2"),
        ("mpirun -np 4 -H localhost:4 python train.py", 4, "-np 4"),
        ("mpirun -np 2 torchrun --nproc-per-node 2 train.py", 4, "-np 2 --nproc-per-node 2"),
        ("mpirun -np 4 -H one:2,two:2 python train.py", None, ""),
        ("mpirun -np 4 --hostfile h python train.py", None, ""),
        ("mpirun -n 4 -np 2 python train.py", None, ""),
        ("mpirun -n 1 python a.py : -n 2 python b.py", None, ""),
        ("mpirun python train.py", None, ""),
        ("mpirun -n 4 ./train", None, ""),
    ],
)
def test_mpirun_says_how_many_ranks_there_are_if_they_are_on_this_machine(line: str, ranks: int | None, by: str) -> None:
    assert said(line) == ("mpirun", ranks, by)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python3 -m pkg --nproc-per-node 8",
        "/usr/bin/python3.11 -u train.py",
        "python3.13t -c pass",
        "python -",
    ],
)
def test_a_plain_program_may_start_ranks_of_its_own(line: str) -> None:
    assert said(line) == ("python", None, "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "''",
        "bash run.sh",
        "bash -c 'torchrun --nproc-per-node 8 train.py'",
        "sh -c 'srun -n 2 python train.py'",
        "./train.py",
        "A=b torchrun --nproc-per-node 8 train.py",
        "docker run torchrun --nproc-per-node 8 train.py",
        "sudo torchrun --nproc-per-node 8 train.py",
        "env -S 'torchrun --nproc-per-node 8' train.py",
        "env --ch=/ torchrun train.py",
        "timeout torchrun train.py",
        "timeout --unknown 5 torchrun train.py",
        "nice",
        "numactl --hardware torchrun train.py",
        "uv torchrun train.py",
        "uv run --env-file .env torchrun train.py",
        "conda activate torchrun",
        "pythonic -m torch.distributed.run train.py",
    ],
)
def test_what_is_behind_a_program_that_is_not_known_is_not_read(line: str) -> None:
    assert said(line) == ("", None, "")


@pytest.mark.parametrize(
    "prefix",
    [
        "env",
        "env A=b C=",
        "env -u A -C /tmp --default-signal=INT A=b",
        "env -- A=b",
        "nice",
        "nice -n 5",
        "nice -n -5",
        "nice -5",
        "nice --adjustment=5",
        "timeout 60",
        "timeout -k 5 -s INT --foreground 1.5h",
        "nohup",
        "stdbuf -oL -e0",
        "numactl --cpunodebind=0 --membind 0",
        "numactl -N 0 -m 0 -l",
        "numactl -C +0-3 --",
        "uv run",
        "uv run --with numpy -p 3.12 --frozen",
        "uv --quiet run --no-sync --",
        "conda run -n base --no-capture-output",
        "nice timeout 60 env A=b numactl -N 0",
    ],
)
def test_a_program_that_starts_another_one_in_its_place_is_passed_through(prefix: str) -> None:
    line = f"{prefix} torchrun --nproc-per-node 8 train.py"
    assert said(line) == ("torchrun", 8, "--nproc-per-node 8")
    assert read(line).blind == ""


@pytest.mark.parametrize("line", ["uv run train.py", "uv run -m pkg", "uv run --script train", "uv run python train.py"])
def test_uv_runs_python(line: str) -> None:
    assert said(line) == ("python", None, "")


def test_uv_runs_a_launcher_as_a_module() -> None:
    assert said("uv run -m torch.distributed.run --nproc-per-node 2 x.py") == ("torchrun", 2, "--nproc-per-node 2")


# What an observer is kept out by


@pytest.mark.parametrize(
    ("line", "blind"),
    [
        ("python -I train.py", "python -I ignores PYTHONPATH"),
        ("python -E train.py", "python -E ignores PYTHONPATH"),
        ("python -S train.py", "python -S leaves out site, which loads sitecustomize"),
        ("/opt/bin/python3.11 -IS train.py", "python3.11 -I ignores PYTHONPATH"),
        ("python -Es train.py", "python -E ignores PYTHONPATH"),
        ("python -uBE -m pkg", "python -E ignores PYTHONPATH"),
        ("python -W ignore -X dev -I -c pass", "python -I ignores PYTHONPATH"),
        ("python -Ic pass", "python -I ignores PYTHONPATH"),
        ("python --check-hash-based-pycs always -E train.py", "python -E ignores PYTHONPATH"),
        ("python -E --unknown train.py", "python -E ignores PYTHONPATH"),
        ("env A=b python -I train.py", "python -I ignores PYTHONPATH"),
        ("torchrun --no-python python -I train.py", "python -I ignores PYTHONPATH"),
        ("srun -n 2 nice python -S train.py", "python -S leaves out site, which loads sitecustomize"),
        ("python -I -m torch.distributed.run --run-path /a/b.py", "python -I ignores PYTHONPATH"),
        ("env -i python train.py", "env -i empties the environment"),
        ("env - torchrun train.py", "env - empties the environment"),
        ("env -vi A=b torchrun train.py", "env -i empties the environment"),
        ("env --ignore-environment torchrun train.py", "env -i empties the environment"),
        ("env -u PYTHONPATH torchrun train.py", "env -u PYTHONPATH removes PYTHONPATH"),
        ("env -uPYTHONPATH torchrun train.py", "env -uPYTHONPATH removes PYTHONPATH"),
        ("env --unset=PYTHONPATH bash run.sh", "env --unset=PYTHONPATH removes PYTHONPATH"),
        ("env PYTHONPATH=src torchrun train.py", "env PYTHONPATH=... replaces the PYTHONPATH that the observer is found by"),
        ("srun --export=NONE python train.py", "srun --export=NONE does not pass PYTHONPATH and the observer's variables on"),
        ("srun --export=A,B python train.py", "srun --export=A,B does not pass PYTHONPATH and the observer's variables on"),
        (
            "srun --export ALL,PYTHONPATH=src python train.py",
            "srun --export ALL,PYTHONPATH=src replaces the PYTHONPATH that the observer is found by",
        ),
        ("mpirun -n 2 -envnone python train.py", "mpirun -envnone does not pass PYTHONPATH and the observer's variables on"),
        (
            "mpirun -n 2 -x PYTHONPATH=src python train.py",
            "mpirun -x PYTHONPATH=src replaces the PYTHONPATH that the observer is found by",
        ),
        (
            "mpirun -n 2 -genv PYTHONPATH src python train.py",
            "mpirun -genv PYTHONPATH src replaces the PYTHONPATH that the observer is found by",
        ),
        # Nothing against it.
        ("python train.py -I", ""),
        ("python -c pass -I", ""),
        ("python -m pkg -S", ""),
        ("python -mI", ""),
        ("python -W E train.py", ""),
        ("python -XI train.py", ""),
        ("python -- -I", ""),
        ("python -P -s -u train.py", ""),
        ("torchrun train.py -I", ""),
        ("python -I -m torch.distributed.run train.py", ""),  # the ranks have interpreters of their own
        ("env A=PYTHONPATH -u python train.py", ""),
        ("env -u OTHER python train.py", ""),
        ("srun --export=ALL,A=b python train.py", ""),
        ("mpirun -n 2 -x PYTHONPATH python train.py", ""),
        ("bash -c 'python -I train.py'", ""),
    ],
)
def test_a_line_says_why_it_cannot_be_observed(line: str, blind: str) -> None:
    assert read(line).blind == blind


def test_slurms_own_variable_can_keep_the_environment_back() -> None:
    assert "SLURM_EXPORT_ENV=NONE does not pass" in read("srun -n 2 python train.py", SLURM_EXPORT_ENV="NONE").blind
    assert read("srun -n 2 --export=ALL python train.py", SLURM_EXPORT_ENV="NONE").blind == ""


WORDS = [
    *("torchrun", "accelerate", "launch", "deepspeed", "srun", "mpirun", "python", "env", "nice", "timeout", "numactl", "uv"),
    *("run", "conda", "-m", "torch.distributed.run", "-n", "-n4", "--nproc-per-node", "--nproc-per-node=2", "8", "60", "-"),
    *("--", "-I", "-ES", "--no-python", "--run-path", "-N", "--ntasks-per-node", "A=b", "=", "-=", "--=", ":", "", "x.py"),
    *("--export=NONE", "--export", "-x", "--mca", "-c", "--module", "-K", "-K1", "--num_processes", "--num_machines"),
]


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(st.characters(), max_size=6)), max_size=14))
def test_reading_never_fails_and_says_who_said_it(argv: list[str]) -> None:
    line = commandline.read(argv)
    assert line.argv == tuple(argv)
    assert line.launcher in {"", "torchrun", "accelerate", "deepspeed", "srun", "mpirun", "python"}
    assert line.expected_ranks is None or line.expected_ranks >= 1
    assert line.expected_ranks is not None or line.said_by == ""
    assert line.expected_ranks in (None, 1) or line.said_by
    assert line.blind.isprintable()
    assert len(commandline.title(argv)) <= commandline.TITLE_COLUMNS
    assert len(commandline.digest(argv, "/")) == 20


@given(st.lists(st.sampled_from(WORDS), max_size=10))
def test_what_follows_the_script_changes_nothing(rest: list[str]) -> None:
    argv = ["srun", "-n", "2", "torchrun", "--nproc-per-node", "4", "train.py", *(word for word in rest if word != ":")]
    line = commandline.read(argv)
    assert (line.launcher, line.expected_ranks, line.blind) == ("srun", 8, "")


def test_a_very_long_line_is_read_to_its_end() -> None:
    assert commandline.read([*["nice"] * 5000, "torchrun", "train.py"]).expected_ranks == 1


# For people


def columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def test_a_title_is_the_line_as_a_shell_takes_it() -> None:
    assert commandline.title(["bash", "-c", "a && b", ""]) == "bash -c 'a && b' ''"


def test_a_long_title_is_cut_with_a_mark() -> None:
    title = commandline.title(["torchrun", "train.py", "x" * 200])
    assert title.startswith("torchrun train.py xxx")
    assert (title[-1], columns(title)) == ("…", 80)
    assert columns(commandline.title(["題" * 79])) == 79 or columns(commandline.title(["題" * 79])) == 80


def test_a_title_holds_nothing_that_moves_the_cursor() -> None:
    assert commandline.title(["a\n\x1b[2J\udc80"]) == "'a\\n\\x1b[2J\\udc80'"


@given(st.lists(st.text(st.characters()), max_size=6))
def test_a_title_fits_and_is_printable(argv: list[str]) -> None:
    title = commandline.title(argv)
    assert title.isprintable()
    assert columns(title) <= 80 + sum(map(bool, map(unicodedata.combining, title)))


def test_the_digest_is_of_the_words_and_of_the_directory() -> None:
    digest = commandline.digest(["a", "b"], "/c")
    assert digest == commandline.digest(("a", "b"), "/c")
    assert (
        len(
            {
                digest,
                commandline.digest(["a b"], "/c"),
                commandline.digest(["b", "a"], "/c"),
                commandline.digest(["a", "b"], "/d"),
            }
        )
        == 4
    )
