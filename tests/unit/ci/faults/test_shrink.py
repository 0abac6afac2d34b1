"""Graphs that are made, simplified and varied, and which of them may be judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")


from ci.faults.generate import find_unfit, generate
from ci.faults.graph import Graph, parse_graph
from ci.faults.shrink import fit_variations, is_fit, list_simpler, measure, shrink, vary, vary_last
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.faults.test_search import FIRST, has_planted


def test_a_graph_shrinks_to_the_operators_and_ranks_that_the_fault_needs() -> None:
    small = shrink(
        parse_graph(FIRST), lambda graphs: [has_planted(graph) for graph in graphs], 4, 16
    )
    assert small.operators == ("add", "layer_norm")
    shapes = [tensor.shape for tensor in small.tensors.values()]
    assert sorted(map(len, shapes)) == [2, 3]
    assert max(shapes, key=len)[0] == 2


def test_variations_of_the_last_operator_include_norms_with_a_suitable_axis() -> None:
    graph = parse_graph(
        "x = input(2, 16, 1)\np = constant(16, 1)\ns = add(x, p)\ny = sigmoid(s)\nreturn y"
    )
    varied = dict(fit_variations(graph, "onnx"))
    norm = varied["with layer_norm as the last operator and a last axis of size 16"]
    assert norm.operators == ("add", "layer_norm")
    assert has_planted(norm)
    assert varied["with relu as the last operator"].operators == ("add", "relu")
    assert not any("rms_norm" in text for text in varied)  # which ONNX's graphs do not have
    assert any("rms_norm" in text for text, _ in fit_variations(graph, "executorch"))


def test_generated_graphs_are_the_same_for_a_seed_and_may_be_judged() -> None:
    graphs = [generate(3, number) for number in range(30)]
    assert [str(graph) for graph in graphs] == [str(generate(3, number)) for number in range(30)]
    assert len({str(graph) for graph in graphs}) > 25
    assert not any(find_unfit(graph, 0) for graph in graphs)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("div(x, c)", "divisor"),
        ("reciprocal(x)", "divisor"),
        ("log(x)", "divisor"),
        ("mul(h, h)", "too large"),
        ("mul(s, s)", "near zero"),
        ("lp_norm(s, axis=-1)", "norm of values near zero"),
        ("layer_norm(h)", "norm of nearly equal values"),
        ("layer_norm(w)", "norm of nearly equal values"),
    ],
)
def test_a_graph_whose_result_depends_on_rounding_is_unfit(line: str, word: str) -> None:
    text = (
        "x = input(4, 8)\nw = input(4, 2)\nh = input(4, 8, value=70.0)\n"
        f"s = input(4, 8, value=0.001)\nc = constant(8)\ny = {line}\nreturn y"
    )
    assert word in find_unfit(parse_graph(text), 1)


@pytest.mark.parametrize("outputs", ["b, a", "a, b"])
def test_only_the_last_operator_is_varied_even_if_an_earlier_one_is_returned(
    outputs: str,
) -> None:
    graph = parse_graph(f"x = input(2, 8)\na = exp(x)\nb = tanh(a)\nreturn {outputs}\n")
    varied = [variation for _, variation in vary_last(graph, "onnx")]
    assert {variation.nodes["a"].operator for variation in varied} == {"exp"}
    assert (
        len({variation.nodes["b"].operator for variation in varied} - {"tanh"}) == len(varied) > 3
    )


SIMPLIFIED = """\
x = input(2, 3, 8)
y = input(1, 8)
p = constant(3, 8, like="large")
q = constant(1, value=2)
w = constant(8, like="positive")
s = add(x, p)
r = reshape(s, shape=[6, 8])
m = mul(r, y)
n = layer_norm(m, w)
k = mul(n, q)
return k, s
"""


FOLLOWED = """\
x = input({0}, 3, 8)
p = constant(8)
b = constant({0}, 1, 8)
c = constant({0}, 3, 8)
r = relu(x)
s = add(r, p)
t = sub(s, b)
u = div(t, c)
y = {1}
return y
"""


def describe_change(before: Graph, after: Graph) -> str:
    """The measure of a graph, and the lines that are only in one of the two."""
    old, new = ([*str(graph).splitlines(), ""] for graph in (before, after))
    lines = [f"- {line}" for line in old if line not in new]
    lines += [f"+ {line}" for line in new if line not in old]
    return "\n".join([str(measure(after)[:5]), *lines])


# Inputs are neither expanded nor replaced, and vectors are no batches.
VARIED = (
    (
        "x = input(2, 3, 8)\ny = input(2, 3, 8)\np = constant(3, 8)\nq = constant(8)\n"
        "s = add(x, p)\nm = mul(s, q)\nt = mul(m, y)\nn = tanh(t)\nreturn n, s\n"
    ),
    (
        "x = input(2, 3, 2)\ny = input(2)\nc = constant(2)\nb = constant(2, 1, 1)\n"
        "s = add(x, y)\nt = mul(c, s)\nu = add(t, b)\nreturn u\n"
    ),
)


def test_simpler_graphs_and_variations_read_as_their_snapshot() -> None:
    graph = parse_graph(SIMPLIFIED)
    descriptions = [describe_change(graph, simpler) for simpler in list_simpler(graph)]
    for frontend, batch, last in (
        ("onnx", 3, "softmax(u, axis=-1)"),
        ("executorch", 1, "rms_norm(u)"),
        ("onnx", 1, "linear(u, p)"),
    ):
        graph = parse_graph(FOLLOWED.format(batch, last))
        variations: Any = (*vary(graph), *vary_last(graph, frontend))  # type: ignore[arg-type]
        descriptions += [
            f"{frontend}, {text}: {describe_change(graph, variation)}"
            for text, variation in variations
        ]
    for text in VARIED:
        graph = parse_graph(text)
        descriptions += [
            f"{text}: {describe_change(graph, variation)}" for text, variation in vary(graph)
        ]
    text = "\n\n".join(descriptions)
    check_snapshot(Path(__file__).parent / "snapshots" / "simpler.txt", f"{text}\n")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("x = input(2, 4)\ny = relu(x)\nreturn y", True),
        ("x = constant(2, 4)\ny = relu(x)\nreturn y", False),  # it has no input
        ("x = input(2, 4)\nc = constant(3)\ny = add(x, c)\nreturn y", False),
        ("x = input(2, 4)\ny = log(x)\nreturn y", False),
        ("x = input(2, 4)\ny = slice(x, axis=0, start=0, stop=9)\nreturn y", False),
        ("x = input(2, 4)\ny = softmax(x, axis=5)\nreturn y", False),
        ("x = input(2, 4)\ny = softmax(x)\nreturn y", False),
    ],
)
def test_a_graph_without_inputs_nodes_or_outputs_is_unfit(text: str, fits: bool) -> None:
    graph = parse_graph(text)
    assert is_fit(graph) is fits
    assert not is_fit(Graph(graph.tensors, {}, ()))
    assert not is_fit(Graph({}, graph.nodes, graph.outputs))
