"""Misused, piped and narrow: one clear sentence, the right exit code, a next step, and only data on standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = 'schema = 1\n[[workload]]\nname = "w"\nq_heads = 2\nhead_dim = 32\nq_len = 128\n'


def flexwarm(directory: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith("FLEXWARM_")}
    return subprocess.run(
        [sys.executable, "-m", "flexwarm", *arguments],
        cwd=directory,
        env={**base, "FLEXWARM_STORE": str(directory / "store"), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["verify", "--fsat"], 2, "--fsat"),
        (["verify", "absent.toml"], 2, "there is no spec file absent.toml"),
        (["verify", "."], 2, "cannot be read"),
        (["build", "--job-timeout", "soon"], 2, "soon"),
        (["build", "--job-timeout", "0"], 2, "--job-timeout"),
        (["build", "--lock-wait", "-1"], 2, "--lock-wait"),
        (["verify", "--format", "yaml"], 2, "yaml"),
        (["verify", "--guard", "off"], 2, "'off' is not one of 'report', 'fix'"),
        (["build", "--guard-backward", "both"], 2, "'both' is not one of 'engine', 'caller'"),
        (["build", "--no-drill"], 2, "--no-drill"),
        (["clean"], 2, "--all"),
        (["clean", "--all"], 2, "--yes"),
        (["fingerprint", "--diff", "nope"], 2, "no bucket 'nope'"),
    ],
)
def test_misuse_is_one_sentence_with_a_next_step_and_exit_2(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "store" / "buckets-v1" / ("ab" * 10)).mkdir(parents=True)  # so that clean has something to ask about
    done = flexwarm(tmp_path, *arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "next:" in done.stderr


def test_no_arguments_at_all_show_the_help(tmp_path: Path) -> None:
    done = flexwarm(tmp_path)
    assert done.returncode == 2
    assert "build" in done.stdout + done.stderr
    assert "Exit codes" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["fingerprint", "build", "verify", "env", "clean"])
def test_every_command_has_help_with_its_common_options(tmp_path: Path, command: str) -> None:
    done = flexwarm(tmp_path, command, "--help", env={"COLUMNS": "60"})
    assert done.returncode == 0
    for option in ("--store", "--format", "--quiet", "--verbose"):
        assert option in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_an_error_is_json_too_when_json_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC + "batc = 2\n")
    done = flexwarm(tmp_path, "build", "--format", "json")
    data = json.loads(done.stdout)
    assert done.returncode == data["exit_code"] == 2
    assert data["command"] == "build"
    assert "batc" in data["error"]["message"]
    assert "batch" in data["error"]["hint"]
    by_variable = flexwarm(tmp_path, "build", env={"FLEXWARM_FORMAT": "json"})
    assert json.loads(by_variable.stdout)["exit_code"] == 2


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["env"], ["fingerprint"], ["fingerprint", "--format", "json"]]
)
def test_an_output_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flexwarm", *arguments],
            env={**os.environ, "FLEXWARM_STORE": str(tmp_path / "store")},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 3
    assert done.stderr == "flexwarm: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&- <&-", ">/dev/full", "2>/dev/full", "| true", "2>&1 | head -c 1"])
@pytest.mark.parametrize("form", ["human", "json"])
def test_no_way_of_closing_the_streams_changes_an_error_or_prints_a_traceback(tmp_path: Path, redirect: str, form: str) -> None:
    command = f"{sys.executable} -m flexwarm build nofile.toml --format {form}"
    piped = redirect.rpartition("|")
    line = f"{{ {command} {piped[0] or (redirect if '|' not in redirect else '')}; echo $? >code; }} 2>err"
    line += f" | {piped[2]}" if "|" in redirect else ""
    subprocess.run(["sh", "-c", line], cwd=tmp_path, env={**os.environ, "FLEXWARM_STORE": "store"}, timeout=60)
    assert (tmp_path / "code").read_text() == "2\n"
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_a_terminal_without_unicode_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC.replace('"w"', '"\u00fcn\u00ef"'))
    done = flexwarm(tmp_path, "build", "--dry-run", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "\\xfcn\\xef" in done.stdout


def test_a_wrong_option_is_json_too_when_json_was_asked_for(tmp_path: Path) -> None:
    assert json.loads(flexwarm(tmp_path, "build", "--nope", "--format", "json").stdout)["exit_code"] == 2
    assert json.loads(flexwarm(tmp_path, "bogus", env={"FLEXWARM_FORMAT": "json"}).stdout)["exit_code"] == 2


def test_a_working_directory_that_is_gone_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    script = f"mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m flexwarm env --store relative"
    env = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "gone" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_path_with_a_space_is_refused_for_the_cpu_because_torch_cannot_use_it(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    done = flexwarm(tmp_path, "build", "--dry-run", "--store", "with space")
    assert done.returncode == 3
    assert "space" in done.stderr


def test_a_store_that_is_refused_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert flexwarm(tmp_path, "build", "--store", "open").returncode == 3
    assert list((tmp_path / "open").iterdir()) == []


@pytest.mark.parametrize("value", ["nan", "inf", "soon", "3", "-1"])
def test_a_limit_that_cannot_work_is_refused(tmp_path: Path, value: str) -> None:
    done = flexwarm(tmp_path, "build", "--silence-timeout", value)
    assert done.returncode == 2
    assert "at least 15" in done.stderr


@pytest.mark.parametrize("value", ["4.9", "0", "-5", "nan", "inf", "soon"])
@pytest.mark.parametrize("command", ["build", "verify"])
def test_a_limit_for_hangs_that_a_slow_moment_would_pass_is_refused(tmp_path: Path, command: str, value: str) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    done = flexwarm(tmp_path, command, "--hang-timeout", value)
    assert done.returncode == 2
    assert "--hang-timeout" in done.stderr
    assert "at least 5" in done.stderr
    assert "at least 5" in flexwarm(tmp_path, command, env={"FLEXWARM_HANG_TIMEOUT": value}).stderr


def test_the_smallest_limit_for_hangs_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    assert flexwarm(tmp_path, "build", "--dry-run", "--hang-timeout", "5").returncode == 0


@pytest.mark.parametrize("command", ["build", "verify"])
@pytest.mark.parametrize("guard", [[], ["--guard", "report"]])
def test_a_part_of_the_remedy_without_the_remedy_is_refused_with_what_to_add(
    tmp_path: Path, command: str, guard: list[str]
) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    done = flexwarm(tmp_path, command, "--guard-backward", "caller", *guard)
    assert done.returncode == 2
    assert "--guard-backward caller" in done.stderr
    assert "next: add --guard fix" in done.stderr
    assert not (tmp_path / "store").exists()
    by_variable = flexwarm(tmp_path, command, *guard, env={"FLEXWARM_GUARD_BACKWARD": "caller"})
    assert (by_variable.returncode, by_variable.stderr) == (2, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "env", "guard"),
    [
        ([], {}, "report"),
        (["--guard", "fix"], {}, "fix"),
        ([], {"FLEXWARM_GUARD": "fix"}, "fix"),
        # What is said on the command line is meant for this run.
        (["--guard", "report"], {"FLEXWARM_GUARD": "fix"}, "report"),
        (["--guard", "fix", "--guard-backward", "caller"], {}, "fix+caller"),
        ([], {"FLEXWARM_GUARD": "fix", "FLEXWARM_GUARD_BACKWARD": "caller"}, "fix+caller"),
        (["--guard-backward", "engine"], {}, "report"),
    ],
)
def test_the_remedy_that_was_asked_for_is_in_the_result(
    tmp_path: Path, arguments: list[str], env: dict[str, str], guard: str
) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    done = flexwarm(tmp_path, "verify", "--format", "json", *arguments, env=env)
    assert (done.returncode, json.loads(done.stdout)["guard"]) == (1, guard)


def test_a_variable_with_a_remedy_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    done = flexwarm(tmp_path, "verify", env={"FLEXWARM_GUARD": "on"})
    assert done.returncode == 2
    assert "'on' is not one of" in done.stderr


@pytest.mark.parametrize(("lanes", "state"), [(1, "not needed"), (2, "not run")])
def test_where_nothing_was_run_nothing_was_drilled(tmp_path: Path, lanes: int, state: str) -> None:
    (tmp_path / "flexwarm.toml").write_text(f'schema = 1\n[[role]]\nname = "r"\nlanes = {lanes}\n' + SPEC[11:])
    data = json.loads(flexwarm(tmp_path, "verify", "--format", "json").stdout)
    assert data["drill"] == {"state": state, "ranks": [], "holds": 0, "calls": 0}
    assert data["hazards"] == []
    assert [job["lane"] for job in data["jobs"]] == list(range(lanes))


def test_the_plan_names_each_lane_with_its_device(tmp_path: Path) -> None:
    role = '[[role]]\nname = "r"\nlanes = 2\nstagger = 0.5\ncontext = "copy"\n'
    (tmp_path / "flexwarm.toml").write_text("schema = 1\n" + role + SPEC[11:])
    people = flexwarm(tmp_path, "build", "--dry-run").stdout
    assert "  lane 0 on cpu, w: 1 shapes\n" in people
    assert "  lane 1 on cpu, w: 1 shapes after w/r:0.0\n" in people
    assert "2 jobs, 1 to compile" in people
    (worker,) = json.loads(flexwarm(tmp_path, "build", "--dry-run", "--format", "json").stdout)["workers"]
    assert worker["lanes"] == [{"lane": n, "physical_device": "cpu", "device": "cpu"} for n in range(2)]
    assert (worker["stagger_seconds"], worker["context"]) == (0.5, "copy")
    assert [(job["id"], job["lane"], job["leader"]) for job in worker["jobs"]] == [
        ("w/r:0.0", 0, None),
        ("w/r:0.1", 1, "w/r:0.0"),
    ]


def test_a_variable_that_takes_the_kernels_out_of_the_bucket_is_refused_and_never_warm(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    env = {"TRITON_CACHE_MANAGER": "my.cache:Manager"}
    assert flexwarm(tmp_path, "build", env=env).returncode == 2
    done = flexwarm(tmp_path, "verify", "--fast", "--format", "json", env=env)
    assert [reason["code"] for reason in json.loads(done.stdout)["reasons"]] == ["cache-disabled"]
    assert done.returncode == 1


def test_a_spec_with_a_byte_order_mark_and_windows_line_ends_is_read(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_bytes(b"\xef\xbb\xbf" + SPEC.replace("\n", "\r\n").encode())
    assert flexwarm(tmp_path, "build", "--dry-run").returncode == 0


def test_a_reader_that_goes_away_is_no_error_of_ours(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "flexwarm", "fingerprint", "--store", str(tmp_path / "store")],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_verify_of_an_empty_store_is_cold_and_makes_no_store(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    done = flexwarm(tmp_path, "verify", "--format", "json")
    data = json.loads(done.stdout)
    assert (done.returncode, data["verdict"]) == (1, "cold")
    assert [reason["code"] for reason in data["reasons"]] == ["no-bucket"]
    assert [job["outcome"] for job in data["jobs"]] == ["not_run"]
    assert not (tmp_path / "store").exists()
    people = flexwarm(tmp_path, "verify")
    assert people.stdout.splitlines()[-1] == "  next: flexwarm build"
    assert "verdict: cold" in people.stdout


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("nowhere:mask", "no module 'nowhere'"),
        ("mine.deeper:mask", "'mine'"),
        ("mine:maks", "has no 'maks'"),
        ("broken:mask", "cannot be read as Python"),
    ],
)
def test_a_function_that_is_not_there_is_named_before_anything_starts(tmp_path: Path, mask: str, words: str) -> None:
    (tmp_path / "mine.py").write_text("import torch\n\ndef mask(b, h, q, kv):\n    return q >= kv\n")
    (tmp_path / "broken.py").write_text("def mask(:\n")
    (tmp_path / "flexwarm.toml").write_text(SPEC + f'mask_mod = "{mask}"\n')
    done = flexwarm(tmp_path, "build", "--dry-run")
    assert done.returncode == 2
    assert "workload 'w': mask_mod" in done.stderr
    assert words in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_device_that_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text('schema = 1\n[[role]]\nname = "r"\ndevices = "cuda:63"\n' + SPEC[11:])
    done = flexwarm(tmp_path, "build", "--dry-run")
    assert done.returncode == 3
    assert "role 'r': devices: cuda:63 is not there" in done.stderr


def test_no_compiler_is_exit_3_with_what_is_missing_and_what_would_still_be_served(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    empty = tmp_path / "bin"
    empty.mkdir()
    for command in ("build", "verify"):
        done = flexwarm(tmp_path, command, env={"PATH": str(empty)})
        assert done.returncode == 3
        assert "no C++ compiler" in done.stderr
        assert "no layer of a cache would be served" in done.stderr
        assert "g++" in done.stderr


def test_a_store_that_others_can_write_is_refused_unless_trusted(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    done = flexwarm(tmp_path, "verify")
    assert done.returncode == 3
    assert "chmod go-w" in done.stderr
    assert flexwarm(tmp_path, "verify", "--trust-shared").returncode == 1


def test_the_printed_environment_is_for_eval(tmp_path: Path) -> None:
    done = flexwarm(tmp_path, "env")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert all(line.startswith("export ") for line in lines)
    script = f'eval "$({sys.executable} -m flexwarm env)"; printf %s "$TORCHINDUCTOR_CACHE_DIR"'
    env = {**os.environ, "FLEXWARM_STORE": str(tmp_path / "store with spaces")}
    shell = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert shell.stdout.startswith(str(tmp_path / "store with spaces"))
    assert shell.stdout.endswith("/inductor")
