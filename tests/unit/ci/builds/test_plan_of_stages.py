"""A plan of two stages with two toolchains, and the files that a build of several rows collects."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.builds import artifacts
from ci.builds.artifacts import Judged, collect_artifacts, judge_artifact, split_symbols
from ci.builds.plan import (
    STAND_INS,
    BuildPlan,
    BuildRequest,
    Kit,
    Place,
    find_place,
    make_plan,
)
from ci.builds.targets import Artifact, CompilerChoice, Target
from ci.builds.toolchains import PAGE_BYTES, Compilers, Program, Tools, Version
from provisioning.doctor.policies import elf_policy
from provisioning.errors import FailedError

TARGET = {
    "name": "t",
    "help": "h",
    "session": "s",
    "platform": "p",
    "origin": "checkout",
    "toolchain": "host",
    "tree_name": "et",
    "policy": "hexagon-{dsp_arch}",
    "artifacts": [],
    "stages": [
        {
            "name": "first",
            "source": "a/../b",
            "options": {
                "A": "{prefix}",
                "B": True,
                "C": False,
                "D": "target",
                "CMAKE_INSTALL_PREFIX": "{prefix}/own",
            },
            "extra_options": {"one": {"X": "1"}, "two": {"Y": True}},
            "extra_targets": {"one": ["p"], "two": ["q"]},
        },
        {"name": "second", "toolchain": "ndk", "install": True, "if_present": ["z"]},
    ],
}
TOOLS = Tools(
    Program(Path("/c/cmake"), Version("3.30")), Program(Path("/n/ninja"), Version("1.11")), None
)
KIT = Kit(
    TOOLS,
    {
        CompilerChoice.HOST: Compilers({"T": "host"}, {"cc": "gcc", "cxx": "g++"}, {"one": "1"}),
        CompilerChoice.NDK: Compilers({"T": "ndk"}, {"release": "26"}, {"two": "2"}),
    },
    {"qnn_sdk_root": "/sdk", "ndk_root": "/ndk", "qnn_sdk_version": "2.49", "dsp_arch": "v75"},
    {"HEXAGON_SDK_ROOT": "/hexagon"},
)
REQUEST = BuildRequest(jobs=3, extras=frozenset({"one", "two"}), defines={"D": "user", "E": "5"})


def plan(place: Path, request: BuildRequest = REQUEST, kit: Kit = KIT, **row: Any) -> BuildPlan:
    target = msgspec.convert({**TARGET, **row}, Target)
    return make_plan(target, request, Path("/source"), Place(place), kit)


def test_each_stage_has_its_own_toolchain_options_and_targets(tmp_path: Path) -> None:
    made = plan(tmp_path)
    first, second = made.stages
    options = [dict(one[2:].split("=", 1) for one in stage.defines) for stage in made.stages]
    own = {"A": str(tmp_path / "prefix"), "B": "ON", "C": "OFF", "D": "user", "E": "5"}
    own |= {"X": "1", "Y": "ON", "T": "host", "CMAKE_BUILD_TYPE": "Release"}
    own["CMAKE_INSTALL_PREFIX"] = str(tmp_path / "prefix/own")
    assert own.items() <= options[0].items()
    assert {"T": "ndk", "D": "user", "CMAKE_MAKE_PROGRAM": "/n/ninja"}.items() <= options[1].items()
    assert options[1]["CMAKE_INSTALL_PREFIX"] == str(tmp_path / "prefix")
    assert options[1]["CMAKE_COLOR_DIAGNOSTICS"] == "OFF"
    assert "X" not in options[1]
    assert (first.source, first.targets) == (str(tmp_path / "tree/et/b"), ("all", "p", "q"))
    assert (second.name, second.build) == ("second", tmp_path / "stages/second")
    assert (second.if_present, second.install, first.install) == (("z",), True, False)
    assert [command[1] for command in made.list_commands()] == [
        *("-S", "--build", "-S", "--build", "--install")
    ]
    other = replace(made, stages=(second, first))
    assert [command[1] for command in other.list_commands()] == [
        *("-S", "--build", "--install", "-S", "--build")
    ]
    assert made.compile_command(first) == (
        *("/c/cmake", "--build", str(first.build), "-j", "3", "--target", "all", "p", "q"),
    )
    assert made.compile_command(second, ("z",))[-3:] == ("--target", "all", "z")
    assert made.install_command(second) == ("/c/cmake", "--install", str(second.build))
    places = ("/c/cmake", "-S", first.source, "-B", str(first.build), "-G", "Ninja")
    assert made.configure_command(first) == (*places, *first.defines)
    unnamed = replace(made, named=frozenset()).configure_command(first)
    assert unnamed == (*places, "--no-warn-unused-cli", *first.defines)
    assert (
        options[1].items()
        >= {
            "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
            "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",
            "CMAKE_PROJECT_INCLUDE": str(STAND_INS / "every_project.cmake"),
        }.items()
    )
    assert plan(tmp_path, replace(REQUEST, extras=frozenset({"two"}))).stages[0].targets == (
        *("all", "q"),
    )


def test_extras_count_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Another order would be another build."""
    names = "badfce"
    stage = {"name": "only", "extra_targets": {name: [name] for name in names}}
    made = plan(tmp_path, replace(REQUEST, extras=frozenset(names)), stages=[stage])
    assert made.stages[0].targets == ("all", *sorted(names))


@pytest.mark.parametrize(
    ("asked", "cores", "jobs"), [(3, 7, 3), (0, 7, 7), (0, None, 1), (1, 7, 1)]
)
def test_there_is_a_compiler_for_each_core_unless_another_number_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, cores: int | None, jobs: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    made = plan(tmp_path, replace(REQUEST, jobs=asked))
    command = made.compile_command(made.stages[0])
    assert command[command.index("-j") + 1] == str(jobs)
    assert made.environment["CMAKE_BUILD_PARALLEL_LEVEL"] == str(jobs)


def test_what_a_build_is_made_of_and_where_is_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in {"PATH": "/own", "CCACHE_DIR": "/cc", "CFLAGS": "-g", "OTHER": "1"}.items():
        monkeypatch.setenv(name, value)
    made = plan(tmp_path)
    assert made.identity == {
        "host cc": "gcc",
        "host cxx": "g++",
        "ndk release": "26",
        "cmake": "3.30",
        "ninja": "1.11",
        "qnn_sdk_version": "2.49",
        "dsp_arch": "v75",
    }
    wanted = {"one": "1", "two": "2", "policy": "hexagon-v75", "tree": str(tmp_path / "tree/et")}
    wanted |= {"prefix": str(tmp_path / "prefix"), "stages": str(tmp_path / "stages")}
    assert wanted.items() <= made.values.items()
    assert made.aliases == {"/build": str(tmp_path), "/qnn_sdk_root": "/sdk", "/ndk_root": "/ndk"}
    environment = made.environment
    maps = [f"{tmp_path}=/build", "/ndk=/ndk_root", "/sdk=/qnn_sdk_root"]
    flags = " ".join(f"-ffile-prefix-map={one}" for one in maps)
    assert environment == {
        "PATH": "/c:/n:/own",
        "CCACHE_DIR": "/cc",
        "HEXAGON_SDK_ROOT": "/hexagon",
        "LC_ALL": "C.UTF-8",
        "CCACHE_DISABLE": "1",
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "SOURCE_DATE_EPOCH": "315532800",
        "NINJA_STATUS": "[%f/%t] ",
        "CCACHE_BASEDIR": "",
        "CCACHE_STATSLOG": str(tmp_path / "ccache.log"),
        "CMAKE_BUILD_PARALLEL_LEVEL": "3",
    }
    monkeypatch.delenv("PATH")
    assert plan(tmp_path).environment["PATH"] == f"/c:/n:{os.defpath}"
    cached = replace(KIT, tools=replace(TOOLS, cache=Program(Path("/x/ccache"), Version("4"))))
    environment = plan(tmp_path, kit=cached).environment
    assert environment["CMAKE_CXX_COMPILER_LAUNCHER"] == "/x/ccache"
    assert "CCACHE_DISABLE" not in environment


def test_every_setting_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: Any = TARGET["stages"]
    compilers = KIT.compilers[CompilerChoice.NDK]
    other = {**KIT.compilers, CompilerChoice.NDK: replace(compilers, identity={"release": "27"})}
    newer = replace(compilers, options={"T": "a newer NDK"})
    plans = [
        plan(tmp_path),
        plan(tmp_path, stages=[stages[0], {**stages[1], "options": {"Z": "1"}}]),
        plan(tmp_path, stages=[stages[0], {**stages[1], "if_present": ["z", "y"]}]),
        plan(tmp_path, kit=replace(KIT, compilers=other)),
        plan(tmp_path, kit=replace(KIT, compilers={**KIT.compilers, CompilerChoice.NDK: newer})),
        plan(tmp_path, kit=replace(KIT, values={**KIT.values, "qnn_sdk_version": "2.50"})),
        plan(tmp_path, replace(REQUEST, defines={"D": "user", "E": "6"})),
        plan(tmp_path, artifacts=[{"path": "x"}]),
    ]
    plans += [
        plan(tmp_path, stages=[{**stages[0], **change}, stages[1]])
        for change in ({"source": "c"}, {"name": "other"}, {"targets": ["p", "q"]})
    ]
    plans.append(plan(tmp_path, replace(REQUEST, extras=frozenset({"one"}))))
    for name in ("CFLAGS", "CXXFLAGS"):
        environment = {**plans[0].environment, name: "-O1"}
        plans.append(replace(plans[0], environment=environment))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    plans.append(plan(tmp_path))
    assert len({one.settings_digest for one in plans}) == len(plans)
    assert plan(tmp_path, replace(REQUEST, jobs=9)).settings_digest == plans[-1].settings_digest
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    places = [find_place(*one).root for one in (("a", Path("/s"), "1"), ("a", Path("/s"), "2"))]
    places += [find_place("a", Path("/t"), "1").root, find_place("b", Path("/s"), "1").root]
    assert len({*places}) == 4
    (tmp_path / "link").symlink_to(tmp_path)
    assert find_place("a", tmp_path / "link", "1").root == find_place("a", tmp_path, "1").root
    assert all(one.name[:2] in {"a-", "b-"} for one in places)


def make_collected(place: Path, *rows: dict[str, Any], **values: str) -> Any:
    found = msgspec.convert(list(rows), tuple[Artifact, ...])
    target = SimpleNamespace(name="t", artifacts=found, per_python=True)
    values = {"python_version": "cpython-312 3.12.1", "page_bytes": "16384", **values}
    return SimpleNamespace(target=target, place=Place(place), values=values)


ROWS = (
    {"path": "lib/*.so", "policy": "hexagon-{arch}"},
    {"path": "bin/a", "extra": "tools"},
    {"path": "bin/b", "option": "WITH_B"},
    {"path": "bin/c", "optional": True},
)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []

    def judge(row: Artifact, path: Path, policy: Any, tag: str, pages: str) -> str:
        found.append((path, policy, tag, pages))
        return f"{row.path} {path.name}"

    monkeypatch.setattr(artifacts, "judge_artifact", judge)
    monkeypatch.setattr(artifacts, "elf_policy", lambda kind: kind)
    return found


@pytest.mark.parametrize(
    ("extras", "defines", "names", "pages"),
    [
        ((), {}, ["a.so", "z.so", "b"], "16384"),
        (("tools",), {PAGE_BYTES: "4096"}, ["a.so", "z.so", "a", "b"], "4096"),
        ((), {"WITH_B:BOOL": "off", f"{PAGE_BYTES}:STRING": "8192"}, ["a.so", "z.so"], "8192"),
    ],
)
def test_every_file_of_every_row_that_is_asked_for_is_judged(
    tmp_path: Path,
    judged: list[tuple[Any, ...]],
    extras: tuple[str, ...],
    defines: dict[str, str],
    names: list[str],
    pages: str,
) -> None:
    for name in ("lib/z.so", "lib/a.so", "bin/a", "bin/b", "stripped/z.so", "stripped/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "lib/folder.so").mkdir()
    made = make_collected(tmp_path, *ROWS, arch="v75")
    request = BuildRequest(extras=frozenset(extras), defines=defines)
    found: Any = collect_artifacts(made, request)
    assert [one.split()[1] for one in found] == names
    stripped = [path.parent.name == "stripped" for path, *_ in judged]
    assert stripped == [name in {"z.so", "b"} for name in names]
    assert judged[1][1:] == ("hexagon-v75", "cpython-312", pages)


@pytest.mark.usefixtures("judged")
def test_a_file_that_is_missing_is_named_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.so").touch()
    with pytest.raises(FailedError, match="t: the build succeeded but produced no bin/b") as caught:
        collect_artifacts(make_collected(tmp_path, *ROWS, arch="v75"), BuildRequest())
    assert str(tmp_path / "build.log") in caught.value.fix


def test_each_file_of_a_row_is_stripped_into_its_own_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lib/a.so", "lib/b.so", "skel/c.so", "bin/d", "stripped/old"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    ran: list[list[str]] = []
    out = tmp_path / "stripped"

    def run(words: list[object]) -> None:
        assert out.is_dir()
        ran.append([*map(str, words)])

    monkeypatch.setattr(artifacts, "run_process", run)
    rows: tuple[dict[str, Any], ...] = (
        {"path": "lib/*.so", "split_symbols": True},
        {"path": "skel/*.so"},
        {"path": "bin/d", "split_symbols": True},
    )
    split_symbols(make_collected(tmp_path, *rows, objcopy="/objcopy"))
    assert ran == [
        words
        for built in (tmp_path / "lib/a.so", tmp_path / "lib/b.so", tmp_path / "bin/d")
        for words in (
            ["/objcopy", "--only-keep-debug", f"{built}", f"{out / built.name}.debug"],
            [
                *("/objcopy", "--strip-all", f"--add-gnu-debuglink={out / built.name}.debug"),
                *(f"{built}", f"{out / built.name}"),
            ],
        )
    ]
    assert not (out / "old").exists()
    ran.clear()
    split_symbols(make_collected(tmp_path, *rows))
    assert ran == []


ELF = Path(__file__).parents[3] / "artifacts/elf/libhexagon.so"


def test_each_finding_of_a_build_says_what_where_why_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "PyX.cpython-39-x.so"
    path.write_bytes(ELF.read_bytes())
    row = Artifact("x", size_budget=9, accept={"BUILD102": "known"})
    judged: Judged = judge_artifact(row, path, elf_policy("hexagon-v69"), "cpython-312")
    own = [one for one in judged.findings if one.id.startswith("BUILD")]
    assert [(one.id, one.subject, one.where) for one in own] == [
        ("BUILD101", path.name, str(path)),
        ("BUILD103", path.name, str(path)),
    ]
    (over,) = judged.accepted
    size = path.stat().st_size
    assert over.what == f"{path.name} is {size} bytes long, but its size budget is 9"
    told = [(one.what.removeprefix(f"{path.name} "), one.why, one.fix) for one in (*own, over)]
    words = (
        ("needs libneeded.so", "neither the target's system", "link that library statically"),
        ("is not built for cpython-312", "CMake found a Python", "remove -D options about Python"),
        ("is ", "the DSP has little memory", "build with --release"),
    )
    for found, wanted in zip(told, words, strict=True):
        assert all(one.startswith(start) for one, start in zip(found, wanted, strict=True)), found
    assert (judged.path, judged.size_bytes, len(judged.sha256)) == (path, size, 64)
