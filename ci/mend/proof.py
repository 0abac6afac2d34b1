"""Proves that a rewritten module computes the same function as the original one, in float32.

Both run on the user's inputs and on others of the same shapes and dtypes. They also run with other
values between their operators, because inside of a model, inputs alone seldom reach small values or
zeros, at which a lost epsilon or a wrong sign shows.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves

from ci.mend.different import DRAWN, Different, compare_arrays, thin_out
from ci.mend.rewrite import Change, export_module, rewrite_graph
from ci.models.eager import copy_inputs, flatten_outputs, keep_state, run_eager
from ci.models.factory import Inputs

# The values that replace inputs or results. All keep the signs and the order of magnitude or less,
# because a model may compute only for such values, such as a logarithm of a positive number.
SCALES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda value: value * 1e-3,
    torch.zeros_like,
    lambda value: value.flatten().flip(0).reshape(value.shape),
)


class RewriteProof:
    """Compares rewritten forms of a module with the module itself, on the judged samples
    ``sets`` and on others."""

    def __init__(self, module: nn.Module, sets: Sequence[Inputs]) -> None:
        self.module, self.sets = module, sets
        self.original = copy_graph(export_module(module, sets[0]))
        self.original_outputs = [run_once(module, inputs) for inputs in sets]

    def rewrite(self, names: Sequence[str]) -> tuple[fx.GraphModule, list[tuple[Change, ...]]]:
        """Return the rewritten module, and what each rewrite changed."""
        return rewrite_graph(copy_graph(self.original), names)

    def measure(self, rewritten: fx.GraphModule, bound: float, replaced: Sequence[str]) -> float:
        """Return the largest difference between the outputs of the module and those of its
        rewritten form, relative to the range of an output. ``replaced`` are the names of the nodes
        that were replaced.

        Raises Different if a difference exceeds ``bound``, if outputs have other names, shapes or
        dtypes, if other elements are NaN or infinite, if the state differs, or if the rewritten
        module draws random numbers.
        """
        compare_form(self.original, rewritten)
        differences = []
        for inputs, originals, outputs in self.run_both(rewritten, replaced):
            differences.append(compare(originals, outputs, bound, inputs))
        return max(differences)

    def run_both(
        self, rewritten: fx.GraphModule, replaced: Sequence[str]
    ) -> Iterator[tuple[str, Inputs, Inputs]]:
        """Yield what the module and its rewritten form are run on, and the outputs of both. Random
        inputs within the ranges of the given sets and other values are left out if they make
        infinite outputs."""
        for inputs, originals in zip(self.sets, self.original_outputs, strict=True):
            yield "the given inputs", originals, run_once(rewritten, inputs)
        for inputs in self.make_inputs():
            originals = run_once(self.original, inputs)
            if all(map(is_finite, originals)):
                yield "random inputs", originals, run_once(rewritten, inputs)
        for name in choose_cuts(self.original, rewritten, replaced):
            for change in SCALES:
                originals = run_changed(self.original, self.sets[0], name, change)
                if all(map(is_finite, originals)):
                    outputs = run_changed(rewritten, self.sets[0], name, change)
                    yield f"other values of {name}", originals, outputs

    def make_inputs(self) -> Iterator[Inputs]:
        """Yield random inputs within the ranges of the given sets, then variations of the first
        set."""
        generator = torch.Generator().manual_seed(0)
        columns = [*zip(*self.sets, strict=True)]  # all samples of an input
        for _ in range(DRAWN):
            yield tuple(draw(column, generator) for column in columns)
        for change in SCALES:
            yield tuple(change_float(tensor, change) for tensor in self.sets[0])


def change_float(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a changed floating-point tensor, and another one as it is."""
    return change(tensor) if tensor.is_floating_point() else tensor


def copy_graph(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a copy that shares no tensor, because a rewrite may write to parameters."""
    with warnings.catch_warnings():  # torch 2.13 warns about its own LeafSpec
        warnings.simplefilter("ignore", FutureWarning)
        return copy.deepcopy(graph)


def compare_form(original: fx.GraphModule, rewritten: fx.GraphModule) -> None:
    """Raise Different if the structure of the inputs or outputs differs, or if the rewritten graph
    draws random numbers."""
    for name in ("in_spec", "out_spec"):
        if getattr(original, f"_{name}") != getattr(rewritten, f"_{name}"):
            raise Different(f"the names or the number of its {name.partition('_')[0]}puts differ")
    # Not all of them: dropout in eval mode draws nothing, and was in the original.
    added = list_random(rewritten) - list_random(original)
    if added:
        raise Different(f"{min(added)} draws random numbers")


def list_random(graph: fx.GraphModule) -> set[str]:
    """Return the calls of operators that draw random numbers, or would in training, with their
    options: their operands may be rewritten."""
    calls = set()
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            options = [arg for arg in tree_leaves(node.args) if not isinstance(arg, Node)]
            calls.add(f"{node.name}{options}")
    return calls


def run_once(module: nn.Module, inputs: Inputs) -> Inputs:
    """Return a module's outputs for one sample, followed by the buffers that the run changed."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with keep_state(module):
        (outputs,) = run_eager(module, [inputs])
        changed = []
        for name, buffer in sorted(module.named_buffers(), key=itemgetter(0)):
            if not torch.equal(before[name], buffer):
                changed.append(buffer.clone())
    return (*outputs, *changed)


def run_changed(
    graph: fx.GraphModule, inputs: Inputs, name: str, change: Callable[[Tensor], Tensor]
) -> Inputs:
    """Return a graph's outputs if ``change`` replaces the result of the node ``name``."""

    class Changing(Interpreter):
        def run_node(self, n: Node) -> object:
            result = super().run_node(n)
            return change(result) if n.name == name else result

    with torch.no_grad(), keep_state(graph):
        return flatten_outputs(Changing(graph).run(*copy_inputs(inputs)))


def draw(column: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return a random tensor with the shape, the dtype and the range of the tensors of a
    column."""
    first = column[0]
    shape = first.shape
    if first.dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    samples = torch.stack(list(column))
    low, high = float(samples.amin()), float(samples.amax())
    if first.is_floating_point():
        return (torch.rand(shape, generator=generator) * (high - low) + low).to(first.dtype)
    return torch.randint(int(low), int(high) + 1, shape, generator=generator).to(first.dtype)


def choose_cuts(
    original: fx.GraphModule, rewritten: fx.GraphModule, replaced: Sequence[str]
) -> list[str]:
    """Return the names of floating-point results that depend on an input, that both graphs have and
    that nodes of ``replaced`` or, if there are none, removed nodes read. These results determine
    what the replaced nodes compute."""
    remaining = {node.name: node.target for node in rewritten.graph.nodes}
    cuts: dict[str, None] = {}  # a set in order
    varying: set[Node] = set()
    for node in original.graph.nodes:
        if node.op == "placeholder" or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
        if node.name not in replaced and node.name in remaining:
            continue
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            # A rewrite may change a node's operator in place, such as relu_ to relu.
            is_same = remaining.get(operand.name) == operand.target
            if operand in varying and is_float and is_same and operand.name not in replaced:
                cuts[operand.name] = None
    return thin_out(cuts)


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor has neither NaN nor infinite elements."""
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def compare(originals: Inputs, outputs: Inputs, bound: float, inputs: str) -> float:
    """Compare two lists of outputs, see compare_arrays."""
    original_dtypes = [str(tensor.dtype) for tensor in originals]
    dtypes = [str(tensor.dtype) for tensor in outputs]
    if dtypes != original_dtypes:
        raise Different(f"the outputs have the dtypes {dtypes} instead of {original_dtypes}")
    return compare_arrays(list_arrays(originals), list_arrays(outputs), bound, inputs)


def list_arrays(tensors: Inputs) -> list[NDArray[Any]]:
    """Return tensors as arrays. NumPy has no bfloat16: such tensors become float32."""
    arrays = []
    for tensor in tensors:
        widened = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        arrays.append(widened.numpy())
    return arrays
