"""What catalogs prove of skels, as the survey of a tree finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.doctor.survey.tree import FactsCache, survey_tree
from provisioning.elf.facts import Genuine
from provisioning.manifest import catalogs
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.catalogs import NOW, TRUST, make_catalog

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"
NAME = "libQnnHtpV73Skel.so"


def test_a_catalog_is_asked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "read_trust", lambda: TRUST)
    monkeypatch.setattr(catalogs, "read_known", dict)
    tree, catalog = tmp_path / "tree", tmp_path / "tree" / "libqnnhtpv73.cat"
    tree.mkdir()
    data = elf.named(LIBRARIES / "libplaceholder_for_hexagon.so", NAME)
    (tree / NAME).write_bytes(data)
    (tree / "libQnnHtp.so").write_bytes((LIBRARIES / "libplaceholder_for_android.so").read_bytes())

    def outcomes() -> list[Genuine | None]:
        files = survey_tree(tree, FactsCache(tmp_path / "cache")).files
        return [file.proof.outcome if file.proof else None for file in files]

    assert outcomes() == [None, None]
    catalog.write_bytes(make_catalog({NAME: data}, stamped=NOW))
    assert outcomes() == [None, Genuine.GENUINE]
    catalog.write_bytes(make_catalog({NAME: b"another"}, stamped=NOW))
    assert outcomes() == [None, Genuine.NOT_COVERED]
    catalog.write_bytes(b"")
    assert outcomes() == [None, Genuine.FORGED]
