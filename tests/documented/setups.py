"""What a stage is set up with before a documented command: toolchains, checkouts, reports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from filelock import FileLock
from markdown_it import MarkdownIt
from msgspec import structs

from ci.cases.policy import read_emulator_policy
from ci.cases.spec import select_cases
from ci.device.bundle import stage as make_bundle
from ci.gate.schema import Plan
from ci.models.schemes import ONNX
from ci.report.schema import Case, Footprint, Status
from ci.report.write import write_report
from ci.verbs.emulate import list_planned, take_shard
from provisioning.console.progress import Progress
from provisioning.store.store import store_home
from tests.documented.pages import ROOT
from tests.documented.stage import Stage
from tests.mutants.packages import PACKAGES
from tests.stand_ins import (
    android_apps,
    bad_server,
    dsp_toolchains,
    elf_edits,
    reports,
    second_ndk,
    shards,
    statements,
    tiny_toolchains,
    toolchains,
)
from tests.stand_ins.lanes import keep_case
from tests.stand_ins.lowered import make_binary, make_program
from tests.stand_ins.reports import make_report
from tests.stand_ins.repository import Checkout, make_checkout

STAND_INS = ROOT / "tests" / "stand_ins"
LIBRARIES = ROOT / "tests" / "artifacts" / "elf"
QUALCOMM = "backends/qualcomm"
FIRST = {
    f"{QUALCOMM}/BUCK": 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
    'runtime.cxx_library(name = "lib", srcs = ["a.cpp"])\n',
    f"{QUALCOMM}/a.cpp": "int a;\n",
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.20)\nproject(executorch CXX)\n"
    f"add_library(lib {QUALCOMM}/a.cpp)\n",
}
NEW_FILE = f"{QUALCOMM}/b.cpp"
LIMIT = "def is_loud(decibels: int) -> bool:\n    return decibels > 40\n"
FAR_FROM_THE_LIMIT = """from ci.judging.limit import is_loud


def test_that_loud_is_loud() -> None:
    assert is_loud(41)
    assert not is_loud(0)
"""
MODEL = "ci/models/suite/mlp.py"
COMMIT = "example/executorch-qnn-ci@" + "0123456789" * 4


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


def shrink_suites(stage: Stage) -> None:
    """One model in one scheme, and one lowering choice, in place of the project's."""
    for lane in ("emulator", "onnx"):
        write_suite(stage, 'mlp = ["fp16"]', lane)
    row = '[models.mlp-shared-buffer]\npath = "mlp"\nschemes = ["8a8w"]\n'
    text = f'extends = "default"\n{row}lowering.shared_buffer = true\n'
    stage.write("manifests/policies/choices.toml", text)


def write_suite(stage: Stage, rows: str, lane: str = "emulator") -> None:
    name = f"manifests/policies/{lane}.toml"
    head, mark, rest = (stage.project / name).read_text("utf-8").partition("[suite]\n")
    stage.write(name, f"{head}{mark}{rows}\n\n" + rest.partition("\n\n")[2])


def write_models(stage: Stage) -> None:
    """Write net.py of docs/guides/pytorch.md, net.onnx of one node, and a report."""
    (stage.project / "net.py").write_text(read_block("docs/guides/pytorch.md"))
    record_report(stage)
    try:
        import onnx
    except ModuleNotFoundError:
        return
    form = (onnx.TensorProto.FLOAT, [1, 8, 4])
    ends = [onnx.helper.make_tensor_value_info(name, *form) for name in "xy"]
    node = onnx.helper.make_node("Sigmoid", ["x"], ["y"], name="node")
    graph = onnx.helper.make_graph([node], "graph", ends[:1], ends[1:])
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, stage.project / "net.onnx")


def read_block(page: str) -> str:
    """The one block of Python that a page has."""
    tokens = MarkdownIt("commonmark").parse((ROOT / page).read_text("utf-8"))
    (block,) = [token.content for token in tokens if token.info == "python"]
    return block


def leave_logs(stage: Stage) -> None:
    """Logs of runs that lacked libc++."""
    line = (
        "Cannot Open QNN library libQnnHtp.so, with error: libc++.so.1: cannot open shared object"
    )
    for name in ("build.log", "logcat.txt"):
        (stage.project / name).write_text(f"{line} file: No such file or directory\n", "utf-8")


def leave_config(stage: Stage) -> None:
    """The config.json of Llama 3.2 1B, as far as sizes go."""
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }
    (stage.project / "config.json").write_text(json.dumps(config), "utf-8")


def leave_context(stage: Stage) -> None:
    from tests.qnn_provider.contexts import GRAPH, write_context

    binary = make_binary(soc=("SM8750", 69, 79), graphs=(GRAPH,))
    write_context(stage.project, binary).rename(stage.project / "model_ctx.onnx")


def leave_bundle(stage: Stage) -> None:
    """A runner for this machine, libraries by the names of an emulator's, and a bundle of them."""
    runtime = stage.project / "runtime"
    runtime.mkdir()
    for name in ("libQnnHtp.so", "libQnnSystem.so"):
        shutil.copyfile("/bin/true", runtime / name)
    runner = stage.project / "qnn_executor_runner"
    shutil.copyfile("/bin/true", runner)
    make_bundle(["SM8650"], runner, [runtime], stage.project / "bundle", progress=Progress())


def pull_outputs(stage: Stage) -> None:
    """What a device gave for the kept programs: the outputs that the run kept."""
    leave_outputs(stage)
    for outputs in (stage.project / "kept").glob("*/outputs"):
        shutil.copytree(outputs, stage.project / "results" / outputs.parent.name / "outputs")


def leave_program(stage: Stage) -> None:
    (stage.project / "model.pte").write_bytes(make_program())


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
        run_well(stage, line)
        shutil.copytree(result, kept, symlinks=True)


def run_well(stage: Stage, line: str, code: int = 0) -> str:
    """What a line of the set-up prints."""
    ended = stage.run(line)
    assert ended.returncode == code, ended.said
    return ended.stdout


def take_program(stage: Stage) -> None:
    """M.pte and L.txt of that run, an empty DIR, and the runner on PATH."""
    (program,) = (stage.project / "kept").rglob("*.pte")
    (rows,) = (stage.project / "kept").rglob("input_list.txt")
    shutil.copy(program, stage.project / "M.pte")
    shutil.copy(rows, stage.project / "L.txt")
    (stage.project / "DIR").mkdir()
    built = json.loads(run_well(stage, "python -m ci build runner --json"))
    (runner,) = [Path(row["path"]) for row in built["builds"][0]["artifacts"]]
    (stage.programs / "qnn_wheel_runner").symlink_to(runner)
    composed = json.loads(run_well(stage, "python -m provisioning env emulator --json"))
    stage.variables["LD_LIBRARY_PATH"] = composed["variables"]["LD_LIBRARY_PATH"]


# -- a repository that knows nothing of this project --------------------------------------------


def enter_repository(stage: Stage) -> None:
    """A repository with a ``ci`` of its own."""
    files = {"ci/__init__.py": "raise SystemExit('not this one')\n"}
    stage.directory = make_checkout(stage.home / "a repository", files).root


def initialise(stage: Stage) -> None:
    use_our_store(stage)
    enter_repository(stage)
    run_well(stage, f"qnn-ci init --uses {COMMIT}")


def break_model(stage: Stage) -> None:
    """A green run, whose report is kept, and a red one."""
    initialise(stage)
    run_well(stage, "qnn-ci test-emulator --policy qnn.toml")
    shutil.copytree(stage.directory / "reports/test_emulator", stage.directory / "before")
    model = stage.directory / "qnn_model.py"
    model.write_text(model.read_text("utf-8").replace("Linear(32, 8)", "Linear(31, 8)"))
    run_well(stage, "qnn-ci test-emulator --policy qnn.toml", code=1)


def write_graph(stage: Stage) -> None:
    """A graph that QNN computes rightly."""
    text = "x = input(2, 8, 16)\ny = relu(x)\nreturn y\n"
    (stage.project / "graph.txt").write_text(text)


def leave_reports(stage: Stage) -> None:
    """Two reports of a case that passed, of which the newer one spills more."""
    for folder, spill in (("before", 400), ("reports/test_emulator", 800)):
        footprint = Footprint(spill_bytes=spill)
        case = Case(
            model="mlp", scheme="fp16", soc="SM8650", status=Status.PASSED, footprint=footprint
        )
        write_report(make_report([case]), stage.project / folder)


def serve_wheel(stage: Stage) -> None:
    """An index with the wheel, which is built of the checkout; torch stays away."""
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "index", "./project"]
    subprocess.run(words, cwd=stage.folder, check=True, timeout=300)
    stage.variables["PIP_FIND_LINKS"] = str(stage.folder / "index")


def hold_wheel(stage: Stage) -> None:
    """A wheel with a skel whose build is not listed."""
    name = "libQnnHtpV75Skel.so"
    data = bytearray(elf_edits.named(LIBRARIES / "libplaceholder_for_hexagon.so", name))
    elf_edits.set_build("v2.49.40.260810104044", "v2.11.40.230710101010")(data)
    with zipfile.ZipFile(stage.folder / "qnn.whl", "w") as wheel:
        wheel.writestr(f"qnn/{name}", bytes(data))


def build_app(stage: Stage) -> None:
    """An APK, and sources, with a set of libraries for two Hexagon versions."""
    libraries = android_apps.make_set() | android_apps.make_set(hexagon=0x79)
    android_apps.write_apk(stage.project / "app.apk", libraries)
    android_apps.write_sources(stage.project / "MyApp", libraries)


# -- builds -------------------------------------------------------------------------------------


def plant_toolchains(stage: Stage) -> None:
    """ExecuTorch in miniature, and directories shaped as the vendors' SDKs."""
    checkout = stage.folder / "src" / "executorch"
    shutil.copytree(STAND_INS / "tiny_executorch", checkout)
    stage.variables |= {
        "EXECUTORCH_ROOT": str(checkout),
        "QNN_SDK_ROOT": str(tiny_toolchains.make_qnn_sdk(stage.folder / "qnn")),
        "QNN_CI_LIBCXX_ROOT": str(tiny_toolchains.make_libcxx(stage.folder / "libcxx")),
        "HEXAGON_SDK_ROOT": str(tiny_toolchains.make_hexagon_sdk(stage.folder / "hexagon")),
    }
    if not tiny_toolchains.missing_programs("clang", "ld.lld"):  # the recipes that use it need them
        stage.variables["ANDROID_NDK_ROOT"] = str(tiny_toolchains.make_ndk(stage.folder / "ndk"))


def plant_second_ndk(stage: Stage) -> None:
    """The manifests that the page shows, with NDK r27 beside r26c."""
    ndk = tiny_toolchains.make_ndk(stage.folder / "r27", second_ndk.REVISION)
    stage.variables["ANDROID_NDK_ROOT"] = str(ndk)
    manifests = second_ndk.make_manifests(stage.folder / "manifests")
    stage.variables["QNN_CI_MANIFESTS"] = str(manifests)


def leave_doctor_out(stage: Stage) -> None:
    """Builds as with --no-doctor: the stand-ins for SDKs hold no libraries."""
    stage.edit("ci/verbs/build.py", "doctor=not args.no_doctor", "doctor=False")


# -- provisioning -------------------------------------------------------------------------------


def serve_artifacts(stage: Stage) -> None:
    """Manifests of small artifacts, a package index and a server of them; no licence accepted."""
    server = stage.cleanup.enter_context(bad_server.running())
    (stage.folder / "world").mkdir()
    world = toolchains.serve_world(stage.folder / "world", server)
    shutil.copy(stage.folder / "world" / "sdk.zip", stage.folder)
    stage.variables |= {**world.variables, "QNN_CI_BACKOFF_S": "0.01"}
    stage.variables["GITHUB_ENV"] = str(stage.project / "github.env")


def accept_licences(stage: Stage) -> None:
    stage.variables["QNN_CI_ACCEPT_LICENCE"] = "all"


def fetch_all(stage: Stage) -> None:
    """Everything that serve_artifacts serves, in the store."""
    line = "python -m provisioning fetch emulator aot --accept-licence"
    run_once(stage, line, Path(stage.variables["QNN_CI_HOME"]))


def damage_store(stage: Stage) -> None:
    """One library of the store with other bytes."""
    home = Path(stage.variables["QNN_CI_HOME"])
    (library,) = home.glob("store/*/qnn-runtime/lib/*/libQnnHtp.so")
    library.chmod(0o644)
    library.write_bytes(b"damaged")


# -- tests, and mutants of one small function ---------------------------------------------------


def shrink_bench(stage: Stage) -> None:
    stage.edit("tests/bench/parity.py", "PACKAGES = 370", "PACKAGES = 3")


def shrink_judging(stage: Stage) -> None:
    """A package of one function in the gate's place, and a test that leaves its limit out."""
    shutil.rmtree(stage.project / "ci/judging")
    plant(stage.project / "ci/judging", {"__init__.py": "", "limit.py": LIMIT})
    tests, *others = PACKAGES["ci/judging"]
    for name in others:
        (stage.project / name).mkdir(parents=True)
    plant(stage.project / tests, {"test_limit.py": FAR_FROM_THE_LIMIT})


def plant(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")


# -- parity -------------------------------------------------------------------------------------


def clone_executorch(stage: Stage) -> None:
    """~/executorch: a clone whose own commit adds a file to CMake alone."""
    origin = make_checkout(stage.folder / "origin", FIRST)
    origin.git("clone", "-q", ".", str(stage.home / "executorch"))
    lists = FIRST["CMakeLists.txt"].replace("a.cpp", f"a.cpp\n  {NEW_FILE}")
    clone = Checkout(stage.home / "executorch")
    clone.commit({NEW_FILE: "int b;\n", "CMakeLists.txt": lists})


def clone_beside(stage: Stage) -> None:
    """The same, also as ``executorch`` in the working directory."""
    clone_executorch(stage)
    shutil.copytree(stage.home / "executorch", stage.project / "executorch")


def enter_executorch(stage: Stage) -> None:
    """The working directory is a checkout of ExecuTorch, and the project elsewhere."""
    clone_executorch(stage)
    stage.variables["PYTHONPATH"] = str(stage.project)
    stage.directory = stage.home / "executorch"


# -- signing, devices, images -------------------------------------------------------------------


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


def attach_phone(stage: Stage) -> None:
    """A phone behind adb, with a runner that prints how it was started; what is pushed to it."""
    phone = stage.folder / "phone"
    runner = phone / "data/local/tmp/model/qnn_executor_runner"
    runner.parent.mkdir(parents=True)
    runner.write_text('#!/bin/sh\necho "searched $LD_LIBRARY_PATH and $ADSP_LIBRARY_PATH for $*"\n')
    runner.chmod(0o755)
    (phone / "properties").write_text("ro.soc.model=SM8650\nro.build.version.sdk=35\n")
    shutil.copy(STAND_INS / "adb", stage.programs / "adb")
    stage.variables["ADB_DEVICE"] = str(phone)
    (stage.project / "out/device").mkdir(parents=True)
    shutil.copy(LIBRARIES / "libx86.so", stage.project / "out/device/libQnnHtp.so")


def have_no_engine(stage: Stage) -> None:
    stage.variables["DOCKER_HOST"] = f"unix://{stage.folder}/no.sock"


# -- plans and reports --------------------------------------------------------------------------


def branch_off(stage: Stage) -> None:
    """On a branch of the project, a commit that changes one model."""
    project = Checkout(stage.project)
    shutil.copy2(ROOT / ".gitignore", stage.project)
    project.commit()
    project.git("checkout", "-q", "-b", "change")
    stage.write(MODEL, (stage.project / MODEL).read_text("utf-8") + "\n# one more line\n")
    project.commit()
    stage.variables["GITHUB_EVENT_NAME"] = "pull_request"


def plan_two_cases(stage: Stage) -> None:
    """A plan of two cases in two shards."""
    write_suite(stage, 'mlp = ["fp16", "8a8w"]')
    branch_off(stage)
    planned = stage.project / "planned"
    run_once(stage, "qnn-ci plan --head HEAD --out planned/plan.json", planned)
    shutil.copy(planned / "plan.json", stage.project)


def leave_outputs(stage: Stage) -> None:
    """What a session keeps of a case."""
    keep_case(stage.project)


def leave_evidence(stage: Stage) -> None:
    """A program with the statement of its case, and a policy."""
    (stage.project / "model.pte").write_bytes(statements.PROGRAM)
    statement = json.dumps(statements.state(statements.make()))
    (stage.project / "evidence.intoto.json").write_text(statement)
    (stage.project / "qnn.toml").write_text('extends = "default"\n')


def leave_results(stage: Stage) -> None:
    """What the jobs of that plan leave when all is well."""
    plan_two_cases(stage)
    emulator, onnx = read_emulator_policy(), read_emulator_policy(lane="onnx")
    others = select_cases(onnx.suite, ["SM8650"], lane=ONNX)
    file = stage.project / "plan.json"
    for job in msgspec.json.decode(file.read_bytes(), type=Plan).jobs:
        folder = stage.project / f"results/result-{job.id}"
        place = folder / "reports" / job.session
        place.mkdir(parents=True)
        (folder / "exit-code.txt").write_text("0\n")
        if job.report == "junit.xml":
            rows = (
                '<testsuite tests="1" failures="0"><testcase classname="a" name="b"/></testsuite>'
            )
            (place / "junit.xml").write_text(f"<testsuites>{rows}</testsuites>")
        elif job.shard:
            part, mark = take_shard(list_planned(file), job.shard, emulator, "python")
            judged = reports.make_judged(job.session, part, emulator.describe_limits(part))
            write_report(structs.replace(judged, shard=mark), place)
        elif job.report:
            limits = onnx.describe_limits(others)
            write_report(reports.make_judged(job.session, others, limits), place)
    needs = {"plan": {"result": "success"}, "session": {"result": "success"}}
    (stage.project / "needs.json").write_text(json.dumps(needs))


def record_shards(stage: Stage) -> None:
    cases = shards.make_cases("mlp fp16 SM8650", "lstm 8a8w SM8650", "mlp 8a8w SM8650")
    for index, report in enumerate(shards.make_shards(cases, 2), 1):
        write_report(report, stage.project / f"shard-{index}")


def record_report(stage: Stage) -> None:
    """A report with one case that passed."""
    case = Case(model="mlp", scheme="fp16", soc="SM8650", status=Status.PASSED, sqnr_db=61.2)
    write_report(reports.make_report([case]), stage.project / "reports/test_emulator")
