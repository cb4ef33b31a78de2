"""A Python of the launch behaves as if nobody watched it, until it has imported torch; and then, too, for its program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from flexwarm.observation import VARIABLE
from flexwarm.ops.launch_line import SITE
from tests.conftest import ROOT

#: Stands for torch where only its import matters. The observer cannot begin with it, and says so.
TORCH = "version = 'none'\n"


@dataclass(slots=True)
class Place:
    """A directory for a program, one for the observer's words, and a torch that can only be imported."""

    base: Path

    @property
    def words(self) -> Path:
        return self.base / "words"

    def put(self, name: str, text: str) -> Path:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def environ(self, env: Mapping[str, str | None] | None = None, *, watched: bool = True) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FLEXWARM_"))}
        path = [str(SITE)] * watched + [str(self.base / "packages")]
        base |= {"PYTHONPATH": os.pathsep.join(path), **({VARIABLE: str(self.base / "told.json")} if watched else {})}
        for name, value in (env or {}).items():
            base.pop(name, None)
            if value is not None:
                base[name] = value
        return base

    def run(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        watched: bool = True,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environ(env, watched=watched),
            cwd=self.base,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def script(self, text: str, **kwargs: object) -> str:
        """What a program prints that ends well."""
        self.put("program.py", text)
        done = self.run(["program.py"], **kwargs)  # type: ignore[arg-type]
        assert done.returncode == 0, done.stderr
        return done.stdout

    def told(self) -> list[str]:
        """The messages of observers that could not begin; one for each time that torch was imported under observation."""
        lines = [line for file in sorted(self.words.iterdir()) for line in file.read_text().splitlines()]
        return [json.loads(line)["message"] for line in lines]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.words.mkdir()
    made.put("packages/torch/__init__.py", TORCH)
    made.put("told.json", json.dumps({"schema": 1, "directory": str(made.words), "home": str(ROOT)}))
    return made


# ---- a program without torch -----------------------------------------------------------------------------------------------

STATE = """
import json, sys
finders = [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]
state = {"path": sys.path, "modules": sorted(sys.modules), "flags": list(sys.flags), "argv": sys.argv, "finders": finders}
print(json.dumps(state))
"""


@pytest.mark.parametrize(
    "arguments", [["program.py", "-x"], ["-m", "program", "-x"], ["-c", STATE, "-x"], ["-P", "program.py"]]
)
def test_a_program_that_never_imports_torch_sees_the_same_python(place: Place, arguments: list[str]) -> None:
    if "-P" in arguments and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P")
    place.put("program.py", STATE)
    bare, watched = (json.loads(place.run(arguments, watched=on).stdout) for on in (False, True))
    assert watched["finders"] == ["_TorchFinder", *bare["finders"]]
    assert set(watched["modules"]) - set(bare["modules"]) <= {"sitecustomize", "atexit"}
    for name in ("path", "flags", "argv"):
        assert watched[name] == bare[name]


def test_the_users_startup_file_is_run_in_an_interactive_python(place: Place) -> None:
    startup = place.put("startup.py", "print('started')\n")
    outputs = [
        place.run(["-i", "-q"], env={"PYTHONSTARTUP": str(startup)}, watched=on, stdin="print('asked')\n").stdout
        for on in (False, True)
    ]
    assert outputs[0] == outputs[1] == "started\nasked\n"


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_a_python_that_is_told_to_leave_all_this_out_does(place: Place, flag: str) -> None:
    text = STATE + "sys.path.insert(0, 'packages')\nimport torch\nprint(torch.version)\n"
    place.put("program.py", text)
    done = place.run([flag, "program.py"])
    state, version = done.stdout.splitlines()
    assert "_TorchFinder" not in json.loads(state)["finders"]
    assert (version, place.told()) == ("none", [])


# ---- the user's own sitecustomize ------------------------------------------------------------------------------------------

ASKS = "import sitecustomize, sys\nprint(sitecustomize.__file__, sitecustomize.mine)\nimport torch\n"


def test_the_users_own_sitecustomize_is_run_and_is_the_module_that_a_program_gets(place: Place) -> None:
    own = place.put("packages/sitecustomize.py", "mine = 'mine'\nprint('customized')\n")
    assert place.script(ASKS) == f"customized\n{own} mine\n"
    assert len(place.told()) == 1


def test_an_own_sitecustomize_that_changes_the_path_is_obeyed(place: Place) -> None:
    place.put("packages/sitecustomize.py", "import sys\nsys.path.append('/somewhere')\n")
    assert place.script("import sys\nprint(sys.path[-1])\n") == "/somewhere\n"


@pytest.mark.parametrize("error", ["raise ValueError('mine')", "import no_such_module", "raise ImportError('sitecustomize')"])
def test_an_own_sitecustomize_that_raises_is_told_as_always_and_the_program_is_still_observed(place: Place, error: str) -> None:
    place.put("packages/sitecustomize.py", f"{error}\n")
    place.put("program.py", "import torch\nprint('done')\n")
    bare, watched = (place.run(["program.py"], watched=on) for on in (False, True))
    assert (watched.returncode, watched.stdout, watched.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert "sitecustomize" in watched.stderr
    assert len(place.told()) == 1


def test_a_program_without_an_own_sitecustomize_has_ours_and_starts_without_a_word(place: Place) -> None:
    place.put("program.py", "import torch\nprint(torch.version)\n")
    done = place.run(["program.py"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "none\n", "")


# ---- torch -----------------------------------------------------------------------------------------------------------------


def test_an_observer_that_cannot_begin_says_so_and_the_program_goes_on(place: Place) -> None:
    assert place.script("import torch\nprint('still', torch.version)\n") == "still none\n"
    (message,) = place.told()
    assert message.startswith("the observer could not begin: ")


def test_an_observer_begins_once_however_often_torch_is_imported(place: Place) -> None:
    place.script("import torch\nfrom torch import version\nimport importlib\nimportlib.import_module('torch')\n")
    assert len(place.told()) == 1


def test_the_observer_is_asked_for_its_last_words_after_all_that_the_program_does(place: Place) -> None:
    place.put("packages/late.py", "def end():\n    print('last words')\n")
    script = "import atexit, sys\natexit.register(print, 'the program')\nimport late\n"
    assert place.script(script) == "the program\n"
    assert place.script(script + "sys.modules['flexwarm.attach.witnesses'] = late\n") == "the program\nlast words\n"


def test_each_python_that_a_program_starts_is_observed(place: Place) -> None:
    place.script("import subprocess, sys, torch\nsubprocess.run([sys.executable, '-c', 'import torch'], check=True)\n")
    assert len(place.told()) == 2


def test_a_program_that_asks_whether_there_is_a_torch_before_it_imports_it_is_observed(place: Place) -> None:
    """As many libraries do."""
    text = "import importlib.util\nfor _ in range(2):\n    print(importlib.util.find_spec('torch').name)\nimport torch\n"
    assert place.script(text) == "torch\ntorch\n"
    assert len(place.told()) == 1


def test_a_torch_that_is_found_only_later_is_observed(place: Place) -> None:
    later = "sys.path.append('packages')\nimport torch\nprint('done')\n"
    text = f"import sys\ntry:\n    import torch\nexcept ImportError:\n    pass\n{later}"
    assert place.script(text, env={"PYTHONPATH": str(SITE)}) == "done\n"
    assert len(place.told()) == 1


def test_a_torch_whose_import_fails_once_may_be_tried_again(place: Place) -> None:
    place.put(
        "packages/torch/__init__.py",
        "import os\nif not os.path.exists('tried'):\n    open('tried', 'w').close()\n    raise OSError('no driver')\n" + TORCH,
    )
    text = "try:\n    import torch\nexcept OSError as error:\n    print(error)\nimport torch\nprint(torch.version)\n"
    assert place.script(text) == "no driver\nnone\n"
    assert len(place.told()) == 1


def test_an_error_of_torchs_import_is_the_programs_with_its_own_traceback(place: Place) -> None:
    place.put("packages/torch/__init__.py", "raise OSError('no driver')\n")
    place.put("program.py", "import torch\n")
    done = place.run(["program.py"])
    assert done.returncode == 1
    assert done.stderr.endswith("OSError: no driver\n")
    assert place.told() == []


def test_a_module_that_only_begins_like_torch_is_nobodys_business(place: Place) -> None:
    place.put("packages/torchvision.py", "")
    place.script("import torchvision\n")
    assert place.told() == []


# ---- nobody listens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [None, "no-such-file.json", ".", "broken.json", ""])
def test_without_anybody_to_tell_a_program_runs_and_nothing_is_written(place: Place, told: str | None) -> None:
    place.put("broken.json", '{"schema": ')
    assert place.script("import torch\nprint(torch.version)\n", env={VARIABLE: told}) == "none\n"
    assert place.told() == []


@pytest.mark.parametrize("told", [{}, [], 1, {"home": "/nowhere"}, {"directory": "/nowhere", "home": str(ROOT)}])
def test_an_observation_that_makes_no_sense_ends_no_program(place: Place, told: object) -> None:
    place.put("told.json", json.dumps(told))
    assert place.script("import torch\nprint(torch.version)\n") == "none\n"


def test_an_observation_of_another_flexwarm_is_refused(place: Place) -> None:
    """The message comes from the flexwarm that the program has, which is not the one that asked."""
    place.put("packages/torch/version.py", "git_version = cuda = None\n")
    data = json.loads((place.base / "told.json").read_text())
    place.put("told.json", json.dumps({**data, "home": str(place.base / "elsewhere")}))
    place.put("elsewhere/flexwarm/__init__.py", "")
    place.put("elsewhere/flexwarm/attach/__init__.py", "")
    place.put(
        "elsewhere/flexwarm/attach/witnesses.py", "def attach(told):\n    raise ValueError(f'schema {told[\"schema\"]}')\n"
    )
    assert (
        place.script("import torch, flexwarm\nprint(flexwarm.__file__)\n") == f"{place.base}/elsewhere/flexwarm/__init__.py\n"
    )
    assert place.told() == ["the observer could not begin: ValueError: schema 1"]


def test_the_file_of_an_observer_that_cannot_begin_bears_the_process_id(place: Place) -> None:
    """So that who looks at processes knows that this one is not unseen."""
    pid = place.script("import os, torch\nprint(os.getpid())\n").strip()
    assert [file.name for file in place.words.iterdir()] == [f"{pid}.refused.jsonl"]
