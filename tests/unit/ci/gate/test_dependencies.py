"""What is read from a file, and which files that means."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ci.gate.dependencies import (
    Reach,
    SessionInputs,
    TreeFiles,
    close_groups,
    list_changed_keys,
    list_changed_parts,
    parse_noxfile,
    parse_python,
)
from ci.gate.plan import make_plan
from ci.gate.reading import read_facts
from ci.gate.rules import Recorded, Rule, SessionRule
from tests.stand_ins.small_project import FILES, NOXFILE, RULES, MemoryTree, compare, edit

FOREIGN = replace(RULES, package="executorch", recorded={})
UPSTREAM = TreeFiles(
    [
        "backends/qnn/BUCK",
        "backends/qnn/aot.py",
        "exir/__init__.py",
        "exir/deep/__init__.py",
        "exir/deep/tool.py",
        "exir/program.py",
        "link.py",
        "scripts/deep",
        "scripts/link.py",
    ],
    {
        "link.py": "exir/program.py",
        "scripts/deep": "../exir/deep",
        "scripts/link.py": "../exir/program.py",
    },
    FOREIGN,
)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (
            "backends/qnn/aot.py",
            "from executorch.exir import program\nimport torch\n",
            "exir/__init__.py exir/program.py",
        ),
        ("exir/deep/tool.py", "", "exir/deep/__init__.py exir/__init__.py"),
        ("backends/qnn/BUCK", "", ""),
        ("link.py", "", "exir/program.py"),
        ("scripts/link.py", "", "exir/program.py"),
        ("scripts/deep", "", "exir/deep/__init__.py exir/deep/tool.py"),
    ],
)
def test_a_file_of_an_executorch_tree_depends_on_its_imports(
    path: str, text: str, expected: str
) -> None:
    assert UPSTREAM.list_dependencies(path, parse_python(text)) == set(expected.split())


def test_dependency_groups_include_the_groups_that_they_name() -> None:
    rows = {
        "a": ["x==1", {"include-group": "b"}, {"other": "c"}],
        "b": [{"include-group": "d"}, {"include-group": "a"}],
        "c": ["y==1"],
    }
    project = {"dependency-groups": rows}
    assert close_groups({"a"}, project) == ("a", "b", "d")
    assert close_groups({*"hgfedcba"}, project) == (*"abcdefgh",)
    assert close_groups({"a"}, {}) == ("a",)


def test_the_dependencies_of_a_session_start_from_its_record_and_rule() -> None:
    sessions = RULES.sessions | {"wheels": SessionRule(roots=("docs/*.md", "ci/verbs/b*.py"))}
    inputs_by_session = read_facts(
        MemoryTree(FILES), replace(RULES, sessions=sessions), {}
    ).sessions
    starts = {
        path for path, parent in inputs_by_session["wheels"].reach.parents.items() if not parent
    }
    assert (starts, inputs_by_session["wheels"].is_known) == (
        {"docs/emulator.md", "ci/verbs/build.py"},
        True,
    )
    assert not inputs_by_session["test_onnx"].is_known
    android = inputs_by_session["build_android"]
    assert android.explain("ci/builds/builder.py") == "read by ci/verbs/build.py"
    assert android.explain("manifests/targets.toml") == "the recorded run of the session opened it"
    assert [*android.uses] == [
        f"pyproject.toml#dependency-groups.{n}" for n in ("core", "lowering")
    ]


def test_sessions_are_read_from_a_noxfile() -> None:
    assert [*parse_noxfile(NOXFILE)][:3] == ["test_emulator", "tests", "unit"]
    text = "@other\n@nox.session\ndef one(session): ...\ndef two(session): ...\nthree = 3\n"
    table = 'SESSIONS = {"four": "Run four.", "five": ""}\n'
    assert [*parse_noxfile(table + text)] == ["four", "five", "one"]


@pytest.mark.parametrize(
    ("path", "key", "why"),
    [
        ("a.py", "", "the session runs it"),
        ("b.py", "", "read by a.py"),
        ("c.toml", "", "the recorded run of the session opened it"),
        ("d.py", "", ""),
        ("pyproject.toml", "tool.mypy", "linted"),
        ("pyproject.toml", "tool.mypy.strict", "linted"),  # a key in what is used
        ("pyproject.toml", "tool", "linted"),  # what is used is in the key: it is new, or gone
        ("pyproject.toml", "tool.mypy-extras", ""),
        ("pyproject.toml", "tools", ""),
        ("other.toml", "tool.mypy", ""),
    ],
)
def test_a_file_or_key_that_a_session_uses_has_its_reason(path: str, key: str, why: str) -> None:
    reach = Reach(lambda: {"a.py": "", "b.py": "a.py"})
    uses = {"pyproject.toml#tool.mypy": "linted"}
    session = SessionInputs("x", reach, Recorded((), ("c.toml",)), uses=uses)
    assert (session.explain_key(path, key) if key else session.explain(path)) == why


def test_a_module_that_this_python_cannot_parse_imports_all_that_it_names() -> None:
    facts = parse_python("import ci.one\nmatch x:\n  def (\nci.two.three()")
    assert facts >= {"ci.one", "ci.two.three"}
    assert parse_python("import ci.one\0") == {"ci.one"}


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("a = 1", "a = 1 # note", set()),
        ("a = 1", "a = 2", {"a"}),
        ("a = 1", "", {"a"}),
        ("a = 0", "a = false", {"a"}),
        ("[a.b]\nc = 1\nd = 1", "[a.b]\nc = 2\nd = 1", {"a.b"}),
        ("", "[a]\nb = 1\nc = 1", {"a.b", "a.c"}),
        ("[a]\nb = 1", "a = 1", {"a"}),
        ("[[a]]\nb = 1", "[[a]]\nb = 2", {"a"}),
        ("a = 1", "[[[", {"?"}),
        ("a = 1", f"a = {'[' * 9999}{']' * 9999}", {"?"}),
    ],
)
def test_changed_keys_of_a_toml_file_are_listed(old: str, new: str, keys: set[str]) -> None:
    assert list_changed_keys(old, new) == keys
    assert list_changed_parts("a.toml", old, new) == keys
    assert list_changed_parts("a.py", old, new) is None


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("text", "other text", False),
        ("", "```python\nx\n```\n", True),
        ("", "  ```python\n  x\n  ```  \n", True),
        ("``` toml \nx\n```\n", "```toml\nx\n```\n", False),
        ("```toml\nx\n```\n", "```yaml\nx\n```\n", True),
        ("```toml\nx\n```\n", "```sh\nx\n```\n```toml\nx\n```\n", False),
        *(
            ("", f"```{kind}\nx\n```\n", False)
            for kind in ("", " ", "sh", " bash ", "console", "text")
        ),
    ],
)
def test_markdown_page_changes_only_with_its_code_blocks(old: str, new: str, differs: bool) -> None:
    for before, after in ((old, new), (new, old)):
        changed_parts = list_changed_parts("a.md", before, after)
        assert changed_parts == frozenset({"code"} if differs else ())


def test_a_gate_rule_for_the_case_session_plans_all_of_its_cases() -> None:
    rule = Rule(("Makefile",), ("test_emulator",), "it makes it")
    rules = replace(RULES, rule=(rule, *RULES.rule))
    after = edit(FILES, {"Makefile": "x", "ci/models/suite/mlp.py": "x = 2\n"})
    plan = make_plan(compare(after, rules), rules)
    assert not plan.everything
    assert len(plan.cases) == 3
