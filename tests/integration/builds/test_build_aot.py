"""The AOT adaptor of ExecuTorch in miniature is built for real, unless something is amiss."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.builds.worlds import (
    BACKEND,
    NEEDS,
    QUANTIZED,
    ROOT,
    SUFFIX,
    TINY,
    WITHOUT_TORCH,
    BuildWorld,
    Kept,
    assert_error_in_checkout,
    index_artifacts,
    list_files,
    read_published,
    replace_text,
)
from tests.stand_ins.repository import Checkout, make_checkout
from tests.stand_ins.tiny_toolchains import make_qnn_sdk
from tests.stand_ins.waits import wait_until
from tests.workflows.commands import Heard

pytestmark = NEEDS


def test_the_adaptor_takes_the_suffix_of_its_python_and_leaves_the_checkout_clean(
    built_aot: BuildWorld, kept_aot: Kept
) -> None:
    row, *other_rows = kept_aot.build["artifacts"]
    assert row["name"] == f"PyQnnManagerAdaptor{SUFFIX}"
    assert [other_row["name"] for other_row in other_rows] == [BACKEND, QUANTIZED]
    assert row["elf"]["machine"] == "x86-64"
    assert row["findings"] == []
    assert list_files(built_aot.checkout) == list_files(TINY)


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


# -- what is not there is told before a compiler starts ----------------------------------------


@pytest.mark.parametrize(
    ("target", "variable", "message"),
    [
        ("aot", "QNN_SDK_ROOT", "`python -m ci fetch qnn-sdk:base,headers,host`"),
        ("android", "ANDROID_NDK_ROOT", "`python -m ci fetch android-ndk`"),
        ("linux", "EXECUTORCH_ROOT", "`python -m ci fetch executorch:runner`"),
        ("direct", "HEXAGON_SDK_ROOT", "`python -m ci fetch hexagon-sdk android-ndk`"),
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
    assert "also" not in data["why"]
    bare = make_bare_python(world, "yaml.py")
    sdk = world.variables.pop("QNN_SDK_ROOT")
    missing_sdk = r"^profile aot lacks qnn-sdk .* \(and 3 more\)$"
    data = world.refuse(3, missing_sdk, "aot", "--python", bare)
    assert "`python -m ci fetch qnn-sdk:base,headers,host`" in data["fix"]
    for lack in (
        "lacks 2 of 6 submodules: ",
        "has no module torch, torchgen; fix: ",
        "executorch is not installed for ",
    ):
        assert data["why"].count(f"{lack}") == 1
    world.variables["QNN_SDK_ROOT"] = sdk
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


def test_submodules_that_a_checkout_lacks_are_there_after_the_command_in_the_fix(
    world: BuildWorld,
) -> None:
    paths = ("third-party/json", "third-party/gflags")
    for path in paths:
        shutil.rmtree(world.checkout / path)
        make_checkout(world.folder / Path(path).name, {"README": "stands in"})
    (world.checkout / ".gitmodules").unlink()
    checkout = Checkout(world.checkout)
    checkout.git("init", "-q", "-b", "main")
    for path in paths:
        checkout.git("submodule", "--quiet", "add", str(world.folder / Path(path).name), path)
    checkout.commit()
    checkout.git("submodule", "--quiet", "deinit", "--force", "--all")
    for path in paths:
        assert not [*(world.checkout / path).iterdir()]
    data = world.refuse(3, "lacks 2 of 6 submodules: ", "aot", "--check")
    local = {**os.environ, "GIT_ALLOW_PROTOCOL": "file"}
    subprocess.run(["bash", "-c", data["fix"]], check=True, env=local)
    assert world.call("aot", "--check")[0] == 0


def test_names_that_an_sdk_lacks_are_in_the_newer_one_that_the_fix_asks_for(
    world: BuildWorld,
) -> None:
    source = world.checkout / "backends/qualcomm/runtime/Graph.cpp"
    source.write_text(
        f"{source.read_text()}static const int kSlc = QNN_HTP_GRAPH_OPTIMIZATION_TYPE_NEW;\n"
    )
    newer = make_qnn_sdk(world.folder / "newer")
    with (newer / "include/QNN/QnnTypes.h").open("a") as header:
        header.write("#define QNN_HTP_GRAPH_OPTIMIZATION_TYPE_NEW 1\n")
    data = world.refuse(3, "lack QNN_HTP_GRAPH_OPTIMIZATION_TYPE_NEW", "runner_checkout", "--check")
    assert data["fix"].startswith("pass a newer SDK with --sdk")
    assert world.call("runner_checkout", "--check", "--sdk", str(newer))[0] == 0


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
    assert QUANTIZED not in index_artifacts(build)
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
    with pipe.open("w"):  # opened when the compiler reads it
        process.send_signal(number)
        _, text = process.communicate()
    assert process.returncode == 130
    assert "interrupted" in text
    assert "Traceback" not in text
    wait_until(
        lambda: (
            not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _runs(path, world.folder)]
        )
    )
    assert read_published(world) == published
    assert not (world.checkout / "backends/qualcomm/python").exists()
    source.write_text(original)
    assert not world.build(*words)["up_to_date"]
    assert read_published(world) == published
    assert (world.checkout / "backends/qualcomm/python").is_dir()


def _runs(cmdline: Path, program: Path) -> bool:
    try:
        return os.fsencode(program) in cmdline.read_bytes()
    except OSError:
        return False


# -- a build is a function of its inputs -------------------------------------------------------


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
