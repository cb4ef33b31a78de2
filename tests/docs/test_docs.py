"""The documentation holds what the code has: commands, options, reasons, exit codes, spec keys, builtins, JSON fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from flexwarm import catalogue, commandline, environment, guard, known_faults, known_variables, reaper, spec, toolchain
from flexwarm.calls import AttentionCall
from flexwarm.canonical import StrEnum, plain
from flexwarm.cli.main import COMMANDS
from flexwarm.cli.options import LaunchLineCommand
from flexwarm.costs import Part
from flexwarm.environment_difference import Change, Compare, Compared, Subject, Surroundings, differences
from flexwarm.errors import ExitCode, SpecError
from flexwarm.events import (
    Answer,
    Compiled,
    Costs,
    Dense,
    DrillDone,
    Event,
    Hang,
    Hazard,
    Hello,
    JobDone,
    JobFailed,
    Layer,
    Lookup,
    ShapeDone,
    StepDone,
)
from flexwarm.hazards import HazardCode
from flexwarm.key_differences import CauseKind
from flexwarm.known_faults import Seen
from flexwarm.launch import Limits
from flexwarm.launch_verdict import judge_verified_launch
from flexwarm.nodes import NodeFacts
from flexwarm.observation import VARIABLE, OnMiss
from flexwarm.ops import clean, publish
from flexwarm.ops import known_faults as ops_known_faults
from flexwarm.ops.doctor import Check, Diagnosis, Status
from flexwarm.ops.drill import DrillResult, DrillState, drill_plan
from flexwarm.ops.launch_line import PYTHONPATH, LaunchResult
from flexwarm.ops.record import RecordResult
from flexwarm.ops.run import RunResult
from flexwarm.plan import COMPILE_THREADS, Plan, bucket_environment, make_plan
from flexwarm.program_events import Held, Nodes
from flexwarm.programs import Ended
from flexwarm.reasons import MEANING, Code, Kind
from flexwarm.record import End, Exit, fold
from flexwarm.recorded_spec import RecordedSpec, RecordedWorkload
from flexwarm.render import doctor as render_doctor
from flexwarm.render.costs import PART_NAMES
from flexwarm.render.launch import launch_json
from flexwarm.render.record import record_json
from flexwarm.render.run import plan_json, run_json
from flexwarm.request import Guard, Tuning
from flexwarm.step import StepContext
from flexwarm.store import Bucket
from flexwarm.target import DeviceProfile, Target
from flexwarm.topology import MAX_STAGGER_SECONDS, LaneContext, ProcessGroup
from flexwarm.verdict import Outcome, judge_verify, with_drill
from flexwarm.workload import RECOMPILE_LIMIT, STEP_CALLS, CallSite, Dtype, Layout
from tests import launches

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
LAUNCH_LINES = ROOT / "docs" / "how-to" / "launch-lines.md"
OBSERVING = ROOT / "docs" / "explanation" / "observing-a-launch.md"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])

#: A spec with every kind of table, to which an unknown key is added.
SPEC = """
schema = 1
{top}
[[role]]
name = "r"
{role}
[[workload]]
name = "w"
q_heads = 1
head_dim = 16
q_len = 16
{workload}
[workload.compile]
{compile}
"""


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def code_in(text: str) -> set[str]:
    """Everything that stands in backquotes outside of code blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without rulers."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not re.fullmatch(r"[|\- ]+", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def section(text: str, title: str) -> str:
    """What stands below one heading, up to the next of its level or a higher one."""
    match = re.search(rf"^(#+) {re.escape(title)}$", text, flags=re.MULTILINE)
    assert match is not None, f"there is no section {title!r}"
    rest = text[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, flags=re.MULTILINE)
    return rest[: end.start()] if end else rest


def first_cells(text: str) -> set[str]:
    """The code in the first cell of every row of every table."""
    return {word for cells in rows(text) for word in code_in(cells[0])}


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def command(name: str) -> click.Command:
    found: click.Command = import_module(COMMANDS[name][0]).command
    return found


def help_options(name: str) -> set[str]:
    """Every option in ``flexwarm NAME --help``, as the user sees it."""
    context = click.Context(command(name), info_name=name, help_option_names=["-h", "--help"])
    text = command(name).get_help(context).partition("Options:")[2]
    heads = re.findall(r"^  (-[\w-]+(?:, -[\w-]+)*)", text, flags=re.MULTILINE)
    found = {option for head in heads for option in head.split(", ")}
    assert "--store" in found
    return found


def option_names(cell: str) -> list[str]:
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", cell)


def documented_options(text: str) -> set[str]:
    """Every option in the first cells of the tables of ``text``."""
    return {word for cells in rows(text) for word in option_names(cells[0])}


def known_keys(table: str) -> set[str]:
    """The keys of one table of a spec, as the parser lists them for a key that it does not know."""
    parts = dict.fromkeys(("top", "role", "workload", "compile"), "")
    with pytest.raises(SpecError) as caught:
        spec.parse(SPEC.format(**{**parts, table: "qqqqqqqqqqqq = 1"}), "spec.toml")
    head, _, listed = caught.value.hint.partition("known keys: ")
    assert head == "", caught.value.hint
    assert listed, caught.value.hint
    return set(listed.split(", "))


# --- README ---------------------------------------------------------------------------------------------------------------


def test_the_readme_lists_exactly_the_commands_in_their_order() -> None:
    text = section((ROOT / "README.md").read_text(encoding="utf-8"), "Commands")
    assert re.findall(r"^\| `flexwarm (\w+)", text, flags=re.MULTILINE) == list(COMMANDS)


def test_the_readme_has_exactly_the_exit_codes() -> None:
    text = section((ROOT / "README.md").read_text(encoding="utf-8"), "Exit codes")
    found = [int(code) for cells in rows(text) for code in re.findall(r"\d+", cells[0])]
    assert found == [int(code) for code in ExitCode]


def test_no_line_of_the_readme_is_longer_than_120_and_it_fits_two_screens() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120] == []
    assert len(lines) <= 100


def test_every_make_target_in_the_readme_is_in_the_makefile() -> None:
    named = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert named
    assert named <= targets


# --- commands -------------------------------------------------------------------------------------------------------------


def test_the_command_page_has_a_section_for_each_command_and_no_other() -> None:
    titles = re.findall(r"^## (.+)$", page("commands.md"), flags=re.MULTILINE)
    assert titles == ["Common options", "Options of a run", *COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_in_its_section_and_no_section_has_one_that_is_gone(name: str) -> None:
    common = documented_options(section(page("commands.md"), "Common options"))
    own = documented_options(section(page("commands.md"), name))
    assert common | own == help_options(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_environment_variable_stands_in_the_row_of_its_option(name: str) -> None:
    table = {word: cells for cells in rows(page("commands.md")) if len(cells) == 4 for word in option_names(cells[0])}
    named = [p for p in command(name).params if isinstance(p, click.Option) and p.envvar]
    assert named
    for option in named:
        assert f"`{option.envvar}`" in table[option.opts[0]][1], option.opts


def test_the_default_limits_on_the_command_page_are_those_of_the_code() -> None:
    table = {cells[0]: cells[2] for cells in rows(section(page("commands.md"), "Options of a run"))}
    limits = Limits()
    assert table["`--job-timeout SECONDS`"] == f"{limits.job_seconds:g}"
    assert table["`--hang-timeout SECONDS`"] == f"{limits.hang_seconds:g}"
    assert table["`--silence-timeout SECONDS`"] == f"{limits.silence_seconds:g}"
    (lock_wait,) = [p for p in command("build").params if "--lock-wait" in p.opts]
    assert table["`--lock-wait SECONDS`"] == f"{lock_wait.default:g}"


@pytest.mark.parametrize("option", ["--guard", "--guard-backward"])
def test_the_choices_of_the_remedy_on_the_command_page_are_those_of_the_code(option: str) -> None:
    (row,) = [c for c in rows(section(page("commands.md"), "Options of a run")) if c[0].startswith(f"`{option} ")]
    (known,) = [p for p in command("verify").params if option in p.opts]
    assert isinstance(known.type, click.Choice)
    assert row[0] == ", ".join(f"`{option} {choice}`" for choice in known.type.choices)
    assert row[2] == f"`{known.default}`"


def test_what_run_does_at_a_miss_is_on_the_command_page_and_in_the_how_to() -> None:
    (row,) = [c for c in rows(section(page("commands.md"), "Options of a run")) if c[0].startswith("`--on-miss ")]
    (known,) = [p for p in command("run").params if "--on-miss" in p.opts]
    assert isinstance(known.type, click.Choice)
    assert row[0] == ", ".join(f"`--on-miss {choice}`" for choice in known.type.choices)
    assert row[2] == f"`{known.default}`"
    explained = first_cells(section(LAUNCH_LINES.read_text(encoding="utf-8"), "Run it"))
    assert explained == set(known.type.choices) == {choice.value for choice in OnMiss}


def test_each_variable_that_a_launch_line_gets_is_explained() -> None:
    explained = first_cells(section(OBSERVING.read_text(encoding="utf-8"), "By the environment alone")) - {"variable"}
    got = {*bucket_environment("/b"), PYTHONPATH, VARIABLE, reaper.MARKER, COMPILE_THREADS}
    assert {word.partition("=")[0] for word in explained} == got


def test_the_variables_of_env_are_named_where_env_and_build_are_described() -> None:
    for name in bucket_environment("/b"):
        assert name in section(page("commands.md"), "env")
        assert name in section(page("commands.md"), "build")


# --- exit codes and reasons -------------------------------------------------------------------------------------------------


def test_the_exit_code_page_has_each_code_with_its_name_and_no_other() -> None:
    found = {(int(cells[0]), cells[1].strip("`")) for cells in rows(page("exit-codes.md")) if cells[0].isdigit()}
    assert found == {(int(code), code.name) for code in ExitCode}


def test_the_reason_page_has_each_reason_once_with_its_verdict_and_exit_code() -> None:
    found = [(cells[0].strip("`"), cells[1], cells[2]) for cells in rows(page("reasons.md")) if len(cells) == 6]
    listed = [row for row in found if row[0] != "reason"]
    expected = [(code.value, MEANING[code][0].value, str(int(MEANING[code][1]))) for code in Code]
    assert sorted(listed) == sorted(expected)


HAZARDS = {code.value for code in HazardCode}


def test_each_hazard_is_explained_among_the_hazards_and_in_the_how_to() -> None:
    assert first_cells(section(page("reasons.md"), "Hazards")) - {"reason"} == HAZARDS
    how_to = (ROOT / "docs" / "how-to" / "threads-in-a-rank.md").read_text(encoding="utf-8")
    assert first_cells(section(how_to, "3. Read a hazard")) == HAZARDS


def test_the_how_to_names_all_that_the_guard_offers_and_its_default_wait() -> None:
    how_to = (ROOT / "docs" / "how-to" / "threads-in-a-rank.md").read_text(encoding="utf-8")
    offered = {name for name, value in vars(guard).items() if inspect.isfunction(value) and value.__module__ == guard.__name__}
    # Context managers are wrapped, and keep the module of the function that they wrap.
    assert offered >= {"install", "installed", "compile_barrier"}
    for name in sorted(name for name in offered if not name.startswith("_")):
        assert f"guard.{name}" in how_to, name
    wait = inspect.signature(guard.install).parameters["wait_seconds"].default
    assert f"`wait_seconds`\n({wait:g})" in how_to


def test_the_reason_page_explains_each_verdict() -> None:
    assert {kind.value for kind in Kind} <= first_cells(page("reasons.md"))


# --- the spec ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "title"),
    [
        ("top", "Top level"),
        ("role", "Keys of a role"),
        ("workload", "Keys of a workload"),
        ("compile", "Keys of compile"),
    ],
)
def test_the_spec_page_has_exactly_the_keys_that_the_parser_knows(table: str, title: str) -> None:
    text = section(page("spec.md"), title)
    keys = {word for cells in rows(text) if len(cells) >= 4 for word in code_in(cells[0])}
    assert keys == known_keys(table)


@pytest.mark.parametrize("choices", [CallSite, Layout, Dtype, ProcessGroup, LaneContext])
def test_the_spec_page_names_every_choice(choices: type[StrEnum]) -> None:
    words = {word.strip('"') for word in code_in(page("spec.md"))}
    assert {choice.value for choice in choices} <= words


@pytest.mark.parametrize(
    ("builtins", "title"), [(catalogue.MASKS, "Builtin masks"), (catalogue.SCORES, "Builtin score functions")]
)
def test_the_spec_page_has_exactly_the_builtins_with_their_arguments(
    builtins: Mapping[str, catalogue.Builtin], title: str
) -> None:
    table = {cells[0].strip("`"): code_in(cells[1]) for cells in rows(section(page("spec.md"), title))[1:]}
    assert table == {name: set(builtin.arguments) for name, builtin in builtins.items()}


def test_the_spec_page_has_exactly_the_attributes_of_a_factorys_context() -> None:
    source = (ROOT / "flexwarm" / "worker" / "masks.py").read_text(encoding="utf-8")
    (context,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Context"]
    fields = {n.target.id for n in context.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert first_cells(section(page("spec.md"), "Your own functions")) == fields


def test_the_spec_page_has_exactly_the_keys_of_a_step_and_the_attributes_of_its_context() -> None:
    listed = first_cells(section(page("spec.md"), "Step functions"))
    keys = known_keys("workload") - set(spec.ATTENTION_KEYS) - {"step"}
    assert listed == keys | {field.name for field in dataclasses.fields(StepContext)}


def test_how_often_a_step_is_called_on_the_spec_page_is_as_in_the_code() -> None:
    (row,) = [cells for cells in rows(section(page("spec.md"), "Step functions")) if cells[0] == "`steps`"]
    assert row[2] == str(STEP_CALLS)


def test_the_recompile_limit_on_the_spec_page_is_that_of_the_code() -> None:
    found = [cells[2] for cells in rows(page("spec.md")) if cells[0] == "`recompile_limit`"]
    assert found == [str(RECOMPILE_LIMIT)] * 2


def test_the_longest_stagger_on_the_spec_page_is_that_of_the_code() -> None:
    (row,) = [cells for cells in rows(page("spec.md")) if cells[0] == "`stagger`"]
    assert f"at most {MAX_STAGGER_SECONDS:g}." in row[3]


def test_the_order_of_a_grid_is_the_one_on_the_spec_page() -> None:
    (order,) = re.findall(r"the first key changing slowest: ([^;]+);", page("spec.md"))
    keys = re.findall(r"`(\w+)`", order)
    grid: dict[str, tuple[object, ...]] = dict.fromkeys(keys, (16, 32))
    grid |= {"dtype": ("float32", "float16"), "q_heads": (4, 8), "kv_heads": (2, 1)}
    lines = [f"{key} = {str(list(grid[key])).replace(chr(39), chr(34))}" for key in keys]
    shapes = spec.parse("schema = 1\n[[workload]]\nname = 'w'\n" + "\n".join(lines), "spec.toml").workloads[0].shapes
    points = [tuple(grid[key].index(getattr(shape, key)) for key in keys) for shape in shapes]
    assert len(points) == 2 ** len(keys)
    assert points == sorted(points)


def _toml_blocks() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)):
            yield f"{path.name}-{number}", block


def test_every_spec_in_the_documentation_parses() -> None:
    whole = [(name, block) for name, block in _toml_blocks() if "schema = 1" in block]
    assert {name.partition(".")[0] for name, _ in whole} >= {"spec", "first-spec"}
    for name, block in whole:
        assert spec.parse(block, name).workloads


# --- fingerprint and store --------------------------------------------------------------------------------------------------


def test_the_fingerprint_page_has_every_component_at_its_depth() -> None:
    found = toolchain.fingerprint({}, store=None)
    names = first_cells(section(page("fingerprint.md"), "Components that select"))
    assert names == set(found.select)
    explained = first_cells(section(page("fingerprint.md"), "Components that explain"))
    here = {re.sub(r"^gpu\.\d+\.", "gpu.0.", name) for name in found.explain}
    assert explained - {"gpu.0.name", "env.NAME"} == here - {"gpu.0.name"}


def test_the_fingerprint_page_has_each_variable_under_its_effect() -> None:
    text = section(page("fingerprint.md"), "Environment variables by effect")
    listed = code_in(text.partition("**key**")[0])
    assert listed == {*environment.PREFIXES, *environment.NAMES}
    for kind in environment.Effect:
        (paragraph,) = re.findall(rf"^\*\*{kind.value}\*\*:.*?(?=\n\n)", text, flags=re.DOTALL | re.MULTILINE)
        names = {word for word in code_in(paragraph) if re.fullmatch(r"[A-Z][A-Z0-9_]+\*?", word)}
        if kind is environment.Effect.DISABLES:
            assert names == {name for switch in environment.SWITCHES for name in switch.names}
        elif kind is environment.Effect.KEY:
            assert all(environment.effect(name.rstrip("*")) is kind for name in names)
        elif kind is environment.Effect.CODE:
            assert names == known_variables.NO_KEY
        else:
            assert names == {name for name, effect in environment.EFFECTS.items() if effect is kind}


def test_the_store_page_names_everything_that_lies_in_a_store() -> None:
    layout = page("store.md").partition("```text")[2].partition("```")[0]
    bucket = Bucket(root=Path("/s"), digest="0" * 20)
    paths = [getattr(bucket, name) for name in vars(Bucket) if isinstance(vars(Bucket)[name], property)]
    for path in paths:
        name = path.name.replace(bucket.digest, "<digest>")
        assert name in layout, path


def test_the_store_page_says_what_a_copy_means_for_fast() -> None:
    assert Code.NOT_PROVEN.value in code_in(section(page("store.md"), "Copying a store"))


def test_every_module_of_the_package_stands_on_a_floor_of_the_design_page() -> None:
    floors = section((ROOT / "docs/explanation/design.md").read_text(encoding="utf-8"), "Floors")
    listed = {word for cells in rows(floors) for word in code_in(cells[1])}
    here = {path.stem for path in (ROOT / "flexwarm").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert listed - {"observer/torch_api"} == here - {"__init__"}


# --- JSON -------------------------------------------------------------------------------------------------------------------


PROFILE = DeviceProfile(name="GPU", total_memory_bytes=1, attributes={}, measured=True)
BUILT_FOR = ({"gpu": "GPU", **publish.built_for(Target(asked="gpu", profile=PROFILE, count=1))[publish.BUILT_ON]},)


def _plan(example: str) -> Plan:
    text = (ROOT / "examples" / example).read_text(encoding="utf-8")
    return make_plan(spec.parse(text, example), environ={}, bucket_path="/b", cores=2)


def _fields(value: Any) -> Iterator[str]:
    """Every field of a document, but not the names in tables whose keys are data."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            if key not in ("counters", "env", "select", "explain", "variables", "stacks"):
                yield from _fields(item)
    elif isinstance(value, list):
        for item in value:
            yield from _fields(item)


def test_every_field_of_a_runs_json_is_on_the_json_page() -> None:
    plan = _plan("threads.toml")
    failed, done = plan.workers[0].jobs
    said: list[Event] = [
        Hello(t=0, pid=1, host="h", components={}, config_digest="", config={}, import_seconds=1.0),
        Lookup(t=0, job=failed.id, layer=Layer.FX, answer=Answer.HIT, key="k", reason=""),
        Compiled(t=0, job=failed.id, what="cxx", detail=""),
        Dense(t=0, job=failed.id, shape=(1,), stack=("f.py:1 in f",)),
        Hazard(t=0, job=failed.id, code=HazardCode.FX_RACE, message="m", fate="raise", owner="lane 1", owner_lane=1),
        Hang(t=0, jobs=(failed.id,), message="m", seconds=1.0, stacks={"lane 0": ("f.py:1 in f",)}),
        JobFailed(t=0, job=failed.id, error="E", message="m", traceback="t"),
        ShapeDone(
            t=0,
            job=done.id,
            shape=0,
            calls=2,
            checks=2,
            first_seconds=1.0,
            repeat_seconds=0.1,
            error=0.0,
            tolerance=0.1,
            agrees=True,
        ),
        Costs(t=0, job=done.id, whole_seconds=1.0, parts={"run": 1.0}),
        JobDone(t=0, job=done.id, counters={"inductor.fxgraph_cache_hit": 1}, seconds=1.0),
    ]
    ended = {0: Exit(end=End.FINISHED, status=0, log="l")}
    record = fold(plan, {0: said}, ended)
    drilled = DrillDone(t=0, job=done.id, holds=1, calls=1, callers=1, waited=0, unanswered=0)
    drill = fold(drill_plan(plan, "/b"), {0: [drilled]}, ended)
    result = RunResult(
        verdict=with_drill(judge_verify(record, {}, {}, [], {}), drill),
        bucket="0" * 20,
        bucket_path="/b",
        plan=plan,
        record=record,
        cold_seconds={},
        seconds=1.0,
        drill=DrillResult(state=DrillState.RAN, record=drill),
        built_for=BUILT_FOR,
    )
    fields = set(_fields(run_json(result)))
    assert {"traceback", "stack", "import_seconds", "repeat_seconds", "answer", "detail", "owner_lane", "holds"} <= fields
    assert fields - code_in(page("json.md")) == set()


def test_each_part_of_what_a_start_costs_is_on_the_json_page_and_in_the_how_to() -> None:
    listed = first_cells(section(page("json.md"), "costs"))
    assert listed == {"whole_seconds", *(f"{part.value}_seconds" for part in Part)}
    told = [cells[0] for cells in rows((ROOT / "docs" / "how-to" / "warm-and-still-slow.md").read_text(encoding="utf-8"))]
    assert told == ["part", *(PART_NAMES[part] for part in Part if part is not Part.OTHER)]


def test_every_field_of_a_steps_json_is_on_the_json_page() -> None:
    text = 'schema = 1\n[[workload]]\nname = "w"\nstep = "m:f"\n'
    plan = make_plan(spec.parse(text, "s"), environ={}, bucket_path="/b", cores=2)
    done = StepDone(t=0, job=plan.jobs[0].id, number=0, checks=1, seconds=1.0)
    record = fold(plan, {0: [done]}, {0: Exit(end=End.FINISHED, status=0, log="l")})
    verdict = judge_verify(record, {}, {}, [], {})
    result = RunResult(
        verdict=verdict, bucket="0" * 20, bucket_path="/b", plan=plan, record=record, cold_seconds={}, seconds=1.0
    )
    fields = set(_fields(run_json(result)))
    assert {"steps", "number"} <= fields
    assert fields - code_in(page("json.md")) == set()


def test_every_field_of_a_diagnosis_is_on_the_json_page() -> None:
    check = Check(name="n", status=Status.OK, message="m")
    faults = ops_known_faults.applying([{}])
    listed = code_in(section(page("json.md"), "doctor"))
    assert set(_fields(render_doctor.to_json(Diagnosis(checks=(check,), faults=faults)))) - listed == {"verdict", "exit_code"}
    assert {status.value for status in Status} <= listed
    assert {seen.value for seen in Seen} <= listed


def test_the_page_of_known_faults_has_the_table_that_is_shipped_and_every_condition() -> None:
    text = page("known-faults.md")
    rows_of_page = [line for line in text.splitlines() if line.startswith("| `") and line.count("|") == 9]
    faults = known_faults.parse(ops_known_faults.TABLE.read_text(encoding="utf-8"))
    assert rows_of_page == [
        f"| `{x.id}` | {x.package} {x.versions} | {', '.join(f'`{one}`' for one in x.when)} "
        f"| {'yes' if x.hurts_warm else 'no'} | {x.title} | {x.consequence} | {x.remedy} | [{x.seen}]({x.source}) |"
        for x in faults
    ]
    conditions = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `") and line.count("|") == 3}
    assert conditions == {condition.value for condition in known_faults.Condition}


def test_every_field_and_word_of_the_environment_is_on_the_json_page() -> None:
    listed = code_in(section(page("json.md"), "environment"))
    changed = differences(Surroundings(), Surroundings(variables={"CI": "1"}))
    found = Compare(owners=("a",), compared=Compared.ALL, differences=changed)
    assert set(_fields(found.to_json())) - listed == set()
    assert {member.value for kind in (Subject, Change, Compared, environment.Effect) for member in kind} <= listed


def test_every_field_of_a_plans_json_is_on_the_json_page() -> None:
    assert set(_fields(plan_json(_plan("threads.toml"), "0" * 20))) - code_in(section(page("json.md"), "build --dry-run")) <= {
        "verdict",
        "exit_code",
    }


def test_every_field_action_and_reason_of_cleans_json_is_on_the_json_page() -> None:
    usage = clean.Usage(bucket="0" * 20, size_bytes=1, files=1, last_use_unix=0.0, holder=None)
    document = clean.decide([usage], [], clean.Selection(everything=True), now_unix=1.0).to_json(dry_run=True)
    listed = code_in(section(page("json.md"), "clean"))
    assert set(_fields(document)) - listed == {"verdict", "exit_code"}
    assert {member.value for kind in (clean.Action, clean.Reason) for member in kind} <= listed


def test_every_field_of_a_recordings_json_is_on_the_json_page() -> None:
    workload = RecordedWorkload(name="w", roles=(), keys={"step": "m:f"}, why=("because",))
    found = RecordedSpec(line=("python",), roles=(), workloads=(workload,), notes=())
    result = RecordResult(spec=found, text="schema = 1", path=None, command_exit_code=0, observed=1, seconds=1.0)
    fields = set(_fields(record_json(result)))
    assert fields - code_in(section(page("json.md"), "record")) == {"exit_code"}


def _launch_result() -> LaunchResult:
    """Two ranks of which one is held at a miss and the other hangs, a launcher that failed, and another node."""
    tensor = launches.call().inputs[0]
    attention = AttentionCall(query=tensor, key=tensor, value=tensor)
    facts = NodeFacts(host="h", store="/s", bucket="0" * 20, components={}, built=True, keys=1, keys_digest="")
    held = [
        launches.rank(0),
        Nodes(t=2.0, own="n", nodes={"n": plain(facts)}, missed={"n": "rank 0: a call"}),
        launches.called(attention=(attention,)),
        launches.lookup(Layer.FX, Answer.MISS),
        launches.compiled(),
        Held(t=3.0, job="lane-0", graph="0/0"),
        Hazard(t=3.0, job="lane-0", code=HazardCode.FX_RACE, message="m", fate="raise", owner="lane 1", owner_lane=1),
        Hang(t=4.0, jobs=("lane-0",), message="m", seconds=1.0, stacks={"lane 0": ("f.py:1 in f",)}),
    ]
    failed = [launches.program(pid=10, argv=("torchrun", "train.py")), launches.raised(), launches.summary(), launches.bye()]
    record = launches.record([failed, held, launches.warm(launches.rank(1))], ended=Ended.AT_A_MISS)
    return LaunchResult(
        verdict=judge_verified_launch(record, launches.expectation(), {}),
        bucket="0" * 20,
        bucket_path="/b",
        line=commandline.read(("torchrun", "--nproc-per-node", "2", "train.py")),
        record=record,
        seconds=1.0,
        remedy="report",
        expected_ranks=2,
        command_exit_code=None,
        built_for=BUILT_FOR,
    )


def test_every_field_of_a_launchs_json_is_on_the_json_page() -> None:
    fields = set(_fields(launch_json(_launch_result(), 1)))
    assert {"attention", "signature", "nodes", "owner_lane", "place", "requires_grad", "local_world_size"} <= fields
    titles = ("build, verify and run of a launch line", "build and verify")
    listed = set().union(*(code_in(section(page("json.md"), title)) for title in titles))
    assert fields - listed == {"verdict", "exit_code"} - listed


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_each_jq_line_of_the_how_to_finds_something_in_a_launchs_json() -> None:
    document = json.dumps(launch_json(_launch_result(), 1))
    lines = re.findall(r"^jq .*$", LAUNCH_LINES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        shell = line.replace("verdict.json", "/dev/stdin")
        done = subprocess.run(["sh", "-c", shell], input=document, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), line
        assert done.stdout.strip(), line
        # A field that is not there is null for jq, and no error.
        assert "null" not in done.stdout.replace('"command_exit_code": null', ""), line


@pytest.mark.parametrize("closed", [Outcome, Kind, End, Layer, Answer, DrillState, Guard, Ended, CauseKind, Tuning])
def test_every_word_of_a_closed_list_is_on_the_json_page(closed: type[StrEnum]) -> None:
    assert {member.value for member in closed} <= code_in(page("json.md"))


# --- all pages --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_relative_link_leads_to_a_file_and_every_anchor_to_a_heading(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", index.read_text(encoding="utf-8"))}
    assert {path for path in PAGES if path.is_relative_to(index.parent)} - {index} <= linked


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_flexwarm_command_line_in_the_documentation_uses_commands_and_options_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```(?:sh|console|yaml)\n(.*?)```", text, flags=re.DOTALL))
    for line in blocks.splitlines():
        for name, rest in re.findall(r"(?:^|[ (])flexwarm (\w+)([^|;)>#]*)", line.removeprefix("$ ")):
            if name not in COMMANDS:
                pytest.fail(f"{path.name}: {line}")
            own = rest.partition(" -- ")[0]  # what stands behind it belongs to the launch line
            used = set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", own))
            assert used <= help_options(name), line
            assert own == rest or isinstance(command(name), LaunchLineCommand), line


def test_the_licence_is_the_whole_text_and_names_its_owner() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "Copyright flexwarm contributors" in text
