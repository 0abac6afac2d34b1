"""The x86-64 runner of ExecuTorch in miniature: a build is a function of its inputs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.builds.worlds import (
    BACKEND,
    NEEDS,
    BuildWorld,
    Kept,
    assert_error_in_checkout,
    index_artifacts,
    list_artifacts,
    read_published,
    replace_text,
)
from tests.programs import missing_programs

pytestmark = NEEDS


def test_the_built_runner_of_a_checkout_finds_its_library_next_to_it(
    built_runner: BuildWorld, kept_runner: Kept
) -> None:
    assert kept_runner.build["target"] == "runner_checkout"
    rows = index_artifacts(kept_runner.build)
    assert set(rows) == {"qnn_executor_runner", BACKEND}
    assert rows["qnn_executor_runner"]["elf"]["runpath"] == ["$ORIGIN"]
    # 42 is what the backend computes from the SDK's header: the right library was loaded.
    assert subprocess.run([rows["qnn_executor_runner"]["path"]], check=False).returncode == 42


PROBE = """
include(CheckIncludeFileCXX)
set(CMAKE_REQUIRED_INCLUDES ${QNN_SDK_ROOT}/share)
check_include_file_cxx(mended.h HAS_MENDED)
if(NOT HAS_MENDED)
  message(FATAL_ERROR "mended.h is broken")
endif()
"""


def test_cmake_is_configured_again_after_a_failed_configuration(built_runner: BuildWorld) -> None:
    with (built_runner.checkout / "CMakeLists.txt").open("a") as stream:
        stream.write(PROBE)
    assert built_runner.call("runner_checkout")[0] == 5
    (built_runner.folder / "qnn/share/mended.h").touch()
    built_runner.build("runner_checkout")


def test_a_full_disk_ends_a_build_with_exit_code_4(built_runner: BuildWorld) -> None:
    world, published = built_runner, read_published(built_runner)
    graph = world.checkout / "backends/qualcomm/runtime/Graph.cpp"
    replace_text(graph, "return 40", "return 41")
    # The build's record of its files is longer: writing it fails as on a full disk. (Messages of a
    # linker that has no room are in tests/unit/ci/builds/test_steps.py.)
    code = "import resource as r, os, sys; r.setrlimit(r.RLIMIT_FSIZE, (2000, 2000)); "
    code += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    code += "os.execv(sys.argv[1], sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", code, *world.command("runner_checkout")],
        cwd=world.folder,
        env=world.environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 4, ended.stderr
    assert "set QNN_CI_HOME" in ended.stderr
    assert read_published(world) == published
    world.build("runner_checkout")
    assert read_published(world) != published


def test_a_linker_error_names_the_checkouts_file_not_its_copy(built_runner: BuildWorld) -> None:
    folder = built_runner.checkout / "examples/qualcomm/executor_runner"
    source = folder / "qnn_executor_runner.cpp"
    source.write_text("int not_there();\nint main() { return not_there(); }\n")
    with (folder / "CMakeLists.txt").open("a") as stream:
        stream.write("target_compile_options(qnn_executor_runner PRIVATE -g)\n")
    code, data, _ = built_runner.call("runner_checkout")
    assert code == 5
    assert_error_in_checkout(built_runner, data, source)


def test_a_repeated_build_runs_nothing_and_an_edit_recompiles_only_its_object(
    built_runner: BuildWorld, kept_runner: Kept
) -> None:
    rebuilt = built_runner.build("runner_checkout")
    assert rebuilt["up_to_date"]
    assert rebuilt["stage_s"] == {}
    (place,) = (built_runner.home / "builds").iterdir()
    objects = {path.name: path.stat().st_mtime_ns for path in place.rglob("*.o")}
    graph = built_runner.checkout / "backends/qualcomm/runtime/Graph.cpp"
    os.utime(graph)
    assert built_runner.build("runner_checkout")["up_to_date"]
    graph.write_text(graph.read_text().replace("return 40", "return 41"))
    third = built_runner.build("runner_checkout")
    assert (third["up_to_date"], third["changed_files"]) == (False, 1)
    changed = {
        path.name for path in place.rglob("*.o") if path.stat().st_mtime_ns != objects[path.name]
    }
    assert changed == {"Graph.cpp.o"}
    assert (
        index_artifacts(third)[BACKEND]["sha256"]
        != index_artifacts(kept_runner.build)[BACKEND]["sha256"]
    )


def find_copy(world: BuildWorld) -> Path:
    (copy,) = (world.home / "builds").glob("*/tree/executorch")
    return copy


def test_an_edit_of_the_copy_is_undone_and_reported(
    built_runner: BuildWorld, kept_runner: Kept
) -> None:
    copy = find_copy(built_runner)
    name = "backends/qualcomm/runtime/Graph.cpp"
    lost, added = "version.txt", "backends/qualcomm/runtime/QnnInterface.h"
    (copy / name).write_text((copy / name).read_text().replace("return 40", "return 41"))
    (copy / lost).unlink()
    (copy / added).write_text("#error shadows the SDK's\n")
    code, data, text = built_runner.call("runner_checkout")
    (rebuilt,) = data["builds"]
    assert (code, rebuilt["up_to_date"]) == (0, False)
    assert rebuilt["undone"] == sorted([name, lost, added])
    assert str(built_runner.checkout) in text
    assert list_artifacts(rebuilt) == list_artifacts(kept_runner.build)
    assert (copy / name).read_bytes() == (built_runner.checkout / name).read_bytes()
    assert (copy / lost).is_file()
    assert not (copy / added).exists()
    third = built_runner.build("runner_checkout")
    assert (third["up_to_date"], third["undone"]) == (True, [])


@pytest.mark.nightly  # by day, tests/unit/ci/builds/test_up_to_date.py has each cause
@pytest.mark.parametrize("how", ["edited", "--clean", "options"])
def test_changed_or_stale_generated_files_in_the_source_copy_are_regenerated(
    built_runner: BuildWorld, kept_runner: Kept, how: str
) -> None:
    generated = find_copy(built_runner) / "third-party/flatcc/lib/generated.h"
    original = generated.read_bytes()
    old = generated.with_name("from_other_options.h")
    if how == "edited":
        generated.write_text("edited")
    else:
        old.write_text("what another build left")
    words = {"edited": (), "--clean": ("--clean",), "options": ("-D", "TINY_BALLAST=OFF")}[how]
    rebuilt = built_runner.build("runner_checkout", *words)
    assert not rebuilt["up_to_date"]
    assert generated.read_bytes() == original
    assert not old.exists()
    assert list_artifacts(rebuilt) == list_artifacts(kept_runner.build)


@pytest.mark.nightly
def test_a_build_that_was_killed_leaves_nothing_of_its_copy(built_runner: BuildWorld) -> None:
    """Only a clean build is safe if no record says what the killed build had written."""
    (record,) = (built_runner.home / "builds").glob("*/tree.json")
    record.unlink()
    stray = find_copy(built_runner) / "third-party/flatcc/lib/half_written.h"
    stray.write_text("half")
    assert not built_runner.build("runner_checkout")["up_to_date"]
    assert not stray.exists()


def test_builds_in_two_directories_give_the_same_bytes(
    built_runner: BuildWorld, kept_runner: Kept
) -> None:
    other_world = BuildWorld(
        built_runner.folder / "elsewhere", built_runner.forks, dict(built_runner.variables)
    )
    shutil.copytree(built_runner.checkout, other_world.checkout)
    shutil.copytree(built_runner.folder / "qnn", other_world.folder / "sdk")
    other_world.variables |= {
        "EXECUTORCH_ROOT": str(other_world.checkout),
        "QNN_SDK_ROOT": str(other_world.folder / "sdk"),
    }
    second = other_world.build("runner_checkout")
    assert list_artifacts(second) == list_artifacts(kept_runner.build)
    data = Path(index_artifacts(kept_runner.build)[BACKEND]["path"]).read_bytes()
    assert b"/build/tree/executorch/backends/qualcomm/runtime/Backend.cpp" in data
    assert os.fsencode(built_runner.folder) not in data


@pytest.mark.nightly
@pytest.mark.skipif(bool(missing_programs("ccache")), reason=missing_programs("ccache"))
def test_ccache_is_used_and_counted_and_changes_no_byte(
    world: BuildWorld, kept_runner: Kept
) -> None:
    world.variables |= {"QNN_CI_CACHE": "ccache", "CCACHE_DIR": str(world.folder / "ccache")}
    first = world.build("runner_checkout")
    second = world.build("runner_checkout", "--clean")
    # cmake's own probes of the compilers go through it too
    assert first["ccache"]["misses"] >= 3
    assert second["ccache"]["hits"] >= 3
    assert second["ccache"]["misses"] == 0
    assert kept_runner.build["ccache"] is None
    assert list_artifacts(first) == list_artifacts(second) == list_artifacts(kept_runner.build)
