"""Which operator of a quantized .tflite file loses the most accuracy, by its float model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.cases.reasons import describe_loss
from ci.graphs.litert_file import list_entries, read_model
from ci.graphs.litert_float import mix_floats
from ci.graphs.litert_pairs import Side, find_counterparts
from ci.litert.losses import find_quantization_loss
from tests.build.litert_nets import SIZES, make_wide_channel, write_quantized


def open_file(data: bytes) -> Side:
    return Side(data, *list_entries(read_model(data)))


@pytest.fixture
def sample() -> np.ndarray:
    return np.random.default_rng(4).standard_normal(SIZES).astype(np.float32)


def test_the_operator_is_the_one_whose_result_is_further_off_than_what_it_reads(
    tmp_path: Path, sample: np.ndarray
) -> None:
    path, float_path = write_quantized(tmp_path, make_wide_channel)
    quantized, plain = open_file(path.read_bytes()), open_file(float_path.read_bytes())
    arrays = [np.load(path.with_suffix(".npz"))["x"][0]]
    loss = find_quantization_loss(quantized, plain, arrays, [sample])
    assert loss
    assert loss.name == "MUL 'narrow'"
    assert loss.behind_db < 10 < 25 < loss.before_db
    assert describe_loss(loss).endswith(f"; it reads numbers up to {loss.largest:.4g}")
    counterparts = find_counterparts(quantized, plain, (arrays, [sample]))
    in_float = [each for each in counterparts if quantized.names[each.results[0][0]] != "layer"]
    mixed = open_file(mix_floats(quantized, plain, in_float))
    better = find_quantization_loss(mixed, plain, arrays, [sample])
    assert better
    assert better.behind_db > 25


def test_a_float_file_loses_nothing(tmp_path: Path, sample: np.ndarray) -> None:
    _, float_path = write_quantized(tmp_path, make_wide_channel)
    plain = open_file(float_path.read_bytes())
    assert find_quantization_loss(plain, plain, [sample], [sample]) is None
