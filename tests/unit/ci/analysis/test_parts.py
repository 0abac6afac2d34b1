"""Which parts an output has, by a graph in the neutral form and by its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ci.analysis.parts import find_parts, find_quiet, has_range
from ci.graphs.graph import Graph, Node
from ci.models.tensors import OutputPart, Range

Compute = Callable[[Sequence[Any]], Sequence[Any]]


def call(
    operator: str, reads: str, compute: Compute | None = None, axes: tuple[int, ...] | None = None
) -> tuple[str, str, Compute, tuple[int, ...] | None]:
    return operator, reads, compute or (lambda arrays: [arrays[0]]), axes


def name_parts(*calls: Any, shapes: dict[str, tuple[int, ...]] | None = None) -> list[str]:
    """Return the parts of the last of some calls. Their results are named 1, 2 and so on; x and y
    are inputs, [1, 4, 6] and [1, 2, 6], and k and m constants for x."""
    constants = {
        "k": np.full((1, 4, 6), 2.0),
        "m": np.arange(4).reshape(1, 4, 1) < 3,
    }
    all_shapes = {"x": (1, 4, 6), "y": (1, 2, 6), "k": (1, 4, 6), "m": (1, 4, 1)} | (shapes or {})
    nodes = []
    for number, (operator, reads, compute, axes) in enumerate(calls, 1):
        names = tuple(reads.split())
        result = str(number)
        if result not in all_shapes:
            all_shapes[result] = np.asarray(
                compute([np.zeros(all_shapes[name]) for name in names])[0]
            ).shape
        nodes.append(Node(operator, names, (result,), axes, f"{operator} {number}", compute))
    loaders = {name: lambda value=value: value for name, value in constants.items()}
    graph = Graph(nodes, [str(len(calls))], all_shapes, loaders)
    return [str(part) for part in find_parts(graph)[0]]


def join(axis: int) -> Compute:
    return lambda arrays: [np.concatenate(arrays, axis)]


JOINED = call("cat", "x y", join(1))
ROWS = ["0:4 along axis 1", "4:6 along axis 1"]


@pytest.mark.parametrize(
    ("calls", "parts"),
    [
        ([JOINED], ROWS),
        ([JOINED, call("sigmoid", "1")], ROWS),
        ([JOINED, call("mul", "1 1")], ROWS),
        ([JOINED, call("softmax", "1", axes=(-1,))], ROWS),
        ([JOINED, call("softmax", "1", axes=(1,))], []),  # each element depends on both parts
        ([JOINED, call("conv1d", "1")], []),
        ([call("relu", "x")], []),
        ([call("add", "x k")], []),
        (
            [JOINED, call("transpose", "1", lambda arrays: [arrays[0].transpose(0, 2, 1)])],
            ["0:4 along axis 2", "4:6 along axis 2"],
        ),
        (
            [JOINED, call("reshape", "1", lambda arrays: [arrays[0].reshape(1, 36)])],
            ["0:24 along axis 1", "24:36 along axis 1"],
        ),
        (
            [
                JOINED,
                call("permute", "1", lambda arrays: [arrays[0].transpose(0, 2, 1)]),
                call("reshape", "2", lambda arrays: [arrays[0].reshape(1, 36)]),
            ],
            ["0:34 (4 of every 6) along axis 1", "4:36 (2 of every 6) along axis 1"],
        ),
        (  # halves of one tensor, exchanged
            [call("roll", "x", lambda arrays: [np.roll(arrays[0], 2, 1)])],
            [],
        ),
        (  # split, and joined again behind an operator on one half
            [
                call("slice", "x", lambda arrays: [arrays[0][:, :2]]),
                call("slice", "x", lambda arrays: [arrays[0][:, 2:]]),
                call("exp", "1"),
                call("cat", "3 2", join(1)),
            ],
            ["0:2 along axis 1", "2:4 along axis 1"],
        ),
        (
            [call("sigmoid", "x"), call("where", "m 1 x", lambda arrays: [np.where(*arrays)])],
            ["0:3 along axis 1", "3:4 along axis 1"],
        ),
        (  # joined along two axes: the parts along both are inside of those along one
            [
                JOINED,
                call("relu", "x"),
                call("relu", "y"),
                call("cat", "2 3", join(1)),
                call("cat", "1 4", join(2)),
            ],
            [
                *ROWS,
                "0:6 along axis 2",
                "6:12 along axis 2",
                "0:4 along axis 1 and 0:6 along axis 2",
                "4:6 along axis 1 and 0:6 along axis 2",
                "0:4 along axis 1 and 6:12 along axis 2",
                "4:6 along axis 1 and 6:12 along axis 2",
            ],
        ),
    ],
)
def test_parts_are_followed_through_whatever_moves_or_scales_elements(
    calls: list[Any], parts: list[str]
) -> None:
    assert sorted(name_parts(*calls)) == sorted(parts)


def test_a_part_is_named_by_the_operator_that_computes_it() -> None:
    node = [
        Node("sigmoid", ("x",), ("a",), None, "sigmoid [net.py:7]", lambda arrays: [arrays[0]]),
        Node("cat", ("a", "y"), ("b",), None, "cat [net.py:8]", join(1)),
        Node("mul", ("b", "b"), ("c",), None, "mul [net.py:9]", lambda arrays: [arrays[0]]),
    ]
    shapes = {"x": (1, 4, 6), "y": (1, 2, 6), "a": (1, 4, 6), "b": (1, 6, 6), "c": (1, 6, 6)}
    (parts,) = find_parts(Graph(node, ["c"], shapes))
    assert [part.origin for part in parts] == ["sigmoid [net.py:7]", ""]


def test_a_node_that_cannot_be_executed_gives_a_single_part() -> None:
    def fail(arrays: Any) -> Any:
        raise ValueError(len(arrays))

    assert name_parts(JOINED, call("flip", "1", fail), shapes={"2": (1, 6, 6)}) == []
    assert name_parts(call("cat", "x z", join(1)), shapes={"1": (1, 6, 6)}) == []


def test_a_deep_graph_is_read_without_recursion() -> None:
    chain = [call("relu", str(number)) for number in range(1, 5000)]
    assert name_parts(JOINED, *chain) == ROWS


RANDOM = np.random.default_rng(3)
PICTURE = RANDOM.standard_normal((4, 1, 8, 5, 5))


def scale(factors: Any, values: Any = PICTURE) -> Any:
    return values * np.reshape(factors, (1, 1, -1, 1, 1))


def shares(values: Any) -> Any:
    return np.exp(values) / np.exp(values).sum(2, keepdims=True)


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (scale([1] * 4 + [1 / 400] * 4), ["4:8 along axis 1"]),
        (scale([1] * 5 + [1 / 100] + [1] * 2), ["5:6 along axis 1"]),
        (scale([100, 1, 1, 0.01, 1, 1, 1, 1]), ["1:3, 4:8 along axis 1", "3:4 along axis 1"]),
        (np.moveaxis(scale([1] * 7 + [0.01]), 2, -1), ["7:8 along axis 3"]),
        (scale([1] * 7 + [0.01]).reshape(4, 1, -1)[..., ::25], ["7:8 along axis 1"]),
        # The others have nothing to lose, or are no outlier.
        (scale([1] * 8), []),
        (scale([1] * 7 + [0]), []),
        (scale([1] * 7 + [1e-9]), []),
        (scale(0.3 ** np.arange(8)), []),  # decreases evenly
        (scale([1] * 7 + [0.1]), []),
        (scale([1] * 7 + [0], PICTURE) + np.reshape([0.0] * 7 + [1e-3], (8, 1, 1)), []),
        (shares(PICTURE + np.reshape([0.0] * 7 + [-9.0], (8, 1, 1))), []),  # sums to one
        (np.maximum(scale([1] * 7 + [0.02]), 0) * (PICTURE > 0.3), []),  # mostly off
        (PICTURE[:1, :, :, :1, :1] * np.reshape([1.0] * 7 + [0.01], (8, 1, 1)), []),  # too few
    ],
)
def test_channels_far_below_all_others_are_parts(values: Any, parts: list[str]) -> None:
    assert [str(part) for part in find_quiet(values)] == parts


@pytest.mark.parametrize(
    ("values", "varies"),
    [
        (PICTURE, True),
        (PICTURE * 0, False),
        (PICTURE * 0 + 3, False),
        (PICTURE[:1].repeat(4, 0), False),  # the same for all samples
        (PICTURE[:1], True),
        (PICTURE * 1e-9, False),
        (PICTURE * np.nan, False),
    ],
)
def test_a_constant_part_has_nothing_to_lose(values: Any, varies: bool) -> None:
    assert has_range(values, 1.0) is varies


def test_a_part_takes_its_elements_and_contains_others() -> None:
    array = np.arange(24).reshape(2, 12)
    part = OutputPart((Range(0, 1, 12, 4, 2),))
    assert part.take(array, 1)[0].tolist() == [1, 2, 5, 6, 9, 10]
    assert OutputPart((Range(0, 0, 8), Range(0, 9, 11))).contains(part)
    assert not OutputPart((Range(0, 0, 8),)).contains(part)
    assert not part.contains(OutputPart((Range(1, 0, 2),)))
