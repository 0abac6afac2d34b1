"""Headers that a Buck library includes and its deps do not reach; CMake finds them anyway."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.facts import BuckFacts, CMakeFacts, Configuration
from ci.parity.policy import ParityPolicy
from ci.parity.uses import find_includes, group_includes
from tests.stand_ins.text_tree import TextTree
from tests.unit.ci.parity.compare.sides import buck
from tests.unit.ci.parity.conftest import LAYOUT, LOAD

Q = 'runtime.cxx_library(name = "q", exported_headers = ["q.h"], exported_deps = [{}])\n'
R = 'runtime.cxx_library(name = "r", exported_headers = ["r.h"])\n'
POLICY = ParityPolicy(twins=("*_aten",), given=("//r:r",), suffixes=("_static",))

Findings = Callable[..., list[Finding]]


def tree(deps: str = "", source: str = "", cmake: str = "") -> dict[str, str]:
    """A library and two that consist of headers: the first includes the second's."""
    return {
        "p/BUCK": LOAD + f'runtime.cxx_library(name = "p", srcs = ["p.cpp"], deps = [{deps}])\n',
        "p/p.cpp": source or "#include <executorch/q/q.h>\n",
        "q/BUCK": LOAD + Q.format(""),
        "q/q.h": "",
        "r/BUCK": LOAD + R,
        "r/r.h": "",
        "CMakeLists.txt": f"add_library(p p/p.cpp)\n{cmake}\n",
    }


def details(findings: list[Finding]) -> list[str]:
    return [f"{finding.kind.value} {finding.detail}" for finding in findings]


def test_an_included_header_is_a_dependency(findings: Findings) -> None:
    [finding] = findings(tree())

    assert (finding.kind.value, finding.path, finding.level) == (
        "dependency",
        "p/BUCK",
        Level.WARNING,
    )
    assert finding.detail == "//p:p -> //q:q"
    assert finding.message.startswith("p/p.cpp includes q/q.h")
    assert finding.fix == 'add "//q:q" to the deps of //p:p (p/BUCK:2)'
    assert (str(finding.buck_place), finding.buck_target) == ("p/BUCK:2", "//p:p")


@pytest.mark.parametrize(
    ("label", "include", "is_found"),
    [
        ("//other/pkg:lib", "<other/pkg/lib.h>", True),
        ("//other/pkg:lib", '"other/pkg/lib.h"', True),
        ("//other/pkg:lib", "<other/pkg/libs.h>", False),
        ("//other/pkg:lib", "<pkg/lib.h>", False),
        ("//other/pkg:library", "<other/pkg/lib.h>", False),
        ("other:lib", "<other/lib.h>", False),
        ("a:other:lib", "<other/lib.h>", False),
    ],
)
def test_a_library_outside_of_the_tree_is_known_by_the_header_of_its_name(
    label: str, include: str, is_found: bool, findings: Findings
) -> None:
    """The library is known to exist because another target of the tree depends on its label."""
    files = tree(source=f"#include {include}\n")
    build = files["p/BUCK"]
    for attribute in ("deps", "exported_deps"):
        files["p/BUCK"] = f'{build}runtime.cxx_library(name = "o", {attribute} = ["{label}"])\n'
        shown = details(findings(files, POLICY))
        assert shown == ([f"dependency //p:p -> {label}"] if is_found else [])
    files["p/BUCK"] = files["p/BUCK"].replace("deps = []", f'deps = ["{label}"]')
    assert findings(files, POLICY) == []


@pytest.mark.parametrize(
    "deps",
    ['"//executorch/q:q"', '":x"', '"//executorch/q:q_static"', '":y"'],
    ids=["named", "through another", "the static twin", "select"],
)
def test_a_header_of_a_declared_dependency_has_no_finding(deps: str, findings: Findings) -> None:
    files = tree(deps)
    files["p/BUCK"] += (
        'runtime.cxx_library(name = "x", exported_deps = ["//executorch/q:q"])\n'
        'runtime.cxx_library(name = "y", deps = select({"a": ["//executorch/q:q"], "b": []}))\n'
    )

    assert findings(files, POLICY) == []


@pytest.mark.parametrize(
    "source",
    [
        "#ifdef FAST\n#include <executorch/q/q.h>\n#endif\n",
        "#if FAST\n#else\n#include <executorch/q/q.h>\n#endif\n",
        "#include <q/q.h>\n",
        '#include "q.h"\n',
        "// #include <executorch/q/q.h>\n",
        "#include <executorch/r/r.h>\n",
    ],
    ids=["ifdef", "else", "another name", "beside", "comment", "given"],
)
def test_conditional_or_foreign_includes_have_no_finding(source: str, findings: Findings) -> None:
    assert findings(tree(source=source), POLICY) == []


def test_missing_dependency_of_a_header_is_reported_for_its_own_library(findings: Findings) -> None:
    files = tree('"//executorch/q:q"')
    files["q/q.h"] = "#ifndef Q_H\n#define Q_H\n#include <executorch/r/r.h>\n#endif\n"
    [finding] = findings(files)

    assert finding.detail == "//q:q -> //r:r"
    assert finding.message.startswith("q/q.h includes r/r.h")
    assert 'add "//r:r" to the exported_deps of //q:q' in finding.fix

    files["q/BUCK"] = LOAD + Q.format('"//executorch/r:r"')
    assert findings(files) == []


def test_headers_of_exported_dependencies_are_available(findings: Findings) -> None:
    files = tree('":x"')
    x = 'runtime.cxx_library(name = "x", {}{} = ["//executorch/q:q"])\n'

    for attribute, headers, expected in [
        ("deps", 'headers = ["x.h"], ', ["dependency //p:p -> //q:q"]),
        ("exported_deps", 'headers = ["x.h"], ', []),
        ("deps", "", []),
    ]:
        rules = tree('":x"')["p/BUCK"] + x.format(headers, attribute)
        all_findings = findings({**files, "p/x.h": "", "p/BUCK": rules})
        assert [row for row in details(all_findings) if row != "header "] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#ifdef X\n#include <a>\n#endif\n#include <b>", {"X": {"a"}, "": {"b"}}),
        ("#if defined(X)  // why\n#include <a>\n#endif", {"X": {"a"}}),
        ("#if defined X /* why */\n#include <a>\n#endif", {"X": {"a"}}),
        ("#ifndef G\n#define G\n#ifdef X\n#include <a>\n#endif\n#endif", {"X": {"a"}}),
        ("#ifdef X\n#include <a>\n#else\n#include <b>\n#endif", {"X": {"a"}}),
        ("#ifdef X\n#elif Y\n#include <b>\n#endif", {}),
        ("#ifdef X\n#ifdef Y\n#else\n#endif\n#include <b>\n#endif", {"X": {"b"}}),
        ("#ifdef X\n#ifdef Y\n#else\n#include <b>\n#endif\n#endif", {}),
        ("#ifdef X\n#ifdef Y\n#include <a>\n#endif\n#include <b>\n#endif", {"X": {"b"}}),
        ("#if defined(X) && Y\n#include <a>\n#endif", {}),
        ("#if !defined(X)\n#include <a>\n#endif", {}),
        ("#if X\n#include <a>\n#endif", {}),
        ("#ifndef X\n#include <a>\n#endif", {}),
        ("#ifndef G\n#endif\n#ifdef G\n#include <a>\n#endif", {"G": {"a"}}),
    ],
)
def test_includes_are_grouped_by_the_macro_that_guards_them(
    text: str, expected: dict[str, set[str]]
) -> None:
    assert group_includes(text) == expected


FLAG = 'exported_preprocessor_flags = ["-DFAST=1"]'


@pytest.mark.parametrize(
    ("rule", "is_found"),
    [
        ('preprocessor_flags = ["-DFAST"]', True),
        ('preprocessor_flags = select({"a": ["-DFAST"], "b": []})', True),
        ('deps = [":exports"]', True),
        ('deps = [":passes"]', True),
        ('deps = [":keeps"]', False),
        ('deps = [":private"]', False),
        ('preprocessor_flags = ["-DFASTER"]', False),
        ('preprocessor_flags = ["-DFAST"], deps = ["//executorch/q:q"]', False),
    ],
    ids=["own", "select", "exported", "passed on", "kept", "private", "another", "there"],
)
def test_an_include_under_a_macro_counts_for_rules_that_define_the_macro(
    rule: str, is_found: bool, findings: Findings
) -> None:
    files = tree(source="#ifdef FAST\n#include <executorch/q/q.h>\n#endif\n")
    files["p/BUCK"] = LOAD + "".join(
        f"runtime.cxx_library(name = {name}, {body})\n"
        for name, body in (
            ('"p", srcs = ["p.cpp"]', rule),
            ('"exports", exported_headers = ["e.h"]', FLAG),
            ('"passes", exported_headers = ["e.h"]', 'exported_deps = [":exports"]'),
            ('"keeps", exported_headers = ["e.h"]', 'deps = [":exports"]'),
            ('"private", exported_headers = ["e.h"]', FLAG.replace("exported_", "")),
        )
    )
    files["p/e.h"] = ""

    dependencies = [f.detail for f in findings(files) if f.kind.value == "dependency"]
    assert dependencies == (["//p:p -> //q:q"] if is_found else [])


INCLUDES = """#include <vector>
#include "b.h"
#include <c.h>
#include "d.h"
 #\timport  "../q/e.h"
#include<executorch/q/e.h>
#ifdef FAST
#include <executorch/q/f.h>
#endif
// #include <executorch/q/g.h>
#include <lib/out.h>
#include <lib/shown.h>
#include "c.h"
#include <b.h>
#include NAME
#ifdef SLOW
#include <executorch/q/g.h>
#endif
"""


def test_what_a_file_includes_is_known_by_line_folder_path_and_macro() -> None:
    names = ("p/b.h", "inc/one/c.h", "inc/two/c.h", "inc/two/d.h", "q/e.h", "q/f.h", "q/g.h")
    guarded = "#ifdef OTHER\n#include <vector>\n#endif\n"  # nothing of a target
    unlisted = f'{INCLUDES}#include "only.h"\n'
    texts = {"p/a.cpp": INCLUDES + guarded, "q/unlisted.cpp": unlisted, **dict.fromkeys(names, "")}
    words = {"deps": ["//lib:out"], "exported_deps": ["//lib:shown"]}
    rules = (buck("p:lib", "p/a.cpp", **words), buck("q:lib", "q/gone.cpp"))
    sides = [
        CMakeFacts(Configuration.HOST, include_directories=("inc/two",)),
        CMakeFacts(Configuration.ANDROID, include_directories=("inc/two", "inc/one")),
    ]
    results = find_includes(TextTree(texts, LAYOUT), BuckFacts(rules), sides)
    assert [
        (include.text, str(include.place), include.directory) for include in results["includes"]
    ] == [
        ("c.h", "p/a.cpp:3", "inc/one"),
        ("d.h", "p/a.cpp:4", "inc/two"),
        ("c.h", "p/a.cpp:13", "inc/one"),
    ]
    common = ("inc/one/c.h", "inc/two/d.h", "q/e.h", "q/f.h", "q/g.h")
    assert results["headers"] == {
        "p/a.cpp": ("p/b.h", *common),
        "q/unlisted.cpp": common,
        **dict.fromkeys(names, ()),
    }
    assert results["needed"] == {"p/a.cpp": ("q/e.h", "lib/out.h", "lib/shown.h")}
    assert results["guarded"] == {"p/a.cpp": {"FAST": ("q/f.h",), "SLOW": ("q/g.h",)}}
    letters = {f"{letter}.h" for letter in "bcdefg"}
    assert results["header_names"] == {"vector", *letters, "out.h", "shown.h", "only.h"}


@pytest.mark.parametrize(
    ("name", "guard", "level"),
    [
        ("schema_gen.h", "", Level.ERROR),
        ("schema_generated.h", "", None),
        ("schema_gen.h", "#ifdef FAST\n", None),
        ("", "", Level.NOTE),
    ],
    ids=["renamed", "made", "guarded", "no rule"],
)
def test_an_included_header_that_no_rule_makes_is_reported(
    name: str, guard: str, level: Level | None, findings: Findings
) -> None:
    """A generated header is in no tree: only the rules say what it is called."""
    end = "#endif\n" if guard else ""
    files = tree(source=f"{guard}#include <executorch/q/schema_generated.h>\n{end}")
    if name:
        files["q/BUCK"] += (
            'runtime.genrule(name = "gen", outs = {"h": ["x.h"]}, cmd = "flatc")\n'
            f'runtime.cxx_library(name = "schema", exported_headers = {{"{name}": ":gen[h]"}})\n'
        )
    include_findings = [row for row in findings(files, POLICY) if row.kind is Kind.INCLUDE]

    assert [row.level for row in include_findings] == ([level] if level else [])
    assert all(name in row.fix for row in include_findings)
