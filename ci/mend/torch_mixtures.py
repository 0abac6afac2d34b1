"""How mend measures mixtures of a PyTorch model: by the eager quantized model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e, prepare_qat_pt2e

from ci.executorch.quantize import annotated, configure, make_quantizer, quantize_method
from ci.graphs.graph import Array
from ci.graphs.torch_calls import list_results, read_calls, tensor_to_array
from ci.graphs.torch_candidates import list_candidates, mark_origins
from ci.graphs.torch_state import find_written
from ci.mend.mixture_search import (
    MOST_SETS,
    Selectable,
    Selector,
    Unit,
    count_products,
    list_units,
    measure_sqnr,
)
from ci.models.eager import keep_state, run_eager
from ci.models.lowering_options import Choices
from ci.models.model import Model
from ci.models.schemes import Scheme

T = TypeVar("T")


class MixableModule:
    """A model whose parts ExecuTorch quantizes in different schemes, see ci.mend.mixture_search."""

    selector: Selector = "node"

    def __init__(self, model: Model, scheme: Scheme, soc: str) -> None:
        self.model, self.scheme, self.soc = model, scheme, soc
        self.units: Sequence[Unit] = read_annotated(model, soc, scheme, list_units_of_graph)
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
    return [[tensor_to_array(tensor) for tensor in tensors] for tensors in sets]


def read_annotated(model: Model, soc: str, scheme: Scheme, read: Callable[[Any], T]) -> T:
    """Return what a function reads from a model's graph as ExecuTorch's quantizer annotates it,
    which has the nodes that parts of a mixture can select: torchao folds batch norms into
    convolutions before."""
    results: list[T] = []
    with torch.no_grad():
        program = torch.export.export(model.module, model.evaluation[0], strict=True)
        # Otherwise, torch inserts a call of a guard behind the inputs, and ExecuTorch's
        # ConcatObserver gives an input that is concatenated another range than the result.
        exported: Any = program.module(check_guards=False)
    mark_origins(exported.graph)
    quantizer = make_quantizer(soc)
    quantizer.set_default_quant_config(**configure(scheme))
    prepare = prepare_qat_pt2e if scheme.recipe.training_steps else prepare_pt2e
    with annotated(quantizer, Choices(), [lambda module: results.append(read(module))]):
        prepare(exported, quantizer)
    return results[0]


def list_units_of_graph(module: Any) -> list[Unit]:
    """Return the units of a graph that is annotated."""
    candidates = {candidate.name: candidate for candidate in list_candidates(module.graph)}
    selectable: dict[str, Selectable] = {}
    for node in module.graph.nodes:
        if node.name not in candidates:
            continue
        # In a Graph, the call of which it takes one result has all of them.
        call = node.args[0] if node.target is operator.getitem else node
        first, candidate = list_results(call)[0], candidates[node.name]
        names, path = selectable.get(first, ((), next(reversed(candidate.module), "")))
        selectable[first] = Selectable((*names, candidate.node[-1]), path)
    graph = read_calls(module, find_written(module.graph.nodes))
    return list_units(graph, selectable, count_products(graph))
