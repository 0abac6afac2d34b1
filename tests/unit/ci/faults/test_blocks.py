"""Blocks of which models are made, in the sizes of public models, and the order of a search."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.faults.blocks import Deck, read_blocks, visit_blocks
from ci.faults.graph import parse_graph
from ci.faults.known import FRONTENDS, RIGHT, WRONG, Frontend
from ci.faults.onnx_graphs import write_model
from ci.faults.render import render_coverage, render_searches
from ci.faults.search import BLOCKS, RANDOM
from ci.faults.shrink import has_chain
from ci.faults.torch_graphs import compute, draw_sets
from ci.graphs.onnx_session import open_reference
from ci.models.numerics import fix_numerics
from tests.unit.ci.faults.test_search import always, holds, make_search


@pytest.mark.nightly
def test_every_block_builds_in_every_size() -> None:
    fix_numerics()
    for name, (_, sizes) in read_blocks("executorch").items():
        for size in sizes:
            assert Deck(name, "executorch", 1).build(size), (name, size)


def test_every_block_builds_in_its_smallest_size_and_agrees_between_onnx_and_torch(
    tmp_path: Path,
) -> None:
    fix_numerics()
    for name, (_, sizes) in read_blocks("executorch").items():
        assert Deck(name, "executorch", 1).build(min(sizes)), name
    for seed, (name, (_, sizes)) in enumerate(read_blocks("onnx").items()):
        graph = Deck(name, "onnx", seed).build(min(sizes))
        assert graph, name
        write_model([graph], [seed], tmp_path / "block.onnx")
        session = open_reference(tmp_path / "block.onnx")
        named_inputs = zip(graph.inputs, draw_sets(graph, seed)[0], strict=True)
        onnx_outputs = session.run(None, {f"g0_{read}": array for read, array in named_inputs})
        torch_outputs = compute(graph, seed)[0]
        for output_name, array in zip(graph.outputs, onnx_outputs, strict=True):
            np.testing.assert_allclose(
                array, torch_outputs[output_name], rtol=1e-3, atol=1e-3, err_msg=name
            )


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_search_visits_each_block_first_and_then_shares_the_time(frontend: Frontend) -> None:
    blocks = read_blocks(frontend)
    visits = [*islice(visit_blocks(3, frontend), 300)]
    assert {cell.block for cell, _ in visits[: len(blocks)]} == set(blocks)
    often = Counter(cell.block for cell, _ in visits)
    # It has more forms than attention, whose graphs are larger.
    assert often["average-pool"] > often["attention"] > 1
    pools = [cell.size for cell, _ in visits if cell.block == "average-pool"]
    sizes = len(blocks["average-pool"][1])
    assert len({*pools[:sizes]}) == min(sizes, len(pools))
    repeated_visits = [*islice(visit_blocks(3, frontend), 9)]
    assert visits[:9] == repeated_visits != [*islice(visit_blocks(4, frontend), 9)]


def test_a_failing_block_is_reported_by_name_and_counted_by_size() -> None:
    finder = make_search(holds("max_pool"))
    finder.source = BLOCKS
    searched = finder.run(1e18, len(read_blocks("onnx")))
    first = searched.findings[0]
    assert (first.end, first.operators) == (WRONG, ("max_pool",))
    block, size = first.block.split()
    assert searched.cells[block][size] == {WRONG: 1}
    tried = [ends for sizes in searched.cells.values() for ends in sizes.values() if ends]
    assert len(tried) == len(read_blocks("onnx")) == len(searched.cells)
    text = render_searches([searched])
    assert f"tried {len(tried)} of {len(tried)} blocks" in text
    assert f"in {first.block}" in text
    page = render_coverage([searched])
    assert f"| {block} | {size} | 1 wrong |" in page
    plain = make_search(always(RIGHT))
    plain.source = RANDOM
    assert plain.run(1e18, 20).cells == {}


def test_a_known_fault_after_a_reshape_is_matched_by_the_reshaped_size() -> None:
    text = "x = input(1, 16, 128)\ny = rms_norm(reshape(x, shape=[1, 16, 4, 32]))\nreturn y"
    assert make_search(always(RIGHT)).find_known(parse_graph(text)) == "rms-norm-misplaced"


@pytest.mark.parametrize(
    ("found_form", "other_form", "covered"),
    [
        ("ceil=1", "stride=2", False),
        ("ceil=1", "stride=2, ceil=0", False),
        ("ceil=1", "stride=3, ceil=1", True),
        ("counts_pad=0", "counts_pad=1", False),
        ("counts_pad=0, pad=1", "counts_pad=0, pad=2, ceil=1", True),
        ("counts_pad=1, pad=1", "pad=2", True),
    ],
)
def test_a_finding_covers_only_operators_with_the_effects_of_its_attributes(
    found_form: str, other_form: str, covered: bool
) -> None:
    pool = "x = input(1, 4, 8, 8)\ny = avg_pool(x, kernel=3, {})\nreturn y"
    graph, faulty = parse_graph(pool.format(other_form)), parse_graph(pool.format(found_form))
    assert has_chain(graph, faulty) is covered


def test_operands_in_graph_text_may_be_nested_calls_numbers_and_operator_signs() -> None:
    graph = parse_graph("x = input(2, 3)\ny = relu(x * 0.5 + abs(x)) / constant(3)\nreturn y")
    assert graph == parse_graph(str(graph))
    assert graph.operators == ("mul", "abs", "add", "relu", "div")
    assert [tensor.value for tensor in graph.tensors.values()] == [None, 0.5, None]
    assert [tensor.is_number for tensor in graph.tensors.values()] == [False, True, False]


def test_an_rms_norm_that_is_written_out_is_known_by_its_numbers() -> None:
    text = "x = input(1, 16, 4, 32)\ni = rsqrt(mean(x * x, axes=[-1], keep=1) + 1e-6)"
    graph = parse_graph(f"{text}\nr = x * i * constant(32)\nreturn r")
    search = make_search(always(RIGHT))
    assert search.find_known(graph) == ""  # ONNX Runtime's QNN provider keeps a product
    search.frontend = "executorch"
    assert search.find_known(graph) == "rms-norm-written-out-misplaced"
