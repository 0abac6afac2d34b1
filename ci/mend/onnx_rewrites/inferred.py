"""What is known about the values of an ONNX model: their shapes, types and constants."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx

from ci.graphs.onnx_edit import count_reads
from ci.graphs.onnx_file import read_constants


class InferredModel:
    """The outermost graph of a model whose shapes have been inferred: its nodes, the shapes, types
    and constants of its values, and how often each value is read, also in graphs inside of its
    nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        opsets = (opset.version for opset in model.opset_import if not opset.domain)
        self.opset = max(opsets, default=1)
        inputs = {port.name for port in graph.input}
        # An initializer that is an input, too, is only a default: a caller may replace it.
        self.tensors = {
            name: tensor for name, tensor in read_constants(graph).items() if name not in inputs
        }
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, int] = {}
        for port in (*graph.input, *graph.value_info, *graph.output):
            if port.type.HasField("tensor_type"):
                self._note_type(port.name, port.type.tensor_type)
        for name, tensor in self.tensors.items():
            self.shapes[name], self.types[name] = tuple(tensor.dims), tensor.data_type
        self.outputs = {output.name for output in graph.output}
        self.nodes = [*graph.node]
        self.reads = Counter(self.outputs) + count_reads(self.nodes)

    def _note_type(self, name: str, tensor_type: Any) -> None:
        """Note the type of a value, and its shape if it is known and fixed."""
        self.types[name] = tensor_type.elem_type
        self.shapes.pop(name, None)  # the last statement about a value counts
        sizes = tuple(dimension.dim_value for dimension in tensor_type.shape.dim)
        if tensor_type.HasField("shape") and all(size > 0 for size in sizes):
            self.shapes[name] = sizes
