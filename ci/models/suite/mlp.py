"""A multi-layer perceptron: 3 linear layers, [4, 64] -> [4, 16]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ci.models.suite.seeding import Case, draw_normal, make_inputs, seed_weights


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 16)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map features [4, 64] to logits [4, 16]."""
        return self.layers(features)


def make_case() -> Case:
    return (seed_weights(Mlp(), 1, gain=1.4), *make_inputs(draw_normal(4, 64), 101))


def make_row() -> Case:
    """Return the same model with a batch size of 1, so that its graph differs."""
    return (seed_weights(Mlp(), 1, gain=1.4), *make_inputs(draw_normal(1, 64), 151))


def make_ternary() -> Case:
    """Return an MLP whose weights are -1, 0 or 1 times a scale per output. One weight per output is
    1.5 times the scale, because ExecuTorch's 2-bit quantizer (-2 to 1) divides the largest weight
    by 1.5."""
    model, example, calibration = make_case()
    with torch.no_grad():
        for weight in filter(lambda parameter: parameter.dim() > 1, model.parameters()):
            scale = weight.abs().mean(1, keepdim=True)
            weight.copy_((weight / scale).round().clamp(-1, 1) * scale)
            weight[:, :1] = 1.5 * scale
    return model, example, calibration


def annotate_last(graph_module: torch.fx.GraphModule) -> None:
    """Annotate the last layer with 16-bit activations."""
    from executorch.backends.qualcomm.quantizer.qconfig import get_16a8w_qnn_ptq_config
    from executorch.backends.qualcomm.utils.constants import QCOM_QUANT_ANNOTATION_KEY
    from torchao.quantization.pt2e import MinMaxObserver
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation

    config: Any = get_16a8w_qnn_ptq_config(act_observer=MinMaxObserver)
    linear = torch.ops.aten.linear.default
    *_, last = (node for node in graph_module.graph.nodes if node.target is linear)
    features, weight, bias = last.args
    specs = {features: config.input_activation, weight: config.weight, bias: config.bias}
    last.meta[QCOM_QUANT_ANNOTATION_KEY] = QuantizationAnnotation(
        input_qspec_map=specs, output_qspec=config.output_activation, _annotated=True
    )


def make_recipe() -> object:
    """Return a recipe: 8a8w with per-channel linear layers; the first has 16-bit activations."""
    from executorch.backends.qualcomm.quantizer.quant_recipe import QuantGranularity, QuantRecipe
    from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype
    from torchao.quantization.pt2e import MinMaxObserver

    per_tensor, channel = QuantGranularity.PER_TENSOR, QuantGranularity.PER_CHANNEL
    recipe: Any = QuantRecipe(
        QuantDtype.use_8a8w, is_qat=False, act_observer=MinMaxObserver, granularity=per_tensor
    )
    linear = {torch.ops.aten.linear.default}
    recipe.add_node_target(linear, QuantDtype.use_8a8w, False, MinMaxObserver, channel)
    first = {r"layers\.0$"}
    return recipe.add_regex(first, QuantDtype.use_16a8w, False, MinMaxObserver, channel, priority=2)
