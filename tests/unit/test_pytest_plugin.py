"""The pytest plugin, in runs of pytest of its own: what a test with null GPUs says is what the run says. None needs torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from flexwarm.reaper import members
from tests.conftest import ROOT

pytest_plugins = ["pytester"]
pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the null GPU is compiled with gcc, which is not here"),
    pytest.mark.xdist_group("pytest_plugin"),
]

#: How a test counts GPUs without torch.
GPUS = """
import ctypes
import os
import pytest

def gpus():
    count = ctypes.c_int(-1)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    cuda.cuInit(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return count.value
"""


class Runs:
    """Runs of pytest in a directory of their own, which compile the null GPU once for all tests here."""

    def __init__(self, pytester: pytest.Pytester, cache: Path) -> None:
        self.pytester = pytester
        self.cache = cache

    def __call__(self, *arguments: str) -> pytest.RunResult:
        kept = () if "no:cacheprovider" in arguments else ("-o", f"cache_dir={self.cache}")
        return self.pytester.runpytest_subprocess("-ra", *kept, *arguments, timeout=240)


@pytest.fixture
def runs(pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(pytester, tmp_path_factory.getbasetemp() / "pytest_plugin_cache")


def outcomes(result: pytest.RunResult, **expected: int) -> None:
    assert result.parseoutcomes() == expected, result.stdout.str()


def test_pytest_finds_it_by_itself() -> None:
    assert {point.name: point.value for point in entry_points(group="pytest11")}["flexwarm"] == "flexwarm.pytest_plugin"


def test_nothing_is_imported_before_a_test_asks() -> None:
    program = "import flexwarm.pytest_plugin, sys\nprint(sorted(name for name in sys.modules if name.startswith('flexwarm')))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "['flexwarm', 'flexwarm.pytest_plugin']\n"


GIVEN = """
@pytest.mark.null_gpus(3, profile="a100-80gb", torch=False)
@pytest.mark.parametrize("text", ["two words", "[b]::c", "ü", "a/b.py::d"])
def test_by_marker(text, null_gpus):
    assert (gpus(), null_gpus.count, null_gpus.profile.name) == (3, 3, "NVIDIA A100-SXM4-80GB")

def test_without():
    assert "LD_PRELOAD" not in os.environ and gpus() == 0

@pytest.mark.null_gpus(2, torch=False)
class TestOfAClass:
    def test_of_the_class(self):
        assert gpus() == 2

    @pytest.mark.null_gpus(5, torch=False)
    def test_of_its_own(self):
        assert gpus() == 5
"""

ONE_OF_EACH = """
@pytest.mark.null_gpus(2, torch=False)
@pytest.mark.xdist_group("here")
@pytest.mark.parametrize("text", ["[two words]::c"])
def test_by_marker(text):
    assert gpus() == 2

def test_without():
    assert "LD_PRELOAD" not in os.environ and gpus() == 0

class TestOfAClass:
    @pytest.mark.null_gpus(1, torch=False)
    def test_of_the_class(self):
        assert gpus() == 1
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["-s"],
        ["-n", "2", "-v"],
        ["-n", "2", "--dist", "loadgroup"],
        ["-p", "no:cacheprovider"],
        ["--import-mode=importlib", "--", "."],
        ["-W", "error", "--capture=sys", "--maxfail=1"],
    ],
    ids=" ".join,
)
def test_it_works_in_each_way_in_which_pytest_is_run(runs: Runs, arguments: list[str]) -> None:
    runs.pytester.makepyfile(test_given=GPUS + ONE_OF_EACH)
    outcomes(runs(*arguments), passed=3)


def test_each_test_has_the_gpus_that_it_asks_for(runs: Runs) -> None:
    runs.pytester.makepyfile(test_given=GPUS + GIVEN)
    outcomes(runs(), passed=7)


def test_a_selected_test_alone_is_run(runs: Runs) -> None:
    runs.pytester.makepyfile(test_given=GPUS + GIVEN)
    result = runs("test_given.py::test_by_marker[two words]", "test_given.py::TestOfAClass", "-k", "not own")
    outcomes(result, passed=2, deselected=1)


SAID = """
import sys
import warnings

pytestmark = pytest.mark.null_gpus(torch=False)

def test_passes(record_property, tmp_path, capsys):
    record_property("devices", gpus())
    print("seen by capsys")
    assert capsys.readouterr().out == "seen by capsys\\n"
    (tmp_path / "file").write_text("")
    warnings.warn("a warning of the test")

def test_fails():
    print("on stdout")
    print("on stderr", file=sys.stderr)
    assert gpus() == 17

def test_skips():
    pytest.skip("for a reason")

@pytest.mark.skipif("gpus() == 1", reason="seen with GPUs")
def test_is_skipped():
    raise AssertionError

@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail():
    raise AssertionError

@pytest.fixture
def broken():
    yield
    raise RuntimeError("the teardown is broken")

def test_with_a_broken_teardown(broken):
    pass
"""


def test_what_becomes_of_a_test_is_what_the_run_says(runs: Runs) -> None:
    runs.pytester.makepyfile(test_said=GPUS + SAID)
    result = runs("--junitxml=out.xml", "--durations=0", "-vv")
    outcomes(result, passed=2, failed=1, skipped=2, xfailed=1, errors=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*the teardown is broken*",
            "E *assert 1 == 17*",
            "*Captured stdout call*",
            "on stdout",
            "*Captured stderr call*",
            "on stderr",
            "*test_said.py::test_passes*",
            "*UserWarning: a warning of the test*",
            "*slowest durations*",
            "*call * test_said.py::test_passes",
            "SKIPPED * for a reason",
            "SKIPPED * seen with GPUs",
        ]
    )
    cases = {case.get("name"): case for case in ElementTree.parse(runs.pytester.path / "out.xml").iter("testcase")}
    assert len(cases) == 6
    assert [(p.get("name"), p.get("value")) for p in cases["test_passes"].iter("property")] == [("devices", "1")]
    assert cases["test_fails"].find("failure") is not None


def test_the_first_failure_ends_a_run_and_is_run_again_first(runs: Runs) -> None:
    runs.pytester.makepyfile(test_said=GPUS + SAID)
    runs.cache /= "own"
    outcomes(runs("-x"), passed=1, failed=1, warnings=1)
    outcomes(runs("-x", "--lf"), failed=1)


DIES = """
import atexit
import signal
import subprocess
import sys
import time

pytestmark = pytest.mark.null_gpus(2, torch=False, timeout=60)

def test_crashes():
    print("the last words", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGSEGV)

def test_leaves():
    os._exit(7)

def test_dies_after_its_end():
    atexit.register(os.abort)

@pytest.mark.null_gpus(torch=False, timeout=4)
def test_hangs():
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    print("started", child.pid, os.environ["FLEXWARM_RUN"])
    time.sleep(300)

def test_comes_after():
    pass
"""


def test_a_process_that_dies_or_hangs_is_one_failure_and_nothing_of_it_is_left(runs: Runs) -> None:
    runs.pytester.makepyfile(test_dies=GPUS + DIES)
    began = time.monotonic()
    result = runs()
    assert time.monotonic() - began < 120
    outcomes(result, passed=2, failed=3, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_dies_after_its_end*",
            "SIGABRT after its teardown, in the test's process with 2 x NVIDIA H200 that are not there*",
            "SIGSEGV during call*the end of its output:",
            "the last words",
            "*Segmentation fault*",
            "exit code 7 during call*",
            "killed during call: timeout of 4 s*",
            "started *",
        ]
    )
    # With CI=true pytest shows it in the summary, too.
    (line,) = {line for line in result.outlines if line.startswith("started ")}
    assert members(line.split()[2]) == []


WRONG = """
@pytest.mark.null_gpus(0)
def test_count(): ...

@pytest.mark.null_gpus(1, profile="h300")
def test_profile(): ...

@pytest.mark.null_gpus(profil="h200")
def test_name(): ...

@pytest.mark.null_gpus(timeout=0)
def test_timeout(): ...

@pytest.mark.null_gpus(profile="mine/none.json")
def test_file(): ...

def test_late(request):
    request.getfixturevalue("null_gpus")
"""


def test_a_marker_that_cannot_be_right_is_an_error_and_no_skip(runs: Runs) -> None:
    runs.pytester.makepyfile(test_wrong=GPUS + WRONG)
    result = runs("-vv")
    outcomes(result, errors=5, failed=1)
    text = result.stdout.str()
    for words in (
        "null_gpus: count is a number of devices from 1 to 64, not 0",
        "null_gpus: there is no device profile 'h300'; there are a100-80gb",
        "null_gpus: got an unexpected keyword argument 'profil'",
        "null_gpus: timeout is a number of seconds, not 0",
        f"null_gpus: the device profile {runs.pytester.path}/mine/none.json cannot be read: No such file",
        "mark the test with pytest.mark.null_gpus",
    ):
        assert words in text
    assert "During handling" not in text


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_a_torch_without_cuda_skips_what_is_for_torch(runs: Runs, cuda: str | None) -> None:
    runs.pytester.mkpydir("torch").joinpath("version.py").write_text(f"__version__ = '2.14.1'\ncuda = {cuda!r}\n")
    runs.pytester.makepyfile(test_torch=GPUS + "def test_torch(null_gpus):\n    assert gpus() == 1\n")
    result = runs()
    if cuda:
        outcomes(result, passed=1)
    else:
        outcomes(result, skipped=1)
        result.stdout.fnmatch_lines(["*null GPUs: torch 2.14.1 is a build without CUDA, which uses no GPU, there or not"])


def test_a_machine_without_a_compiler_skips(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    runs.pytester.makepyfile(test_gpus="import pytest\n@pytest.mark.null_gpus(torch=False)\ndef test_it(): ...\n")
    result = runs()
    outcomes(result, skipped=1)
    result.stdout.fnmatch_lines(["*null GPUs: there is no C compiler (no-such-compiler)*"])


SURROUNDINGS = """
pytestmark = pytest.mark.null_gpus(2, torch=False)

def test_neither_devices_nor_caches_are_those_of_the_shell():
    assert gpus() == 2
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE" not in os.environ
    assert os.environ["KEPT"] == "yes"
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert "null-gpus" in os.environ[name]

def test_a_test_chooses_what_is_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus() == 1

def test_conftest_options_and_directories_are_those_of_the_run(request, mine, tmp_path):
    assert mine == "5"
    assert str(tmp_path).startswith(os.environ["BASE"])
    assert os.getcwd() == os.environ["CWD"]
    assert hasattr(request.config, "workerinput")
"""


def test_the_surroundings_are_those_of_the_run_but_for_devices_and_caches(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_CACHE_DIR": "/users"}
    told = {"KEPT": "yes", "BASE": str(runs.pytester.path / "runpytest-0"), "CWD": str(runs.pytester.path)}
    for name, value in {**given, **told}.items():
        monkeypatch.setenv(name, value)
    runs.pytester.makeini("[pytest]\ntestpaths = deep\n")
    deep = runs.pytester.mkdir("deep")
    (deep / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_addoption(parser):\n    parser.addoption('--mine')\n"
        "@pytest.fixture\ndef mine(request):\n    return request.config.getoption('--mine')\n"
    )
    (deep / "test_surroundings.py").write_text(GPUS + SURROUNDINGS)
    outcomes(runs("--mine=5"), passed=3)


BETWEEN = """
@pytest.fixture(scope="module", autouse=True)
def whole_module():
    yield
    print("end of", __name__, "in the run" if gpus() == 0 else "beside GPUs")

def test_here(): ...

@pytest.mark.null_gpus(torch=False)
def test_there(): ...
"""


def test_fixtures_that_the_run_has_set_up_end_where_they_should(runs: Runs) -> None:
    """The last test of each module runs elsewhere; the next module must not find the first one's fixtures set up."""
    runs.pytester.makepyfile(test_a=GPUS + BETWEEN, test_b=GPUS + BETWEEN)
    result = runs("-s")
    outcomes(result, passed=4)
    ends = [line.partition("end of ")[2] for line in result.outlines if "end of " in line]
    assert ends == [f"test_{name} {where}" for name in "ab" for where in ("beside GPUs", "in the run")]


ENDS = """
pytestmark = pytest.mark.null_gpus(torch=False)

def test_ends_the_run():
    pytest.exit("that is enough", returncode=9)

def test_comes_after(): ...
"""


def test_a_test_that_ends_the_run_ends_it(runs: Runs) -> None:
    runs.pytester.makepyfile(test_ends=GPUS + ENDS)
    result = runs()
    assert result.ret == 9
    result.stdout.fnmatch_lines(["*that is enough*"])


ELSEWHERE = """
if gpus():
    {there}

@pytest.mark.null_gpus(torch=False)
def test_it(): ...
"""


@pytest.mark.parametrize(
    ("there", "expected", "words"),
    [
        ("raise ValueError('broken with GPUs')", {"errors": 1}, "*could not collect test_it.py:*"),
        ("pytest.skip('not with GPUs', allow_module_level=True)", {"skipped": 1}, "*not with GPUs*"),
        ("os._exit(3)", {"errors": 1}, "exit code 3 during setup*"),
    ],
)
def test_a_module_that_is_another_beside_gpus_is_said(runs: Runs, there: str, expected: dict[str, int], words: str) -> None:
    runs.pytester.makepyfile(test_it=GPUS + ELSEWHERE.format(there=there))
    result = runs()
    outcomes(result, **expected)
    result.stdout.fnmatch_lines([words])


def test_the_cache_of_another_or_with_a_space_in_its_path_is_not_used(runs: Runs) -> None:
    runs.cache = runs.pytester.path / "a cache"
    runs.pytester.makepyfile(test_it=GPUS + "@pytest.mark.null_gpus(torch=False)\ndef test_it():\n    assert gpus() == 1\n")
    outcomes(runs(), passed=1)
    assert not list(runs.cache.rglob("libcuda*"))
    assert list((runs.pytester.path / "runpytest-0").rglob("libcuda.so.1"))
