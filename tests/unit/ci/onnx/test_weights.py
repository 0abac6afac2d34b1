"""Whether a float .onnx model can be the one from which a quantized model was made."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")

import numpy as np
import onnx
from onnx import TensorProto, helper

from ci.graphs.graph import Array
from ci.onnx.weights import has_other_weights
from tests.qnn_provider.models import constant, tensor

KERNELS = np.random.default_rng(1).standard_normal((2, 6, 6, 3, 3))
OTHERS = np.random.default_rng(2).standard_normal((2, 6, 6, 3, 3))
FACTORS = np.linspace(0.5, 2, 6)[:, None, None, None]


def make(kernels: Array, names: str = "ab", *, is_quantized: bool = False) -> onnx.ModelProto:
    """Two convolutions, with their kernels in int8, with a step for each channel, if the model
    ``is_quantized``."""
    nodes, constants, read = [], [], "x"
    for name, kernel in zip(names, kernels, strict=True):
        weight = f"{name}_weight"
        if is_quantized:
            steps = np.abs(kernel).max((1, 2, 3)) / 127
            integers = np.round(kernel / steps[:, None, None, None])
            parts = [f"{weight}_{part}" for part in ("integers", "steps", "zeros")]
            constants += [
                constant(parts[0], integers, np.int8),
                constant(parts[1], steps),
                constant(parts[2], np.zeros(6), np.int8),
            ]
            nodes.append(helper.make_node("DequantizeLinear", parts, [weight], axis=0))
        else:
            constants.append(constant(weight, kernel))
        nodes.append(helper.make_node("Conv", [read, weight], [name], pads=[1, 1, 1, 1]))
        read = name
    ports = [[tensor(port, [1, 6, 8, 8], TensorProto.FLOAT)] for port in ("x", read)]
    return helper.make_model(helper.make_graph(nodes, "graph", *ports, constants))


PAIRS: dict[str, tuple[Any, Any, str, bool]] = {  # quantized, float, names, whether it is another
    "the same state": (KERNELS, KERNELS, "ab", False),
    "another state": (KERNELS, OTHERS, "ab", True),
    "layers exchanged": (KERNELS, KERNELS[::-1], "ab", True),
    "one layer is the same": (KERNELS, [KERNELS[0], OTHERS[1]], "ab", False),
    "training with quantization": (KERNELS + 0.2 * OTHERS, KERNELS, "ab", False),
    "factors of channels": (KERNELS * FACTORS, KERNELS, "ab", False),
    "other names": (KERNELS, OTHERS, "cd", False),  # nothing to compare
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_float_model_of_which_no_layer_has_the_same_weights_is_another(name: str) -> None:
    kernels, plain_kernels, names, is_other = PAIRS[name]
    quantized = make(np.asarray(kernels), is_quantized=True)
    assert has_other_weights(quantized, make(np.asarray(plain_kernels), names)) is is_other
