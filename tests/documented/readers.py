"""What the reader of a page has before a command: models, SDKs, logs, a repository.

Each function puts files where the page says that they are, below the directory in which the reader
types or below the home. SDKs and what is on a device are stand-ins: small files of the same names.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import get_type_hints

import msgspec
from markdown_it import MarkdownIt
from msgspec import structs

from ci.cases.policy import read_emulator_policy
from ci.cases.spec import select_cases
from ci.gate.schema import Plan
from ci.models.schemes import ONNX
from ci.report.schema import (
    Case,
    DeviceFigures,
    Estimate,
    Footprint,
    JudgementFacts,
    OnDeviceFacts,
    ProgramFacts,
    Simulation,
    Status,
)
from ci.report.write import write_report
from ci.verbs.lanes.emulator import list_planned, take_shard
from tests.build import genie, litert_bundles
from tests.documented.pages import ROOT
from tests.documented.place import CACHE, Place
from tests.stand_ins import (
    android_apps,
    dsp_toolchains,
    elf_edits,
    litert,
    reports,
    shards,
    statements,
    tiny_toolchains,
    toolchains,
)
from tests.stand_ins.lowered import make_binary, make_program
from tests.stand_ins.repository import Checkout, make_checkout

LIBRARIES = ROOT / "tests" / "artifacts" / "elf"
TINY = ROOT / "tests" / "stand_ins" / "tiny_executorch"
PLACEHOLDER_BUILD, BUILD = "v2.49.40.260810104044", "v2.37.0.250724175447"
HEXAGONS = ("69", "75", "79")
QUALCOMM = "backends/qualcomm"
NEW_FILE = f"{QUALCOMM}/b.cpp"
BOTH_SYSTEMS = {
    f"{QUALCOMM}/BUCK": 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
    'runtime.cxx_library(name = "lib", srcs = ["a.cpp"])\n',
    f"{QUALCOMM}/a.cpp": "int a;\n",
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.20)\nproject(executorch CXX)\n"
    f"add_library(lib {QUALCOMM}/a.cpp)\n",
}
JUNIT = (
    '<testsuites><testsuite tests="1" failures="0"><testcase classname="a" name="b"/>'
    "</testsuite></testsuites>"
)
MISSING = "Cannot Open QNN library libQnnHtp.so, with error: libc++.so.1: cannot open shared object"


# -- models -------------------------------------------------------------------------------------


def net(place: Place) -> None:
    """net.py, as docs/guides/pytorch.md shows it."""
    (place.directory / "net.py").write_text(read_blocks("docs/guides/pytorch.md", "python")[0])


def red_net(place: Place) -> None:
    """red.py, as docs/guides/mend.md shows it."""
    (place.directory / "red.py").write_text(read_blocks("docs/guides/mend.md", "python")[0])


def mixed_net(place: Place) -> None:
    """net.py and qnn.toml, as docs/guides/precision.md shows them."""
    page = "docs/guides/precision.md"
    (place.directory / "net.py").write_text(read_blocks(page, "python")[0])
    (place.directory / "qnn.toml").write_text(read_blocks(page, "toml")[0])


def read_blocks(page: str, language: str) -> list[str]:
    """The blocks of a language on a page."""
    tokens = MarkdownIt("commonmark").parse((ROOT / page).read_text("utf-8"))
    return [token.content for token in tokens if token.info == language]


def onnx_net(place: Place) -> None:
    """net.onnx, of one node."""
    import onnx

    form = (onnx.TensorProto.FLOAT, [1, 8, 4])
    ends = [onnx.helper.make_tensor_value_info(name, *form) for name in "xy"]
    node = onnx.helper.make_node("Sigmoid", ["x"], ["y"], name="node")
    graph = onnx.helper.make_graph([node], "graph", ends[:1], ends[1:])
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, place.directory / "net.onnx")


def red_onnx(place: Place) -> None:
    """red.onnx, an average pool whose last window extends beyond the edge."""
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,8,14,14] x) => (float[1,8,7,7] y)
        { y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x) }"""
    onnx.save(onnx.parser.parse_model(text), place.directory / "red.onnx")


def red_tflite(place: Place) -> None:
    """red.tflite, a product with a constant without a batch in front of a sigmoid, in float."""
    from ci.litert.suite import Net

    net, shape = Net(), (2, 16, 64)
    source = net.add_tensor(shape, "x")
    product = net.call("MUL", (source, net.draw(16, 64, scale=1.0)), shape, "MulOptions")
    net.end([source], [net.call("LOGISTIC", (product,), shape)])
    (place.directory / "red.tflite").write_bytes(net.pack())


def quantized_tflite(place: Place) -> None:
    """wide_int8.tflite, which 8 bits make wrong, its float model and the policy that names both."""
    from tests.build.litert_nets import make_wide_channel, write_quantized

    quantized, plain = write_quantized(place.directory, make_wide_channel)
    for path in (quantized, quantized.with_suffix(".npz")):
        path.rename(path.with_stem("wide_int8"))
    plain.rename(plain.with_name("wide.tflite"))
    (place.directory / "quantized.toml").write_text(read_blocks("docs/guides/mend.md", "toml")[0])


def tflite_net(place: Place) -> None:
    """net.tflite, a file of the reader."""
    red_tflite(place)
    (place.directory / "red.tflite").rename(place.directory / "net.tflite")


def wrong_graph(place: Place) -> None:
    """graph.txt, as docs/findings/faults.md shows it."""
    (place.directory / "graph.txt").write_text(read_blocks("docs/findings/faults.md", "text")[0])


def program(place: Place) -> None:
    (place.directory / "model.pte").write_bytes(make_program())


def context_model(place: Place) -> None:
    from tests.qnn_provider.contexts import GRAPH, write_context

    binary = make_binary(soc=("SM8750", 69, 79), graphs=(GRAPH,))
    write_context(place.directory, binary).rename(place.directory / "model_ctx.onnx")


def evidence(place: Place) -> None:
    """A program with the statement of its case, and a policy."""
    (place.directory / "model.pte").write_bytes(statements.PROGRAM)
    statement = json.dumps(statements.state(statements.make()))
    (place.directory / "evidence.intoto.json").write_text(statement)
    (place.directory / "qnn.toml").write_text('extends = "default"\n')


def llama_files(place: Place) -> None:
    """Of Llama 3.2 1B, config.json; weights and tokenizer are not ours to ship."""
    config = (
        '{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, '
        '"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, '
        '"vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": true}'
    )
    (place.directory / "config.json").write_text(config)


# -- a team's repository ------------------------------------------------------------------------


def broken_model(place: Place) -> None:
    """The report of the green run in before/, and the change that the page describes."""
    folder = place.directory
    (folder / "before").mkdir()
    shutil.copy(folder / "reports/test_emulator/report.json", folder / "before")
    roots = (folder, folder.parent)  # init writes to the root of the repository
    model = next(root / "qnn_model.py" for root in roots if (root / "qnn_model.py").is_file())
    model.write_text(model.read_text("utf-8").replace("Linear(32, 8)", "Linear(31, 8)"))


def two_reports(place: Place) -> None:
    """Two reports of a case that passed, of which the newer one spills more."""
    for folder, spill in (("before", 400), ("reports/test_emulator", 800)):
        case = Case(
            model="mlp",
            scheme="fp16",
            soc="SM8650",
            judgement=JudgementFacts(status=Status.PASSED),
            program=ProgramFacts(footprint=Footprint(spill_bytes=spill)),
        )
        write_report(reports.make_report([case]), place.directory / folder)


def report(place: Place) -> None:
    """A report with one case that passed."""
    case = Case(
        model="mlp",
        scheme="fp16",
        soc="SM8650",
        judgement=JudgementFacts(status=Status.PASSED, sqnr_db=61.2),
    )
    write_report(reports.make_report([case]), place.directory / "reports/test_emulator")


def timed_report(place: Place) -> None:
    """A report of five models with predicted cycles and a device's times."""
    cases = []
    for number in range(1, 6):
        figures = dict.fromkeys(get_type_hints(Simulation), 0) | {"costs": ()}
        figures |= {"soc": "QCS9100", "clock_mhz": 1497.6, "cycles": 1_000_000 * number}
        case = Case(
            model=f"net{number}",
            scheme="fp16",
            soc="SM8450",
            judgement=JudgementFacts(status=Status.PASSED),
            program=ProgramFacts(estimate=Estimate(simulation=Simulation(**figures))),
            device=OnDeviceFacts(figures=DeviceFigures(starts=1, runs=9, p50_ms=2.5 * number)),
        )
        cases.append(case)
    write_report(reports.make_report(cases), place.directory / "reports" / "test_emulator")


def two_shards(place: Place) -> None:
    cases = shards.make_cases("mlp fp16 SM8650", "lstm 8a8w SM8650", "mlp 8a8w SM8650")
    for index, shard in enumerate(shards.make_shards(cases, 2), 1):
        write_report(shard, place.directory / f"shard-{index}")


def logs(place: Place) -> None:
    """Logs of runs that lacked libc++."""
    for name in ("build.log", "logcat.txt"):
        (place.directory / name).write_text(f"{MISSING} file: No such file or directory\n")


def app(place: Place) -> None:
    """An APK with a set of libraries for two Hexagon versions."""
    libraries = android_apps.make_set() | android_apps.make_set(hexagon=0x79)
    android_apps.write_apk(place.directory / "app.apk", libraries)


def pack(place: Place) -> None:
    """The sources of an app with an AI pack, whose model is for devices with SM8650."""
    root = place.directory / "app"
    targeting = (
        '<c:device-targeting-config xmlns:c="http://schemas.android.com/apk/config">'
        '<c:device-group name="Qualcomm_SM8650"><c:device-selector>'
        '<c:system-on-chip manufacturer="QTI" model="SM8650"/></c:device-selector>'
        "</c:device-group></c:device-targeting-config>"
    )
    build = (
        "plugins { id 'com.android.application' }\nminSdk 31\n"
        "bundle { deviceTargetingConfig = file('groups.xml') }\n"
        "implementation 'com.google.ai.edge.litert:litert:2.1.5'\n"
    )
    texts = {
        "settings.gradle": "include ':models'",
        "build.gradle": build,
        "groups.xml": targeting,
        "src/main/AndroidManifest.xml": "<manifest/>",
        "models/build.gradle": "plugins { id 'com.android.ai-pack' }",
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    model = root / "models/src/main/assets/seg#group_Qualcomm_SM8650/seg.tflite"
    model.parent.mkdir(parents=True)
    model.write_bytes(litert.make_compiled())


def bundle(place: Place) -> None:
    """A folder for Genie whose second part is for another SoC, and the libraries for both."""
    of_other = genie.make_part(2, soc=("SM8750", 69, 79))
    genie.make_genie(
        place.directory / "bundle",
        lambda folder, _: (folder / genie.PARTS[1]).write_bytes(of_other),
    )
    (place.directory / "libs").mkdir()
    libraries = android_apps.make_set() | android_apps.make_set(hexagon=0x79)
    for name in ("libGenie.so", "libQnnHtpNetRunExtensions.so"):
        libraries[name] = android_apps.library(name)
    for name, data in libraries.items():
        (place.directory / "libs" / name).write_bytes(data)


def genie_log(place: Place) -> None:
    """The log of a bundle that Genie does not load."""
    (place.directory / "run.log").write_text(
        "Using libGenie.so version 1.9.0\n"
        "QNN build v2.42.0.251225135753_193295\n"
        '[ERROR] "Could not create context from binary for context index = 0 : err 5000"\n'
        '[ERROR] "Could not create context from binary for context index = 1 : err 1009"\n'
        "Failed to create the dialog.\n"
    )


def litert_bundle(place: Place) -> None:
    """A .litertlm file with a compiled decoder."""
    decoder = litert_bundles.make_compiled_decoder()
    litert_bundles.write_tiny(place.directory / "model.litertlm", decoder=decoder)


def wrong_bundle(place: Place) -> None:
    """A .litertlm file that writes each chunk of a prompt over the first one."""
    auxiliary = litert_bundles.plant_at_zero(litert_bundles.read_part("auxiliary.tflite"))
    litert_bundles.write_tiny(place.directory / "model.litertlm", auxiliary=auxiliary)


def change(place: Place) -> None:
    """A commit, on a branch, that changes one model of the suite."""
    clone = Checkout(place.clone)
    clone.git("checkout", "-q", "-b", "change")
    with (place.clone / "ci/models/suite/mlp.py").open("a") as file:
        file.write("\n# one more line\n")
    clone.git("commit", "-qam", "one more line")


def results(place: Place) -> None:
    """What the jobs of plan.json leave when all is well."""
    file = place.directory / "plan.json"
    emulator, onnx = read_emulator_policy(), read_emulator_policy(lane="onnx")
    for job in msgspec.json.decode(file.read_bytes(), type=Plan).jobs:
        folder = place.directory / f"results/result-{job.id}"
        target = folder / "reports" / job.session
        target.mkdir(parents=True)
        (folder / "exit-code.txt").write_text("0\n")
        if job.report == "junit.xml":
            (target / "junit.xml").write_text(JUNIT)
        elif job.shard:
            part, mark = take_shard(list_planned(file), job.shard, emulator, "python")
            judged = reports.make_judged(job.session, part, emulator.describe_limits(part))
            write_report(structs.replace(judged, shard=mark), target)
        elif job.report:
            cases = select_cases(onnx.suite, ["SM8650"], lane=ONNX)
            write_report(
                reports.make_judged(job.session, cases, onnx.describe_limits(cases)), target
            )
    needs = {"plan": {"result": "success"}, "session": {"result": "success"}}
    (place.directory / "needs.json").write_text(json.dumps(needs))


# -- SDKs and sources ---------------------------------------------------------------------------


def sdks(place: Place) -> None:
    """The SDKs and the checkout that docs/guides/builds.md names, which the doctor finds fit:
    headers and CMake files of a few lines, libraries without code, ExecuTorch in miniature."""
    sdk = tiny_toolchains.make_qnn_sdk(place.home / "qairt/2.37.0.250724")
    versions = ("MAJOR 2", "MINOR 27", "PATCH 0")
    lines = [f"#define QNN_API_VERSION_{version}\n" for version in versions]
    (sdk / "include/QNN/QnnCommon.h").write_text("".join(lines))
    for name in ("Htp", "HtpPrepare", "System", *(f"HtpV{version}Stub" for version in HEXAGONS)):
        library(sdk / f"lib/aarch64-android/libQnn{name}.so", "libplaceholder_for_android.so")
        library(sdk / f"lib/x86_64-linux-clang/libQnn{name}.so", "libx86.so")
        library(sdk / f"lib/aarch64-oe-linux-gcc11.2/libQnn{name}.so", "libaarch64.so")
    for version in HEXAGONS:
        skel = sdk / f"lib/hexagon-v{version}/unsigned/libQnnHtpV{version}Skel.so"
        library(skel, "libplaceholder_for_hexagon.so")
        data = bytearray(skel.read_bytes())
        elf_edits.set_u32(elf_edits.E_FLAGS_32, int(version, 16))(data)
        skel.write_bytes(data)
    make_ndk(place.home / "android-ndk-r26c", "26.2.11394342")
    tiny_toolchains.make_hexagon_sdk(place.home / "hexagon-sdk")
    for path in (tiny_toolchains.make_libcxx(place.home / "libcxx") / "lib").iterdir():
        library(path, "libx86.so")
    clone_tiny(place.home / "executorch")


def make_ndk(root: Path, revision: str) -> None:
    tiny_toolchains.make_ndk(root, revision)
    sysroot = root / "toolchains/llvm/prebuilt/linux-x86_64/sysroot"
    (sysroot / "usr/lib/aarch64-linux-android/30").mkdir(parents=True)


def library(path: Path, source: str) -> None:
    """A library without code, under the name of one of QNN 2.37's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = LIBRARIES / source
    named = source.startswith("libplaceholder")
    data = bytearray(elf_edits.named(file, path.name) if named else file.read_bytes())
    for old, new in (
        (PLACEHOLDER_BUILD, BUILD),
        ("libneeded.so", "libc.so.6"),
        ("$ORIGIN/..:/home/builder/out", "$ORIGIN"),
    ):
        if old.encode() in data:
            elf_edits.set_string(old, new, everywhere=True)(data)
    path.write_bytes(data)


def clone_tiny(target: Path) -> None:
    """ExecuTorch in miniature as a git checkout, with its submodules' files."""
    shutil.copytree(TINY, target)
    modules = [path.parent.relative_to(target) for path in sorted(target.rglob("README"))]
    rows = [
        f'[submodule "{module}"]\n\tpath = {module}\n\turl = ../{module}\n' for module in modules
    ]
    (target / ".gitmodules").write_text("".join(rows))
    checkout = Checkout(target)
    checkout.git("init", "-q", "-b", "main")
    checkout.git("add", ".")
    for module in modules:
        checkout.git("rm", "-rq", "--cached", str(module))
        checkout.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{module}")
    checkout.git("commit", "-qm", "1.5.1")
    (target / "extension/llm/tokenizers/third-party/re2").mkdir(parents=True)
    (target / "extension/llm/tokenizers/third-party/re2/README").touch()


def second_ndk(place: Place) -> None:
    """NDK r27, and in the clone's manifests the two entries that docs/guides/toolchains.md
    shows."""
    sdks(place)
    shutil.rmtree(place.home / "android-ndk-r26c")
    make_ndk(place.home / "android-ndk-r26c", "27.0.12077973")
    entries = read_blocks("docs/guides/toolchains.md", "toml")
    for name, entry in zip(("toolchains/android-ndk.toml", "profiles.toml"), entries, strict=True):
        with (place.clone / "manifests" / name).open("a") as file:
            file.write(f"\n{entry}")


def sdk_archive(place: Place) -> None:
    """An archive in the shape of Qualcomm's."""
    toolchains.make_sdk(place.home / "v2.37.0.250724.zip", "2.37.0.250724")


def skel_wheel(place: Place) -> None:
    """A wheel with a skel whose build is not listed."""
    name = "libQnnHtpV75Skel.so"
    data = bytearray(elf_edits.named(LIBRARIES / "libplaceholder_for_hexagon.so", name))
    elf_edits.set_build(PLACEHOLDER_BUILD, "v2.11.40.230710101010")(data)
    with zipfile.ZipFile(place.home / "qnn.whl", "w") as wheel:
        wheel.writestr(f"qnn/{name}", bytes(data))


def two_build_systems(place: Place) -> None:
    """~/executorch: a clone whose own commit adds a file to CMake alone."""
    origin = make_checkout(place.folder / "origin", BOTH_SYSTEMS)
    origin.git("clone", "-q", ".", str(place.home / "executorch"))
    lists = BOTH_SYSTEMS["CMakeLists.txt"].replace("a.cpp", f"a.cpp\n  {NEW_FILE}")
    clone = Checkout(place.home / "executorch")
    clone.commit({NEW_FILE: "int b;\n", "CMakeLists.txt": lists})


def executorch_below(place: Place) -> None:
    """The same clone in the directory of the reader."""
    two_build_systems(place)
    shutil.copytree(place.home / "executorch", place.directory / "executorch")


# -- signing and devices ------------------------------------------------------------------------


def signer(place: Place) -> None:
    """The SDKs that docs/guides/signing.md names, with what is signed, a stand-in for the signer,
    and a direct mode build in build-direct/."""
    inputs = dsp_toolchains.make_inputs(place.folder / "signing")
    sdk = dsp_toolchains.make_signer_sdk(place.home / "hexagon-sdk")
    for name, target in (
        ("qnn", place.home / "qairt/2.43.0.260128"),
        ("tools", sdk / "tools/HEXAGON_Tools/19.0.07"),
        ("build", place.directory / "build-direct"),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        inputs[name].rename(target)


def runner_and_runtime(place: Place) -> None:
    """A runner for this machine, and libraries by the names of an emulator's."""
    runtime = place.directory / "runtime"
    runtime.mkdir()
    for name in ("libQnnHtp.so", "libQnnSystem.so"):
        shutil.copyfile("/bin/true", runtime / name)
    shutil.copyfile("/bin/true", place.directory / "qnn_executor_runner")


def staged_libraries(place: Place) -> None:
    """libs/, a whole set for a phone."""
    (place.directory / "libs").mkdir()
    for name, data in android_apps.make_set().items():
        (place.directory / "libs" / name).write_bytes(data)


def wheel_runner(place: Place) -> None:
    """The built runner on PATH, and a kept program with its inputs as M.pte and L.txt."""
    programs = place.home / ".local/bin"
    programs.mkdir(parents=True)
    (built,) = (place.home / CACHE / "builds").glob("runner-*/artifacts/qnn_wheel_runner")
    (programs / built.name).symlink_to(built)
    (artifact,) = (place.directory / "kept").glob("*/artifact")
    shutil.copy(artifact / "program.pte", place.directory / "M.pte")
    rows = [f"{path}\n" for path in sorted((artifact / "inputs").iterdir())]
    (place.directory / "L.txt").write_text("".join(rows))
    (place.directory / "DIR").mkdir()


def pulled_outputs(place: Place) -> None:
    """What a device gave for the kept programs: the outputs that the run kept."""
    for outputs in (place.directory / "kept").glob("*/outputs"):
        name = outputs.parent.name
        shutil.copytree(outputs, place.directory / "results" / name / "outputs")
