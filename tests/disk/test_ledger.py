from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexwarm import ledger
from flexwarm.errors import StoreError
from flexwarm.store import Bucket, Store


def test_entries_come_back_in_the_order_in_which_they_were_added(bucket: Bucket) -> None:
    ledger.append(bucket, {"command": "build", "verdict": "cold", "time_unix": 5.0})
    ledger.append(bucket, {"command": "verify", "verdict": "warm", "time_unix": 3.0})
    assert [entry["command"] for entry in ledger.entries(bucket)] == ["build", "verify"]
    assert ledger.last_use(bucket) == 5.0


def test_a_line_that_a_crash_cut_spoils_neither_the_lines_before_nor_after_it(bucket: Bucket) -> None:
    ledger.append(bucket, {"command": "build", "time_unix": 1.0})
    with open(bucket.ledger, "ab") as stream:
        stream.write(b'{"command":"verify","time_u')
    ledger.append(bucket, {"command": "env", "time_unix": 2.0})
    assert [entry["command"] for entry in ledger.entries(bucket)] == ["build", "env"]


@pytest.mark.parametrize(
    "junk", [b"\0\0\0\0\n", b"\xff\xfe\n", b"[1]\n", b'{"command":"x"}\n', b"\n", b'{"time_unix":"now"}\n']
)
def test_a_line_that_is_no_entry_is_skipped(bucket: Bucket, junk: bytes) -> None:
    bucket.ledger.write_bytes(junk)
    ledger.append(bucket, {"command": "build", "time_unix": 1.0})
    assert [entry["command"] for entry in ledger.entries(bucket)] == ["build"]


def test_processes_that_append_at_once_lose_no_line(bucket: Bucket) -> None:
    script = """
import sys
from pathlib import Path
from flexwarm import ledger
from flexwarm.store import Bucket
bucket = Bucket(root=Path(sys.argv[1]), digest=sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
for number in range(50):
    ledger.append(bucket, {"command": "x" * 300, "number": number})
"""
    args = [sys.executable, "-c", script, str(bucket.root), bucket.digest]
    children = [subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    assert [child.wait(timeout=60) for child in children] == [0] * 4
    for child in children:
        assert child.stdout is not None
        child.stdout.close()
    assert sorted(entry["number"] for entry in ledger.entries(bucket)) == sorted(list(range(50)) * 4)


def test_without_a_ledger_the_last_use_is_the_manifests_time_and_then_the_directorys(bucket: Bucket) -> None:
    os.utime(bucket.path, (1000, 1000))
    assert ledger.last_use(bucket) == 1000
    bucket.manifest.write_text("{}")
    os.utime(bucket.manifest, (2000, 2000))
    assert ledger.last_use(bucket) == 2000


def test_a_bucket_that_does_not_exist_was_never_used(store: Store) -> None:
    missing = store.bucket("cd" * 10)
    assert ledger.last_use(missing) is None
    with pytest.raises(StoreError, match="cannot write"):
        ledger.append(missing, {"command": "build"})


def test_a_ledger_that_is_not_a_file_is_a_store_error(bucket: Bucket) -> None:
    Path(bucket.ledger).mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        list(ledger.entries(bucket))
