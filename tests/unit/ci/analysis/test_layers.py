"""Where models lose most by quantization or by float16, as PyTorch modules and as ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

from onnx import parser, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402

from ci.analysis.layers import find_float16_loss, find_loss  # noqa: E402
from ci.graphs.onnx_program import read_onnx  # noqa: E402
from ci.graphs.torch_program import read_torch  # noqa: E402
from ci.judging.causes import is_misfit  # noqa: E402
from tests.build.exports import export_graph  # noqa: E402

assert _decomposed  # registers the operators
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
OPS: Any = torch.ops.quantized_decomposed
LANES = ("PyTorch", "ONNX")
HEAD = '<ir_version: 8, opset_import: ["" : 21]> g (float[SHAPE] x) => (float[a, b] y) {'
CONSTANTS = "zero = Constant<value: tensor = uint8 zero {128}>()\n"


class Network(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Any:
        return self.compute(x)


def make_program(lane: str, folder: Path, nodes: str, compute: Any, values: Any) -> Any:
    """A network, given as ONNX text and as a function, and its sample."""
    if lane == "PyTorch":
        sample: Any = (torch.from_numpy(values),)
        return read_torch(export_graph(Network(compute), sample), sample), sample
    head = HEAD.replace("SHAPE", ", ".join(map(str, values.shape)))
    path = folder / "network.onnx"
    save(parser.parse_model(head + nodes + "}"), path)
    return read_onnx(path, folder / "scratch.onnx", path), (values,)


def round_to(values: Tensor, step: float) -> Tensor:
    limits = (step, 128, 0, 255, torch.uint8)
    levels = OPS.quantize_per_tensor(values, *limits)
    result: Tensor = OPS.dequantize_per_tensor(levels, *limits)
    return result


def write_rounding(value: str, step: float) -> str:
    """Text of nodes that round a value."""
    return (
        f"{value}_step = Constant<value_float = {step}>()\n"
        f"{value}_levels = QuantizeLinear({value}, {value}_step, zero)\n"
        f"{value}_rounded = DequantizeLinear({value}_levels, {value}_step, zero)\n"
    )


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("steps", "places"),
    [
        ((0.5, 0.01, 0.01), ["the range of input 'x'"] * 2),
        ((0.02, 0.5, 0.01), ["the range of sin", "the range of Sin 'a'"]),
        ((0.02, 0.002, 0.01), ["the range of sin", "the range of Sin 'a'"]),
        ((0.02, 0.01, 0.5), ["the range of add", "the range of Add 'b'"]),
    ],
    ids=["a coarse input", "a coarse result", "a clipped result", "a coarse end"],
)
def test_the_largest_loss_is_at_the_coarsest_or_clipped_range(
    tmp_path: Path, lane: str, steps: tuple[float, ...], places: list[str]
) -> None:
    def compute(x: Tensor) -> Tensor:
        a = round_to(torch.sin(round_to(x, steps[0])), steps[1])
        return round_to(a + a, steps[2])

    nodes = CONSTANTS + write_rounding("x", steps[0])
    nodes += "a = Sin(x_rounded)\n" + write_rounding("a", steps[1])
    nodes += "b = Add(a_rounded, a_rounded)\n" + write_rounding("b", steps[2])
    nodes += "y = Identity(b_rounded)"
    values = np.random.default_rng(7).uniform(-1.2, 1.2, (4, 16)).astype(np.float32)
    program, sample = make_program(lane, tmp_path, nodes, compute, values)
    loss = find_loss(program, sample, [2 * np.sin(values)])
    assert loss is not None
    assert loss.name == places[LANES.index(lane)]
    assert loss.behind_db < 25 < loss.before_db
    assert loss.weights_db == 60
    assert loss.nodes
    assert loss.output_db is not None
    assert loss.finer_db is not None
    assert loss.finer_db > loss.output_db + 3
    worse = find_loss(program, sample, [3 * np.sin(values)])
    assert worse is not None
    assert worse.weights_db < 10


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("step", "count"), [(0.5, 1), (0.01, 0)], ids=["a wide range", "clipped"])
def test_steps_that_make_most_numbers_zero_are_found(
    tmp_path: Path, lane: str, step: float, count: int
) -> None:
    """A single large number makes the step of all others, or is clipped."""
    nodes = CONSTANTS + "half = Constant<value_float = 0.5>()\nz = Mul(x, half)\n"
    nodes += write_rounding("z", step) + "y = Tanh(z_rounded)"
    values = np.random.default_rng(7).uniform(-0.3, 0.3, (4, 16)).astype(np.float32)
    values[0, 0] = 100
    program, sample = make_program(
        lane, tmp_path, nodes, lambda x: torch.tanh(round_to(x * 0.5, step)), values
    )
    loss = find_loss(program, sample, [np.tanh(values / 2)])
    assert loss is not None
    named = [(value.name, round(value.share, 3), value.largest) for value in loss.coarse]
    assert named == [(("mul", "Mul 'z'")[LANES.index(lane)], round(63 / 64, 3), 50.0)] * count
    assert all(value.step == pytest.approx(step) for value in loss.coarse)


@pytest.mark.parametrize("lane", LANES)
def test_values_that_are_joined_have_one_range(tmp_path: Path, lane: str) -> None:
    """A small part of a concatenation needs the range of the other one."""
    step = 0.06
    nodes = CONSTANTS + "tenth = Constant<value_float = 0.1>()\nz = Mul(x, tenth)\n"
    nodes += write_rounding("x", step) + write_rounding("z", step)
    nodes += "y = Concat<axis = 1>(x_rounded, z_rounded)"
    values = np.random.default_rng(7).uniform(-0.1, 0.1, (8, 16)).astype(np.float32)
    values[0, :2] = 4, -4
    program, sample = make_program(
        lane,
        tmp_path,
        nodes,
        lambda x: torch.cat([round_to(x, step), round_to(x * 0.1, step)], 1),
        values,
    )
    loss = find_loss(program, sample, [np.concatenate([values, values / 10], 1)])
    assert loss is not None
    assert loss.misfits == ()


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("steps", "misfits"),
    [
        ((0.16, 0.01), [("input 'x'",) * 2]),
        ((0.01, 0.16), [("the result of sin", "the result of Sin 'a'")]),
        ((0.16, 0.16), [("input 'x'",) * 2, ("the result of sin", "the result of Sin 'a'")]),
        ((0.01, 0.0015), [("the result of sin", "the result of Sin 'a'")]),
        ((0.01, 0.01), []),
        ((0.25, 0.01), [("input 'x'",) * 2]),
        ((0.01, 0.25), []),
    ],
    ids=["input", "result", "both", "clipped", "right", "input of a power of 2", "no calibration"],
)
def test_ranges_of_other_numbers_are_tried_with_those_of_the_inputs(
    tmp_path: Path, lane: str, steps: tuple[float, float], misfits: list[tuple[str, str]]
) -> None:
    """A power of two is no calibrated step of a result. The second sample is the largest one."""
    nodes = CONSTANTS + write_rounding("x", steps[0]) + "a = Sin(x_rounded)\n"
    nodes += write_rounding("a", steps[1]) + "y = Identity(a_rounded)"
    values = np.random.default_rng(7).uniform(-0.3, 0.3, (4, 16)).astype(np.float32)
    program, sample = make_program(
        lane,
        tmp_path,
        nodes,
        lambda x: round_to(torch.sin(round_to(x, steps[0])), steps[1]),
        values,
    )
    further = [tuple(4 * tensor for tensor in sample)]
    loss = find_loss(program, sample, [np.sin(values)], further)
    assert loss is not None
    place = LANES.index(lane)
    named = [misfit.name.partition(" [")[0] for misfit in loss.misfits]
    assert named == [names[place] for names in misfits]
    assert is_misfit(loss) is bool(misfits)
    if misfits:
        assert loss.fitted_db is not None
        assert loss.fitted_db > 30
        assert max(misfit.seen_high or 0 for misfit in loss.misfits) > 0.8


@pytest.mark.parametrize("lane", LANES)
def test_a_model_that_rounds_nothing_loses_nothing(tmp_path: Path, lane: str) -> None:
    values = np.ones((4, 16), np.float32)
    program, sample = make_program(lane, tmp_path, "y = Sin(x)", torch.sin, values)
    assert find_loss(program, sample, [np.sin(values)]) is None


def normalize(factor: float) -> Callable[[Tensor], Tensor]:
    """An RMS norm of values with a factor."""

    def compute(x: Tensor) -> Tensor:
        z = x * factor
        return z / torch.sqrt((z * z).mean(-1, keepdim=True) + 1e-12)

    return compute


def write_norm(factor: float) -> str:
    return f"""
        factor = Constant<value_float = {factor}>()
        eps = Constant<value_float = 1e-12>()
        axes = Constant<value_ints = [-1]>()
        z = Mul(x, factor)
        zz = Mul(z, z)
        mean = ReduceMean(zz, axes)
        more = Add(mean, eps)
        root = Sqrt(more)
        y = Div(z, root)
    """


MASKED = """
    mask = Constant<value_float = -1e9>()
    nothing = Constant<value_float = 0.0>()
    blocked = Less(x, nothing)
    scores = Where(blocked, mask, x)
    y = Softmax<axis = -1>(scores)
"""


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("nodes", "compute", "names", "beyond"),
    [
        (
            "far = Constant<value_float = 2000.0>()\n angle = Mul(x, far)\n y = Sin(angle)",
            lambda x: torch.sin(x * 2000.0),
            ("sin", "Sin 'y'"),
            ("", ""),
        ),
        (write_norm(1e3), normalize(1e3), None, ("mul", "Mul 'zz'")),
        (write_norm(1.0), normalize(1.0), None, ("", "")),
        (write_norm(1e-4), normalize(1e-4), None, ("mul", "Mul 'zz'")),
        (MASKED, lambda x: torch.where(x < 0, -1e9, x).softmax(-1), None, ("", "")),
    ],
    ids=["large angles", "overflow", "a norm", "underflow", "a mask"],
)
def test_float16_loses_where_numbers_do_not_fit(
    tmp_path: Path, lane: str, nodes: str, compute: Any, names: Any, beyond: tuple[str, str]
) -> None:
    values = np.linspace(-1.01, 1.0, 64, dtype=np.float32).reshape(2, 32)
    program, sample = make_program(lane, tmp_path, nodes, compute, values)
    loss = find_float16_loss(program, [sample])
    place = LANES.index(lane)
    assert (loss.beyond.name if loss and loss.beyond else "") == beyond[place]
    if names:
        assert loss is not None
        assert (loss.name, loss.is_float16) == (names[place], True)
        assert loss.behind_db < 30 < loss.before_db
        assert 1999 < loss.largest < 2021
        assert [reading.operator for reading in loss.readings] == ["sin"]
    if loss and not loss.beyond:  # then the predicted noise decides whether it is told
        assert find_float16_loss(program, [sample], is_lossy=False) is None


@pytest.mark.parametrize("lane", LANES)
def test_numbers_that_float16_cannot_hold_are_searched_in_all_samples(
    tmp_path: Path, lane: str
) -> None:
    values = np.linspace(-1.01, 1.0, 64, dtype=np.float32).reshape(2, 32)
    program, (few,) = make_program(lane, tmp_path, write_norm(1.0), normalize(1.0), values)
    loss = find_float16_loss(program, [(few,), (few * 1000,)], is_lossy=False)
    assert loss is not None
    assert loss.beyond is not None
    assert loss.beyond.largest > 65504


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("is_apart", [False, True])
def test_activations_behind_a_layer_lose_accuracy_in_float16_unless_a_slice_is_between(
    tmp_path: Path, lane: str, is_apart: bool
) -> None:
    def compute(x: Tensor) -> Tensor:
        product = x @ x.transpose(0, 1)
        return torch.tanh(product[1:] if is_apart else product)

    nodes = "t = Transpose<perm = [1, 0]>(x)\np = MatMul(x, t)\n"
    if is_apart:
        nodes += "from = Constant<value_ints = [1]>()\nto = Constant<value_ints = [9]>()\n"
        nodes += "axis = Constant<value_ints = [0]>()\nq = Slice(p, from, to, axis)\ny = Tanh(q)"
    else:
        nodes += "y = Tanh(p)"
    values = np.random.default_rng(5).uniform(-0.2, 0.2, (4, 4)).astype(np.float32)
    program, sample = make_program(lane, tmp_path, nodes, compute, values)
    loss = find_float16_loss(program, [sample])
    fused = loss.fused if loss else None
    assert (fused is None) is is_apart
    if fused:
        names = [place.name for place in fused.activations]
        assert names == [("tanh", "Tanh 'y'")[LANES.index(lane)]]
        assert fused.reached_db < 40 < fused.apart_db - 10


@pytest.mark.parametrize("lane", LANES)
def test_decisions_are_searched_in_further_samples(tmp_path: Path, lane: str) -> None:
    def compute(x: Tensor) -> Tensor:
        return (round_to(x, 0.1) > 0.52).float() * x

    nodes = CONSTANTS + write_rounding("x", 0.1) + "limit = Constant<value_float = 0.52>()\n"
    nodes += "b = Greater(x_rounded, limit)\nc = Cast<to = 1>(b)\ny = Mul(c, x)"
    draws = np.random.default_rng(3).uniform(0, 1, (2, 8, 16)).astype(np.float32)
    exact = np.round(draws[0], 1)  # all of it are steps, so no decision differs
    program, sample = make_program(lane, tmp_path, nodes, compute, exact)
    further = (torch.from_numpy(draws[1]),) if lane == "PyTorch" else (draws[1],)
    reference = [(exact > 0.52) * exact]
    for samples, is_lost in (([], False), ([sample], False), ([sample, further], True)):
        loss = find_loss(program, sample, reference, samples)
        decided = loss.decided if loss else None
        names = [decision.name for decision in (decided.decisions if decided else ())]
        assert names == [("gt", "Greater 'b'")[LANES.index(lane)]] * is_lost


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("factor", "is_lost"), [(0.98, True), (1.0, False)], ids=["rounded weight", "right weight"]
)
def test_decisions_that_differ_because_of_the_weights_are_found(
    tmp_path: Path, lane: str, factor: float, is_lost: bool
) -> None:
    """The quantized model has a weight of ``factor``, and the float32 model of 1."""

    def network(weight: float, step: float) -> tuple[str, Callable[[Tensor], Tensor]]:
        def compute(x: Tensor) -> Tensor:
            z = round_to(x, step) if step else x
            return torch.round(z * weight) + 0.001 * z

        nodes = CONSTANTS + (write_rounding("x", step) if step else "x_rounded = Identity(x)\n")
        nodes += f"w = Constant<value_float = {weight}>()\nz = Mul(x_rounded, w)\n"
        nodes += "small = Constant<value_float = 0.001>()\nr = Round(z)\n"
        return nodes + "s = Mul(x_rounded, small)\ny = Add(r, s)", compute

    # All of them are steps, so only the weight changes decisions.
    values = (np.random.default_rng(3).integers(-5, 6, (8, 16)) + 0.55).astype(np.float32)
    program, sample = make_program(lane, tmp_path, *network(factor, 0.05), values)
    (tmp_path / "float").mkdir()
    plain, _ = make_program(lane, tmp_path / "float", *network(1.0, 0.0), values)
    reference = [np.round(values) + 0.001 * values]
    loss = find_loss(program, sample, reference, (), lambda: plain)
    decided = loss.decided if loss else None
    names = [decision.name for decision in (decided.decisions if decided else ())]
    assert names == [("round", "Round 'r'")[LANES.index(lane)]] * is_lost
