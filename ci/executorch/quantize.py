"""Quantization for QNN, with ranges that cover what was seen in calibration."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import (
    convert_pt2e,
    prepare_pt2e,
    prepare_qat_pt2e,
)

from ci.executorch.annotation import annotated, configure
from ci.executorch.specification import make_quantizer
from ci.executorch.training import train
from ci.models.eager import copy_inputs, keep_state
from ci.models.lowering_options import NO_CHOICES, Choices
from ci.models.methods import join_modules
from ci.models.model import Model, split_model
from ci.models.schemes import Scheme
from ci.models.user_code import Inputs
from provisioning.manifest.backends import Backend


def quantize_model(
    model: Model,
    scheme: Scheme,
    soc: str,
    choices: Choices = NO_CHOICES,
    backend: Backend = Backend.HTP,
) -> Any:
    """Quantize each method; the result runs eagerly and lowers to QNN."""
    parts = {
        name: quantize_method(part, scheme, choices, make_quantizer(soc, backend))
        for name, part in split_model(model).items()
    }
    return join_modules(model.module, parts)


def quantize_method(model: Model, scheme: Scheme, choices: Choices, quantizer: Any) -> GraphModule:
    """Calibrate, train where the scheme says so, and convert."""
    recipe = scheme.recipe
    # An exported program shares its weights with the module: training must not change the module's.
    module = copy.deepcopy(model.module) if recipe.training_steps else model.module
    with torch.no_grad():
        exported = torch.export.export(module, model.evaluation[0], strict=True).module()
    quantizer.set_default_quant_config(**configure(scheme))
    if recipe.block:
        quantizer.set_block_size_map(block_sizes(exported, recipe.block))
    with annotated(quantizer, choices):
        prepare = prepare_qat_pt2e if recipe.training_steps else prepare_pt2e
        prepared = prepare(exported, quantizer)
    own = [name for name, _ in model.module.named_buffers()]
    with keep_state(prepared, own):
        if recipe.training_steps:
            train(prepared, model, recipe.training_steps)
        else:
            calibrate(prepared, model.calibration)
    converted: GraphModule = convert_pt2e(prepared)
    return converted


def calibrate(prepared: GraphModule, sets: Sequence[Inputs]) -> None:
    """Show the observers every input set."""
    with torch.no_grad():
        for inputs in sets:
            prepared(*copy_inputs(inputs))


def block_sizes(graph_module: GraphModule, block: int) -> dict[str, tuple[int, ...]]:
    """Block shape (output, input, kernel...) by node, for the layers that blocks fit.

    One size for all: ExecuTorch 1.5.1 keeps one configuration for every node of a model.
    """
    sizes = {}
    for node in graph_module.graph.nodes:
        shape = _weight_shape(node)
        if shape and _takes_blocks(shape, block):
            sizes[node.name] = (1, block, *(1 for _ in shape[2:]))
    return sizes


def _takes_blocks(shape: tuple[int, ...], block: int) -> bool:
    # Measured with QNN 2.49.40: with a wider kernel the emulator computes something else than
    # the quantized eager model (SQNR near 0 dB, another result each time).
    _, inputs, *kernel = shape
    return not inputs % block and all(size == 1 for size in kernel)


def _weight_shape(node: Node) -> tuple[int, ...] | None:
    targets = {torch.ops.aten.conv2d.default, torch.ops.aten.linear.default}
    if node.op != "call_function" or node.target not in targets:
        return None
    weight: Any = node.args[1]
    value = weight.meta.get("val")
    return tuple(int(size) for size in value.shape) if value is not None else None
