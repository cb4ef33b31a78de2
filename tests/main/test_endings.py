"""Interrupted, killed, crashed or stuck: the store stays whole, no process is left, and the next build finishes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flexwarm import manifest
from tests.harness import SECOND, SMALL, Flexwarm

pytestmark = pytest.mark.torch

WAIT_SECONDS = 120


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until the condition holds; fails if the process ends first, so that no test passes on a moment it never reached."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.005)


def events(flexwarm: Flexwarm) -> list[dict[str, object]]:
    """What the newest run's workers have said so far."""
    said = []
    for file in sorted(flexwarm.bucket.runs.glob("*/*.events.jsonl"))[-1:]:
        for line in file.read_text().splitlines():
            try:
                said.append(json.loads(line))
            except ValueError:  # a line that is being written
                continue
    return said


MOMENTS: dict[str, Callable[[dict[str, object]], bool]] = {
    "while importing torch": lambda e: e.get("phase") == "import",
    "while tracing": lambda e: e.get("phase") == "trace" and e.get("job") is not None,
    "while the compiler runs": lambda e: e.get("event") == "compiled",
    "after the last job": lambda e: e.get("event") == "job_done",
}


def start_build_and_wait(flexwarm: Flexwarm, moment: str) -> subprocess.Popen[str]:
    """A build that has one new kernel to compile, brought to the moment."""
    flexwarm.spec("schema = 1\n" + SECOND.replace('"second"', '"new"'))
    runs = set(flexwarm.run_ids())
    process = flexwarm.start("build", "--format", "json")
    wait_for(lambda: bool(set(flexwarm.run_ids()) - runs), process)
    wait_for(lambda: any(MOMENTS[moment](event) for event in events(flexwarm)), process)
    return process


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_a_compile_ends_all_of_it_and_the_next_build_finishes(
    warm: Flexwarm, signum: signal.Signals, code: int, no_process_left: Callable[[], None]
) -> None:
    process = start_build_and_wait(warm, "while the compiler runs")
    process.send_signal(signum)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert json.loads(out)["exit_code"] == code
    assert "Traceback" not in err
    no_process_left()
    # What had been built before is untouched, and what was not finished is not counted.
    assert warm.run_json("verify").codes() == {"not-built"}
    assert warm.run_json("build").code == 0
    assert warm.run_json("verify").json["verdict"] == "warm"


def test_two_signals_in_a_row_still_leave_no_process(warm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    process = start_build_and_wait(warm, "while the compiler runs")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    no_process_left()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_build_leaves_no_process_and_a_store_that_is_whole(
    warm: Flexwarm, moment: str, no_process_left: Callable[[], None]
) -> None:
    process = start_build_and_wait(warm, moment)
    process.kill()
    process.communicate()
    # Nobody is there to reap: the reaper and the kernel end the workers and the compilers that those started.
    deadline = time.monotonic() + 10
    while warm.processes_left() and time.monotonic() < deadline:
        time.sleep(0.01)
    no_process_left()

    warm.spec(SMALL)
    assert warm.run_json("verify").json["verdict"] == "warm"  # what was there before still is
    warm.spec("schema = 1\n" + SECOND.replace('"second"', '"new"'))
    assert warm.run_json("verify").codes() == {"not-built"}  # and nothing half made is counted
    done = warm.run_json("build")
    assert done.code == 0, done.messages()
    assert warm.run_json("verify").json["verdict"] == "warm"
    assert not warm.bucket.building.exists()


def test_half_a_library_under_its_final_name_is_not_loaded_by_the_next_build(warm: Flexwarm) -> None:
    """A linker that is killed leaves what it wrote; torch takes a file that exists for one that is whole."""
    before = warm.bucket.manifest.read_bytes()
    warm.spec("schema = 1\n" + SECOND)
    assert warm.run_json("build").code == 0
    known = {entry.path for entry in manifest.parse(before).files}
    made = [path for path in warm.bucket.inductor.rglob("*.main.so") if str(path.relative_to(warm.bucket.path)) not in known]
    (library,) = made
    # As after a kill: the manifest is of the build before, and the marker says that a build was under way.
    library.write_bytes(library.read_bytes()[:1000])
    warm.bucket.manifest.write_bytes(before)
    warm.bucket.building.write_text("{}\n")
    done = warm.run_json("build")
    assert done.code == 0, done.messages()
    assert "removed" in done.err
    assert library.stat().st_size > 1000
    assert warm.run_json("verify").json["verdict"] == "warm"


def user_mask(flexwarm: Flexwarm, source: str) -> None:
    """A spec whose mask comes from a module of the user's with ``source`` in it."""
    flexwarm.module(source + "\n\ndef mask(b, h, q, kv):\n    return q >= kv\n")
    flexwarm.spec(SMALL.replace('"causal"', '"mymasks:mask"').replace('"small"', '"user"'))


def test_a_worker_that_dies_of_a_segmentation_fault_is_named_with_its_signal_and_phase(
    warm: Flexwarm, no_process_left: Callable[[], None]
) -> None:
    user_mask(warm, "import ctypes\nctypes.string_at(0)")
    before = warm.bucket.manifest.read_bytes()
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"], done.codes()) == (6, "broken", {"crashed"})
    assert "SIGSEGV" in done.messages()
    assert "phase trace" in done.messages()
    assert [job["outcome"] for job in done.json["jobs"]] == ["crashed"]
    assert warm.bucket.manifest.read_bytes() == before
    no_process_left()


def test_a_job_that_raises_is_named_publishes_nothing_and_the_others_still_run(warm: Flexwarm) -> None:
    user_mask(warm, "raise RuntimeError('no such table')")
    (warm.directory / "flexwarm.toml").write_text((warm.directory / "flexwarm.toml").read_text() + SECOND)
    before = warm.bucket.manifest.read_bytes()
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"], done.codes()) == (5, "broken", {"raised"})
    assert "RuntimeError: no such table" in done.messages()
    outcomes = {job["workload"]: job["outcome"] for job in done.json["jobs"]}
    assert outcomes == {"user": "failed", "second": "compiled"}
    assert warm.bucket.manifest.read_bytes() == before
    assert "Traceback" not in done.err


def test_a_follower_of_a_job_that_failed_does_not_wait_for_it_and_says_so(warm: Flexwarm) -> None:
    user_mask(warm, "raise RuntimeError('no such table')")
    text = (warm.directory / "flexwarm.toml").read_text()
    warm.spec(text.replace("[[workload]]", '[[role]]\nname = "r"\nprocesses = 2\n\n[[workload]]'))
    done = warm.run_json("build")
    assert (done.code, done.codes()) == (5, {"raised", "leader-failed"})
    assert [job["outcome"] for job in done.json["jobs"]] == ["failed", "skipped"]


def test_a_job_past_its_limit_is_ended_with_its_stacks_in_the_log(warm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    user_mask(warm, "import time\n\ndef sleep_here():\n    time.sleep(1000)\n\nsleep_here()")
    done = warm.run_json("verify")
    assert done.codes() == {"not-built"}
    done = warm.run_json("build", "--job-timeout", "15")
    assert (done.code, done.json["verdict"], done.codes()) == (6, "broken", {"timed-out"})
    assert "15 s" in done.messages()
    log = Path(done.json["workers"][0]["log"]).read_text()
    assert "sleep_here" in log
    no_process_left()


def test_a_worker_that_stops_running_is_ended_after_its_silence(warm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    user_mask(warm, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)")
    done = warm.run_json("build", "--silence-timeout", "15")
    assert (done.code, done.codes()) == (6, {"silent"})
    no_process_left()


def test_a_process_that_left_its_group_is_ended_with_the_run(warm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    user_mask(warm, "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)")
    done = warm.run_json("build")
    assert done.code == 0, done.messages()
    no_process_left()


def test_a_module_that_prints_and_forks_disturbs_no_event_and_no_output(warm: Flexwarm) -> None:
    source = (
        "import os, sys\n"
        'print(\'{"event":"bye"}\', flush=True)\n'
        "print('noise on stderr', file=sys.stderr, flush=True)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    user_mask(warm, source)
    built = warm.run_json("build")
    # The mask is causal as well, so what the store has serves it: a new job, and nothing to compile.
    assert (built.code, built.json["verdict"]) == (0, "warm"), built.messages()
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    assert "noise" not in done.out + done.err
    assert "noise" in Path(done.json["workers"][0]["log"]).read_text()


def test_a_lock_that_is_held_is_waited_for_explained_and_bounded(warm: Flexwarm) -> None:
    user_mask(warm, "import time\ntime.sleep(1000)")
    runs = set(warm.run_ids())
    holder = warm.start("build")
    try:
        wait_for(lambda: bool(set(warm.run_ids()) - runs), holder)
        done = warm.run_json("verify", "--lock-wait", "1.5")
        assert done.code == 4
        assert "flexwarm build" in done.json["error"]["message"]
        assert str(holder.pid) in done.json["error"]["message"]
        assert "--lock-wait" in done.json["error"]["hint"]
        assert str(holder.pid) in done.err
    finally:
        holder.send_signal(signal.SIGTERM)
        holder.communicate(timeout=30)
    assert holder.returncode == 143
    assert os.path.exists(warm.bucket.path)


def test_a_hang_while_torch_is_imported_is_bounded_too(warm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    hook = (
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch' and path is None and '-m' not in sys.orig_argv:\n"
        "            time.sleep(1000)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    (warm.directory / "slow").mkdir()
    (warm.directory / "slow" / "sitecustomize.py").write_text(hook)
    path = os.pathsep.join([str(warm.directory / "slow"), os.environ.get("PYTHONPATH", "")])
    done = warm.run_json("verify", "--job-timeout", "4", env={"PYTHONPATH": path})
    assert (done.code, done.codes()) == (6, {"timed-out"})
    no_process_left()


@pytest.mark.parametrize(("then", "code"), [("", 0), ("sys.stdout.close()", 5)])  # torch itself wants to print
def test_a_module_that_leaves_a_thread_behind_or_closes_the_output_does_not_keep_the_worker(
    warm: Flexwarm, no_process_left: Callable[[], None], then: str, code: int
) -> None:
    thread = "threading.Thread(target=time.sleep, args=(1000,)).start()"
    user_mask(warm, f"import sys, threading, time\n{thread}\n{then}")
    done = warm.run_json("build")
    assert done.code == code, done.messages()
    no_process_left()


def test_a_module_that_calls_sys_exit_is_a_failed_job_with_its_log(warm: Flexwarm) -> None:
    user_mask(warm, "import sys\nsys.exit('enough')")
    done = warm.run_json("build")
    assert (done.code, done.codes()) == (5, {"raised"})
    assert "sys.exit('enough')" in done.messages()
    assert "log: " in done.json["jobs"][0]["reasons"][0]["hint"]


def test_a_bucket_that_is_deleted_during_its_build_is_said_and_publishes_nothing(warm: Flexwarm) -> None:
    user_mask(warm, "import os, shutil\nshutil.rmtree(os.path.dirname(os.environ['TORCHINDUCTOR_CACHE_DIR']))")
    done = warm.run_json("build")
    assert done.code in (5, 6, 7), done.err
    assert "Traceback" not in done.err
    assert warm.run_json("verify").json["verdict"] in ("cold", "broken")


def test_a_build_goes_on_when_nobody_reads_its_progress(warm: Flexwarm) -> None:
    user_mask(warm, "")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            warm.argv(["build"]), cwd=warm.directory, env=warm.environ(), stdout=subprocess.PIPE, stderr=full, text=True
        )
    assert done.returncode == 0
    assert "verdict: " in done.stdout


def test_a_disk_that_is_full_is_named_beside_what_the_compiler_said(warm: Flexwarm, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k,mode=755", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("a small disk can only be mounted by root")
    try:
        warm.spec("schema = 1\n" + SECOND)
        done = warm.run_json("build", "--store", str(small / "store"))
        assert done.code in (3, 5, 6), done.err
        assert "left" in done.messages() + done.err
        assert "flexwarm clean" in done.out + done.err
        assert "Traceback" not in done.err
    finally:
        subprocess.run(["umount", small], check=True)
