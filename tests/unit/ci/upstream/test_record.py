"""The scheme of a graph, and what is computed for the gate."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

import torch
import torch.ao.quantization.fx._decomposed
from torch import nn

from ci.analysis.grids import Grid
from ci.models.eager import keep_state, run_eager
from ci.models.schemes import Scheme
from ci.upstream.capture import Check
from ci.upstream.comparison import Member
from ci.upstream.given import Given
from ci.upstream.suites import find_named_scheme

QUANTIZE = torch.ops.quantized_decomposed.quantize_per_tensor.default
DEQUANTIZE = torch.ops.quantized_decomposed.dequantize_per_tensor.default
GRID = Grid(0.25, -5, 9)


def predict(module: Any, sets: Any, *, qnn: str) -> Any:
    """The outputs of the set instead of noise."""
    (inputs,) = sets
    with keep_state(module):
        return [module(*inputs)]


@pytest.fixture(scope="module")
def record() -> Iterator[Any]:
    """The module without ExecuTorch's quantizer and without predictions, which take seconds."""
    name = "ci.upstream.record"
    quantize = SimpleNamespace(round_blocks=lambda program: program)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "ci.executorch.quantize", quantize)
        patched.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        patched.setattr(module, "read_torch", lambda module, _: module)
        patched.setattr(module, "predict_noise", predict)
        patched.setattr(module, "find_grids", lambda _: [GRID])
        yield module
        del sys.modules[name]


def quantize_affine(source: Any, *_: Any) -> Any:
    return source


def make_program(
    activations: list[int], weights: list[int], *, blocks: bool = False, weighted: bool = False
) -> Any:
    """A graph with a quantizer of so many bits for each activation and each weight. If it is not
    ``weighted``, no operator takes the weights as such."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("x")]
    rows = [(nodes[0], bits) for bits in activations]
    rows += [(graph.get_attr(f"w{n}"), bits) for n, bits in enumerate(weights)]
    for source, bits in rows:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        args = (source, 1.0, 0, low, high, torch.int32)
        if weighted and source.op == "get_attr":  # a constant that was quantized beforehand
            dequantized = graph.call_function(DEQUANTIZE, args)
            linear = torch.ops.aten.linear.default
            nodes.append(graph.call_function(linear, (nodes[0], dequantized)))
        else:
            nodes.append(graph.call_function(QUANTIZE, args))
    if blocks:
        nodes.append(graph.call_function(quantize_affine, (nodes[0], [1], -128, 127, torch.int8)))
    nodes.append(graph.call_function(torch.ops.aten.neg.default, (nodes[0],)))
    graph.output(tuple(nodes))
    owner = nn.Module()
    for number in range(len(weights)):
        owner.register_buffer(f"w{number}", torch.ones(1, 4))
    return torch.fx.GraphModule(owner, graph)


@pytest.mark.parametrize(
    ("activations", "weights", "scheme"),
    [
        ([], [], Scheme.FP16),
        ([8], [8], Scheme.A8W8),
        ([8], [4], Scheme.A8W4),
        ([16], [8], Scheme.A16W8),
        ([16], [4], Scheme.A16W4),
        ([16], [2], Scheme.A16W2),
        ([], [8], Scheme.FP16W8),
        ([8, 16, 16], [8], Scheme.A16W8),  # the most frequent width of activations
        ([16], [8, 4, 16], Scheme.A16W4),  # the smallest width of weights
        ([16, 32], [8, 32], Scheme.A16W8),  # a bias has 32 bits
        ([4], [8], None),
    ],
)
def test_a_scheme_is_read_from_the_widths_of_a_graph(
    record: Any, activations: list[int], weights: list[int], scheme: Scheme | None
) -> None:
    assert record.find_scheme(make_program(activations, weights)) is scheme


@pytest.mark.parametrize(
    ("activations", "constants", "weighted", "named", "scheme"),
    [
        # Without weights, the name decides between the schemes of 16-bit activations.
        ([16], [], False, Scheme.A16W16, Scheme.A16W16),
        ([16], [], False, Scheme.A16W4, Scheme.A16W4),
        ([16], [], False, Scheme.A16W4_BLOCK, Scheme.A16W4_BLOCK),
        # A constant operand has the bits of activations, and is no weight.
        ([16, 16], [16], False, Scheme.A16W8, Scheme.A16W8),
        ([16, 16], [16], True, Scheme.A16W8, Scheme.A16W16),
        ([16], [8], True, Scheme.A16W16, Scheme.A16W8),
        ([16], [8], True, Scheme.A16W8, Scheme.A16W8),
        # A flow of upstream's quantizes to another width than it is named after.
        ([8], [8], True, Scheme.A16W4_BLOCK, Scheme.A8W8),
        ([8], [], False, Scheme.A16W4_BLOCK, Scheme.A8W8),
        ([16], [4], True, Scheme.A16W4_BLOCK, Scheme.A16W4),
        ([], [], False, Scheme.A16W8, Scheme.FP16),
    ],
)
def test_the_scheme_in_the_name_of_a_test_counts_unless_its_graph_contradicts(
    record: Any,
    activations: list[int],
    constants: list[int],
    weighted: bool,
    named: Scheme,
    scheme: Scheme,
) -> None:
    program = make_program(activations, constants, weighted=weighted)
    assert record.find_scheme(program, named) is scheme
    row, _ = record.work_out(replace(see(Plain()), program=program), named)
    assert row.scheme == scheme.value
    contradiction = [lack for lack in row.lacks if "the test's name says" in lack]
    actual = "not quantized" if scheme is Scheme.FP16 else f"quantized as {scheme}"
    assert contradiction == (
        []
        if scheme is named
        else [f"judged as what it is: the test's name says {named}, but its model is {actual}"]
    )


@pytest.mark.parametrize(
    ("test", "named"),
    [
        ("test_add.py::test_add_f32_alpha[qnn_16a8w]", Scheme.A16W8),
        ("test_add.py::test_add_f32_alpha[qnn_16a4w_block]", Scheme.A16W4_BLOCK),
        ("test_add.py::test_add_dtype[qnn_16a16w-dtype0]", Scheme.A16W16),
        ("test_add.py::test_add_f32_alpha[qnn]", None),
        ("test_add.py::test_add_f32_alpha[qnn_99a1w]", None),
        ("TestQNNQuantizedOperator::test_qnn_backend_16a4w_linear", None),
    ],
)
def test_a_scheme_is_read_from_the_name_of_a_test(test: str, named: Scheme | None) -> None:
    assert find_named_scheme(test) is named


class Counts(nn.Module):
    """Returns something else in each call: it writes to its buffer, and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        return x * self.calls + torch.rand(1)


def test_references_are_computed_from_the_state_that_the_test_gave(record: Any) -> None:
    program, float_model = torch.fx.symbolic_trace(Rounded()), Counts()
    generator = torch.get_rng_state()
    start_state = Given((program, float_model))
    (expected,) = run_eager(float_model, [(X,)])[0]
    float_model(X)
    before = float_model.calls.clone(), torch.get_rng_state()
    torch.set_rng_state(generator)
    torch.rand(5)
    moved = torch.get_rng_state()
    check = replace(
        see(Rounded(), float_model=float_model, start_state=start_state), program=program
    )
    _, arrays = record.work_out(check)
    assert arrays[Member.FLOAT][0].tolist() == expected.tolist()
    assert float_model.calls == before[0]
    assert torch.equal(torch.get_rng_state(), moved), "the next test draws what it would have drawn"


def test_weights_in_blocks_decide_and_a_module_without_a_graph_is_fp16(record: Any) -> None:
    assert record.find_scheme(make_program([8], [8], blocks=True)) is Scheme.A16W4_BLOCK
    assert record.find_scheme(nn.Linear(1, 1)) is Scheme.FP16


class Nested(nn.Module):
    def forward(self, pair: Any, rate: float, *, unused: Any = None) -> Any:
        del unused
        return pair["a"] * rate - pair["b"][0]


def test_nested_inputs_are_given_as_a_list_of_tensors(record: Any) -> None:
    three, five = torch.tensor([3.0]), torch.tensor([5.0])
    flat = record.Flat(Nested(), ({"a": three, "b": [five]}, 2.0))
    assert flat(three, five).tolist() == [1.0]
    assert flat(five, three).tolist() == [7.0]


X = torch.tensor([[1.0, 2.0, 3.0, 4.0]])


class Plain(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


class Rounded(nn.Module):
    def forward(self, x: Any) -> Any:
        rounded = QUANTIZE(x * 2, 4.0, 0, -128, 127, torch.int8)
        return DEQUANTIZE(rounded, 4.0, 0, -128, 127, torch.int8)


def see(program: nn.Module, **changes: Any) -> Check:
    fields: dict[str, Any] = {
        "program": torch.fx.symbolic_trace(program),
        "float_model": Plain(),
        "inputs": (X,),
        "is_own": True,
        "pte_bytes": 7,
        "outputs": (X + 10,),
        "expected": (X + 20,),
    }
    return Check(**{**fields, **changes})


FLOAT, OWN, GIVEN = [2.0, 4.0, 6.0, 8.0], [0.0, 4.0, 8.0, 8.0], [21.0, 22.0, 23.0, 24.0]


@pytest.mark.parametrize(
    ("program", "is_own", "scheme", "quantized", "plain"),
    [
        (Plain, True, "fp16", None, GIVEN),
        (Plain, False, "fp16", None, FLOAT),
        (Rounded, True, "8a8w", GIVEN, FLOAT),
        (Rounded, False, "8a8w", OWN, GIVEN),
    ],
)
def test_references_are_recomputed_only_if_upstream_compares_with_another_model(
    record: Any,
    program: type[nn.Module],
    is_own: bool,
    scheme: str,
    quantized: list[float] | None,
    plain: list[float],
) -> None:
    row, arrays = record.work_out(see(program(), is_own=is_own))
    assert (row.scheme, row.lacks) == (scheme, ())
    for member, values in (
        (Member.OUTPUT, (X + 10)[0].tolist()),
        (Member.UPSTREAM, GIVEN),
        (Member.QUANTIZED, quantized),
        (Member.FLOAT, plain),
    ):
        recorded = arrays.get(member)
        assert (recorded and [array.tolist() for array in recorded]) == (values and [[values]]), (
            member
        )
    (values,) = arrays[Member.NOISE]
    assert values.tolist() == [OWN if quantized else FLOAT]
    assert Member.LOW not in arrays
    (output,) = row.outputs
    assert (output.shape, output.dtype, output.step, output.lowest, output.highest) == (
        *((1, 4), "float32"),
        *GRID,
    )


def test_references_that_cannot_be_computed_are_omitted_and_named(record: Any) -> None:
    row, arrays = record.work_out(see(Rounded(), float_model=None))
    assert Member.FLOAT not in arrays
    (lacks,) = row.lacks
    assert lacks.startswith("the outputs of the float32 model could not be computed: ")


def test_weights_in_blocks_are_rounded_before_the_outputs_are_computed(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's own references come from weights that are not rounded."""
    rounded = torch.fx.symbolic_trace(Rounded())
    blocks = record.Widths(activation=16, blocks=True, is_quantized=True)
    monkeypatch.setattr(record, "read_widths", lambda _: blocks)
    monkeypatch.setattr(record, "round_blocks", lambda _: rounded)
    row, arrays = record.work_out(see(Plain()))
    assert (row.scheme, row.lacks) == ("16a4w_block", ())
    assert arrays[Member.QUANTIZED][0].tolist() == [OWN]
    assert arrays[Member.FLOAT][0].tolist() == [FLOAT]
    assert arrays[Member.NOISE][0].tolist() == [OWN]


class Above(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 > 4.0


@pytest.mark.parametrize("is_own", [True, False])
def test_an_integer_output_gets_lower_and_upper_bounds(record: Any, is_own: bool) -> None:
    """They come from the lowered model, which may differ from the one that upstream compares
    with."""
    expected = (X > 2.0,) if is_own else (X > 9.0,)
    row, arrays = record.work_out(see(Above(), outputs=expected, expected=expected, is_own=is_own))
    assert row.outputs[0].dtype == "bool"
    for member, value in ((Member.LOW, False), (Member.HIGH, True)):
        (bound,) = arrays[member]
        assert [bound[0][n].item() for n in (0, 1, 2, 3)] == [False, value, True, True]
