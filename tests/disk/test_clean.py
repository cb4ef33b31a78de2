from __future__ import annotations

import dataclasses
import json
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexwarm import ledger, locks
from flexwarm.errors import BusyError, StoreError
from flexwarm.ops import clean
from flexwarm.ops.clean import Action, Reason, Selection, Usage
from flexwarm.store import Bucket, Store

#: The fixture: another process that holds a lock for the length of a ``with`` block.
Holding = Callable[[Path, Path], AbstractContextManager["subprocess.Popen[str]"]]

OLD, MIDDLE, NEW = "0a" * 10, "1b" * 10, "2c" * 10
DAY = 86400.0


def fill(store: Store, digest: str, *, size_bytes: int, age_seconds: float) -> Bucket:
    bucket = store.bucket(digest)
    bucket.create()
    (bucket.inductor / "code.py").write_bytes(b"x" * size_bytes)
    ledger.append(bucket, {"command": "build", "time_unix": time.time() - age_seconds})
    return bucket


@pytest.fixture
def three(store: Store) -> Store:
    """Buckets of 3, 2 and 1 megabytes, last used 40, 10 and 0 days ago."""
    fill(store, OLD, size_bytes=3_000_000, age_seconds=40 * DAY)
    fill(store, MIDDLE, size_bytes=2_000_000, age_seconds=10 * DAY)
    fill(store, NEW, size_bytes=1_000_000, age_seconds=0)
    return store


def flexwarm(store: Store, *args: str, columns: int = 60) -> subprocess.CompletedProcess[str]:
    """The command itself, as a user without a terminal runs it."""
    env = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "flexwarm", "clean", "--store", str(store.root), *args]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)


def left(store: Store) -> list[str]:
    return [bucket.digest for bucket in store.buckets()]


def plan_of(store: Store, selection: Selection) -> clean.Plan:
    found = clean.leftovers(store, quarantine=selection.everything)
    return clean.decide(clean.survey(store), found, selection, now_unix=time.time())


# The decision


def usage(bucket: str, *, size: int = 1, last: float = 0.0, holder: str | None = None) -> Usage:
    return Usage(bucket=bucket, size_bytes=size, files=1, last_use_unix=last, holder=holder)


def decided(usages: list[Usage], selection: Selection, now: float = 100.0) -> list[tuple[str, Action, Reason]]:
    plan = clean.decide(usages, (), selection, now_unix=now)
    return [(step.usage.bucket, step.action, step.reason) for step in plan.steps]


def test_every_bucket_but_that_of_the_current_fingerprint_is_stale() -> None:
    assert decided([usage("a", last=1), usage("b", last=2)], Selection(current="b")) == [
        ("a", Action.DELETE, Reason.STALE),
        ("b", Action.KEEP, Reason.CURRENT),
    ]


def test_the_least_recently_used_go_first_until_the_rest_fits() -> None:
    usages = [usage("new", size=4, last=9), usage("old", size=4, last=1), usage("middle", size=4, last=5)]
    assert decided(usages, Selection(max_size_bytes=8)) == [
        ("old", Action.DELETE, Reason.OVER_SIZE),
        ("middle", Action.KEEP, Reason.NOT_SELECTED),
        ("new", Action.KEEP, Reason.NOT_SELECTED),
    ]


def test_a_store_that_fits_loses_nothing() -> None:
    assert decided([usage("a", size=8)], Selection(max_size_bytes=8)) == [("a", Action.KEEP, Reason.NOT_SELECTED)]


def test_what_is_in_use_counts_against_the_limit_and_the_next_one_goes_in_its_place() -> None:
    usages = [usage("held", size=4, last=1, holder="a build"), usage("next", size=4, last=2), usage("last", size=4, last=3)]
    assert [(bucket, action) for bucket, action, _ in decided(usages, Selection(max_size_bytes=8))] == [
        ("held", Action.SKIP),
        ("next", Action.DELETE),
        ("last", Action.KEEP),
    ]


def test_selections_add_up_and_the_size_is_that_of_what_the_others_leave() -> None:
    usages = [usage("a", size=4, last=1), usage("b", size=4, last=90), usage("c", size=4, last=95)]
    assert decided(usages, Selection(older_than_seconds=50, max_size_bytes=8)) == [
        ("a", Action.DELETE, Reason.OLD),
        ("b", Action.KEEP, Reason.NOT_SELECTED),
        ("c", Action.KEEP, Reason.NOT_SELECTED),
    ]


@given(
    usages=st.lists(
        st.builds(
            usage,
            st.text("abcdef", min_size=20, max_size=20),
            size=st.integers(0, 100),
            last=st.floats(0, 100),
            holder=st.sampled_from([None, "someone"]),
        ),
        unique_by=lambda value: value.bucket,
    ),
    limit=st.integers(0, 300),
)
def test_after_a_limit_the_rest_fits_unless_what_is_in_use_does_not(usages: list[Usage], limit: int) -> None:
    plan = clean.decide(usages, (), Selection(max_size_bytes=limit), now_unix=100.0)
    assert len(plan.steps) == len(usages)
    stays = sum(step.usage.size_bytes for step in plan.steps if step.action is not Action.DELETE)
    held = sum(value.size_bytes for value in usages if value.holder)
    assert stays <= max(limit, held)
    assert all(not step.usage.holder for step in plan.having(Action.DELETE))
    deleted = plan.having(Action.DELETE)
    if deleted:  # the last one did not go in vain
        assert stays + deleted[-1].usage.size_bytes > limit


# The deed


def test_all_empties_the_store_the_staging_and_the_quarantine_and_keeps_the_locks(three: Store) -> None:
    (three.quarantine / "broken").mkdir()
    (three.quarantine / "broken/file").write_text("xyz")
    result = clean.execute(three, plan_of(three, Selection(everything=True)), wait_seconds=0, notify=print)
    assert left(three) == []
    assert three.staged() == three.quarantined() == ()
    assert result.freed_bytes > 6_000_000
    assert result.leftovers_bytes == 3
    assert three.bucket(OLD).lock.exists(), "a lock file was unlinked"


def test_a_bucket_that_a_process_took_after_the_plan_is_skipped_and_its_holder_named(
    three: Store, held_elsewhere: Holding
) -> None:
    plan = plan_of(three, Selection(everything=True))
    bucket = three.bucket(OLD)
    with held_elsewhere(bucket.lock, bucket.holder) as child:
        result = clean.execute(three, plan, wait_seconds=0, notify=print)
    (step,) = result.having(Action.SKIP)
    assert (step.usage.bucket, step.reason) == (OLD, Reason.IN_USE)
    assert step.usage.holder is not None
    assert f"pid {child.pid} " in step.usage.holder
    assert left(three) == [OLD]


def test_a_bucket_that_was_used_after_the_plan_is_not_deleted(three: Store) -> None:
    plan = plan_of(three, Selection(older_than_seconds=30 * DAY))
    ledger.append(three.bucket(OLD), {"command": "verify"})
    result = clean.execute(three, plan, wait_seconds=0, notify=print)
    assert [(step.usage.bucket, step.reason) for step in result.having(Action.SKIP)] == [(OLD, Reason.USED_SINCE)]
    assert result.freed_bytes == 0
    assert OLD in left(three)


def test_a_plan_carried_out_twice_frees_nothing_the_second_time(three: Store) -> None:
    plan = plan_of(three, Selection(everything=True))
    clean.execute(three, plan, wait_seconds=0, notify=print)
    again = clean.execute(three, plan, wait_seconds=0, notify=print)
    assert {step.reason for step in again.steps} == {Reason.GONE}
    assert again.freed_bytes == 0


def test_a_store_that_another_process_holds_is_busy(three: Store, held_elsewhere: Holding) -> None:
    with held_elsewhere(three.lock, three.holder) as child, pytest.raises(BusyError, match=f"pid {child.pid} "):
        clean.execute(three, plan_of(three, Selection(everything=True)), wait_seconds=0, notify=print)
    assert left(three) == [OLD, MIDDLE, NEW]


def test_trees_of_dead_processes_are_swept_and_those_of_living_ones_and_of_other_hosts_stay(three: Store) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=30)  # its pid is now nobody's
    host = socket.gethostname()
    swept = [f"unpack.{host}.{child.pid}.00ff", f"deleted.{OLD}.elsewhere.1.00ff"]
    stays = [f"unpack.{host}.{os.getpid()}.00ff", "unpack.elsewhere.999999.00ff", "unknown"]
    for name in (*swept, *stays):
        (three.staging / name).mkdir()
        (three.staging / name / "file").write_text("x")
    plan = plan_of(three, Selection(older_than_seconds=1000 * DAY))
    assert sorted(leftover.path.name for leftover in plan.leftovers) == sorted(swept)
    clean.execute(three, plan, wait_seconds=0, notify=print)
    assert sorted(path.name for path in three.staged()) == sorted(stays)
    assert left(three) == [OLD, MIDDLE, NEW]


def test_a_link_in_the_place_of_a_bucket_is_removed_and_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    (store.buckets_path / OLD).symlink_to(tmp_path / "mine")
    clean.execute(store, plan_of(store, Selection(everything=True)), wait_seconds=0, notify=print)
    assert left(store) == []
    assert (tmp_path / "mine/thesis.tex").exists()


def test_a_bucket_that_cannot_be_moved_away_is_an_error_and_stays_whole(three: Store) -> None:
    plan = plan_of(three, Selection(everything=True))
    three.staging.rmdir()
    three.staging.write_text("")
    with pytest.raises(StoreError, match=f"cannot delete {three.bucket(OLD).path}"):
        clean.execute(three, plan, wait_seconds=0, notify=print)
    assert left(three) == [OLD, MIDDLE, NEW]
    assert (three.bucket(OLD).inductor / "code.py").stat().st_size == 3_000_000


# The command


def test_without_a_selection_it_lists_the_choices_and_deletes_nothing(three: Store) -> None:
    done = flexwarm(three, "--yes")
    assert done.returncode == 2
    assert "--all, --stale, --older-than AGE, --max-size SIZE" in done.stderr
    assert left(three) == [OLD, MIDDLE, NEW]


@pytest.mark.parametrize("output", ["human", "json"])
def test_without_a_terminal_it_asks_for_yes_or_a_dry_run(three: Store, output: str) -> None:
    done = flexwarm(three, "--all", "--format", output)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert "--dry-run" in done.stderr
    assert left(three) == [OLD, MIDDLE, NEW]


@pytest.mark.parametrize(
    "args", [["--older-than", "5x"], ["--older-than", "-1d"], ["--max-size", "many"], ["--max-size", "1e9"]]
)
def test_a_quantity_that_cannot_be_read_says_what_would_be_right(three: Store, args: list[str]) -> None:
    done = flexwarm(three, *args, "--yes")
    assert done.returncode == 2
    assert "such as" in done.stderr
    assert left(three) == [OLD, MIDDLE, NEW]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--older-than", "30d"], [MIDDLE, NEW]),
        (["--older-than", "1w"], [NEW]),
        (["--older-than", "1000h"], [OLD, MIDDLE, NEW]),
        (["--max-size", "3.1M"], [MIDDLE, NEW]),
        (["--max-size", "2.9MB"], [NEW]),
        (["--max-size", "1MiB"], [NEW]),
        (["--max-size", "1MB"], []),
        (["--max-size", "0B"], []),
        (["--older-than", "30d", "--max-size", "2M"], [NEW]),
        (["--all"], []),
    ],
)
def test_a_selection_deletes_what_it_says(three: Store, args: list[str], expected: list[str]) -> None:
    done = flexwarm(three, *args, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert left(three) == expected


def test_a_dry_run_shows_the_plan_in_60_columns_and_writes_nothing(three: Store) -> None:
    before = {path: path.lstat().st_mtime_ns for path in three.root.rglob("*")}
    done = flexwarm(three, "--older-than", "30d", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: path.lstat().st_mtime_ns for path in three.root.rglob("*")} == before
    assert max(len(line) for line in done.stdout.splitlines()) <= 60
    for text in (OLD, "older-than", MIDDLE, NEW, "not-selected", "would free 3.0 MB: 1 bucket to delete"):
        assert text in done.stdout


def test_json_has_raw_numbers_and_reasons_of_the_closed_list(three: Store) -> None:
    done = flexwarm(three, "--older-than", "30d", "--yes", "--format", "json")
    data = json.loads(done.stdout)
    assert (data["command"], data["verdict"], data["exit_code"], data["dry_run"]) == ("clean", None, 0, False)
    assert [(entry["bucket"], entry["action"], entry["reason"]) for entry in data["buckets"]] == [
        (OLD, "delete", "older-than"),
        (MIDDLE, "keep", "not-selected"),
        (NEW, "keep", "not-selected"),
    ]
    assert data["freed_bytes"] == data["buckets"][0]["size_bytes"] > 3_000_000
    assert data["buckets"][0]["files"] == 2
    assert data["buckets"][0]["last_use_unix"] == pytest.approx(time.time() - 40 * DAY, abs=60)


def test_a_bucket_in_use_is_skipped_named_and_told(three: Store, held_elsewhere: Holding) -> None:
    bucket = three.bucket(OLD)
    with held_elsewhere(bucket.lock, bucket.holder) as child:
        done = flexwarm(three, "--all", "--yes")
    assert done.returncode == 0
    assert left(three) == [OLD]
    assert "skipped" in done.stdout
    assert f"pid {child.pid}" in " ".join(done.stdout.split())


def test_nothing_to_delete_is_said_and_needs_no_yes(store: Store, tmp_path: Path) -> None:
    for root in (store.root, tmp_path / "none"):
        done = flexwarm(Store(root=root), "--all")
        assert (done.returncode, done.stdout, done.stderr) == (0, "nothing to delete\n", "")
    assert not (tmp_path / "none").exists()


def test_a_directory_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = flexwarm(Store(root=tmp_path), "--all", "--yes")
    assert (done.returncode, done.stdout) == (0, "nothing to delete\n")
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(("answer", "expected"), [("y", []), ("n", [OLD, MIDDLE, NEW])])
def test_on_a_terminal_it_shows_the_plan_and_asks(three: Store, answer: str, expected: list[str]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "flexwarm", "clean", "--store", str(three.root), "--all"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        out, err = child.communicate(timeout=60)
    os.close(ours)
    assert child.returncode == 0
    assert "to delete:" in out
    assert "delete? [y/N]" in err
    assert left(three) == expected


def test_a_free_bucket_of_a_killed_build_is_not_in_use(three: Store, held_elsewhere: Holding) -> None:
    bucket = three.bucket(OLD)
    with held_elsewhere(bucket.lock, bucket.holder) as child:
        child.kill()
        child.wait(timeout=30)
    assert "build" in locks.read_holder(bucket.holder)
    assert flexwarm(three, "--all", "--yes").returncode == 0
    assert left(three) == []


# Leases of runs

#: Holds a lease from when it prints "held" until its standard input ends.
LEASE = """
import sys
from pathlib import Path
from flexwarm import leases
from flexwarm.store import Bucket
with leases.hold(Bucket(root=Path(sys.argv[1]), digest=sys.argv[2]), command="torchrun x.py", wait_seconds=30, notify=print):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def leased(bucket: Bucket) -> Iterator[subprocess.Popen[str]]:
    """A run in another process that uses ``bucket`` for the length of the block."""
    words = [sys.executable, "-c", LEASE, str(bucket.root), bucket.digest]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.stdin.close()
            child.wait(timeout=30)


def run_of(child: subprocess.Popen[str]) -> str:
    return f"flexwarm run -- torchrun x.py (pid {child.pid} on {socket.gethostname()}, since "


def test_a_leased_bucket_is_skipped_and_counts_against_a_limit() -> None:
    usages = [
        dataclasses.replace(usage("leased", size=4, last=1), leases=("a run",)),
        usage("next", size=4, last=2),
        usage("last", size=4, last=3),
    ]
    assert decided(usages, Selection(max_size_bytes=8)) == [
        ("leased", Action.SKIP, Reason.LEASED),
        ("next", Action.DELETE, Reason.OVER_SIZE),
        ("last", Action.KEEP, Reason.NOT_SELECTED),
    ]
    assert decided(usages, Selection(max_size_bytes=8, force=True)) == [
        ("leased", Action.DELETE, Reason.OVER_SIZE),
        ("next", Action.KEEP, Reason.NOT_SELECTED),
        ("last", Action.KEEP, Reason.NOT_SELECTED),
    ]


def test_force_is_for_leases_and_never_for_a_bucket_that_a_build_has_locked() -> None:
    held = dataclasses.replace(usage("held", holder="a build"), leases=("a run",))
    assert decided([held], Selection(everything=True, force=True)) == [("held", Action.SKIP, Reason.IN_USE)]


def test_a_bucket_that_runs_use_is_skipped_and_each_is_named(three: Store) -> None:
    bucket = three.bucket(OLD)
    with leased(bucket) as first, leased(bucket) as second:
        done = flexwarm(three, "--all", "--yes", columns=200)
        dry = flexwarm(three, "--all", "--dry-run", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert left(three) == [OLD]
    assert "leased" in done.stdout
    for child in (first, second):
        assert f"{OLD} is held by {run_of(child)}" in done.stdout
    (entry,) = json.loads(dry.stdout)["buckets"]
    assert (entry["action"], entry["reason"], entry["holder"], len(entry["leases"])) == ("skip", "leased", None, 2)


def test_force_deletes_it_all_the_same_and_says_from_whom_it_was_taken(three: Store) -> None:
    with leased(three.bucket(OLD)) as child:
        dry = flexwarm(three, "--all", "--force", "--dry-run", columns=200)
        assert f"{OLD} will be taken from {run_of(child)}" in dry.stdout
        assert left(three) == [OLD, MIDDLE, NEW]
        done = flexwarm(three, "--all", "--force", "--yes", "--quiet", columns=200)
    assert done.returncode == 0
    assert f"{OLD} was taken from {run_of(child)}" in done.stdout
    assert left(three) == []


def test_force_says_in_json_from_whom_it_was_taken(three: Store) -> None:
    with leased(three.bucket(OLD)) as child:
        done = flexwarm(three, "--older-than", "30d", "--force", "--yes", "--format", "json")
    entry = json.loads(done.stdout)["buckets"][0]
    assert (entry["bucket"], entry["action"], entry["reason"], entry["holder"]) == (OLD, "delete", "older-than", None)
    (taken,) = entry["leases"]
    assert taken.startswith(run_of(child))


def test_force_without_a_lease_is_a_plain_clean(three: Store) -> None:
    done = flexwarm(three, "--all", "--force", "--yes", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert left(three) == []


def test_the_lease_of_a_killed_run_stops_nobody(three: Store) -> None:
    bucket = three.bucket(OLD)
    with leased(bucket) as child:
        child.kill()
        child.wait(timeout=30)
    assert len(list(bucket.leases.glob(f"*.{child.pid}.*"))) == 2, "the run left nothing that could be in the way"
    done = flexwarm(three, "--all", "--yes")
    assert "skipped" not in done.stdout
    assert left(three) == []
    assert [path.name for path in bucket.leases.iterdir()] == [bucket.gate.name]


def test_a_bucket_that_a_run_took_after_the_plan_is_skipped_unless_forced(three: Store) -> None:
    plan = plan_of(three, Selection(everything=True))
    with leased(three.bucket(OLD)) as old, leased(three.bucket(NEW)):
        result = clean.execute(three, plan, wait_seconds=0, notify=print)
        assert [(step.usage.bucket, step.reason) for step in result.having(Action.SKIP)] == [
            (OLD, Reason.LEASED),
            (NEW, Reason.LEASED),
        ]
        (taken,) = result.having(Action.SKIP)[0].usage.leases
        assert taken.startswith(run_of(old))
        assert left(three) == [OLD, NEW]
        forced = clean.execute(three, plan, wait_seconds=0, notify=print, force=True)
    assert left(three) == []
    assert [step.usage.bucket for step in forced.having(Action.DELETE) if step.usage.leases] == [OLD, NEW]


def test_a_run_that_begins_after_a_clean_finds_no_bucket_and_its_lease_is_of_the_next_one(three: Store) -> None:
    bucket = three.bucket(OLD)
    clean.execute(three, plan_of(three, Selection(everything=True)), wait_seconds=0, notify=print)
    with leased(bucket):
        assert not bucket.exists()
        fill(three, OLD, size_bytes=1, age_seconds=0)
        clean.execute(three, plan_of(three, Selection(everything=True)), wait_seconds=0, notify=print)
        assert bucket.exists()
