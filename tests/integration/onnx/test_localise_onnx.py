"""`localise` names the wrong node of an .onnx file, and `test_onnx` rejects its reproducer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import onnx

from ci.__main__ import main
from provisioning.errors import ExitCode

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
# One of two outputs is wrong: the rows of ``up`` that no kernel reaches.
TEXT = """<ir_version: 10, opset_import: ["": 17]>
net (float[1,8,12,12] x) => (float[1,4,12,12] good, float[1,8,36,36] bad) {
    c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) left, right = Split<axis = 1>(r, half)
    good = Conv(left, v) bad = Tanh(up)
    up = ConvTranspose<strides = [3, 3], pads = [1, 1, 1, 1], output_padding = [2, 2]>(right, u)
}"""


@pytest.mark.parametrize("scheme", ["fp16", "u16a8w"])
def test_localise_finds_the_wrong_onnx_node_and_writes_a_reproducer(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    monkeypatch.chdir(tmp_path)
    model, random = onnx.parser.parse_model(TEXT), np.random.default_rng(1)
    shapes = {"w": (16, 8, 3, 3), "v": (4, 8, 1, 1), "u": (8, 8, 3, 3)}
    weights = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    weights |= {name: array / array[0].size ** 0.5 for name, array in weights.items()}
    weights["half"] = np.array([8, 8])
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    onnx.save(model, "net.onnx")
    words = ["--model", "net.onnx", "--scheme", scheme, "--reproducer", "part.onnx", "--json"]
    assert main(["localise", *words]) == ExitCode.FAILED
    (case_row,) = json.loads(capsys.readouterr().out)["cases"]
    wrong = [output["reached_db"] < 20 for output in case_row["outputs"]]
    assert (wrong, [node["kind"] for node in case_row["part"]]) == (
        [False, True],
        ["ConvTranspose"],
    )
    scheme_words = ["--scheme", scheme] if scheme == "fp16" else []
    assert main(["test-onnx", "--model", "part.onnx", *scheme_words, "--json"]) == ExitCode.FAILED
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert {finding["id"] for finding in case["judgement"]["findings"]} >= {"QNN2001"}
    assert case["scheme"] == (scheme if scheme_words else "asis")
