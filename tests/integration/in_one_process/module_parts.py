"""Which parts of its outputs a torch module joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

from torch.nn import functional  # noqa: E402

from ci.executorch.graph_reader import find_module_parts  # noqa: E402

A, B = torch.rand(1, 6, 9), torch.rand(1, 3, 9)
ROWS = ["0:6 along axis 1", "6:9 along axis 1"]
MASK = torch.tensor([1, 1, 0, 0, 1, 1]).bool().reshape(1, 6, 1)


class Net(torch.nn.Module):
    """A function of A and B as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.mix = torch.nn.Conv1d(4, 6, 1)
        self.register_buffer("mask", MASK)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, a: Any, b: Any) -> Any:
        return self.function(self, a, b)


def join(a: Any, b: Any, axis: int = 1) -> Any:
    return torch.cat([a, b], axis)


def widen(a: Any) -> Any:
    """Return nine rows: those of ``a`` behind a ReLU, and three of zeros."""
    return functional.pad(a.relu(), (0, 0, 0, 3))


def assign(net: Any, a: Any, b: Any) -> Any:
    rows = torch.zeros(1, 9, 9)
    rows[:, :6] = a.relu()
    rows[:, 6:] = b.sigmoid()
    return rows


def scale_in_place(net: Any, a: Any, b: Any) -> Any:
    rows = a * 2
    rows[:, :2] *= 8
    return rows


def count(net: Any, a: Any, b: Any) -> Any:
    net.count.add_(1)
    return join(a * net.count, b)


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (lambda net, a, b: join(a, b), ROWS),
        (lambda net, a, b: torch.cat(tensors=[a, b], dim=-2), ROWS),
        (lambda net, a, b: join(a * 8, b).sigmoid() * 3 + 1, ROWS),
        (lambda net, a, b: join(a, b) * (join(a, b) > 0.5), ROWS),
        (lambda net, a, b: join(a, b).softmax(-1), ROWS),
        (lambda net, a, b: functional.normalize(join(a, b), dim=1), ROWS),
        (lambda net, a, b: functional.layer_norm(join(a, b), (9,)), ROWS),
        (lambda net, a, b: functional.interpolate(join(a, b), scale_factor=2.0), ROWS),
        (lambda net, a, b: join(a, b).relu_().mean(-1), ROWS),
        (assign, ROWS),
        (scale_in_place, ["0:2 along axis 1", "2:6 along axis 1"]),
        (count, ROWS),
        (lambda net, a, b: join(a, b).permute(2, 0, 1), ["0:6 along axis 2", "6:9 along axis 2"]),
        (
            lambda net, a, b: torch.einsum("abc->cab", join(a, b)),
            ["0:6 along axis 2", "6:9 along axis 2"],
        ),
        (
            lambda net, a, b: join(a, b).transpose(1, 2).flatten(1),
            ["0:78 (6 of every 9) along axis 1", "6:81 (3 of every 9) along axis 1"],
        ),
        (
            lambda net, a, b: torch.stack([b * 2, b.sigmoid()], -1).flatten(2),
            ["0:17:2 along axis 2", "1:18:2 along axis 2"],
        ),
        (
            lambda net, a, b: join(
                *(half.exp() if n else half for n, half in enumerate(a.split(3, 1)))
            ),
            ["0:3 along axis 1", "3:6 along axis 1"],
        ),
        (
            lambda net, a, b: torch.where(net.mask, a.relu(), a.sigmoid()),
            ["0:2, 4:6 along axis 1", "2:4 along axis 1"],
        ),
        (
            lambda net, a, b: join(a, b)[:, [8, 7, 6, 0, 1]],
            ["0:3 along axis 1", "3:5 along axis 1"],
        ),
        (
            lambda net, a, b: functional.pad(a.relu(), (0, 0, 0, 2), value=1.0),
            ["0:6 along axis 1", "6:8 along axis 1"],
        ),
        (
            lambda net, a, b: torch.slice_scatter(widen(a), b.sigmoid(), 1, 6, 9),
            ROWS,
        ),
        (
            lambda net, a, b: widen(a).index_copy(1, torch.tensor([6, 7, 8]), b.sigmoid()),
            ROWS,
        ),
        (
            lambda net, a, b: torch.select_scatter(a.relu(), b[:, 0].sigmoid(), 1, 5),
            ["0:5 along axis 1", "5:6 along axis 1"],
        ),
        (
            lambda net, a, b: widen(a) + functional.pad(b.sigmoid(), (0, 0, 6, 0)),
            ROWS,
        ),
        (
            lambda net, a, b: torch.cat(join(a, b).tensor_split((4,), 2)[::-1], 2).roll(1, 1),
            ["0:1, 7:9 along axis 1", "1:7 along axis 1"],
        ),
        (
            lambda net, a, b: functional.pixel_shuffle(
                join(a[:, :4].relu(), b.repeat(1, 2, 1)[:, :4].sigmoid()).reshape(1, 8, 3, 3), 2
            ),
            ["0:1 along axis 1", "1:2 along axis 1"],
        ),
        (lambda net, a, b: torch.cat([a]) * b.mean(), []),
        (lambda net, a, b: a + b.mean(), []),
        (lambda net, a, b: torch.cat(a.relu().chunk(2, 1)[::-1], 1), []),
        (lambda net, a, b: net.mix(join(a[:, :2], a[:, 2:4].exp())), []),
        (lambda net, a, b: torch.tril(join(a, b)), []),  # no ranges
    ],
)
def test_a_part_is_found_through_whatever_moves_or_scales_it(
    function: Callable[..., Any], parts: list[str]
) -> None:
    net = Net(function).eval()
    (parts_of_output,) = find_module_parts(net, (A, B))
    assert [str(part) for part in parts_of_output] == parts
    assert float(net.count) == 0


def test_each_tensor_that_a_module_returns_has_an_entry() -> None:
    def several(net: Any, a: Any, b: Any) -> Any:
        return {"rows": join(a, b), "best": a.argmax(1), "loss": None, "count": 3, "b": b}

    first, *other_outputs = find_module_parts(Net(several).eval(), (A, B))
    assert [str(part) for part in first] == ROWS
    assert other_outputs == [(), ()]
