"""The directories of runs: the oldest go, but never that of a run that goes on, however many began after it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from flexwarm.ops.run import RUNS_KEPT, run_directory
from flexwarm.store import Bucket

#: Holds a run's directory from when it prints "held" until its standard input ends.
HOLD = """
import sys
from pathlib import Path
from flexwarm.ops.run import run_directory
from flexwarm.store import Store
bucket = Store.open(Path(sys.argv[1]), create=False).bucket(sys.argv[2])
with run_directory(bucket, "0-first") as directory:
    print("held", flush=True)
    sys.stdin.read()
"""


def begin(bucket: Bucket, count: int) -> None:
    """That many runs after each other."""
    for number in range(count):
        with run_directory(bucket, f"1-{number:02}") as directory:
            (directory / "events").touch()


def names(bucket: Bucket) -> list[str]:
    return sorted(path.name for path in bucket.runs.iterdir())


def test_of_runs_that_are_over_the_newest_are_kept(bucket: Bucket) -> None:
    begin(bucket, 2 * RUNS_KEPT)
    assert names(bucket) == [f"1-{number:02}" for number in range(RUNS_KEPT, 2 * RUNS_KEPT)]


def test_the_directory_of_a_run_that_goes_on_stays_until_it_is_over(bucket: Bucket) -> None:
    """A launch may take days, while others are verified in the same bucket."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(bucket.root), bucket.digest], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        begin(bucket, 2 * RUNS_KEPT)
        assert "0-first" in names(bucket)
    finally:
        child.stdin.close()
        child.wait(timeout=30)
        child.stdout.close()
    begin(bucket, 1)
    assert "0-first" not in names(bucket)


def test_more_runs_at_once_than_are_kept_all_have_theirs(bucket: Bucket) -> None:
    """As many nodes that share a store begin their part of one launch together."""
    with ExitStack() as stack:
        directories = [stack.enter_context(run_directory(bucket, f"1-{number:02}")) for number in range(3 * RUNS_KEPT)]
        assert all(directory.is_dir() for directory in directories)


def test_a_bucket_that_cannot_be_written_has_its_runs_elsewhere(bucket: Bucket) -> None:
    bucket.runs.rmdir()
    bucket.runs.write_text("in the way\n")
    with run_directory(bucket, "1-00") as directory:
        assert directory.is_dir()
        assert Path(bucket.root) not in directory.parents
