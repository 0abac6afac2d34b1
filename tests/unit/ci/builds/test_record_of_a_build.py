"""A finished build as data and as text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.builds import builder
from ci.builds.builder import (
    HOST_LIBRARY,
    CacheCounts,
    Result,
    describe_result,
    find_lowering_sdk,
    render_result,
)
from ci.builds.files import SYMBOLS, Judged
from ci.builds.targets import Artifact
from provisioning.doctor.registry import Finding, Severity
from provisioning.elf.facts import AndroidNote, ElfFacts, VersionNeed
from provisioning.manifest.pairs import read_pairs
from tests.build.builds import plan, write_files
from tests.build.signing import show
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
FACTS = ElfFacts(
    *(Path("liba.so"), 1, 64, True, 183, 3, 7),
    needed=("libm.so", "libc.so"),
    soname="liba.so.1",
    runpath=("/run",),
    rpath=("/r",),
    build_id="ab12",
    android=AndroidNote(30, "r26c", "1"),
    version_needs=(
        VersionNeed("libc.so.6", ("GLIBC_2.17", "GLIBC_2.34")),
        VersionNeed("libstdc++.so.6", ("GLIBCXX_3.4.29", "CXXABI_1.3.9", "GLIBC_2.38")),
    ),
)
PLAIN = replace(FACTS, android=None, version_needs=FACTS.version_needs[:1])
ERROR = Finding("BUILD101", "liba.so", "what", "where", "why", "fix it")
WARNING = replace(ERROR, id="QNN225", severity=Severity.WARNING)
DELIVERED: dict[str, Any] = {
    "python": "/python",
    "import_lacks": ["torch", "numpy"],
    "installed": ["/one", "/two"],
    "overlay": "/overlay",
    "proof": {"cached": True, "wall_s": 2.5},
}
EARLIER = {**DELIVERED, "import_lacks": [], "proof": {"cached": False, "wall_s": 1.0}}


@pytest.fixture
def result(tmp_path: Path) -> Result:
    names = ("liba.so", "libb.so", "runner")
    write_files(tmp_path / "built", dict.fromkeys((*names, f"liba.so{SYMBOLS}"), ""))
    row = Artifact("lib/*.so", size_budget=9, split_symbols=True, accept={"QNN225": "as agreed"})
    paths = [tmp_path / "built" / name for name in names]
    judged = (
        Judged(row, paths[0], "a" * 64, 8, FACTS, (ERROR, WARNING), (WARNING,)),
        Judged(row, paths[1], "c" * 64, 7, PLAIN, ()),
        Judged(Artifact("bin/*"), paths[2], "b" * 64, 5, None, ()),
    )
    cache, times = CacheCounts("ccache", "4", 5, 2), {"one": 1.25, "two": 4.5}
    return Result(plan(tmp_path), "inputs", judged, True, False, 3, times, 7.26, cache, ("a.py",))


def test_the_record_of_a_build_reads_as_its_snapshot_as_data_and_text(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"liba.so": "2.49"}
    monkeypatch.setattr(builder, "find_headers_version", lambda path: versions.get(path.name, ""))
    data = describe_result(result)
    assert len(data["settings_sha256"]) == 64
    unpublished = describe_result(replace(result, published=False, cache=None))
    changed = {name: value for name, value in unpublished.items() if value != data[name]}
    changed["artifacts"] = [
        (artifact["path"], artifact["symbols"]) for artifact in changed["artifacts"]
    ]
    shown = {
        "as data": json.dumps({**data, "settings_sha256": "settings"}, indent=1),
        "not published, as data": json.dumps(changed, indent=1),
        "as text": render_result(result, DELIVERED),
        "proven now": render_result(result, EARLIER),
        "not published, without a cache": render_result(
            replace(result, published=False, cache=None), {}
        ),
        "up to date": render_result(replace(result, up_to_date=True), {}),
    }
    check_snapshot(SNAPSHOTS / "records.txt", show(shown, {str(tmp_path): "PLACE"}))


def test_sdk_can_lower_if_it_has_host_libraries_and_a_supported_executorch(
    tmp_path: Path,
) -> None:
    values = {"qnn_sdk_root": str(tmp_path), "executorch_version": "1.5.1"}
    assert find_lowering_sdk(values) == ""
    write_files(tmp_path, {HOST_LIBRARY: ""})
    supported = [row.executorch for row in read_pairs().supported]
    for executorch in (*supported, "1.5.1+cpu", "0.1.0", ""):
        lowers = executorch not in {"0.1.0", ""}
        values["executorch_version"] = executorch
        assert find_lowering_sdk(values) == (str(tmp_path) if lowers else "")
    assert find_lowering_sdk({"executorch_version": "1.5.1"}) == ""
