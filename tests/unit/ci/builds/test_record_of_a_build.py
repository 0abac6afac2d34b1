"""What a finished build says of itself as data and as text, and which installed wheel it finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import deliver, record
from ci.builds.artifacts import SYMBOLS, Judged, publish_artifacts
from ci.builds.builder import CacheCounts
from ci.builds.record import describe_elf, describe_result, render_result
from ci.builds.targets import Artifact
from provisioning.doctor.checks.registry import Finding, Severity
from provisioning.elf.facts import AndroidNote, ElfFacts, VersionNeed
from provisioning.errors import UnfitError

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
NOTE = Finding("BUILD101", "liba.so", "what", "where", "why", "fix it")
WARNING = replace(NOTE, id="QNN225", severity=Severity.WARNING)


def make(place: Path, **changes: Any) -> Any:
    plan = SimpleNamespace(
        target=SimpleNamespace(name="android", platform="aarch64-android"),
        place=SimpleNamespace(artifacts=place / "published", log=place / "log"),
        stages=[SimpleNamespace(build=place / one) for one in ("first", "second")],
        values={"qnn_sdk_root": "/sdk", "ndk_root": "/ndk", "executorch_version": "1"},
        identity={"cxx": "clang"},
        settings_digest="settings",
        source=Path("/source"),
    )
    rows = (
        Artifact("lib/*.so", size_budget=9, split_symbols=True, accept={"QNN225": "as agreed"}),
        Artifact("bin/*"),
    )
    (place / "built").mkdir()
    paths = [place / "built" / name for name in ("liba.so", "runner")]
    for path in (*paths, paths[0].with_name(f"liba.so{SYMBOLS}")):
        path.write_text(path.name)
    judged = (
        Judged(rows[0], paths[0], "a" * 64, 8, FACTS, (NOTE,), (WARNING,)),
        Judged(rows[1], paths[1], "b" * 64, 5, None, ()),
    )
    fields = {"published": True, "up_to_date": False, "changed_files": 3, "wall_s": 7.26}
    more = {"stage_s": {"one": 1.25, "two": 4.5}, "undone": ("a.py",), "inputs_sha256": "inputs"}
    cache = CacheCounts("ccache", "4", 5, 2)
    given = {"plan": plan, "place": plan.place, "artifacts": judged, "cache": cache}
    return SimpleNamespace(**{**given, **fields, **more, **changes})


def test_a_build_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "find_headers_version", lambda _: "2.49")
    data = describe_result(make(tmp_path))
    assert data["stage_s"] == {"one": 1.25, "two": 4.5}
    assert (data["inputs_sha256"], data["settings_sha256"]) == ("inputs", "settings")
    assert data["roots"] == {"qnn_sdk_root": "/sdk", "ndk_root": "/ndk"}
    assert [Path(one).parent.name for one in data["compile_commands"]] == ["first", "second"]
    library, runner = data["artifacts"]
    assert library["path"] == str(tmp_path / "published/liba.so")
    assert library["symbols"] == str(tmp_path / f"published/liba.so{SYMBOLS}")
    assert (library["size_bytes"], library["size_budget"]) == (8, 9)
    assert (library["sha256"], library["qnn_headers"]) == ("a" * 64, "2.49")
    assert library["findings"] == [
        {"id": "BUILD101", "what": "what", "why": "why", "fix": "fix it", "severity": "error"}
    ]
    assert [(one["id"], one["reason"], one["severity"]) for one in library["accepted"]] == [
        ("QNN225", "as agreed", "warning")
    ]
    assert runner["qnn_headers"] is None
    assert (runner["name"], runner["symbols"], runner["size_budget"], runner["elf"]) == (
        *("runner", None, None),
        None,
    )


def test_a_library_without_headers_of_qnn_has_no_version_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "find_headers_version", lambda _: "")
    rows = describe_result(make(tmp_path))["artifacts"]
    assert [row["qnn_headers"] for row in rows] == [None, None]


def test_a_file_that_was_not_published_is_where_it_was_built(tmp_path: Path) -> None:
    rows = describe_result(make(tmp_path, published=False))["artifacts"]
    assert [row["path"] for row in rows] == [
        str(tmp_path / "built" / name) for name in ("liba.so", "runner")
    ]


def test_each_field_of_a_build_has_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "find_headers_version", lambda _: "2.49")
    monkeypatch.setattr(record, "find_lowering_sdk", lambda values: values["qnn_sdk_root"])
    data = describe_result(make(tmp_path))
    del data["artifacts"]
    assert data == {
        "target": "android",
        "platform": "aarch64-android",
        "up_to_date": False,
        "published": True,
        "wall_s": 7.26,
        "stage_s": {"one": 1.25, "two": 4.5},
        "changed_files": 3,
        "undone": ["a.py"],
        "inputs_sha256": "inputs",
        "settings_sha256": "settings",
        "source": "/source",
        "identity": {"cxx": "clang"},
        "roots": {"qnn_sdk_root": "/sdk", "ndk_root": "/ndk"},
        "lowers_with": "/sdk",
        "ccache": {"name": "ccache", "version": "4", "hits": 5, "misses": 2},
        "log": str(tmp_path / "log"),
        "compile_commands": [
            str(tmp_path / name / "compile_commands.json") for name in ("first", "second")
        ],
    }


def test_each_fact_of_a_library_has_a_key() -> None:
    android = AndroidNote(30, "r27d", "13750724")
    facts = replace(FACTS, android=android, build_id="ab")
    assert describe_elf(facts) == {
        "machine": facts.machine_name,
        "flags": 7,
        "soname": "liba.so.1",
        "needed": ["libm.so", "libc.so"],
        "runpath": ["/run"],
        "rpath": ["/r"],
        "build_id": "ab",
        "floors": {"glibc": "2.38", "glibcxx": "3.4.29", "cxxabi": "1.3.9"},
        "android": android._asdict(),
        "load_align": facts.load_align,
        "stripped": facts.stripped,
    }
    assert describe_elf(replace(facts, android=None))["android"] is None


def test_facts_of_a_file_that_decide_where_it_runs() -> None:
    told = describe_elf(FACTS)
    assert (told["needed"], told["soname"]) == (["libm.so", "libc.so"], "liba.so.1")
    assert (told["runpath"], told["rpath"], told["flags"]) == (["/run"], ["/r"], 7)
    assert told["floors"] == {"glibc": "2.38", "glibcxx": "3.4.29", "cxxabi": "1.3.9"}
    plain = replace(FACTS, version_needs=FACTS.version_needs[:1])
    assert describe_elf(plain)["floors"] == {"glibc": "2.34"}


def test_a_build_as_text(tmp_path: Path) -> None:
    result = make(tmp_path)
    row = {
        "python": "/python",
        "import_lacks": ["torch", "numpy"],
        "installed": ["/one", "/two"],
        "overlay": "/overlay",
        "proof": {"cached": True, "wall_s": 2.5},
    }
    text = render_result(result, row)
    assert text.splitlines() == [
        "android: built in 7.3 s (one 1.2 s, two 4.5 s; 3 files changed; ccache: 5 hits, 2 misses)",
        f"  liba.so  8 bytes  {FACTS.machine_name}  sha256 aaaaaaaaaaaa  pages of 0 bytes",
        f"    {NOTE}",
        "      fix: fix it",
        "  runner  5 bytes  not ELF  sha256 bbbbbbbbbbbb",
        "  imported  no, because /python lacks torch, numpy",
        "  installed /one",
        "  installed /two",
        "  overlay   /overlay (for PYTHONPATH)",
        "  proof     lowered a model with the adaptor in 2.5 s, earlier",
        f"  in        {tmp_path / 'published'}",
    ]
    several = replace(result.artifacts[0], findings=(NOTE, WARNING))
    lines = render_result(SimpleNamespace(**{**vars(result), "artifacts": [several]}), {})
    assert lines.splitlines()[2:6] == [
        *(f"    {NOTE}", "      fix: fix it", f"    {WARNING}", "      fix: fix it"),
    ]
    plain = replace(result.artifacts[0], facts=replace(FACTS, android=None), findings=())
    line = render_result(SimpleNamespace(**{**vars(result), "artifacts": [plain]}), {})
    assert line.splitlines()[1] == (
        f"  liba.so  8 bytes  {FACTS.machine_name}  sha256 aaaaaaaaaaaa"
    )
    row["proof"] = {"cached": False, "wall_s": 1.0}
    assert render_result(result, row).splitlines()[-2].endswith("with the adaptor in 1.0 s")
    result.published, result.cache = False, None
    head, *_, last = render_result(result, {}).splitlines()
    assert head.startswith(
        "android: built in 7.3 s, but VIOLATES its policy (one 1.2 s, two 4.5 s; 3 files"
    )
    assert last == "  in        not published"
    result.up_to_date = True
    assert render_result(result, {}).startswith("android: up to date (7.26 s)\n")


def test_every_file_is_published_with_its_symbols(tmp_path: Path) -> None:
    result = make(tmp_path)
    publish_artifacts(result.plan, result.artifacts)
    names = {path.name for path in (tmp_path / "published").iterdir()}
    assert names == {"liba.so", f"liba.so{SYMBOLS}", "runner"}


def test_the_checkout_is_not_the_installed_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "src/executorch"
    entries = [tmp_path / "one", checkout, checkout.parent, tmp_path / "two", tmp_path / "overlay"]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, entries)) + ":")
    asked: list[str] = []
    found = [str(tmp_path / "two/executorch"), ""]

    def ask(python: Path, variables: Any) -> Any:
        del python
        asked.append(variables["PYTHONPATH"])
        return SimpleNamespace(executorch=found.pop(0))

    monkeypatch.setattr(deliver, "ask_python", ask)
    built = (checkout, tmp_path / "overlay")
    assert deliver.find_package(Path("p"), *built) == tmp_path / "two/executorch"
    assert asked == [f"{tmp_path / 'one'}:{tmp_path / 'two'}"]
    with pytest.raises(UnfitError, match="executorch is not installed for p"):
        deliver.find_package(Path("p"), *built)


def test_neither_the_checkout_of_a_job_nor_an_overlay_of_any_build_is_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, builds = tmp_path / "src/executorch", tmp_path / "home/builds"
    for place in (source, builds / "aot-1/overlay/executorch", builds / "aot-2/overlay/executorch"):
        place.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "src")
    entries = [tmp_path / "link", *(builds / f"aot-{one}/overlay" for one in "12"), tmp_path]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, entries)))
    asked: list[tuple[Path, str]] = []

    def ask(python: Path, variables: Any) -> Any:
        asked.append((python, variables["PYTHONPATH"]))
        return SimpleNamespace(executorch="/wheel/executorch")

    monkeypatch.setattr(deliver, "ask_python", ask)
    plan = SimpleNamespace(source=source, place=SimpleNamespace(root=builds / "aot-1"))
    job: Any = SimpleNamespace(plan=plan, request=SimpleNamespace(python=Path("/py")))
    assert deliver._find_wheel(job) == Path("/wheel/executorch")
    assert asked == [(Path("/py"), str(tmp_path))]
