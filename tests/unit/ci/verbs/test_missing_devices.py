"""The verbs that run ONNX Runtime or LiteRT say by name what is missing to run a program on a
device, before an environment is made."""

from __future__ import annotations

import pytest

from ci.__main__ import main
from ci.verbs.environments import choose_runtimes
from provisioning.errors import ExitCode


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("test-onnx --device adb:", "onnx_test_runner only compares outputs"),
        ("test-litert --device adb:1 --model net.tflite", "only prints elements of its outputs"),
        ("test-litert --device ssh:board", "libLiteRtDispatch_Qualcomm.so: the wheel"),
        ("test --device adb: --model net.py:net", "only compares outputs; and a program of LiteRT"),
        ("test --device ssh:b --model net.py:net", "missing is the dispatch library libLiteRt"),
        ("test --device adb: --model a.tflite", "run the compiled file in your app"),
    ],
)
def test_a_device_is_refused_with_what_is_missing(
    words: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == ExitCode.ENVIRONMENT
    shown = " ".join(capsys.readouterr().err.split())
    assert missing in shown
    assert "test-emulator`" in shown
    assert ("test-onnx`, which take --device" in shown) is ("ssh:" in words)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("ssh:board --model a.onnx", "ci test-onnx`, which takes --device"),
        ("adb: --model net.py:net --runtime executorch", "ci test-emulator`, which takes --dev"),
    ],
)
def test_a_device_that_the_runtime_s_own_verb_uses_needs_nothing(
    words: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "--device", *words.split()]) == ExitCode.ENVIRONMENT
    shown = " ".join(capsys.readouterr().err.split())
    assert f"fix: judge the model with `python -m {fix}" in shown
    assert "missing" not in shown
    assert "LiteRt" not in shown


@pytest.mark.parametrize("verb", ["test --model net.py:net", "test-onnx", "test-litert"])
@pytest.mark.parametrize("words", ["foo", "usb:1", "adb: --device foo"])
def test_a_word_that_names_no_device_is_refused_as_in_other_verbs(
    verb: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.split(), "--device", *words.split()]) == ExitCode.USAGE
    assert "does not name a device" in capsys.readouterr().err


def test_a_device_needs_no_environment() -> None:
    words = ["--model", "net.py:net"]
    assert choose_runtimes(words)
    assert choose_runtimes([*words, "--device", "adb:"]) == {}
