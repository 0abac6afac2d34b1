"""test-onnx on a board: a real sshd, whose Python is that of the tests. Its ONNX Runtime has QNN's
provider, which runs on the emulator there, or is as a test says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import onnx
from msgspec import structs
from onnx import TensorProto, helper

from ci.__main__ import main
from ci.cases.engine import Compiled, Delegation, Fallback, Program, RunError, Sets
from ci.device.connection import Device
from ci.device.onnx_board import (
    MODEL,
    PROFILE,
    SCRIPT,
    BoardPython,
    find_faults,
    make_bundle,
    make_dialect,
    read_times,
    require_qnn,
)
from ci.device.runner import DeviceProgram, DeviceRunner
from ci.models.tensors import TensorInfo
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UnfitError
from tests.integration.device.conftest import Lab, tool
from tests.stand_ins.lanes import SPEC

Capture = pytest.CaptureFixture[str]
PLUGIN = "onnxruntime_qnn"
NO_PLUGIN = "raise ImportError('there is none')\n"
NO_DEVICE = """
__version__ = "2.3.0"
def get_library_path():
    raise RuntimeError("cannot open /dev/fastrpc-cdsp")
"""


def save_model(path: Path) -> Path:
    """A Conv and a Relu of x [1, 3, 8, 8]."""
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype("float32") / 5
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 8, 8]), ("y", [1, 4, 6, 6]))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    constants = [onnx.numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def give_python(lab: Lab, module: str = "", *, flags: str = "") -> None:
    """Let the board's python3 be that of the tests, with ``module`` as its onnxruntime_qnn."""
    folder = lab.bin.parent / "modules"
    folder.mkdir(exist_ok=True)
    if module:
        (folder / f"{PLUGIN}.py").write_text(module)
    text = f"#!/bin/sh\nexport PYTHONPATH='{folder}'\nexec '{sys.executable}' {flags} \"$@\"\n"
    tool(lab.bin, "python3", text)


def judge(lab: Lab, folder: Path, *words: str) -> int:
    """Type test-onnx for a small model on the board."""
    model = save_model(folder / "net.onnx")
    options = ["--model", str(model), "--scheme", "fp16", "--reports", str(folder / "reports")]
    # A path: the shell of a user may put other directories before those of PATH.
    python = ["--board-python", str(lab.bin / "python3")]
    chosen = ["--device", "ssh:board", "--place", str(lab.place), *python]
    return main(["test-onnx", *chosen, *options, *words])


def read_error(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().err.split())


UNFIT = {
    "no Python": (
        "exit 127",
        "ssh:board has no program {}/python3",
        "or pass another one with --board-python",
    ),
    "no onnxruntime": (
        f"exec '{sys.executable}' -I -S \"$@\"",
        "has no numpy and no onnxruntime",
        "install onnxruntime-qnn and the onnxruntime that it needs there, or pass the Python",
    ),
    "another program": ("echo hello", "python3 cannot run run_onnx.py", "--board-python"),
    "an old Python": (
        "echo 'SyntaxError: invalid syntax' >&2; exit 1",
        "SyntaxError: invalid syntax",
        "install Python 3.10 or newer",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_board_that_cannot_run_onnx_is_refused_before_anything_is_compiled(
    board: Lab, tmp_path: Path, capsys: Capture, name: str
) -> None:
    script, problem, fix = UNFIT[name]
    tool(board.bin, "python3", f"#!/bin/sh\n{script}\n")
    assert judge(board, tmp_path) == ExitCode.ENVIRONMENT
    message = read_error(capsys)
    assert problem.format(board.bin) in message
    assert fix in message
    assert not (board.place / "lease").exists()
    assert not (board.place / "cases").exists()


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (NO_PLUGIN, "there has these providers: "),
        (NO_DEVICE, "cannot open /dev/fastrpc-cdsp"),
    ],
)
def test_a_board_without_qnn_s_provider_is_refused_and_the_cpu_is_named(
    board: Lab, tmp_path: Path, capsys: Capture, module: str, problem: str
) -> None:
    give_python(board, module)
    assert judge(board, tmp_path) == ExitCode.ENVIRONMENT
    message = read_error(capsys)
    assert "has no QNNExecutionProvider" in message
    assert problem in message
    assert ("CPUExecutionProvider" in message) is (module == NO_PLUGIN)


def test_a_board_with_another_soc_is_refused(board: Lab, tmp_path: Path, capsys: Capture) -> None:
    give_python(board)
    tool(board.bin, "uname", "#!/bin/sh\necho aarch64\n")
    tool(board.bin, "getprop", "#!/bin/sh\n[ $1 != ro.soc.model ] || echo SM8750\n")
    assert judge(board, tmp_path, "--soc", "SM8650") == ExitCode.ENVIRONMENT
    assert "has SM8750, but the cases are for SM8650" in read_error(capsys)
    assert judge(board, tmp_path, "--soc", "SM8650", "--soc", "SM8750") == ExitCode.USAGE
    assert "pass the --soc of the board" in read_error(capsys)


COMPILED = Compiled(
    program=f"program/{MODEL}",
    binary=f"program/{MODEL}",
    size_bytes=1,
    sets=2,
    inputs=(TensorInfo("float32", (1, 3, 8, 8)),),
    outputs=(TensorInfo("float32", (1, 4, 6, 6)),),
    delegation=Delegation(1, 0, 1),
)
ON_CPU = Delegation(0, 2, 1, fallback_ops=(Fallback("Conv", ""), Fallback("Relu", "")))


def make_sets() -> Sets:
    dice = np.random.default_rng(1)
    return [[dice.normal(size=(1, 3, 8, 8)).astype("float32")] for _ in range(2)]


def open_on(lab: Lab, folder: Path, compiled: Compiled) -> DeviceProgram:
    """The float model, which is no context, on a board: the script runs any .onnx file."""
    bundle = make_bundle("SM8650", "x86_64")
    dialect = make_dialect({}, "", str(lab.bin / "python3"), bundle.target)
    directory = f"{lab.place}/bundle"
    lab.device.push(directory, {SCRIPT.name: SCRIPT}, {SCRIPT.name: bundle.files[0].sha256})
    runner = DeviceRunner(lab.device, bundle, directory, Progress(), dialect=dialect)
    (folder / "program").mkdir()
    path = save_model(folder / "program" / MODEL)
    return DeviceProgram(runner, Program(SPEC, path, compiled, folder, folder / "log"), 600)


def test_nodes_that_the_cpu_of_a_board_ran_are_named(local_lab: Lab, tmp_path: Path) -> None:
    """onnxruntime falls back to the CPU with a warning if a provider is missing."""
    import onnxruntime

    give_python(local_lab, NO_PLUGIN)
    opened = open_on(local_lab, tmp_path, structs.replace(COMPILED, delegation=ON_CPU))
    sets = make_sets()
    outputs = opened.run(sets)
    session = onnxruntime.InferenceSession(tmp_path / "program" / MODEL)
    for sample, arrays in zip(sets, outputs, strict=True):
        np.testing.assert_array_equal(session.run(None, {"x": sample[0]})[0], arrays[0])
    notes = opened.finish()
    (fault,) = notes.faults
    assert fault.startswith("QNN executed nothing, according to the session's profile: CPUExec")
    assert notes.device
    assert (notes.device.runs, notes.device.starts) == (1, 1)
    assert notes.device.load_ms
    assert notes.device.first_ms


def test_a_program_without_nodes_for_the_cpu_does_not_run_there(
    local_lab: Lab, tmp_path: Path
) -> None:
    give_python(local_lab, NO_PLUGIN)
    with pytest.raises(RunError, match="the runner exited with code 1 on the device"):
        open_on(local_lab, tmp_path, COMPILED).run(make_sets())
    assert "fallback to CPU EP has been explicitly disabled" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("profile", [b"", b"{}", b"[{}", b"[]"])
def test_a_board_that_does_not_say_who_ran_the_nodes_is_not_believed(
    tmp_path: Path, profile: bytes
) -> None:
    program = Program(SPEC, tmp_path / MODEL, COMPILED, tmp_path, tmp_path / "log")
    (fault,) = find_faults(program, {PROFILE: profile})
    start = "QNN executed nothing" if profile == b"[]" else "the board did not report which"
    assert fault.startswith(start)


def test_times_that_a_board_does_not_send_are_unknown() -> None:
    assert read_times({}) == (None, ())
    assert read_times({"times.json": b'{"load_ms": "a"}'}) == (None, ())
    assert read_times({"times.json": b'{"load_ms": 2.5, "runs_ms": [1, 2]}'}) == (2.5, (1, 2))


def test_an_older_qnn_on_a_board_is_refused() -> None:
    device = Device("ssh:board", ("ssh",), "place")
    found = BoardPython(python="3.12.1", executable="python3", qnn="2.48.0")
    require_qnn(device, found, "2.48.0")
    require_qnn(device, structs.replace(found, qnn=""), "2.49.0")
    with pytest.raises(UnfitError, match=r"ssh:board has QNN 2\.48\.0"):
        require_qnn(device, found, "2.49.0")


def test_options_that_a_board_cannot_use_are_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "lib.so").touch()
    base = ["test-onnx", "--model", "mlp"]
    on_board = [*base, "--device", "ssh:board"]
    for words, message in (
        ([*on_board, "--direct"], "--device is for context binaries of HTP"),
        ([*on_board, "--option", "backend_type=cpu"], "--device is for context binaries of HTP"),
        ([*on_board, "--profile"], "--profile cannot be used with --device"),
        ([*on_board, "--option", f"op_packages=Op:{tmp_path}/lib.so:f"], "name files of this com"),
        ([*on_board, "--device", "ssh:b"], "2 boards are given"),
        ([*on_board, "--starts", "-1"], "--starts"),
        ([*base, "--board-python", "python"], "--board-python"),
    ):
        assert main(words) == ExitCode.USAGE
        assert message in read_error(capsys)
    assert main([*on_board, "--device", "adb:"]) == ExitCode.ENVIRONMENT
    assert "onnx_test_runner only compares outputs" in read_error(capsys)


@pytest.mark.nightly  # 20 s: it compiles a model
@pytest.mark.emulator
@pytest.mark.parametrize("embed", ["1", "0"])
def test_a_model_is_judged_on_a_board(board: Lab, tmp_path: Path, embed: str) -> None:
    give_python(board)
    words = ("--scheme", "u8", "--embed-mode", embed, "--starts", "2")
    assert judge(board, tmp_path, *words) == ExitCode.OK
    report = json.loads((tmp_path / "reports/test_onnx/report.json").read_text())
    assert {case["scheme"] for case in report["cases"]} == {"fp16", "u8"}
    for case in report["cases"]:
        assert case["judgement"]["status"] == "passed"
        assert case["run"]["runner"] == "ssh:board"
        assert case["device"]["equal_emulator"] == 1
        figures = case["device"]["figures"]
        assert (figures["starts"], figures["emulated"]) == (2, True)
        assert figures["load_ms"] > 0
        assert figures["p50_ms"] > 0
    (remark,) = (remark for remark in report["remarks"] if remark.startswith("run on"))
    assert "run on ssh:board" in remark
    assert "with the HTP emulator, Python 3." in remark
    assert not (board.place / "lease").exists()
