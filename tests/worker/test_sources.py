"""The files that a user's functions came from are found whole, and one that cannot vouch for itself has no digest."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from flexwarm.ops.differences import changes_since_proof
from flexwarm.proof import JobProof
from flexwarm.reasons import Code

PROGRAM = """
import json, sys
from flexwarm.observer import sources
baseline = frozenset(sys.modules)
exec(sys.argv[1])
print(json.dumps(sources.loaded_since(baseline, float(sys.argv[2]))))
"""


def loaded(directory: Path, statements: str, *, began: float | None = None, path: str = ".") -> dict[str, str]:
    program = f"sys.path.insert(0, {path!r}); {statements}"
    argv = [sys.executable, "-c", PROGRAM, program, str(time.time() + 60 if began is None else began)]
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return {Path(name).name: digest for name, digest in found.items()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_module_and_what_it_imports_are_found_without_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "masks.py").write_text("import colorsys, helper\n")
    (tmp_path / "helper.py").write_text("x = 1\n")
    found = loaded(tmp_path, "import masks")
    assert found == {"masks.py": sha256(tmp_path / "masks.py"), "helper.py": sha256(tmp_path / "helper.py")}


def test_a_module_in_an_archive_is_the_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "masks.zip", "w") as archive:
        archive.writestr("zipped.py", "x = 1\n")
    assert loaded(tmp_path, "import zipped", path="masks.zip") == {"masks.zip": sha256(tmp_path / "masks.zip")}


def test_modules_without_files_and_lazy_ones_are_passed_over(tmp_path: Path) -> None:
    lazy = (
        "import types\n"
        "class Lazy(types.ModuleType):\n"
        "    def __getattr__(self, name): raise ImportError(name)\n"
        "sys.modules['lazy'] = Lazy('lazy'); sys.modules['odd'] = object()\n"
        "made = types.ModuleType('made'); made.__file__ = '<made>'; sys.modules['made'] = made\n"
    )
    assert loaded(tmp_path, f"exec({lazy!r})") == {}


def test_a_file_that_was_written_after_the_start_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "masks.py").write_text("x = 1\n")
    assert loaded(tmp_path, "import masks", began=time.time() - 60) == {"masks.py": ""}


def codes(proven: JobProof, sources: Any = None) -> list[Code]:
    return [reason.code for reason in changes_since_proof(proven, {}, sources or {})]


def test_a_digest_that_is_empty_is_never_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "masks.py"
    file.write_text("x = 1\n")
    assert codes(JobProof(context={}, files={str(file): sha256(file)})) == []
    assert codes(JobProof(context={}, files={str(file): ""})) == [Code.SOURCE_CHANGED]
    assert codes(JobProof(context={}, files={str(tmp_path / "gone.py"): ""})) == [Code.SOURCE_CHANGED]


def test_a_module_that_is_found_elsewhere_now_is_not_the_one_that_was_proven(tmp_path: Path) -> None:
    from flexwarm.modules import Source

    one, other = tmp_path / "a" / "masks.py", tmp_path / "b" / "masks.py"
    for file in (one, other):
        file.parent.mkdir()
        file.write_text("x = 1\n")
    proven = JobProof(context={}, files={str(one): sha256(one)})
    assert codes(proven, {"masks": Source(module="masks", path=str(one), sha256=sha256(one))}) == []
    assert codes(proven, {"masks": Source(module="masks", path=str(other), sha256=sha256(other))}) == [Code.SOURCE_CHANGED]
