"""What known faults of a quantized model cost, measured on models that ONNX Runtime quantizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
from onnx import helper

from ci.cases.spec import CaseSpec
from ci.facts.known_fault import KnownFault
from ci.mend.remedies import make_onnx_trial, make_torch_trial
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from tests.qnn_provider.models import constant, tensor, write_model

make = helper.make_node
RANDOM = np.random.default_rng(5)
ROWS = (1, 8, 32)


def known(fault: str) -> KnownFault:
    return KnownFault(
        fault=fault, title="", seen="", fix="", calls="", nodes=(), operators=(), is_scheme=True
    )


def write_attention(path: Path, mask: float) -> CaseSpec:
    """Attention of an input with itself, behind a layer, with a causal mask."""
    nodes = [
        make("MatMul", ["x", "w"], ["q"], "layer"),
        make("Transpose", ["x"], ["k"], "turn", perm=[0, 2, 1]),
        make("MatMul", ["q", "k"], ["scores"], "scores"),
        make("Add", ["scores", "mask"], ["masked"], "mask"),
        make("Softmax", ["masked"], ["p"], "softmax", axis=-1),
        make("MatMul", ["p", "x"], ["y"], "values"),
    ]
    hidden = np.triu(np.full((8, 8), mask, np.float32), 1)
    constants = [constant("w", RANDOM.standard_normal((32, 32)) / 32), constant("mask", hidden)]
    write_model(path, nodes, [tensor("x", ROWS)], [tensor("y", ROWS)], constants)
    return CaseSpec(str(path), Scheme("u8"), "SM8650", source=Source(str(path)))


def test_the_cost_of_a_large_mask_is_measured_with_its_exact_remedy(tmp_path: Path) -> None:
    spec = write_attention(tmp_path / "net.onnx", -1e4)
    trial = make_onnx_trial(spec, [known("mask-too-large")])
    assert trial is not None
    assert trial() > 30


def test_a_remedy_that_does_not_apply_measures_nothing(tmp_path: Path) -> None:
    spec = write_attention(tmp_path / "net.onnx", -30.0)
    trial = make_onnx_trial(spec, [known("mask-too-large")])
    assert trial is not None
    with pytest.raises(ValueError, match="remedy"):
        trial()
    for make_trial in (make_onnx_trial, make_torch_trial):
        assert make_trial(spec, [known("no-such-fault")]) is None
