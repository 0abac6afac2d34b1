"""Computes what the gate needs for a comparison: the outputs of the model that was lowered and of
the float32 model, and the predicted rounding noise. This runs in the process of the test, because
only that process has the modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_unflatten

from ci.analysis.grids import NO_GRID, add_grids, find_grids
from ci.analysis.noise import predict_noise
from ci.analysis.parts import find_parts
from ci.analysis.ties import find_ties
from ci.cases.engine import Notes
from ci.executorch.quantize import round_blocks
from ci.executorch.toolchain import find_qnn_version
from ci.graphs.torch_calls import name_operator
from ci.graphs.torch_program import TorchProgram, read_graphs, read_torch
from ci.graphs.torch_reader import read_module
from ci.models.eager import keep_state, run_eager
from ci.models.model import split_module
from ci.models.schemes import Scheme
from ci.models.tensors import OutputPart, TensorInfo, add_parts, describe_tensor
from ci.upstream.capture import Check, Tensors
from ci.upstream.comparison import Arrays, Comparison, Member

# The keys are the bits of activations and the bits of weights. 0 means that the activations are
# float16, or that the graph has no weights.
SCHEMES = {
    (8, 8): Scheme.A8W8,
    (8, 0): Scheme.A8W8,
    (8, 4): Scheme.A8W4,
    (16, 8): Scheme.A16W8,
    (16, 0): Scheme.A16W8,
    (16, 16): Scheme.A16W16,
    (16, 4): Scheme.A16W4,
    (16, 2): Scheme.A16W2,
    (0, 8): Scheme.FP16W8,
}
WIDTHS = (2, 4, 8, 16)
# The operators whose constants a scheme's weights are. The constants of others, such as the second
# operand of an addition, are quantized as activations are.
WEIGHTED = ("conv", "linear", "embedding", "matmul", "addmm", "mm")


@dataclass(frozen=True)
class Widths:
    """The bits of a graph's quantizers. ``activation`` is the most frequent width of activations,
    and 0 if none are quantized. ``constant`` and ``weight`` are the smallest widths of all
    constants and of the weights of operators in WEIGHTED, and 0 if there are none. ``blocks`` is
    true if any weights are quantized by blocks."""

    activation: int = 0
    constant: int = 0
    weight: int = 0
    blocks: bool = False
    is_quantized: bool = False

    def find_scheme(self) -> Scheme | None:
        """Return the scheme with these widths: FP16 if nothing is quantized, None if no scheme has
        them."""
        if not self.is_quantized:
            return Scheme.FP16
        if self.blocks:
            return Scheme.A16W4_BLOCK
        return SCHEMES.get((self.activation, self.constant))

    def fit(self, scheme: Scheme) -> bool:
        """Return whether a graph with these widths may be of ``scheme``. Without weights, only its
        activations decide."""
        if self.blocks or not scheme.quantized:
            return self.find_scheme() is scheme
        if scheme is Scheme.A16W4_BLOCK and self.weight:
            return False  # its weights would be quantized by blocks
        bits = scheme.recipe.activation_bits
        return self.activation == bits and self.weight in {0, scheme.weight_bits}


def read_widths(program: Any) -> Widths:
    """Return the widths of a module, which are 0 unless it is a graph with quantizers."""
    nodes = [*program.graph.nodes] if isinstance(program, GraphModule) else []
    activations, constants, weights = list[int](), list[int](), list[int]()
    is_quantized = has_blocks = False
    for node in nodes:
        if "quantize_" not in name_operator(node):
            continue
        is_quantized = True
        if "affine" in name_operator(node):
            has_blocks = True
            continue
        bits = _count_bits(node)
        source = node.args[0]
        if not isinstance(source, Node) or source.op != "get_attr":
            activations += [bits] if bits else []
        elif bits:
            constants.append(bits)
            if any(name_operator(user).startswith(WEIGHTED) for user in list_readers(node)):
                weights.append(bits)
    return Widths(
        activation=max(sorted(set(activations)), key=activations.count, default=0),
        constant=min(constants, default=0),
        weight=min(weights, default=0),
        blocks=has_blocks,
        is_quantized=is_quantized,
    )


def list_readers(quantizer: Node) -> list[Node]:
    """Return the nodes that read a quantized value, behind its dequantizers."""
    readers = list[Node]()
    waiting = [*quantizer.users]
    while waiting:
        user = waiting.pop()
        if "quantize_" in name_operator(user):
            waiting += user.users
        else:
            readers.append(user)
    return readers


def find_scheme(program: Any, named: Scheme | None = None) -> Scheme | None:
    """Return the scheme of a graph: ``named``, which the test's name contains, if the graph may be
    of it, and else the scheme with the widths of its quantizers. None if no scheme has these."""
    widths = read_widths(program)
    return named if named and widths.fit(named) else widths.find_scheme()


def _count_bits(node: Node) -> int:
    """Return the smallest of WIDTHS that has enough bits for a quantizer's integers. Return 0 if
    none has enough, for example for a 32-bit bias."""
    low, high = (int(str(arg)) for arg in node.args[-3:-1])
    return next((bits for bits in WIDTHS if high - low < 2**bits), 0)


class Flat(nn.Module):
    """Wraps a module with nested inputs. The wrapper takes only the tensors in them, as a flat
    list. Other values in ``inputs`` are constants: ``fixed`` has them, and the class for a
    tensor."""

    def __init__(self, module: Any, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        leaves, self.spec = tree_flatten(inputs)
        self.module = module
        self.fixed = []
        for leaf in leaves:
            self.fixed.append(torch.Tensor if isinstance(leaf, torch.Tensor) else leaf)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return what the module returns for its nested inputs, with ``tensors`` as their
        tensors."""
        remaining = iter(tensors)
        leaves = list(self.fixed)
        for index, constant in enumerate(self.fixed):
            if constant is torch.Tensor:
                leaves[index] = next(remaining)
        return self.module(*tree_unflatten(leaves, self.spec))


def work_out(check: Check, named: Scheme | None = None) -> tuple[Comparison, Arrays]:
    """Return the record and the arrays of a comparison. Arrays that cannot be computed are left
    out, and the record's ``lacks`` states the reason. ``named`` is the scheme in the test's name.

    Each run starts from the state that the test gave to the program.
    """
    lacks = Notes()
    scheme = find_scheme(check.program, named)
    if named and scheme is not named:
        actual = f"quantized as {scheme}" if scheme else "a mixture of schemes"
        actual = "not quantized" if scheme is Scheme.FP16 else actual
        lacks.append(
            f"judged as what it is: the test's name says {named}, but its model is {actual}"
        )
    is_float = scheme is Scheme.FP16
    leaves = tree_flatten(check.inputs)[0]
    flat = tuple(leave for leave in leaves if isinstance(leave, torch.Tensor))
    nested = not all(isinstance(value, torch.Tensor) for value in check.inputs)

    def run(module: Any) -> Tensors:
        module = Flat(module, check.inputs) if nested else module
        with check.start_state.again(), keep_state(module):
            return run_eager(module, [flat])[0]

    arrays: dict[Member, Tensors] = {
        Member.OUTPUT: check.outputs,
        Member.UPSTREAM: check.expected,
    }
    exact = check.program
    if scheme is Scheme.A16W4_BLOCK and read_widths(exact).blocks:
        with check.start_state.again():
            exact = round_blocks(exact)
    unnested = Flat(exact, check.inputs) if nested else exact
    exact_member = Member.FLOAT if is_float else Member.QUANTIZED
    with torch.no_grad(), lacks.of("the outputs of the model that was lowered"):
        arrays[exact_member] = (
            check.expected if check.is_own and exact is check.program else run(exact)
        )
    if not is_float:
        with torch.no_grad(), lacks.of("the outputs of the float32 model"):
            arrays[Member.FLOAT] = run(check.float_model) if check.is_own else check.expected
    with torch.no_grad(), lacks.of("the predicted rounding noise"), check.start_state.again():
        module, inputs = (unnested, flat) if is_float else (exact, check.inputs)
        program = read_torch(module, inputs)
        arrays[Member.NOISE] = predict_noise(program, [inputs], qnn=find_qnn_version())
    if scheme and not all(output.is_floating_point() for output in check.outputs):
        subject = "the bounds of outputs that are not floating-point"
        with torch.no_grad(), lacks.of(subject), check.start_state.again():
            shaken = TorchProgram(unnested, split_module(unnested))
            bits = scheme.recipe.activation_bits
            bounds = find_ties(shaken, [flat], [tuple(arrays[exact_member])], bits)
            arrays[Member.LOW], arrays[Member.HIGH] = (bound[0] for bound in bounds)
    record = Comparison(
        scheme=scheme.value if scheme else "",
        outputs=describe_outputs(check, exact, unnested, flat, lacks),
        lacks=tuple(lacks),
    )
    return record, {
        member: [np.asarray(array) for array in values] for member, values in arrays.items()
    }


def describe_outputs(
    check: Check, exact: Any, unnested: Any, flat: tuple[torch.Tensor, ...], lacks: Notes
) -> tuple[TensorInfo, ...]:
    """Return the dtype and shape of each output. Also return its quantization step and range, and
    the parts that a concatenation joins, if these can be determined. ``unnested`` is the module
    ``exact`` or its wrapper that takes the inputs ``flat``."""
    infos = [describe_tensor(output) for output in check.outputs]
    with torch.no_grad(), lacks.of("the quantization steps of the outputs"):
        grids = find_grids(read_graphs(split_module(exact)).values())
        infos = [*add_grids(infos, grids or [NO_GRID] * len(infos))]
    parts: list[tuple[OutputPart, ...]] = []
    with lacks.of("the parts of the outputs"):
        parts += find_parts(read_module(unnested, flat))
    return add_parts(infos, parts)
