"""Which torch and which platform are refused, from real packages that are not torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexwarm.errors import UnsupportedError
from flexwarm.toolchain.torch_install import check_platform, require_supported


def fake_torch(root: Path, version_py: str | None) -> Path:
    package = root / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('somebody imported torch')\n")
    if version_py is not None:
        (package / "version.py").write_text(version_py)
    return root


def flexwarm(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flexwarm", *args], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
    )


def fingerprint_with(path: Path, store: Path) -> subprocess.CompletedProcess[str]:
    return flexwarm("fingerprint", "--format", "json", PYTHONPATH=str(path), FLEXWARM_STORE=str(store))


@pytest.mark.parametrize("version", ["2.8.0", "2.15.0", "2.15.0.dev20270101+cu130", "2.1.2", "3.0.0", "1.13.1", "unknown"])
def test_a_torch_that_is_not_known_is_refused_by_name(tmp_path: Path, version: str) -> None:
    path = fake_torch(tmp_path / "site", f"__version__ = {version!r}\ncuda = None\n")
    done = fingerprint_with(path, tmp_path / "store")
    assert done.returncode == 3
    message = json.loads(done.stdout)["error"]["message"]
    assert f"torch {version} " in message
    assert "2.9, 2.10, 2.11, 2.12, 2.13, 2.14" in message


@pytest.mark.parametrize("version", ["2.9.0", "2.10.1+cu128", "2.14.0a0+git1234567", "2.13.0rc1"])
def test_a_build_of_a_known_minor_version_is_taken_and_read_without_running_it(tmp_path: Path, version: str) -> None:
    text = f"import nothing\n__version__ = {version!r}\ndebug = True\ncuda: Optional[str] = '12.8'\ngit_version = 'abc'\n"
    done = fingerprint_with(fake_torch(tmp_path / "site", text), tmp_path / "store")
    assert done.returncode == 0, done.stderr
    select = json.loads(done.stdout)["fingerprint"]["select"]
    found = {name: select[f"torch.{name}"] for name in ("version", "git", "cuda", "hip", "debug")}
    assert found == {"version": version, "git": "abc", "cuda": "12.8", "hip": "none", "debug": "yes"}


@pytest.mark.parametrize("version_py", [None, "cuda = None\n", "__version__ = (\n"])
def test_a_torch_that_does_not_say_its_version_is_refused_with_the_file(tmp_path: Path, version_py: str | None) -> None:
    path = fake_torch(tmp_path / "site", version_py)
    done = fingerprint_with(path, tmp_path / "store")
    assert done.returncode == 3
    assert str(path / "torch" / "version.py") in done.stderr
    assert "Traceback" not in done.stderr


def test_without_torch_the_next_step_is_to_install_it(tmp_path: Path) -> None:
    # -S leaves site-packages out; only flexwarm and its own dependencies are put back, through links.
    import click
    import platformdirs

    import flexwarm

    site = tmp_path / "site"
    site.mkdir()
    for module in (flexwarm, click, platformdirs):
        assert module.__file__ is not None
        (site / module.__name__).symlink_to(Path(module.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "flexwarm", "fingerprint", "--store", str(tmp_path / "store")],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert "torch is not installed" in done.stderr
    assert "pip install torch" in done.stderr


def test_a_free_threaded_python_is_refused_naming_what_is_supported() -> None:
    with pytest.raises(UnsupportedError, match=r"free-threaded Python 3\.\d+.*supports Python with the GIL"):
        check_platform("Linux", free_threaded=True)


def test_another_system_is_refused_naming_what_is_supported() -> None:
    with pytest.raises(UnsupportedError, match="supports Linux, and this is Darwin"):
        check_platform("Darwin", free_threaded=False)


def test_the_installed_torch_is_supported() -> None:
    install = require_supported()
    assert install.path.name == "torch"
    assert install.version.startswith(".".join(map(str, install.minor)))
