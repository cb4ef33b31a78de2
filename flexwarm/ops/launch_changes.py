"""Why the programs of a launch line would miss: what of each, and around it, is not as it was when the bucket was built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flexwarm.environment_difference import Compare
from flexwarm.explanation import Explained
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.ops import explaining, publish, surroundings
from flexwarm.ops.differences import SEE_ONE_DEVICE, settings_difference, variables_since_build
from flexwarm.ops.launch_line import BUILD, PreparedLaunch, builds_of
from flexwarm.programs import LaunchRecord, ProgramRecord
from flexwarm.reasons import Code, Reason


def explain_misses(
    prepared: PreparedLaunch, known: Manifest | None, record: LaunchRecord, notify: Callable[[str], None]
) -> dict[str, tuple[Explained, ...]]:
    """Process -> each key that it missed, with the nearest that the bucket has."""
    builds = builds_of(prepared, list(known.jobs.values()) if known else [])
    own = {name: frozenset(key.key for key in entry.keys) for name, entry in builds.items()}
    return explaining.explain_misses(
        prepared.machine.bucket,
        known,
        {program.process: program.missed_keys for program in record.judged},
        {program.process: own.get(program.identity, frozenset()) for program in record.judged},
        notify,
    )


def why_missed(
    prepared: PreparedLaunch, known: Manifest, record: LaunchRecord, explained: Mapping[str, Sequence[Explained]]
) -> dict[str, list[Reason]]:
    """Process -> what is not as it was when the bucket was built, of what can make a key miss."""
    entries = list(known.jobs.values())
    builds = builds_of(prepared, entries)
    found = {}
    for program in record.judged:
        why = explained.get(program.process, ())
        nearest = builds.get(program.identity) or _nearest(entries, program)
        differences = [] if nearest is None else [*_other_devices(entries, program), *_differences(known, nearest, program)]
        found[program.process] = [*explaining.reasons(why, BUILD), *explaining.unless_explained(differences, why)]
    return found


def environment_of(
    prepared: PreparedLaunch, known: Manifest | None, record: LaunchRecord | None, environ: Mapping[str, str]
) -> tuple[Compare, ...]:
    """What of the environment and the settings is not as it was at the build."""
    had = known if known is not None else surroundings.manifest_of(prepared.machine.bucket)
    entries = list(had.jobs.values()) if had is not None else []
    builds = builds_of(prepared, entries)
    if record is not None:
        nearest = {x.process: builds.get(x.identity) or _nearest(entries, x) for x in record.judged}
        builds = {process: entry for process, entry in nearest.items() if entry is not None}
    return surroundings.of_launch(prepared.machine, had, record, builds or {x.share: x for x in entries}, environ)


def _other_devices(entries: Sequence[JobEntry], program: ProgramRecord) -> list[Reason]:
    """A CUDA device for which nothing was built: its index is in every key."""
    built = {device for entry in entries for device in (*entry.detail.get("devices", ()), entry.detail.get("device")) if device}
    return [
        Reason(
            code=Code.DEVICE_CHANGED,
            message=f"it calls on {device}, and what was built is for {', '.join(sorted(built))}: the index is in the key",
            hint=f"build with all devices; or {SEE_ONE_DEVICE}",
        )
        for device in sorted(program.devices - built)
        if built
    ]


def _nearest(entries: Sequence[JobEntry], program: ProgramRecord) -> JobEntry | None:
    """The entry whose variables are most like the program's; the newest of those."""

    def distance(entry: JobEntry) -> tuple[int, str]:
        names = entry.env.keys() | program.program.environ.keys()
        return -sum(entry.env.get(name) != program.program.environ.get(name) for name in names), entry.built_at

    return max(entries, key=distance, default=None)


def _differences(known: Manifest, entry: JobEntry, program: ProgramRecord) -> list[Reason]:
    reasons = publish.left_out(entry)
    reasons += variables_since_build(entry, program.program.environ)
    settings = program.settings
    if settings is not None and settings.config_digest != entry.config_digest:
        reasons.append(
            Reason(
                code=Code.CONFIG_CHANGED,
                message=f"Inductor's settings are not those of the build: {settings_difference(known, entry, settings.config)}",
                hint="look for what sets them: an environment variable, or the training code",
            )
        )
    then = entry.detail.get("files", {})
    # Without a digest a file changed while a program ran, and is neither one nor the other.
    changed = sorted(path for path, digest in then.items() if digest and program.files.get(path, digest) not in ("", digest))
    if changed:
        more = f" and {len(changed) - 1} more files" if len(changed) > 1 else ""
        message = f"{changed[0]}{more} changed since this was built"
        reasons.append(Reason(code=Code.SOURCE_CHANGED, message=message, hint=BUILD))
    return reasons
