"""Every check of the registry, with the things of ``cases``; and needs, which no single thing has.

What each tells is in seen.txt: its severity and the checks that it waits for, then the subject, the
place, and what fills its texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from provisioning.doctor.checks.files import NEEDS, find_needs
from provisioning.doctor.examine import SUBJECTS
from provisioning.doctor.facts import FileFacts
from provisioning.doctor.registry import Finding, fill_text, read_rows
from provisioning.elf.facts import EM_X86_64, ElfFacts
from tests.unit.provisioning.doctor.cases import PAIRS, describe, read_snapshot, subjects_of


def judge(code: str, subject: object) -> list[Finding]:
    """What the check of this id says of one thing."""
    return [
        finding
        for subjects in subjects_of(code)
        for finding in subjects.judge(subject)
        if finding.id == code
    ]


def test_every_check_has_a_faulty_and_a_good_example() -> None:
    assert PAIRS.keys() == {check.id for subjects in SUBJECTS for check in subjects.checks}


@pytest.mark.parametrize("code", PAIRS)
def test_a_check_finds_its_faulty_example_and_not_the_good_one(code: str) -> None:
    faulty, good = PAIRS[code]
    (finding,) = judge(code, faulty)
    assert all(msgspec.to_builtins(finding).values())
    assert not re.search(r"\{\S|\{\{", f"{finding.what}{finding.why}{finding.fix}")
    assert judge(code, good) == []


def test_findings_of_every_check_read_as_their_snapshot() -> None:
    heads = {code: " ".join([row.severity.value, *row.after]) for code, row in read_rows().items()}
    lines = [
        f"{code} {heads[code]} | {line}"
        for code, (faulty, _) in PAIRS.items()
        for line in describe(code, faulty)
    ]
    assert lines == read_snapshot("seen.txt")


def ids(findings: Iterable[Finding]) -> list[str]:
    return [finding.id for finding in findings]


def judge_needs(
    files: Iterable[FileFacts], provided: set[str], brings: dict[str, str | None]
) -> Iterator[Finding]:
    for need in find_needs(files, provided, brings):
        yield from NEEDS.judge(need)


def library(name: str, *needed: str) -> FileFacts:
    path = Path("/sdk") / name
    facts = ElfFacts(path, 1, 64, True, EM_X86_64, 3, 0, soname=name, needed=needed)
    return FileFacts(name, path, 1, facts)


def test_circular_library_needs_are_followed_once() -> None:
    files = [library("libA.so", "libB.so", "libX.so"), library("libB.so", "libA.so")]
    assert ids(judge_needs(files, {"libA.so", "libB.so"}, {})) == ["QNN216"]
    files = [
        library("libC.so", "libX.so"),
        library("libB.so", "libA.so", "libC.so"),
        library("libA.so", "libB.so"),
    ]
    (finding,) = judge_needs(files, {"libA.so", "libB.so", "libC.so"}, {})
    assert "libC.so (which libB.so needs, which libA.so needs)" in finding.what


def test_values_are_quoted_in_commands_only() -> None:
    text = "run `build --python {path}` for {path}: 'version `A_{path}' not found'"
    assert fill_text(text, {"path": "/my venv/{x}"}) == (
        "run `build --python '/my venv/{x}'` for /my venv/{x}: 'version `A_/my venv/{x}' not found'"
    )
