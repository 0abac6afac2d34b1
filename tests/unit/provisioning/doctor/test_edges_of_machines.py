"""What lies at an edge of a check of a machine: a thing a row, and all that is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioning.doctor.checks.host import Machine, SystemLibrary, Tool
from provisioning.doctor.checks.variables import PythonPath, Runtime, Variables
from provisioning.doctor.facts import (
    FileFacts,
    SdkFacts,
    ToolFacts,
    VariableFacts,
)
from provisioning.doctor.fitness import Fitness, ToolPolicy
from provisioning.elf.facts import (
    EM_AARCH64,
    EM_QDSP6,
)
from tests.unit.provisioning.doctor.cases import (
    BUILD,
    FLATCC,
    HOST,
    JSON,
    OWN,
    adaptor,
    backed,
    checkout,
    describe,
    device,
    dsp,
    entry,
    file,
    having,
    laid,
    machine,
    module,
    ndk,
    python,
    row,
    tool,
    tools,
    variables,
)

CACHE = "LD_LIBRARY_PATH, the loader's cache and default directories"
SCRIPTS = "the build fails in its scripts"
HOME = "/sdk/lib/x86_64-linux-clang"
PYTHON_AT = "/venv/bin/python"
SITE = "/site/executorch/backends/qualcomm/python"
DEEP = "third-party/json/deep"
SOURCE = "/src/executorch"
PREBUILT = "/ndk/toolchains/llvm/prebuilt"
EMPTY = "(an empty entry: the current directory)"
PIN = "pin=torch==2.13.0 and executorch==1.5.1"
PINNED = "pinned=NDK r26c (26.2.11394342)"


def ninja(path: str | None, version: str | None = None) -> Tool:
    """A tool of which nothing is advised and no reason is known."""
    return Tool(ToolFacts("n", path, version, "no"), ToolPolicy("ninja", minimum="1.11"))


def before(*files: FileFacts, directory: str = "/a") -> Variables:
    """A search path with these files before the SDK's."""
    return variables("/sdk", entry(directory, *files), OWN)


def pathed(*entries: str, wheel: bool = False, checkout: str = "", **values: str) -> PythonPath:
    facts = VariableFacts(values, executorch_on_path=entries, without_adaptor=entries[1:])
    return PythonPath(facts, Path(checkout) if checkout else None, wheel)


HOSTS = [
    row("QNN001", machine(system="Darwin"), "Darwin x86_64 | this machine | wanted=Linux x86_64"),
    row(
        "QNN001",
        Machine(replace(HOST, machine="riscv64"), Fitness(machines=("x86_64", "aarch64"))),
        "Linux riscv64 | this machine | wanted=Linux x86_64 or aarch64",
    ),
    row("QNN002", machine(glibc=None), "glibc | this machine | found=no glibc | glibc=2.34"),
    row(
        "QNN003",
        SystemLibrary("libz.so.1", None, "u"),
        f"libz.so.1 | {CACHE} | package=apt-get install zlib1g | user=u",
    ),
    row(
        "QNN004",
        Machine(replace(HOST, cpu_flags=frozenset({"b"})), Fitness(cpu_flags=("a", "b", "c"))),
        "CPU | /proc/cpuinfo | flags=a, c",
    ),
    row("QNN004", machine(cpu_flags=frozenset())),
    row("QNN006", machine(memory_gb=0)),
    row("QNN006", machine(memory_gb=0.5), "memory | this machine | advised=3 | found=0.5"),
    row("QNN010", ninja(None), "ninja | PATH | advised=1.11"),
    row("QNN010", ninja("/n")),
    row("QNN011", ninja(None)),
    row("QNN011", ninja("/n"), "ninja | /n | answer=no"),
    row(
        "QNN012",
        ninja("/n", "1.10"),
        f"ninja | /n | advised=1.11 | minimum=1.11 | reason={SCRIPTS} | version=1.10",
    ),
    row("QNN012", tool(None)),
    row("QNN013", tool(None)),
    row("QNN013", ninja("/n", "1.11")),
]

VARIABLES = [
    row("QNN404", variables(LD_LIBRARY_PATH="/x"), f"LD_LIBRARY_PATH | /x | wanted={HOME}"),
    row("QNN404", variables("/sdk", entry(""), runs=False)),
    row("QNN404", variables("/sdk", entry("")), f"LD_LIBRARY_PATH | (not set) | wanted={HOME}"),
    row("QNN404", variables("/sdk", entry("/x"), OWN)),
    row(
        "QNN405",
        before(*(file(f"libQnn{name}.so") for name in "ABCDE")),
        f"LD_LIBRARY_PATH | /a | names=libQnnA.so, libQnnB.so, libQnnC.so | wanted={HOME}",
    ),
    row("QNN405", variables("/sdk", entry("/a", file("libQnnB.so")), runs=False)),
    row("QNN405", before(file("libQnnB.so", machine=EM_AARCH64))),
    row("QNN405", before(file("libQnnB.so", machine=EM_QDSP6))),
    row("QNN405", before(file("libunwind.so.1"))),
    row(
        "QNN405",
        before(replace(file("libQnnB.so"), elf=None), directory=""),
        f"LD_LIBRARY_PATH | {EMPTY} | names=libQnnB.so | wanted={HOME}",
    ),
    row(
        "QNN405",
        variables("/sdk", entry("/a", file("libc++.so.1")), entry(HOME, file("libc++.so.1"))),
        f"LD_LIBRARY_PATH | /a | names=libc++.so.1 | wanted={HOME}",
    ),
    row(
        "QNN405",
        variables("/sdk", entry("/a", file("libc++.so.1")), OWN, entry("/b", file("libc++.so.1"))),
    ),
    row(
        "QNN406",
        variables(
            "/sdk",
            entry("", *(file(f"l{name}.so", machine=EM_QDSP6) for name in "ABCDE")),
            entry(HOME, file("l.so", machine=EM_AARCH64)),
            entry("/b", file("l.so", machine=EM_AARCH64), file("m.so")),
        ),
        f"LD_LIBRARY_PATH | {EMPTY} | names=lA.so, lB.so, lC.so",
        "LD_LIBRARY_PATH | /b | names=l.so",
    ),
    row(
        "QNN407",
        variables(QAIRT_SDK_ROOT="/a", QAIRT_ROOT="", AISW_SDK_ROOT="/b"),
        "QAIRT_SDK_ROOT | /a",
        "AISW_SDK_ROOT | /b",
    ),
    row("QNN410", variables(DSP_LIBRARY_PATH="/a")),
    row("QNN410", variables(ADSP_LIBRARY_PATH="/a")),
    row(
        "QNN412",
        dsp(ADSP_LIBRARY_PATH="/a;/b", DSP_LIBRARY_PATH="/a:/b:/c"),
        "DSP_LIBRARY_PATH | /a:/b:/c | joined=/a;/b;/c",
    ),
    row("QNN408", pathed("/a", "/b", "/c", wheel=True), "PYTHONPATH | /b"),
    row("QNN409", pathed("/a", checkout="/src/executorch", wheel=True)),
    row("QNN409", pathed("/a")),
    row(
        "QNN409",
        pathed("/a", checkout="/src/executorch", PYTHONPATH="/a"),
        "PYTHONPATH | /a | parent=/src",
    ),
    row(
        "QNN415",
        Runtime(
            "/c",
            file("l", version_defs=("GLIBCXX_3.4.20", "CXXABI_1.3")),
            {"GLIBCXX": ((3, 4, 21), "a"), "CXXABI": ((1, 3, 1), "b"), "GCC": ((9,), "c")},
        ),
        "l | /c | family=GLIBCXX | found=3.4.20 | need=3.4.21 | user=a",
        "l | /c | family=CXXABI | found=1.3 | need=1.3.1 | user=b",
    ),
    row("QNN415", Runtime("/c", replace(file("l"), elf=None), {"GCC": ((9,), "c")})),
]

PYTHONS = [
    row("QNN502", python(version=(3, 10))),
    row(
        "QNN502",
        python(version=(3, 9, 18)),
        f"Python | {PYTHON_AT} | policy.below=3.14 | policy.minimum=3.10 | version=3.9.18",
    ),
    row("QNN504", having(torch=None)),
    row("QNN505", having(torch=None)),
    row("QNN505", having(executorch=None)),
    row(
        "QNN505",
        having(executorch="1.4.1", torch="2.12.0"),
        f"torch | {PYTHON_AT} | executorch=1.4.1 | {PIN} | torch=2.12.0",
    ),
    row(
        "QNN508",
        python(adaptors=("/s/b.so", "/s/c.so"), adaptor=None),
        f"PyQnnManagerAdaptor | {SITE} | names=b.so, c.so | python.tag=.so",
    ),
    row("QNN508", python(adaptors=(), adaptor=None)),
    row("QNN512", adaptor(elf=None), "P.so | /site/P.so | defect=unreadable"),
    row("QNN512", python(adaptor=None)),
    row("QNN513", python(adaptor=None)),
    row("QNN513", adaptor(elf=None)),
    row(
        "QNN515",
        python(lacking=("a", "b"), adaptor=None),
        *[f"{name} | {PYTHON_AT} | python.distributions[executorch]=1.5.1" for name in "ab"],
    ),
    row("QNN509", adaptor(elf=None)),
    row("QNN509", python(adaptor=None)),
    row("QNN509", python()._replace(glibc=None)),
    row(
        "QNN510",
        python(modules={"yaml": True, "x": False, "y": False}),
        *[f"{name} | {PYTHON_AT} | module={name}" for name in "xy"],
    ),
    row("QNN511", python(distributions={})),
    row("QNN511", python(distributions={"executorch": "1.3"})),
]

NDKS = [
    row("QNN601", ndk("", is_directory=False), "Android NDK | /ndk | pinned=the pinned NDK"),
    row("QNN601", ndk("27.0.1", revision=None), "Android NDK | /ndk | pinned=NDK r27 (27.0.1)"),
    row(
        "QNN602",
        ndk(revision=None),
        f"Android NDK | /ndk/source.properties | minimum=26 | {PINNED} | revision=None",
    ),
    row("QNN603", ndk("", revision="27")),
    row(
        "QNN605",
        ndk(host_tags=("a", "b")),
        f"Android NDK | {PREBUILT} | found=a, b | wanted=linux-x86_64",
    ),
    row(
        "QNN605", ndk(host_tags=()), f"Android NDK | {PREBUILT} | found=none | wanted=linux-x86_64"
    ),
    row("QNN606", ndk()),
    row(
        "QNN606",
        ndk(clang=ToolFacts("c", None, None, "no")),
        f"Android NDK | {PREBUILT} | answer=no",
    ),
    row(
        "QNN607",
        ndk(api_levels=()),
        f"Android NDK | {PREBUILT}/linux-x86_64/sysroot/usr/lib | level=30 | newest=none",
    ),
]

CHECKOUTS = [
    row(
        "QNN704",
        checkout(commit="0123456789abcdef"),
        f"checkout | {SOURCE} | commit=0123456789ab | pin=aaaaaaaaaaaa | root={SOURCE}",
    ),
    row(
        "QNN704",
        checkout(commit=None),
        f"checkout | {SOURCE} | commit= | pin=aaaaaaaaaaaa | root={SOURCE}",
    ),
    row("QNN704", checkout(commit="b")._replace(pin="")),
    row(
        "QNN705",
        checkout(module("third-party/json", "missing"), module(DEEP, "missing")),
        f"third-party/json | {SOURCE}/third-party/json | root={SOURCE}",
    ),
    row(
        "QNN706",
        checkout(module("third-party/json", "missing"), module(DEEP, "missing")),
        f"{DEEP} | {SOURCE}/{DEEP} | owner=third-party/json | root={SOURCE}",
    ),
    row(
        "QNN707",
        checkout(JSON, module(DEEP, "moved")),
        f"{DEEP} | {SOURCE}/{DEEP} | commit=bbbbbbbbbbbb | owner=third-party/json | root={SOURCE}",
    ),
    row(
        "QNN708",
        checkout(
            leftovers=(
                (f"{FLATCC}/lib/a.a", "unknown"),
                (f"{FLATCC}/lib/b.a", "aarch64"),
                (f"{FLATCC}/bin/flatcc", "aarch64"),
                (f"{FLATCC}/lib/c.a", "x86-64"),
            )
        ),
        f"flatcc | {FLATCC}/bin/flatcc | machine=aarch64 | wanted=x86-64",
        f"flatcc | {FLATCC}/lib/c.a | machine=x86-64 | wanted=aarch64",
    ),
]

DEVICES = [
    row("QNN802", device(soc="")),
    row("QNN802", device(soc="SM8650")._replace(soc=None)),
    row("QNN802", device()._replace(soc="sm8750")),
    row("QNN803", device(api_level=None)),
    row("QNN804", device(free_mb=None)),
    row("QNN805", device(is_root=True)),
    row(
        "QNN806",
        device(libraries={"c": "v3", "b": "", "a": "v2", "d": BUILD.text}),
        *[
            f"device abc | abc:/data/{name} | build={BUILD.text} | device.directory=/data"
            f" | name={name} | there={there}"
            for name, there in (("a", "v2"), ("c", "v3"))
        ],
    ),
    row("QNN806", device(libraries={"a": "v2"})._replace(build=None)),
    row("QNN807", device(align=0)),
    row("QNN807", device(align=1, page_bytes=None)),
    row(
        "QNN807",
        device(align=1, page_bytes=2),
        "device abc | abc:getconf PAGE_SIZE | align=1 | device.page_bytes=2",
    ),
]

TOGETHER = [
    row("QNN901", laid()),
    row("QNN901", laid(checkout="1.4.1", distributions={})),
    row("QNN902", laid(headers="")),
    row("QNN902", laid(headers="2.50")._replace(library="an unknown version")),
    row(
        "QNN902",
        laid(headers="3", adaptor=None)._replace(library="2.49.40"),
        "PyQnnManagerAdaptor |  | headers=3 | library=2.49.40 | root=/sdk",
    ),
    row("QNN903", laid()),
    row(
        "QNN903",
        laid(no_device="no", headers="")._replace(
            sdk=SdkFacts(Path("/sdk"), is_directory=True, version="2.37")
        ),
        "PyQnnManagerAdaptor | /site/P.so | headers=an unknown QNN | library=2.49.40"
        " | place=an unknown byte | reason=no | root=/sdk",
    ),
    row("QNN904", tools("2.36")._replace(executorch="")),
    row("QNN904", tools("2.36")._replace(executorch="0.1")),
    row("QNN904", tools("2.36")._replace(sdk=None)),
    row("QNN905", tools("2.50")._replace(executorch="")),
    row("QNN905", tools("2.50")._replace(executorch="0.1")),
    row("QNN905", tools("2.50")._replace(sdk=None)),
    row("QNN906", tools(hexagon="6.3")),
    row("QNN906", tools(soc=81)),
    row("QNN906", tools(hexagon="6.3", soc=75)),
    row("QNN907", tools(compiler="8.8")),
    row("QNN907", tools(soc=81)),
    row("QNN907", tools(compiler="8.8", soc=75)),
    row("QNN908", backed(version="2.39")),
    row("QNN908", backed(version="2.38")._replace(executorch="0.1")),
    row("QNN908", backed(version="2.38")._replace(sdk=None)),
    row(
        "QNN908",
        backed("lpai-arm", "2.37"),
        "QNN SDK | /sdk | executorch=1.5.1 | first=2.39 | sdk=2.37",
    ),
    row("QNN909", tools()),
    row("QNN910", backed(no_backend=None)),
    row(
        "QNN910",
        backed(no_backend="no")._replace(sdk=None),
        "libQnnLpai.so |  | fix=an SDK | reason=no | version=an unknown version | why=it lowers",
    ),
]


@pytest.mark.parametrize(
    ("code", "thing", "told"),
    [*HOSTS, *VARIABLES, *PYTHONS, *NDKS, *CHECKOUTS, *DEVICES, *TOGETHER],
)
def test_what_a_check_tells_at_its_edge(code: str, thing: Any, told: list[str]) -> None:
    assert list(describe(code, thing)) == told
