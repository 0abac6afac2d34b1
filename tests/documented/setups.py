"""What a stage is set up with before a documented command: toolchains, checkouts, reports."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from filelock import FileLock
from markdown_it import MarkdownIt

from ci.report.schema import Case, Status
from ci.report.write import write_report
from provisioning.store.store import store_home
from tests.documented.pages import ROOT
from tests.documented.stage import Stage
from tests.stand_ins import (
    bad_server,
    dsp_toolchains,
    reports,
    second_ndk,
    tiny_toolchains,
    toolchains,
)

STAND_INS = ROOT / "tests" / "stand_ins"
LIBRARIES = ROOT / "tests" / "artifacts" / "elf"
LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
QUALCOMM = "backends/qualcomm"
FIRST = {
    f"{QUALCOMM}/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp", "old.cpp"])\n',
    f"{QUALCOMM}/a.cpp": "int a;\n",
    f"{QUALCOMM}/old.cpp": "int o;\n",
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.20)\nproject(tiny CXX)\n"
    f"add_library(lib {QUALCOMM}/a.cpp)\n",
}
LIMIT = """from functools import cache


@cache
def is_loud(decibels: int) -> bool:
    return decibels > 40
"""
FAR_FROM_THE_LIMIT = """from ci.judging.limit import is_loud


def test_that_loud_is_loud() -> None:
    assert is_loud(41)
    assert not is_loud(0)
"""
NEW_FILE = f"{QUALCOMM}/b.cpp"


# -- models -------------------------------------------------------------------------------------


def use_our_store(stage: Stage) -> None:
    """What these tests have fetched already, and lowered: real wheels."""
    stage.variables["QNN_CI_HOME"] = str(store_home())


def share_runner(stage: Stage) -> None:
    """What builds the runner is in one place for all stages, so that one build does; no other
    test's command builds meanwhile."""
    stage.cleanup.enter_context(FileLock(stage.shared / "runner.lock"))
    shutil.rmtree(stage.project / "ci/builds")
    (stage.project / "ci/builds").symlink_to(stage.shared / "project/ci/builds")


def shrink_suite(stage: Stage) -> None:
    """A suite of one model in one scheme, in place of the project's."""
    write_suite(stage, 'mlp = ["fp16"]')


def shrink_suite_to_resnet(stage: Stage) -> None:
    """The same with another model."""
    write_suite(stage, 'resnet = ["fp16"]')


def shrink_choices(stage: Stage) -> None:
    """A set of one choice."""
    row = '[models.mlp-shared-buffer]\npath = "mlp"\nschemes = ["8a8w"]\n'
    text = f'extends = "default"\n{row}lowering.shared_buffer = true\n'
    stage.write("manifests/policies/choices.toml", text)


def write_suite(stage: Stage, row: str, lane: str = "emulator") -> None:
    name = f"manifests/policies/{lane}.toml"
    head, mark, rest = (stage.project / name).read_text("utf-8").partition("[suite]\n")
    stage.write(name, f"{head}{mark}{row}\n\n" + rest.partition("\n\n")[2])


def write_net(stage: Stage) -> None:
    """net.py, as docs/emulator.md has it."""
    tokens = MarkdownIt("commonmark").parse((ROOT / "docs/emulator.md").read_text("utf-8"))
    (block,) = [token.content for token in tokens if token.info == "python"]
    (stage.project / "net.py").write_text(block)


def keep_artifacts(stage: Stage) -> None:
    """A program, its inputs and a list of them, from a run on the emulator."""
    line = "python -m ci test-emulator --model mlp --scheme fp16 --runner cpp --keep-artifacts kept"
    run_once(stage, line, stage.project / "kept")


def run_once(stage: Stage, line: str, result: Path) -> None:
    """A folder that a line makes, which runs once for all stages."""
    kept = stage.shared / result.name
    with FileLock(f"{kept}.lock"):
        if kept.exists():
            shutil.copytree(kept, result, symlinks=True)
            return
        ended = stage.run(line)
        assert ended.returncode == 0, ended.said
        shutil.copytree(result, kept, symlinks=True)


def take_program(stage: Stage) -> None:
    """M.pte and L.txt of that run, an empty DIR, and the runner on PATH."""
    (program,) = (stage.project / "kept").rglob("*.pte")
    (rows,) = (stage.project / "kept").rglob("input_list.txt")
    shutil.copy(program, stage.project / "M.pte")
    shutil.copy(rows, stage.project / "L.txt")
    (stage.project / "DIR").mkdir()
    built = json.loads(stage.run("python -m ci build runner --json").stdout)
    (runner,) = [Path(row["path"]) for row in built["builds"][0]["artifacts"]]
    (stage.programs / "qnn_wheel_runner").symlink_to(runner)
    composed = json.loads(stage.run("python -m provisioning env emulator --json").stdout)
    stage.variables["LD_LIBRARY_PATH"] = composed["variables"]["LD_LIBRARY_PATH"]


# -- builds -------------------------------------------------------------------------------------


def plant_toolchains(stage: Stage) -> None:
    """ExecuTorch in miniature, and directories shaped as the vendors' SDKs."""
    checkout = stage.folder / "src" / "executorch"
    shutil.copytree(STAND_INS / "tiny_executorch", checkout)
    stage.variables |= {
        "EXECUTORCH_ROOT": str(checkout),
        "QNN_SDK_ROOT": str(tiny_toolchains.make_qnn_sdk(stage.folder / "qnn")),
        "QNN_CI_LIBCXX_ROOT": str(tiny_toolchains.make_libcxx(stage.folder / "libcxx")),
        "ANDROID_NDK_ROOT": str(tiny_toolchains.make_ndk(stage.folder / "ndk")),
        "HEXAGON_SDK_ROOT": str(tiny_toolchains.make_hexagon_sdk(stage.folder / "hexagon")),
    }


def plant_second_ndk(stage: Stage) -> None:
    """The manifests that the page shows, with NDK r27 beside r26c."""
    plant_toolchains(stage)
    stage.variables |= {
        "ANDROID_NDK_ROOT": str(
            tiny_toolchains.make_ndk(stage.folder / "r27", second_ndk.REVISION)
        ),
        "QNN_CI_MANIFESTS": str(second_ndk.make_manifests(stage.folder / "manifests")),
    }


def leave_doctor_out(stage: Stage) -> None:
    """Builds as with --no-doctor, where a command has no place for that option."""
    stage.edit("ci/verbs/build.py", "doctor=not args.no_doctor", "doctor=False")


# -- provisioning -------------------------------------------------------------------------------


def serve_artifacts(stage: Stage) -> None:
    """Manifests of small artifacts, a package index and a server of them; no licence accepted."""
    world = toolchains.make_world(stage.folder / "world")
    server = stage.cleanup.enter_context(bad_server.running())
    sdk = toolchains.make_sdk(stage.folder / "sdk.zip")
    llvm = toolchains.make_llvm(stage.folder / "llvm.tar.xz")
    server.files = {"sdk.zip": sdk.read_bytes(), "llvm.tar.xz": llvm.read_bytes()}
    for name, text in (
        ("qnn-sdk", toolchains.describe_sdk([server.url("sdk.zip")], sdk)),
        ("libcxx", toolchains.describe_libcxx(server.url("llvm.tar.xz"), llvm)),
    ):
        (world.manifests / "toolchains" / f"{name}.toml").write_text(text)
    (world.manifests / "profiles.toml").write_text(toolchains.PROFILES + toolchains.AOT)
    stage.variables |= {**world.variables, "QNN_CI_BACKOFF_S": "0.01"}


def accept_licences(stage: Stage) -> None:
    stage.variables["QNN_CI_ACCEPT_LICENCE"] = "all"


def fetch_all(stage: Stage) -> None:
    """Everything that serve_artifacts serves, in the store."""
    line = "python -m provisioning fetch emulator aot --accept-licence"
    run_once(stage, line, Path(stage.variables["QNN_CI_HOME"]))


def damage_store(stage: Stage) -> None:
    """One library of the store with another byte."""
    home = Path(stage.variables["QNN_CI_HOME"])
    (library,) = home.glob("store/*/qnn-runtime/lib/*/libQnnHtp.so")
    library.chmod(0o644)
    library.write_bytes(b"damaged")


def name_github_files(stage: Stage) -> None:
    stage.variables["GITHUB_ENV"] = str(stage.project / "github.env")


# -- benchmarks, with little to measure ---------------------------------------------------------


def shrink_parity_bench(stage: Stage) -> None:
    stage.edit("tests/bench/parity.py", "PACKAGES = 370", "PACKAGES = 3")


def shrink_doctor_bench(stage: Stage) -> None:
    """One version, of which the index has a small wheel, and few files."""
    stage.edit("tests/bench/doctor.py", "FILES = 350", "FILES = 3")
    every = '("2.3.0", "2.4.0", "2.5.0", "2.6.0", "2.7.0")'
    stage.edit("tests/bench/wheels.py", every, '("1.0",)')
    index = stage.folder / "index"
    index.mkdir()
    name = toolchains.WHEEL.replace("tiny_qnn", "onnxruntime_qnn")
    files = {"onnxruntime_qnn/libQnnHtp.so": (LIBRARIES / "libx86.so").read_bytes()}
    toolchains.make_wheel(index / name, "onnxruntime-qnn", files)
    stage.variables |= {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": "/dev/null",
    }


def shrink_provisioning_bench(stage: Stage) -> None:
    """Small wheels in place of QNN's, one round."""
    stage.edit("tests/bench/provisioning.py", "\nROUNDS = 5", "\nROUNDS = 1")
    stage.edit("tests/bench/provisioning.py", "WARM_ROUNDS = 10", "WARM_ROUNDS = 1")
    serve_artifacts(stage)
    folder = stage.folder / "world"
    for name, library in (("", "libx86.so"), ("-aarch64", "libplaceholder_for_android.so")):
        package = f"tiny-qnn{name}"
        files = {"tiny_qnn/libQnnHtp.so": (LIBRARIES / library).read_bytes()}
        wheel = folder / "index" / toolchains.WHEEL.replace("tiny_qnn", package.replace("-", "_"))
        text = toolchains.describe_wheel(toolchains.make_wheel(wheel, package, files))
        text = text.replace('"qnn-runtime"', f'"qnn-runtime{name}"')
        text = text.replace('"tiny-qnn"', f'"{package}"')
        (folder / f"manifests/toolchains/qnn-runtime{name}.toml").write_text(text)


# -- tests, and mutants of one small function ---------------------------------------------------


def shrink_judging(stage: Stage) -> None:
    """A package of one function in the gate's place, and a test that leaves its limit out."""
    package = stage.project / "ci" / "emulator" / "judging"
    shutil.rmtree(package)
    tests = stage.project / "tests" / "unit" / "ci" / "emulator"
    plant(package, {"__init__.py": "", "limit.py": LIMIT})
    plant(tests, {"test_limit.py": FAR_FROM_THE_LIMIT})


def use_one_worker(stage: Stage) -> None:
    """A process for the one test, not three."""
    stage.edit("noxfile.py", '"-n3"', '"-n1"')


# -- parity -------------------------------------------------------------------------------------


def clone_executorch(stage: Stage) -> None:
    """~/executorch: a clone whose own commit adds a file to CMake alone."""
    origin = stage.folder / "origin"
    plant(origin, FIRST)
    git(origin, "init", "-q", "-b", "main")
    commit(origin, "first")
    clone = stage.home / "executorch"
    git(stage.home, "clone", "-q", str(origin), str(clone))
    files = {NEW_FILE: "int b;\n"}
    files["CMakeLists.txt"] = FIRST["CMakeLists.txt"].replace("a.cpp", f"a.cpp\n  {NEW_FILE}")
    plant(clone, files)
    commit(clone, "second")


def clone_beside(stage: Stage) -> None:
    """The same, as ``executorch`` in the working directory."""
    clone_executorch(stage)
    (stage.home / "executorch").rename(stage.project / "executorch")


def enter_executorch(stage: Stage) -> None:
    """The working directory is a checkout of ExecuTorch, and the project elsewhere."""
    clone_executorch(stage)
    stage.variables["PYTHONPATH"] = str(stage.project)
    stage.directory = stage.home / "executorch"


def plant(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def git(folder: Path, *words: str) -> None:
    """Run git as nobody in particular."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


# -- signing ------------------------------------------------------------------------------------


def give_signer(stage: Stage) -> None:
    """SDKs with what is signed, the stand-in signer, and a direct mode build."""
    inputs = dsp_toolchains.make_inputs(stage.folder / "signing")
    sdk = dsp_toolchains.make_signer_sdk(stage.folder / "6.4.0.2")
    shutil.copytree(inputs["build"], stage.project / "build-direct")
    stage.variables |= {
        "QNN_SDK_ROOT": str(inputs["qnn"]),
        "HEXAGON_TOOLS_ROOT": str(inputs["tools"]),
        "HEXAGON_SDK_ROOT": str(sdk),
        "STAND_IN_KEYS": str(sdk / "tools" / "elfsigner"),
    }


def sign(stage: Stage) -> None:
    """``signed/``, as the signing page leaves it."""
    run_once(stage, "python -m ci sign --lpai-arch v6", stage.project / "signed")


# -- devices and reports ------------------------------------------------------------------------


def attach_phone(stage: Stage) -> None:
    """A phone behind adb: a directory."""
    phone = stage.folder / "phone"
    (phone / "data/local/tmp/model").mkdir(parents=True)
    (phone / "properties").write_text("ro.soc.model=SM8650\nro.build.version.sdk=35\n")
    shutil.copy(STAND_INS / "adb", stage.programs / "adb")
    stage.variables["ADB_DEVICE"] = str(phone)


def give_runner(stage: Stage) -> None:
    """A runner on the phone that says what it was started with."""
    runner = stage.folder / "phone/data/local/tmp/model/qnn_executor_runner"
    runner.write_text('#!/bin/sh\necho "searched $LD_LIBRARY_PATH and $ADSP_LIBRARY_PATH for $*"\n')
    runner.chmod(0o755)


def stage_device(stage: Stage) -> None:
    """A directory as it is pushed to a device, of one library."""
    (stage.project / "out/device").mkdir(parents=True)
    shutil.copy(LIBRARIES / "libx86.so", stage.project / "out/device/libQnnHtp.so")


def record_report(stage: Stage) -> None:
    """A report with one case that passed."""
    case = Case(model="mlp", scheme="fp16", soc="SM8650", status=Status.PASSED, sqnr_db=61.2)
    write_report(reports.make_report([case]), stage.project / "reports/test_emulator")
