"""Opens PyTorch models for localise, and writes their parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from ci.audit.localise_graph import Division, find_alike
from ci.audit.localise_search import Cut
from ci.graphs.torch_calls import list_results
from ci.graphs.torch_part import change_scales, cut_module, read_constant
from ci.graphs.torch_program import TorchProgram
from ci.models.factory import Inputs
from ci.models.model import FORWARD
from ci.models.user_code import name_module
from provisioning.errors import UsageError

RELEASED = re.compile(r";  .* = None$", re.MULTILINE)  # in the code that torch generates


def divide_module(module: nn.Module, float32: nn.Module, sets: Sequence[Inputs]) -> Division:
    """Return the division of a model with one method. ``module`` is ``float32`` or its quantized
    form. Raises UsageError if the model changes its buffers."""
    with torch.no_grad():
        program = torch.export.export(float32, sets[0], strict=True)
    plain: Any = program.module(check_guards=False)
    require_stateless(plain)
    return make_division(module if isinstance(module, GraphModule) else plain, plain, sets)


def make_division(module: GraphModule, plain: GraphModule, sets: Sequence[Inputs]) -> Division:
    """Return the division of a graph. ``plain`` is that of the float32 model, or the same one."""
    program = TorchProgram(module, {FORWARD: module})
    inputs = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    modules = {
        name: name_module(node) for node in module.graph.nodes for name in list_results(node)
    }
    if module is plain:
        return Division(program, inputs, sets, modules=modules)
    float32 = TorchProgram(plain, {FORWARD: plain})
    (graph,), (float_graph,) = program.graphs.values(), float32.graphs.values()
    return Division(program, inputs, sets, float32, find_alike(graph, float_graph), modules)


def require_stateless(module: GraphModule) -> None:
    """Raise UsageError if a graph writes to its buffers."""
    live = set[Any]()
    for node in module.graph.nodes:
        if node.op == "placeholder" or any(source in live for source in node.all_input_nodes):
            live.add(node)
    for node in module.graph.nodes:
        # Since 2.6, torch.export keeps operators that write in place, and its signature names no
        # changed buffers.
        mutates = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        written = node.all_input_nodes[:1] if mutates else []
        if all(source in live for source in written):
            continue
        raise UsageError(
            "localise cannot divide a model that changes its buffers",
            why="the results for a sample depend on the sets before it",
            fix="pass the state as inputs and outputs, as ci/models/suite/decoder.py does",
        )


def write_module(division: Division, cut: Cut) -> tuple[GraphModule, list[Inputs]]:
    """Return a part of a model, and its inputs per sample."""
    part, recorded = division.cut(cut)
    program: Any = division.program
    module = cut_module(program.module, part.inputs, [*part.outputs.values()])
    if cut.mended:
        change_scales(module, part.scales, part.biases)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    sets = []
    for arrays in recorded:
        tensors = map(torch.from_numpy, arrays)
        sets.append(tuple(map(restore_type, tensors, placeholders)))
    return module, sets


def restore_type(tensor: Tensor, placeholder: Any) -> Tensor:
    """Return a recorded tensor in the type of the input, because NumPy has no bfloat16."""
    value = placeholder.meta.get("val")
    is_short = isinstance(value, Tensor) and value.dtype is torch.bfloat16
    return tensor.bfloat16() if is_short else tensor


def write_code(division: Division, cut: Cut, file: Path) -> str:
    """Write the weights and inputs of a part to ``file``, and return the Python code of the part's
    ``forward`` method."""
    module, sets = write_module(division, cut)
    weights: dict[str, Any] = {}
    names: dict[str, str] = {}
    graph, copies = Graph(), dict[Any, Any]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            name = names.setdefault(str(node.target), f"weight_{len(names)}")
            weights[name] = read_constant(module, node).detach().clone()
            copies[node].target = name
        if node.op == "output":
            graph.lint()
    text = RELEASED.sub("", graph.python_code("self").src)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"weights": weights, "inputs": sets}, file)
    return "\n".join(f"    {line}".rstrip() for line in text.strip().splitlines())
