"""Which values of a quantized .tflite file leave their ranges, by its float model."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.graph import Array
from ci.graphs.litert_file import list_entries, pack_model, read_model
from ci.graphs.litert_float import mix_floats
from ci.graphs.litert_pairs import Side, find_counterparts
from ci.graphs.litert_writer import LitertWriter
from ci.litert.clipped import find_clipped_values
from ci.litert.suite import RELU, Net
from tests.build.litert_nets import write_quantized


def make_layers(net: Net) -> None:
    """Two linear layers, the first one with a ReLU, and a softmax."""
    x = net.add_tensor((4, 16), "x")
    hidden = net.add_linear(x, (4, 16), 16, RELU)
    logits = net.add_linear(hidden, (4, 16), 8)
    net.end([x], [net.call("SOFTMAX", (logits,), (4, 8), "SoftmaxOptions", beta=1.0)])


SIZES = {"begin": [0, 0], "size": [0, 16]}


def open_file(data: bytes) -> Side:
    return Side(data, *list_entries(read_model(data)))


def open_side(path: Path, narrowed: int, share: float) -> Side:
    """A file in which the range of the ``narrowed``-th result has only a ``share`` of its size."""
    model = read_model(path.read_bytes())
    number = int(model.subgraphs[0].operators[narrowed].outputs[0])
    quantization = model.subgraphs[0].tensors[number].quantization
    if quantization is not None and quantization.scale is not None:
        quantization.scale = quantization.scale * np.float32(share)
    return open_file(pack_model(model))


def draw(path: Path) -> tuple[list[Array], list[Array]]:
    """A sample for a quantized file and for its float model."""
    sample = np.random.default_rng(4).standard_normal((4, 16)).astype(np.float32)
    return [np.load(path.with_suffix(".npz"))["x"][0]], [sample]


def add_empty_result(data: bytes) -> Side:
    """A file with one more operator, whose result has no elements: the first 0 rows of the first
    operator's result, which nothing reads."""
    model = read_model(data)
    subgraph = model.subgraphs[0]
    writer = LitertWriter(model, subgraph)
    source = int(subgraph.operators[0].outputs[0])
    empty = copy(subgraph.tensors[source])
    empty.name, empty.shape = b"empty", np.array([0, 16], np.int32)
    number = len(subgraph.tensors)
    subgraph.tensors.append(empty)
    sizes = [writer.add_constant(name, np.array(array, np.int32)) for name, array in SIZES.items()]
    operators = [*subgraph.operators]
    writer.add_operator("SLICE", [source, *sizes], number, "SliceOptions")
    subgraph.operators = [*operators, *writer.operators]
    return open_file(pack_model(model))


@pytest.mark.parametrize(
    ("narrowed", "share", "names"),
    [
        (0, 1.0, []),
        (0, 0.95, []),  # beyond it by 5 % of the range
        (0, 0.5, ["the result of FULLY_CONNECTED"]),
        (1, 0.25, ["the result of FULLY_CONNECTED"]),
        (2, 1.0, []),  # LiteRT prescribes the range of a softmax
    ],
)
@pytest.mark.parametrize("bits", [8, 16])
def test_a_value_that_the_float_model_has_outside_of_its_range_is_clipped(
    bits: int, narrowed: int, share: float, names: list[str], tmp_path: Path
) -> None:
    path, float_path = write_quantized(tmp_path, make_layers, bits)
    quantized, plain = open_side(path, narrowed, share), open_side(float_path, 0, 1.0)
    arrays, float_arrays = draw(path)
    clipped = find_clipped_values(quantized, plain, [arrays], [float_arrays])
    assert [tensor.name.rpartition(" ")[0] for tensor in clipped] == names
    for tensor in clipped:
        assert not tensor.is_input
        assert tensor.seen_high > tensor.high


@pytest.mark.parametrize(("share", "count"), [(1.0, 0), (0.5, 1)])
def test_a_value_that_an_operator_in_float_computes_is_clipped_by_its_rounding(
    share: float, count: int, tmp_path: Path
) -> None:
    path, float_path = write_quantized(tmp_path, make_layers)
    quantized, plain = open_side(path, 0, share), open_file(float_path.read_bytes())
    arrays, float_arrays = draw(path)
    in_float, *_ = find_counterparts(quantized, plain, (arrays, float_arrays))
    mixed = open_file(mix_floats(quantized, plain, [in_float]))
    clipped = find_clipped_values(mixed, plain, [arrays], [float_arrays])
    assert [tensor.name.rpartition(" ")[0] for tensor in clipped] == [
        "the result of FULLY_CONNECTED"
    ] * count


def test_a_value_without_elements_has_no_range(tmp_path: Path) -> None:
    path, float_path = write_quantized(tmp_path, make_layers)
    narrowed = open_side(path, 0, 0.5)
    quantized, plain = add_empty_result(narrowed.data), add_empty_result(float_path.read_bytes())
    arrays, float_arrays = draw(path)
    (clipped,) = find_clipped_values(quantized, plain, [arrays], [float_arrays])
    assert clipped.name.startswith("the result of FULLY_CONNECTED")
