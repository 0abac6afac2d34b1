"""The allow-list: an entry hides what it names, and is a finding when it has no effect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import date

import msgspec
import pytest

from ci.parity.compare.findings import Finding, Kind
from ci.parity.policy import Allowance, Exclusion, Library, ParityPolicy
from provisioning.manifest.reader import read_policy
from tests.unit.ci.parity.conftest import LOAD

DRIFTED = {
    "p/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp"])\n',
    "p/a.cpp": "int a;\n",
    "p/b.cpp": "int b;\n",
    "CMakeLists.txt": "add_library(lib p/a.cpp p/b.cpp)\n",
}
FOUND = {("cmake-only-source", "p/b.cpp")}
STALE = ("stale-allowance", "manifests/policies/parity.toml")
Pairs = Callable[..., set[tuple[str, str]]]


def allow(**fields: object) -> ParityPolicy:
    """A policy with one entry for the drift of the miniature tree."""
    values = {
        "kinds": ("cmake-only-source",),
        "files": ("p/**",),
        "reason": "it is right",
        **fields,
    }
    return ParityPolicy(allow=(Allowance(**values),))  # type: ignore[arg-type]


LATER = date(2027, 1, 1)
BROKEN = {**DRIFTED, "p/BUCK": "def (\n"}


@pytest.mark.parametrize(
    ("entry", "options", "expected"),
    [
        ({"exists": "p/b.cpp"}, {}, set()),
        ({"absent": "p/gone.cpp"}, {}, set()),
        ({"until": date(2026, 1, 2)}, {}, set()),
        ({"kinds": ("header", "cmake-only-source"), "exists": "p/b.cpp"}, {}, set()),
        ({"files": ("q/**", "p/b.cpp"), "absent": "x"}, {}, set()),
        ({"until": date(2026, 1, 1)}, {}, FOUND | {STALE}),  # expired
        ({"exists": "p/gone.cpp"}, {}, FOUND | {STALE}),
        ({"absent": "p/b.cpp"}, {}, FOUND | {STALE}),
        ({"until": LATER, "files": ("q/**",)}, {}, FOUND | {STALE}),
        ({"until": LATER, "files": ("q/**",)}, {"scope": ("p",)}, FOUND),  # judged elsewhere
        ({"until": LATER, "kinds": ("header",)}, {}, FOUND | {STALE}),
    ],
)  # fmt: skip
def test_an_allowance_hides_its_findings_and_is_reported_without_effect(
    entry: dict[str, object],
    options: dict[str, object],
    expected: set[tuple[str, str]],
    pairs: Pairs,
) -> None:
    assert pairs(DRIFTED, allow(**entry), **options) == expected
    as_note = msgspec.structs.replace(allow(**entry), tests=("p/b.cpp",))
    assert pairs(DRIFTED, as_note, **options) == expected


def test_an_allowance_is_not_stale_if_a_file_could_not_be_read(pairs: Pairs) -> None:
    assert pairs(BROKEN, allow(exists="p/a.cpp")) == {("unread-file", "p/BUCK")}


@pytest.mark.parametrize("details", [("lib -> z",), ("x", "lib -> *")])
def test_an_allowance_with_details_hides_only_those(details: tuple[str, ...], pairs: Pairs) -> None:
    tree = {
        **DRIFTED,
        "p/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp", "b.cpp"])\n',
        "CMakeLists.txt": DRIFTED["CMakeLists.txt"] + "target_link_libraries(lib z)\n",
    }
    rows = {"kinds": ("dependency",), "files": ("CMakeLists.txt",), "absent": "x"}
    library = (Library("z", buck=("z",), cmake=("z",)),)
    named = msgspec.structs.replace(allow(**rows, details=details), library=library)
    for_another = msgspec.structs.replace(allow(**rows, details=("lib",)), library=library)

    assert pairs(tree, named) == set()
    assert pairs(tree, for_another) == {("dependency", "CMakeLists.txt"), STALE}


def test_each_allowance_without_effect_is_reported(findings: Callable[..., list[Finding]]) -> None:
    entries = [
        allow(absent="p/gone.cpp", files=("q/**", "r/**")),
        allow(exists="p/gone.cpp"),
        allow(until=date(2025, 1, 1), files=("s/**",)),
    ]
    policy = ParityPolicy(
        allow=tuple(entry for policy_of_entry in entries for entry in policy_of_entry.allow)
    )
    stale = [finding for finding in findings(DRIFTED, policy) if finding.kind is Kind.STALE]

    assert [(finding.detail, finding.message.partition(": ")[2]) for finding in stale] == [
        ("p/**", "the entry's condition is not met: p/gone.cpp is not in the tree"),
        ("q/**, r/**", "no finding matches the entry"),
        ("s/**", "the entry expired on 2025-01-01"),
    ]
    assert {(finding.level.value, str(finding.place)) for finding in stale} == {
        ("warning", STALE[1])
    }


@pytest.mark.parametrize(
    ("fields", "lacks"),
    [
        ({"reason": " ", "absent": "a"}, "needs a reason"),
        ({"reason": "", "until": date(2027, 1, 1)}, "needs a reason"),
        ({}, "needs 'until', 'exists' or 'absent'"),
        *(({key: "a"}, "") for key in ("exists", "absent")),
        ({"until": date(2027, 1, 1)}, ""),
    ],
)
def test_an_allowance_needs_a_reason_and_an_end(fields: dict[str, object], lacks: str) -> None:
    raw = {"kinds": ["header"], "files": ["p/**"], "reason": "because", **fields}

    with pytest.raises(msgspec.ValidationError, match=lacks) if lacks else nullcontext():
        msgspec.convert(raw, Allowance)


@pytest.mark.parametrize(
    "raw",
    [
        {"layuot": {}},
        {"layout": {"projects": "a"}},
        {"exclude": [{"files": ["a"], "reason": "b", "unless": "c"}]},
        {"library": [{"name": "a", "bukc": ["b"]}]},
        {"allow": [{"kinds": ["header"], "files": [], "reason": "a", "absent": "b", "till": "c"}]},
    ],
)
def test_a_misspelt_key_of_a_policy_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert(raw, ParityPolicy)


def test_a_file_is_ignored_if_any_pattern_of_an_allowance_matches() -> None:
    entries = (Exclusion(("a/**", "b/*.h"), "made"), Exclusion(("c",), "theirs"))
    policy = ParityPolicy(exclude=entries)
    excluded = [path for path in ("a/x/y", "b/x.h", "b/x.c", "c", "d") if policy.is_excluded(path)]
    assert excluded == ["a/x/y", "b/x.h", "c"]


def test_the_policy_of_the_project_is_valid() -> None:
    policy = read_policy("parity", ParityPolicy)

    assert policy.android_only
    assert all(entry.reason for entry in policy.exclude)
