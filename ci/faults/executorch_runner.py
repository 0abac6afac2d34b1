"""Lowers and runs several graphs in one ExecuTorch program, in which each is a separate
subgraph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ci.analysis.grids import find_grids
from ci.analysis.noise import predict_noise
from ci.executorch.delegation import list_delegated
from ci.executorch.internals import pybindings, utils
from ci.executorch.lower import compiler_spec
from ci.executorch.patches import PATCHES_OF_SEARCH, apply_patches, warm_up
from ci.executorch.quantize import make_quantizer, quantize_method
from ci.executorch.toolchain import find_qnn_version
from ci.faults.results import LEFT, Edit, Item, Result, Runs, judge_graphs
from ci.faults.torch_graphs import UNKNOWN, bundle_items, find_part
from ci.graphs.torch_program import read_torch
from ci.models.eager import run_eager
from ci.models.lowering_options import NO_CHOICES
from ci.models.model import Model
from ci.models.numerics import fix_numerics
from ci.models.schemes import Scheme

# Operators that stay on the CPU around a program but compute nothing of the model.
AROUND = ("executorch_call_delegate", "getitem", "quantize", "view_copy", "to_dim_order_copy")


class NotTakenError(Exception):
    """Raised if several graphs were lowered together and a node stays on the CPU, but it is unknown
    to which graph that node belongs. The caller must try fewer graphs at a time."""


def before_forks() -> None:
    """Warm up ExecuTorch and apply the patches of the search, once before workers are forked."""
    warm_up(plain=False)
    # A generator: without list, no patch would be applied.
    list(apply_patches(PATCHES_OF_SEARCH))


def run_modules(
    items: Sequence[Item], scheme: Scheme, soc: str, edit: Edit | None = None
) -> list[Result]:
    """Lower the graphs of ``items`` as one program, run it, and return a result per graph. ``edit``
    applies the rewrite of a single item. Raises NotTakenError, StageError if the program cannot be
    lowered or run, and ExecuTorch's errors. Any of the graphs may have caused an error."""
    from ci.onnx.fallback import QNN, stage

    fix_numerics()
    graphs, module, samples = bundle_items(items, edit)
    sets = tuple(tuple(map(torch.from_numpy, arrays)) for arrays in samples)
    if scheme.quantized:
        # Calibrated on the judged samples, so that no value leaves its range.
        model = Model("graphs", module, sets, sets)
        module = quantize_method(model, scheme, NO_CHOICES, make_quantizer(soc))
    right = run_eager(module, sets)
    program = read_torch(module, sets[0])
    noise = predict_noise(program, sets, qnn=find_qnn_version())
    with stage(QNN):
        actual, left = lower_and_run(module, sets, scheme, soc)
    if UNKNOWN in left:
        if len(items) > 1:
            raise NotTakenError(left[UNKNOWN])
        left = {0: left[UNKNOWN]}
    # The verdict uses the quantization step only with 8-bit activations.
    steps = [0.0] * len(right[0])
    if scheme.recipe.activation_bits == 8:
        steps = [grid.step for grid in find_grids(program.graphs.values())]
    counts = [len(graph.outputs) for graph in graphs]
    return judge_graphs(items, counts, Runs(right, actual, noise, steps), left, scheme)


def lower_and_run(
    module: Any, sets: Sequence[Any], scheme: Scheme, soc: str
) -> tuple[list[list[Any]], dict[int, str]]:
    """Lower a module with several graphs, run it on the samples, and return the outputs per
    sample. Also return messages about operators that stay on the CPU, at most one per graph. The
    keys are the numbers of the graphs, or UNKNOWN if the graph cannot be determined."""
    with torch.no_grad():
        edge = utils.to_edge_transform_and_lower_to_qnn(
            module,
            sets[0],
            compiler_spec(scheme, soc),
            convert_linear_to_conv2d=scheme.recipe.linear_as_convolution,
            # A delegated buffer starts with arbitrary contents, see ci.executorch.lower.
            skip_mutable_buffer=True,
        )
    lowered = edge.exported_program().graph_module
    left = {}
    for node in lowered.graph.nodes:
        if node.op != "call_function":
            continue
        name = getattr(node.target, "__name__", str(node.target))
        if not any(word in name for word in AROUND):
            left[find_part(node)] = name + LEFT
    if not left and not list_delegated(lowered):
        left = {UNKNOWN: "everything" + LEFT}
    buffer = edge.to_executorch().buffer  # the program reads it for as long as it runs
    program = pybindings._load_for_executorch_from_buffer(buffer)
    runs = []
    for inputs in sets:
        outputs = program.run_method("forward", inputs)
        # Copies, because the next run may write to the same memory.
        runs.append([np.array(output) for output in outputs])
    return runs, left
