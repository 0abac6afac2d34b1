"""Which graphs the search generates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")


from ci.faults.generate import MOST_RANK, MOST_SIZE, generate
from ci.faults.graph import Graph
from ci.faults.shrink import BINARY
from ci.faults.torch_graphs import find_shapes
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOT = Path(__file__).with_name("snapshots") / "forms.txt"
WHOLE = {"after", "axes", "before", "counts_pad", "keep", "kernel", "pad", "scale", "stride"}
RANKED = {
    *("amax", "amin", "batch_norm", "conv", "conv_transpose", "instance_norm", "linear"),
    *("matmul", "mean", "prelu", "sum"),
}


def describe_forms(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """The operands, ranks and attributes of each operator, without sizes of tensors."""
    yield f"outputs: {len(graph.outputs)}"
    yield f"nodes: {len(graph.nodes)}"
    for name, node in graph.nodes.items():
        shapes_read = [shapes[read] for read in node.reads]
        operator = "binary" if node.operator in BINARY else node.operator
        kinds = [
            "node" if read not in graph.tensors else "input" if read in graph.inputs else "constant"
            for read in node.reads
        ]
        yield f"{operator} of {', '.join(kinds)}"
        if operator == "binary" and shapes_read[0] != shapes_read[1]:
            yield (
                "binary of two ranks"
                if len(shapes_read[0]) != len(shapes_read[1])
                else "binary of an axis of 1"
            )
        if operator in RANKED:
            yield f"{operator} of rank {len(shapes_read[0])}"
        if operator == "reshape":
            yield f"reshape to {len(shapes[name]) - len(shapes_read[0]):+} axes"
        for key, value in node.attributes.items():
            if key in WHOLE:
                yield f"{operator} {key} = {value}"
            elif key == "order":
                yield f"transpose that {'keeps' if [*value] == sorted(value) else 'moves'} axes"
            elif key == "groups":
                yield f"{operator} in {'one group' if value == 1 else 'groups'}"
            elif operator in {"cumsum", "log_softmax", "lp_norm", "softmax"}:
                yield f"{operator} over the {'last' if value == -1 else 'second'} axis"


def test_every_form_of_every_operator_is_generated_and_no_other() -> None:
    graphs = [generate(3, number) for number in range(700)]
    shapes_of_graphs = [find_shapes(graph) for graph in graphs]
    forms: set[str] = set()
    for graph, shapes_of_graph in zip(graphs, shapes_of_graphs, strict=True):
        forms |= set(describe_forms(graph, shapes_of_graph))
    check_snapshot(SNAPSHOT, "".join(f"{form}\n" for form in sorted(forms)))
    shapes = [shape for shapes_of_graph in shapes_of_graphs for shape in shapes_of_graph.values()]
    assert max(map(len, shapes)) == MOST_RANK
    assert MOST_SIZE // 2 < max(map(math.prod, shapes)) <= MOST_SIZE
