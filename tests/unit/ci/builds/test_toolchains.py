"""The compilers of each kind, the tools of a build and the compiler cache, on stand-ins."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.builds.builder import read_counts
from ci.builds.checkout import describe_soc
from ci.builds.plan import BuildRequest
from ci.builds.targets import CompilerChoice
from ci.builds.toolchains import (
    Program,
    Version,
    ask_python,
    find_cache,
    find_tools,
    identify_compiler,
    resolve_compilers,
)
from provisioning.errors import UnfitError
from tests.build.builds import TOOLS, explain, plan_runner, write_program
from tests.build.signing import show
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
HOST, CROSS, NDK, HEXAGON = (
    *(CompilerChoice.HOST, CompilerChoice.LINUX_CROSS),
    *(CompilerChoice.NDK, CompilerChoice.HEXAGON),
)
VENDOR = "host/usr/bin/aarch64-oe-linux/aarch64-oe-linux-"
NDK_BIN = "ndk/toolchains/llvm/prebuilt/linux-x86_64/bin"


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH."""
    names = ("CC", "CXX", "TOOLCHAIN_ROOT_HOST", "TOOLCHAIN_ROOT_TARGET", "QNN_CI_CACHE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/python"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def put(path: Path, version: str = "") -> Path:
    write_program(path, f"echo {path.name} version {version}")
    os.utime(path, ns=(1, 1))
    return path


def resolve(kind: CompilerChoice, root: Path, tools: str = "tools") -> list[str]:
    roots = {"android-ndk": root / "ndk", "hexagon-sdk": root / "sdk"}
    variables = {"HEXAGON_TOOLS_ROOT": str(root / tools)}
    lines: Any = []

    def describe() -> str:
        compilers = resolve_compilers(kind, roots, variables)
        parts = {
            "option": compilers.options,
            "identity": compilers.identity,
            "value": compilers.values,
        }
        lines.extend(
            f"{key} {name}={value}" for key, row in parts.items() for name, value in row.items()
        )
        return ""

    return [explain(describe), *lines]


def test_compilers_are_found_for_each_kind_of_build_or_reported_missing(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines_by_title = {"no compiler for this machine": resolve(HOST, tmp_path)}
    for names, title in (
        (("clang", "clang++"), "clang"),
        (("gcc", "g++"), "gcc before clang"),
        (("cc", "c++"), "cc before all"),
    ):
        for name in names:
            put(programs / name, "12")
        lines_by_title[title] = resolve(HOST, tmp_path)
    monkeypatch.setenv("CC", str(programs / "clang"))
    lines_by_title["the compiler of a variable"] = resolve(HOST, tmp_path)
    monkeypatch.setenv("CXX", "/no/such/c++")
    lines_by_title["a compiler of a variable that is missing"] = resolve(HOST, tmp_path)
    lines_by_title["no cross compiler"] = resolve(CROSS, tmp_path)
    for name in ("gcc", "g++"):
        put(programs / f"aarch64-linux-gnu-{name}", "12")
        put(Path(f"{tmp_path}/{VENDOR}{name}"), "13")
    lines_by_title["the distribution's cross compiler"] = resolve(CROSS, tmp_path)
    (tmp_path / "target").mkdir()
    for host, target, title in (
        ("host", "", "a host without a target"),
        ("", "target", "a target without a host"),
        ("host", "gone", "a target that is missing"),
        ("host", "bin/cc", "a target that is a file"),
        ("host", "target", "a vendor's SDK"),
    ):
        monkeypatch.setenv("TOOLCHAIN_ROOT_HOST", str(tmp_path / host) if host else "")
        monkeypatch.setenv("TOOLCHAIN_ROOT_TARGET", str(tmp_path / target) if target else "")
        lines_by_title[title] = resolve(CROSS, tmp_path)
    lines_by_title["no NDK"] = resolve(NDK, tmp_path)
    put(tmp_path / NDK_BIN / "clang++", "17")
    (tmp_path / "ndk/source.properties").write_text("Pkg.Revision = 27.3.13750724\n")
    lines_by_title["an NDK"] = resolve(NDK, tmp_path)
    put(tmp_path / NDK_BIN / "llvm-objcopy")
    lines_by_title["an NDK with objcopy"] = resolve(NDK, tmp_path)
    lines_by_title["no Hexagon SDK"] = resolve(HEXAGON, tmp_path)
    put(tmp_path / "sdk/build/cmake/hexagon_toolchain.cmake")
    lines_by_title["no Hexagon tools"] = resolve(HEXAGON, tmp_path)
    for name in ("2", "1"):
        put(tmp_path / f"sdk/tools/HEXAGON_Tools/{name}/Tools/bin/hexagon-clang++")
    lines_by_title["other Hexagon tools"] = resolve(HEXAGON, tmp_path)
    put(tmp_path / "tools/Tools/bin/hexagon-clang++", "19")
    lines_by_title["Hexagon tools"] = resolve(HEXAGON, tmp_path)
    check_snapshot(SNAPSHOTS / "compilers.txt", show(lines_by_title, {str(tmp_path): "TMP"}))


def test_the_identity_of_a_compiler_changes_with_its_file(tmp_path: Path) -> None:
    compiler = put(tmp_path / "cc", "12")
    names = [identify_compiler(compiler)]
    os.utime(compiler, (1, 1))
    names.append(identify_compiler(compiler))
    put(compiler, "123")
    names.append(identify_compiler(compiler))
    assert len({*names}) == 3
    assert all(name.startswith("cc version 12") for name in names)
    write_program(compiler, "exit 3")
    for gone in (compiler, tmp_path / "gone"):
        with pytest.raises(UnfitError, match="compiler"):
            identify_compiler(gone)


@pytest.mark.parametrize(
    ("soc", "dsp_type", "arch"),
    [
        *(("SM8850", 0, "v81"), ("SM8850", 3, "v81"), ("SM8650", 3, "v75")),
        *(("", 3, ""), ("SM8650", 0, ""), ("SM8850", 7, "")),
    ],
)
def test_dsp_build_uses_the_hexagon_version_of_the_soc(soc: str, dsp_type: int, arch: str) -> None:
    result = explain(lambda: describe_soc(BuildRequest(soc=soc, dsp_type=dsp_type)))
    values = {"dsp_arch": arch, "dsp_type": str(dsp_type), "hexagon_policy": f"hexagon-{arch}"}
    assert result == str(values) if arch else result.startswith("UsageError")


# Tools


@pytest.mark.parametrize(
    ("cmake", "ninja", "lacks"),
    [
        *(("3.28", "1.10", ""), ("3.27.9", "1.10", "cmake 3.28"), ("3.28", "1.9.1", "ninja 1.10")),
        *(("", "1.10", "cmake 3.28"), ("3.28", "", "ninja 1.10")),
    ],
)
def test_a_build_needs_tools_of_at_least_these_versions(
    programs: Path, monkeypatch: pytest.MonkeyPatch, cmake: str, ninja: str, lacks: str
) -> None:
    monkeypatch.setenv("QNN_CI_CACHE", "none")
    for name, version in (("cmake", cmake), ("ninja", ninja)):
        put(programs / name, version)
    result = explain(lambda: [tool.path.name for tool in (find_tools().cmake, find_tools().ninja)])
    assert (
        f"UnfitError {lacks} or newer was not found" if lacks else "['cmake', 'ninja']"
    ) in result


def test_the_modules_of_a_python_are_found_with_the_given_variables(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    (programs / "own_module.py").touch()
    python = Path(sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(programs))
    assert ask_python(python, ["own_module"]).modules["own_module"]
    variables_of_call = {**os.environ, "PYTHONPATH": ""}
    assert not ask_python(python, ["own_module"], variables_of_call).modules["own_module"]
    with pytest.raises(UnfitError, match="gone cannot be used"):
        ask_python(programs / "gone")


# The compiler cache


WORKS, FAILS = "echo $0 1.2", "exit 1"


@pytest.mark.parametrize(
    ("variable", "ccache", "sccache", "expected"),
    [
        *(("", WORKS, WORKS, "ccache"), ("ccache", WORKS, WORKS, "ccache")),
        *(("sccache", WORKS, WORKS, "sccache"), ("none", WORKS, WORKS, "None")),
        *(("", FAILS, WORKS, "sccache"), ("", FAILS, FAILS, "None"), ("", "", "", "None")),
        ("attic", WORKS, WORKS, "UsageError QNN_CI_CACHE=attic: "),
        ("ccache", FAILS, WORKS, "UnfitError QNN_CI_CACHE=ccache: no working ccache"),
        ("sccache", WORKS, "", "UnfitError QNN_CI_CACHE=sccache: no working sccache"),
    ],
)
def test_the_compiler_cache_is_the_one_of_the_variable_or_the_first_that_works(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    ccache: str,
    sccache: str,
    expected: str,
) -> None:
    monkeypatch.setenv("QNN_CI_CACHE", variable)
    for name, body in (("ccache", ccache), ("sccache", sccache)):
        if body:
            write_program(programs / name, body)
    result = explain(lambda: (program := find_cache()) and program.path.name)
    assert result.startswith(expected)


CCACHE_LOG = (
    "# a.cpp\ncache_miss\n# b.cpp\ndirect_cache_hit\n# c.cpp\npreprocessed_cache_hit\n"
    "# d.cpp\ndirect_cache_miss\npreprocessed_cache_miss\ncache_miss\n# e.cpp\ndirect_cache_hit\n"
)
STATS = '{"stats": {"cache_hits": {"counts": {"C": 5, "C++": 4}}, "cache_misses": {"counts": {}}}}'


@pytest.mark.parametrize(
    ("name", "printed", "counts"),
    [
        *(("ccache", "", (0, 0)), ("ccache", CCACHE_LOG, (3, 2)), ("sccache", STATS, (9, 0))),
        *(("sccache", "no server", (0, 0)), ("sccache", "[]", (0, 0))),
    ],
)
def test_compiler_cache_hits_and_misses_are_read_from_ccaches_log_or_sccaches_stats(
    tmp_path: Path, name: str, printed: str, counts: tuple[int, int]
) -> None:
    words = "--show-stats --stats-format json"
    condition = f"[ \"$*:$LC_ALL\" = '{words}:C.UTF-8' ]"  # with the variables of the build
    program = write_program(tmp_path / name, f"{condition} && echo '{printed}'")
    plan = plan_runner(tmp_path, tools=replace(TOOLS, cache=Program(program, Version("4.7"))))
    if name == "ccache" and printed:
        plan.place.cache_log.write_text(printed)
    statistics = read_counts(plan)
    assert statistics
    assert (statistics.name, statistics.version, statistics.hits, statistics.misses) == (
        name,
        "4.7",
        *counts,
    )
    since = statistics.since(replace(statistics, hits=3, misses=1))
    assert (since.hits, since.misses) == (max(counts[0] - 3, 0), max(counts[1] - 1, 0))
