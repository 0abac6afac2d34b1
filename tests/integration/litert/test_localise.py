"""`localise` names the wrong operator of a .tflite file, and `test_litert` rejects the part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.__main__ import main
from ci.litert.suite import RELU, Net, quantize
from provisioning.errors import ExitCode
from tests.build.litert_nets import make_unreached
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

pytestmark = NEEDS_PINNED_QNN

SHAPE = (2, 16, 64)


def make_product_before_sigmoid() -> Net:
    """One of two outputs is wrong in float16: a factor for each row and column, and a sigmoid."""
    net = Net()
    source = net.add_tensor(SHAPE, "x")
    hidden = net.add_linear(source, SHAPE, 64, RELU)
    product = net.call("MUL", (hidden, net.draw(16, 64, scale=1.0)), SHAPE, "MulOptions")
    right = net.add_linear(hidden, SHAPE, 8)
    net.end([source], [right, net.call("LOGISTIC", (product,), SHAPE)])
    return net


def make_slopes() -> Net:
    """A PRELU between two layers, which QNN computes wrongly in 16 bits."""
    net, shape = Net(), (1, 8, 8, 8)
    source = net.add_tensor(shape, "x")
    hidden = net.add_linear(source, shape, 8)
    slopes = net.draw(1, 1, 8, scale=0.3)
    net.end([source], [net.add_linear(net.call("PRELU", (hidden, slopes), shape), shape, 8)])
    return net


def test_localise_shrinks_a_refusal_to_the_refused_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.tflite").write_bytes(make_unreached())
    words = ["--model", "net.tflite", "--reproducer", "part.tflite", "--json"]
    assert main(["localise", *words]) == ExitCode.FAILED
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert [operator["kind"] for operator in case["part"]] == ["TRANSPOSE_CONV"]
    assert not case["outputs"]
    assert "could not prepare its graph" in case["ended"]
    assert (tmp_path / "part.tflite").is_file()


CASES: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "fp16": (lambda: make_product_before_sigmoid().pack(), ["MUL", "LOGISTIC"]),
    "asis": (lambda: quantize(make_slopes(), 16), ["PRELU"]),
}


@pytest.mark.parametrize("scheme", CASES)
def test_localise_finds_the_wrong_operator_and_writes_a_reproducer(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, kinds = CASES[scheme]
    (tmp_path / "net.tflite").write_bytes(make())
    words = ["--model", "net.tflite", "--reproducer", "part.tflite", "--json"]
    assert main(["localise", *words]) == ExitCode.FAILED
    (case_row,) = json.loads(capsys.readouterr().out)["cases"]
    assert [operator["kind"] for operator in case_row["part"]] == kinds
    assert case_row["scheme"] == scheme
    assert main(["test-litert", "--model", "part.tflite", "--json"]) == ExitCode.FAILED
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert {finding["id"] for finding in case["judgement"]["findings"]} >= {"QNN2001"}
