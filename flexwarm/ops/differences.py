"""Why a job might miss: what is not as it was at its build, and which other bucket comes nearest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flexwarm import environment
from flexwarm.environment import Effect
from flexwarm.errors import FlexwarmError
from flexwarm.files import file_digest
from flexwarm.fingerprint import Fingerprint, differences
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.modules import Source
from flexwarm.ops import publish
from flexwarm.ops.fingerprint import read as read_fingerprint
from flexwarm.ops.prepare import DRILL, GUARD, TUNING, Machine, Prepared
from flexwarm.plan import Job
from flexwarm.proof import JobProof
from flexwarm.reasons import Code, Reason
from flexwarm.record import Record


def differences_since_build(
    prepared: Prepared, known: Manifest, job: Job, entry: JobEntry, record: Record | None, environ: Mapping[str, str]
) -> list[Reason]:
    """What is not as it was when the job was built, of what can make a key miss."""
    worker = next(worker for worker in prepared.plan.workers if worker.rank == job.rank)
    reasons = publish.left_out(entry)
    reasons += variables_since_build(entry, environment.key_variables({**environ, **worker.env}))
    old_sources = entry.detail.get("sources", {})
    for module, source in prepared.sources_of(job).items():
        if old_sources.get(module) != source.sha256:
            reasons.append(
                Reason(
                    code=Code.SOURCE_CHANGED,
                    message=f"the source of {module} is not what it was when this was built",
                    hint="flexwarm build",
                )
            )
    digest, config = record.settings_of(job) if record else ("", {})
    if digest and digest != entry.config_digest:
        reasons.append(
            Reason(
                code=Code.CONFIG_CHANGED,
                message=f"Inductor's settings are not those of the build: {settings_difference(known, entry, config)}",
                hint="look for what sets them: an environment variable, or a module that the spec names",
            )
        )
    return reasons


#: What to do where a device's index is all that is in the way.
SEE_ONE_DEVICE = "let each rank see its own device alone, which is then cuda:0 (CUDA_VISIBLE_DEVICES, isolate = true in a role)"


def never_built(job: Job, known: Manifest) -> Reason:
    """A job that no build recorded, with what the most similar one that is there has otherwise.

    The names are those of the spec. Jobs of launch lines are not like one of a spec.
    """
    message = f"{job.workload.name} on {job.device} was never built in this bucket"
    names, nearest = _nearest_built(job, known)
    hint = f"flexwarm build with all devices; or {SEE_ONE_DEVICE}" if names == ["device"] else "flexwarm build"
    return Reason(code=Code.NOT_BUILT, message=f"{message}; {nearest}" if nearest else message, hint=hint)


def _nearest_built(job: Job, known: Manifest) -> tuple[list[str], str]:
    """What differs from the most similar job, and that in words; nothing if there is none."""
    wanted = _in_spec({"device": job.device, **job.workload.subject()})
    found = []
    for entry in known.jobs.values():
        if "workload" in entry.detail:
            built = _in_spec({"device": entry.detail.get("device"), **entry.detail["workload"]})
            names = [name for name in {**wanted, **built} if wanted.get(name) != built.get(name)]
            found.append((len(names), entry.workload != job.workload.name, entry.workload, names, built))
    if not found:
        return [], ""
    _, _, workload, names, built = min(found, key=lambda one: one[:3])
    told = [f"{name} {_value(built.get(name))} where this has {_value(wanted.get(name))}" for name in names[:3]]
    told += [f"{len(names) - 3} more differences"] if len(names) > 3 else []
    return names, f"the nearest that was, {workload}, has {' and '.join(told)}" if told else ""


def _in_spec(data: Mapping[str, Any]) -> dict[str, Any]:
    """A workload as data, by the names that its parts have in a spec: of a grid all values in their order."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if name in ("mask", "score"):
            found[f"{name}_mod"] = value["name"] if value else None
            found.update((f"{name}_args.{key}", item) for key, item in ((value or {}).get("args") or {}).items())
        elif name == "shapes":
            keys = dict.fromkeys(key for shape in value for key in shape)
            found.update((key, list(dict.fromkeys(shape.get(key) for shape in value))) for key in keys)
        elif isinstance(value, Mapping):
            found.update((f"{name}.{key}", item) for key, item in value.items())
        else:
            found[name] = value
    if found.get("kv_len") == found.get("q_len"):
        found.pop("kv_len", None)  # it follows, unless the spec says otherwise
    return found


def _value(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return "none" if value is None else str(value)


def variables_since_build(entry: JobEntry, now: Mapping[str, str]) -> list[Reason]:
    """The variables that can make a key miss and are not as they were when ``entry`` was built."""
    return [
        Reason(
            code=Code.ENV_CHANGED,
            message=f"{name} was {_shown(entry.env.get(name))} when this was built and is {_shown(now.get(name))} now"
            + (", which enters no key and can change code" if environment.effect(name) is Effect.CODE else ""),
            hint=f"build with {name} as the launch has it",
        )
        for name in sorted(now.keys() | entry.env.keys())
        if entry.env.get(name) != now.get(name)
    ]


def settings_difference(known: Manifest, entry: JobEntry, new: Mapping[str, str]) -> str:
    """The settings that differ, by name; the first three."""
    old = known.configs.get(entry.config_digest, {})
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    told = "; ".join(f"{name} {old.get(name, 'unset')} -> {new.get(name, 'unset')}" for name in names[:3])
    return told + (f"; and {len(names) - 3} more" if len(names) > 3 else "")


def changes_since_proof(proven: JobProof, now: Mapping[str, str], sources: Mapping[str, Source]) -> list[Reason]:
    """What of all that the parent can see is not as it was when the job was proven; nothing of it may be.

    Args:
        now: as :func:`flexwarm.ops.prepare.context` says it.
        sources: the modules of the job's own functions, as they are found now; the proof must know each file.
    """
    reasons = []
    for name in sorted(proven.context.keys() | now.keys()):
        old, new = proven.context.get(name), now.get(name)
        if old != new:
            code = Code.ENV_CHANGED if name.startswith("env.") else Code.FINGERPRINT_CHANGED
            code = Code.NOT_PROVEN if name in (GUARD, DRILL, TUNING) else code
            reasons.append(
                Reason(
                    code=code,
                    message=f"{name.removeprefix('env.')} was {_shown(old)} when this was proven and is {_shown(new)} now",
                    hint="flexwarm build tunes once for all" if name == TUNING else "run flexwarm verify without --fast once",
                )
            )
    unknown = {str(Path(s.path).resolve()): "" for s in sources.values() if str(Path(s.path).resolve()) not in proven.files}
    for path, digest in {**proven.files, **unknown}.items():
        # A file that could not be read, or was written while the job ran, has no digest: it is never as it was.
        if not digest or file_digest(path) != digest:
            reasons.append(
                Reason(
                    code=Code.SOURCE_CHANGED,
                    message=f"{path} is not what it was when this was proven",
                    hint="run flexwarm verify without --fast once",
                )
            )
    return reasons


def no_bucket(machine: Machine, build: str = "flexwarm build") -> Reason:
    """Say that nothing was built for this machine; and, if something was for another, in what the two differ.

    Args:
        build: how to build, for the hint.
    """
    message = f"nothing was built for this toolchain (bucket {machine.bucket.digest}) in {machine.store.root}"
    nearest = _nearest(machine)
    if nearest is not None:
        changes = [change for change in differences(nearest[1], machine.fingerprint) if change.selects]
        told = "; ".join(f"{c.component} {_shown(c.old)} -> {_shown(c.new)}" for c in changes[:3])
        more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
        return Reason(
            code=Code.FINGERPRINT_CHANGED,
            message=f"{message}; the nearest bucket {nearest[0]} differs in {told}{more}",
            hint=f"{build}, or flexwarm fingerprint --diff {nearest[0]}",
        )
    return Reason(code=Code.NO_BUCKET, message=message, hint=build)


def _nearest(machine: Machine) -> tuple[str, Fingerprint] | None:
    found = []
    for bucket in machine.store.buckets():
        try:
            fingerprint = read_fingerprint(bucket.fingerprint)
        except FlexwarmError:
            continue  # only named to help; a bucket that cannot be read is no help
        distance = sum(change.selects for change in differences(fingerprint, machine.fingerprint))
        found.append((distance, bucket.digest, fingerprint))
    if not found:
        return None
    _, digest, fingerprint = min(found, key=lambda item: item[:2])
    return digest, fingerprint


def _shown(value: str | None) -> str:
    return "unset" if value is None else repr(value)
