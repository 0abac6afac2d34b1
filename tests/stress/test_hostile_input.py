"""The time for hostile input is bounded: what is worse than linear takes hours for these sizes.

It is the processor's time, so that other programs do not count. A limit is at least five times what
a run takes.
"""

from __future__ import annotations

import itertools
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci.explain.explain import explain
from ci.explain.quotations import unquote
from ci.explain.rules import read_rules
from ci.inspect.flavours import choose_flavours, list_variants
from ci.inspect.gradle import Gradle, list_plugins, parse_gradle
from ci.inspect.gradle_settings import list_folders, list_included_builds, read_catalogs
from ci.inspect.gradle_text import MAX_BYTES
from ci.parity.compare.findings import ParityReport
from provisioning.archives.layout import MAX_LINK_HOPS, find_dangling
from provisioning.elf.facts import ElfError
from provisioning.elf.reader import read_elf
from tests.unit.ci.parity.conftest import LOAD, findings, pairs, report

FIXTURES = (findings, pairs, report)
RULES = read_rules()
FLAVOURS = "productFlavors { a { dimension 'a' }; b { dimension 'a' } }\n"
COUNT = 6000
GOOD = {
    "p/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp"])\n',
    "p/a.cpp": "int a;\n",
    "CMakeLists.txt": "add_library(lib p/a.cpp)\n",
}


@contextmanager
def limit_cpu(seconds: float) -> Iterator[None]:
    """Fail if the block takes more of the processor's time."""
    begun = time.process_time()
    yield
    assert time.process_time() - begun < seconds


def test_the_time_of_explain_grows_linearly_with_the_log() -> None:
    hostile = b"error " * 60_000 + b"\n" + b"aaaaaaaaaaaaaaaa.*" * 15_000
    noise = b"11-22 12:00:01.331 17202 1 I adsprpc : " + b"0123456789abcdef " * 6 + b"failed 1\n"
    with limit_cpu(6):
        explain("log", [hostile, noise * 6_000], RULES)


@pytest.mark.parametrize("text", [b"x", b"error ", b"\x1b]", b"0123456789abcdef"])
def test_a_long_line_takes_little_time_and_memory(text: bytes) -> None:
    part = (text * (1 << 20))[: 1 << 20]
    with limit_cpu(20):
        tracemalloc.start()
        explain("log", itertools.repeat(part, 64), RULES)
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most_bytes < 256 << 20


@pytest.mark.parametrize(
    "text", ["(", "a=b ", "-x ", "[a", "'a b", '"', "`a ", "0", "::", ".py::["]
)
def test_the_time_for_a_hostile_line_is_short(text: str) -> None:
    with limit_cpu(1):
        unquote((text * 1000)[:1000] + "!", (text * 1000)[:1000])


def parse(text: str) -> Gradle:
    return parse_gradle("build.gradle", text, {}, {})


@pytest.mark.parametrize(
    "part",
    [
        'keepDebugSymbols += "a", ',
        "keepDebugSymbols  ",
        "abiFilters.aa",
        '"\\',
        "/*",
        "jniLibs {",
        "packaging {a",
        "packaging {{}",
        "excludes = 'a',",
        "jniLibs.srcDir",
        "qnn:",
        "x:qnn:$a",
        "$a.",
        "name ",
        "ext.a = '",
        "group = 'a', ",
        "'a:b') { version {",
        "alias(libs.plugins.a) ",
        "implementation a.",
        "a: 'a:b:$a', ",
        "minSdk a ",
        "${libs.versions.",
        "findProperty('a')?.",
        "fileTree((",
        "configurations.a(",
        "abiFilters a ",
    ],
)
def test_hostile_build_file_takes_little_time(part: str) -> None:
    with limit_cpu(5):
        parse(part * (MAX_BYTES // len(part)))
        list_plugins(part * (MAX_BYTES // len(part)))
        parse(part[:20] + part[-1] * (MAX_BYTES - 20))


@pytest.mark.parametrize(
    "part",
    [
        "productFlavors { a {",
        "productFlavors { a { }",
        ".withFlavor('a'",
        "aApi(",
        "sourceSets { a { }",
        "project(':a').projectDir = ",
        "versionCatalogs { a { library('a', ",
        "includeBuild 'a' ",
        "pluginManagement { ",
    ],
)
def test_hostile_flavours_and_settings_take_little_time(part: str, tmp_path: Path) -> None:
    text = FLAVOURS + part * ((MAX_BYTES - len(FLAVOURS)) // len(part))
    (tmp_path / "settings.gradle").write_text(text)
    with limit_cpu(5):
        for variant in list_variants(text):
            choose_flavours(text, variant)
        read_catalogs(tmp_path)
        [*list_folders(tmp_path, text), *list_included_builds(tmp_path, text)]


@pytest.mark.parametrize("name", ["qnn", "litert", "executorch", "qnn.-"])
def test_a_hostile_coordinate_takes_little_time(name: str) -> None:
    with limit_cpu(5):
        most = MAX_BYTES // len(name) - 100
        build = parse(f'dependencies {{ implementation "a:{name * most}!" }}')
        assert build == parse('dependencies { implementation "a:b!" }')


def test_links_through_many_others_are_followed_once_each() -> None:
    """Following each link from its start would take minutes."""
    chain = {f"l{at}": "./" * 2000 + f"l{at - 1}" if at else "a" for at in range(MAX_LINK_HOPS - 1)}
    links = {**chain, **{f"x{number}": f"l{MAX_LINK_HOPS - 2}" for number in range(5000)}}
    with limit_cpu(5):
        assert find_dangling(links, ["a"]) == []


def test_many_backtracking_expressions_are_stopped_together(
    pairs: Callable[..., set[tuple[str, str]]],
) -> None:
    with limit_cpu(50):  # all 1,000 would take ten times that
        rows = (f'string(REGEX MATCH "(a+)+{n}$" X "{"a" * 60}!")\n' for n in range(1000))

        assert pairs({**GOOD, "CMakeLists.txt": "".join(rows) + GOOD["CMakeLists.txt"]}) == set()


@pytest.mark.parametrize("name", ["p/missing{}.cpp", "p/{}/a.cpp"], ids=["names", "one name"])
def test_many_missing_sources_are_reported_in_bounded_time(
    name: str, report: Callable[[Mapping[str, str]], ParityReport]
) -> None:
    with limit_cpu(10):
        names = "\n".join(name.format(n) for n in range(COUNT))

        result = report({**GOOD, "CMakeLists.txt": f"add_library(lib p/a.cpp {names})\n"})

        assert len(result.failing) == COUNT


@pytest.mark.parametrize(("loads", "entries"), [(255, 65000), (60000, 60000), (16000, 100)])
def test_an_elf_file_with_very_many_segments_and_needs_is_refused_in_bounded_time(
    tmp_path: Path, loads: int, entries: int
) -> None:
    path = tmp_path / "libQnnSystem.so"
    path.write_bytes(hostile(loads, entries))
    with limit_cpu(3), pytest.raises(ElfError):
        read_elf(path)


def hostile(loads: int, entries: int) -> bytes:
    """A file of many segments, each string of whose many version needs is in the last one."""
    header, start = 64, 64 + 56 * (loads + 1)
    dynamic = start
    verneed = dynamic + 16 * 5
    strings = verneed + 16 + 16 * entries
    end = strings + 8
    out = bytearray(end)
    out[:6], out[strings + 1] = b"\x7fELF\x02\x01", ord("a")
    struct.pack_into(
        "<HHIQQQIHHHHHH", out, 16, 3, 62, 1, 0, header, 0, 0, 64, 56, loads + 1, 64, 0, 0
    )
    row = struct.Struct("<IIQQQQQQ")
    for index in range(loads - 1):
        row.pack_into(out, header + 56 * index, 1, 4, 0, 1 << 40, 0, 1, 1, 4096)
    row.pack_into(out, header + 56 * (loads - 1), 1, 4, 0, 0, 0, end, end, 4096)
    row.pack_into(out, header + 56 * loads, 2, 4, dynamic, dynamic, 0, 80, 80, 8)
    tags = [(5, strings), (0x6FFFFFFE, verneed), (0x6FFFFFFF, 1), (10, 8), (0, 0)]
    for index, tag in enumerate(tags):
        struct.pack_into("<qQ", out, dynamic + 16 * index, *tag)
    struct.pack_into("<HHIII", out, verneed, 1, min(entries, 65535), 0, 16, 0)
    for index in range(entries):
        struct.pack_into("<IHHII", out, verneed + 16 + 16 * index, 0, 0, 0, 0, 16)
    return bytes(out)
