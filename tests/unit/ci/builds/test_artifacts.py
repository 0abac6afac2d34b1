"""The files that a build leaves: which are collected, stripped, judged and published."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ci.builds.files import (
    Judged,
    collect_artifacts,
    judge_artifact,
    publish_artifacts,
    split_symbols,
)
from ci.builds.plan import BuildPlan, BuildRequest
from ci.builds.targets import Artifact
from provisioning.doctor.policies import elf_policy
from provisioning.files import hash_file
from tests.build.builds import explain, plan, write_files, write_program
from tests.build.signing import show
from tests.stand_ins.snapshots import check_snapshot

ELF_FILES = Path(__file__).parents[3] / "artifacts" / "elf"
ANDROID, HEXAGON = ELF_FILES / "libandroid.so", ELF_FILES / "libhexagon.so"
SNAPSHOTS = Path(__file__).with_name("snapshots")


def judge(path: Path, tag: str = "", pages: str = "", **row: Any) -> Judged:
    kind = "aarch64-android" if "android" in path.name else "hexagon-v69"
    artifact = Artifact("x", **{"needed": ("libneeded.so",), **row})
    return judge_artifact(artifact, path, elf_policy(kind), tag, pages)


def describe(judged: Judged) -> Iterable[str]:
    for title, findings in (("", judged.findings), ("accepted: ", judged.accepted)):
        for finding in findings:
            yield f"{title}{finding}\n  where: {finding.where}"
            yield f"  why: {finding.why}\n  fix: {finding.fix}"


def test_needs_size_python_and_page_size_of_an_artifact_are_checked(tmp_path: Path) -> None:
    size = HEXAGON.stat().st_size
    python = tmp_path / "PyAdaptor.cpython-39-x.so"
    python.write_bytes(HEXAGON.read_bytes())
    (tmp_path / "cut.so").write_bytes(b"\x7fELF")
    judged = {
        "a good file": judge(HEXAGON, size_budget=size),
        "a library that nothing brings": judge(HEXAGON, needed=()),
        "an accepted need": judge(HEXAGON, needed=(), accept={"BUILD101": "it is tested"}),
        "another accepted finding": judge(HEXAGON, needed=(), accept={"BUILD102": "alone"}),
        "a byte over the budget": judge(HEXAGON, size_budget=size - 1),
        "another Python": judge(python, "cpython-312"),
        "pages of an option": judge(ANDROID, pages="4096"),
        "pages of the linker": judge(ANDROID),
        "pages that an option overrode": judge(ANDROID, pages="16384"),
        "half a file": judge(tmp_path / "cut.so"),
    }
    text = show(
        {name: describe(artifact) for name, artifact in judged.items()},
        {str(tmp_path): "TMP", str(ELF_FILES): "ELF"},
    )
    check_snapshot(SNAPSHOTS / "judged.txt", text)
    cut = judged["half a file"]
    digest = hash_file(tmp_path / "cut.so")
    assert (cut.facts, cut.size_bytes, cut.sha256, len(cut.errors)) == (None, 4, digest, 1)
    assert [bool(artifact.errors) for artifact in judged.values()] == [
        *(False, True, False, True, True, True, False, False, False, True)
    ]


ROWS = (
    {"path": "lib/*.so", "policy": "hexagon-{dsp_arch}"},
    {"path": "bin/a", "policy": "x86_64-linux", "extra": "tools"},
    {"path": "bin/b", "policy": "x86_64-linux", "option": "WITH_B"},
    {"path": "bin/c", "policy": "x86_64-linux", "optional": True},
)


def make_plan(place: Path, *rows: dict[str, Any], **values: str) -> BuildPlan:
    build_plan = plan(place, artifacts=list(rows))
    build_plan.values.update(values)  # type: ignore[attr-defined]
    return build_plan


def collect(build_plan: BuildPlan, extras: str = "", **defines: str) -> str:
    request = BuildRequest(extras=frozenset(extras.split()), defines=defines)
    return explain(
        lambda: [
            f"{artifact.path.relative_to(build_plan.place.root)} {artifact.size_bytes}"
            for artifact in collect_artifacts(build_plan, request)
        ]
    )


def test_every_artifact_file_of_the_requested_rows_is_collected(tmp_path: Path) -> None:
    """A stripped file replaces the one with its symbols."""
    names = ("lib/z.so", "lib/a.so", "bin/a", "bin/b")
    write_files(tmp_path, dict.fromkeys(names, "with symbols"))
    write_files(tmp_path, {"stripped/z.so": "", "lib/folder.so/x": ""})
    build_plan = make_plan(tmp_path, *ROWS)
    libraries = "'lib/a.so 12', 'stripped/z.so 0'"
    assert collect(build_plan) == f"[{libraries}, 'bin/b 12']"
    assert collect(build_plan, "tools other") == f"[{libraries}, 'bin/a 12', 'bin/b 12']"
    assert collect(build_plan, "tools", WITH_B="off") == f"[{libraries}, 'bin/a 12']"
    (tmp_path / "bin/b").unlink()
    missing = collect(build_plan)
    assert missing.startswith("FailedError t: the build succeeded but produced no bin/b\n")
    assert str(tmp_path / "build.log") in missing


OBJCOPY = """
case $1 in
--only-keep-debug) echo "symbols of $2" > "$3" ;;
--strip-all) echo "$2 of $3" > "$4" ;;
esac
"""


def test_each_artifact_is_stripped_and_published_with_its_symbols(tmp_path: Path) -> None:
    names = ("lib/a.so", "lib/b.so", "skel/c.so", "bin/d", "stripped/old", "artifacts/earlier.so")
    write_files(tmp_path, {name: f"{name} as built\n" for name in names})
    policy = {"policy": "x86_64-linux"}
    rows = (
        {"path": "lib/*.so", "split_symbols": True, **policy},
        {"path": "skel/*.so", **policy},
        {"path": "bin/d", "split_symbols": True, **policy},
    )
    objcopy = write_program(tmp_path / "objcopy", OBJCOPY)

    def build(**values: str) -> dict[str, str]:
        build_plan = make_plan(tmp_path, *rows, **values)
        split_symbols(build_plan)
        publish_artifacts(build_plan, collect_artifacts(build_plan, BuildRequest()))
        published = sorted((tmp_path / "artifacts").iterdir())
        return {path.name: path.read_text().replace(str(tmp_path), "TMP") for path in published}

    def pair(name: str) -> dict[str, str]:
        base = Path(name).name
        link = f"--add-gnu-debuglink=TMP/stripped/{base}.debug of TMP/{name}\n"
        return {base: link, f"{base}.debug": f"symbols of TMP/{name}\n"}

    skel = {"c.so": "skel/c.so as built\n"}
    stripped = {**pair("lib/a.so"), **pair("lib/b.so"), **pair("bin/d")}
    assert build(objcopy=str(objcopy)) == {**stripped, **skel}
    assert not (tmp_path / "stripped/old").exists()
    assert build() == {
        **{Path(name).name: f"{name} as built\n" for name in ("lib/a.so", "lib/b.so", "bin/d")},
        **skel,
    }
