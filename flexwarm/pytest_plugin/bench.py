"""The parent's half: give a child its null GPUs, let it run one test, and log its reports as if the test had run here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pytest

from flexwarm import reaper, toolchain
from flexwarm.errors import FlexwarmError, StoreError, UnsupportedError
from flexwarm.pytest_plugin import COLLECTED, REQUEST
from flexwarm.store import Store
from flexwarm.target import MOST_DEVICES, Target
from flexwarm.toolchain import nullgpu
from flexwarm.toolchain.profiles import read_profile

T = TypeVar("T")
Phase = Literal["setup", "call", "teardown"]

_PHASES: Final[tuple[Phase, ...]] = ("setup", "call", "teardown")
_TIMEOUT_S: Final = 300.0
#: Lines of the child's own output that a report of its end shows.
_LINES: Final = 40
#: pytest with the parent's path of modules, which is set before anything else is imported.
_START: Final = (
    "import sys; n = 2 + int(sys.argv[1]); sys.path[:] = sys.argv[2:n]; sys.argv[1:] = sys.argv[n:]; "
    "import pytest; sys.exit(pytest.main())"
)
#: What was compiled or chosen on a null GPU must reach no cache that is used on a real one; which devices are visible, the
#: marker says.
_DROPPED: Final = re.compile(
    r"TORCHINDUCTOR_\w*REMOTE_CACHE\w*|TRITON_CACHE_MANAGER|TRITON_REMOTE_CACHE_BACKEND|CUDA_VISIBLE_DEVICES"
)
_STORE: Final = pytest.StashKey[Store]()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a marker says.

    Attributes:
        target: the GPUs.
        timeout_s: after which the child is ended.
        torch: whether the test is for a CUDA build of torch only.
    """

    target: Target
    timeout_s: float
    torch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How a child ended.

    Attributes:
        status: as :attr:`subprocess.Popen.returncode`; None where it was killed because its time was over.
        said: its events, in their order.
        output: the end of what it wrote past the reports of its tests.
    """

    status: int | None
    said: list[dict[str, Any]]
    output: str


def run_in_child(item: pytest.Item, mark: pytest.Mark, nextitem: pytest.Item | None) -> None:
    """The whole protocol of one test: start, reports, and the teardown of what earlier tests left set up."""
    hook, session = item.ihook, item.session
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    torn_down = False
    leave: BaseException | None = None
    for report in _reports(item, mark):
        if isinstance(report, BaseException):
            leave = report
            continue
        torn_down = torn_down or report.when == "teardown"
        hook.pytest_runtest_logreport(report=report)
    if session.shouldfail or session.shouldstop or leave is not None:
        nextitem = None
    # The stack of fixtures is still that of the test before.
    call = _call(lambda: session._setupstate.teardown_exact(nextitem), "teardown")
    if call.excinfo is not None or not torn_down:
        hook.pytest_runtest_logreport(report=_report(item, call))
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if leave is not None:
        raise leave


def _reports(item: pytest.Item, mark: pytest.Mark) -> Iterator[pytest.TestReport | BaseException]:
    prepared = _call(lambda: _prepare(item, mark), "setup")
    if prepared.excinfo is not None:
        yield _report(item, prepared)
        return
    asked, environ, directory = prepared.result
    try:
        ran = _call(lambda: _run(item, asked, environ, directory), "call")
        said = ran.result.said if ran.excinfo is None else _events(directory)
        reports = list(_told(item, said))
        problem: pytest.CallInfo[Any]
        if ran.excinfo is None:
            # A process that dies after its test has not passed.
            problem = _call(lambda: _judge(asked, ran.result, reports), _phase(reports))
        else:  # pytest-timeout and its like fail the test in this process
            problem = ran
            problem.when = _phase(reports)
        if problem.excinfo is not None and reports and reports[-1].when == "teardown":
            problem.when = "teardown"
            if reports[-1].passed:
                reports.pop()
        yield from reports
        if problem.excinfo is not None:
            yield _report(item, problem)
        _pass_warnings_on(item, said)
        for event in said:
            if event["kind"] == "exit":
                yield pytest.exit.Exception(event["reason"], event["status"])
    finally:
        # The rest is pytest's to keep or to delete, where the directory is its own.
        own = getattr(item.config, "_tmp_path_factory", None) is not None
        for path in (directory / "inductor", directory / "triton") if own else (directory,):
            shutil.rmtree(path, ignore_errors=True)


def _call(function: Callable[[], T], when: Phase) -> pytest.CallInfo[T]:
    return pytest.CallInfo.from_call(function, when, reraise=(pytest.exit.Exception, KeyboardInterrupt))


def _report(item: pytest.Item, call: pytest.CallInfo[Any]) -> pytest.TestReport:
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report


# ---- before --------------------------------------------------------------------------------------------------------------


def _prepare(item: pytest.Item, mark: pytest.Mark) -> tuple[_Asked, dict[str, str], Path]:
    """What the marker asks for, the child's environment and its directory; it skips the test where this machine cannot."""
    skip, why = False, ""
    try:
        asked = _read(item, *mark.args, **mark.kwargs)
        _require(asked)
        environ = _environment(item.config, asked)
    except TypeError as error:
        why = str(error).partition(" ")[2]
    except UnsupportedError as error:
        skip, why = True, error.message
    except FlexwarmError as error:
        why = "; ".join(filter(None, (error.message, error.hint)))
    if why:  # outside of the handler, whose error is no news
        pytest.skip(f"null GPUs: {why}") if skip else pytest.fail(f"null_gpus: {why}", pytrace=False)
    directory = _directory(item.config)
    # Beside the test's own caches, which would keep what was chosen by time and constants that no GPU has computed.
    own = {"TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"), "TRITON_CACHE_DIR": str(directory / "triton")}
    kept = {name: value for name, value in os.environ.items() if not _DROPPED.fullmatch(name)}
    return asked, {**kept, **environ, **own}, directory


def _read(
    item: pytest.Item,
    count: int = 1,
    *,
    profile: str | os.PathLike[str] = "h200",
    timeout: float = _TIMEOUT_S,
    torch: bool = True,
) -> _Asked:
    """The marker's arguments.

    Raises:
        TypeError: one is of a wrong kind.
        UsageError: there is no such profile.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_DEVICES:
        raise TypeError(f"null_gpus() count is a number of devices from 1 to {MOST_DEVICES}, not {count!r}")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise TypeError(f"null_gpus() timeout is a number of seconds, not {timeout!r}")
    if not isinstance(profile, (str, os.PathLike)):
        raise TypeError(f"null_gpus() profile is a name or a file, not {profile!r}")
    name = os.fspath(profile)
    if "/" in name or "." in name:  # a file, which is named from where the tests are
        name = str(item.config.rootpath / name)
    return _Asked(target=Target(asked=name, profile=read_profile(name), count=count), timeout_s=float(timeout), torch=torch)


def _require(asked: _Asked) -> None:
    """Raises:
    UnsupportedError: no null GPU can be used here.
    """
    if sys.platform != "linux":
        raise UnsupportedError(f"they are preloaded into a process, which is for Linux, and this is {sys.platform}")
    if asked.torch:
        install = toolchain.find_torch()
        if install is None:
            raise UnsupportedError("torch is not installed for this Python")
        if not install.cuda:
            raise UnsupportedError(f"torch {install.version} is a build without CUDA, which uses no GPU, there or not")


def _environment(config: pytest.Config, asked: _Asked) -> dict[str, str]:
    """The variables of the null GPUs. The library is compiled once: kept in pytest's cache, else for this run.

    Raises:
        UnsupportedError: it cannot be compiled.
        StoreError: it cannot be kept.
    """
    known = config.stash.get(_STORE, None)
    if known is not None:
        return nullgpu.environment(asked.target, known, os.environ)
    try:
        store, found = _kept(_cache(config), asked)
    except (OSError, StoreError):  # there is none, it is read-only, another user's, or at a path that the loader would cut
        store, found = _kept(_shared(config), asked)
    config.stash[_STORE] = store
    return found


def _kept(root: Path, asked: _Asked) -> tuple[Store, dict[str, str]]:
    if re.search(r"[\s:]", str(root)):  # before anything is compiled
        raise StoreError(f"the loader cannot preload from a path with a space or a colon: {root}; name another with --basetemp")
    store = Store.open(root, create=True)
    return store, nullgpu.environment(asked.target, store, os.environ)


def _cache(config: pytest.Config) -> Path:
    cache = getattr(config, "cache", None)
    if cache is None:
        raise StoreError("pytest has no cache here")
    # One directory further down: with umask 002 the cache's own may be written by the group.
    return Path(cache.mkdir("flexwarm")) / "store"


def _shared(config: pytest.Config) -> Path:
    """A directory that the workers of one run share."""
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is None:
        return Path(tempfile.gettempdir()) / f"flexwarm-null-gpus-{os.getuid()}"
    base: Path = factory.getbasetemp()
    return (base.parent if hasattr(config, "workerinput") else base) / "flexwarm-store"


def _directory(config: pytest.Config) -> Path:
    """A new directory for one child."""
    factory = getattr(config, "_tmp_path_factory", None)
    return Path(factory.mktemp("null-gpus") if factory is not None else tempfile.mkdtemp(prefix="null-gpus-"))


# ---- the child -----------------------------------------------------------------------------------------------------------


def _run(item: pytest.Item, asked: _Asked, environ: dict[str, str], directory: Path) -> _Ended:
    """Start the child and wait for its end, which comes at the latest when its time is over."""
    config = item.config
    captured = config.getoption("capture", "no") != "no"
    request = {
        "argv": sys.argv,
        "path": str(item.path),
        "nodeid": item.stash.get(COLLECTED, item.nodeid),
        "count": asked.target.count,
        "profile": asked.target.asked,
        "directory": str(directory),
        "captured": captured,
        "workerinput": getattr(config, "workerinput", None)
        or {"workerid": "master", "workercount": 1, "testrunuid": uuid.uuid4().hex, "mainargv": sys.argv},
        "parent": os.getpid(),
    }
    (directory / "request.json").write_text(json.dumps(request, default=repr))
    path = [entry for entry in sys.path if isinstance(entry, str)]
    run = uuid.uuid4().hex
    streams = [open(directory / name, "ab") for name in ("stdout", "stderr")] if captured else []  # noqa: SIM115 - closed below
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(len(path)), *path, *_arguments(config, captured)],
            cwd=config.invocation_params.dir,
            env={**environ, REQUEST: str(directory / "request.json"), reaper.MARKER: run},
            stdin=subprocess.DEVNULL,
            stdout=streams[0] if streams else None,
            stderr=streams[1] if streams else None,
            start_new_session=True,
        )
    finally:
        for stream in streams:
            stream.close()
    status: int | None = None
    try:
        status = process.wait(asked.timeout_s)
    except subprocess.TimeoutExpired:
        pass  # its end is reported below
    finally:
        if status is None or status < 0:
            reaper.kill_run(run)
            process.kill()
            process.wait()
    return _Ended(status=status, said=_events(directory), output=_tail(directory) if captured else "")


def _arguments(config: pytest.Config, captured: bool) -> list[str]:
    """The parent's own, and what the child alone gets."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    plugins = [plugin for plugin in config.invocation_params.plugins or () if isinstance(plugin, str)]
    added = [part for plugin in (*plugins, "flexwarm.pytest_plugin.child") for part in ("-p", plugin)]
    if captured:
        added.append("--capture=no")  # into files, which outlive the process
    if config.pluginmanager.hasplugin("pytest_cov"):
        added.append("--no-cov")  # it would write over the parent's measurements
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:end], *added, *arguments[end:]]


def _events(directory: Path) -> list[dict[str, Any]]:
    try:
        lines = (directory / "events").read_text().split("\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[:-1]]  # the last is empty, or was being written when the child died


def _tail(directory: Path) -> str:
    texts = [(directory / name).read_text(errors="replace") for name in ("stderr", "stdout")]
    text = next((text for text in texts if text.strip()), "")
    return "\n".join(text.rstrip().splitlines()[-_LINES:])


# ---- after ---------------------------------------------------------------------------------------------------------------


def _told(item: pytest.Item, said: list[dict[str, Any]]) -> Iterator[pytest.TestReport]:
    """The child's reports, under the item's id here."""
    for event in said:
        if event["kind"] != "report":
            continue
        data = event["data"]
        data["nodeid"] = item.nodeid
        for name in ("longrepr", "location"):  # JSON has no tuples, and pytest wants them here
            if isinstance(data.get(name), list):
                data[name] = tuple(data[name])
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        if report is not None:
            yield report


def _phase(reports: list[pytest.TestReport]) -> Phase:
    """The phase in which a child was that said no more than this."""
    whole = {report.when: report for report in reports if type(report) is pytest.TestReport}
    expected = [phase for phase in _PHASES if phase != "call" or "setup" not in whole or whole["setup"].passed]
    return next((phase for phase in expected if phase not in whole), "teardown")


def _judge(asked: _Asked, ended: _Ended, reports: list[pytest.TestReport]) -> None:
    """Fails, or skips, with what the reports do not say."""
    whole = any(report.when == "teardown" for report in reports)
    where = "after its teardown" if whole else f"during {_phase(reports)}"
    for event in ended.said:
        if event["kind"] == "trouble":
            pytest.fail(f"in the test's process, with {asked.target.title} that are not there: {event['text']}", pytrace=False)
        if event["kind"] == "skip":
            pytest.skip(event["text"])
        if event["kind"] == "exit":
            return
    if ended.status is None:
        what = f"killed {where}: timeout of {asked.timeout_s:g} s"
    elif ended.status < 0:
        what = f"{_signal_name(-ended.status)} {where}"
    elif not whole:
        what = f"exit code {ended.status} {where}"
    else:
        return
    output = f"; the end of its output:\n{ended.output}" if ended.output else ""
    pytest.fail(f"{what}, in the test's process with {asked.target.title} that are not there{output}", pytrace=False)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _pass_warnings_on(item: pytest.Item, said: list[dict[str, Any]]) -> None:
    for event in said:
        if event["kind"] != "warning":
            continue
        found = getattr(sys.modules.get(event["module"]), event["category"], None)
        category = found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
        message = warnings.WarningMessage(event["message"], category, event["filename"], event["lineno"])
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "when": event["when"], "nodeid": item.nodeid, "location": None}
        )
