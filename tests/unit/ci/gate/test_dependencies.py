"""What is read from a file, and which files that means."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from ci.gate.dependencies.names import FileFacts, parse_file, parse_python
from ci.gate.dependencies.parts import list_changed_keys, list_changed_parts
from ci.gate.dependencies.reach import Graph, Reach
from ci.gate.dependencies.sessions import (
    SessionFacts,
    SessionInputs,
    close_groups,
    list_starts,
    parse_noxfile,
    parse_verbs,
)
from ci.gate.dependencies.tree import TreeFiles
from ci.gate.plan import count_due, make_plan
from ci.gate.reading import read_facts
from ci.gate.rules import Rule, SessionRule, read_rules
from tests.stand_ins.small_project import FILES, NOXFILE, MemoryTree, compare, edit

RULES = read_rules()
FOREIGN = replace(RULES, package="executorch", words=False, unread=())
HEADER = "runtime/core/method.h runtime/core/method.cpp"
UPSTREAM = TreeFiles(
    [
        "CMakeLists.txt",
        "backends/BUCK",
        "backends/CMakeLists.txt",
        "backends/qnn/TARGETS",
        "backends/qnn/CMakeLists.txt",
        "backends/qnn/Backend.cpp",
        "backends/qnn/aot.py",
        "exir/__init__.py",
        "exir/program.py",
        "runtime/core/result.h",
        "runtime/core/method.h",
        "runtime/core/method.cpp",
        "scripts/build.sh",
        "link.py",
        "scripts/link.py",
    ],
    {"link.py": "exir/program.py", "scripts/link.py": "../exir/program.py"},
    FOREIGN,
)


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        (
            "backends/qnn/Backend.cpp",
            '#include <executorch/runtime/core/method.h>\n#include "aot.h"\n#include <vector>\n',
            f"{HEADER} backends/qnn/TARGETS backends/qnn/CMakeLists.txt backends/CMakeLists.txt",
        ),
        ("runtime/core/method.cpp", '#include "result.h"\n', "runtime/core/result.h"),
        ("runtime/core/method.cpp", "#include <result.h>\n", ""),
        (
            "backends/qnn/aot.py",
            "from executorch.exir import program\nimport torch\n",
            "exir/__init__.py exir/program.py backends/qnn/TARGETS",
        ),
        ("exir/program.py", 'import_module("executorch.exir.program.Program")', "exir/__init__.py"),
        (
            "link.py",
            'run("executorch.runtime.core")\nrun("executorch.exir.program.Program")',
            "exir/__init__.py exir/program.py",
        ),
        ("link.py", "", "exir/program.py"),
        ("scripts/link.py", "", "exir/program.py"),
        (
            "scripts/build.sh",
            "python $ROOT/../exir/program.py ./link.py exir x/y",
            "exir/program.py link.py",
        ),
        ("scripts/build.sh", "source ../exir/program.py", "exir/program.py"),
        ("scripts/build.sh", "source ../../exir/program.py", "exir/program.py"),
    ],
)
def test_a_file_of_another_s_tree_depends_on(path: str, text: str, found: str) -> None:
    assert UPSTREAM.list_dependencies(path, parse_file(path, text)) == set(found.split())


ABOVE = [
    *("a/__init__.py", "a/b/__init__.py", "a/b/c/__init__.py", "a/TARGETS", "a/CMakeLists.txt"),
    *("a/b/TARGETS", "a/b/BUCK", "a/b/CMakeLists.txt", "z/BUCK", "w/targets.bzl"),
    *("CMakeLists.txt", "BUCK", "z/y/CMakeLists.txt"),
]
PACKAGES = ["a/b/__init__.py", "a/__init__.py"]
BUCK, CMAKE = ["a/b/BUCK", "a/b/TARGETS"], ["a/b/CMakeLists.txt", "a/CMakeLists.txt"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a/b/x.py", [*PACKAGES, *BUCK]),
        ("a/b/c/x.py", ["a/b/c/__init__.py", *PACKAGES, *BUCK]),
        ("a/b/c/d/x.py", BUCK),  # d is no package
        ("a/b/x.cpp", [*BUCK, *CMAKE]),
        ("a/b/c/x.cpp", [*BUCK, *CMAKE]),
        ("a/x.cpp", ["a/TARGETS", "a/CMakeLists.txt"]),
        ("z/y/x.py", ["z/BUCK"]),
        ("z/y/x.cpp", ["z/y/CMakeLists.txt", "z/BUCK"]),
        ("w/x.cpp", ["w/targets.bzl"]),
        ("x.py", []),
    ],
)
def test_a_file_depends_on_packages_and_build_files_above_it(path: str, found: list[str]) -> None:
    assert list(TreeFiles([*ABOVE, path], {}, FOREIGN).list_above(path)) == found


@pytest.mark.parametrize(
    ("end", "is_source"),
    [
        *((end, True) for end in [".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".hh", ".inl"]),
        *((end, False) for end in [".py", ".sh", ".md", ".txt"]),
    ],
)
def test_a_header_brings_the_sources_of_its_name_and_each_reads_its_own_headers(
    end: str, is_source: bool
) -> None:
    text = '#include "a.h"\n'
    assert parse_file(f"x/b{end}", text).includes == ({('"', "a.h")} if is_source else set())
    files = ["x/a.h", f"x/a{end}", f"x/b{end}", f"x/ab{end}"]
    tree = TreeFiles([*dict.fromkeys(files), "use.cpp"], {}, FOREIGN)
    found = tree.list_dependencies("use.cpp", parse_file("use.cpp", '#include "x/a.h"\n'))
    assert found == {"x/a.h", *([f"x/a{end}"] if is_source else [])}


@pytest.mark.parametrize(
    ("include", "header"), [('"version.h"', "a/version.h"), ("<version.h>", "version.h")]
)
def test_a_quoted_header_is_first_looked_for_beside_the_file(include: str, header: str) -> None:
    tree = TreeFiles(["a/version.h", "version.h", "a/use.cpp"], {}, FOREIGN)
    facts = parse_file("a/use.cpp", f"#include {include}\n")
    assert tree.list_dependencies("a/use.cpp", facts) == {header}


def test_data_belong_to_the_nearest_python_files_above_them() -> None:
    data = [
        "a/page.j2",
        "a/t/page.j2",
        "a/t/u/page.j2",
        "a/b/page.j2",
        "a/b/t/u/page.j2",
        "page.j2",
    ]
    tree = TreeFiles([*data, "a/x.py", "a/b/y.py", "z.py"], {}, RULES)
    assert set(tree.list_beside("a/x.py")) == set(data[:3])
    assert set(tree.list_beside("a/b/y.py")) == set(data[3:5])
    assert set(tree.list_beside("z.py")) == set()


def test_files_of_one_text_and_different_languages_are_parsed_each() -> None:
    text = '#include "../../docker/b.h"\nsource ./docker/Dockerfile\n'
    files = FILES | dict.fromkeys(("tests/unit/a.h", "tests/unit/a.sh"), text)
    unit = read_facts(MemoryTree(files | {"docker/b.h": ""}), RULES, {}).sessions["unit"]
    assert unit.explain("docker/b.h") == "read by tests/unit/a.h"
    assert unit.explain("docker/Dockerfile") == "read by tests/unit/a.sh"


PYTHON = """
import one.two, three
from . import beside
from ..above import a as b
from pkg.mod import x, y
A_PROFILE = B = "emulator"
PROFILES = PROFILE = ("android", 3, NAME)
OTHER = "lpai"
VALUES = ["two words", "dotted.name", "/root/data.txt/", "docs/folder", 7, b"bytes.txt"]
def function():
    global other
f"{__name__}.{kind}", f"ci.models.{name}", f"ci.models", f"{folder}/data.txt", f""
"""


def test_all_that_a_python_file_names() -> None:
    words = {"emulator", "android", "lpai"}
    assert parse_python(PYTHON) == FileFacts(
        imports={
            *("one.two", "three", ".", ".beside", "..above", "..above.a"),
            *("pkg.mod", "pkg.mod.x", "pkg.mod.y", "dotted.name", "ci.models"),
        },
        families={".", "ci.models"},
        words={"dotted.name", "root/data.txt", "docs/folder", "ci.models.*", "ci.models"}
        | {"ci.models.", "*/data.txt", "data.txt"},
        strings=words,
        profiles={"emulator", "android"},
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ROOT / "docs" / "page.md"', {"docs/page.md", "page.md"}),
        ('ROOT / "docker"', {"docker"}),
        ('here.with_name("docker")', {"docker"}),
        ('here.joinpath("docker")', {"docker"}),
        ('here.joinpath("docs", "page.md")', {"docs/page.md"}),
        ('open("docker")', set()),
        ('Path("docs", 3, f"{1}.md")', {"docs/*/*.md"}),
        ('open("./docs/page.md")', {"docs/page.md"}),
        ('Path("baselines", f"{name}.toml")', {"baselines/*.toml"}),
        ('here.with_name("probe.py")', {"probe.py"}),
        ('reader.read_policy("elf", dict)', {"policies/elf.toml"}),
        ('read_policy("elf", dict)', {"policies/elf.toml"}),
        ("read_policy(name, dict)", set()),
        ("read_policy()", set()),
        ('folder.glob("*.toml")', set()),
        ('f"{folder}/__init__.py"', set()),
        ('open("*.d/page.md")', {"*.d/page.md"}),
        ('open("./*/.")', set()),
        ('open("../..")', set()),
        ('"docs" + "page" * 3', set()),
        ('open("folder/*.md")', {"folder/*.md"}),
        ('"a sentence with a.b in it"', set()),
        ('Verb("ci.verbs.plan", "say/what")', set()),
    ],
)
def test_strings_that_name_files(text: str, words: set[str]) -> None:
    assert {
        one for one in parse_python(text).words if "." in one or "/" in one or one == "docker"
    } >= words
    assert bool(words) == bool(parse_python(text).words)
    assert not any(one.startswith("./") for one in parse_python(text).words)


@pytest.mark.parametrize(
    ("text", "families"),
    [
        ('import_module(f"{__name__}.{kind}")', {"."}),
        ('import_module(f"{__NAME__}.{kind}")', set()),
        ('import_module(f"ci.models.suite.{name}")', {"ci.models.suite"}),
        ('import_module(f"ci.models.suite.mlp")', set()),
    ],
)
def test_names_that_are_put_together_stand_for_a_package(text: str, families: set[str]) -> None:
    assert parse_python(text).families == families


@pytest.mark.parametrize(
    ("reader", "word", "found"),
    [
        ("ci/a/read.py", "data.py", ["ci/a/data.py"]),
        ("ci/read.py", "data.py", []),
        ("ci/read.py", "a/data.py", ["ci/a/data.py"]),
        ("ci/read.py", "page.md", ["docs/page.md"]),
        ("ci/read.py", "probe.txt", []),  # a test's file
        ("tests/read.py", "probe.txt", ["tests/probe.txt"]),
        ("ci/read.py", "tests/probe.txt", ["tests/probe.txt"]),
        ("ci/read.py", "docs/*.md", ["docs/page.md"]),
        ("ci/read.py", "ci/*", ["ci/a/data.py", "ci/b/data.py"]),
        ("ci/read.py", "*/data.py", ["ci/a/data.py", "ci/b/data.py"]),
        ("ci/read.py", "d*s/p*.md", ["docs/page.md"]),
        ("ci/read.py", "docs/*.txt", []),
        ("ci/read.py", "docs", ["docs/page.md"]),
    ],
)
def test_a_string_means_files_by_the_end_of_their_path(
    reader: str, word: str, found: list[str]
) -> None:
    files = ["ci/a/data.py", "ci/b/data.py", "docs/page.md", "tests/probe.txt"]
    tree = TreeFiles(files, {}, RULES)
    tree.find_word(word, "tests/another.py")
    assert sorted(tree.find_word(word, reader)) == found


def test_without_a_rule_for_cases_there_is_no_suite() -> None:
    assert read_facts(MemoryTree(FILES), RULES, {}).suite
    facts = read_facts(MemoryTree(FILES), replace(RULES, cases=None), {})
    assert (facts.suite, facts.models) == ({}, {})


def test_each_session_with_a_policy_has_the_suite_of_its_own() -> None:
    onnx = {"manifests/policies/onnx.toml": '[suite]\nmlp = ["8a8w"]\nnet = ["fp16", "8a8w"]\n'}
    suites = read_facts(MemoryTree(FILES | onnx), RULES, {}).suites
    named = {"emulator": {"mlp": ("fp16", "8a8w"), "lstm": ("fp16",)}}
    named["onnx"] = {"mlp": ("8a8w",), "net": ("fp16", "8a8w")}
    policies = {name: rule.policy for name, rule in RULES.sessions.items() if rule.policy}
    assert {"emulator", "onnx"} <= {*policies.values()}
    assert suites == {name: named.get(policy, {}) for name, policy in policies.items()}


@pytest.mark.parametrize(
    ("many", "why"),
    [
        (1, ""),
        (2, "f0.py"),
        (4, "f2.py, by f1.py, by f0.py"),
        (5, "f3.py, by f2.py, by f1.py, by ..."),
    ],
)
def test_a_file_is_explained_by_the_nearest_three_that_lead_to_it(many: int, why: str) -> None:
    parents = {f"f{one}.py": f"f{one - 1}.py" if one else "" for one in range(many)}
    assert Reach(parents).explain(f"f{many - 1}.py") == why


def test_a_session_uses_its_groups_and_the_profiles_and_pins_of_its_target() -> None:
    sessions = read_facts(MemoryTree(FILES), RULES, {}).sessions
    used = {
        name: [use.rpartition("/")[2].rpartition("#")[2] for use in sessions[name].uses]
        for name in ("test_emulator", "build_android", "lint", "sign_skel")
    }
    group = "dependency-groups"
    assert used == {
        "test_emulator": [
            *(f"{group}.lowering", f"{group}.core", "emulator"),
            *("qnn-runtime-2.49.json", "qnn-runtime.toml"),
        ],
        "build_android": [
            *(f"{group}.core", f"{group}.lowering", "android16", "ndk2.toml"),
            *("android", "ndk.toml", "qnn-sdk.toml"),
        ],
        "lint": [f"{group}.lint"],
        "sign_skel": [f"{group}.core", "lpai", "qnn-sdk.toml"],
    }
    targets = "manifests/targets.toml"
    row = '[[target]]\nname = "of no session"\nprofile = "emulator"\n'
    row += f'{row}session = "lint_more"\n'
    files = MemoryTree(FILES | {targets: FILES[targets] + row})
    assert read_facts(files, RULES, {}).sessions["lint"].uses == sessions["lint"].uses
    bare = {name: text for name, text in FILES.items() if name != targets}
    (uses,) = [
        one.uses
        for name, one in read_facts(MemoryTree(bare), RULES, {}).sessions.items()
        if name == "build_android"
    ]
    assert not any(use.startswith("manifests/") for use in uses)


def test_a_session_s_groups_are_the_first_arguments_of_what_it_runs() -> None:
    facts = parse_noxfile(NOXFILE)
    groups = {name: one.groups for name, one in facts.items()}
    assert groups["build_android"] == {"core", "lowering"}
    assert groups["unit"] == {"unit"}
    assert facts["unit"].tests == {"tests/unit"}
    assert facts["build_android"].programs == [
        ("ci", "build", "android", "--check"),
        ("ci", "build", "android"),
    ]


def test_a_profile_that_is_like_an_unknown_one_has_its_own_pins() -> None:
    name = "manifests/profiles.toml"
    texts = edit(FILES, {name: FILES[name].replace('like = "android"', 'like = "gone"')})
    uses = read_facts(MemoryTree(texts), RULES, {}).sessions["build_android"].uses
    assert "manifests/toolchains/ndk2.toml" in uses
    assert "manifests/toolchains/ndk.toml" not in uses


def make_graph(
    edges: dict[str, list[str]], named: dict[str, str], asked: list[str], words: list[str]
) -> Graph:
    """A graph of modules that import others. The test tests/run.py contains ``words``."""

    def load(paths: Iterable[str]) -> dict[str, FileFacts]:
        found = {path: FileFacts(imports={*edges.get(path, ())}) for path in paths}
        asked.extend(found)
        if "tests/run.py" in found:
            found["tests/run.py"].strings.update(words)
        return found

    files = {*edges, *(f"{one}.py" for row in edges.values() for one in row), *named.values()}
    return Graph(TreeFiles({*files, "tests/run.py"}, {}, RULES), load, named)


@pytest.mark.parametrize("deep", [False, True])
def test_a_file_is_reached_through_the_first_of_the_nearest_files(deep: bool) -> None:
    letters = "hbfaecgd"
    edges = {f"{one}.py": ["shared", "last"] for one in letters}
    edges |= {"shared.py": ["last", "a"], "start.py": [*letters]}
    asked: list[str] = []
    graph = make_graph(edges, {}, asked, [])
    starts = ["start.py"] if deep else [f"{one}.py" for one in letters]
    parents = graph.follow([*starts, "gone.py"]).parents
    first = {"start.py": ""} if deep else {}
    assert parents == {
        **first,
        **{f"{one}.py": "start.py" if deep else "" for one in letters},
        "shared.py": "a.py",
        "last.py": "a.py",
    }
    again = graph.follow(["shared.py"]).parents
    assert again == {"shared.py": "", "last.py": "shared.py", "a.py": "shared.py"}
    assert sorted(asked) == sorted(parents), "no file is read twice"


@pytest.mark.parametrize("by_name", [False, True])
def test_a_module_is_reached_by_name_from_a_test_that_contains_it(by_name: bool) -> None:
    named = {f"m{number}": f"model{number}.py" for number in range(8)}
    edges = {path: ["shared"] for path in named.values()}
    edges |= {"tests/run.py": ["lib"], "lib.py": ["model1"]}
    graph = make_graph(edges, named, [], [*(f"m{number}" for number in range(2, 8)), "m"])
    parents = graph.follow(["tests/run.py"], by_name=by_name).parents
    models = {f"model{number}.py": "tests/run.py" for number in range(2, 8)}
    assert parents == {
        "tests/run.py": "",
        "lib.py": "tests/run.py",
        **({**models, "shared.py": "model2.py"} if by_name else {}),
    }


def test_groups_are_closed_over_what_they_include() -> None:
    rows = {
        "a": ["x==1", {"include-group": "b"}, {"other": "c"}],
        "b": [{"include-group": "d"}, {"include-group": "a"}],
        "c": ["y==1"],
    }
    project = {"dependency-groups": rows}
    assert close_groups({"a"}, project) == ("a", "b", "d")
    assert close_groups({*"hgfedcba"}, project) == (*"abcdefgh",)
    assert close_groups({"a"}, {}) == ("a",)


def test_the_profiles_of_a_session_are_in_order() -> None:
    texts = edit(FILES, {"ci/verbs/sign.py": 'PROFILE = ("lpai", "emulator", "android", "gone")\n'})
    uses = read_facts(MemoryTree(texts), RULES, {}).sessions["sign_skel"].uses
    profiles = [one.partition("profiles.toml#")[2] for one in uses if "profiles.toml#" in one]
    assert profiles == ["android", "emulator", "lpai"]
    assert uses["manifests/toolchains/qnn-sdk.toml"].startswith("a pin or lock of profile")


@pytest.mark.parametrize(
    ("program", "starts"),
    [
        (("ci", "sign"), ["ci/__main__.py", "ci/verbs/sign.py"]),
        (("ci", "gone"), ["ci/__main__.py"]),
        (("ci", "lost"), ["ci/__main__.py"]),
        (("ci",), ["ci/__main__.py", "ci/verbs/sign.py", "provisioning/verbs/env.py"]),
        ((), ["ci/__main__.py", "ci/verbs/sign.py", "provisioning/verbs/env.py"]),
        (
            ("provisioning",),
            ["ci/verbs/sign.py", "provisioning/__main__.py", "provisioning/verbs/env.py"],
        ),
        (("tests.bench",), ["tests/bench/__main__.py"]),
    ],
)
def test_a_session_that_names_no_verb_may_run_any(
    program: tuple[str, ...], starts: list[str]
) -> None:
    verbs = {"sign": "ci.verbs.sign", "env": "provisioning.verbs.env"}
    places = ("ci", "provisioning", "tests/bench")
    files = {f"{place}/__main__.py" for place in places}
    files |= {f"{module.replace('.', '/')}.py" for module in verbs.values()}
    verbs["lost"] = "ci.verbs.without_a_file"
    facts = SessionFacts("x", programs=[program])
    assert sorted(list_starts(facts, verbs, frozenset(files))) == starts


def test_a_session_reaches_its_verb_in_either_program_and_the_files_that_its_rule_names() -> None:
    verb = {
        "provisioning/__main__.py": 'VERBS = {"env": Verb("provisioning.verbs.env", "e")}\n',
        "provisioning/verbs/env.py": "import ci.forgotten\n",
        "noxfile.py": NOXFILE.replace('"tests.bench"', '"provisioning", "env"'),
    }
    sessions = RULES.sessions | {"wheels": SessionRule(roots=("docs/*.md", "ci/verbs/b*.py"))}
    rules = replace(RULES, sessions=sessions)
    found = read_facts(MemoryTree(FILES | verb), rules, {}).sessions
    assert {"provisioning/verbs/env.py", "ci/forgotten.py"} <= {*found["bench"].reach.parents}
    starts = {path for path, parent in found["wheels"].reach.parents.items() if not parent}
    assert found["wheels"].known
    assert starts == {"docs/emulator.md", "ci/verbs/build.py"}


def test_a_verb_is_an_entry_of_a_dict_that_names_its_module() -> None:
    text = """
MORE = {**OTHERS, "a": Verb("m.a"), "b": Verb("m.b", "help"), "c": Verb(), name: Verb("m.d")}
REST = {"e": Other("m.e"), "f": Verb(module), "g": "m.g", "h": 3, "i": Verb("m.i")}
"""
    found = parse_verbs(text)
    assert {name: one.module for name, one in found.items()} == {"a": "m.a", "b": "m.b", "i": "m.i"}


def test_a_session_runs_what_its_helpers_run_with_the_arguments_that_they_get() -> None:
    noxfile = """
def run_again(session, verb):
    run_again(session, verb)
    run_module(session, "core", "ci", verb, other)
    run_module(other, "other", "ci", "no session")
    run_module("other", "ci", "no session")
    run_module()
    unknown(session, "core", "ci", "unknown")

@nox.session
def one(session):
    run_again(session, "sign")
    run_module(session, "lowering", "ci", "plan", 3, None)

@nox.session
def two(session):
    make_environment(session, "lint")
    run_tests(session, "unit", "-q", "tests/unit", "tests/static")
"""
    facts = parse_noxfile(noxfile)
    assert {name: sorted(one.programs) for name, one in facts.items()} == {
        "one": [("ci", "plan"), ("ci", "sign")],
        "two": [],
    }
    assert {name: (one.groups, one.tests, one.runs_pytest) for name, one in facts.items()} == {
        "one": ({"core", "lowering"}, set(), False),
        "two": ({"lint", "unit"}, {"tests/unit", "tests/static"}, True),
    }


@pytest.mark.parametrize(
    ("family", "importer", "found"),
    [
        ("a", "x/read.py", ["a/one.py", "a/two.py"]),
        ("a.b", "x/read.py", ["a/b/three.py"]),
        (".", "a/b/read.py", ["a/b/three.py"]),
        ("gone", "a/read.py", []),
    ],
)
def test_a_family_is_the_modules_directly_in_a_package(
    family: str, importer: str, found: list[str]
) -> None:
    files = ["a/one.py", "a/two.py", "a/data.txt", "a/b/three.py", "a/b/page.md", "four.py"]
    assert sorted(TreeFiles(files, {}, RULES).find_family(family, importer)) == found


@pytest.mark.parametrize(
    ("folders", "starts"),
    [
        ({"tests/unit/ci"}, ["tests/conftest.py", "tests/unit/ci/test_a.py"]),
        ({"tests/unit"}, ["tests/conftest.py", "tests/unit/ci/test_a.py", "tests/unit/x.py"]),
        ({"tests/integrations"}, ["tests/conftest.py"]),
        (
            {"tests/unit/ci", "tests/integration/ci"},
            ["tests/conftest.py", "tests/integration/conftest.py", "tests/unit/ci/test_a.py"],
        ),
        (
            set(),
            [
                *("tests/conftest.py", "tests/integration/conftest.py"),
                *("tests/unit/ci/test_a.py", "tests/unit/x.py"),
            ],
        ),
    ],
)
def test_a_session_of_tests_starts_with_them_and_what_is_set_up_above(
    folders: set[str], starts: list[str]
) -> None:
    files = frozenset(
        {
            *("tests/conftest.py", "tests/unit/ci/test_a.py", "tests/unit/x.py"),
            *("tests/integration/conftest.py", "ci/a.py"),
        }
    )
    facts = SessionFacts("x", tests=folders, runs_pytest=True)
    assert sorted(list_starts(facts, {}, files)) == starts
    assert not [*list_starts(SessionFacts("x", tests=folders), {}, files)]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a.py", "the session runs it"),
        ("b.py", "read by a.py"),
        ("c.toml", "a pin"),
        ("d.py", ""),
    ],
)
def test_a_file_of_a_session_is_explained(path: str, why: str) -> None:
    reach = Reach({"a.py": "", "b.py": "a.py"})
    session = SessionInputs("x", reach, {"c.toml": "a pin"})
    assert session.explain(path) == why
    both = SessionInputs("x", Reach({"c.toml": "a.py"}), session.uses)
    assert both.explain("c.toml") == "a pin"


def test_a_module_that_this_python_cannot_parse_imports_all_that_it_names() -> None:
    facts = parse_python("import ci.one\nmatch x:\n  def (\nci.two.three()")
    assert facts.imports >= {"ci.one", "ci.two.three"}
    assert parse_python("import ci.one\0").imports == {"ci.one"}
    assert parse_file("a.txt", "ci.one") == FileFacts()


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("", "", set()),
        ("a = 1", "a = 1 # note", set()),
        ("a = 1", "a = 2", {"a"}),
        ("a = 1", "", {"a"}),
        ("a = 0", "a = false", {"a"}),
        ("[a]\nb = 1\nc = 1", "[a]\nb = 2\nc = 1", {"a.b"}),
        ("[a.b]\nc = 1\nd = 1", "[a.b]\nc = 2\nd = 1", {"a.b"}),
        ("[a]\nb = 1", "", {"a.b"}),
        ("", "[a]\nb = 1\nc = 1", {"a.b", "a.c"}),
        ("[a]\nb = 1", "a = 1", {"a"}),
        ("[[a]]\nb = 1", "[[a]]\nb = 2", {"a"}),
        ("[[[", "a = 1", {"?"}),
        ("a = 1", "[[[", {"?"}),
        ("a = 1", f"a = {'[' * 9999}{']' * 9999}", {"?"}),
    ],
)
def test_the_keys_that_differ(old: str, new: str, keys: set[str]) -> None:
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
def test_a_page_changes_with_its_blocks_of_code(old: str, new: str, differs: bool) -> None:
    for before, after in ((old, new), (new, old)):
        found = list_changed_parts("a.md", before, after)
        assert found == frozenset({"code"} if differs else ())


def test_a_rule_that_names_the_planned_session_asks_for_all_of_its_cases() -> None:
    rule = Rule(("Makefile",), ("test_emulator",), "it makes it")
    rules = replace(RULES, rule=(rule, *RULES.rule))
    after = edit(FILES, {"Makefile": "x", "ci/models/suite/mlp.py": "x = 2\n"})
    plan = make_plan(compare(after, rules), rules)
    assert not plan.everything
    assert len(plan.cases) == 3


@pytest.mark.parametrize(
    ("first", "last", "due"),
    [(0, 9, 0), (0, 10, 10), (9, 10, 10), (10, 10, 0), (10, 11, 0), (19, 35, 20), (20, 29, 0)],
)
def test_every_nth_commit_is_due_once(first: int, last: int, due: int) -> None:
    assert count_due(first, last, 10) == due


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("tool.mypy", "linted"),
        ("tool.mypy.strict", "linted"),  # a key in what is used
        ("tool", "linted"),  # what is used is in the key: the table is new, or gone
        ("tool.mypy-extras", ""),
        ("tools", ""),
        ("project", ""),
    ],
)
def test_a_changed_key_counts_where_it_is_used_within_or_around(key: str, why: str) -> None:
    session = SessionInputs("lint", Reach({}), {"pyproject.toml#tool.mypy": "linted"})
    assert session.explain_key("pyproject.toml", key) == why
    assert session.explain_key("other.toml", key) == ""
