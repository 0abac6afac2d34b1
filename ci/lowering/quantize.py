"""Post-training quantization for QNN HTP, with ranges that cover what was seen in calibration."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ci.lowering.model import Model
from ci.lowering.references.eager import copy_inputs, keep_state
from ci.lowering.schemes import Scheme


def quantize_model(model: Model, scheme: Scheme, soc: str) -> GraphModule:
    """Calibrate and convert; the result runs eagerly and lowers to QNN.

    The moving average of ExecuTorch's default observer clips what few calibration sets hold;
    minimum and maximum do not.
    """
    with torch.no_grad():
        exported = torch.export.export(model.module, model.evaluation[0], strict=True).module()
    quantizer = QnnQuantizer(soc_model=QcomChipset[soc])
    quantizer.set_default_quant_config(
        QuantDtype[scheme.recipe.dtype],
        is_conv_per_channel=True,
        is_linear_per_channel=True,
        act_observer=MinMaxObserver,
    )
    if scheme.recipe.block:
        quantizer.set_block_size_map(block_sizes(exported, scheme.recipe.block))
    prepared = prepare_pt2e(exported, quantizer)
    own = [name for name, _ in model.module.named_buffers()]
    with torch.no_grad(), keep_state(prepared, own):
        for inputs in model.calibration:
            prepared(*copy_inputs(inputs))
    converted: GraphModule = convert_pt2e(prepared)
    return converted


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
