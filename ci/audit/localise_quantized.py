"""Finds ranges and biases of a quantized graph that can make QNN's program differ from the graph,
and changes the graph so that the difference disappears."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from ci.models.noise import name_operator

Range = tuple[float, float]
TENSOR = ("quantize_per_tensor", "dequantize_per_tensor")
LAYERS = ("linear", "conv1d", "conv2d", "conv3d")
WIDER = 1.01  # an additional factor, because values may grow when other ranges change


def find_range(node: Node) -> Range | None:
    """Return the lowest and the highest value that a quantizer or dequantizer of a whole tensor can
    represent; None for other nodes."""
    if name_operator(node) not in TENSOR:
        return None
    scale, zero, low, high = (float(str(number)) for number in node.args[1:5])
    return (low - zero) * scale, (high - zero) * scale


def measure_clipping(value: Tensor, bounds: Range | None) -> float:
    """Return how far values exceed a bound of a range, as a share of the bound; 0 if they do not. A
    bound of 0 is ignored, because it comes from a fused activation such as ReLU."""
    if bounds is None or not value.is_floating_point():
        return 0.0
    low, high = bounds
    least, most = float(value.min()), float(value.max())
    shares = [most / high - 1 if high > 0 else 0.0, least / low - 1 if low < 0 else 0.0]
    step = 2**-15  # rounding alone may exceed a bound by this share
    return max((share for share in shares if share > step), default=0.0)


def find_bias_off(module: GraphModule, node: Node) -> float:
    """Return the relative difference between the scale of a layer's bias and the product of the
    scales of its input and its weights; 0 if the node is not a quantized layer with a bias."""
    scales = _read_scales(module, node)
    if scales is None:
        return 0.0
    given, wanted = scales
    return float((given / wanted - 1).abs().max())


def mend_biases(module: GraphModule) -> None:
    """Give a separate bias to each layer whose bias does not have the scale that QNN expects: the
    product of the scales of the layer's input and weights."""
    for node in list(module.graph.nodes):
        if find_bias_off(module, node):
            _, wanted = _read_scales(module, node) or (None, None)
            rounded: Any = node.args[2]
            whole, scale = (_read(module, one) for one in rounded.args[:2])
            steps = (whole * scale.double() / wanted).round().to(whole.dtype)
            values = {"bias": steps, "scale": wanted}
            with module.graph.inserting_before(node):
                made = []
                for kind, value in values.items():
                    module.register_buffer(f"{node.name}_{kind}", value)
                    made.append(module.graph.get_attr(f"{node.name}_{kind}"))
                own = module.graph.call_function(rounded.target, (*made, *rounded.args[2:]))
            node.update_arg(2, own)
    module.recompile()


def widen_ranges(module: GraphModule, clipped: Mapping[Range | None, float]) -> None:
    """Widen quantization ranges so that the values found by measure_clipping are not clipped.
    ``clipped`` is its result: it maps a range to how far values exceed it, as a share of the
    exceeded bound."""
    for node in module.graph.nodes:
        exceeded = clipped.get(find_range(node))
        if exceeded:
            scale: Any = node.args[1]
            node.update_arg(1, scale * (1 + exceeded) * WIDER)
    module.recompile()


def _read_scales(module: GraphModule, node: Node) -> tuple[Tensor, Tensor] | None:
    """Return two scales of a layer's bias, per channel: the actual scale, and the product of the
    scales of the layer's input and weights. Return None if the node is not a quantized layer with a
    bias."""
    if name_operator(node) not in LAYERS:
        return None
    rounded = [one for one in node.args[:3] if isinstance(one, Node)]
    kinds = [name_operator(one).removeprefix("de") for one in rounded]
    if kinds != ["quantize_per_tensor", "quantize_per_channel", "quantize_per_channel"]:
        return None
    entry, weight, bias = (_read(module, one.args[1]) for one in rounded)
    return bias, (entry * weight).to(bias.dtype)


def _read(module: GraphModule, value: Any) -> Any:
    """Return the tensor to which a get_attr node refers. Any other value is returned unchanged."""
    if not isinstance(value, Node):
        return value
    owner, _, name = str(value.target).rpartition(".")
    return getattr(module.get_submodule(owner), name)
