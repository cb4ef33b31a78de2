"""Run a launch line as ``run`` does, and write what it compiled as a spec that builds the same."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexwarm import commandline, files, leases, ledger, modules
from flexwarm.errors import ExitCode, StoreError, UsageError
from flexwarm.observation import OnMiss
from flexwarm.ops.before_launch import admit
from flexwarm.ops.function_names import name_function, script_modules
from flexwarm.ops.launch_line import LaunchOptions, LaunchWatcher, command_exit_code, observe, prepare_real_launch
from flexwarm.programs import LaunchRecord
from flexwarm.recorded_calls import identity
from flexwarm.recorded_spec import RecordedSpec, Surroundings, from_record, functions_of, to_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult:
    """What a recording came to.

    Attributes:
        spec, text: None and empty if nothing was recorded.
        path: the file that was written; None where the text was asked for, or there is none.
        command_exit_code: as :attr:`flexwarm.ops.launch_line.LaunchResult.command_exit_code`.
        observed: programs that imported torch.
    """

    spec: RecordedSpec | None
    text: str
    path: Path | None
    command_exit_code: int | None
    observed: int
    seconds: float

    @property
    def exit_code(self) -> int:
        """The command's own if it failed; else whether there is a spec."""
        if self.command_exit_code:
            return self.command_exit_code
        return int(ExitCode.OK if self.spec is not None and self.command_exit_code == 0 else ExitCode.NOT_WARM)


def record_launch(
    options: LaunchOptions, environ: Mapping[str, str], watcher: LaunchWatcher, *, path: Path | None, force: bool
) -> RecordResult:
    """Run the line to its own end, and write the spec.

    What a command called before it failed is written, too, with a note: a job that is ended once it trains is the usual one.

    Args:
        path: of the spec; None for none, the caller takes the text.
        force: a file that is there is replaced.

    Raises:
        FlexwarmError: it could not begin, or the file could not be written.
    """
    began = time.perf_counter()
    if path is not None:
        _refuse(path, force)
    prepared = prepare_real_launch(options, environ)
    bucket = prepared.machine.bucket
    with leases.hold(
        bucket,
        command=commandline.title(options.argv),
        wait_seconds=options.lock_wait_seconds,
        notify=watcher.notify,
    ):
        admit(bucket, command="record", wait_seconds=options.lock_wait_seconds, notify=watcher.notify)
        record = observe(prepared, options, environ, watcher, on_miss=OnMiss.ALLOW, patient=True)
        try:
            ledger.append(bucket, {"command": "record", "exit_code": command_exit_code(record)})
        except StoreError as error:
            watcher.notify(f"the run is not in the bucket's history: {error.message}")
    spec = _spec(record, options, environ)
    text = to_toml(spec, os.getcwd()) if spec is not None else ""
    if spec is not None and path is not None:
        _refuse(path, force)  # somebody may have written it meanwhile
        files.write_atomic(path, text.encode("utf-8", "backslashreplace"))
    return RecordResult(
        spec=spec,
        text=text,
        path=path if spec is not None else None,
        command_exit_code=command_exit_code(record),
        observed=len(record.programs),
        seconds=time.perf_counter() - began,
    )


def _refuse(path: Path, force: bool) -> None:
    """Before a job of hours rather than after it."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", "name a file with -o")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", "--force replaces it, -o FILE writes another, -o - prints the spec")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(
            f"{path} cannot be written: {path.parent} is not there or is not writable", "name another file with -o"
        )


def _spec(record: LaunchRecord, options: LaunchOptions, environ: Mapping[str, str]) -> RecordedSpec | None:
    path = modules.search_path(environ)
    around = Surroundings(
        line=options.argv,
        directory=os.getcwd(),
        environ=environ,
        names={identity(function): name_function(function, path) for function in functions_of(record)},
        modules=script_modules(record, path),
    )
    return from_record(record, around)
