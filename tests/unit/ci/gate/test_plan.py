"""What a change needs: a table over a small project, with this project's own rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest

from ci.gate.dependencies import Reach, SessionInputs
from ci.gate.plan import NO_CHANGE, NOTHING, make_plan
from ci.gate.rules import GateRules, Rule, SessionRule
from ci.gate.schema import Change, Difference, Kind, Plan, TreeFacts
from tests.stand_ins.small_project import FILES, RULES, Edits, compare, edit

# Of the small project; ``all`` is every one of them.
SESSIONS = "test_emulator tests unit lint build_android sign_skel docker_build bench"
MLP, LSTM = ("mlp fp16 SM8650", "mlp 8a8w SM8650"), ("lstm fp16 SM8650",)
EVERY_CASE = (*MLP, *LSTM)


@dataclass(frozen=True)
class Row:
    """Edits, the sessions that they need, the cases, and words of the reason for everything."""

    name: str
    edits: Edits
    sessions: str
    cases: tuple[str, ...] = ()
    everything: str = ""


def everything(name: str, edits: Edits, why: str) -> Row:
    return Row(name, edits, SESSIONS, EVERY_CASE, why)


POLICY = "manifests/policies/emulator.toml"
SUITE = "ci/models/suite"
TESTS = "tests lint"
UNIT = "tests unit lint"
EMULATOR = "test_emulator tests lint"
ANDROID_CODE = "build_android tests lint"
MANIFEST, ANDROID = "test_emulator tests unit lint", "tests unit lint build_android"
PYPROJECT, PROFILES = "pyproject.toml", "manifests/profiles.toml"
SOCS, BASELINE = "manifests/socs.toml", "manifests/baselines/one.toml"


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
    Row("two pages", {"docs/emulator.md": "+a\n", "README.md": "+b\n"}, "lint"),
    Row("a page below ci is no page of ours", {"ci/builds/notes.md": "x"}, ANDROID_CODE),
    Row("a command of a page", {"docs/emulator.md": "+```sh\nnox -s lint\n```\n"}, "lint"),
    Row(
        "a model that a page shows", {"docs/emulator.md": "+```python\nx = 1\n```\n"}, "tests lint"
    ),
    Row("a schema beside the pages", {"docs/schemas/report.json": "[]"}, UNIT),
    # One model
    Row("a model", {f"{SUITE}/mlp.py": "+x = 1\n"}, EMULATOR, MLP),
    Row("the other model, which no test names", {f"{SUITE}/lstm.py": "+x\n"}, EMULATOR, LSTM),
    Row("what one model alone imports", {"ci/models/cell.py": "x = 1\n"}, EMULATOR, EVERY_CASE),
    Row("what all models import", {f"{SUITE}/seeding.py": "+x\n"}, EMULATOR, EVERY_CASE),
    Row("the list of models", {f"{SUITE}/__init__.py": "+x\n"}, EMULATOR, EVERY_CASE),
    Row("both models", {f"{SUITE}/mlp.py": "+x", f"{SUITE}/lstm.py": "+x"}, EMULATOR, EVERY_CASE),
    Row("a model that is gone, and its row not", {f"{SUITE}/lstm.py": None}, EMULATOR, LSTM),
    Row(
        "a model that is gone with its row",
        {f"{SUITE}/lstm.py": None, POLICY: FILES[POLICY].replace('lstm = ["fp16"]\n', "")},
        UNIT,
    ),
    Row(
        "a new model with its row",
        {
            f"{SUITE}/gru.py": "import torch\n",
            POLICY: FILES[POLICY].replace("[schemes.fp16]", 'gru = ["8a8w"]\n[schemes.fp16]'),
        },
        MANIFEST,
        ("gru 8a8w SM8650",),
    ),
    Row("a new model without a row", {f"{SUITE}/gru.py": "import torch\n"}, EMULATOR, EVERY_CASE),
    # What all models go through
    Row("how models are lowered", {"ci/models/model.py": "+x"}, EMULATOR, EVERY_CASE),
    Row("the verb", {"ci/verbs/emulate.py": "+x"}, EMULATOR, EVERY_CASE),
    Row("imported by a relative name", {"ci/cases/policy.py": "+x"}, EMULATOR, EVERY_CASE),
    Row("imported as part of a package", {"ci/report/write.py": "+x"}, EMULATOR, EVERY_CASE),
    Row("a template", {"ci/report/templates/page.html.j2": "+x"}, EMULATOR, EVERY_CASE),
    Row(
        "a package's __init__.py above what is imported",
        {"ci/__init__.py": "+x"},
        "test_emulator tests lint build_android sign_skel docker_build",
        EVERY_CASE,
    ),
    Row(
        "used by two sessions and a test",
        {"provisioning/files.py": "+x"},
        "test_emulator tests unit lint sign_skel",
        EVERY_CASE,
    ),
    Row("deleted, and still imported", {"ci/cases/policy.py": None}, EMULATOR, EVERY_CASE),
    Row(
        "deleted with its import",
        {"ci/cases/policy.py": None, "ci/cases/session.py": "x = 1\n"},
        EMULATOR,
        EVERY_CASE,
    ),
    # Rows of manifests
    Row(
        "a row of the suite", swap(POLICY, '["fp16"]', '["8a8w"]'), MANIFEST, ("lstm 8a8w SM8650",)
    ),
    Row("limits of a scheme", swap(POLICY, "min = 20", "min = 21"), MANIFEST, MLP[1:]),
    Row("limits of all", swap(POLICY, "min_rms = 1", "min_rms = 2"), MANIFEST, EVERY_CASE),
    Row("a comment in the policy", {POLICY: "+# note\n"}, UNIT),
    Row("a broken policy", {POLICY: "+[[[\n"}, "tests unit lint"),
    Row("a recorded figure", swap(BASELINE, "= 1", "= 3"), MANIFEST, MLP[:1]),
    Row("the default SoC", swap(SOCS, "57", "58"), MANIFEST, EVERY_CASE),
    Row("another SoC", swap(SOCS, "69", "70"), MANIFEST, ("mlp 8a8w SM8750", "mlp fp16 SM8750")),
    Row("a new SoC", {SOCS: "+[SM9]\nid = 1\n"}, MANIFEST, ("mlp 8a8w SM9", "mlp fp16 SM9")),
    # Pins
    Row(
        "the emulator's pin",
        {"manifests/toolchains/qnn-runtime.toml": 'version = "2"\n'},
        MANIFEST,
        EVERY_CASE,
    ),
    Row(
        "the emulator's lock", {"manifests/locks/qnn-runtime-2.49.json": "[]"}, MANIFEST, EVERY_CASE
    ),
    Row(
        "a pin whose name only begins like it",
        {"manifests/toolchains/qnn-runtime-aarch64.toml": "+x = 1\n"},
        UNIT,
    ),
    Row(
        "a lock whose name only begins like it",
        {"manifests/locks/qnn-runtime-aarch64-2.49.json": "[]"},
        UNIT,
    ),
    Row(
        "a new lock of the emulator's pin",
        {"manifests/locks/qnn-runtime-2.50.json": "{}"},
        MANIFEST,
        EVERY_CASE,
    ),
    Row(
        "a pin of a profile that another is like",
        {"manifests/toolchains/ndk.toml": "+x = 1\n"},
        UNIT,
    ),
    Row("a pin of the profile alone", {"manifests/toolchains/ndk2.toml": "+x = 1\n"}, UNIT),
    Row("a pin of two profiles", {"manifests/toolchains/qnn-sdk.toml": "+x = 1\n"}, UNIT),
    Row("a profile's own row", swap(PROFILES, '"qnn-runtime"', '"qnn-sdk"'), MANIFEST, EVERY_CASE),
    Row("another profile", swap(PROFILES, '"ndk"', '"ndk2"'), MANIFEST, EVERY_CASE),
    Row("a profile that nothing uses yet", {PROFILES: "+[linux]\n"}, MANIFEST, EVERY_CASE),
    Row("a target", {"manifests/targets.toml": "+help = 'x'\n"}, ANDROID),
    # Dependency groups
    Row("the group of one session", swap(PYPROJECT, "ruff==1", "ruff==2"), TESTS),
    Row(
        "a group that others include",
        swap(PYPROJECT, "msgspec==1", "msgspec==2"),
        SESSIONS,
        EVERY_CASE,
    ),
    Row(
        "the group with torch",
        swap(PYPROJECT, "torch==2", "torch==3"),
        "test_emulator tests lint build_android bench",
        EVERY_CASE,
    ),
    Row("the group of tests without torch", swap(PYPROJECT, "pytest==9", "pytest==10"), UNIT),
    Row("a linter's settings", swap(PYPROJECT, "= 100", "= 90"), TESTS),
    Row("pytest's settings", swap(PYPROJECT, "= 600", "= 60"), UNIT),
    Row("what is packaged", swap(PYPROJECT, '"small"', '"tiny"'), UNIT),
    everything("a key that nothing explains", {PYPROJECT: "+[tool.news]\na = 1\n"}, PYPROJECT),
    everything(
        "a key that nothing explains, and one that a session uses",
        {PYPROJECT: FILES[PYPROJECT].replace("ruff==1", "ruff==2") + "[tool.news]\na = 1\n"},
        PYPROJECT,
    ),
    everything("a broken pyproject.toml", {PYPROJECT: "+[[["}, PYPROJECT),
    # Tests, images, workflows
    Row("a unit test", {"tests/unit/test_files.py": "+x"}, UNIT),
    Row("a new unit test", {"tests/unit/test_new.py": "x"}, UNIT),
    Row("an integration test", {"tests/integration/test_run.py": "+x"}, TESTS),
    Row("the conftest.py above both", {"tests/conftest.py": "x"}, UNIT),
    Row("an artifact of the tests", {"tests/artifacts/lib.so": "ELF2"}, TESTS),
    Row("a stand-in of one", {"tests/stand_ins/server.py": "x"}, TESTS),
    Row("a bench", {"tests/bench/run.py": "x"}, "tests lint bench"),
    Row("the Dockerfile", {"docker/Dockerfile": "+RUN x\n"}, "tests lint docker_build"),
    Row("a new file for an image", {"docker/packages/aot.txt": "g++\n"}, "tests lint docker_build"),
    Row("data beside a module", {"ci/builds/stand_in.cmake": "x"}, "tests lint build_android"),
    Row("a workflow", {".github/workflows/sign.yml": "+x: y\n"}, TESTS),
    everything("the workflow that runs all", {".github/workflows/pr.yml": "+x: y\n"}, "decides"),
    everything("an action", {".github/actions/setup/action.yml": "x"}, "decides"),
    everything("the rules", {"manifests/policies/gate.toml": "+x = 1\n"}, "decides"),
    everything("the noxfile", {"noxfile.py": "+x = 1\n"}, "every session"),
    everything("the script nox", {"nox": "+x\n"}, "every session"),
    everything("the planner", {"ci/gate/plan.py": "x"}, "every session"),
    everything("a file that nothing knows", {"Makefile": "x"}, "Makefile"),
    everything("a module that nothing imports", {"ci/forgotten.py": "x = 1\n"}, "forgotten"),
    everything("a file in a folder that is new", {"rust/src/main.rs": "x"}, "main.rs"),
    everything("a page and a file that nothing knows", {"README.md": "+x", "x.rs": "x"}, "x.rs"),
]


def plan_edits(edits: Edits, rules: GateRules = RULES) -> Plan:
    return make_plan(compare(edit(FILES, edits), rules), rules)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_change_plans_its_sessions_and_cases(row: Row) -> None:
    plan = plan_edits(row.edits)
    run = [
        session.name
        for session in plan.sessions
        if session.run and session.name in SESSIONS.split()
    ]
    assert sorted(run) == sorted(row.sessions.split())
    assert sorted(map(str, plan.cases)) == sorted(row.cases)
    assert bool(row.everything) == bool(plan.everything)
    assert row.everything in plan.everything
    assert {session.name for session in plan.sessions} == {*SESSIONS.split(), *RULES.sessions}
    for planned in plan.sessions:
        assert planned.reason
        if plan.everything or not planned.run:
            nothing = NOTHING if plan.changes else NO_CHANGE
            assert planned.reason == (plan.everything or nothing)
        assert planned.by_hand == RULES.session_rule(planned.name).by_hand
        assert planned.run or not planned.files
        assert set(planned.files) <= {change.path for change in plan.changes}


def test_a_session_with_unknown_dependencies_or_always_runs_for_any_change() -> None:
    original = compare(edit(FILES, {"ci/models/model.py": "+x"}), RULES)
    unknown = replace(original.head.sessions["bench"], is_known=False)
    head = replace(original.head, sessions={**original.head.sessions, "bench": unknown})
    sessions = RULES.sessions | {"bench": SessionRule(always=True)}
    always = msgspec.structs.replace(RULES, sessions=sessions)
    for difference, rules, runs in (
        (original, RULES, False),
        (replace(original, head=head), RULES, True),
        (original, always, True),
    ):
        (bench,) = [
            session for session in make_plan(difference, rules).sessions if session.name == "bench"
        ]
        assert (bench.run, bench.files) == (runs, ("ci/models/model.py",) * runs)


def test_a_sessions_own_suite_is_that_of_the_head() -> None:
    rules = msgspec.structs.replace(RULES, sessions={})
    difference = compare(edit(FILES, {"Makefile": "x"}), rules)
    suites = {"bench": {"mlp": ("fp16",)}}, {"bench": {"mlp": ("fp16",), "new": ("8a8w",)}}
    base, head = (
        replace(tree, suites=suite)
        for tree, suite in zip((difference.base, difference.head), suites, strict=True)
    )
    plan = make_plan(replace(difference, base=base, head=head), rules)
    (job,) = (planned_job for planned_job in plan.jobs if planned_job.session == "bench")
    assert {case.model for case in job.cases} == {"mlp", "new"}


def test_a_session_runs_if_something_that_it_used_before_changes() -> None:
    session = SessionInputs("bench", Reach(dict))
    before = TreeFacts({"bench": replace(session, uses={"a.toml#k": "its environment"})})
    keys = {"a.toml": frozenset({"k"})}
    change = (Change("a.toml", Kind.MODIFIED),)
    difference = Difference(before, TreeFacts({"bench": session}), change, keys)
    plan = make_plan(difference, msgspec.structs.replace(RULES, rule=()))
    (bench,) = [
        session_planned for session_planned in plan.sessions if session_planned.name == "bench"
    ]
    assert (bench.run, bench.reason, plan.everything) == (True, "its environment", "")
    other_difference = replace(difference, keys={"a.toml": frozenset({"k", "other"})})
    assert make_plan(other_difference, msgspec.structs.replace(RULES, rule=())).everything


MLP_TREE = TreeFacts(
    suite={"mlp": ("fp16",)},
    models={"mlp": Reach(lambda: {f"{SUITE}/mlp.py": ""})},
    sessions={"test_emulator": SessionInputs("test_emulator", Reach(lambda: {"ci/a.py": ""}))},
)


def test_a_file_that_only_a_removed_model_used_plans_no_case() -> None:
    model = f"{SUITE}/gone.py"
    gone = replace(MLP_TREE, models={**MLP_TREE.models, "gone": Reach(lambda: {model: ""})})
    for path, everything in ((model, ""), ("c.py", "no rule or dependency covers c.py")):
        change = (Change(path, Kind.DELETED),)
        plan = make_plan(Difference(gone, MLP_TREE, change), RULES)
        assert (plan.everything, len(plan.cases)) == (everything, 1 if everything else 0)


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
        (SOCS, {"SM8750.id"}, True),  # its cases cover it
        ("c.toml", {"k.inner"}, True),  # a session uses a part, and no rule names the file
        ("c.toml", {"k", "other"}, False),
    ],
)
def test_a_changed_file_is_covered_only_if_each_changed_key_has_a_rule(
    path: str, keys: set[str] | None, covered: bool
) -> None:
    names = ("a.toml#k", "a.toml#kind", "b.toml#k", f"{SOCS}#SM8650.id")
    rules = msgspec.structs.replace(RULES, rule=(Rule(names, ("lint",), "its part"),))
    changed_keys = {} if keys is None else {path: frozenset(keys)}
    change = (Change(path, Kind.MODIFIED),)
    uses = {"lint": SessionInputs("lint", Reach(dict), uses={"c.toml#k": "its environment"})}
    tree = replace(MLP_TREE, sessions=MLP_TREE.sessions | uses)
    plan = make_plan(Difference(tree, tree, change, changed_keys), rules)
    assert plan.everything == ("" if covered else f"no rule or dependency covers {path}")
