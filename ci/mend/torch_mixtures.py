"""How mend measures mixtures of a PyTorch model: by the eager quantized model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ci.executorch.quantize import configure, make_quantizer, quantize_method
from ci.graphs.graph import Array
from ci.graphs.torch_calls import name_result, read_calls, to_array
from ci.graphs.torch_candidates import list_candidates, mark_origins
from ci.graphs.torch_reader import computes_node
from ci.graphs.torch_state import find_written
from ci.mend.mixture_search import MOST_SETS, Selector, Unit, count_products, measure_sqnr
from ci.models.eager import keep_state, run_eager
from ci.models.lowering_options import Choices
from ci.models.model import Model
from ci.models.schemes import Scheme


class MixableModule:
    """A model whose parts ExecuTorch quantizes in different schemes, see ci.mend.mixture_search."""

    selector: Selector = "node"

    def __init__(self, model: Model, scheme: Scheme, soc: str) -> None:
        self.model, self.scheme, self.soc = model, scheme, soc
        self.units: Sequence[Unit] = list_units(model, soc, scheme)
        self.exact_outputs = run_sets(model, model.module)

    def measure(self, choices: Choices) -> float:
        """Return the lowest SQNR of an output of the quantized model in dB."""
        quantized = quantize_method(self.model, self.scheme, choices, make_quantizer(self.soc))
        return measure_sqnr(self.exact_outputs, run_sets(self.model, quantized))


def run_sets(model: Model, module: Any) -> list[list[Array]]:
    """Return a module's outputs for some of the model's calibration samples."""
    with keep_state(module):
        return to_arrays(run_eager(module, model.calibration[:MOST_SETS]))


def to_arrays(sets: Sequence[Sequence[Any]]) -> list[list[Array]]:
    """Return the tensors of each sample as arrays."""
    return [[to_array(tensor) for tensor in tensors] for tensors in sets]


def export_strictly(model: Model) -> Any:
    """Return a model's graph as ExecuTorch's quantizer gets it."""
    with torch.no_grad():
        program = torch.export.export(model.module, model.evaluation[0], strict=True)
        # Otherwise, torch inserts a call of a guard behind the inputs, and ExecuTorch's
        # ConcatObserver gives an input that is concatenated another range than the result.
        return program.module(check_guards=False)


def list_units(model: Model, soc: str, scheme: Scheme) -> list[Unit]:
    """Return the units of a model, in the graph that ExecuTorch's quantizer annotates."""
    exported = export_strictly(model)
    mark_origins(exported.graph)
    quantizer = make_quantizer(soc)
    quantizer.set_default_quant_config(**configure(scheme))
    transformed = quantizer.transform_for_annotation(exported)
    graph = transformed.graph
    candidates = {candidate.name: candidate for candidate in list_candidates(graph)}
    names_of_unit: dict[Any, list[Any]] = {}  # by the node that computes
    owners: dict[Any, Any] = {}  # the node of each node's unit
    for node in graph.nodes:
        if node.name not in candidates:
            continue
        owner = node
        if not computes_node(node):  # it moves the result of its first operand
            owner = next(
                (owners[operand] for operand in node.all_input_nodes if operand in owners), node
            )
        owners[node] = owner
        names_of_unit.setdefault(owner, []).append(candidates[node.name].node[-1])
    costs = count_products(read_calls(transformed, find_written(graph.nodes)))
    units = []
    for node, names in names_of_unit.items():
        module = next(reversed(candidates[node.name].module), "")
        cost = costs.get(name_result(node), 1.0)
        units.append(Unit(tuple(dict.fromkeys(names)), cost, module))
    return units
