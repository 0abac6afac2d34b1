"""The quantizers of a parsed ONNX file: their scales, zero points and ranges, and the values that
outputs can have."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ci.graphs.onnx_file import read_constants
from provisioning.errors import FailedError


class Values:
    """The values of a graph: its constants, and the nodes that make the others, by name."""

    def __init__(self, graph: Any) -> None:
        self.constants = read_constants(graph)
        self.makers = {name: node for node in graph.node for name in node.output}

    def read(self, name: str) -> Any:
        """Return the constant called ``name``, which may be behind operators such as Identity or
        Cast. Raises FailedError if it depends on an input of the model."""
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        node = self.makers.get(name)
        if node is None:
            raise FailedError(f"{name}, a scale or zero point of the model, is not a constant")
        # onnxruntime folds scales behind Identity, Cast and Squeeze, and QNN's program is right.
        feeds = {source: self.read(source) for source in node.input if source}
        values = ReferenceEvaluator(node).run(None, feeds)
        return np.asarray(values[list(node.output).index(name)])

    def read_zero(self, node: Any) -> Any:
        """Return the zero point of a quantizer, in the dtype of the quantizer's output."""
        if len(node.input) > 2 and node.input[2]:
            return self.read(node.input[2])
        return np.zeros((), helper.tensor_dtype_to_np_dtype(self.find_kind(node)))

    def find_kind(self, node: Any) -> int:
        """Return the TensorProto.DataType to which a QuantizeLinear quantizes, or 0 if no constant
        shows it. Without a zero point, it is an attribute, as AIMET can write it."""
        if len(node.input) > 2 and node.input[2]:
            zero = self.constants.get(node.input[2])
            return zero.data_type if zero is not None else 0
        return next(
            (attribute.i for attribute in node.attribute if attribute.name == "output_dtype"),
            TensorProto.UINT8,
        )

    def find_range(self, node: Any) -> tuple[Any, Any]:
        """Return the lowest and the highest values that a quantizer can represent, as arrays."""
        scale, zero = self.read(node.input[1]).astype(np.float64), self.read_zero(node)
        limits = np.iinfo(zero.dtype)
        return tuple(scale * (bound - zero.astype(np.int64)) for bound in (limits.min, limits.max))
