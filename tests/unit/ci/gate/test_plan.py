"""What a change needs: a table over a small project, with this project's own rules."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from ci.gate.plan import NO_CHANGE, NOTHING, make_plan
from ci.gate.rules import GateRules, Rule, SessionRule
from ci.gate.schema import Change, Difference, Kind, Plan
from tests.stand_ins.small_project import FILES, RULES, Edits, compare, edit

# Those that CI can run.
SESSIONS = "test_emulator test_onnx tests journeys unit lint build_runner"


@dataclass(frozen=True)
class Row:
    """Edits, the sessions that CI runs for them, and words of the reason for everything."""

    name: str
    edits: Edits
    sessions: str
    everything: str = ""


def everything(name: str, edits: Edits, why: str) -> Row:
    return Row(name, edits, SESSIONS, why)


POLICY = "manifests/policies/emulator.toml"
SUITE = "ci/models/suite"
UNIT = "tests journeys unit lint"
LANES = "test_emulator test_onnx tests journeys unit lint"
EMULATOR = "test_emulator tests journeys unit lint"
PYPROJECT = "pyproject.toml"


def swap(path: str, old: str, new: str) -> Edits:
    return {path: FILES[path].replace(old, new)}


ROWS = [
    Row("nothing", {}, ""),
    # Prose
    Row("a page, which a script copies", {"docs/emulator.md": "+more\n"}, "lint"),
    Row("the readme", {"README.md": "+more\n"}, "lint"),
    Row("a new page", {"docs/new.md": "new\n"}, "lint"),
    Row("a page in a folder", {"docs/deep/er/new.md": "new\n"}, "lint"),
    Row("a picture beside pages", {"docs/guides/new.svg": "new", "docs/new.css": "new"}, "lint"),
    Row("a page that is gone", {"docs/emulator.md": None}, "lint"),
    Row("a command of a page", {"docs/emulator.md": "+```sh\nnox -s lint\n```\n"}, "lint"),
    Row(
        "a model that a page shows",
        {"docs/emulator.md": "+```python\nx = 1\n```\n"},
        "tests journeys lint",
    ),
    Row("a schema beside the pages", {"docs/schemas/report.json": "[]"}, UNIT),
    # Code
    Row("a model", {f"{SUITE}/mlp.py": "+x = 1\n"}, f"{LANES} build_runner"),
    Row("a model that is gone", {f"{SUITE}/lstm.py": None}, f"{LANES} build_runner"),
    Row("a new model", {f"{SUITE}/gru.py": "import torch\n"}, f"{LANES} build_runner"),
    Row("the cases", {"ci/cases/policy.py": "+x"}, LANES),
    Row("a template", {"ci/report/templates/page.html.j2": "+x"}, f"{LANES} build_runner"),
    Row("one lane", {"ci/onnx/engine.py": "x = 1\n"}, "test_onnx tests journeys unit lint"),
    everything("a page below ci", {"ci/builds/notes.md": "x"}, "ci/builds/notes.md"),
    Row("what fetches", {"provisioning/files.py": "+x"}, f"{LANES} build_runner"),
    everything(
        "renamed", {"ci/cases/policy.py": None, "ci/cases/limits.py": "x"}, "ci/cases/limits.py"
    ),
    # Manifests
    Row("a row of the suite", swap(POLICY, '["fp16"]', '["8a8w"]'), EMULATOR),
    Row("a broken policy", {POLICY: "+[[[\n"}, EMULATOR),
    Row("an SoC", swap("manifests/socs.toml", "69", "70"), f"{LANES} build_runner"),
    Row(
        "the emulator's lock",
        {"manifests/locks/qnn-runtime-2.50.json": "{}"},
        f"{LANES} build_runner",
    ),
    Row("a pin of a device", {"manifests/toolchains/ndk.toml": "+x = 1\n"}, UNIT),
    # Keys of pyproject.toml
    Row("the group of one session", swap(PYPROJECT, "ruff==1", "ruff==2"), UNIT),
    Row("a group of all", swap(PYPROJECT, "msgspec==1", "msgspec==2"), f"{LANES} build_runner"),
    Row("a setting of a tool", swap(PYPROJECT, "= 100", "= 90"), UNIT),
    Row("a comment", {PYPROJECT: "+# note\n"}, UNIT),
    everything("a key that no rule names", {PYPROJECT: "+[news]\na = 1\n"}, PYPROJECT),
    everything(
        "a key that no rule names, and one that a rule names",
        {PYPROJECT: FILES[PYPROJECT].replace("ruff==1", "ruff==2") + "[news]\na = 1\n"},
        PYPROJECT,
    ),
    everything("a broken pyproject.toml", {PYPROJECT: "+[[["}, PYPROJECT),
    # Tests, images, workflows
    Row("a unit test", {"tests/unit/test_files.py": "+x"}, UNIT),
    Row("the Dockerfile", {"docker/Dockerfile": "+RUN x\n"}, UNIT),
    Row("a workflow", {".github/workflows/sign.yml": "+x: y\n"}, UNIT),
    everything("the workflow that runs all", {".github/workflows/pr.yml": "+x: y\n"}, "decides"),
    everything("an action", {".github/actions/setup/action.yml": "x"}, "decides"),
    everything("the rules", {"manifests/policies/gate.toml": "+x = 1\n"}, "decides"),
    everything("the noxfile", {"noxfile.py": "+x = 1\n"}, "every session"),
    everything("the script nox", {"nox": "+x\n"}, "every session"),
    everything("the planner", {"ci/gate/plan.py": "x"}, "every session"),
    everything("a file that no rule names", {"Makefile": "x"}, "Makefile"),
    everything("a new room", {"ci/news/one.py": "x = 1\n"}, "ci/news/one.py"),
    everything("a page and a file that no rule names", {"README.md": "+x", "x.rs": "x"}, "x.rs"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_change_plans_its_sessions(row: Row) -> None:
    plan = make_plan(compare(edit(FILES, row.edits)), RULES)
    run = [session.name for session in plan.sessions if session.run and not session.by_hand]
    assert sorted(run) == sorted(row.sessions.split())
    assert bool(row.everything) == bool(plan.everything)
    assert row.everything in plan.everything
    assert tuple(session.name for session in plan.sessions) == RULES.session_names
    for planned in plan.sessions:
        assert planned.reason
        if plan.everything or not planned.run:
            nothing = NOTHING if plan.changes else NO_CHANGE
            assert planned.reason == (plan.everything or nothing)
        assert planned.by_hand == RULES.session_rule(planned.name).by_hand
        assert planned.run or not planned.files
        assert set(planned.files) <= {change.path for change in plan.changes}


def test_sessions_that_ci_cannot_run_are_listed_without_a_job() -> None:
    plan = make_plan(compare(edit(FILES, {"docker/Dockerfile": "+x\n"})), RULES)
    images = {row.name for row in plan.sessions if row.run and row.name.startswith("docker")}
    assert images == {"docker_build", "docker_shell"}
    assert {job.session for job in plan.jobs} == {*UNIT.split()}


def plan_one(path: str, rules: GateRules, keys: set[str] | None = None) -> Plan:
    changed_keys = {} if keys is None else {path: frozenset(keys)}
    return make_plan(Difference((Change(path, Kind.MODIFIED),), changed_keys), rules)


def test_alone_keeps_a_file_from_sessions_that_use_every_other() -> None:
    rules = GateRules(
        branch="main",
        sessions={"tests": SessionRule(whole=True), "lint": SessionRule(always=True)},
        rule=(Rule(("*.md",), (), "prose", alone=True), Rule(("*.py",), ("unit",), "code")),
    )
    for path, sessions in (("a.md", {"lint"}), ("a.py", {"tests", "lint", "unit"})):
        plan = plan_one(path, rules)
        assert ({job.session for job in plan.jobs}, plan.everything) == (sessions, "")


@pytest.mark.parametrize(
    ("path", "keys", "covered"),
    [
        ("a.toml", {"k"}, True),
        ("a.toml", {"k", "other"}, False),
        ("a.toml", {"k", "kind"}, True),
        ("a.toml", {"other"}, False),
        ("a.toml", set(), True),  # a comment
        ("a.toml", None, False),  # it is not known what has changed
        ("b.toml", {"k"}, True),
        ("b.toml", {"other"}, False),
        ("c.toml", set(), False),  # no rule names the file
        ("d.toml", {"other"}, True),  # a rule names the whole file
    ],
)
def test_a_changed_file_is_covered_only_if_each_changed_key_has_a_rule(
    path: str, keys: set[str] | None, covered: bool
) -> None:
    names = ("a.toml#k", "a.toml#kind", "b.toml#k", "d.toml", "d.toml#k")
    rules = msgspec.structs.replace(RULES, rule=(Rule(names, ("lint",), "its part"),))
    plan = plan_one(path, rules, keys)
    assert plan.everything == ("" if covered else f"no rule covers {path}")
