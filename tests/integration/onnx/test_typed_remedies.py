"""A fix with an option on the card of a case, typed as a user would: the case is green then."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np
import onnx
from onnx import numpy_helper, parser

from ci.__main__ import main
from ci.report.write import read_report
from ci.verbs.registry import VERBS
from provisioning.errors import ExitCode
from tests.typed_hints import read_fix

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
TEXT = """<ir_version: 10, opset_import: ["": 21]> m (float[1, 8, 16] x) => (float[1, 8, 16] y)
{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"""
WITHOUT_FLOAT16 = "QCM6490"


def test_a_float_model_is_green_in_the_scheme_that_its_fix_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    model = parser.parse_model(TEXT)
    weights = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "net.onnx")
    words = ["test-onnx", "--model", "net.onnx", "--scheme", "fp16", "--soc", WITHOUT_FLOAT16]
    assert main(words) == ExitCode.FAILED
    (case,) = read_report(tmp_path / "reports/test_onnx").cases
    (remedy,) = case.judgement.findings[0].remedies
    (typed,) = read_fix(VERBS, words, remedy.text)
    assert typed == (*words[:3], *words[5:], "--scheme", "u8")
    assert main(typed) == ExitCode.OK
