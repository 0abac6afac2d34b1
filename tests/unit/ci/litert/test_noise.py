"""The predicted noise of .tflite files has the errors that were measured with them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.analysis.noise import predict_noise
from ci.graphs.litert_file import read_levels
from ci.graphs.litert_program import LitertProgram
from ci.litert.suite import Net, quantize

# The operator, the bits, and between which numbers of steps the RMS of the predicted error is. An
# operator without a term has an error of 0.3 steps in 8 bits, and of one step in 16 bits.
PREDICTED = {
    ("SQRT", 8): (0.6, 0.9),  # measured: 0.7
    ("RSQRT", 16): (10.0, 100.0),  # measured: 12 to 32
    ("TANH", 8): (0.2, 0.4),
}


@pytest.mark.parametrize(("operator", "bits"), PREDICTED)
def test_the_prediction_has_the_errors_of_litert(operator: str, bits: int) -> None:
    net, shape = Net(), (1, 16, 32)
    source = net.add_tensor(shape, "x")
    net.end([source], [net.call(operator, (source,), shape)])
    positive = np.abs(np.random.default_rng(5).standard_normal(shape)).astype(np.float32) + 0.1
    program = LitertProgram(quantize(net, bits, [positive]))
    tensors = program.model.subgraphs[0].tensors
    levels, result_levels = read_levels(tensors[source]), read_levels(tensors[-1])
    assert levels is not None
    assert result_levels is not None
    steps = np.round(positive / levels.scales[0]) + levels.zero_points[0]
    integers = steps.astype(f"int{bits}")
    (errors,) = predict_noise(program, [[integers]], qnn="2.51.0")
    least, most = PREDICTED[operator, bits]
    assert least < float(np.sqrt(np.mean(np.square(errors)))) / result_levels.scales[0] < most
