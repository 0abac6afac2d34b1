"""The survey of a tree, and what catalogs prove about skels in it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from provisioning.doctor.checks.process import VARIABLES, Variables
from provisioning.doctor.examine import examine_request
from provisioning.doctor.facts import TreeFacts
from provisioning.doctor.survey.environment import SurveyRequest, survey_variables
from provisioning.doctor.survey.tree import survey_tree
from provisioning.doctor.verdict_text import render_verdict
from provisioning.elf.facts import Defect, Genuine
from provisioning.errors import UnfitError
from provisioning.manifest import catalogs
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.catalogs import NOW, TRUST, make_catalog
from tests.stand_ins.users import unprivileged

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"
NAME = "libQnnHtpV73Skel.so"
ROOT = Path(__file__).parents[4]
E_TYPE, E_PHNUM = 16, 56  # in the header of an ELF64 file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "sdk" / "lib" / "x86_64-linux-clang"
    place.mkdir(parents=True)
    shutil.copy(LIBRARIES / "libx86.so", place)
    return tmp_path / "sdk"


def test_libraries_and_programs_are_found_and_nothing_else(root: Path) -> None:
    (root / "README").write_text("text")
    (root / "tool").write_bytes((LIBRARIES / "libx86.so").read_bytes())
    (root / "tool").chmod(0o755)
    (root / "script").write_text("#!/bin/sh\n")
    (root / "script").chmod(0o755)
    (root / "lib" / "libx.so.1").symlink_to("x86_64-linux-clang/libx86.so")
    tree = survey_tree(root)
    assert [file.relative for file in tree.files] == ["lib/x86_64-linux-clang/libx86.so", "tool"]
    assert tree.links == {"lib/libx.so.1": "x86_64-linux-clang/libx86.so"}
    assert tree.link_names == {"libx.so.1"}


@pytest.mark.parametrize(("kind", "is_damaged"), [(1, False), (2, True), (3, True)])
def test_loadable_elf_file_has_program_headers(tmp_path: Path, kind: int, is_damaged: bool) -> None:
    """An object file has none."""
    data = bytearray((LIBRARIES / "libx86.so").read_bytes())
    elf.set_u16(E_TYPE, kind)(data)
    elf.set_u16(E_PHNUM, 0)(data)
    (tmp_path / "libx86.so").write_bytes(data)
    (file,) = survey_tree(tmp_path).files
    assert (file.defect, bool(file.elf)) == (Defect.CORRUPT if is_damaged else None, not is_damaged)


def test_a_directory_that_cannot_be_read_is_not_a_missing_one(root: Path) -> None:
    closed = root / "lib" / "x86_64-linux-clang"
    closed.chmod(0o000)
    try:
        with unprivileged(root), pytest.raises(UnfitError, match="x86_64-linux-clang cannot be"):
            survey_tree(root)
    finally:
        closed.chmod(0o755)


def test_a_missing_root_has_no_files(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert survey_tree(none) == TreeFacts(none, (), is_directory=False)
    none.mkdir()
    assert survey_tree(none) == TreeFacts(none, ())


def test_a_name_that_is_not_utf8_is_no_error(root: Path, tmp_path: Path) -> None:
    path = root / "lib" / "x86_64-linux-clang" / os.fsdecode(b"lib\xff.so")
    path.write_bytes(b"")
    tree = survey_tree(root)
    assert len(tree.files) == 2
    request = SurveyRequest(
        "emulator", {"qnn-runtime": root}, {}, tmp_path, python=tmp_path / "none"
    )
    verdict = examine_request(request)
    assert "lib\\udcff.so is empty" in [finding.what for finding in verdict.findings]
    json.dumps(verdict.data(), ensure_ascii=False).encode()
    render_verdict(verdict).encode()


def test_a_linked_sdk_is_surveyed_like_the_sdk(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    variables = {"QNN_SDK_ROOT": f"{link}/", "LD_LIBRARY_PATH": f"{link}/lib/x86_64-linux-clang"}
    facts = survey_variables(variables, root)
    assert list(VARIABLES.judge(Variables(facts, root, "emulator", runs=True))) == []


def test_a_sparse_file_of_1_tib_is_surveyed_in_bounded_time(root: Path) -> None:
    path = root / "lib" / "x86_64-linux-clang" / "libx86.so"
    data = path.read_bytes().replace(b"v2.49.40", b"x2.49.40")
    with path.open("wb") as file:
        file.write(data)
        file.truncate(1 << 40)
    (file_facts,) = survey_tree(root).files
    assert file_facts.size_bytes == 1 << 40
    assert file_facts.build is None


def test_a_skel_has_what_the_catalog_next_to_it_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "read_trust", lambda: TRUST)
    monkeypatch.setattr(catalogs, "read_known", dict)
    tree, catalog = tmp_path / "tree", tmp_path / "tree" / "libqnnhtpv73.cat"
    tree.mkdir()
    data = elf.named(LIBRARIES / "libplaceholder_for_hexagon.so", NAME)
    (tree / NAME).write_bytes(data)
    (tree / "libQnnHtp.so").write_bytes((LIBRARIES / "libplaceholder_for_android.so").read_bytes())

    def outcomes() -> list[Genuine | None]:
        files = survey_tree(tree).files
        return [file.proof.outcome if file.proof else None for file in files]

    assert outcomes() == [None, None]
    catalog.write_bytes(make_catalog({NAME: data}, stamped=NOW))
    assert outcomes() == [None, Genuine.GENUINE]
    catalog.write_bytes(make_catalog({NAME: b"another"}, stamped=NOW))
    assert outcomes() == [None, Genuine.NOT_COVERED]
    catalog.write_bytes(b"")
    assert outcomes() == [None, Genuine.FORGED]
