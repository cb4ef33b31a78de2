"""What build, verify, run and record of a launch line do alike: know the machine, run the command under observation."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from flexwarm import __version__, commandline, launch, nodes, toolchain
from flexwarm.command import Conditions, run_command
from flexwarm.commandline import LaunchLine
from flexwarm.environment_difference import Compare
from flexwarm.errors import StoreError, UsageError
from flexwarm.events import Event
from flexwarm.explanation import Explained
from flexwarm.known_faults import Applying
from flexwarm.launch_verdict import Expectation, LaunchVerdict
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.nodes import NodeFacts
from flexwarm.observation import VARIABLE, Observation, OnMiss
from flexwarm.ops import known_faults, publish
from flexwarm.ops.prepare import PACKAGE, Machine, find_machine
from flexwarm.ops.run import run_directory
from flexwarm.plan import COMPILE_THREADS, bucket_environment
from flexwarm.programs import Ended, LaunchRecord, fold_launch
from flexwarm.reasons import Code, Kind, weigh
from flexwarm.request import Backward, Conduct, Guard, Purpose, Tuning
from flexwarm.store import Bucket
from flexwarm.target import Target

#: First on the path of every Python that the launch starts; holds a ``sitecustomize`` and nothing else.
SITE = PACKAGE / "attach" / "site"
PYTHONPATH = "PYTHONPATH"
#: The next step where something is to be built.
BUILD = "flexwarm build -- with this launch line"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What the user asked for; ``root`` None is the default store.

    Attributes:
        argv: the launch line.
        expect_ranks: how many ranks must report; None for what the line or the ranks say.
        target: GPUs that are not here.
        limit_seconds: of the whole command; None for none.
        hang_seconds: as :attr:`flexwarm.request.Conduct.hang_seconds`.
        stdout: where the command's standard output goes; None for our own.
        tuning: what the programs do where a GPU is to choose between a kernel's variants.
        keeps_proof: a verification that finds everything warm is a use of the bucket.
    """

    argv: tuple[str, ...]
    root: Path | None
    trust_shared: bool
    lock_wait_seconds: float
    hang_seconds: float
    limit_seconds: float | None = None
    guard: Guard = Guard.REPORT
    backward: Backward = Backward.ENGINE
    expect_ranks: int | None = None
    target: Target | None = None
    stdout: IO[str] | None = None
    tuning: Tuning = Tuning.MISS
    keeps_proof: bool = True

    @property
    def remedy(self) -> str:
        return Conduct(purpose=Purpose.VERIFY, guard=self.guard, backward=self.backward).remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLaunch:
    """Everything that is known before the command starts.

    Attributes:
        digest: names the line, with the directory in which it is started.
    """

    machine: Machine
    line: LaunchLine
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWatcher:
    """How an operation tells what goes on; it prints nothing itself.

    Attributes:
        on_end: called with the command's own exit code once it has ended by itself.
    """

    notify: Callable[[str], None]
    on_event: Callable[[Event], None] = lambda event: None
    on_end: Callable[[int], None] = lambda code: None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """What an operation on a launch line returns.

    Attributes:
        record: None if nothing was started.
        built_for: as :attr:`flexwarm.ops.run.RunResult.built_for`.
        command_exit_code: the command's own, 128 and the signal's number if one ended it; None if it was not started, or we
            ended it.
        tuning: as :attr:`LaunchOptions.tuning`.
        expected_ranks: how many ranks had to report, if that was known before.
        explained: process -> the keys that it missed, with what they are nearest to.
        faults: as :attr:`flexwarm.ops.run.RunResult.faults`.
        environment: of a verification, what of it is not as it was at the build.
    """

    verdict: LaunchVerdict
    bucket: str
    bucket_path: str
    line: LaunchLine
    record: LaunchRecord | None
    seconds: float
    remedy: str
    expected_ranks: int | None
    command_exit_code: int | None
    published: bool = False
    bucket_bytes: int | None = None
    bucket_files: int | None = None
    target: str | None = None
    built_for: Sequence[Mapping[str, Any]] = ()
    tuning: Tuning = Tuning.MISS
    explained: Mapping[str, Sequence[Explained]] = field(default_factory=dict)
    faults: Sequence[Applying] = ()
    environment: Sequence[Compare] = ()


def prepare_launch(options: LaunchOptions, environ: Mapping[str, str], *, create: bool) -> PreparedLaunch:
    """Read what the line says, and find the bucket.

    Raises:
        UsageError: there is no line.
        UnsupportedError: no torch that flexwarm knows.
        StoreError: the store cannot be used.
    """
    if not options.argv:
        raise UsageError("there is no command after --", "put the launch line there: flexwarm run -- torchrun train.py")
    toolchain.require_supported()
    machine = find_machine(
        environ,
        root=options.root,
        trust_shared=options.trust_shared,
        create=create,
        uses_cpu=options.target is None and not toolchain.gpus(),
        target=options.target,
    )
    line = commandline.read(options.argv, environ)
    return PreparedLaunch(machine=machine, line=line, digest=commandline.digest(options.argv, os.getcwd()))


def prepare_real_launch(options: LaunchOptions, environ: Mapping[str, str]) -> PreparedLaunch:
    """The same for the user's real job: a store that can only be read serves it as well, and what is compiled then is lost.

    Raises:
        FlexwarmError: as :func:`prepare_launch`.
    """
    try:
        prepared = prepare_launch(options, environ, create=True)
        prepared.machine.bucket.create()
    except StoreError:
        prepared = prepare_launch(options, environ, create=False)
    return prepared


def observe(
    prepared: PreparedLaunch,
    options: LaunchOptions,
    environ: Mapping[str, str],
    watcher: LaunchWatcher,
    *,
    on_miss: OnMiss,
    known: Manifest | None = None,
    patient: bool = False,
) -> LaunchRecord:
    """Run the line under observation and fold what its programs said.

    Args:
        known: the bucket's manifest, which other nodes are told of.
        patient: it is the user's real job: see :class:`flexwarm.command.Conditions`.
    """
    facts = _facts(prepared, known)
    with run_directory(prepared.machine.bucket, launch.new_run_id()) as directory:
        variables = bucket_environment(str(prepared.machine.bucket.path))
        return _observe_in(directory, prepared, options, environ, watcher, on_miss, facts, variables, patient)


def observe_outside(
    prepared: PreparedLaunch, options: LaunchOptions, environ: Mapping[str, str], watcher: LaunchWatcher
) -> LaunchRecord:
    """The same up to the first miss, with an empty cache that is thrown away: for a bucket that is not there, and stays so."""
    with tempfile.TemporaryDirectory(prefix="flexwarm-") as scratch:
        directory = Path(scratch) / launch.new_run_id()
        directory.mkdir()
        variables = bucket_environment(str(Path(scratch) / "bucket"))
        return _observe_in(
            directory, prepared, options, environ, watcher, OnMiss.FAIL, _facts(prepared, None), variables, patient=False
        )


def _facts(prepared: PreparedLaunch, known: Manifest | None) -> NodeFacts:
    """What other nodes are told of this one."""
    machine = prepared.machine
    listed = {(key.layer, key.key) for entry in known.jobs.values() for key in entry.keys} if known else set()
    return NodeFacts(
        host=socket.gethostname(),
        store=str(machine.store.root),
        bucket=machine.bucket.digest,
        components=dict(machine.fingerprint.select),
        explain=dict(machine.fingerprint.explain),
        built=known is not None,
        keys=len(listed),
        keys_digest=nodes.digest_of_keys(listed),
    )


def _observe_in(
    directory: Path,
    prepared: PreparedLaunch,
    options: LaunchOptions,
    environ: Mapping[str, str],
    watcher: LaunchWatcher,
    on_miss: OnMiss,
    facts: NodeFacts,
    variables: Mapping[str, str],
    patient: bool,
) -> LaunchRecord:
    store = prepared.machine.store
    programs = directory / "programs"
    programs.mkdir()
    told = directory / "observation.json"
    observation = Observation(
        run=directory.name,
        directory=str(programs),
        site=str(SITE),
        home=str(PACKAGE.parent),
        on_miss=on_miss,
        guard=options.guard,
        backward=options.backward,
        hang_seconds=options.hang_seconds,
        variables=variables,
        node=facts,
        tuning=options.tuning,
    )
    told.write_text(json.dumps(observation.to_json(), indent=1))
    path = [str(SITE), *filter(None, [environ.get(PYTHONPATH, "")])]
    added = {**prepared.machine.child_variables(environ), **variables, PYTHONPATH: os.pathsep.join(path), VARIABLE: str(told)}
    if on_miss is OnMiss.FAIL:
        # With more, Inductor compiles in processes of its own, which do not report. Nothing is compiled here anyway.
        added[COMPILE_THREADS] = "1"
    run = run_command(
        options.argv,
        environ={**environ, **added},
        directory=programs,
        run_id=directory.name,
        conditions=Conditions(
            stdout=options.stdout,
            patient=patient,
            limit_seconds=options.limit_seconds,
            on_end=lambda status: watcher.on_end(_as_a_shell(status)),
        ),
        on_event=watcher.on_event,
    )
    return fold_launch(
        run.programs,
        status=run.status,
        ended=run.ended,
        signum=run.signum,
        seconds=run.seconds,
        unseen=run.unseen,
        left=run.left,
        compilers=run.compilers,
        store=str(store.root if directory.is_relative_to(store.root) else directory),
    )


def expectation(prepared: PreparedLaunch, options: LaunchOptions, known: Manifest | None, disk: Sequence[str]) -> Expectation:
    """What the verdict holds the record against."""
    line = prepared.line
    ranks, said_by = line.expected_ranks, line.said_by
    if options.expect_ranks is not None:
        ranks, said_by = options.expect_ranks, "--expect-ranks"
    entries = list(known.jobs.values()) if known else []
    newest = builds_of(prepared, entries)
    return Expectation(
        ranks=ranks,
        said_by=said_by,
        components={**prepared.machine.components, "flexwarm.version": __version__, "flexwarm.path": str(PACKAGE)},
        listed=frozenset((key.layer, key.key) for entry in entries for key in entry.keys),
        recorded={name: frozenset((key.layer, key.key) for key in entry.keys) for name, entry in newest.items()},
        left_open={name: publish.left_out(entry) for name, entry in newest.items()},
        disk=disk,
        blind=line.blind,
        other_processor=str(prepared.machine.bucket.path) if prepared.machine.has_other_processor else "",
    )


def builds_of(prepared: PreparedLaunch, entries: Sequence[JobEntry]) -> dict[str, JobEntry]:
    """Identity of a program -> what the newest build of this very line recorded of it."""
    mine = sorted((entry for entry in entries if entry.detail.get("line") == prepared.digest), key=lambda entry: entry.built_at)
    return {str(entry.detail["program"]): entry for entry in mine}


def with_space(bucket: Bucket, verdict: LaunchVerdict) -> LaunchVerdict:
    """A disk that is full is the likely cause where something failed, or was not said."""
    every = [*verdict.reasons, *(reason for program in verdict.programs for reason in program.reasons)]
    told = verdict.kind not in (Kind.BROKEN, Kind.UNKNOWN) or any(reason.code is Code.NO_SPACE for reason in every)
    full = None if told else publish.no_space(bucket)
    if full is None:
        return verdict
    kind, exit_code = weigh([full, *every], best=verdict.kind)
    return replace(verdict, kind=kind, exit_code=exit_code, reasons=(full, *verdict.reasons))


def command_exit_code(record: LaunchRecord) -> int | None:
    """As a shell would give it; None where the command did not end by itself."""
    return _as_a_shell(record.status) if record.ended is Ended.BY_ITSELF else None


def _as_a_shell(status: int) -> int:
    return status if status >= 0 else 128 - status


def result_of(
    prepared: PreparedLaunch,
    options: LaunchOptions,
    verdict: LaunchVerdict,
    record: LaunchRecord | None,
    known: Manifest | None,
    began: float,
    *,
    published: bool = False,
    explained: Mapping[str, Sequence[Explained]] | None = None,
    environment: Sequence[Compare] = (),
) -> LaunchResult:
    """Put together what an operation came to; ``began``: when, by ``time.perf_counter``."""
    bucket = prepared.machine.bucket
    return LaunchResult(
        verdict=verdict,
        bucket=bucket.digest,
        bucket_path=str(bucket.path),
        line=prepared.line,
        record=record,
        seconds=time.perf_counter() - began,
        remedy=options.remedy,
        expected_ranks=options.expect_ranks if options.expect_ranks is not None else prepared.line.expected_ranks,
        command_exit_code=command_exit_code(record) if record is not None else None,
        published=published,
        bucket_bytes=sum(entry.size_bytes for entry in known.files) if known else None,
        bucket_files=len(known.files) if known else None,
        target=options.target.title if options.target is not None else None,
        built_for=publish.origins(known),
        tuning=options.tuning,
        explained=explained or {},
        faults=known_faults.of_launch(record),
        environment=environment,
    )
