"""Predicted noise, and where a quantized model loses most, on graphs written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from torch import Tensor, nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402
from torchao.quantization.quant_primitives import dequantize_affine  # noqa: E402

from ci.analysis import layers as loss_module  # noqa: E402
from ci.analysis import noise as noise_module  # noqa: E402
from ci.analysis.noise import predict_noise  # noqa: E402
from ci.executorch.layers import expose_layers  # noqa: E402
from ci.graphs.torch_program import read_torch  # noqa: E402
from ci.models.model import Methods  # noqa: E402
from ci.models.rounding import MOVED, RELATIVE, RUNS  # noqa: E402
from ci.models.tensors import MOST_LAYERS  # noqa: E402
from tests.build.exports import export_graph  # noqa: E402
from tests.stand_ins.terms import TERMS  # noqa: E402

assert _decomposed  # registers the operators
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
OPS: Any = torch.ops.quantized_decomposed


@pytest.fixture(autouse=True)
def terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_module, "read_terms", lambda *_: TERMS)


def find_loss(module: Any, inputs: Any, reference: Any, *, float16: bool = False) -> Any:
    program = read_torch(module, inputs)
    if float16:
        return loss_module.find_float16_loss(program, [inputs])
    return loss_module.find_loss(program, inputs, reference)


def predict(module: Any, sets: Any) -> list[Tensor]:
    """The errors of each output, [run, sample, *shape]."""
    return [torch.from_numpy(errors) for errors in predict_noise(read_torch(module, sets[0]), sets)]


def round_to(values: Tensor, step: float, bits: int = 8) -> Tensor:
    high = 2**bits - 1
    dtype = torch.uint8 if bits == 8 else torch.int32
    levels = OPS.quantize_per_tensor(values, step, 2 ** (bits - 1), 0, high, dtype)
    restored: Tensor = OPS.dequantize_per_tensor(levels, step, 2 ** (bits - 1), 0, high, dtype)
    return restored


class Chain(nn.Module):
    """Two layers; the steps of the input and of both results are given, 0 for none."""

    def __init__(self, *steps: float, bits: int = 8) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.steps, self.bits = steps, bits

    def forward(self, values: Tensor) -> Tensor:
        for layer, step in zip((None, self.first, self.second), self.steps, strict=True):
            values = values if layer is None else layer(values)
            values = round_to(values, step, self.bits) if step else values
        return values


def trace(*steps: float, bits: int = 8) -> Any:
    return export_graph(Chain(*steps, bits=bits).eval(), (torch.ones(8, 16),))


def inputs(count: int = 4) -> list[tuple[Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(8, 16),) for _ in range(count)]


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.asarray(values, np.float64) ** 2)))


def test_in_8_bits_one_element_in_ten_is_predicted_off_by_a_step() -> None:
    (noise,) = predict(trace(0.0, 0.0, 0.05), inputs())
    assert noise.shape == (RUNS, 4, 8, 16)
    moved = np.abs(np.asarray(noise)) > 1e-6
    assert moved.mean() == pytest.approx(0.1, abs=0.02)
    assert np.abs(np.asarray(noise)[moved]) == pytest.approx(0.05, rel=1e-4)


def test_in_8_bits_elements_at_the_ends_of_the_range_move_inwards_only() -> None:
    """A level beyond the range would wrap around to the other end."""
    for value in (-100.0, 100.0):
        sets = [(torch.full((8, 16), value),)]
        (noise,) = predict(export_graph(Rounds(), sets[0]), sets)
        steps = np.unique((np.asarray(noise) / 0.05).round())
        assert steps.tolist() == ([0, 1] if value < 0 else [-1, 0])


class Rounds(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return round_to(values.relu() - (-values).relu(), 0.05)


class Scaled(nn.Module):
    """The input, quantized to 16 bits and multiplied, unless the factor is 1."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        rounded = round_to(values, 1e-4, 16)
        return rounded if self.factor == 1 else round_to(rounded * self.factor, 1e-4, 16)


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 0.0), (0.7, 1e-4)])
def test_in_16_bits_each_element_is_predicted_off_by_a_step_except_inputs(
    factor: float, expected: float
) -> None:
    (noise,) = predict(export_graph(Scaled(factor), inputs()[0]), inputs())
    assert rms(noise) == pytest.approx(expected, rel=0.02)


class Recurrent(nn.Module):
    """A recurrent layer, which ExecuTorch does not quantize, with a quantized input."""

    def __init__(self, step: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.cell, self.step = nn.GRU(16, 8), step

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.cell(round_to(values, self.step, 16) if self.step else values)[0]
        return result


@pytest.mark.parametrize(
    ("quantized", "unquantized"),
    [(Chain(1e-4, 0.0, 0.0, bits=16), Chain(0.0, 0.0, 0.0)), (Recurrent(1e-4), Recurrent(0.0))],
    ids=["layers", "recurrent"],
)
def test_what_a_quantized_model_leaves_in_float_is_predicted_in_float16(
    quantized: nn.Module, unquantized: nn.Module
) -> None:
    sets = [(values[:3],) for (values,) in inputs()]
    (partly,) = predict(export_graph(quantized, sets[0], strict=True), sets)
    (wholly,) = predict(unquantized, sets)
    assert rms(partly) == pytest.approx(rms(wholly), rel=0.2)


def test_the_noise_of_a_layer_propagates_through_the_next() -> None:
    (once,) = predict(trace(0.0, 0.0, 0.01), inputs())
    (twice,) = predict(trace(0.0, 0.05, 0.01), inputs())
    assert rms(twice) > 1.5 * rms(once)


def test_in_float16_noise_is_relative_and_of_a_fused_activation_absolute() -> None:
    layer = nn.Linear(16, 16)
    (plain,) = predict(export_graph(layer, inputs()[0]), inputs())
    signal = rms(torch.stack([layer(values) for (values,) in inputs()]).detach())
    assert 2**-13 < rms(plain) / signal < 2**-9
    (fused,) = predict(export_graph(nn.Sequential(layer, nn.Sigmoid()), inputs()[0]), inputs())
    assert rms(fused) == pytest.approx(2**-8 / np.sqrt(3), rel=0.3)
    (apart,) = predict(export_graph(nn.Sequential(nn.ReLU(), nn.Sigmoid()), inputs()[0]), inputs())
    assert rms(apart) < 2**-10


class Coarse(nn.Module):
    """A linear layer with a bias, whose weights have so many bits and a scale per channel."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        high = 2 ** (bits - 1) - 1
        kind = torch.int8 if bits <= 8 else torch.int16
        self.range = (-high - 1, high, kind)
        self.register_buffer("levels", torch.randint(-high, high, (32, 16)).to(kind))
        self.register_buffer("scales", torch.full((32,), 0.3 / high, dtype=torch.float64))
        self.register_buffer("zeros", torch.zeros(32, dtype=torch.int64))

    def forward(self, values: Tensor) -> Tensor:
        weights = OPS.dequantize_per_channel(self.levels, self.scales, self.zeros, 0, *self.range)
        return round_to(nn.functional.linear(values, weights), 1e-3, 16)


@pytest.mark.parametrize(("bits", "total", "within"), [(4, 3.6, 1.1), (8, 1, 1), (16, 3.6, 3.6)])
def test_the_predicted_noise_of_a_layer_depends_on_the_bits_of_its_weights(
    bits: int, total: float, within: float
) -> None:
    (noise,) = predict(export_graph(Coarse(bits), inputs()[0]), inputs())
    steps = np.asarray(noise) / 1e-3
    assert rms(steps) == pytest.approx(total, rel=0.15)
    assert rms(steps - steps.mean(-2, keepdims=True)) == pytest.approx(within, rel=0.2)


class Blocks(Coarse):
    """A linear layer whose weights have 4 bits and a scale for each block of eight."""

    def __init__(self) -> None:
        super().__init__(4)
        self.register_buffer("block_scales", self.scales.float().reshape(32, 1).repeat(1, 2))

    def forward(self, values: Tensor) -> Tensor:
        scales, (low, high, kind) = self.block_scales, self.range
        zeros = torch.zeros_like(scales, dtype=torch.int32)
        weights = dequantize_affine(self.levels, (1, 8), scales, zeros, kind, low, high)
        return round_to(nn.functional.linear(values, weights), 1e-3, 16)


def test_weights_with_a_scale_for_each_block_have_the_noise_of_8_bits() -> None:
    """QNN computes with them as exactly. The noise of 4 bits is that of a scale per channel."""
    (noise,) = predict(export_graph(Blocks(), inputs()[0]), inputs())
    assert rms(np.asarray(noise) / 1e-3) == pytest.approx(1, rel=0.15)


def test_constants_that_float16_represents_exactly_add_no_noise() -> None:
    class Masked(nn.Module):
        def forward(self, values: Tensor, mask: Tensor) -> Tensor:
            return values * (1 - 10000 * mask)

    ((values,), *_) = inputs()
    open_mask, off = torch.zeros(8, 16), torch.full((8, 16), 0.3)
    graph = export_graph(Masked(), (values, open_mask))
    (noise,) = predict(graph, [(values, open_mask)] * 4)
    assert rms(noise) < 2**-9 * rms(values)
    (noise,) = predict(graph, [(values, open_mask + off)] * 4)
    assert rms(noise) > 0.1 * rms(values)


def test_a_prediction_is_the_same_each_time_and_leaves_state_as_it_was() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(16))
            self.layer = nn.Linear(16, 16)

        def forward(self, values: Tensor) -> Tensor:
            self.count.add_(1)
            result: Tensor = self.layer(values) + self.count
            return result

    module = Counter().eval()
    first, second = (predict(module, inputs())[0] for _ in range(2))
    assert torch.equal(first, second)
    # Each run counts from 0, and on from one sample to the next.
    assert 0 < np.abs(np.asarray(first)).max() < 0.01
    assert not module.count.any()


def test_an_operator_that_moves_elements_adds_no_error_in_float16() -> None:
    class Moves(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values.transpose(0, 1).reshape(4, -1).transpose(0, 1).contiguous()

    exact = [(values.half().float(),) for (values,) in inputs()]
    graph = export_graph(Moves(), exact[0])
    (noise,) = predict(graph, exact)
    assert rms(noise) == 0
    (noise,) = predict(graph, inputs())
    signal = rms(torch.stack([values for (values,) in inputs()]))
    assert rms(noise) == pytest.approx(signal * RELATIVE / np.sqrt(3), rel=0.1)


def test_the_noise_of_a_model_whose_parameters_are_float16_is_predicted() -> None:
    module = nn.Linear(16, 16).eval()
    (expected_noise,) = predict(module, inputs())
    sets = [(values.half(),) for (values,) in inputs()]
    (noise,) = predict(module.half(), sets)
    assert noise.shape == expected_noise.shape
    # The sum of a value and its noise is rounded to float16 again.
    assert rms(expected_noise) / 2 < rms(noise) < 2 * rms(expected_noise)


def test_weights_that_are_dequantized_from_a_buffer_count_as_weights() -> None:
    """They stay rounded when activations do not, so that the loss of the weights alone is known."""

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("levels", torch.randint(-8, 7, (16, 16)).to(torch.int8))

        def forward(self, values: Tensor) -> Tensor:
            weight = OPS.dequantize_per_tensor(self.levels, 0.05, 0, -8, 7, torch.int8)
            return round_to(nn.functional.linear(round_to(values, 0.3), weight), 0.3)

    ((values,), *_) = inputs()
    layer = Held()
    exact = nn.functional.linear(values, layer.levels.float() * 0.05)
    graph = export_graph(layer, (values,))
    for off, weights_db in ((0.0, 60.0), (0.1, 20.0)):
        loss = find_loss(graph, (values,), (exact * (1 + off),))
        assert loss is not None
        assert loss.weights_db == pytest.approx(weights_db, abs=1.0)


def test_no_noise_is_predicted_for_outputs_of_indices() -> None:
    class Choice(nn.Module):
        def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
            return values.argmax(-1), values * 2

    ids, doubled = predict(Choice(), inputs())
    assert (ids.numel(), doubled.numel() > 0) == (0, True)


@pytest.mark.parametrize(
    ("steps", "place"),
    [((0.8, 0.01, 0.01), "values"), ((0.03, 0.002, 0.03), "linear"), ((0.03, 0.03, 0.5), "linear")],
)
def test_the_largest_loss_is_at_the_coarsest_or_clipped_range(
    steps: tuple[float, float, float], place: str
) -> None:
    ((values,), *_) = inputs()
    reference = Chain(0.0, 0.0, 0.0)(values).detach()
    loss = find_loss(trace(*steps), (values,), (reference,))
    assert loss is not None
    assert place in loss.name
    assert loss.behind_db < 15 < loss.before_db
    assert loss.weights_db == 60


@pytest.mark.parametrize("spoiled", ["", "first", "second"])
def test_the_loss_of_a_methods_weights_is_measured_on_its_own_outputs(spoiled: str) -> None:
    """The second of two methods loses most."""
    ((first_values,), (second_values,), *_) = inputs()
    methods = {"first": trace(0.01, 0.01, 0.01), "second": trace(0.01, 0.01, 0.3)}
    plain = Chain(0.0, 0.0, 0.0)
    if spoiled:
        with torch.no_grad():
            methods[spoiled].second.weight.add_(0.05 * torch.randn(16, 16))
    methods_module = Methods(methods, {"first": 1, "second": 1})
    loss = find_loss(
        methods_module,
        (first_values, second_values),
        (plain(first_values).detach(), plain(second_values).detach()),
    )
    assert loss is not None
    assert loss.behind_db < 20
    assert loss.weights_db < 25 if spoiled == "second" else loss.weights_db == 60
    turned = Methods({name: methods[name] for name in ("second", "first")}, methods_module.counts)
    turned_loss = find_loss(
        turned,
        (second_values, first_values),
        (plain(second_values).detach(), plain(first_values).detach()),
    )
    assert turned_loss is not None
    assert turned_loss.behind_db == loss.behind_db


class Stateful(nn.Module):
    """Adds its last input to the input, both quantized to a step of 0.1."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.full((8, 16), 0.25))

    def forward(self, values: Tensor) -> Tensor:
        result = round_to(round_to(self.last, 0.1) + round_to(values, 0.1), 0.1)
        self.last.copy_(values)
        return result


def test_a_buffer_that_the_model_writes_counts_as_an_activation() -> None:
    ((values,), *_) = inputs()
    graph = export_graph(Stateful(), (values,))
    loss = find_loss(graph, (values,), (values + 0.25,))
    assert loss is not None
    assert (loss.weights_db, loss.behind_db < 40) == (60.0, True)


class Phase(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin((x + 3) * 300)


def test_float16_loses_the_most_at_the_sine_of_a_large_angle() -> None:
    angles = (torch.linspace(0, 3, 32)[None],)
    loss = find_loss(Phase(), angles, (Phase()(*angles),), float16=True)
    assert loss is not None
    assert (loss.name, loss.is_float16) == ("sin", True)
    assert loss.behind_db < 30 < loss.before_db
    assert 1500 < loss.largest < 1801
    assert [reading.operator for reading in loss.readings] == ["sin"]


class Squares(nn.Module):
    """An RMS norm of values with a factor, behind a causal mask that float16 cannot hold."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("mask", torch.full((8, 8), -1e9).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2) + self.mask
        y = scores.softmax(-1) @ x * self.factor
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-12)


@pytest.mark.parametrize(("factor", "operator"), [(1e3, "pow"), (1.0, ""), (1e-4, "pow")])
def test_numbers_that_float16_cannot_hold_are_found_where_they_cost_accuracy(
    factor: float, operator: str
) -> None:
    torch.manual_seed(0)
    sample = (torch.randn(1, 8, 16),)
    model = export_graph(Squares(factor), sample)
    loss = find_loss(model, sample, (model(*sample),), float16=True)
    assert (loss.beyond.name if loss and loss.beyond else "") == operator
    assert (loss.name if loss else "") != "add"  # the mask is harmless


def test_numbers_that_float16_cannot_hold_are_searched_in_all_samples() -> None:
    torch.manual_seed(0)
    few, many = [(torch.randn(1, 8, 16) * size,) for size in (1, 1e3)]
    model = export_graph(Squares(1.0), few)
    for sets, operator in (((few, few), ""), ((few, many), "matmul")):
        loss = loss_module.find_float16_loss(read_torch(model, sets[0]), sets)
        assert (loss.beyond.name if loss and loss.beyond else "") == operator


class Peaks(nn.Module):
    """Keeps the elements that are equal to the largest of their neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        near = torch.maximum(x, x * 1.0004)
        return x * (near == x).float()


def test_a_comparison_is_the_place_where_its_result_is_lost() -> None:
    waves = (torch.linspace(-1, 1, 64)[None],)
    loss = find_loss(Peaks(), waves, (Peaks()(*waves),), float16=True)
    assert loss is not None
    assert loss.name == "eq"


class Choice(nn.Module):
    """Reads rounded numbers, makes a choice by them, and looks up a table or masks by it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        torch.manual_seed(1)
        self.register_buffer("table", torch.randn(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        near = round_to(x, 0.1)
        if self.kind == "argmin":
            return self.table[near.argmin(-1)]
        if self.kind == "topk":
            return self.table[near.topk(2, -1)[1]]
        if self.kind == "to":
            return self.table[(near * 40 + 32).clamp(0, 63).to(torch.int64)]
        if self.kind == "round":
            return torch.round(near * 9.9)
        if self.kind == "gt":
            return (near > 0.52).float() * x
        return near * 3  # makes no choice


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("argmin", ["argmin"]),
        ("topk", ["topk"]),
        ("to", ["to"]),
        ("round", ["round"]),
        ("gt", ["gt"]),
        ("", []),
    ],
)
def test_decisions_on_rounded_numbers_are_found_if_they_cost_accuracy(
    kind: str, named: list[str]
) -> None:
    torch.manual_seed(2)
    inputs = (torch.rand(8, 64),)
    with torch.no_grad():
        traced = export_graph(Choice(kind), inputs)
    lost = find_loss(traced, inputs, (traced(*inputs),))
    decided = lost.decided if lost else None
    assert [decision.name for decision in (decided.decisions if decided else ())] == named
    if decided:
        assert decided.kept_db > decided.reached_db + 3
        assert 0 < decided.decisions[0].share <= 1


def test_a_model_without_loss_has_no_largest_loss() -> None:
    ((values,), *_) = inputs()
    plain = trace(0.0, 0.0, 0.0)
    for model in (plain, trace(2**-12, 0.0, 2**-12, bits=16)):  # the steps are above the limit
        assert find_loss(model, (values,), (plain(values).detach(),)) is None


def test_a_loss_in_the_weights_is_distinguished_from_one_in_activations() -> None:
    ((values,), *_) = inputs()
    reference = Chain(0.0, 0.0, 0.0)(values).detach()
    coarse = trace(0.01, 0.01, 0.01)
    with torch.no_grad():
        coarse.second.weight.add_(0.05 * torch.randn(16, 16))
    loss = find_loss(coarse, (values,), (reference,))
    assert loss is not None
    assert loss.weights_db < 25


@pytest.mark.parametrize("quantized", [True, False])
def test_model_with_exposed_layers_returns_their_results_after_its_outputs(quantized: bool) -> None:
    ((values,), *_) = inputs()
    chain = Chain(0.01, 0.02, 0.03) if quantized else Chain(0.0, 0.0, 0.0)
    part, names = expose_layers(trace(0.01, 0.02, 0.03) if quantized else chain, (values,))
    output, *layers = part(values)
    first = chain.first(round_to(values, 0.01) if quantized else values)
    assert torch.equal(output, chain(values))
    assert (names[0].operator, names[0].label[:8]) == ("linear", "linear [")
    assert torch.equal(layers[0], round_to(first, 0.02) if quantized else first)
    assert len(names) == len(layers)


def test_a_deep_model_exposes_only_some_of_its_layers() -> None:
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(MOST_LAYERS + 4)))
    part, names = expose_layers(export_graph(deep, (torch.ones(1, 4),)), (torch.ones(1, 4),))
    assert MOST_LAYERS // 2 < len(names) <= MOST_LAYERS
    assert len(part(torch.ones(1, 4))) == 1 + len(names)


# -- what a node is -------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "largest"), [(7, 2**-6), (8, 0.0)])
def test_an_activation_after_the_sum_of_two_tensors_has_its_own_error(
    rows: int, largest: float
) -> None:
    class Sums(nn.Module):
        def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
            needed = first + second  # as the cell state of an LSTM is
            summed = torch.tanh((first + second).view(1, rows, 16))
            return summed, torch.tanh(first + 0.5), torch.tanh(needed), needed

    zeros = (torch.zeros(rows, 16), torch.zeros(rows, 16))
    summed, shifted, read_twice, _ = predict(export_graph(Sums(), zeros), [zeros])
    assert float(summed.abs().max()) == pytest.approx(largest, rel=0.05, abs=1e-9)
    assert float(read_twice.abs().max()) < 2**-11
    assert float(shifted.abs().max()) < 2**-11


@pytest.mark.parametrize(
    ("name", "bits", "bias", "power"),
    [("sin", 8, -1.5, 4 + 1.5**2 + 0.5**2), ("neg", 8, 0.0, MOVED[8]), ("neg", 16, 0.0, MOVED[16])],
)
def test_the_predicted_noise_of_an_operator_has_its_measured_bias_and_power(
    name: str, bits: int, bias: float, power: float
) -> None:
    class One(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            rounded = round_to(values, 2.0**-bits, bits)  # float inputs would be rounded to float16
            return round_to(getattr(torch, name)(rounded), 2.0**-bits, bits)

    torch.manual_seed(0)
    # Within the range, at whose ends an error has one sign.
    sets = [(torch.randn(40, 60).clamp(-0.4, 0.4),)]
    (noise,) = predict(export_graph(One(), sets[0]), sets)
    steps = noise * 2**bits
    assert float(steps.mean()) == pytest.approx(bias, abs=0.5 * abs(bias) + 0.01)
    assert float(steps.square().mean()) == pytest.approx(power, rel=0.35)


@pytest.mark.parametrize("name", ["cos", "exp"])
def test_a_relative_error_is_shared_by_a_row_for_exp_and_per_element_for_cos(name: str) -> None:
    class One(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return round_to(getattr(torch, name)(values), 2.0**-13, 16)

    sample = (torch.randn(40, 60).clamp(-1, 1),)
    graph = export_graph(One(), sample)
    (noise,) = predict(graph, [sample])
    gains = noise / graph(*sample)
    assert float(gains.abs().max()) == pytest.approx(2**-6, rel=0.1)
    is_shared = float(gains.std(-1).mean()) < 0.1 * float(gains.std())
    assert is_shared is (name == "exp")


class SplitProduct(nn.Module):
    """A product of two activations of 16 bits, of which ``place`` has the levels of int16."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, values: Tensor) -> Tensor:
        limits = (1 / 32767, 0, -32767, 32767, torch.int16)
        signed = OPS.dequantize_per_tensor(OPS.quantize_per_tensor(values, *limits), *limits)
        coarse = round_to(values, 2**-15, 16)
        product = coarse @ signed.transpose(0, 1) if self.place else signed @ coarse.transpose(0, 1)
        return round_to(product, 1e-4, 16)


@pytest.mark.parametrize(("place", "lost"), [(0, 0.0), (1, 128 / 32767)])
def test_the_largest_levels_of_a_second_operand_of_16_bits_are_lost(
    place: int, lost: float
) -> None:
    """QNN splits int16 into two signed bytes: 32640 to 32767 become 32639."""
    values = torch.full((4, 8), 0.25)
    values[2, 3] = 1.0
    (noise,) = predict(export_graph(SplitProduct(place), (values,)), [(values,)])
    errors = np.asarray(noise).mean(axis=(0, 1))  # [row, column] of the product
    # The third row of the second operand has the largest number, which the others have a quarter
    # of. The first operand is not split.
    assert errors[[0, 1, 3], 2] == pytest.approx(-0.25 * lost, abs=2e-4)
    assert errors[2, 2] == pytest.approx(-lost, abs=2e-4)
    assert errors[:, [0, 1, 3]] == pytest.approx(0.0, abs=2e-4)


class Truncated(nn.Module):
    """A part of a model that returns bfloat16, which numpy does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0.7).to(torch.bfloat16)


def test_a_part_that_returns_bfloat16_has_predicted_noise() -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(4, 16),)
    program = read_torch(export_graph(Truncated(), inputs), inputs)
    (errors,) = predict_noise(program, [inputs])
    assert errors.shape == (RUNS, 1, 4, 16)
    assert np.isfinite(errors).all()
