"""The file API's reply of a real CMake configuration, beside the static reading of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.parity.cmake.reader import StaticReader
from ci.parity.facts import CMakeFacts, Configuration
from ci.parity.trees import DirectoryTree
from provisioning.console.process import run_process
from tests.integration.parity.file_api import QUERY, read_file_api
from tests.programs import missing_programs

LISTS = """cmake_minimum_required(VERSION 3.20)
project(small CXX)
set(SRCS one.cpp)
list(APPEND SRCS inner/two.cpp)
add_library(first STATIC ${SRCS} first.h)
add_library(second STATIC)
add_subdirectory(inner)
target_link_libraries(first PRIVATE second)
target_compile_definitions(second PRIVATE FAST=1)
add_custom_command(OUTPUT made.cpp COMMAND ${CMAKE_COMMAND} -E touch made.cpp)
target_sources(second PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/made.cpp)
"""
FILES = {
    "CMakeLists.txt": LISTS,
    "inner/CMakeLists.txt": "target_sources(second PRIVATE ${CMAKE_CURRENT_LIST_DIR}/three.cpp)\n",
    "one.cpp": "int one;\n",
    "first.h": "",
    "inner/two.cpp": "int two;\n",
    "inner/three.cpp": "int three;\n",
}

MISSING = missing_programs("cmake", "make", "c++")
needs_cmake = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small project."""
    for name, text in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "source"


@pytest.fixture
def build(source: Path, tmp_path: Path) -> Path:
    """Its configured build directory."""
    return configure(source, tmp_path / "build")


def configure(source: Path, folder: Path, *options: str) -> Path:
    """Configure a project with the query in place."""
    query = folder / QUERY
    query.parent.mkdir(parents=True)
    query.touch()
    run_process(["cmake", "-S", source, "-B", folder, *options], timeout_s=1200)
    return folder


def summary(facts: CMakeFacts) -> dict[str, set[str]]:
    """The files of each target."""
    files = {}
    for target in facts.targets:
        files[target.name] = {entry.path for entry in target.entries}
    return files


@needs_cmake
def test_the_static_reader_agrees_with_cmakes_file_api(source: Path, build: Path) -> None:
    exact = read_file_api(build, source, Configuration.HOST)
    static = StaticReader(DirectoryTree(source)).read(Configuration.HOST)

    assert summary(exact) == {
        "first": {"one.cpp", "inner/two.cpp", "first.h"},
        "second": {"inner/three.cpp"},
    }
    assert summary(static) == summary(exact)
    first, second = sorted(exact.targets, key=lambda target: target.name)
    assert [word.text for word in first.links] == ["second"]
    assert [word.text for word in second.defines] == ["FAST=1"]
    assert str(first.place) == "CMakeLists.txt:5"
