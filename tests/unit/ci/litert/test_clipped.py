"""Which values of a quantized .tflite file leave their ranges, by its float model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.litert_file import list_entries, pack_model, read_model
from ci.graphs.litert_pairs import Side
from ci.litert.clipped import find_clipped_values
from ci.litert.suite import RELU, Net
from tests.build.litert_nets import write_quantized


def make_layers(net: Net) -> None:
    """Two linear layers, the first one with a ReLU, and a softmax."""
    x = net.add_tensor((4, 16), "x")
    hidden = net.add_linear(x, (4, 16), 16, RELU)
    logits = net.add_linear(hidden, (4, 16), 8)
    net.end([x], [net.call("SOFTMAX", (logits,), (4, 8), "SoftmaxOptions", beta=1.0)])


def open_side(path: Path, narrowed: int, share: float) -> Side:
    """A file in which the range of the ``narrowed``-th result has only a ``share`` of its size."""
    model = read_model(path.read_bytes())
    number = int(model.subgraphs[0].operators[narrowed].outputs[0])
    quantization = model.subgraphs[0].tensors[number].quantization
    if quantization is not None and quantization.scale is not None:
        quantization.scale = quantization.scale * np.float32(share)
    data = pack_model(model)
    return Side(data, *list_entries(read_model(data)))


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
    sample = np.random.default_rng(4).standard_normal((4, 16)).astype(np.float32)
    steps = np.load(path.with_suffix(".npz"))["x"]
    clipped = find_clipped_values(quantized, plain, [[steps[0]]], [[sample]])
    assert [tensor.name.rpartition(" ")[0] for tensor in clipped] == names
    for tensor in clipped:
        assert not tensor.is_input
        assert tensor.seen_high > tensor.high
