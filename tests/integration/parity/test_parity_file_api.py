"""The file API's reply of a real CMake configuration, beside the static reading of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ci.parity.cmake.fileapi import QUERY, read_file_api
from ci.parity.cmake.reader import read_cmake
from ci.parity.facts import CMakeFacts, Configuration
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree_here
from ci.parity.run import ParityRequest, compare_source
from ci.parity.trees import DirectoryTree
from provisioning.console.process import run_process
from provisioning.errors import UsageError

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

needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")


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
    run_process(["cmake", "-S", source, "-B", folder, *options], timeout_s=120)
    return folder


def summary(facts: CMakeFacts) -> dict[str, set[str]]:
    """The files of each target."""
    return {
        target.name: {entry.path for entry in (*target.sources, *target.headers)}
        for target in facts.targets
    }


@needs_cmake
def test_the_reply_and_the_static_reading_agree(source: Path, build: Path) -> None:
    exact = read_file_api(build, source, Configuration.HOST)
    static = read_cmake(DirectoryTree(source), Configuration.HOST)

    assert exact.source == "file-api"
    assert summary(exact) == {
        "first": {"one.cpp", "inner/two.cpp", "first.h"},
        "second": {"inner/three.cpp"},
    }
    assert summary(static) == summary(exact)
    first, second = sorted(exact.targets, key=lambda target: target.name)
    assert [word.text for word in first.links] == ["second"]
    assert [word.text for word in second.defines] == ["FAST=1"]
    assert str(first.place) == "CMakeLists.txt:5"


@needs_cmake
def test_a_build_of_another_tree_is_refused(build: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()

    with pytest.raises(UsageError, match="was configured for"):
        read_file_api(build, other, Configuration.HOST)


@needs_cmake
def test_a_comparison_uses_the_build_and_says_so(source: Path, build: Path) -> None:
    (source / "BUCK").write_text('cxx_library(name = "first", srcs = ["one.cpp"])\n')
    request = ParityRequest(source=source, builds=((Configuration.HOST, build),))

    report = compare_source(request, ParityPolicy(), read_tree_here)

    assert report.cmake_source == "host file-api, android static, any static"
    assert {
        (f.kind.value, f.path) for f in report.findings if f.kind.value.startswith("cmake")
    } == {
        ("cmake-only-source", "inner/three.cpp"),
        ("cmake-only-source", "inner/two.cpp"),
    }
    with pytest.raises(UsageError, match="describes the work tree"):
        compare_source(replace(request, revision="HEAD"), ParityPolicy(), read_tree_here)


CHOICE = """cmake_minimum_required(VERSION 3.20)
project(choice CXX)
option(FULL "" ON)
option(BACKEND "" ON)
if(FULL)
  add_library(lib a.cpp b.cpp)
else()
  add_library(lib a.cpp)
endif()
if(BACKEND)
  add_library(backend backend.cpp)
endif()
"""


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("-DFULL=ON", "-DBACKEND=ON"), set()),
        (("-DFULL=OFF", "-DBACKEND=ON"), {("buck-only-source", "b.cpp", "host")}),
        (("-DFULL=ON", "-DBACKEND=OFF"), set()),
    ],
    ids=["as read", "a branch that forgets a file", "a backend that is not built"],
)
@needs_cmake
def test_a_build_tells_what_its_options_forget(
    options: tuple[str, ...], found: set[tuple[str, str, str]], tmp_path: Path
) -> None:
    names = ("a.cpp", "b.cpp", "backend.cpp")
    (tmp_path / "CMakeLists.txt").write_text(CHOICE)
    (tmp_path / "BUCK").write_text(
        'cxx_library(name = "lib", srcs = ["a.cpp", "b.cpp"])\n'
        'cxx_library(name = "backend", srcs = ["backend.cpp"])\n'
        'cxx_library(name = "backend_android_build", srcs = ["backend.cpp"])\n'
    )
    for name in names:
        (tmp_path / name).write_text("int x;\n")
    folder = configure(tmp_path, tmp_path / "build", *options)
    request = ParityRequest(source=tmp_path, builds=((Configuration.HOST, folder),))

    report = compare_source(
        request, ParityPolicy(android_only=("*_android_build",)), read_tree_here
    )

    assert {
        (f.kind.value, f.path, f.configuration.value if f.configuration else "")
        for f in report.findings
    } == found


def test_a_configuration_that_failed_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / QUERY).parent.mkdir(parents=True)
    (tmp_path / QUERY).touch()

    with pytest.raises(UsageError) as caught:
        read_file_api(tmp_path, tmp_path, Configuration.HOST)
    assert "to the end" in str(caught.value)


def test_a_directory_without_a_reply_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file API reply"):
        read_file_api(tmp_path, tmp_path, Configuration.HOST)


def test_a_torn_reply_is_refused(tmp_path: Path) -> None:
    reply = tmp_path / ".cmake/api/v1/reply"
    reply.mkdir(parents=True)
    (reply / "index-1.json").write_text("{", encoding="utf-8")

    with pytest.raises(UsageError, match="cannot read"):
        read_file_api(tmp_path, tmp_path, Configuration.HOST)
