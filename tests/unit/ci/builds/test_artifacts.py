"""What a build judges of a file that it left, besides its policy: needs, size, Python, pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds.artifacts import Judged, _judge_build, judge_artifact, publish_artifacts
from ci.builds.plan import Place
from ci.builds.targets import Artifact
from provisioning.doctor.checks.elf import judge as judge_elf
from provisioning.doctor.policies import elf_policy
from provisioning.elf.reader import read_elf
from provisioning.files import hash_file

ELF_FILES = Path(__file__).parents[3] / "artifacts" / "elf"
ANDROID, HEXAGON = ELF_FILES / "libandroid.so", ELF_FILES / "libhexagon.so"
NEEDED = ("libneeded.so",)


def judge(path: Path, tag: str = "", pages: str = "", **row: object) -> Judged:
    kind = "aarch64-android" if path == ANDROID else "hexagon-v69"
    artifact = Artifact("x", **{"needed": NEEDED, **row})  # type: ignore[arg-type]
    return judge_artifact(artifact, path, elf_policy(kind), tag, pages)


def list_ids(judged: Judged) -> list[str]:
    return [one.id for one in judged.findings]


def test_a_library_that_nothing_brings_is_an_error_unless_it_is_accepted() -> None:
    assert list_ids(judge(HEXAGON)) == []
    lost = judge(HEXAGON, needed=())
    assert list_ids(lost) == [one.id for one in lost.errors] == ["BUILD101"]
    assert "libneeded.so" in lost.findings[0].what
    known = judge(HEXAGON, needed=(), accept={"BUILD101": "it is tested"})
    assert (known.findings, [one.id for one in known.accepted]) == ((), ["BUILD101"])
    other = judge(HEXAGON, needed=(), accept={"BUILD102": "a row accepts what it names alone"})
    assert ([one.id for one in other.errors], other.accepted) == (["BUILD101"], ())


def test_each_library_that_neither_the_system_nor_the_row_has_is_named() -> None:
    policy = elf_policy("hexagon-v69")
    names = ("libone.so", policy.system[0], "librow.so", policy.system[-1], "libtwo.so")
    facts = replace(read_elf(HEXAGON), needed=names)
    found = [*_judge_build(facts, policy, Artifact("x", needed=("libother.so", "librow.so")), "")]
    assert [(one.id, one.what.split()[-1]) for one in found] == [
        ("BUILD101", "libone.so"),
        ("BUILD101", "libtwo.so"),
    ]


def test_every_finding_of_the_policy_is_one_of_the_file() -> None:
    policy, path = elf_policy("aarch64-android"), ELF_FILES / "libaarch64.so"
    known = [one.id for one in judge_elf(read_elf(path), policy)]
    assert len(known) > 1
    found = list_ids(judge_artifact(Artifact("x", needed=NEEDED), path, policy))
    assert [one for one in found if not one.startswith("BUILD")] == known


def test_what_is_published_are_the_files_and_the_symbols_of_those_that_have_some(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    built = tmp_path / "stages"
    built.mkdir()
    for name in ("a.so", "a.so.debug", "b.so", "b.so.debug", "c.so"):
        (built / name).write_text(f"bytes of {name}")
    rows = {"a.so": True, "b.so": False, "c.so": True}
    judged = tuple(
        Judged(Artifact("x", "x", split_symbols=split), built / name, "", 0, None, ())
        for name, split in rows.items()
    )
    plan: Any = SimpleNamespace(place=place)
    place.artifacts.mkdir()
    (place.artifacts / "of_an_earlier_build.so").write_text("gone")
    publish_artifacts(plan, judged)
    found = {path.name: path.read_text() for path in place.artifacts.iterdir()}
    assert found == {name: f"bytes of {name}" for name in ("a.so", "a.so.debug", "b.so", "c.so")}


def test_a_budget_is_met_to_the_byte() -> None:
    size = HEXAGON.stat().st_size
    assert list_ids(judge(HEXAGON, size_budget=size)) == []
    assert list_ids(judge(HEXAGON, size_budget=size - 1)) == ["BUILD102"]


@pytest.mark.parametrize(
    ("name", "tag", "good"),
    [
        ("PyAdaptor.cpython-312-x.so", "cpython-312", True),
        ("PyAdaptor.cpython-39-x.so", "cpython-312", False),
        ("PyAdaptor.cpython-313t-x.so", "cpython-313", False),
        ("PyAdaptor.cpython-39-x.so", "", True),
        ("libbackend.so", "cpython-312", True),
    ],
)
def test_an_adaptor_is_for_the_python_that_was_asked_for(
    tmp_path: Path, name: str, tag: str, good: bool
) -> None:
    (tmp_path / name).write_bytes(HEXAGON.read_bytes())
    errors = [one.id for one in judge(tmp_path / name, tag).errors]
    assert ("BUILD103" not in errors) is good


@pytest.mark.parametrize(
    ("pages", "why", "fix"),
    [
        ("4096", "-D QNN_CI_PAGE_BYTES=4096", "16384 is the default"),
        ("", "-D QNN_CI_PAGE_BYTES=", "16384 is the default"),
        ("16384", "another link option overrode it", "max-page-size"),
    ],
)
def test_small_pages_are_a_warning_that_names_what_made_them(
    pages: str, why: str, fix: str
) -> None:
    judged = judge(ANDROID, pages=pages)
    (finding,) = judged.findings
    assert (finding.id, judged.errors) == ("QNN225", ())
    assert why in finding.why
    assert fix in finding.fix


def test_a_file_that_cannot_be_read_has_no_facts(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF")
    judged = judge(tmp_path / "a.so")
    assert (judged.facts, len(judged.errors), judged.size_bytes) == (None, 1, 4)
    assert judged.sha256 == hash_file(tmp_path / "a.so")
