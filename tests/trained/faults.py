"""Six faults a model: ``faults.py:MODEL__FAULT`` is a function as nets.py has them.

Calibration on noise and on another range are faults of the data, a layer of which the weights are
too large and a channel that is zero of the module, transposed inputs of both, swapped outputs of
the module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cases
import nets
import numpy as np
import torch
from onnx import numpy_helper
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
GAIN = 1.05
SCALE = 16.0


def __getattr__(name: str) -> Callable[[], Any]:
    model, separator, fault = name.partition("__")
    if not separator or fault not in cases.OF_MODEL:
        raise AttributeError(name)
    return functools.partial(spoil_module, model, fault)


def spoil_module(model: str, fault: str) -> Any:
    """The module of nets.py with a fault, and its example."""
    module, example = getattr(nets, model)()
    if fault == "swapped":
        return Swapped(module).eval(), example
    layers = [
        layer for layer in module.modules() if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear))
    ]
    weight, bias = layers[len(layers) // 2].weight, layers[len(layers) // 2].bias
    with torch.no_grad():
        if fault == "layer":
            weight *= GAIN
        else:
            channel = weight.flatten(1).norm(dim=1).argmax()
            weight[channel] = 0
            if bias is not None:
                bias[channel] = 0
    return module, example


class Swapped(nn.Module):
    """Outputs in the opposite order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(reversed(self.module(*inputs)))


def spoil_graph(model: Any, fault: str) -> Any:
    """The same of an ONNX model, in place: its middle convolution or product with a constant."""
    if fault == "swapped":
        outputs = [
            type(output).FromString(output.SerializeToString()) for output in model.graph.output
        ]
        del model.graph.output[:]
        model.graph.output.extend(reversed(outputs))
        return model
    constants = {initializer.name: initializer for initializer in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t
    layers = [
        constants[node.input[1]]
        for node in model.graph.node
        if node.op_type in {"Conv", "Gemm", "MatMul"} and node.input[1] in constants
    ]
    tensor = layers[len(layers) // 2]
    weight = numpy_helper.to_array(tensor).copy()
    if fault == "layer":
        weight *= np.float32(GAIN)
    else:
        channel = np.square(weight.reshape(len(weight), -1)).sum(1).argmax()
        weight[channel] = 0
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(weight, name))
    return model


def spoil_sets(arrays: list[Array], fault: str, *, judged: bool) -> list[Array]:
    """Samples with a fault of data; integers are drawn anew or stay as they are."""
    random = np.random.default_rng(7)
    if fault == "noise" and not judged:
        return [
            random.standard_normal(array.shape).astype(np.float32)
            if array.dtype == np.float32
            else random.integers(0, array.max() + 1, array.shape).astype(array.dtype)
            for array in arrays
        ]
    if fault == "range" and not judged:
        return [array * SCALE if array.dtype == np.float32 else array for array in arrays]
    if fault == "transposed":
        return [np.ascontiguousarray(transpose(arrays[0])), *arrays[1:]]
    return arrays


def transpose(array: Array) -> Array:
    """Swap rows and columns of what is square, else turn the last axis round."""
    if array.shape[-1] == array.shape[-2]:
        return array.swapaxes(-1, -2)
    return array[..., ::-1]
