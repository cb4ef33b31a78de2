"""``flexwarm fingerprint`` as it is called: output, exit codes, comparison, and what it does not import."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import platformdirs
import pytest

import flexwarm
from flexwarm import toolchain
from flexwarm.errors import CorruptError, UsageError
from flexwarm.fingerprint import Fingerprint
from flexwarm.ops import fingerprint as op
from flexwarm.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def call(store: Store, *args: str, **environ: str | None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FLEXWARM_STORE": str(store.root), **environ}
    return subprocess.run(
        [sys.executable, "-m", "flexwarm", "fingerprint", *args],
        env={name: value for name, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=60,
    )


def document(store: Store, *args: str, **environ: str | None) -> dict[str, Any]:
    data = json.loads(call(store, "--format", "json", *args, **environ).stdout)
    assert isinstance(data, dict)
    return data


def put(store: Store, value: Fingerprint) -> Path:
    bucket = store.bucket(value.digest)
    bucket.create()
    bucket.fingerprint.write_text(json.dumps(value.to_json()))
    return bucket.path


def current() -> Fingerprint:
    return toolchain.fingerprint(os.environ, store=None)


def with_component(value: Fingerprint, name: str, text: str) -> Fingerprint:
    return replace(value, select={**value.select, name: text})


@pytest.mark.parametrize("diff", [False, True])
def test_neither_torch_nor_triton_nor_rich_is_imported(store: Store, diff: bool) -> None:
    put(store, current())
    args = ["fingerprint", "--store", str(store.root), *(["--diff", current().digest] if diff else [])]
    script = (
        "import sys\nfrom flexwarm.cli.main import main\n"
        f"try: main({args!r})\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "print('IMPORTED', sorted({'torch', 'triton', 'numpy', 'rich'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["IMPORTED []"], done.stderr


def test_json_has_the_digest_the_components_and_no_changes_without_diff(store: Store) -> None:
    data = document(store)
    assert (data["schema"], data["command"], data["verdict"], data["exit_code"]) == (1, "fingerprint", None, 0)
    assert data["bucket"] == data["fingerprint"]["digest"] == Fingerprint.from_json(data["fingerprint"]).digest
    assert "changes" not in data


def test_two_processes_agree_whatever_their_hash_seed(store: Store) -> None:
    first, second = document(store, PYTHONHASHSEED="1"), document(store, PYTHONHASHSEED="2")
    assert first == second


def test_every_component_that_selects_changes_the_digest() -> None:
    here = current()
    digests = {with_component(here, name, value + " changed").digest for name, value in here.select.items()}
    assert len(digests | {here.digest}) == len(here.select) + 1


def test_a_component_that_explains_does_not_change_the_digest() -> None:
    here = current()
    assert replace(here, explain={}).digest == here.digest


def test_the_cpu_variable_selects_another_bucket(store: Store) -> None:
    default, asked = document(store, ATEN_CPU_CAPABILITY=None), document(store, ATEN_CPU_CAPABILITY="default")
    assert asked["fingerprint"]["select"]["cpu.capability"] == "DEFAULT"
    assert (default["bucket"] == asked["bucket"]) == (default["fingerprint"]["select"]["cpu.capability"] == "DEFAULT")


@pytest.mark.parametrize("value", ["0", "", "1"])
def test_a_variable_that_is_unset_differs_from_every_value(store: Store, value: str) -> None:
    name = "TORCHINDUCTOR_FX_GRAPH_CACHE"
    put(store, toolchain.fingerprint({k: v for k, v in os.environ.items() if k != name}, store=None))
    data = document(store, "--diff", current().digest, **{name: value})
    assert data["changes"] == [{"component": f"env.{name}", "old": None, "new": value, "selects": False}]
    assert data["exit_code"] == 0


def test_a_neutral_variable_is_not_recorded(store: Store) -> None:
    explain = document(store, TORCH_LOGS="recompiles", CI="true")["fingerprint"]["explain"]
    assert "env.TORCH_LOGS" not in explain
    assert explain["env.CI"] == "true"


def test_a_value_that_is_not_text_survives_in_both_formats(store: Store) -> None:
    raw = b"\xff\x1b[31m".decode(errors="surrogateescape")
    assert document(store, TRITON_ODD=raw)["fingerprint"]["explain"]["env.TRITON_ODD"] == "\\xff\x1b[31m"
    done = call(store, TRITON_ODD=raw)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "env.TRITON_ODD" in done.stdout


def test_a_pipe_gets_plain_lines_that_are_not_broken(store: Store) -> None:
    done = call(store, COLUMNS="20", TRITON_LONG="x" * 300)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "x" * 300 in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("bucket  ")


def test_a_narrow_terminal_gets_every_value_whole(store: Store) -> None:
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "flexwarm", "fingerprint", "--store", str(store.root)],
        env={**environ, "TERM": "xterm", "NO_COLOR": "1", "TRITON_LONG": "abcdefghij" * 30},
        stdout=writing,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    chunks = []
    while True:
        try:
            chunk = os.read(reading, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(reading)
    assert process.wait(timeout=60) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", b"".join(chunks).decode())
    assert max(len(line) for line in shown.splitlines()) <= 60
    assert "abcdefghij" * 30 in re.sub(r"\s", "", shown)
    assert current().select["cpu.extensions"].replace(" ", "") in re.sub(r"\s", "", shown)


def test_comparing_with_its_own_bucket_finds_nothing(store: Store) -> None:
    path = put(store, current())
    for wanted in (current().digest, current().digest[:6], str(path), str(path / "fingerprint.json")):
        done = call(store, "--diff", wanted)
        assert (done.returncode, "nothing differs" in done.stdout) == (0, True), wanted


def test_a_component_that_selects_is_named_with_both_values_and_exits_1(store: Store) -> None:
    old = with_component(current(), "torch.version", "2.9.1+cu128")
    put(store, old)
    done = call(store, "--diff", old.digest)
    assert done.returncode == 1
    assert f"torch.version  2.9.1+cu128 -> {current().select['torch.version']}" in done.stdout
    data = document(store, "--diff", old.digest)
    assert data["exit_code"] == 1
    assert data["changes"] == [
        {"component": "torch.version", "old": "2.9.1+cu128", "new": current().select["torch.version"], "selects": True}
    ]


def test_an_unknown_bucket_lists_five_of_those_that_there_are(store: Store) -> None:
    for number in range(7):
        put(store, with_component(current(), "torch.version", str(number)))
    done = call(store, "--diff", "zz")
    assert done.returncode == 2
    assert done.stderr.count(", ") == 4
    assert "and 2 more" in done.stderr


@pytest.mark.parametrize("wanted", ["", "zz", "a/b", "x" * 5000, "\n"])
def test_a_bucket_that_is_not_there_is_a_usage_error(store: Store, wanted: str) -> None:
    done = call(store, "--diff", wanted)
    assert done.returncode == 2
    assert "no bucket" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_beginning_that_two_buckets_share_is_refused(store: Store) -> None:
    for number in range(17):  # two of 17 begin with the same of 16 digits
        put(store, with_component(current(), "torch.version", str(number)))
    firsts = [bucket.digest[0] for bucket in store.buckets()]
    shared = next(first for first in firsts if firsts.count(first) > 1)
    with pytest.raises(UsageError, match=f"{shared} begins the name of {firsts.count(shared)} buckets"):
        op.find(shared, store)


def test_a_bucket_without_a_fingerprint_is_said_to_be_unfinished(store: Store) -> None:
    bucket = store.bucket("0" * 20)
    bucket.create()
    with pytest.raises(UsageError, match="did not finish"):
        op.find("0000", store)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 2}', "\x00"])
def test_a_corrupt_fingerprint_is_named_and_exits_7(store: Store, content: str) -> None:
    path = put(store, current()) / "fingerprint.json"
    path.write_text(content)
    done = call(store, "--diff", current().digest)
    assert done.returncode == 7
    assert str(path) in done.stderr


def test_a_fingerprint_that_was_changed_by_hand_is_corrupt(store: Store) -> None:
    path = put(store, current()) / "fingerprint.json"
    path.write_text(path.read_text().replace(current().select["torch.version"], "2.12.0"))
    with pytest.raises(CorruptError, match="digest"):
        op.read(path)


def test_a_wrong_option_is_a_usage_error_with_the_way_to_help(store: Store) -> None:
    done = call(store, "--dif", "x", "--nonsense")
    assert done.returncode == 2
    assert "flexwarm fingerprint --help" in done.stderr


def test_without_a_store_directory_none_is_made(tmp_path: Path) -> None:
    done = call(Store(root=tmp_path / "none"))
    assert done.returncode == 0
    assert not (tmp_path / "none").exists()


def test_two_buckets_are_compared_without_a_torch_here(store: Store, tmp_path: Path) -> None:
    here = current()
    other = replace(with_component(here, "torch.version", "2.0.0"), explain={**here.explain, "gpu.driver": "1"})
    put(store, here)
    put(store, other)
    # -S leaves site-packages out; only flexwarm and what it needs are put back.
    site = tmp_path / "site"
    site.mkdir()
    for module in (flexwarm, click, platformdirs):
        assert module.__file__ is not None
        (site / module.__name__).symlink_to(Path(module.__file__).parent)
    asked = ["fingerprint", here.digest, "--diff", other.digest, "--format", "json", "--store", str(store.root)]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "flexwarm", *asked],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    data = json.loads(done.stdout)
    assert (done.returncode, data["exit_code"], data["here"]) == (1, 1, False), done.stderr
    assert (data["bucket"], data["diff"]) == (here.digest, other.digest)
    assert {"component": "torch.version", "old": "2.0.0", "new": here.select["torch.version"], "selects": True} in data[
        "changes"
    ]
    assert {"component": "gpu.driver", "old": "1", "new": here.explain.get("gpu.driver"), "selects": False} in data["changes"]


def test_what_a_bucket_was_built_for_is_printed_alone_and_people_read_from_and_to(store: Store) -> None:
    here = current()
    other = with_component(here, "torch.version", "2.0.0")
    put(store, here)
    put(store, other)
    alone = document(store, other.digest)
    assert (alone["bucket"], alone["here"], alone["exit_code"]) == (other.digest, False, 0)
    assert "changes" not in alone
    told = call(store, here.digest, "--diff", other.digest)
    assert told.returncode == 1
    assert told.stdout.splitlines()[:2] == [f"from    {other.digest}", f"to      {here.digest}"]
    assert "selects the bucket (from -> to)" in told.stdout
    assert f"2.0.0 -> {here.select['torch.version']}" in told.stdout
    same = call(store, here.digest, "--diff", here.digest)
    assert (same.returncode, "nothing differs" in same.stdout) == (0, True)


@pytest.mark.parametrize(("args", "said"), [(["zz"], "no bucket 'zz'"), (["zz", "--profile"], "leave BUCKET out")])
def test_a_bucket_that_is_not_there_or_has_no_profile_is_said_with_a_next_step(
    store: Store, args: list[str], said: str
) -> None:
    done = call(store, *args)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "next: " in done.stderr
