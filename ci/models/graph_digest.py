"""The SHA-256 of what torch.export makes of a module: its graph, with state and constants.

A source, a configuration file and a library count by what they make of the graph, and by nothing
else; so do positions in the user's files, which the reasons of refusals name.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ci.models.eager import keep_state
from ci.models.numerics import fix_numerics
from ci.models.user_code import Inputs, find_line


def before_forks() -> None:
    """Let torch.export do once, before all forks, what is slow the first time."""
    fix_numerics()
    digest_graph(nn.Identity(), (torch.ones(1),))


def digest_graph(module: nn.Module, inputs: Inputs) -> str:
    """The digest for a module that can be exported, a new one for any other."""
    with torch.no_grad(), keep_state(module):
        try:
            program = torch.export.export(module, inputs, strict=False)
        except Exception:  # noqa: BLE001 - the lowering, which exports too, tells why
            return secrets.token_hex()
    digest = hashlib.sha256()
    for word in _describe(program):
        digest.update(f"{len(word)}:{word}".encode())
    for tensors in (program.state_dict, program.constants):
        _update_named(digest, tensors)
    return digest.hexdigest()


def _describe(program: Any) -> Iterable[str]:
    for specs in (program.graph_signature.input_specs, program.graph_signature.output_specs):
        yield from map(repr, specs)
    yield repr(program.call_spec)
    for name, part in program.graph_module.named_modules():
        yield name
        if isinstance(part, GraphModule):
            yield from map(_describe_node, part.graph.nodes)


def _describe_node(node: Node) -> str:
    target = node.target if isinstance(node.target, str) else _qualify(node.target)
    value = node.meta.get("val")
    shapes = [
        f"{leaf.dtype}{tuple(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)
        for leaf in torch.utils._pytree.tree_leaves(value)
    ]
    return f"{node.op} {node.name} {target} {node.args} {node.kwargs} {shapes} {find_line(node)}"


def _qualify(target: Any) -> str:
    named = getattr(target, "__name__", "")
    return f"{getattr(target, '__module__', '')}.{named}" if named else str(target)


def _update_named(digest: Any, tensors: Mapping[str, Any]) -> None:
    for name, value in sorted(tensors.items()):
        digest.update(f"{len(name)}:{name}".encode())
        if isinstance(value, Tensor):
            update_tensor(digest, value)
        else:
            digest.update(type(value).__qualname__.encode())


def update_tensor(digest: Any, tensor: Tensor) -> None:
    """Add dtype, shape, strides and elements."""
    held = tensor.detach().cpu()
    digest.update(f"{held.dtype}{tuple(held.shape)}{held.stride()}".encode())
    dense = held.contiguous()
    count = math.prod(dense.shape) * dense.element_size()
    digest.update(bytes(dense.reshape(-1).view(torch.uint8).numpy()) if count else b"")
