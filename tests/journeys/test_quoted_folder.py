"""Mend writes and runs code that contains the paths of the user's models: a folder whose name has
quotes, a backslash and a space gives the same result as any other, in both lanes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ci.report.write import read_report
from ci.verbs.registry import VERBS
from provisioning.errors import ExitCode
from tests.stand_ins.runs import ROOT, run_to_end
from tests.typed_hints import read_fix

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import onnx

pytestmark = pytest.mark.emulator
FOLDER = 'it\'s "a\\b" c'
# A pool whose last window is partly outside of its input, which HTP averages in another way.
TORCH = """import torch


def factory():
    pool = torch.nn.AvgPool2d(3, 2, ceil_mode=True)
    return pool.eval(), (torch.randn(1, 8, 14, 14),)
"""
ONNX = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,8,14,14] x) => (float[1,8,7,7] y)
    { y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x) }"""


@pytest.mark.parametrize(
    ("lane", "model", "scheme"),
    [
        pytest.param("test-emulator", "red.py:factory", "fp16", marks=pytest.mark.nightly),
        ("test-onnx", "red.onnx", "u8"),
    ],
)
def test_a_model_below_a_quoted_folder_is_mended(
    lane: str, model: str, scheme: str, tmp_path: Path
) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "red.py").write_text(TORCH)
    onnx.save(onnx.parser.parse_model(ONNX), folder / "red.onnx")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "QNN_CI_CALLER_DIR": str(folder)}
    qnn_ci = [sys.executable, "-m", "ci"]

    words = [lane, "--model", model, "--scheme", scheme]
    reports = ["--reports", str(folder / "reports")]
    run_to_end(
        [*qnn_ci, *words, *reports], timeout_s=1800, codes={ExitCode.FAILED}, env=environment
    )
    (case,) = read_report(folder / "reports" / lane.replace("-", "_")).cases
    (fix,) = [
        remedy.text
        for remedy in case.judgement.findings[0].remedies
        if "tries known rewrites of the model, and proves the result" in remedy.text
    ]
    (typed,) = read_fix(VERBS, words, fix)
    assert typed[:3] == ("mend", "--model", model)
    mended = run_to_end([*qnn_ci, *typed], timeout_s=1800, env=environment)
    assert "0 of 1 case green before, 1 after" in mended

    judged = run_to_end(
        [*qnn_ci, lane, "--policy", "mended/qnn.toml"], timeout_s=1800, env=environment
    )
    assert "1 passed, 0 failed" in judged
