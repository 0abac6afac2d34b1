"""Returns the results of a LiteRT model's inner operators, to find where its program goes wrong.

LiteRT's plugin has an option for this, too (``--qualcomm_dump_tensor_ids=-1``), but it returns only
what QNN computes, under separate numbers. Outputs of the file itself have names, and also exist for
the operators on the CPU. Either needs one more compilation.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ci.analysis.layers import choose_exposed
from ci.graphs.litert_file import (
    BEFORE_ACTIVATION,
    add_port,
    list_entries,
    list_numbers,
    name_tensor,
    pack_model,
    read_model,
)
from ci.graphs.litert_program import LitertProgram, name_method
from ci.graphs.litert_reader import REAL
from ci.litert.source import LitertSource
from ci.models.tensors import Layer
from provisioning.errors import FailedError


def expose_layers(source: LitertSource) -> tuple[LitertSource, tuple[Layer, ...]]:
    """Return a model that also returns the results of its inner operators, after its own outputs,
    and these operators, in the same order. See choose_exposed for the choice. It has no float
    model and no outputs of a torch module. Raises FailedError if no result can be returned."""
    if len(source.entries) > 1:
        raise FailedError("the layers of a model with several signatures cannot be separated")
    model, (entry,) = read_model(source.data), source.entries
    subgraph = model.subgraphs[entry.subgraph]
    program = LitertProgram(source.data)
    parsed = program.parsed[name_method(entry)]
    graph = parsed.graph
    # An operator's result before the activation that it contains is none of the file's tensors: its
    # layer returns the one behind it.
    split_subgraph = program.model.subgraphs[entry.subgraph]
    behind = {
        int(operator.inputs[0]): int(operator.outputs[0])
        for operator in split_subgraph.operators or ()
        if len(operator.inputs) == 1
        if name_tensor(split_subgraph, operator.inputs[0]).endswith(BEFORE_ACTIVATION.decode())
    }
    ends = list_numbers(subgraph.outputs)  # with the next values of states
    numbers: dict[str, int] = {}
    for number, name in parsed.names.items():
        returned = number if number < len(subgraph.tensors) else behind.get(number, number)
        # The tensors inside of a composite are none of the file's subgraph.
        if returned < len(subgraph.tensors) and returned not in ends:
            numbers |= {name: returned, REAL.format(name): returned}
    sizes = {
        name: math.prod(shape)
        for name, shape in graph.shapes.items()  # in the order in which they are computed
        if name in numbers and graph.dtypes.get(name) == "float32" and name not in graph.constants
    }
    layers = choose_exposed(graph, sizes)
    if not layers:
        raise FailedError(
            "the model has no inner results to return",
            why="each operator is already an output, only moves elements, or has a result of"
            " unknown size",
        )
    results = [numbers[layer.value] for layer in layers]
    subgraph.outputs = np.array([*ends, *results], np.int32)
    for signature in model.signatureDefs or ():
        if signature.subgraphIndex == entry.subgraph:
            for number in results:
                add_port(signature.outputs, f"layer_{number}", number)
    data = pack_model(model)
    exposed = replace(
        source,
        data=data,
        model=read_model(data),
        entries=tuple(list_entries(model, source.signatures)),
        float_data=b"",
        expected=(),
    )
    return exposed, tuple(
        Layer(layer.node.label.partition(" ")[0], layer.node.label, node=layer.node.name)
        for layer in layers
    )
