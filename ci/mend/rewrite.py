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

    from ci.mend.litert_files import EditedFile


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
# constants are get_attr nodes; ``node.meta["val"]`` has each result's shape and dtype, also that of
# new nodes. Nodes that are not replaced keep their names, by which the proof compares them. Returns
# the changes, or () if it changed nothing.
TorchRewrite: TypeAlias = "Callable[[fx.GraphModule], tuple[Change, ...]]"
# Edits an ONNX model whose shapes have been inferred in place, and returns the same.
OnnxRewrite: TypeAlias = "Callable[[onnx.ModelProto], tuple[Change, ...]]"
# Edits a .tflite file in place, and returns the same.
LitertRewrite: TypeAlias = "Callable[[EditedFile], tuple[Change, ...]]"

TORCH, ONNX = "ci.mend.torch_rewrites", "ci.mend.onnx_rewrites"
LITERT = "ci.mend.litert_rewrites"
EXTERNAL, SAMPLES = ".data", ".npz"  # suffixes of the files next to a rewritten .onnx file


def find_place(node: Any) -> Place | None:
    """Return the line of the user's source that a node of torch comes from, or None if it is
    unknown."""
    from ci.models.user_code import find_origin

    return next(iter(find_origin(node).places), None)


def find_rewrite(package: str, name: str) -> Callable[[Any], tuple[Change, ...]]:
    """Return the function of a rewrite in the dict REWRITES of a package, TORCH, ONNX or LITERT.
    Raises ValueError if there is no function with this name."""
    rewrites = importlib.import_module(package).REWRITES
    if name not in rewrites:
        raise ValueError(f"there is no rewrite {name!r}")
    return cast("Callable[[Any], tuple[Change, ...]]", rewrites[name])


def require_changes(
    names: Sequence[str], changes: Sequence[tuple[Change, ...]], model: str = "this model"
) -> None:
    """Raise ValueError if one of the rewrites changed nothing. ``changes`` are those of each
    rewrite, in the order of ``names``."""
    for name, changes_of_rewrite in zip(names, changes, strict=True):
        if not changes_of_rewrite:
            raise ValueError(f"the rewrite {name!r} finds nothing to change in {model}")


def export_module(module: nn.Module, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Return a module, in eval mode, as the graph that rewrites edit. Unlike torch.export's own
    result, it can be switched to training and exported again."""
    import torch

    program = torch.export.export(module.eval(), tuple(inputs), strict=False)
    # Guards would be calls behind the inputs, which change the ranges of ExecuTorch's quantizer.
    exported = program.module(check_guards=False)
    separate_rows(exported, module, inputs)
    return torch.fx.GraphModule(exported, exported.graph).eval()


def separate_rows(graph: fx.GraphModule, module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Store each row of a parameter that a module iterates over as a parameter of its graph. In the
    graph, the iteration is an unbind, and ExecuTorch 1.5.1 refuses that of a parameter
    (AnnotateUnbind: list index out of range). It takes the module, of which torch.export with
    ``strict`` makes no unbind, unless the module calls it."""
    import torch

    unbind, parameters = torch.ops.aten.unbind.int, dict(graph.named_parameters())
    nodes = graph.graph.find_nodes(op="call_function", target=unbind)
    nodes = [
        node
        for node in nodes
        if node.args[0].op == "get_attr" and str(node.args[0].target) in parameters
    ]
    if not nodes:
        return
    try:
        strict = torch.export.export(module, tuple(inputs), strict=True)
    except Exception:  # noqa: BLE001 - it has no common class, and the module is refused then
        return
    if strict.graph.find_nodes(op="call_function", target=unbind):
        return
    for node in nodes:
        parameter = parameters[str(node.args[0].target)]
        rows = torch.unbind(parameter.detach(), *node.args[1:])
        for item in [*node.users]:
            name = f"{node.name}_row_{item.args[1]}"
            row = torch.nn.Parameter(rows[item.args[1]].clone(), parameter.requires_grad)
            graph.register_parameter(name, row)
            with graph.graph.inserting_before(item):
                attribute = graph.graph.get_attr(name)
            attribute.meta = {"val": item.meta["val"]}
            item.replace_all_uses_with(attribute)
            graph.graph.erase_node(item)
        graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def call_rewritten(reference: str, names: Sequence[str]) -> tuple[Any, ...]:
    """Call a factory, ``/absolute/file.py:factory``, and return what it returns, with rewrites
    applied to the module. Raises the same errors as ``rewrite_module``."""
    from ci.models.user_code import load_function

    module, example, *calibration = load_function(reference)()
    inputs = example if isinstance(example, (tuple, list)) else (example,)
    return (rewrite_module(module, inputs, names), example, *calibration)


def rewrite_module(
    module: nn.Module, inputs: Sequence[Tensor], names: Sequence[str]
) -> fx.GraphModule:
    """Return a module with rewrites applied, in the order of ``names``. ``inputs`` are an example
    of its inputs. Raises ValueError if there is no rewrite with one of the names, or if it changes
    nothing."""
    graph, changes = rewrite_graph(export_module(module, inputs), names)
    require_changes(names, changes)
    return graph


def rewrite_graph(
    graph: fx.GraphModule, names: Sequence[str]
) -> tuple[fx.GraphModule, list[tuple[Change, ...]]]:
    """Apply rewrites to a graph of export_module, and return it and what each rewrite changed.
    Raises ValueError if there is no rewrite with one of the names."""
    changes: list[tuple[Change, ...]] = []
    for name in names:
        changes.append(find_rewrite(TORCH, name)(graph))
        graph.graph.eliminate_dead_code()
        graph.delete_all_unused_submodules()
        graph.graph.lint()
        graph.recompile()
    return graph, changes
