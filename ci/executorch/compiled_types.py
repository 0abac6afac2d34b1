"""Records the type of each tensor of the graphs that ExecuTorch passes to QNN's compiler.

A context binary describes only its graphs' inputs and outputs. These are the types of all tensors,
as ExecuTorch's last step before the compiler defines them.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torchao.quantization.pt2e.quantizer import QuantizationSpec

from ci.executorch.internals import NodeVisitor, QnnBackend
from ci.graphs.torch_candidates import ORIGIN
from ci.graphs.torch_reader import computes_node
from ci.models.lowering_options import Part
from ci.models.tensors import FLOAT_BITS, Asked, TypedTensor
from ci.models.user_code import find_origin

# In the metadata "custom" of a node, which torch.export and ExecuTorch's passes keep.
ASKED = "qnn_ci_asked"
DTYPE = re.compile(r"(FLOAT|FIXED_POINT)_(\d+)$")
SCHEME_BITS = re.compile(r"use_(\d+)a(\d+)w")
CONVERTS = ("quantized_decomposed", "aten__to_copy", "aten_permute")  # ExecuTorch adds these
LEAST_DIMS = 2  # of weights, unlike biases


def mark_parts(graph: Any, owners: Mapping[str, Part]) -> None:
    """Note in each node of a graph which bits its part requests. ``owners`` maps nodes' names to
    parts. A node that only moves values is noted only if its part has no other nodes."""
    computing = {
        owners[node.name] for node in graph.nodes if node.name in owners and computes_node(node)
    }
    for node in graph.nodes:
        part = owners.get(node.name)
        bits = part and SCHEME_BITS.match(part.scheme.recipe.dtype)
        if part and bits and (computes_node(node) or part not in computing):
            _mark(node, int(bits[1]), int(bits[2]))


def mark_annotated(nodes: Iterable[Any], discarded: tuple[str, ...]) -> None:
    """Note in each node of a prepared graph which bits its annotation requests, unless its part
    does. The nodes in ``discarded`` are to be computed in float."""
    for node in nodes:
        name = (node.meta.get(ORIGIN) or (node.name,))[0]
        annotation = node.meta.get("quantization_annotation")
        if {node.name, name} & {*discarded}:
            _mark(node, FLOAT_BITS, 0)
        elif annotation and ASKED not in (node.meta.get("custom") or {}):
            weights = (
                _count_bits(qspec)
                for source, qspec in annotation.input_qspec_map.items()
                if source.op == "get_attr"
            )
            quantized_bits = [bits for bits in weights if bits and bits < FLOAT_BITS]
            # The least, because a constant input is a get_attr, too, and has the bits of
            # activations: with the most, Swin 2, which computes a position bias from coordinates,
            # was red in 16a8w.
            _mark(node, _count_bits(annotation.output_qspec), min(quantized_bits, default=0))


def _mark(node: Any, result: int, weights: int) -> None:
    name = (node.meta.get(ORIGIN) or (node.name,))[0]
    # A copy, because torch's passes share this dictionary between nodes.
    mark = {ASKED: [node.name, name, result, weights]}
    node.meta["custom"] = {**(node.meta.get("custom") or {}), **mark}


def _count_bits(spec: Any) -> int:
    if not isinstance(spec, QuantizationSpec) or spec.quant_max is None or spec.quant_min is None:
        return 0
    return math.ceil(math.log2(spec.quant_max - spec.quant_min + 1))


class TypeRecord:
    """The tensors of the graphs that QNN compiled, and what was requested for their nodes."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.tensors: list[TypedTensor] = []

    def add(self, visitor: Any, source: Any, target: Any, tensor: Any) -> None:
        """Add a tensor that ``target``, a node, computes or that is one of its weights."""
        constant = not isinstance(tensor, FakeTensor)
        request = (target.meta.get("custom") or {}).get(ASKED)
        is_own = source is target
        is_result = is_own and bool(request or not source.name.startswith(CONVERTS))
        is_weight = constant and not is_own and tensor.dim() >= LEAST_DIMS
        if not (is_result or is_weight):
            return
        _, encoding = visitor.get_quant_encoding_conf(source, target)
        kind = DTYPE.search(str(visitor.get_data_type(tensor, encoding)))
        if not kind:
            return
        bits = FLOAT_BITS if kind[1] == "FLOAT" else encoding.get("bitwidth") or int(kind[2])
        node = ""
        if request:
            node, *bits_and_size = request
            self.asked[node] = Asked(*bits_and_size)
        # FLOAT_BITS stands for all floats, but a program stores them in 16 bits.
        size = math.ceil(tensor.numel() * min(bits, 16) / 8) if is_weight else 0
        self.tensors.append(TypedTensor(node, bits, size, find_origin(target)))


@contextmanager
def record_types() -> Iterator[TypeRecord]:
    """Record the tensors of the graphs that ExecuTorch passes to QNN while the block runs."""
    record = TypeRecord()
    if not hasattr(QnnBackend, "_build_op_wrappers"):  # an older ExecuTorch
        yield record
        return
    build, define = QnnBackend._build_op_wrappers, NodeVisitor.define_tensor

    parameters = inspect.signature(define)

    def watched(*args: Any, **named: Any) -> Any:
        bound = parameters.bind(*args, **named)
        bound.apply_defaults()
        visitor, source, target, tensor, _, wrappers, name, index = bound.arguments.values()
        # define_tensor returns the wrapper of an earlier call, if there is one: each tensor counts
        # once.
        if index not in wrappers[name or source.name]:
            record.add(visitor, source, target, tensor)
        return define(*args, **named)

    # ExecuTorch's partitioner defines tensors, too, to ask QNN about single nodes. Only those that
    # are defined while a whole graph is built are compiled.
    def watch(*args: Any, **named: Any) -> Any:
        NodeVisitor.define_tensor = watched
        try:
            return build(*args, **named)
        finally:
            NodeVisitor.define_tensor = define

    QnnBackend._build_op_wrappers = staticmethod(watch)
    try:
        yield record
    finally:
        QnnBackend._build_op_wrappers = staticmethod(build)
