"""ExecuTorch in miniature is built for real: x86-64, aarch64 Linux, Android and Hexagon."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.programs import missing_programs
from tests.stand_ins.forks import Forks, start_forks
from tests.stand_ins.second_ndk import PROFILE, REVISION, make_manifests
from tests.stand_ins.tiny_toolchains import (
    make_hexagon_sdk,
    make_libcxx,
    make_ndk,
    make_qnn_sdk,
)
from tests.workflows.commands import Heard

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests/stand_ins/tiny_executorch"
VENDOR_VARIABLES = (
    "QNN_SDK_ROOT",
    "ANDROID_NDK_ROOT",
    "HEXAGON_SDK_ROOT",
    "HEXAGON_TOOLS_ROOT",
    "EXECUTORCH_ROOT",
)
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
BACKEND = "libqnn_executorch_backend.so"
QUANTIZED = "libquantized_ops_aot_lib.so"
WITHOUT_TORCH = ("-D", "EXECUTORCH_BUILD_KERNELS_QUANTIZED_AOT=OFF")

needs_host = pytest.mark.skipif(
    bool(missing_programs("g++", "make")), reason=missing_programs("g++", "make")
)
needs_clang = pytest.mark.skipif(
    bool(missing_programs("clang", "ld.lld")), reason=missing_programs("clang", "ld.lld")
)
needs_cross = pytest.mark.skipif(
    bool(missing_programs("aarch64-linux-gnu-g++")),
    reason=missing_programs("aarch64-linux-gnu-g++"),
)
needs_models = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torchgen", "yaml", "executorch")),
    reason="torch and executorch are not installed here; the builds run Python code of theirs",
)
pytestmark = [needs_host, needs_models]


@dataclass
class BuildWorld:
    """A checkout, toolchains and a home of their own, and the way to call the builder in them."""

    folder: Path
    forks: Forks
    variables: dict[str, str] = field(default_factory=dict)
    with_doctor: bool = False

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout of mine"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        variables = {
            name: value for name, value in os.environ.items() if name not in VENDOR_VARIABLES
        }
        home = {"QNN_CI_HOME": str(self.home), "QNN_CI_CACHE": "none", "PYTHONPATH": str(ROOT)}
        return {**variables, **home, **self.variables}

    def command(self, *words: str) -> list[str]:
        # The stand-ins for SDKs hold no libraries, to which the doctor objects with reason.
        doctor = [] if self.with_doctor else ["--no-doctor"]
        return [sys.executable, "-m", "ci", "build", "--json", "--jobs", "2", *doctor, *words]

    def call(self, *words: str) -> tuple[int, dict[str, Any], str]:
        _, _, module, *arguments = self.command(*words)
        ended = self.forks.run_module(module, *arguments, cwd=self.folder, env=self.environment)
        assert "Traceback" not in ended.stderr
        return ended.returncode, json.loads(ended.stdout or "{}"), ended.stderr

    def build(self, *words: str) -> dict[str, Any]:
        code, data, text = self.call(*words)
        assert code == 0, text + json.dumps(data)
        for row in data["builds"][0]["artifacts"]:
            assert os.fsencode(self.home) not in Path(row["path"]).read_bytes(), row["name"]
        return data["builds"][0]

    def refuse(self, code: int, pattern: str, *words: str) -> dict[str, Any]:
        """The error of a call that must exit with ``code`` and tell what ``pattern`` matches."""
        exit_code, data, _ = self.call(*words)
        assert exit_code == code, data
        assert re.search(pattern, data["what"]), data
        return data

    def published(self) -> list[Path]:
        return sorted(self.home.glob("builds/*/artifacts/*"))


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Forks of a process that has imported the verb."""
    with start_forks("ci.verbs.build") as forks:
        yield forks


def make_world(folder: Path, forks: Forks) -> BuildWorld:
    # A copy whose directory has another name: the builder's own tree is called executorch.
    world = BuildWorld(folder, forks)
    shutil.copytree(TINY, world.checkout)
    world.variables = {
        "EXECUTORCH_ROOT": str(world.checkout),
        "QNN_SDK_ROOT": str(make_qnn_sdk(folder / "qnn")),
        "QNN_CI_LIBCXX_ROOT": str(make_libcxx(folder / "libcxx")),
    }
    return world


@pytest.fixture
def world(tmp_path: Path, forks: Forks) -> BuildWorld:
    return make_world(tmp_path, forks)


@dataclass(frozen=True)
class Kept:
    """A world in which the runner was built, a copy of its files, and what the build printed."""

    world: BuildWorld
    files: Path
    build: dict[str, Any]


def keep(world: BuildWorld, *words: str) -> Kept:
    build = world.build(*words)
    files = world.folder.with_name("files")
    shutil.copytree(world.folder, files, symlinks=True)
    return Kept(world, files, build)


def restore(kept_build: Kept) -> BuildWorld:
    """The world of a build, with its files as that build left them."""
    folder = kept_build.world.folder
    shutil.rmtree(folder)
    shutil.copytree(kept_build.files, folder, symlinks=True)
    return BuildWorld(folder, kept_build.world.forks, dict(kept_build.world.variables))


@pytest.fixture(scope="module")
def kept_build(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Kept:
    """The runner, built of a checkout that the call names."""
    world = make_world(tmp_path_factory.mktemp("built") / "world", forks)
    return keep(world, "runner", "--source", str(world.checkout))


@pytest.fixture
def built(kept_build: Kept) -> BuildWorld:
    return restore(kept_build)


@pytest.fixture(scope="module")
def kept_aot(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Kept:
    """The adaptor, built and not installed."""
    world = make_world(tmp_path_factory.mktemp("aot") / "world", forks)
    return keep(world, "aot", "--install", "none")


@pytest.fixture
def built_aot(kept_aot: Kept) -> BuildWorld:
    return restore(kept_aot)


@pytest.fixture(scope="module")
def kept_android(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Kept:
    world = make_world(tmp_path_factory.mktemp("android") / "world", forks)
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "ndk"))
    return keep(world, "android")


@pytest.fixture
def built_android(kept_android: Kept) -> BuildWorld:
    return restore(kept_android)


def by_name(build: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in build["artifacts"]}


def test_the_adaptor_takes_the_suffix_of_its_python_and_leaves_the_checkout_clean(
    built_aot: BuildWorld, kept_aot: Kept
) -> None:
    row, *other_rows = kept_aot.build["artifacts"]
    assert row["name"] == f"PyQnnManagerAdaptor{SUFFIX}"
    assert [other_row["name"] for other_row in other_rows] == [BACKEND, QUANTIZED]
    assert row["elf"]["machine"] == "x86-64"
    assert row["findings"] == []
    assert list_files(built_aot.checkout) == list_files(TINY)


def list_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_install_checkout_copies_the_adaptor_schemas_and_kernels_into_the_checkout(
    built_aot: BuildWorld,
) -> None:
    built_aot.build("aot", "--install", "checkout")
    files = list_files(built_aot.checkout)
    assert f"backends/qualcomm/python/PyQnnManagerAdaptor{SUFFIX}" in files
    assert {"exir/_serialize/program.fbs", "exir/_serialize/scalar_type.fbs"} <= files
    assert f"kernels/quantized/{QUANTIZED}" in files
    assert not [path for path in files if path.endswith(".new")]
    assert built_aot.build("aot", "--install", "checkout")["up_to_date"]


def test_the_built_runner_of_a_checkout_finds_its_library_next_to_it(
    built: BuildWorld, kept_build: Kept
) -> None:
    assert kept_build.build["target"] == "runner_checkout"
    rows = by_name(kept_build.build)
    assert set(rows) == {"qnn_executor_runner", BACKEND}
    assert rows["qnn_executor_runner"]["elf"]["runpath"] == ["$ORIGIN"]
    # 42 is what the backend computes from the SDK's header: the right library was loaded.
    assert subprocess.run([rows["qnn_executor_runner"]["path"]], check=False).returncode == 42


@needs_cross
def test_an_aarch64_linux_runner_is_cross_compiled_and_runs_under_qemu(world: BuildWorld) -> None:
    build = world.build("linux")
    rows = by_name(build)
    assert {row["elf"]["machine"] for row in rows.values()} == {"aarch64"}
    assert all(row["findings"] == [] for row in rows.values())
    if missing := missing_programs("qemu-aarch64"):
        pytest.skip(f"built and judged; not run: {missing}")
    runner = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", rows["qnn_executor_runner"]["path"]]
    assert subprocess.run(runner, check=False).returncode == 42


@needs_clang
@pytest.mark.usefixtures("built_android")
def test_android_artifacts_record_their_api_level_and_ndk(kept_android: Kept) -> None:
    build = kept_android.build
    rows = by_name(build)
    assert set(rows) == {"qnn_executor_runner", BACKEND}
    for row in rows.values():
        assert row["elf"]["machine"] == "aarch64"
        assert row["elf"]["android"] == {"api_level": 30, "ndk": "r26c", "build": "11394342"}
        assert row["elf"]["build_id"]
        # NDK r26 by itself aligns to 4096.
        assert (row["elf"]["load_align"], row["findings"]) == (16384, [])
    assert build["identity"]["ndk release"] == "26.2.11394342"
    for path in build["compile_commands"]:
        commands = [row["command"] for row in json.loads(Path(path).read_text())]
        assert all(
            "-DOF_NDK" in command and "-ffile-prefix-map=" in command for command in commands
        )


@needs_clang
def test_the_android_runner_is_stripped_with_its_symbols_next_to_it(
    built_android: BuildWorld, kept_android: Kept
) -> None:
    for up_to_date, build in enumerate((kept_android.build, built_android.build("android"))):
        rows = by_name(build)
        runner, symbols = rows["qnn_executor_runner"], rows["qnn_executor_runner"]["symbols"]
        assert build["up_to_date"] == up_to_date
        assert runner["elf"]["stripped"]
        assert rows[BACKEND]["symbols"] is None
        words = ["readelf", "-SnW", symbols]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert (".debug_info" in shown, runner["elf"]["build_id"] in shown) == (True, True)
        assert b"qnn_executor_runner.debug" in Path(runner["path"]).read_bytes()
    Path(symbols).unlink()
    assert not built_android.build("android")["up_to_date"]


@pytest.mark.nightly
@needs_clang
def test_with_llama_builds_the_llama_runner_if_its_submodules_are_checked_out(
    built_android: BuildWorld,
) -> None:
    code, data, _ = built_android.call("android", "--with", "llama")
    assert code == 3
    nested = "extension/llm/tokenizers/third-party/re2"
    assert f"lacks 1 of 9 submodules: {nested}" in data["what"]
    (built_android.checkout / nested).mkdir(parents=True)
    (built_android.checkout / nested / "README").write_text("stands in")
    row = by_name(built_android.build("android", "--with", "llama"))["qnn_llama_runner"]
    assert (BACKEND in row["elf"]["needed"], row["findings"]) == (True, [])
    assert "qnn_llama_runner" not in by_name(built_android.build("android"))


@needs_clang
def test_a_direct_mode_build_targets_one_hexagon_version(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "ndk"))
    world.variables["HEXAGON_SDK_ROOT"] = str(make_hexagon_sdk(world.folder / "hexagon"))
    build = world.build("direct", "--soc", "SM8450")
    rows = by_name(build)
    machines = {name: (row["elf"]["machine"], row["elf"]["flags"]) for name, row in rows.items()}
    assert machines == {
        BACKEND: ("hexagon", 0x69),
        "libqnn_executorch_skel.so": ("hexagon", 0x69),
        "libqnn_executorch_stub.so": ("aarch64", 0),
        "qnn_executor_direct_runner": ("aarch64", 0),
    }
    assert rows[BACKEND]["size_budget"] == 200 * 1024


@pytest.mark.nightly  # by day, an unknown library is what keeps an artifact from publication
@needs_clang
def test_a_direct_mode_library_over_its_size_budget_is_not_published(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "ndk"))
    world.variables["HEXAGON_SDK_ROOT"] = str(make_hexagon_sdk(world.folder / "hexagon"))
    code, data, _ = world.call("direct", "--soc", "SM8450", "-D", "TINY_BALLAST=300000")
    findings = by_name(data["builds"][0])[BACKEND]["findings"]
    assert (code, [finding["id"] for finding in findings]) == (1, ["BUILD102"])
    assert not data["builds"][0]["published"]
    assert world.published() == []


def test_an_artifact_that_needs_an_unknown_library_is_not_published(built_aot: BuildWorld) -> None:
    before = read_published(built_aot)
    cmake = built_aot.checkout / "backends/qualcomm/CMakeLists.txt"
    replace_text(cmake, "if(TINY_LOST_LIBRARY)", "if(1)")
    code, data, _ = built_aot.call("aot")
    assert code == 1
    row = data["builds"][0]["artifacts"][0]
    findings = [(finding["id"], finding["what"]) for finding in row["findings"]]
    assert ("BUILD101", f"PyQnnManagerAdaptor{SUFFIX} needs liblost.so") in findings
    assert read_published(built_aot) == before


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def read_published(world: BuildWorld) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in world.published()}


# -- what is not there is told before a compiler starts ----------------------------------------


@pytest.mark.parametrize(
    ("target", "variable", "message"),
    [
        ("aot", "QNN_SDK_ROOT", "`python -m ci fetch aot`"),
        ("android", "ANDROID_NDK_ROOT", "`python -m ci fetch android`"),
        ("linux", "EXECUTORCH_ROOT", "`python -m ci fetch linux`"),
        ("direct", "HEXAGON_SDK_ROOT", "`python -m ci fetch direct`"),
    ],
)
def test_a_missing_toolchain_names_the_command_that_provisions_it(
    world: BuildWorld, target: str, variable: str, message: str
) -> None:
    world.variables.pop(variable, None)
    code, data, _ = world.call(target, *(["--soc", "SM8450"] if target == "direct" else []))
    assert code == 3
    assert message in data["fix"]
    assert variable in data["fix"]
    assert not (world.home / "builds").exists()


def test_all_that_a_checkout_or_an_sdk_lacks_is_named_before_cmake_runs(world: BuildWorld) -> None:
    for path in ("third-party/json", "third-party/gflags"):
        (world.checkout / path / "README").rename(world.folder / Path(path).name)
    data = world.refuse(3, "lacks 2 of 6 submodules: third-party/json, third-party/gflags", "aot")
    assert "submodule update --init" in data["fix"]
    for path in ("third-party/json", "third-party/gflags"):
        (world.folder / Path(path).name).rename(world.checkout / path / "README")
    source = world.checkout / "backends/qualcomm/runtime/Graph.cpp"
    use = "static const int kSlc = QNN_HTP_GRAPH_OPTIMIZATION_TYPE_NEW; // QNN_GPU_OTHER\n"
    source.write_text(source.read_text() + use)
    names = r"lack QNN_HTP_GRAPH_OPTIMIZATION_TYPE_NEW \(.*runtime/Graph.cpp\)$"
    world.refuse(3, names, "runner_checkout")
    (world.folder / "qnn/include/QNN/HTP/QnnHtpDevice.h").unlink()
    world.refuse(3, "lacks include/QNN/HTP/QnnHtpDevice.h", "aot")
    assert not (world.home / "builds").exists()


@needs_clang
def test_an_unfit_ndk_is_refused_unless_the_doctor_is_turned_off(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "old", "21.4.7075529"))
    assert world.call("android", "--dry-run")[0] == 0
    world.with_doctor = True
    world.refuse(3, r"^QNN\d", "android", "--dry-run")


@needs_clang
def test_a_second_ndk_is_built_with_by_its_own_profile(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "new", REVISION))
    world.variables["QNN_CI_MANIFESTS"] = str(make_manifests(world.folder / "manifests"))
    code, data, _ = world.call("android", "--profile", PROFILE, "--dry-run")
    assert code == 0
    assert any("-DANDROID_PLATFORM=android-30" in command for command in data["commands"])
    world.refuse(2, "cannot use profile linux", "android", "--profile", "linux", "--dry-run")
    world.refuse(2, "cannot use profile aot", "runner", "--profile", "aot", "--dry-run")


def make_bare_python(world: BuildWorld, module: str) -> str:
    """A Python with an empty module of this name, and nothing else."""
    bare = world.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = str(bare / "bin/python")
    add_module(python, module)
    return python


def add_module(python: str, name: str) -> None:
    (site,) = Path(python).parents[1].glob("lib/python*/site-packages")
    (site / name).parent.mkdir(exist_ok=True)
    (site / name).touch()


def test_what_a_python_lacks_is_named_before_the_build_unless_the_build_does_not_need_it(
    world: BuildWorld,
) -> None:
    bare = make_bare_python(world, "yaml.py")
    world.variables["PYTHONPATH"] = str(ROOT)
    words = ("aot", "--python", bare)
    world.refuse(3, "executorch is not installed for", *words, *WITHOUT_TORCH)
    add_module(bare, "executorch/__init__.py")
    data = world.refuse(3, "has no module torch, torchgen", *words)
    assert data["fix"].endswith("pip install torch, or add " + " ".join(WITHOUT_TORCH))
    data = world.refuse(3, "torch is not installed for", *words, *WITHOUT_TORCH)
    assert "--no-proof" in data["fix"]
    assert not (world.home / "builds").exists()
    build = world.build(*words, *WITHOUT_TORCH, "--install", "none")
    assert QUANTIZED not in by_name(build)
    assert (build["published"], build["python"], build["import_lacks"]) == (True, bare, [])
    build = world.build(*words, *WITHOUT_TORCH, "--no-proof")
    assert "proof" not in build
    assert Path(build["overlay"], "executorch/backends/qualcomm/python").is_dir()


def test_an_overlay_is_of_the_installed_wheel_whatever_is_on_pythonpath(
    built_aot: BuildWorld,
) -> None:
    world, source = built_aot, built_aot.folder / "src"
    source.mkdir()
    (source / "executorch").symlink_to(world.checkout)
    first = source
    for _ in range(2):  # the checkout's parent first, then the overlay that was just made
        world.variables["PYTHONPATH"] = f"{first}{os.pathsep}{ROOT}"
        build = world.build("aot", "--no-proof")
        assert build["roots"]["qnn_sdk_root"] == str(world.folder / "qnn")
        assert build["wheel"]["version"] == importlib.metadata.version("executorch")
        assert not Path(build["wheel"]["path"]).is_relative_to(world.folder)
        first = Path(build["overlay"])
        links = [path for path in first.rglob("*") if path.is_symlink()]
        assert links
        assert not [path for path in links if path.resolve().is_relative_to(world.folder)]


def test_an_adaptor_that_python_cannot_import_fails_the_build(built_aot: BuildWorld) -> None:
    source = built_aot.checkout / "backends/qualcomm/runtime/Python.cpp"
    replace_text(source, "#ifdef TINY_NO_MODULE", "#if 1")
    words = ("aot", "--install", "none")
    data = built_aot.refuse(1, "cannot import PyQnnManagerAdaptor", *words)
    assert "SystemError" in data["why"]


def test_an_option_that_cmake_does_not_know_is_refused_before_it_compiles(
    world: BuildWorld,
) -> None:
    data = world.refuse(2, "CMAKE_BULID_TYPE", "aot", "-D", "CMAKE_BULID_TYPE:STRING=Debug")
    assert "CMAKE_BUILD_TYPE" in data["fix"]
    assert not list(world.home.rglob("*.o"))


# -- what fails on the way ---------------------------------------------------------------------


def test_a_compile_error_is_repeated_at_the_end_with_its_file_and_publishes_nothing(
    built_aot: BuildWorld,
) -> None:
    world = built_aot
    world.build("aot", "--install", "checkout")
    installed = world.checkout / f"backends/qualcomm/python/PyQnnManagerAdaptor{SUFFIX}"
    good, published = installed.read_bytes(), read_published(world)
    source = world.checkout / "backends/qualcomm/runtime/Python.cpp"
    source.write_text("int broken(\n")
    world.variables["GITHUB_ACTIONS"] = "true"
    code, data, text = world.call("aot", "--install", "checkout")
    assert code == 5
    heard = Heard()
    heard.hear(text)
    assert (heard.groups[-1], heard.depth) == ("aot: compile backend", 0)
    assert "aot: compile backend failed: " in data["what"]
    assert "error: " in data["what"]
    assert "build.log" in data["fix"]
    assert text.rstrip().endswith(data["fix"])
    assert_error_in_checkout(world, data, source)
    assert installed.read_bytes() == good
    assert read_published(world) == published


def assert_error_in_checkout(world: BuildWorld, data: dict[str, Any], source: Path) -> None:
    """An error is in a file of the checkout, not of the copy that is compiled."""
    message = data["what"] + data["why"]
    assert f"{source}:" in message, message
    assert "/tree/executorch" not in message
    (log,) = (world.home / "builds").glob("*/build.log")
    assert f"{source}:" in log.read_text()


PROBE = """
include(CheckIncludeFileCXX)
set(CMAKE_REQUIRED_INCLUDES ${QNN_SDK_ROOT}/share)
check_include_file_cxx(mended.h HAS_MENDED)
if(NOT HAS_MENDED)
  message(FATAL_ERROR "mended.h is broken")
endif()
"""


def test_cmake_is_configured_again_after_a_failed_configuration(built: BuildWorld) -> None:
    with (built.checkout / "CMakeLists.txt").open("a") as stream:
        stream.write(PROBE)
    assert built.call("runner_checkout")[0] == 5
    (built.folder / "qnn/share/mended.h").touch()
    built.build("runner_checkout")


def test_a_full_disk_ends_a_build_with_exit_code_4(built: BuildWorld) -> None:
    world, published = built, read_published(built)
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
        timeout=120,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 4, ended.stderr
    assert "set QNN_CI_HOME" in ended.stderr
    assert read_published(world) == published
    world.build("runner_checkout")
    assert read_published(world) != published


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_an_interrupt_ends_with_130_leaves_nothing_running_and_the_next_build_is_whole(
    built_aot: BuildWorld, number: signal.Signals
) -> None:
    world, words = built_aot, ("aot", "--install", "checkout")
    published = read_published(world)
    source = world.checkout / "backends/qualcomm/runtime/Python.cpp"
    original = source.read_text()
    pipe = world.folder / "pipe"  # at which the compiler waits
    os.mkfifo(pipe)
    source.write_text(f'#include "{pipe}"\n{original}')
    process = subprocess.Popen(
        world.command(*words),
        cwd=world.folder,
        env=world.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end_of_pipe = open_read_pipe(pipe)
    process.send_signal(number)
    _, text = process.communicate(timeout=30)
    os.close(end_of_pipe)
    assert process.returncode == 130
    assert "interrupted" in text
    assert "Traceback" not in text
    programs = Path("/proc").glob("[0-9]*/cmdline")
    assert not [path for path in programs if _runs(path, world.folder)]
    assert read_published(world) == published
    assert not (world.checkout / "backends/qualcomm/python").exists()
    source.write_text(original)
    assert not world.build(*words)["up_to_date"]
    assert read_published(world) == published
    assert (world.checkout / "backends/qualcomm/python").is_dir()


def open_read_pipe(pipe: Path) -> int:
    """Open a pipe for writing as soon as a program reads it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # no program reads it
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.02)
    pytest.fail(f"no program reads {pipe}")


def _runs(cmdline: Path, program: Path) -> bool:
    try:
        return os.fsencode(program) in cmdline.read_bytes()
    except OSError:
        return False


# -- a build is a function of its inputs -------------------------------------------------------


def test_a_repeated_build_runs_nothing_and_an_edit_recompiles_only_its_object(
    built: BuildWorld, kept_build: Kept
) -> None:
    rebuilt = built.build("runner_checkout")
    assert rebuilt["up_to_date"]
    assert rebuilt["stage_s"] == {}
    (place,) = (built.home / "builds").iterdir()
    objects = {path.name: path.stat().st_mtime_ns for path in place.rglob("*.o")}
    graph = built.checkout / "backends/qualcomm/runtime/Graph.cpp"
    os.utime(graph)
    assert built.build("runner_checkout")["up_to_date"]
    graph.write_text(graph.read_text().replace("return 40", "return 41"))
    third = built.build("runner_checkout")
    assert (third["up_to_date"], third["changed_files"]) == (False, 1)
    changed = {
        path.name for path in place.rglob("*.o") if path.stat().st_mtime_ns != objects[path.name]
    }
    assert changed == {"Graph.cpp.o"}
    assert by_name(third)[BACKEND]["sha256"] != by_name(kept_build.build)[BACKEND]["sha256"]


def find_copy(world: BuildWorld) -> Path:
    (copy,) = (world.home / "builds").glob("*/tree/executorch")
    return copy


def list_artifacts(build: dict[str, Any]) -> dict[str, str]:
    return {name: row["sha256"] for name, row in by_name(build).items()}


def test_an_edit_of_the_copy_is_undone_and_reported(built: BuildWorld, kept_build: Kept) -> None:
    copy = find_copy(built)
    name = "backends/qualcomm/runtime/Graph.cpp"
    lost, added = "version.txt", "backends/qualcomm/runtime/QnnInterface.h"
    (copy / name).write_text((copy / name).read_text().replace("return 40", "return 41"))
    (copy / lost).unlink()
    (copy / added).write_text("#error shadows the SDK's\n")
    code, data, text = built.call("runner_checkout")
    (rebuilt,) = data["builds"]
    assert (code, rebuilt["up_to_date"]) == (0, False)
    assert rebuilt["undone"] == sorted([name, lost, added])
    assert str(built.checkout) in text
    assert list_artifacts(rebuilt) == list_artifacts(kept_build.build)
    assert (copy / name).read_bytes() == (built.checkout / name).read_bytes()
    assert (copy / lost).is_file()
    assert not (copy / added).exists()
    third = built.build("runner_checkout")
    assert (third["up_to_date"], third["undone"]) == (True, [])


@pytest.mark.nightly  # by day, tests/unit/ci/builds/test_up_to_date.py has each cause
@pytest.mark.parametrize("how", ["edited", "--clean", "options"])
def test_changed_or_stale_generated_files_in_the_source_copy_are_regenerated(
    built: BuildWorld, kept_build: Kept, how: str
) -> None:
    generated = find_copy(built) / "third-party/flatcc/lib/generated.h"
    original = generated.read_bytes()
    old = generated.with_name("from_other_options.h")
    if how == "edited":
        generated.write_text("edited")
    else:
        old.write_text("what another build left")
    words = {"edited": (), "--clean": ("--clean",), "options": ("-D", "TINY_BALLAST=OFF")}[how]
    rebuilt = built.build("runner_checkout", *words)
    assert not rebuilt["up_to_date"]
    assert generated.read_bytes() == original
    assert not old.exists()
    assert list_artifacts(rebuilt) == list_artifacts(kept_build.build)


@pytest.mark.nightly
def test_a_build_that_was_killed_leaves_nothing_of_its_copy(built: BuildWorld) -> None:
    """Only a clean build is safe if no record says what the killed build had written."""
    (record,) = (built.home / "builds").glob("*/tree.json")
    record.unlink()
    stray = find_copy(built) / "third-party/flatcc/lib/half_written.h"
    stray.write_text("half")
    assert not built.build("runner_checkout")["up_to_date"]
    assert not stray.exists()


def test_a_linker_error_names_the_checkouts_file_not_its_copy(built: BuildWorld) -> None:
    folder = built.checkout / "examples/qualcomm/executor_runner"
    source = folder / "qnn_executor_runner.cpp"
    source.write_text("int not_there();\nint main() { return not_there(); }\n")
    with (folder / "CMakeLists.txt").open("a") as stream:
        stream.write("target_compile_options(qnn_executor_runner PRIVATE -g)\n")
    code, data, _ = built.call("runner_checkout")
    assert code == 5
    assert_error_in_checkout(built, data, source)


@pytest.mark.nightly
def test_changed_options_headers_and_damaged_artifacts_cause_a_rebuild(
    world: BuildWorld,
) -> None:
    words = ("aot", "--install", "none")
    first = world.build(*words)

    def rebuild(*extra_words: str, changed: int = 0) -> str:
        build = world.build(*words, *extra_words)
        assert (build["up_to_date"], build["changed_files"]) == (False, changed), extra_words
        digest: str = build["artifacts"][0]["sha256"]
        return digest

    digests = [rebuild("--clean"), rebuild("-D", "TINY_LACKS=OFF"), rebuild()]
    world.published()[0].write_bytes(b"not it")
    digests.append(rebuild())
    with (world.folder / "qnn/include/QNN/QnnTypes.h").open("a") as stream:
        stream.write("// newer\n")
    digests.append(rebuild(changed=1))
    assert set(digests) == {first["artifacts"][0]["sha256"]}
    rebuild("-D", "CMAKE_BUILD_TYPE=Debug")


def test_builds_in_two_directories_give_the_same_bytes(built: BuildWorld, kept_build: Kept) -> None:
    other_world = BuildWorld(built.folder / "elsewhere", built.forks, dict(built.variables))
    shutil.copytree(built.checkout, other_world.checkout)
    shutil.copytree(built.folder / "qnn", other_world.folder / "sdk")
    other_world.variables |= {
        "EXECUTORCH_ROOT": str(other_world.checkout),
        "QNN_SDK_ROOT": str(other_world.folder / "sdk"),
    }
    second = other_world.build("runner_checkout")
    assert list_artifacts(second) == list_artifacts(kept_build.build)
    data = Path(by_name(kept_build.build)[BACKEND]["path"]).read_bytes()
    assert b"/build/tree/executorch/backends/qualcomm/runtime/Backend.cpp" in data
    assert os.fsencode(built.folder) not in data


@pytest.mark.nightly
@pytest.mark.skipif(bool(missing_programs("ccache")), reason=missing_programs("ccache"))
def test_ccache_is_used_and_counted_and_changes_no_byte(
    world: BuildWorld, kept_build: Kept
) -> None:
    world.variables |= {"QNN_CI_CACHE": "ccache", "CCACHE_DIR": str(world.folder / "ccache")}
    first = world.build("runner_checkout")
    second = world.build("runner_checkout", "--clean")
    # cmake's own probes of the compilers go through it too
    assert first["ccache"]["misses"] >= 3
    assert second["ccache"]["hits"] >= 3
    assert second["ccache"]["misses"] == 0
    assert kept_build.build["ccache"] is None
    assert list_artifacts(first) == list_artifacts(second) == list_artifacts(kept_build.build)


def test_a_strict_parity_check_fails_a_build_with_a_source_that_buck_does_not_list(
    built_aot: BuildWorld,
) -> None:
    """The tree has Buck files; the library is built whatever the parity check finds."""
    folder = built_aot.checkout / "backends/qualcomm"
    (folder / "BUCK").write_text('load(":targets.bzl", "define")\n\ndefine()\n')
    (folder / "targets.bzl").write_text(
        'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n\n'
        "def define():\n"
        '    runtime.cxx_library(name = "backend", srcs = ["runtime/Backend.cpp"])\n'
    )
    for mode, code, shown in (("strict", 1, True), ("off", 0, False)):
        exit_code, data, text = built_aot.call("aot", "--install", "none", "--parity", mode)
        assert exit_code == code, text
        assert data["builds"][0]["artifacts"]
        places = [str(finding) for finding in data.get("parity", {}).get("findings", [])]
        assert any("Graph.cpp" in place for place in places) is shown, mode
        assert not any("parity.toml" in place for place in places)
