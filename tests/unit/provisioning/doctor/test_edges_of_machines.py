"""Things at the edge of a check of a machine; edges_of_machines.txt says what each row tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from provisioning.doctor.checks.host import Tool
from provisioning.doctor.checks.variables import Runtime, Variables
from provisioning.doctor.facts import (
    FileFacts,
    SdkFacts,
    ToolFacts,
)
from provisioning.doctor.fitness import Fitness, ToolPolicy
from provisioning.elf.facts import (
    EM_AARCH64,
    EM_QDSP6,
)
from tests.unit.provisioning.doctor.cases import (
    BUILD,
    FLATCC,
    JSON,
    OWN,
    adaptor,
    backed,
    checkout,
    device,
    dsp,
    entry,
    file,
    having,
    lacking,
    laid,
    machine,
    module,
    ndk,
    on_path,
    python,
    read_snapshot,
    tell,
    tool,
    tools,
    variables,
)

HOME = "/sdk/lib/x86_64-linux-clang"
DEEP = "third-party/json/deep"


def ninja(path: str | None, version: str | None = None) -> Tool:
    """A tool of which nothing is advised and no reason is known."""
    return Tool(ToolFacts("n", path, version, "no"), ToolPolicy("ninja", minimum="1.11"))


def before(*files: FileFacts, directory: str = "/a") -> Variables:
    """A search path with these files before the SDK's."""
    return variables("/sdk", entry(directory, *files), OWN)


HOSTS = [
    ("QNN001", machine(system="Darwin")),
    ("QNN001", machine(Fitness(machines=("x86_64", "aarch64")), machine="riscv64")),
    ("QNN002", machine(glibc=None)),
    ("QNN003", lacking("libz.so.1", None)),
    ("QNN003", lacking("libatomic.so.1", None)),
    ("QNN003", lacking("libgcc_s.so.1", None)),
    ("QNN003", lacking("libstdc++.so.6", None)),
    (
        "QNN004",
        machine(Fitness(cpu_flags=("a", "b", "c")), cpu_flags=frozenset({"b"})),
    ),
    ("QNN004", machine(cpu_flags=frozenset())),
    ("QNN006", machine(memory_gb=0)),
    ("QNN006", machine(memory_gb=0.5)),
    ("QNN010", ninja(None)),
    ("QNN010", ninja("/n")),
    ("QNN011", ninja(None)),
    ("QNN011", ninja("/n")),
    ("QNN012", ninja("/n", "1.10")),
    ("QNN012", tool(None)),
    ("QNN013", tool(None)),
    ("QNN013", ninja("/n", "1.11")),
]

VARIABLES = [
    ("QNN404", variables(LD_LIBRARY_PATH="/x")),
    ("QNN404", variables("/sdk", entry(""), runs=False)),
    ("QNN404", variables("/sdk", entry(""))),
    ("QNN404", variables("/sdk", entry("/x"), OWN)),
    ("QNN405", before(*(file(f"libQnn{name}.so") for name in "ABCDE"))),
    ("QNN405", variables("/sdk", entry("/a", file("libQnnB.so")), runs=False)),
    ("QNN405", before(file("libQnnB.so", machine=EM_AARCH64))),
    ("QNN405", before(file("libQnnB.so", machine=EM_QDSP6))),
    ("QNN405", before(file("libunwind.so.1"))),
    ("QNN405", before(replace(file("libQnnB.so"), elf=None), directory="")),
    (
        "QNN405",
        variables("/sdk", entry("/a", file("libc++.so.1")), entry(HOME, file("libc++.so.1"))),
    ),
    (
        "QNN405",
        variables("/sdk", entry("/a", file("libc++.so.1")), OWN, entry("/b", file("libc++.so.1"))),
    ),
    (
        "QNN406",
        variables(
            "/sdk",
            entry("", *(file(f"l{name}.so", machine=EM_QDSP6) for name in "ABCDE")),
            entry(HOME, file("l.so", machine=EM_AARCH64)),
            entry("/b", file("l.so", machine=EM_AARCH64), file("m.so")),
        ),
    ),
    ("QNN407", variables(QAIRT_SDK_ROOT="/a", QAIRT_ROOT="", AISW_SDK_ROOT="/b")),
    ("QNN410", variables(DSP_LIBRARY_PATH="/a")),
    ("QNN410", variables(ADSP_LIBRARY_PATH="/a")),
    ("QNN412", dsp(ADSP_LIBRARY_PATH="/a;/b", DSP_LIBRARY_PATH="/a:/b:/c")),
    ("QNN408", on_path("/a", "/b", "/c", wheel=True)),
    ("QNN409", on_path("/a", checkout="/src/executorch", wheel=True)),
    ("QNN409", on_path("/a", wheel=False)),
    ("QNN409", on_path("/a", wheel=False, checkout="/src/executorch", PYTHONPATH="/a")),
    (
        "QNN415",
        Runtime(
            "/c",
            file("l", version_defs=("GLIBCXX_3.4.20", "CXXABI_1.3")),
            {"GLIBCXX": ((3, 4, 21), "a"), "CXXABI": ((1, 3, 1), "b"), "GCC": ((9,), "c")},
        ),
    ),
    ("QNN415", Runtime("/c", replace(file("l"), elf=None), {"GCC": ((9,), "c")})),
]

PYTHONS = [
    ("QNN502", python(version=(3, 10))),
    ("QNN502", python(version=(3, 9, 18))),
    ("QNN504", having(torch=None)),
    ("QNN505", having(torch=None)),
    ("QNN505", having(executorch=None)),
    ("QNN505", having(executorch="1.4.1", torch="2.12.0")),
    ("QNN508", python(adaptors=("/s/b.so", "/s/c.so"), adaptor=None)),
    ("QNN508", python(adaptors=(), adaptor=None)),
    ("QNN512", adaptor(elf=None)),
    ("QNN512", python(adaptor=None)),
    ("QNN513", python(adaptor=None)),
    ("QNN513", adaptor(elf=None)),
    ("QNN515", python(lacking=("a", "b"), adaptor=None)),
    ("QNN509", adaptor(elf=None)),
    ("QNN509", python(adaptor=None)),
    ("QNN509", python(glibc=None)),
    ("QNN510", python(modules={"yaml": True, "x": False, "y": False})),
    *(
        ("QNN516", python(adaptors=(), **{"installed": "/elsewhere/executorch", **change}))
        for change in (
            {"pth": ("/a.pth", "/b.pth")},
            {"installed": "/site/executorch/"},
            {"installed": ""},
            {"executorch": None},
            {"hidden": True},
        )
    ),
    ("QNN511", python(distributions={})),
    ("QNN511", python(distributions={"executorch": "1.3"})),
]

NDKS = [
    ("QNN601", ndk("", is_directory=False)),
    ("QNN601", ndk("27.0.1", revision=None)),
    ("QNN602", ndk(revision=None)),
    ("QNN603", ndk("", revision="27")),
    ("QNN605", ndk(host_tags=("a", "b"))),
    ("QNN605", ndk(host_tags=())),
    ("QNN606", ndk()),
    ("QNN606", ndk(clang=ToolFacts("c", None, None, "no"))),
    ("QNN607", ndk(api_levels=())),
]

CHECKOUTS = [
    ("QNN704", checkout(commit="0123456789abcdef")),
    ("QNN704", checkout(commit=None)),
    ("QNN704", checkout(commit="b", pin="")),
    ("QNN705", checkout(module("third-party/json", "missing"), module(DEEP, "missing"))),
    ("QNN706", checkout(module("third-party/json", "missing"), module(DEEP, "missing"))),
    ("QNN707", checkout(JSON, module(DEEP, "moved"))),
    (
        "QNN708",
        checkout(
            leftovers=(
                (f"{FLATCC}/lib/a.a", "unknown"),
                (f"{FLATCC}/lib/b.a", "aarch64"),
                (f"{FLATCC}/bin/flatcc", "aarch64"),
                (f"{FLATCC}/lib/c.a", "x86-64"),
            )
        ),
    ),
]

DEVICES = [
    ("QNN802", device(soc="")),
    ("QNN802", device(soc="SM8650", wanted="")),
    ("QNN802", device(wanted="sm8750")),
    ("QNN803", device(api_level=None)),
    ("QNN804", device(free_mb=None)),
    ("QNN805", device(is_root=True)),
    ("QNN806", device(libraries={"c": "v3", "b": "", "a": "v2", "d": BUILD.text})),
    ("QNN806", device(libraries={"a": "v2"}, build=None)),
    ("QNN807", device(align=0)),
    ("QNN807", device(align=1, page_bytes=None)),
    ("QNN807", device(align=1, page_bytes=2)),
]

TOGETHER = [
    ("QNN901", laid()),
    ("QNN901", laid(checkout="1.4.1", distributions={})),
    ("QNN902", laid(headers="")),
    ("QNN902", laid(headers="2.50")._replace(library="an unknown version")),
    ("QNN902", laid(headers="3", adaptor=None)._replace(library="2.49.40")),
    ("QNN903", laid()),
    (
        "QNN903",
        laid(no_device="no", headers="")._replace(
            sdk=SdkFacts(Path("/sdk"), is_directory=True, version="2.37")
        ),
    ),
    ("QNN904", tools("2.36", executorch=None)),
    ("QNN904", tools("2.36", executorch="0.1")),
    ("QNN904", tools("2.36", sdk=None)),
    ("QNN905", tools("2.50", executorch="")),
    ("QNN905", tools("2.50", executorch="0.1")),
    ("QNN905", tools("2.50", sdk=None)),
    ("QNN906", tools(hexagon="6.3")),
    ("QNN906", tools(soc=81)),
    ("QNN906", tools(hexagon="6.3", soc=75)),
    ("QNN907", tools(compiler="8.8")),
    ("QNN907", tools(soc=81)),
    ("QNN907", tools(compiler="8.8", soc=75)),
    ("QNN908", backed(version="2.39")),
    ("QNN908", backed(version="2.38", executorch="0.1")),
    ("QNN908", backed(version="2.38", sdk=False)),
    ("QNN908", backed("lpai-arm", "2.37")),
    ("QNN909", tools()),
    ("QNN910", backed(no_backend=None)),
    ("QNN910", backed(no_backend="no", sdk=False)),
]

ROWS = [*HOSTS, *VARIABLES, *PYTHONS, *NDKS, *CHECKOUTS, *DEVICES, *TOGETHER]


def test_what_a_check_tells_at_its_edge() -> None:
    assert list(tell(ROWS)) == read_snapshot("edges_of_machines.txt")
