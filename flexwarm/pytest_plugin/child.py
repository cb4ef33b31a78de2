"""The child's half: pytest with the parent's own arguments, but for one test, whose reports go into a file."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from flexwarm.pytest_plugin import HERE, REQUEST
from flexwarm.target import Target
from flexwarm.toolchain.profiles import read_profile

_PR_SET_PDEATHSIG: Final = 1
#: Options that are for a run of many tests, or for a person at a terminal.
_SETTLED: Final[dict[str, Any]] = {
    **dict.fromkeys(("lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "cacheclear"), False),
    **dict.fromkeys(("usepdb", "trace", "pyargs", "distload", "looponfail"), False),
    **dict.fromkeys(("numprocesses", "maxprocesses", "deselect", "pastebin")),
    **dict.fromkeys(("keyword", "markexpr"), ""),
    "maxfail": 0,
    "dist": "no",
    "tx": [],
    "log_file": os.devnull,
}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Before anything is configured."""
    request = json.loads(Path(os.environ.pop(REQUEST)).read_text())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != request["parent"]:  # it died before the call above
        os._exit(1)
    sys.argv[:] = request["argv"]
    profile = request["profile"]
    config.stash[HERE] = Target(asked=profile, profile=read_profile(profile), count=request["count"])
    # By these names plugins know that another process writes the reports of the run.
    config.workerinput = request["workerinput"]  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    for name, value in _SETTLED.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.option.basetemp = str(Path(request["directory"]) / "tmp")
    if not any(mark in request["path"] for mark in ("[", "::")):  # which a path on pytest's command line cannot have
        config.args = [request["path"]]
    if request["captured"]:
        # What a process that dies wrote last must be in the file.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    config.pluginmanager.register(_Child(config, request))
    return (yield)


class _Child:
    """What is heard of the test."""

    def __init__(self, config: pytest.Config, request: dict[str, Any]) -> None:
        self._config = config
        self._request = request
        self._directory = Path(request["directory"])
        self._events = open(self._directory / "events", "a")  # noqa: SIM115 - as long as the process
        self._not_collected: list[tuple[str, str]] = []
        # The terminal's plugin takes the stream that there is when it is configured.
        self._stdout = sys.stdout
        sys.stdout = open(self._directory / "session", "w")  # noqa: SIM115 - as long as the process

    def _say(self, kind: str, **data: Any) -> None:
        self._events.write(json.dumps({"kind": kind, **data}, default=repr) + "\n")
        self._events.flush()

    # ---- one test, and nothing that a run has beside it

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        sys.stdout = self._stdout

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        found = [item for item in items if item.nodeid == self._request["nodeid"]][:1]
        items[:] = found
        yield
        items[:] = found
        if not found:
            for kind, text in self._not_collected[:1] or [("trouble", f"it did not collect {self._request['nodeid']}")]:
                self._say(kind, text=text)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_collected.append(("trouble", f"it could not collect {report.nodeid}:\n{report.longreprtext}"))
        elif report.skipped and isinstance(report.longrepr, tuple):
            self._not_collected.append(("skip", report.longrepr[2].removeprefix("Skipped: ")))

    # ---- what becomes of it

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._say("report", data=hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_internalerror(self, excrepr: object) -> None:
        self._say("trouble", text=f"pytest failed in it:\n{excrepr}")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        error = excinfo.value
        if isinstance(error, pytest.exit.Exception):
            self._say("exit", reason=str(error.msg), status=error.returncode)
        elif isinstance(error, KeyboardInterrupt) and type(error) is KeyboardInterrupt:
            self._say("exit", reason="KeyboardInterrupt in a test with null GPUs", status=None)

    def pytest_warning_recorded(self, warning_message: Any, when: str) -> None:
        if when == "runtest":  # the parent has collected the same
            category = warning_message.category
            self._say(
                "warning",
                message=str(warning_message.message),
                module=category.__module__,
                category=category.__name__,
                filename=warning_message.filename,
                lineno=warning_message.lineno,
                when=when,
            )

    # ---- its output: into files from which the end can be read when the process has died, and from there into the reports

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._output(item, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._output(item, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._output(item, "teardown"):
            return (yield)

    @contextmanager
    def _output(self, item: pytest.Item, when: str) -> Iterator[None]:
        if not self._request["captured"]:
            yield
            return
        paths = {name: self._directory / name for name in ("stdout", "stderr")}
        self._flush()
        before = {name: path.stat().st_size for name, path in paths.items()}
        try:
            yield
        finally:
            self._flush()
            for name, path in paths.items():
                with path.open("rb") as file:
                    file.seek(before[name])
                    item.add_report_section(when, name, file.read().decode(errors="replace"))

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # the test has closed it
