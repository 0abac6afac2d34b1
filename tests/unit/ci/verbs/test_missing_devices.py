"""The verbs of ONNX Runtime and LiteRT say by name what is missing to run a program on a device."""

from __future__ import annotations

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("test-onnx --device adb:", "onnxruntime_perf_test is only in its sources"),
        ("test-onnx --device ssh:board --model net.onnx", "a runner of this project for boards"),
        ("test-litert --device adb:1 --model net.tflite", "only prints elements of its outputs"),
        ("test-litert --device ssh:board", "libLiteRtDispatch_Qualcomm.so: the wheel"),
    ],
)
def test_a_device_is_refused_with_what_is_missing(
    words: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == ExitCode.ENVIRONMENT
    shown = " ".join(capsys.readouterr().err.split())
    assert missing in shown
    assert "test-emulator`, which takes --device" in shown
