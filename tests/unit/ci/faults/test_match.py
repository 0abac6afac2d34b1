"""Known faults in a user's model: the exported graph as steps, and what is said of a match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ci.facts.finding import NOWHERE, Certainty, Origin, Proof

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from ci.analysis.steps import Operand, Step  # noqa: E402
from ci.executorch.graph_reader import describe_module  # noqa: E402
from ci.facts.known_fault import KnownFault  # noqa: E402
from ci.faults.match import match_faults  # noqa: E402

X = torch.randn(2, 24, 16)
POSITIONS = "broadcast-add-before-norm"
IMAGE = torch.randn(2, 4, 6, 6)
SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


class Net(nn.Module):
    def __init__(self, call: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.call = call
        self.parts = nn.ModuleList(parts)
        self.positions = nn.Parameter(torch.randn(32, 16))
        self.register_buffer("mask", torch.tensor([0.0] * 10 + [-1e4] * 6))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(self, *inputs)  # line: call


class Embedding(Net):
    def forward(self, *inputs: Tensor) -> Tensor:
        x = inputs[0].relu()
        x = x + self.positions[: x.shape[1]]  # line: positions
        return self.parts[0](nn.functional.dropout(x, 0.1, self.training))


def add_positions(net: Net, x: Tensor) -> Tensor:
    return net.parts[0](x + net.positions[: x.shape[1]])


def find(
    call: Callable[..., Tensor],
    *inputs: Tensor,
    scheme: str = "fp16",
    qnn: str = "2.49.40",
    parts: tuple[nn.Module, ...] = (),
) -> tuple[KnownFault, ...]:
    net = Net(call, *(parts or (nn.LayerNorm(16), nn.Linear(16, 16)))).eval()
    return match_faults(describe_module(net, inputs), scheme, qnn)


def test_a_broadcast_add_before_a_norm_is_reported_with_line_shapes_and_remedy() -> None:
    net = Embedding(add_positions, nn.LayerNorm(16)).eval()
    (match,) = match_faults(describe_module(net, (X,)), "fp16", "2.49.40")
    assert match.fault == "broadcast-add-before-norm"
    assert "# line: positions" in SOURCE[match.line - 1]
    assert match.file.endswith("test_match.py")
    assert match.calls == "add of [2, 24, 16] and a constant [24, 16], then layer_norm"
    assert match.place in str(match)
    ((cause,), (remedy,)) = match.advice.causes, match.advice.remedies
    assert (cause.certainty, remedy.proof) == (Certainty.KNOWN, Proof.PROVEN)
    assert remedy.text.startswith("expand the constant")


def test_each_known_fault_is_reported_once_per_line() -> None:
    numbers = {"eights": (3.0,)}
    wide, constant = Operand((2, 24, 64)), Operand((24, 64), constant=True)

    def call(name: str, operator: str, source: str) -> Step:
        operands = (wide, constant) if operator in {"add", "mul"} else (wide,)
        sources = (source, "") if len(operands) == 2 else (source,)
        return Step(
            name, operator, operands, sources, wide.shape, numbers, Origin(file="net.py", line=3)
        )

    steps = [
        call(f"{operator}{number}", operator, f"{before}{number}" if before else "")
        for number, first in enumerate(("add", "mul", "add"))
        for operator, before in ((first, ""), ("layer_norm", first))
    ]
    matches = match_faults(steps, "fp16", "2.49.40")
    names = ["broadcast-add-before-norm", "broadcast-mul-before-norm"]
    assert sorted(match.fault for match in matches) == names
    unplaced = [structs.replace(step, origin=NOWHERE) for step in steps]
    matches = match_faults(unplaced, "fp16", "2.49.40")
    assert {match.place for match in matches} == {"node add0", "node mul1", "node add2"}


@pytest.mark.parametrize(
    ("call", "scheme", "qnn", "names"),
    [
        (add_positions, "8a8w", "2.49.40", []),
        (lambda net, x: net.parts[1](x + net.positions[:24]), "fp16", "2.49.40", []),
        *(  # QNN computes it right with other numbers of rows
            (lambda net, x, rows=rows: net.parts[0](x[:, :rows] + net.positions[:rows]), *expected)
            for rows, *expected in (
                *((8, "fp16", "2.49.40", []), (12, "fp16", "2.49.40", [])),
                *((17, "fp16", "2.49.40", []), (16, "fp16", "2.49.40", [POSITIONS])),
            )
        ),
        (
            lambda net, x: net.parts[0](x + net.positions[:24].expand(x.shape[0], -1, -1).clone()),
            *("fp16", "2.49.40", []),
        ),
        *(
            (lambda net, x: net.parts[0](x * net.positions[:24]), "fp16", qnn, names)
            for qnn, names in (
                *(("2.49.40", ["broadcast-mul-before-norm"]), ("2.48.40", [])),
                *(("v2.48.40.260101", []), ("2.99.0", ["broadcast-mul-before-norm"])),
            )
        ),
    ],
)
def test_a_known_fault_is_reported_only_for_its_graphs_schemes_and_versions(
    call: Callable[..., Tensor], scheme: str, qnn: str, names: list[str]
) -> None:
    assert [match.fault for match in find(call, X, scheme=scheme, qnn=qnn)] == names


def test_a_large_attention_mask_is_a_known_fault_in_8_bits_stored_or_computed() -> None:
    def block(factor: float) -> Callable[..., Tensor]:
        return lambda net, x, visible: (x + (1 - visible)[:, None, :] * factor).softmax(-1)

    scores, visible = torch.randn(2, 24, 16), torch.ones(2, 16)
    (computed,) = find(block(-1e4), scores, visible, scheme="8a8w")
    assert computed.fault == "mask-too-large"
    assert computed.calls.startswith("add of [2, 24, 16] and [2, 1, 16] up to 1e+04")
    stored = find(lambda net, x: (x + net.mask).softmax(-1), scores, scheme="8a8w")
    assert [match.fault for match in stored] == [computed.fault]
    for scheme in ("8a8w", "16a8w"):
        assert find(block(-30.0), scores, visible, scheme=scheme) == ()


def test_the_known_fault_of_an_unabsorbed_batch_norm_is_reported() -> None:
    parts = (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    for call, names in (
        (lambda net, x: net.parts[1](x.relu()), ["batch-norm-alone"]),
        (lambda net, x: net.parts[1](net.parts[0](x)), []),
    ):
        matches = find(call, IMAGE, scheme="16a8w", parts=parts)
        assert [match.fault for match in matches] == names


def test_a_module_that_cannot_be_exported_has_no_steps_and_keeps_its_state() -> None:
    def branch(net: Net, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    assert describe_module(Net(branch), (X,)) == ()


def test_steps_of_a_model_have_shapes_sources_and_folded_constants() -> None:
    def call(net: Net, x: Tensor) -> Tensor:
        return (x * 2).clone() + net.positions[:24] * 3

    multiply, add = describe_module(Net(call), (X,))
    assert (multiply.operator, multiply.operands[1]) == (
        "mul",
        Operand((), True, 2.0, smallest=2.0),
    )
    assert multiply.sources == ("", "")
    assert add.sources == (multiply.name, "")
    assert add.operands[0] == Operand((2, 24, 16), magnitude=2.0)
    assert (add.operands[1].shape, add.operands[1].constant) == ((24, 16), True)
    assert add.shape == (2, 24, 16)


@pytest.mark.parametrize(
    "when", ["before", "after", "in part", "in a chunk", "out", "in part of a copy", "never"]
)
def test_a_buffer_that_the_model_changes_is_not_a_constant(when: str) -> None:
    """The model changes it before or after it reads it, as a whole or through a view."""

    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(24, 16))

        def forward(self, x: Tensor) -> Tensor:
            if when == "before":
                self.cache.add_(x[0])
            moved = x + self.cache
            if when == "after":
                self.cache.add_(x[0])
            if when == "in part":
                self.cache[2:4].view(-1, 16)[0].copy_(x[0, 0])
            if when == "in a chunk":
                self.cache.chunk(2)[1].copy_(x[0, 12:])
            if when == "out":
                torch.add(x[0], 1.0, out=self.cache)
            if when == "in part of a copy":
                moved = moved + (self.cache * 2)[2].copy_(x[0, 0])
            return nn.functional.layer_norm(moved, (16,))

    steps = describe_module(Cache(), (X,))
    assert next(step.operands[1].constant for step in steps if step.operator == "add") is (
        when in {"in part of a copy", "never"}
    )
    assert bool(match_faults(steps, "fp16", "")) is (when == "never")


def pad(*sizes: int, then: str = "double", value: float = 0.0) -> Callable[..., Tensor]:
    """Pad an activation by these sizes, and double it, convolve it or return it."""

    def call(net: Net, x: Tensor) -> Tensor:
        y = nn.functional.pad(x.relu() if then else x, sizes, value=value)
        return net.parts[0](y) if then == "convolve" else y * 2 if then else y

    return call


def convolve(kernel: int, **sizes: int) -> Callable[..., Tensor]:
    weight = torch.ones(4, 4, kernel, kernel)
    return lambda net, x: nn.functional.conv2d(x, weight, **sizes)


def pool(*sizes: int, counts: bool = True, ceil: bool = False) -> Callable[..., Tensor]:
    kernel, stride, pad = sizes
    return lambda net, x: nn.functional.avg_pool2d(x, kernel, stride, pad, ceil, counts)


K = torch.full((2, 1, 4, 4), 0.7)
FILL, IN_16_BITS = torch.tensor(-65504.0), "mask-too-large-in-16-bits"


BLOCKED = -torch.ones(6, 6).triu(1)


def plain_norm(*weights: Tensor) -> Callable[..., Tensor]:
    """A BatchNorm with or without weights and biases."""
    statistics = torch.zeros(4), torch.ones(4)
    return lambda net, x: nn.functional.batch_norm(net.parts[0](x), *statistics, *weights)


def raised_norm(epsilon: float, variance: float) -> Callable[..., Tensor]:
    """A BatchNorm with a channel of this variance."""
    variances = torch.tensor([1.0, 1.0, 1.0, variance])
    words = torch.zeros(4), variances, torch.ones(4), torch.zeros(4)
    return lambda net, x: nn.functional.batch_norm(net.parts[0](x), *words, eps=epsilon)


def attend(*mask: Tensor, **keywords: Any) -> Callable[..., Tensor]:
    call = nn.functional.scaled_dot_product_attention
    return lambda net, x: call(x, x, x, *mask, **keywords)


def join(dim: int, then: Callable[[Tensor], Tensor] = lambda x: x) -> Callable[..., Tensor]:
    constant = torch.full((2, 1, 4, 4) if dim == 1 else (2, 4, 1, 4), 0.7)
    return lambda net, x: torch.cat([then(net.parts[0](x)), constant], dim)


def limit(x: Tensor, summand: float = 0.3) -> Tensor:
    return x.relu() + summand


def transpose_groups(outputs: int) -> Callable[..., Tensor]:
    weight = torch.ones(4, outputs, 2, 2)
    return lambda net, x: nn.functional.conv_transpose2d(x, weight, groups=2)


def shift(*shape: int) -> Callable[..., Tensor]:
    """A sum of rank 5 with a constant of equal elements."""
    constant = torch.full(shape, 0.5)
    return lambda net, x: x[None] + constant


SCATTERED, SHIFTED = "activation-of-one-scattered", "add-of-equal-numbers-in-rank-5"
BEFORE_CONV, FLAT = "uniform-channel-before-conv", torch.full((2, 1, 6, 6), 0.7)
LIMITED, IN_ONNX = "relu-between-product-and-sum", "relu-between-product-and-sum-in-onnx"
UNLIKE = torch.arange(4.0).reshape(1, 4, 1, 1)
HALVES = torch.full((4, 1, 1), 0.5)


def transpose(kernel: int, *sizes: int) -> Callable[..., Tensor]:
    """The sizes are stride, padding and output padding."""
    weight = torch.ones(4, 4, kernel, kernel)
    return lambda net, x: nn.functional.conv_transpose2d(x, weight, None, *sizes)


@pytest.mark.parametrize(
    ("call", "scheme", "names"),
    [
        (pad(0, 1), "fp16", ["pad-right-of-activation"]),
        (pad(0, 1), "8a8w", []),  # right through ExecuTorch, and no scheme of the pattern's
        (pad(1, 1), "fp16", []),
        (pad(0, 1, 0, 1, then="convolve"), "fp16", []),
        (pad(1, 1, then="", value=6.0), "8a8w", ["pad-beyond-range"]),
        (pad(1, 1, then="", value=6.0), "fp16", []),
        (pad(1, 1, then=""), "8a8w", []),
        (lambda net, x: 2**x, "16a8w", ["power-of-constant"]),
        (lambda net, x: 2**x, "fp16", []),
        (lambda net, x: x**2 + torch.pow(x, 3.0), "16a8w", []),
        (convolve(2, padding=2), "fp16", ["conv-padded-by-its-kernel"]),
        (convolve(3, padding=1), "fp16", []),
        (convolve(3, padding=4, dilation=4), "fp16", []),
        (pool(2, 2, 1), "16a8w", ["avg-pool-of-2-padded"]),
        (pool(2, 2, 0), "16a8w", []),
        (pool(3, 2, 1), "16a8w", []),
        (pool(2, 2, 1, counts=False), "fp16", ["avg-pool-of-2-padded-not-counted"]),
        (lambda net, x: (x.abs() + 1).log(), "16a8w", ["log-in-16-bits"]),
        (lambda net, x: x.abs().log1p(), "16a8w", ["log-in-16-bits"]),
        (lambda net, x: (x.abs() + 1).log2(), "16a8w", ["log-in-16-bits"]),
        (lambda net, x: (x.abs() + 1).log10(), "16a8w", ["log-in-16-bits"]),
        (lambda net, x: x.cumsum(1), "8a8w", ["cumsum-in-8-bits"]),
        (lambda net, x: x.clamp(min=1e-10).log(), "fp16", ["log-floor-below-float16"]),
        (lambda net, x: (x.abs() + 1e-7).log10(), "fp16", ["log-floor-below-float16"]),
        (lambda net, x: (x.abs() + 1e-6).log(), "fp16", []),
        (lambda net, x: x.clamp(min=1e-10).log(), "8a8w", []),
        (lambda net, x: (-x * x).exp(), "fp16", ["exp-of-low-numbers"]),
        (lambda net, x: x.clamp(-100, 0).exp(), "fp16", ["exp-of-low-numbers"]),
        (lambda net, x: x.clamp(-88, 0).exp() + x.tanh().exp(), "fp16", []),
        (lambda net, x: (-x * x).exp(), "16a8w", []),
        (join(1), "8a8w", ["uniform-channel-behind-conv"]),
        (join(1, nn.functional.relu), "16a8w", ["uniform-channel-behind-conv"]),
        (join(1), "fp16", []),
        (join(2), "8a8w", []),
        (join(1, torch.sigmoid), "8a8w", []),
        (lambda net, x: torch.cat([K, net.parts[0](x)], 1), "8a8w", []),  # the constant is first
        (lambda net, x: torch.cat([net.parts[0](x), K * 0], 1), "8a8w", []),
        (lambda net, x: net.parts[0](torch.cat([x[:, :3], FLAT * 0], 1)), "8a8w", [BEFORE_CONV]),
        (
            lambda net, x: net.parts[0](torch.cat([x[:, :3], FLAT], 1).relu()),
            "16a8w",
            [BEFORE_CONV],
        ),
        (lambda net, x: net.parts[0](torch.cat([x[:, :3], FLAT], 1)), "fp16", []),
        (lambda net, x: net.parts[0](torch.cat([FLAT, x[:, :3]], 1)), "8a8w", []),
        (lambda net, x: net.parts[0](torch.cat([x[:, :2], x[:, :1], FLAT], 1)), "8a8w", []),
        (lambda net, x: torch.cat([x[:, :3], FLAT], 1).relu(), "8a8w", []),
        (
            lambda net, x: net.parts[0](torch.cat([x[:, 1:2], torch.cat([x[:, :2], FLAT], 1)], 1)),
            "8a8w",
            [BEFORE_CONV],
        ),
        (
            lambda net, x: net.parts[0](nn.functional.pad(x[:, 1:], (0, 0, 0, 0, 0, 1))),
            "8a8w",
            ["channels-padded-before-conv"],
        ),
        (lambda net, x: net.parts[0](nn.functional.pad(x[:, 1:], (0, 0, 0, 0, 1, 0))), "8a8w", []),
        (lambda net, x: x.select_scatter(x[..., :1].tanh()[..., 0], 3, 2), "8a8w", [SCATTERED]),
        (lambda net, x: x.select_scatter(x[..., :1].tanh()[..., 0], 3, 2), "fp16", []),
        (lambda net, x: x.select_scatter(x[..., 0].tanh(), 3, 2), "8a8w", []),
        (lambda net, x: x.select_scatter(x.tanh()[..., 0], 3, 2), "8a8w", []),
        (lambda net, x: x.slice_scatter(x[..., :1].tanh(), 3, 2, 3), "8a8w", []),
        (shift(1, 1, 4, 6, 1), "fp16", [SHIFTED]),
        (shift(1, 1, 4, 1, 1), "fp16", [SHIFTED]),
        (shift(1, 2, 4, 6, 6), "fp16", [SHIFTED]),
        (shift(1, 2, 4, 6, 6), "16a8w", []),
        (shift(1, 1, 1, 1, 1), "fp16", []),
        (shift(1, 1, 1, 1, 6), "fp16", []),
        (shift(6), "fp16", []),
        (shift(4, 6, 1), "fp16", []),
        (shift(2, 4, 6, 6), "fp16", []),
        (transpose(3, 3, 1, 2), "8a8w", ["conv-transpose-unreached"]),
        (transpose(3, 3, 1, 1), "8a8w", []),
        (transpose(2, 2, 0, 1), "fp16", ["conv-transpose-unreached"]),
        (transpose(8, 4, 2, 3), "fp16", ["conv-transpose-unreached"]),
        (transpose(5, 4, 2, 3), "fp16", []),
        (lambda net, x: limit(x * -0.5), "8a8w", [LIMITED]),
        (lambda net, x: net.parts[0](x).mul(2).relu().flatten(1) + HALVES[0], "8a8w", [LIMITED]),
        (lambda net, x: limit(x * 0.5), "u8", [IN_ONNX]),
        (lambda net, x: limit(net.parts[0](x) * 0.5), "u8", []),
        (lambda net, x: limit(x * 0.5), "16a8w", []),
        (lambda net, x: limit(x * 0.5, -0.3), "8a8w", []),
        (lambda net, x: limit(x * 0.5, 0.001), "8a8w", []),
        (lambda net, x: limit(x * HALVES), "8a8w", []),
        (lambda net, x: limit(x / 2), "8a8w", []),
        (lambda net, x: (x + UNLIKE) * 0.5, "fp16", ["add-before-factor"]),
        (lambda net, x: (UNLIKE + x) * 0.5, "fp16", []),
        (lambda net, x: (UNLIKE[:, :1] + x.tanh()) * 0.5, "fp16", []),  # as in GELU
        (lambda net, x: (x + HALVES) * 0.5, "fp16", []),
        (lambda net, x: limit(x.sigmoid() * 2), "8a8w", []),
        (transpose_groups(2), "16a8w", ["conv-transpose-of-groups"]),
        (transpose_groups(1), "u8_channel", []),
        (transpose_groups(2), "u8", []),
        (transpose(2, 2), "8a8w", []),
        (pool(3, 2, 0, ceil=True), "fp16", ["avg-pool-beyond-edge"]),
        (pool(2, 2, 0, ceil=True), "fp16", []),  # the windows fit
        (pool(3, 3, 1, counts=False), "8a8w", ["avg-pool-padded-tiles"]),
        (pool(4, 4, 2, counts=False), "8a8w", []),  # padding adds a window
        (pool(3, 2, 1), "8a8w", []),
        (pool(4, 1, 1), "fp16", ["avg-pool-padded-and-counted"]),
        (pool(3, 1, 1), "fp16", []),
        (lambda net, x: (x * 0.5).clamp(0.3), "8a8w", ["clamp-above-zero"]),
        (lambda net, x: (x * 0.5).clamp(-0.3), "8a8w", []),
        (pool(3, 2, 0), "fp16", []),
        (lambda net, x: x.masked_fill(x > 0, -1e9).softmax(-1), "8a8w", ["mask-too-large"]),
        (lambda net, x: torch.where(x > 0, x, FILL).softmax(-1), "u8", ["mask-too-large"]),
        (lambda net, x: torch.where(x > 0, x, FILL).softmax(-1), "16a8w", [IN_16_BITS]),
        (
            lambda net, x: torch.cat([x.masked_fill(x > 0, -1e9), x], -1).softmax(-1),
            "8a8w",
            ["mask-too-large"],
        ),
        (lambda net, x: x.masked_fill(x > 0, -30.0).softmax(-1), "8a8w", []),
        (lambda net, x: x.masked_fill(x > 0, -1e3).softmax(-1), "16a8w", []),
        (lambda net, x: x.masked_fill(x > 0, -1e9) * 2, "8a8w", []),
        (attend(is_causal=True), "8a8w", ["attention-mask-too-large"]),
        (attend(BLOCKED < 0), "16a8w", ["attention-mask-too-large-in-16-bits"]),
        (attend(attn_mask=BLOCKED * 200), "8a8w", ["attention-mask-too-large"]),
        (attend(BLOCKED * 30), "8a8w", []),
        (attend(), "8a8w", []),
        (attend(is_causal=True), "fp16", []),
        (attend(BLOCKED <= 0), "16a8w", []),  # blocks nothing
        (lambda net, x: x + x.argmax(1, True).float(), "8a8w", ["cast-of-integers"]),
        (lambda net, x: x.argmax(1).type_as(x) * 2, "16a8w", ["cast-of-integers"]),
        (lambda net, x: x + x.argmax(1, True).float(), "fp16", []),
        (lambda net, x: x + x.long(), "8a8w", ["cast-to-integers"]),
        (lambda net, x: x + x.int(), "fp16", []),
        (lambda net, x: x + (x > 0).long(), "8a8w", []),
        (
            lambda net, x: nn.functional.pad(x - 0.5, (0, 1, 0, 1)),
            "fp16",
            ["sum-before-pad-of-two-axes"],
        ),
        (
            lambda net, x: nn.functional.pad(80 + x * 50, (0, 9, 0, 2)),
            "u8",
            ["sum-before-pad-of-two-axes"],
        ),
        (lambda net, x: nn.functional.pad(x - 0.5, (0, 1)), "fp16", []),
        (lambda net, x: nn.functional.pad(x * 0.5, (0, 1, 0, 1)), "fp16", ["pad-right-of-product"]),
        (plain_norm(), "fp16", ["batch-norm-without-weights"]),
        (plain_norm(torch.ones(4), torch.zeros(4)), "fp16", []),
        (raised_norm(1e-3, 0.19), "fp16", ["batch-norm-without-epsilon"]),
        (raised_norm(1e-3, 0.21), "fp16", []),
        (raised_norm(1e-5, 0.0), "fp16", ["batch-norm-without-epsilon"]),
        (raised_norm(1e-5, 0.0), "16a8w", []),
        (lambda net, x: (x > 0).float(), "8a8w", []),
        (lambda net, x: x + torch.arange(6).float(), "8a8w", []),  # a constant
    ],
)
def test_numeric_arguments_of_an_operator_decide_whether_a_pattern_matches(
    call: Callable[..., Tensor], scheme: str, names: list[str]
) -> None:
    matches = find(call, IMAGE, scheme=scheme, parts=(nn.Conv2d(4, 4, 3), nn.Identity()))
    assert [match.fault for match in matches] == names


@pytest.mark.parametrize(
    ("dtype", "scheme", "names"),
    [
        (torch.int32, "8a8w", ["cast-of-integers"]),
        (torch.int64, "8a8w", []),
        (torch.int32, "fp16", []),
        (torch.uint8, "fp16", ["cast-of-bytes"]),
        (torch.uint8, "8a8w", []),
    ],
)
def test_inputs_of_some_integers_are_known_faults_if_they_are_cast(
    dtype: torch.dtype, scheme: str, names: list[str]
) -> None:
    integers = torch.zeros(1, 3, dtype=dtype)
    matches = find(lambda net, x: x[:, None].float() / 255, integers, scheme=scheme)
    assert [match.fault for match in matches] == names
    for move in (lambda x: x[:, 1:], lambda x: x[:, :, None], lambda x: x + 1):
        moved = find(lambda net, x, move=move: move(x).float(), integers, scheme="8a8w")
        assert [match.fault for match in moved] == ["cast-of-integers"] * (dtype != torch.uint8)


def test_a_known_fault_of_pools_on_tall_narrow_images_is_reported() -> None:
    tall, square = torch.randn(1, 4, 20, 7), torch.randn(1, 4, 20, 20)
    assert [match.fault for match in find(pool(2, 1, 0), tall)] == ["avg-pool-of-tall-picture"]
    assert find(pool(2, 1, 0), square) == ()


ROW, STRIP = torch.randn(1, 4, 16), torch.randn(1, 4, 1, 32)
SHORT, APART = ["conv-of-a-short-row"], ["conv-of-a-short-row-padded-apart"]


@pytest.mark.parametrize(
    ("row", "layer", "names"),
    [
        (ROW, nn.Conv1d(4, 6, 7, padding=3), SHORT),
        (ROW[..., 2:], nn.Conv1d(4, 6, 7, padding=3), []),
        (ROW, nn.Conv1d(4, 6, 5, padding=2), []),
        (ROW[..., 8:], nn.Conv1d(4, 6, 5, padding=2), SHORT),
        (ROW[..., 8:], nn.Conv1d(4, 6, 3, padding=9, dilation=9), []),
        (ROW, nn.Conv1d(4, 6, 3, padding="same", dilation=3), SHORT),
        (ROW, nn.Conv1d(4, 4, 7, padding=3, groups=4), []),
        (ROW, nn.Conv1d(4, 6, 7, padding=3, stride=2), []),
        (STRIP, nn.Conv2d(4, 6, (1, 11), padding=(0, 5)), SHORT),
        (STRIP, nn.Conv2d(4, 6, (1, 9), padding=(0, 4)), []),  # 32 is too long for this kernel
        (STRIP, nn.Conv2d(4, 6, (3, 11), padding=(1, 5)), []),
        (STRIP, nn.Sequential(nn.ZeroPad2d((5, 5, 0, 0)), nn.Conv2d(4, 6, (1, 11))), APART),
        (STRIP, nn.Sequential(nn.ZeroPad2d((10, 0, 0, 0)), nn.Conv2d(4, 6, (1, 11))), []),
        (ROW, nn.Sequential(nn.ConstantPad1d(3, 0.0), nn.Conv1d(4, 6, 7)), []),
    ],
)
def test_convolutions_that_keep_the_length_of_a_short_row_are_known_faults_in_fp16(
    row: Tensor, layer: nn.Module, names: list[str]
) -> None:
    matches = find(lambda net, x: net.parts[0](x), row, parts=(layer,))
    assert [match.fault for match in matches] == names
    assert find(lambda net, x: net.parts[0](x), row, scheme="8a8w", parts=(layer,)) == ()


@pytest.mark.parametrize(
    ("shape", "axis", "scheme", "names"),
    [
        ((1, 64), 1, "8a8w", ["cumsum-of-a-row-in-8-bits"]),
        ((1, 16), 1, "8a8w", []),
        ((1, 64, 2), 1, "8a8w", ["cumsum-in-8-bits"]),
        ((1, 64, 2), 1, "16a8w", []),
        ((1, 2400, 9), 1, "16a8w", ["cumsum-of-many-steps"]),
        ((1, 600), -1, "fp16", ["cumsum-of-many-steps"]),
        ((1, 2, 600), 1, "fp16", []),
    ],
)
def test_the_steps_of_a_running_sum_decide_which_fault_it_is(
    shape: tuple[int, ...], axis: int, scheme: str, names: list[str]
) -> None:
    matches = find(lambda net, x: x.cumsum(axis), torch.randn(shape), scheme=scheme)
    assert [match.fault for match in matches] == names


def write_out(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def write_as_qwen(x: Tensor, weight: Tensor) -> Tensor:
    y = x.to(torch.float32)
    return weight * (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def factor_weight(x: Tensor, weight: Tensor) -> Tensor:
    return x * (torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight)


def call_norm(x: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


CALLED, WRITTEN = ["rms-norm-misplaced"], ["rms-norm-written-out-misplaced"]


@pytest.mark.parametrize(
    ("call", "shape", "scheme", "names"),
    [
        (call_norm, (1, 16, 4, 32), "fp16", CALLED),
        (call_norm, (1, 16, 4, 32), "16a8w", []),
        (call_norm, (1, 16, 4, 33), "fp16", []),
        (call_norm, (2, 13, 8, 16), "8a8w", CALLED),
        (call_norm, (1, 13, 9, 32), "fp16", []),
        (call_norm, (1, 8, 8, 32), "fp16", []),
        *((call_norm, (height, 100, 768), "fp16", CALLED) for height in (9, 12)),
        *((call_norm, (height, 100, 768), "fp16", []) for height in (8, 13)),
        *((call_norm, (2, width, 32), "fp16", CALLED) for width in (16, 64)),
        *((call_norm, (7, width, 32), "fp16", []) for width in (8, 17, 72)),
        *((call_norm, (height, 16, 32), "fp16", []) for height in (1, 8)),
        (call_norm, (64, 32), "fp16", []),
        *((call, (1, 16, 4, 32), "8a8w", WRITTEN) for call in (write_out, write_as_qwen)),
        (write_out, (1, 16, 4, 64), "fp16", []),
        (write_out, (1, 16, 4, 32), "16a8w", []),
        (factor_weight, (1, 16, 4, 32), "16a8w", ["rms-norm-of-factored-weight"]),
        *(
            (call, (1, 16, 4, 32), "fp16", [])
            for call in (
                lambda x, w: write_out(x.float(), 1.0 + w.float()).type_as(x),  # as Gemma
                factor_weight,
                lambda x, w: write_out(x, x.sigmoid()),
                lambda x, w: call_norm(x.reshape(1, -1, x.shape[-1]), w).reshape(x.shape),
            )
        ),
    ],
)
def test_the_known_rms_norm_fault_is_reported_for_its_shapes(
    call: Callable[..., Tensor], shape: tuple[int, ...], scheme: str, names: list[str]
) -> None:
    weight = nn.ParameterList([nn.Parameter(torch.rand(shape[-1]))])
    matches = find(
        lambda net, x: call(x, net.parts[0][0]), torch.ones(shape), scheme=scheme, parts=(weight,)
    )
    assert [match.fault for match in matches] == names


def test_each_tensor_of_a_list_is_an_operand_and_the_first_result_has_the_shape() -> None:
    class Joined(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            z = torch.cat([x.relu(), y.tanh(), torch.ones(2, 1)], 1)
            return z, *torch.split(z, [3, 4], 1)

    steps = {step.operator: step for step in describe_module(Joined(), (X[:, :3, 0], X[:, :3, 1]))}
    joined = steps["cat"]
    assert [operand.shape for operand in joined.operands] == [(2, 3), (2, 3), (2, 1)]
    assert [operand.constant for operand in joined.operands] == [False, False, True]
    assert joined.sources == ("relu", "tanh", "")
    assert (joined.shape, joined.numbers["dim"]) == ((2, 7), (1.0,))
    (split,) = (step for name, step in steps.items() if name.startswith("split"))
    assert (split.shape, split.sources) == ((2, 3), ("cat",))
    assert split.numbers["split_sizes"] == (3.0, 4.0)


def describe(call: Callable[..., Any], *inputs: Tensor) -> dict[str, Step]:
    """The steps of a function, by operator."""
    return {step.operator: step for step in describe_module(Net(lambda _, *x: call(*x)), inputs)}


def test_the_constant_factor_or_fill_that_reaches_an_operator_is_recorded() -> None:
    """A factor is a constant of one element; operators that only move elements pass it on."""
    scale, is_kept = torch.ones(1), torch.ones(24, 16, dtype=torch.bool)
    for call, magnitude in (
        (lambda x, s: (x * -30.0).transpose(1, 2), 30.0),
        (lambda x, s: (x * torch.tensor([1e39])).reshape(2, 384), 1e38),
        (lambda x, s: x * torch.tensor([7.0, 8.0]).repeat(8), 0.0),
        (lambda x, s: (s * 1000.0) * x, 0.0),  # of several factors, the last counts
        (lambda x, s: (x * 5.0).relu(), 0.0),
        (lambda x, s: x.masked_fill(is_kept, -1e4), 1e4),
        (lambda x, s: (x * 9.0).masked_fill(is_kept, -3.0), 3.0),
        (lambda x, s: x.masked_fill(is_kept, 0.0), 0.0),
    ):
        steps = describe(lambda x, s, call=call: call(x, s) + x.flatten()[0], X, scale)
        assert steps["add"].operands[0].magnitude == magnitude


class Packed(nn.Module):
    """Attention with a joint projection, whose parts are found in one of three ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.joint = way, nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joint, batch = self.joint(x), x.shape[0]
        if self.way == "chunk":
            cut = (
                projection.view(batch, 5, 2, 8).transpose(1, 2) for projection in joint.chunk(3, -1)
            )
        elif self.way == "permute":
            cut = joint.view(batch, 5, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            cut = (
                projection.transpose(1, 2)
                for projection in joint.unflatten(-1, (3, 2, 8)).unbind(2)
            )
        return torch.nn.functional.scaled_dot_product_attention(*cut)


class Levels(nn.Module):
    """A head for two levels."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.head = nn.Conv2d(4, 4, 1, bias=bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head(x), self.head(x[..., ::2])


class Skipped(nn.Module):
    """A convolution with a batch norm whose result is used with and without another one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return x + self.norm(x).relu()


class Tied(nn.Module):
    """A convolution whose weights ``use`` reads, too."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor], axes: int = 2) -> None:
        super().__init__()
        self.use = use
        self.conv = (nn.Conv1d, nn.Conv2d)[axes - 1](4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.conv(x), self.conv.weight)


USED = "conv-weights-used-elsewhere"


@pytest.mark.parametrize(
    ("net", "shape", "scheme", "name"),
    [
        (Tied(lambda x, w: x * (w * x[:, :, :3, :3]).sum()), (1, 4, 8, 8), "fp16", USED),
        (Tied(lambda x, w: x * (w * x[:, :, :3, :3]).sum()), (1, 4, 8, 8), "8a8w", ""),
        (Tied(nn.functional.conv_transpose2d), (1, 4, 6, 6), "fp16", USED),
        (Tied(nn.functional.conv2d), (1, 4, 8, 8), "fp16", ""),
        (Tied(nn.functional.conv_transpose1d, 1), (1, 4, 8), "fp16", ""),
        (Packed("permute"), (2, 5, 16), "8a8w", "joint-projection-of-batch"),
        (Packed("permute"), (2, 5, 16), "16a8w", "joint-projection-of-batch"),
        (Packed("unbind"), (2, 5, 16), "8a8w", "joint-projection-unbound"),
        (Packed("permute"), (1, 5, 16), "8a8w", ""),
        (Packed("permute"), (2, 5, 16), "fp16", ""),
        (Packed("chunk"), (2, 5, 16), "8a8w", ""),
        (Levels(bias=True), (1, 4, 6, 6), "8a8w", "bias-of-first-call"),
        (Levels(bias=False), (1, 4, 6, 6), "8a8w", ""),
        (Levels(bias=True), (1, 4, 6, 6), "fp16", ""),
        (Skipped(), (1, 4, 6, 6), "8a8w", "batch-norm-folded-in-use"),
    ],
)
def test_known_faults_match_other_spellings_of_the_same_operators(
    net: nn.Module, shape: tuple[int, ...], scheme: str, name: str
) -> None:
    steps = describe_module(net.eval(), (torch.zeros(shape),))
    assert {match.fault for match in match_faults(steps, scheme, "2.49.40")} == ({name} - {""})


def kill(layer: Any, factor: float = 0.0, bias: float = 0.5) -> Any:
    """Return a layer whose first channel has nearly no weights, and a bias."""
    with torch.no_grad():
        layer.weight[0] *= factor
        layer.bias[0] = bias
    return layer


@pytest.mark.parametrize(
    ("layers", "shape", "scheme", "is_found"),
    [
        ((kill(nn.Linear(8, 4)),), (2, 8), "8a8w", True),
        ((kill(nn.Linear(8, 4)),), (2, 8), "fp16", False),
        ((kill(nn.Linear(8, 4), 1.0),), (2, 8), "16a8w", False),
        ((kill(nn.Linear(8, 4), 1e-4),), (2, 8), "16a8w", True),
        ((kill(nn.Linear(8, 4), 1e-4),), (2, 8), "8a8w", False),
        ((kill(nn.Linear(8, 4), 0.0, 0.0),), (2, 8), "16a8w", False),
        ((nn.Conv2d(4, 4, 3), kill(nn.BatchNorm2d(4).eval())), (1, 4, 6, 6), "8a8w", True),
        ((nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4).eval()), (1, 4, 6, 6), "8a8w", False),
    ],
)
def test_a_bias_beyond_the_weights_of_its_channel_is_a_known_fault(
    layers: tuple[nn.Module, ...], shape: tuple[int, ...], scheme: str, is_found: bool
) -> None:
    def call(net: Net, x: Tensor) -> Tensor:
        for layer in net.parts:
            x = layer(x)
        return x

    matches = find(call, torch.randn(shape), scheme=scheme, parts=layers)
    assert any("bias-beyond-weights" in match.fault for match in matches) is is_found


def gate(x: Tensor) -> Tensor:
    """SiLU, written out."""
    return x * x.sigmoid()


@pytest.mark.parametrize(
    ("call", "scheme", "names"),
    [
        (lambda net, x: x.sigmoid() - 0.5, "16a8w", ["sigmoid-minus-number"]),
        (lambda net, x: x.sigmoid() - 0.5, "8a8w", []),
        (lambda net, x: x.sigmoid() - 0.1, "16a8w", []),
        (lambda net, x: x.sigmoid() + -0.5, "16a8w", []),
        (lambda net, x: nn.functional.silu(x + net.positions[0]), "fp16", ["silu-of-sum"]),
        (lambda net, x: nn.functional.silu(x + net.positions[0]), "16a8w", []),
        (lambda net, x: gate(x + net.positions[0]), "fp16", ["silu-of-sum-written-out"]),
        (lambda net, x: (x + net.positions[0]).sigmoid() * 0.3, "fp16", []),
        (lambda net, x: (x + net.positions[0]).sigmoid() * x, "fp16", []),
        (lambda net, x: torch.stack([x.relu(), x], 1), "8a8w", []),
    ],
)
def test_faults_of_recent_networks_are_found_where_they_are(
    call: Callable[..., Tensor], scheme: str, names: list[str]
) -> None:
    assert [match.fault for match in find(call, torch.randn(1, 16), scheme=scheme)] == names


@pytest.mark.parametrize(
    ("shape", "scheme", "is_found"),
    [
        ((1, 32, 8, 8), "16a8w", True),
        ((1, 32, 8, 8), "8a8w", False),
        ((1, 16, 8, 8), "16a8w", False),
        ((1, 32, 9, 8), "16a8w", False),
        ((32, 8, 8), "16a8w", False),
    ],
)
@pytest.mark.parametrize("activate", [nn.functional.silu, gate])
def test_silu_of_a_sum_of_low_images_is_a_known_fault_in_16_bits(
    activate: Callable[[Tensor], Tensor], shape: tuple[int, ...], scheme: str, is_found: bool
) -> None:
    matches = find(lambda net, x: activate(x + 0.3), torch.randn(shape), scheme=scheme)
    assert any("silu-of-low-image-sum" in match.fault for match in matches) is is_found
