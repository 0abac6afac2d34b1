"""Which operators a mixture is suggested for: those whose roundings cause most of the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from ci.analysis.effects import MOST_NODES, MOST_RUNS, Names, choose_loudest, group_roundings
from ci.graphs.graph import Graph, Node

AMONG_MANY: dict[Names, float] = {(f"n{number}",): 1e-6 for number in range(1000)}
NAN = math.nan


def count_runs(powers: Mapping[Names, float], most_runs: int = MOST_RUNS) -> tuple[Names, int]:
    """The operators that are chosen, and how many groups of roundings were tried."""
    tried = []

    def measure(group: Sequence[Names]) -> float:
        tried.append(group)
        return sum(powers[names] for names in group)

    return choose_loudest([*powers], measure, most_runs), len(tried)


@pytest.mark.parametrize(
    ("powers", "chosen"),
    [
        ({("a", "b"): 6.0, ("b", "c"): 3.0, ("d",): 1.0, ("e",): 0.0}, ("a", "b", "c")),
        ({("d",): 1.0, ("a",): 9.0}, ("a",)),
        ({("a",): 0.0}, ()),
        ({}, ()),
        ({("a",): NAN, ("b",): 1.0}, ("b",)),
        ({("a",): NAN}, ()),
        ({(): 9.0, ("a",): 1.0}, ()),  # no part can select what causes most of the noise
        (AMONG_MANY | {("n700",): 5.0, ("n20",): 1.0, ("n21",): 4.0}, ("n700", "n21")),
    ],
)
def test_the_operators_that_cause_most_of_the_noise_are_chosen(
    powers: Mapping[Names, float], chosen: Names
) -> None:
    assert count_runs(powers)[0] == chosen


def test_many_roundings_need_no_more_runs_than_a_hundred() -> None:
    loud: dict[Names, float] = {(f"n{number}",): 1.0 for number in range(0, 1000, 100)}
    chosen, runs = count_runs(AMONG_MANY | loud)
    assert runs <= MOST_RUNS
    assert len(chosen) > 4
    assert {*chosen} <= {name for (name,) in loud}


def test_no_more_than_eight_operators_are_chosen() -> None:
    powers: dict[Names, float] = {(f"n{number}",): 1.0 for number in range(40)}
    assert len(count_runs(powers)[0]) == MOST_NODES


def test_what_was_found_until_the_runs_are_used_up_is_chosen() -> None:
    powers = AMONG_MANY | {("n700",): 5.0, ("n20",): 2.0, ("n990",): 2.0}
    assert count_runs(powers, 29) == (("n700",), 28)
    assert count_runs(powers, 16) == ((), 16)


def node(operator: str, reads: str, result: str) -> Node:
    return Node(operator, tuple(reads.split()), (result,), None, operator, None, name=result)


@pytest.mark.parametrize(
    ("nodes", "groups"),
    [
        (["quantize x q", "dequantize q d", "relu d y"], ["q d"]),
        (["quantize x q", "dequantize q d", "dequantize q e"], ["q d e"]),
        (["quantize weight q", "dequantize q d"], []),
        (["quantize x q", "permute q p", "dequantize p d"], ["q d"]),
        (["quantize x q", "quantize z r", "cat q,r c", "dequantize c d"], ["q r d"]),
        (["quantize x q", "sigmoid q s", "dequantize s d"], ["q"]),
        (["quantize x q", "dequantize q d", "quantize d r", "dequantize r e"], ["q d", "r e"]),
    ],
)
def test_what_rounds_together_is_one_group(nodes: Sequence[str], groups: Sequence[str]) -> None:
    calls = []
    for text in nodes:
        operator, reads, result = text.split()
        calls.append(node(operator, reads.replace(",", " "), result))
    graph = Graph(calls, [calls[-1].results[0]], {}, {"weight": lambda: np.ones(1)})
    assert [" ".join(group) for group in group_roundings(graph)] == groups
