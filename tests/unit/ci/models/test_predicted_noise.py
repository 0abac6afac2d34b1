"""Predicted noise, and where a quantized model loses most, on graphs written by hand."""

from __future__ import annotations

from operator import getitem
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from torch import Tensor, fx, nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402

from ci.models import layers as layers_module  # noqa: E402
from ci.models import noise as noise_module  # noqa: E402
from ci.models import rounding  # noqa: E402
from ci.models.layers import _decibels, _find_rounded, expose_layers, find_clipped, find_loss  # noqa: E402
from ci.models.model import Methods  # noqa: E402
from ci.models.noise import Dice, predict_noise  # noqa: E402
from ci.models.rounding import MOVED, RUNS, count_runs  # noqa: E402
from ci.models.tensors import MOST_LAYERS, Loss  # noqa: E402
from tests.stand_ins.terms import ACTIVATIONS, TERMS  # noqa: E402

assert _decomposed  # registers the operators
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
OPS: Any = torch.ops.quantized_decomposed


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        *(([], 8), ([0], 8), ([1 << 22], 8), ([(1 << 22) + 1], 7), ([1 << 24], 2), ([1 << 30], 2)),
        *(([1 << 21, 1 << 21], 8), ([1 << 21, 1 + (1 << 21)], 7), ([1, 1, 1 << 23], 3)),
    ],
)
def test_outputs_together_take_no_more_than_128_mib_in_all_runs(
    sizes: list[int], runs: int
) -> None:
    assert count_runs(sizes) == runs


@pytest.fixture(autouse=True)
def terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_module, "read_terms", lambda _: TERMS)


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
    example = (torch.ones(8, 16),)
    return torch.export.export(Chain(*steps, bits=bits).eval(), example, strict=True).module()


def inputs(count: int = 4) -> list[tuple[Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(8, 16),) for _ in range(count)]


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.asarray(values, np.float64) ** 2)))


def test_one_element_in_ten_of_8_bits_moves_by_a_step() -> None:
    (noise,) = predict_noise(trace(0.0, 0.0, 0.05), inputs(), float16=False)
    assert noise.shape == (RUNS, 4, 8, 16)
    moved = np.abs(np.asarray(noise)) > 1e-6
    assert moved.mean() == pytest.approx(0.1, abs=0.02)
    assert np.abs(np.asarray(noise)[moved]) == pytest.approx(0.05, rel=1e-4)


def test_the_lowest_and_highest_level_of_8_bits_move_inwards_only() -> None:
    """A level beyond the range would become one at its other end."""
    for value in (-100.0, 100.0):
        sets = [(torch.full((8, 16), value),)]
        graph: Any = torch.export.export(Rounds(), sets[0], strict=True).module()
        (noise,) = predict_noise(graph, sets, float16=False)
        steps = np.unique((np.asarray(noise) / 0.05).round())
        assert steps.tolist() == ([0, 1] if value < 0 else [-1, 0])


class Rounds(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return round_to(values.relu() - (-values).relu(), 0.05)


def test_each_element_of_16_bits_moves_and_an_input_of_16_bits_does_not() -> None:
    (noise,) = predict_noise(trace(0.0, 0.0, 1e-4, bits=16), inputs(), float16=False)
    assert rms(noise) == pytest.approx(1e-4, rel=0.02)
    (noise,) = predict_noise(trace(1e-4, 0.0, 0.0, bits=16), inputs(), float16=False)
    assert rms(noise) == 0


def test_an_input_of_8_bits_moves_where_float16_rounds_it_to_the_other_side() -> None:
    class Moves(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return round_to(round_to(values, 0.05).transpose(0, 1), 0.05)

    given = [(2 * torch.randn(50, 40, generator=torch.Generator().manual_seed(5)),)]
    graph: Any = torch.export.export(Moves(), given[0], strict=True).module()
    (noise,) = predict_noise(graph, given, float16=False)
    steps = np.asarray(noise) / 0.05
    assert np.abs(steps - steps.round()).max() < 1e-4
    moved = np.abs(steps.round()).max((0, 1)).T > 0
    levels = np.asarray(given[0][0]) / 0.05
    off = np.abs(np.abs(levels - np.floor(levels)) - 0.5)
    assert off[moved].max() <= noise_module.RELATIVE * np.abs(levels).max() * 1.01
    assert 0.005 < moved.mean() < 0.1


def test_the_noise_of_a_layer_goes_through_the_next() -> None:
    (once,) = predict_noise(trace(0.0, 0.0, 0.01), inputs(), float16=False)
    (twice,) = predict_noise(trace(0.0, 0.05, 0.01), inputs(), float16=False)
    assert rms(twice) > 1.5 * rms(once)


def test_float16_has_a_relative_error_and_a_fused_activation_an_absolute_one() -> None:
    layer = nn.Linear(16, 16)
    (plain,) = predict_noise(layer, inputs(), float16=True)
    signal = rms(torch.stack([layer(one) for (one,) in inputs()]).detach())
    assert 2**-13 < rms(plain) / signal < 2**-9
    (fused,) = predict_noise(nn.Sequential(layer, nn.Sigmoid()), inputs(), float16=True)
    assert rms(fused) == pytest.approx(2**-8 / np.sqrt(3), rel=0.3)
    (apart,) = predict_noise(nn.Sequential(nn.ReLU(), nn.Sigmoid()), inputs(), float16=True)
    assert rms(apart) < 2**-10


class Joined(nn.Module):
    """Two layers, each times ``factor``, concatenated before a sigmoid."""

    def __init__(self, make: Any, factor: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.factor = make(), make(), factor

    def forward(self, values: Tensor) -> Tensor:
        made = torch.cat([self.first(values), self.second(values)], 1)
        scaled = made * self.factor if self.factor != 1 else made
        return torch.sigmoid(scaled.reshape(8, -1))


@pytest.mark.parametrize(
    ("make", "factor", "fused"),
    [
        (lambda: nn.Linear(16, 16), 1.0, True),
        (lambda: nn.Linear(16, 16), 0.5, False),
        (lambda: nn.Conv1d(1, 1, 1), 1.0, True),
        (lambda: nn.Conv1d(1, 1, 1), 0.5, True),
        (nn.ReLU, 1.0, False),
    ],
)
def test_an_activation_is_fused_through_views_and_behind_a_convolution_a_factor(
    make: Any, factor: float, fused: bool
) -> None:
    sets = [(one.unsqueeze(1),) for (one,) in inputs()]
    (noise,) = predict_noise(Joined(make, factor), sets, float16=True)
    assert (rms(noise) > 2**-10) is fused


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
def test_layers_of_4_bits_have_a_bias_and_of_16_bits_noise_of_six_steps(
    bits: int, total: float, within: float
) -> None:
    module = torch.export.export(Coarse(bits), inputs()[0], strict=True).module()
    (noise,) = predict_noise(module, inputs(), float16=False)
    steps = np.asarray(noise) / 1e-3
    assert rms(steps) == pytest.approx(total, rel=0.15)
    assert rms(steps - steps.mean(-2, keepdims=True)) == pytest.approx(within, rel=0.2)


class Tokens(Coarse):
    """The same layer for tokens, [batch, token, channel], or as a convolution over them,
    [batch, channel, token]."""

    def __init__(self, *, convolves: bool) -> None:
        super().__init__(4)
        self.convolves = convolves
        self.levels = self.levels[..., None] if convolves else self.levels

    def forward(self, values: Tensor) -> Tensor:
        weights = OPS.dequantize_per_channel(self.levels, self.scales, self.zeros, 0, *self.range)
        given = values.reshape(2, 4, 16)
        if self.convolves:
            return round_to(nn.functional.conv1d(given.transpose(1, 2), weights), 1e-3, 16)
        return round_to(nn.functional.linear(given, weights), 1e-3, 16)


@pytest.mark.parametrize("convolves", [False, True])
def test_the_bias_of_4_bits_is_that_of_a_channel_wherever_its_axis_is(convolves: bool) -> None:
    module = torch.export.export(Tokens(convolves=convolves), inputs()[0], strict=True).module()
    (noise,) = predict_noise(module, inputs(), float16=False)
    steps = np.asarray(noise) / 1e-3
    token = -1 if convolves else -2
    assert rms(steps) == pytest.approx(3.6, rel=0.15)
    assert rms(steps - steps.mean(token, keepdims=True)) < 1.3
    assert steps.mean(token).std(-1).mean() > 2  # channels differ


@pytest.mark.parametrize(("kept", "runs"), [(2, RUNS), (0.5, 4), (1e-9, 2)])
def test_large_outputs_are_disturbed_less_often(
    monkeypatch: pytest.MonkeyPatch, kept: float, runs: int
) -> None:
    size_bytes = 4 * 4 * 8 * 16  # of four sets, as float32
    monkeypatch.setattr(rounding, "MAX_BYTES", int(size_bytes * RUNS * kept) + 1)
    (noise,) = predict_noise(trace(0.0, 0.0, 0.05), inputs(), float16=False)
    assert len(noise) == runs
    assert np.mean(np.abs(np.asarray(noise)) > 1e-6) == pytest.approx(0.1, abs=0.03)


def test_what_float16_holds_is_read_without_an_error() -> None:
    class Masked(nn.Module):
        def forward(self, values: Tensor, mask: Tensor) -> Tensor:
            return values * (1 - 10000 * mask)

    ((one,), *_) = inputs()
    kept, off = torch.zeros(8, 16), torch.full((8, 16), 0.3)
    (noise,) = predict_noise(Masked(), [(one, kept)] * 4, float16=True)
    assert rms(noise) < 2**-9 * rms(one)
    (noise,) = predict_noise(Masked(), [(one, kept + off)] * 4, float16=True)
    assert rms(noise) > 0.1 * rms(one)


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
    first, second = (predict_noise(module, inputs(), float16=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    # Each run counts from 0, and on from one input set to the next.
    assert 0 < np.abs(np.asarray(first)).max() < 0.01
    assert not module.count.any()


@pytest.mark.filterwarnings("ignore:While compiling")  # that it found the attribute
def test_a_prediction_leaves_what_a_model_keeps_in_an_attribute() -> None:
    class Keeps(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            self.last = values * 2
            result: Tensor = self.last + 1
            return result

    module = Keeps()
    (noise,) = predict_noise(module, inputs(), float16=True)
    assert rms(noise) > 0
    assert "last" not in vars(module)


def test_an_operator_that_moves_elements_adds_no_error_in_float16() -> None:
    class Moves(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values.transpose(0, 1).reshape(4, -1).transpose(0, 1).contiguous()

    exact = [(one.half().float(),) for (one,) in inputs()]
    (noise,) = predict_noise(Moves(), exact, float16=True)
    assert rms(noise) == 0
    (noise,) = predict_noise(Moves(), inputs(), float16=True)
    signal = rms(torch.stack([one for (one,) in inputs()]))
    assert rms(noise) == pytest.approx(signal * noise_module.RELATIVE / np.sqrt(3), rel=0.1)


@pytest.mark.parametrize("float16", [True, False])
def test_other_results_than_floating_tensors_are_not_disturbed(float16: bool) -> None:
    drawing, dice = Drawing(), Dice(0, TERMS, float16=float16)
    node = drawing.call(ATEN.add, drawing.x, drawing.x)
    for value in (3, (torch.ones(2),), None):
        assert dice.disturb(node, value) is value
    whole = torch.arange(4)
    assert dice.disturb(node, whole) is whole


def test_an_activation_in_place_has_the_error_of_the_other() -> None:
    drawing = Drawing()
    linear, zeros = drawing.layer(-8, 7), torch.zeros(64, 64)
    for name, bound in ACTIVATIONS.items():
        for called in (name, f"{name}_"):
            for source, scale in ((linear, bound), (drawing.x, 0.0)):
                node = drawing.call(getattr(ATEN, called), source)
                found = Dice(0, TERMS, float16=True).disturb(node, zeros)
                assert rms(found) == pytest.approx(scale / np.sqrt(3), rel=0.05), called


def test_a_softmax_has_a_larger_error_than_other_operators() -> None:
    drawing, ones = Drawing(), torch.ones(64, 64)
    for name, bound in (("_softmax", 2**-9), ("softmax", 2**-9), ("add", 2**-11), ("mul", 2**-11)):
        packet = getattr(ATEN, name)
        called = getattr(packet, packet.overloads()[0])
        node = drawing.graph.call_function(called, (drawing.x, drawing.x))
        moved = Dice(0, TERMS, float16=True).disturb(node, ones) - 1
        assert float(moved.abs().max()) == pytest.approx(bound, rel=0.01)


def test_an_operator_has_its_name_whatever_kind_of_function_it_is() -> None:
    graph = fx.Graph()
    x, name = graph.placeholder("x"), noise_module.name_operator
    assert name(graph.call_function(getitem, (x, 0))) == "getitem"
    assert not noise_module.computes(graph.call_function(getitem, (x, 0)))
    assert name(graph.call_function(ATEN.add.Tensor, (x, x))) == "add"


def test_weights_that_are_dequantized_from_a_buffer_count_as_weights() -> None:
    """They stay rounded where activations are not, so that their share of the loss is known."""

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("levels", torch.randint(-8, 7, (16, 16)).to(torch.int8))

        def forward(self, values: Tensor) -> Tensor:
            weight = OPS.dequantize_per_tensor(self.levels, 0.05, 0, -8, 7, torch.int8)
            return round_to(nn.functional.linear(round_to(values, 0.3), weight), 0.3)

    ((one,), *_) = inputs()
    held = Held()
    exact = nn.functional.linear(one, held.levels.float() * 0.05)
    graph: Any = torch.export.export(held, (one,), strict=True).module()
    for off, wanted in ((0.0, 60.0), (0.1, 20.0)):
        found = find_loss(graph, (one,), (exact * (1 + off),))
        assert found is not None
        assert found.weights_db == pytest.approx(wanted, abs=1.0)


def test_the_rounded_node_is_found_behind_a_dequantization() -> None:
    drawing = Drawing()
    rest = (1.0, 0, 0, 255, torch.uint8)
    linear = drawing.layer(-8, 7)
    rounded = drawing.call(OPS.quantize_per_tensor, linear, *rest)
    assert _find_rounded(drawing.call(OPS.dequantize_per_tensor, rounded, *rest)) is linear
    constant = drawing.call(OPS.quantize_per_tensor, 3.0, *rest)
    for other in (constant, drawing.x, drawing.held, linear):
        assert _find_rounded(drawing.call(OPS.dequantize_per_tensor, other, *rest)) is None
        assert _find_rounded(drawing.call(ATEN.clone, other)) is None


def test_indices_have_no_prediction() -> None:
    class Choice(nn.Module):
        def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
            return values.argmax(-1), values * 2

    ids, doubled = predict_noise(Choice(), inputs(), float16=True)
    assert (ids.numel(), doubled.numel() > 0) == (0, True)


@pytest.mark.parametrize(
    ("steps", "place"),
    [((0.8, 0.01, 0.01), "values"), ((0.03, 0.002, 0.03), "linear"), ((0.03, 0.03, 0.5), "linear")],
)
def test_the_coarsest_or_clipped_range_is_where_most_is_lost(
    steps: tuple[float, float, float], place: str
) -> None:
    ((one,), *_) = inputs()
    reference = Chain(0.0, 0.0, 0.0)(one).detach()
    found = find_loss(trace(*steps), (one,), (reference,))
    assert found is not None
    assert place in found.name
    assert found.behind_db < 15 < found.before_db
    assert found.weights_db == 60


@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_layer_loses_is_counted_from_its_worst_input(sign: int) -> None:
    """A difference shrinks the signal by 20 dB; one of its operands was rounded before."""

    class Cancels(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            rounded, plain = round_to(values, 0.5), values * 0.9
            return rounded - plain if sign > 0 else plain - rounded

    ((one,), *_) = inputs()
    graph: Any = torch.export.export(Cancels(), (one,), strict=True).module()
    found = find_loss(graph, (one,), (one * sign * 0.1,))
    assert found is not None
    assert found.name.startswith("sub")
    assert 15 < found.before_db < 20
    assert found.before_db - found.behind_db == pytest.approx(20, abs=0.1)


@pytest.mark.parametrize("spoiled", ["", "first", "second"])
def test_the_weights_of_a_method_are_judged_by_its_own_outputs(spoiled: str) -> None:
    """Of two methods, the second loses most."""
    ((one,), (other,), *_) = inputs()
    methods = {"first": trace(0.01, 0.01, 0.01), "second": trace(0.01, 0.01, 0.3)}
    plain = Chain(0.0, 0.0, 0.0)
    if spoiled:
        with torch.no_grad():
            methods[spoiled].second.weight.add_(0.05 * torch.randn(16, 16))
    both = Methods(methods, {"first": 1, "second": 1})
    found = find_loss(both, (one, other), (plain(one).detach(), plain(other).detach()))
    assert found is not None
    assert found.behind_db < 20
    assert found.weights_db < 25 if spoiled == "second" else found.weights_db == 60
    turned = Methods({name: methods[name] for name in ("second", "first")}, both.counts)
    again = find_loss(turned, (other, one), (plain(other).detach(), plain(one).detach()))
    assert again is not None
    assert again.behind_db == found.behind_db


class Stateful(nn.Module):
    """Adds its last input to the input, both quantized to a step of 0.1."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.full((8, 16), 0.25))

    def forward(self, values: Tensor) -> Tensor:
        made = round_to(round_to(self.last, 0.1) + round_to(values, 0.1), 0.1)
        self.last.copy_(values)
        return made


def test_a_buffer_that_is_written_is_an_activation() -> None:
    ((one,), *_) = inputs()
    graph: Any = torch.export.export(Stateful(), (one,), strict=True).module()
    loss = find_loss(graph, (one,), (one + 0.25,))
    assert loss is not None
    assert (loss.weights_db, loss.behind_db < 40) == (60.0, True)


def test_values_that_leave_their_calibrated_ranges_are_known() -> None:
    ((one,), *_) = inputs()
    graph: Any = torch.export.export(Stateful(), (one,), strict=True).module()
    assert find_clipped(graph, [(one,)]) == ()
    found = find_clipped(graph, [(one,), (10 * one,)])
    assert [(row.name.partition(" [")[0], row.is_input) for row in found] == [
        ("input values", True),
        ("the result of add", False),
    ]
    assert (found[0].low, found[0].high) == pytest.approx((-12.8, 12.7))
    assert found[0].seen_high == 10 * one.max()


def test_a_model_that_loses_nothing_has_no_place_of_a_loss() -> None:
    ((one,), *_) = inputs()
    plain = trace(0.0, 0.0, 0.0)
    for model in (plain, trace(2**-12, 0.0, 2**-12, bits=16)):  # the steps are above the limit
        assert find_loss(model, (one,), (plain(one).detach(),)) is None


def test_a_loss_is_ranked_by_the_power_that_it_adds() -> None:
    assert Loss("a", 30.0, 10.0, 60.0).added == pytest.approx(0.1 - 0.001)
    fine, coarse = Loss("a", 60.0, 20.0, 60.0), Loss("b", 14.0, 12.0, 60.0)
    assert fine.added < coarse.added  # although more decibels are lost


def test_an_index_that_another_argmax_gives_is_no_error_of_the_weights() -> None:
    class Classifier(nn.Module):
        def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
            rounded = round_to(values, 0.5)
            return rounded.argmax(-1), rounded.relu()

    ((one,), *_) = inputs()
    graph: Any = torch.export.export(Classifier(), (one,), strict=True).module()
    found = find_loss(graph, (one,), (one.argmax(-1) + 1, one.relu()))
    assert found is not None
    assert found.weights_db == 60


def test_weights_are_told_from_activations() -> None:
    ((one,), *_) = inputs()
    reference = Chain(0.0, 0.0, 0.0)(one).detach()
    coarse = trace(0.01, 0.01, 0.01)
    with torch.no_grad():
        coarse.second.weight.add_(0.05 * torch.randn(16, 16))
    found = find_loss(coarse, (one,), (reference,))
    assert found is not None
    assert found.weights_db < 25


@pytest.mark.parametrize("quantized", [True, False])
def test_a_model_gives_what_its_layers_give_behind_its_outputs(quantized: bool) -> None:
    ((one,), *_) = inputs()
    chain = Chain(0.01, 0.02, 0.03) if quantized else Chain(0.0, 0.0, 0.0)
    part, names = expose_layers(trace(0.01, 0.02, 0.03) if quantized else chain, (one,))
    output, *layers = part(one)
    first = chain.first(round_to(one, 0.01) if quantized else one)
    assert torch.equal(output, chain(one))
    assert (names[0].operator, names[0].label[:8]) == ("linear", "linear [")
    assert torch.equal(layers[0], round_to(first, 0.02) if quantized else first)
    assert len(names) == len(layers)


def test_an_output_is_not_given_again_as_a_layer() -> None:
    """Neither before nor behind its rounding."""

    class Both(nn.Module):
        def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
            hidden = values.sin()
            return hidden, self.after(hidden)

        after: Any = None

    for after in (
        lambda hidden: round_to(hidden, 0.05),
        lambda hidden: round_to(hidden, 0.05).cos(),
        Tensor.cos,
    ):
        net = Both()
        net.after = after
        part, names = expose_layers(net, (torch.ones(2, 3),))
        assert (names, len(part(torch.ones(2, 3)))) == ((), 2)
    _, names = expose_layers(trace(0.01, 0.02, 0.03), inputs()[0])
    assert len(names) == 1


def test_inputs_and_a_model_stay_as_they_are_when_layers_are_looked_at() -> None:
    """Of a model that writes to its inputs."""

    class Writes(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return round_to(values.mul_(2), 0.5) + 1

    ((one,), *_) = inputs()
    graph: Any = torch.export.export(Writes(), (one.clone(),), strict=True).module()
    given = one.clone()
    find_loss(graph, (given,), (one * 2 + 1,))
    expose_layers(graph, (given,))
    assert torch.equal(given, one)
    assert isinstance(graph(given), Tensor)  # without the results of layers


def test_of_many_layers_some_are_given() -> None:
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3 * MOST_LAYERS)))
    part, names = expose_layers(deep, (torch.ones(1, 4),))
    assert MOST_LAYERS // 2 < len(names) <= MOST_LAYERS
    assert len(part(torch.ones(1, 4))) == 1 + len(names)


@pytest.mark.parametrize(("most_bytes", "given"), [(128, 8), (127, 4), (64, 4), (63, 2), (16, 1)])
def test_of_large_layers_as_many_are_given_as_fit(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, given: int
) -> None:
    """Nine layers, of which the last is the output, with 16 bytes each."""
    monkeypatch.setattr(layers_module, "MOST_BYTES", most_bytes)
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(9)))
    assert len(expose_layers(deep, (torch.ones(1, 4),))[1]) == given


# -- what a node is -------------------------------------------------------------------------------

ATEN: Any = torch.ops.aten


class Drawing:
    """A graph of nodes that are never run."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.x = self.graph.placeholder("x")
        self.held = self.graph.create_node("get_attr", "w")

    def call(self, operator: Any, *args: Any) -> Any:
        return self.graph.call_function(operator.default, args)

    def layer(self, low: int, high: int, *, held: bool = True, channel: bool = False) -> Any:
        """A linear layer with quantized weights from ``low`` to ``high``."""
        rest: tuple[Any, ...] = (1.0, 0, low, high, torch.int8)
        source = self.held if held else self.call(OPS.quantize_per_tensor, self.x, *rest)
        if channel:
            rest = (self.x, self.x, 0, low, high, torch.int8)
            weight = self.call(OPS.dequantize_per_channel, source, *rest)
        else:
            weight = self.call(OPS.dequantize_per_tensor, source, *rest)
        return self.call(ATEN.linear, self.x, weight)


@pytest.mark.parametrize("channel", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "bits"),
    [(-8, 7, 4), (0, 31, 4), (0, 32, 8), (-128, 127, 8), (0, 512, 8), (0, 513, 16)],
)
def test_weights_have_the_bits_of_their_range(
    low: int, high: int, bits: int, channel: bool
) -> None:
    drawing = Drawing()
    assert noise_module._weight_bits(drawing.layer(low, high, channel=channel)) == bits
    assert noise_module._weight_bits(drawing.layer(low, high, held=False, channel=channel)) == 8
    (_, weight) = drawing.layer(low, high, channel=channel).args
    assert noise_module._weight_bits(drawing.call(ATEN.add, drawing.x, weight)) == 8
    assert noise_module._weight_bits(drawing.call(ATEN.linear, drawing.x, drawing.held)) == 8
    assert noise_module._weight_bits(drawing.call(ATEN.linear, weight)) == 8


@pytest.mark.parametrize(("high", "narrow"), [(15, True), (255, True), (511, True), (512, False)])
def test_a_quantizer_of_8_bits_is_narrow(high: int, narrow: bool) -> None:
    drawing = Drawing()
    args = (drawing.x, 1.0, 0, 0, high, torch.int32)
    assert noise_module._is_narrow(drawing.call(OPS.quantize_per_tensor, *args)) is narrow
    assert not noise_module._is_narrow(drawing.call(OPS.dequantize_per_tensor, *args))


def test_only_a_buffer_that_the_graph_writes_is_state() -> None:
    drawing = Drawing()
    table = drawing.graph.create_node("get_attr", "table")
    drawing.call(ATEN.copy_, drawing.held, table)
    drawing.call(ATEN.copy_, drawing.x, table)
    found = [noise_module.is_state(one) for one in (drawing.held, table, drawing.x)]
    assert found == [True, False, False]


@pytest.mark.parametrize(
    ("name", "layer", "does"),
    [
        *(("linear", True, True), ("addmm", True, True), ("mm", True, True), ("bmm", True, True)),
        *(("matmul", True, True), ("conv1d", True, True), ("convolution", True, True)),
        *(("add", False, True), ("sigmoid", False, True), ("view", False, False)),
        *(("relu_", False, False), ("max_pool2d", False, False), ("_to_copy", False, False)),
    ],
)
def test_operators_are_known_by_their_names(name: str, layer: bool, does: bool) -> None:
    drawing = Drawing()
    node = drawing.call(getattr(ATEN, name), drawing.x)
    assert noise_module.name_operator(node) == name
    assert noise_module._is_layer(node) is layer
    assert noise_module.computes(node) is does
    for other in (drawing.x, drawing.held, None, 3.0):
        assert noise_module.name_operator(other) == ""
        assert not noise_module.computes(other)
        assert not noise_module._is_layer(other)


def test_an_activation_is_fused_with_the_layer_before_it() -> None:
    drawing = Drawing()
    x, find = drawing.x, noise_module._find_fused
    linear, conv = drawing.layer(-8, 7), drawing.call(ATEN.conv2d, x, drawing.held)
    views = drawing.call(ATEN.clone, drawing.call(ATEN.view, linear, [1]))
    assert find(linear) is find(views) is linear
    for operator in (ATEN.view, ATEN._unsafe_view, ATEN.reshape, ATEN.clone, ATEN.alias):
        assert find(drawing.call(operator, linear)) is linear
    assert find(drawing.call(ATEN.cat, [views, x], 1)) is linear
    assert find(drawing.call(ATEN.cat, [x, views], 1)) is None
    for operator in (ATEN.mul, ATEN.div):
        scaled = drawing.call(operator, drawing.call(ATEN.view, conv, [1]), 2.0)
        assert find(scaled) is find(drawing.call(ATEN.view, scaled, [1])) is conv
        assert find(drawing.call(operator, linear, 2.0)) is None
        assert find(drawing.call(operator, conv, x)) is None
    assert find(drawing.call(ATEN.add, conv, 2.0)) is None
    assert find(drawing.call(ATEN.permute, linear, [0])) is None
    assert find(x) is None


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *((name, 2**-8) for name in ("sigmoid", "sigmoid_", "gelu", "silu", "elu", "elu_")),
        *(("tanh", 2**-7), ("tanh_", 2**-7), ("relu", 0)),
    ],
)
def test_each_fused_activation_has_its_absolute_error(name: str, bound: float) -> None:
    drawing, dice = Drawing(), noise_module.Dice(0, TERMS, float16=True)
    zeros = torch.zeros(4000)
    for source, most in ((drawing.layer(-8, 7), bound), (drawing.x, 0)):
        made = dice.disturb(drawing.call(getattr(ATEN, name), source), zeros)
        assert 0.99 * most <= float(made.abs().max()) <= most


@pytest.mark.parametrize(("rows", "found"), [(7, 2**-6), (8, 0.0)])
def test_an_activation_after_the_sum_of_two_tensors_has_its_own_error(
    rows: int, found: float
) -> None:
    class Sums(nn.Module):
        def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
            needed = one + other  # as the cell state of an LSTM is
            summed = torch.tanh((one + other).view(1, rows, 16))
            return summed, torch.tanh(one + 0.5), torch.tanh(needed), needed

    zeros = (torch.zeros(rows, 16), torch.zeros(rows, 16))
    summed, shifted, kept, _ = predict_noise(Sums(), [zeros], float16=True)
    assert float(summed.abs().max()) == pytest.approx(found, rel=0.05, abs=1e-9)
    assert float(kept.abs().max()) < 2**-11
    assert float(shifted.abs().max()) < 2**-11


@pytest.mark.parametrize(
    ("name", "bits", "bias", "power"),
    [("sin", 8, -1.5, 4 + 1.5**2 + 0.5**2), ("neg", 8, 0.0, MOVED[8]), ("neg", 16, 0.0, MOVED[16])],
)
def test_an_operator_moves_elements_by_its_term(
    name: str, bits: int, bias: float, power: float
) -> None:
    class One(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return round_to(getattr(torch, name)(values), 2.0**-bits, bits)

    sets = [(torch.randn(40, 60).clamp(-1, 1),) for _ in range(4)]
    graph: Any = torch.export.export(One(), sets[0], strict=True).module()
    (noise,) = predict_noise(graph, sets, float16=False)
    steps = noise * 2**bits
    assert float(steps.mean()) == pytest.approx(bias, abs=0.5 * abs(bias) + 0.01)
    assert float(steps.square().mean()) == pytest.approx(power, rel=0.35)


@pytest.mark.parametrize("name", ["cos", "exp"])
def test_a_relative_error_is_one_of_an_element_or_of_a_row(name: str) -> None:
    class One(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return round_to(getattr(torch, name)(values), 2.0**-13, 16)

    (one,) = [(torch.randn(40, 60).clamp(-1, 1),)]
    graph: Any = torch.export.export(One(), one, strict=True).module()
    (noise,) = predict_noise(graph, [one], float16=False)
    gains = noise / graph(*one)
    assert float(gains.abs().max()) == pytest.approx(2**-6, rel=0.1)
    is_shared = float(gains.std(-1).mean()) < 0.1 * float(gains.std())
    assert is_shared is (name == "exp")


def test_dice_draw_evenly_and_the_same_for_a_seed() -> None:
    first, again, other = (
        noise_module.Dice(seed, TERMS, float16=False).draw((4000,)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.abs().max() <= 1
    assert first.min() < -0.99
    assert first.max() > 0.99
    assert abs(float(first.mean())) < 0.05


def test_a_loss_is_told_in_decibels_up_to_a_limit() -> None:
    ones = torch.ones(9)
    assert _decibels(ones, ones + 0.1) == pytest.approx(20, abs=1e-4)
    assert _decibels(3 * ones, 3.3 * ones) == pytest.approx(20, abs=1e-4)
    assert (_decibels(ones, ones), _decibels(0 * ones, ones)) == (60.0, -60.0)
    assert _decibels(0 * ones, 0 * ones) == 60.0
