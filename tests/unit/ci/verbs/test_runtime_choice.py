"""Which environment and which verb a runtime has, and what a former option chooses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.models.schemes import RUNTIMES
from ci.report.runtimes import TITLES
from ci.verbs.environments import OF_RUNTIMES
from ci.verbs.registry import choose_environment
from provisioning.errors import ExitCode

ENVIRONMENTS = {
    "localise --model net.py:net": "lowering",
    "localise --model net.py:net --runtime onnxruntime": "onnx-torch",
    "localise --model net.py:net --runtime=litert": "litert-torch",
    "localise --model net.onnx --runtime onnxruntime": "onnx",
    "localise --model net.tflite": "litert",
    "mend --model net.py:net --runtime executorch": "lowering",
    "mend --model net.py:net --runtime executorch --runtime litert": "litert-torch",
    "mend --model net.onnx": "onnx",
    "mend --model net.py:net --runtime nonsense": "lowering",
    "estimate --model net.py:net --runtime onnxruntime": "onnx-torch",
    "estimate --model net.py:net --frontend onnx": "onnx-torch",
    "estimate --model net.py:net --frontend=executorch": "lowering",
    "estimate --model net.onnx": "onnx",
    "fuzz": "onnx-torch",
    "fuzz --frontend executorch": "lowering",
    "fuzz --runtime executorch": "lowering",
    "fuzz --runtime=litert": "litert-torch",
    "init --model net.tflite": "litert" if sys.version_info >= (3, 11) else "core",
    "init --model net.onnx": "onnx",
    "init": "core",
}


@pytest.mark.parametrize("command", ENVIRONMENTS)
def test_a_runtime_has_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    assert choose_environment(command.split()) == ENVIRONMENTS[command]


def test_all_tables_of_runtimes_have_the_same_names() -> None:
    assert [*RUNTIMES] == [*TITLES] == [*OF_RUNTIMES]
    assert {name: lane.title for name, lane in RUNTIMES.items()} == TITLES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--runtime executorch --frontend onnx",
            "--runtime executorch contradicts --frontend onnx",
        ),
        ("--frontend onnx --soc no", "use --runtime onnxruntime"),
        ("--shape x=4,16", "--shape is for .onnx files"),
    ],
)
def test_what_estimate_cannot_simulate_is_refused(
    capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert main(["estimate", "--model", "mlp", *words.split()]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--runtime litert --soc SM6650", "SM6650 has no float16"),
        ("--runtime litert --soc ipq5404", "nothing can be compiled for IPQ5404"),
        ("--runtime litert --soc SM8651", "no SoC 'SM8651'"),
        ("--runtime executorch --soc SM6650", "no SoC 'SM6650'"),
        ("--runtime onnxruntime --soc SM6650 --soc SM8650", "--graph tries one SoC"),
    ],
)
def test_fuzz_takes_the_socs_for_which_its_runtime_compiles(
    capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    argv = ["fuzz", "--graph", "broadcast-add-before-norm", *words.split()]
    assert main(argv) == ExitCode.USAGE
    assert message in capsys.readouterr().err
