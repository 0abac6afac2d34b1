"""Why operators stay on the CPU, and why QNN takes nothing of a model, as the model shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.cases.engine import STEPS, CompilerError, Staging, read_steps
from ci.cases.spec import CaseSpec
from ci.faults.match import match_faults
from ci.graphs.litert_file import CUSTOM, read_model, schema
from ci.litert.compile import (
    HYBRID,
    OWN_OPERATOR,
    TRANSLATES_NOT,
    compile_litert,
    describe_untaken,
    find_reason,
)
from ci.litert.plugin import NothingTakenError
from ci.litert.source import load_litert
from ci.litert.suite import KINDS, Net, quantize
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from provisioning.errors import FailedError

UNTAKEN = NothingTakenError("QNN takes no operator of the model", why="its types", fix="others")
REASONS = {(0, 0): "QNN's own reason"}


def make_layer() -> Net:
    net = Net()
    source = net.add_tensor((1, 4), "x")
    net.end([source], [net.add_linear(source, (1, 4), 4)])
    return net


def make_hybrid() -> Net:
    """A layer with weights of int8 and activations in float."""
    net = make_layer()
    weights = net.tensors[int(net.operators[0].inputs[1])]
    weights.type, weights.quantization = KINDS["int8"], schema.QuantizationParametersT()
    weights.quantization.scale = np.array([0.5], np.float32)
    weights.quantization.zeroPoint = np.array([0], np.int64)
    net.store(int(net.operators[0].inputs[1]), np.ones((4, 4), np.int8))
    return net


def make_custom() -> Net:
    net = make_layer()
    net.codes[0].builtinCode = net.codes[0].deprecatedBuiltinCode = CUSTOM
    net.codes[0].customCode = b"Own"
    return net


# The model, why QNN takes nothing, and why its operator stays on the CPU with and without a reason.
MODELS: Mapping[str, tuple[Net, str, str, str]] = {
    "float": (make_layer(), "its types", "QNN's own reason", TRANSLATES_NOT),
    "weights alone are quantized": (make_hybrid(), f"FULLY_CONNECTED: {HYBRID}", HYBRID, HYBRID),
    "custom": (make_custom(), f"Own: {OWN_OPERATOR}", OWN_OPERATOR, OWN_OPERATOR),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_shows_why_qnn_does_not_take_it(name: str) -> None:
    net, why, with_reason, without_reason = MODELS[name]
    model: Any = read_model(net.pack())
    operator = model.subgraphs[0].operators[0]
    assert describe_untaken(model, UNTAKEN).why == why
    assert find_reason(model, operator, REASONS, (0, 0)) == with_reason
    assert find_reason(model, operator, {}, (0, 0)) == without_reason


@pytest.mark.parametrize("error", [CompilerError("it did not end", fix="", exceeded=True), UNTAKEN])
def test_a_model_that_the_plugin_does_not_compile_has_its_known_faults(
    error: FailedError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    net = Net()
    source = net.add_tensor((1, 1), "x")
    net.end([source], [net.add_linear(source, (1, 1), 7)])
    path = tmp_path / "net.tflite"
    path.write_bytes(quantize(net, 8))
    spec = CaseSpec("net", Scheme.ASIS, "SM8650", Source(str(path)))
    staging = Staging(tmp_path / "staging", tmp_path / "lower.log", tmp_path)
    staging.directory.mkdir()
    monkeypatch.setattr("ci.litert.compile.run_plugin", refuse)
    with pytest.raises(type(error), match=error.what):
        compile_litert(load_litert(spec), spec, staging, library=tmp_path, timeout_s=1)
    steps = read_steps(tmp_path / STEPS)
    faults = match_faults(steps, "asis", "2.51.0", refused=True)
    assert [fault.fault for fault in faults] == ["linear-of-one-number"]
