"""A batch norm that no convolution absorbs, as a product and a sum with constants."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ci.mend.rewrite import Change, find_place

ABSORB = (
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv_transpose2d.input,
    torch.ops.aten.linear.default,
)


def scale_batch_norm(module: fx.GraphModule) -> tuple[Change, ...]:
    """Replace each batch norm with running statistics by ``x * g + o``, except directly behind a
    convolution or a linear layer, into which it is folded anyway."""
    changes = []
    for node in list(module.graph.nodes):
        if node.target is not torch.ops.aten.batch_norm.default:
            continue
        x, weight, bias, mean, variance, training, _, eps, *_ = node.args
        held = [weight, bias, mean, variance]
        if training or x.target in ABSORB or any(one and one.op != "get_attr" for one in held):
            continue
        gain, offset, mean, variance = (one and read_attribute(module, one) for one in held)
        scale = torch.rsqrt(variance.double() + eps)
        gain = scale if gain is None else gain.double() * scale
        offset = -mean.double() * gain + (0 if offset is None else offset.double())
        shape = (1, -1, *[1] * (x.meta["val"].dim() - 2))
        with module.graph.inserting_before(node):
            made = []
            for name, value in (("gain", gain), ("offset", offset)):
                attribute = f"{node.name}_{name}"
                module.register_buffer(attribute, value.to(mean.dtype).reshape(shape))
                made.append(module.graph.get_attr(attribute))
                made[-1].meta["val"] = getattr(module, attribute)
            product = module.graph.call_function(torch.ops.aten.mul.Tensor, (x, made[0]))
            result = module.graph.call_function(torch.ops.aten.add.Tensor, (product, made[1]))
        for one in (product, result):
            one.meta = {**node.meta}
        node.replace_all_uses_with(result)
        module.graph.erase_node(node)
        changes.append(Change((node.name,), find_place(node), "BatchNorm(x)", "x * g + o"))
    return tuple(changes)


def read_attribute(module: fx.GraphModule, node: fx.Node) -> Tensor:
    """Return the parameter, buffer or constant that a get_attr node reads."""
    found: object = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    if not isinstance(found, Tensor):
        raise TypeError(f"{node.target} is no tensor")
    return found.detach()
