"""What a rewrite is: a function that edits a graph in place and returns what it changed. Importing
this module imports neither torch nor onnx."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ci.facts.finding import Place

if TYPE_CHECKING:
    import onnx
    from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Change:
    """A place where a rewrite was applied. ``nodes`` are the names of the nodes that it replaced.
    ``place`` is the line of the user's source, or None if it is unknown. ``before`` and ``after``
    describe the change in one line each, in the words of the user's source, such as
    ``nn.AvgPool2d(..., ceil_mode=True)``."""

    nodes: tuple[str, ...]
    place: Place | None
    before: str
    after: str


# Edits the unlifted module of torch.export in place: operators of aten; parameters, buffers and
# constants are get_attr nodes; ``node.meta["val"]`` has each result's shape and dtype. Returns the
# changes, or () if it changed nothing.
TorchRewrite: TypeAlias = "Callable[[fx.GraphModule], tuple[Change, ...]]"
# Edits an ONNX model whose shapes have been inferred in place, and returns the same.
OnnxRewrite: TypeAlias = "Callable[[onnx.ModelProto], tuple[Change, ...]]"

TORCH, ONNX = "ci.mend.torch_rewrites", "ci.mend.onnx_rewrites"


def find_place(node: Any) -> Place | None:
    """Return the line of the user's source that a node of torch comes from, or None if it is
    unknown."""
    from ci.models.source_lines import find_places
    from ci.models.user_code import find_line

    return next(iter(find_places(find_line(node))), None)


def find_rewrite(package: str, name: str) -> Callable[[Any], tuple[Change, ...]] | None:
    """Return the function of a rewrite in the dict REWRITES of a package, TORCH or ONNX. Return
    None if there is no function with this name."""
    found = importlib.import_module(package).REWRITES.get(name)
    return cast("Callable[[Any], tuple[Change, ...]] | None", found)


def export_module(module: nn.Module, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Return a module, in eval mode, as the graph that rewrites edit. Unlike torch.export's own
    result, it can be switched to training and exported again."""
    import torch

    program = torch.export.export(module.eval(), tuple(inputs), strict=False)
    exported = program.module(check_guards=False)
    return torch.fx.GraphModule(exported, exported.graph).eval()


def rewrite_module(
    module: nn.Module, inputs: Sequence[Tensor], names: Sequence[str]
) -> fx.GraphModule:
    """Return a module with rewrites applied, in the order of ``names``. ``inputs`` are an example
    of its inputs. Raises ValueError if there is no rewrite with one of the names, or if it changes
    nothing."""
    graph = export_module(module, inputs)
    for number, name in enumerate(names):
        rewrite = find_rewrite(TORCH, name)
        if rewrite is None:
            raise ValueError(f"there is no rewrite {name!r}")
        if number:  # so that the nodes that the last rewrite added have shapes
            graph = export_module(graph, inputs)
        if not apply(rewrite, graph):
            raise ValueError(f"the rewrite {name!r} finds nothing to change in this model")
    return graph


def apply(rewrite: TorchRewrite, graph: fx.GraphModule) -> tuple[Change, ...]:
    """Apply a rewrite to a graph in place, and return what it changed."""
    changes = rewrite(graph)
    if changes:
        graph.graph.eliminate_dead_code()
        graph.delete_all_unused_submodules()
        graph.graph.lint()
        graph.recompile()
    return changes
