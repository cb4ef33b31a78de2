"""What of the environment and settings each job or program has: for a manifest to keep, and to be held against what it kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flexwarm import environment, manifest
from flexwarm.canonical import digest
from flexwarm.environment_difference import INDUCTOR, Compare, Compared, Surroundings, differences, together
from flexwarm.errors import FlexwarmError
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.ops.joining import Part
from flexwarm.ops.prepare import Machine, Prepared
from flexwarm.plan import COMPILE_THREADS, SELF_CONTAINED, Job, bucket_environment
from flexwarm.programs import LaunchRecord, ProgramRecord
from flexwarm.record import JobRecord, Record
from flexwarm.store import Bucket

#: What a build for a GPU that is not there needs to find it.
_STAND_IN = "TRITON_LIBCUDA_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Tables by their digests, as a manifest has them."""

    variables: Mapping[str, Mapping[str, str]]
    modes: Mapping[str, Mapping[str, str]]


# ---- what there is ---------------------------------------------------------------------------------------------------------


def of_job(prepared: Prepared, job: Job, record: JobRecord | None, environ: Mapping[str, str]) -> Surroundings:
    """Of a job of a spec; ``settings`` are those that its worker told beside Inductor's."""
    worker = next(worker for worker in prepared.plan.workers if worker.rank == job.rank)
    role = next(role for role in prepared.spec.roles if role.name == job.role)
    variables = {**environ, **worker.env}
    if COMPILE_THREADS not in {**environ, **role.env}:
        variables.pop(COMPILE_THREADS, None)  # the plan's own, by the cores of the host
    return Surroundings(variables=_without_own(prepared, variables), settings=record.modes if record is not None else {})


def of_program(machine: Machine, program: ProgramRecord, environ: Mapping[str, str]) -> Surroundings:
    """Of a program of a launch line. ``environ``: of this command, from which what flexwarm sets itself can be told."""
    variables = dict(program.program.variables)
    if variables.get(COMPILE_THREADS) == "1":
        variables = _as_here(variables, COMPILE_THREADS, environ)  # a verification sets it
    if machine.target is not None:
        variables = _as_here(variables, _STAND_IN, environ)
    return Surroundings(variables=_without_own(machine, variables), settings=program.modes)


def _as_here(variables: Mapping[str, str], name: str, environ: Mapping[str, str]) -> dict[str, str]:
    others = {other: value for other, value in variables.items() if other != name}
    return {**others, name: environ[name]} if name in environ else others


def _without_own(machine: Machine, variables: Mapping[str, str]) -> dict[str, str]:
    """Without the variables of the bucket, as far as they have the values that flexwarm gives them."""
    own = bucket_environment(str(machine.bucket.path))
    return {name: value for name, value in environment.comparable(variables).items() if own.get(name) != value}


# ---- what a manifest keeps -------------------------------------------------------------------------------------------------


def named(entry: JobEntry, had: Surroundings) -> JobEntry:
    """The entry with the digests of what it was built under."""
    return replace(
        entry, variables_digest=digest(had.variables), modes_digest=digest(had.settings) if had.settings else entry.modes_digest
    )


def as_before(entry: JobEntry, known: JobEntry) -> JobEntry:
    """The entry with the digests of an earlier one, also where that had none."""
    return replace(entry, variables_digest=known.variables_digest, modes_digest=known.modes_digest)


def kept(
    known: Manifest | None, jobs: Iterable[JobEntry], found: Iterable[Surroundings] = (), *, parts: Sequence[Part] = ()
) -> Kept:
    """The tables that ``jobs`` name, of those that there are."""
    jobs, found = list(jobs), list(found)
    variables = dict(known.variables) if known is not None else {}
    modes = dict(known.modes) if known is not None else {}
    for part in parts:
        variables.update(part.variables)
        modes.update(part.modes)
    variables.update((digest(had.variables), had.variables) for had in found)
    modes.update((digest(had.settings), had.settings) for had in found)
    return Kept(
        variables={name: table for name, table in variables.items() if any(job.variables_digest == name for job in jobs)},
        modes={name: table for name, table in modes.items() if any(job.modes_digest == name for job in jobs)},
    )


# ---- the comparison --------------------------------------------------------------------------------------------------------


def of_spec(
    prepared: Prepared,
    known: Manifest | None,
    entries: Mapping[str, JobEntry | None],
    record: Record | None,
    environ: Mapping[str, str],
) -> tuple[Compare, ...]:
    """Each job of a spec against its build.

    Args:
        entries: job -> what is known of its build; one that is not there has none.
    """
    found = []
    for job in prepared.plan.jobs:
        entry = entries.get(job.id)
        seen = record.jobs.get(job.id) if record is not None else None
        now = of_job(prepared, job, seen, environ)
        inductor = record.settings_of(job)[1] if record is not None and seen is not None else {}
        found.append(_against(known, entry, now, inductor, (job.id,)))
    return together(found)


def of_launch(
    machine: Machine,
    known: Manifest | None,
    record: LaunchRecord | None,
    builds: Mapping[str, JobEntry],
    environ: Mapping[str, str],
) -> tuple[Compare, ...]:
    """Each program of a launch line against its build; where none was started, what is set here.

    Args:
        builds: process -> the entry of its build. Without a record: any key -> an entry of this line.
    """
    if record is None or not record.judged:
        return (_here(machine, known, builds, environ),)
    found = []
    for program in record.judged:
        now = of_program(machine, program, environ)
        inductor = program.settings.config if program.settings is not None else {}
        found.append(_against(known, builds.get(program.process), now, inductor, (program.name,)))
    return together(found)


def manifest_of(bucket: Bucket) -> Manifest | None:
    """The bucket's manifest, where a verdict did not need it; None as well where it cannot be read, which the verdict says."""
    try:
        return manifest.load(bucket) if bucket.exists() else None
    except FlexwarmError:
        return None


def _against(
    known: Manifest | None, entry: JobEntry | None, now: Surroundings, inductor: Mapping[str, str], owners: tuple[str, ...]
) -> Compare:
    if known is None or entry is None:
        return Compare(owners=owners, compared=Compared.NONE, why="there is no build to compare with")
    here = {f"{INDUCTOR}.{name}": value for name, value in inductor.items()}
    there = {f"{INDUCTOR}.{name}": value for name, value in known.configs.get(entry.config_digest, {}).items()}
    if entry.variables_digest not in known.variables:
        old = Surroundings(variables=_key_variables(entry), settings=there)
        new = Surroundings(variables=environment.key_variables(now.variables), settings=here)
        why = "the build kept only what enters keys"
        return Compare(owners=owners, compared=Compared.KEYS, differences=differences(old, new), why=why)
    modes = known.modes.get(entry.modes_digest, {})
    # A table that one side lacks is no difference: nobody told it.
    both = bool(modes and now.settings)
    told = bool(there and here)
    old = Surroundings(
        variables=known.variables[entry.variables_digest], settings={**(modes if both else {}), **(there if told else {})}
    )
    new = Surroundings(variables=now.variables, settings={**(now.settings if both else {}), **(here if told else {})})
    if both and told:
        return Compare(owners=owners, compared=Compared.ALL, differences=differences(old, new))
    why = "nothing was compiled or loaded that could tell the settings"
    return Compare(owners=owners, compared=Compared.VARIABLES, differences=differences(old, new), why=why)


def _key_variables(entry: JobEntry) -> dict[str, str]:
    """All that a manifest of an earlier flexwarm has of the variables, without what flexwarm had set itself."""
    return {name: value for name, value in entry.env.items() if SELF_CONTAINED.get(name) != value}


def _here(machine: Machine, known: Manifest | None, builds: Mapping[str, JobEntry], environ: Mapping[str, str]) -> Compare:
    """A launcher gives its ranks variables that this process does not have: what is not set here may be set there."""
    entry = max(builds.values(), key=lambda entry: entry.built_at, default=None)
    if known is None or entry is None:
        return Compare(owners=(), compared=Compared.NONE, why="there is no build to compare with")
    now = _without_own(machine, environ)
    old = known.variables.get(entry.variables_digest, _key_variables(entry))
    if entry.variables_digest not in known.variables:
        now = environment.key_variables(now)
    then = {name: value for name, value in old.items() if name in now}
    why = "no program was started, so only the variables that are set here are compared"
    found = differences(Surroundings(variables=then), Surroundings(variables=now))
    return Compare(owners=(), compared=Compared.HERE, differences=found, why=why)
