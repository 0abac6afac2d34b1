"""What a quantized program takes and gives at its border: integers, as in upstream's runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.ao.quantization.fx._decomposed import quantized_decomposed_lib  # noqa: F401 - operators

from ci.judging.figures import Array
from ci.llm.config import DecoderConfig
from ci.llm.generation import Loop, program_step
from ci.llm.interface import Border, Coding, Interface
from ci.llm.lowering import (
    RUNS,
    find_border,
    read_runs,
    require_caches,
    write_runs,
)
from provisioning.errors import FailedError
from tests.unit.ci.llm.decoders import Tiny

CACHE = Coding(0.5, 100, "uint8")
LOGITS = Coding(0.001, 30_000, "uint16")
BORDER = Border((None, CACHE), (LOGITS, CACHE))
CONFIG = DecoderConfig(
    dim=8, hidden=16, layers=1, heads=2, kv_heads=1, vocabulary=9, most_context=16, head_dim=4
)


@dataclass
class Opened:
    """A program that gives back its caches, and logits of 40,000."""

    inputs: list[Any] = field(default_factory=list)

    def run(self, sets: Sequence[Sequence[Array]]) -> list[list[Array]]:
        self.inputs = list(sets[0])
        return [[np.full((1, 2), 40_000, np.uint16), self.inputs[1]]]

    def finish(self) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("value", "coded", "back"),
    [(0.0, 100, 0.0), (-3.3, 93, -3.5), (3.3, 107, 3.5), (-np.inf, 0, -50), (1e9, 255, 77.5)],
)
def test_a_value_becomes_the_nearest_integer_within_the_range(
    value: float, coded: int, back: float
) -> None:
    codes = CACHE.encode(np.array([value], np.float32))
    assert (codes.dtype, codes.tolist()) == (np.uint8, [coded])
    assert CACHE.decode(codes).tolist() == [back]


def test_a_decoder_step_quantizes_inputs_and_dequantizes_outputs() -> None:
    opened = Opened()
    tokens, caches = np.array([[7]], np.int32), np.array([[1.0, -2.0]], np.float32)
    logits, decoded_caches = program_step(opened, {1: BORDER})([tokens, caches])
    assert opened.inputs[0] is tokens
    assert opened.inputs[1].tolist() == [[102, 96]]
    assert logits.tolist() == pytest.approx(np.full((1, 2), 10.0))
    assert decoded_caches.tolist() == caches.tolist()


@pytest.mark.parametrize("wrong", [None, Coding(0.5, 99, "uint8"), Coding(0.51, 100, "uint8")])
def test_prefill_and_decode_must_quantize_the_caches_alike(wrong: Coding | None) -> None:
    def make(input_coding: Coding | None, output_coding: Coding | None) -> Border:
        return Border((None, None, None, CACHE, input_coding), (LOGITS, CACHE, output_coding))

    near = Coding(0.5 + 1e-7, 100, "uint8")
    require_caches({8: make(near, CACHE), 1: make(CACHE, near)}, 1)
    for borders in (
        {8: make(wrong, CACHE), 1: make(CACHE, CACHE)},
        {8: make(CACHE, CACHE), 1: make(CACHE, wrong)},
    ):
        with pytest.raises(FailedError, match="quantize the values of layer 0 differently"):
            require_caches(borders, 1)


class Net(torch.nn.Module):
    """Adds two inputs in integers: the first of 8 bits, the second of 16; the sum has 8. Another
    operator reads the first before it is quantized, and nothing reads the last input."""

    def forward(self, ids: Any, narrow_input: Any, wide_input: Any, _: Any) -> Any:
        loose = narrow_input.abs()
        quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
        restore = torch.ops.quantized_decomposed.dequantize_per_tensor.default
        first = restore(
            quantize(narrow_input, 0.5, 100, 0, 255, torch.uint8), 0.5, 100, 0, 255, torch.uint8
        )
        wide = (0.25, 7, 0, 65535, torch.int32)
        total = first + restore(quantize(wide_input, *wide), *wide)
        signed = (0.5, 0, -128, 127, torch.int8)
        narrow = restore(quantize(total, *signed), *signed)
        return restore(quantize(total, *wide), *wide), narrow, ids + 1, loose


def test_input_and_output_quantization_is_read_from_the_quantized_graph() -> None:
    inputs = (torch.ones(2, dtype=torch.int32), torch.ones(2), torch.ones(2), torch.ones(2))
    module = torch.export.export(Net(), inputs).module(check_guards=False)
    assert find_border(module) == Border(
        (None, Coding(0.5, 100, "uint8"), Coding(0.25, 7, "uint16"), None),
        (Coding(0.25, 7, "uint16"), None, None, None),
    )


def test_reference_runs_are_read_back_as_they_were_written(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    runs = replace(tiny_model.runs, borders={1: BORDER})
    write_runs(runs, tmp_path)
    read_back = read_runs(tmp_path)
    assert read_back.borders == runs.borders
    assert (read_back.interface, read_back.prompt, read_back.text) == (
        runs.interface,
        runs.prompt,
        runs.text,
    )
    np.testing.assert_array_equal(read_back.model.run.logits, runs.model.run.logits)
    np.testing.assert_array_equal(read_back.alone.noise, runs.alone.noise)


@pytest.mark.parametrize("size", [0, 9, 5000])
def test_truncated_reference_runs_are_refused(tiny_model: Tiny, tmp_path: Path, size: int) -> None:
    write_runs(tiny_model.runs, tmp_path)
    (tmp_path / RUNS).write_bytes((tmp_path / RUNS).read_bytes()[:size])
    with pytest.raises(ValueError, match="truncated"):
        read_runs(tmp_path)


# -- the loop of the host --------------------------------------------------------------------------

SMALL = Interface.of(CONFIG, 6, 3, masked=-9.0)


def test_the_decode_loop_gives_masks_positions_and_caches_as_upstreams_runner() -> None:
    calls: list[list[Array]] = []

    def step(arrays: Sequence[Array]) -> list[Array]:
        calls.append([array.copy() for array in arrays])
        size, number = arrays[0].shape[1], len(calls)
        ids = number * 10 + np.arange(size, dtype=np.float32)
        logits = np.zeros((1, size, 9), np.float64) + ids[None, :, None]
        return [logits, np.tile(ids, (1, 1, 4, 1)), np.tile(ids[:, None], (1, 1, 1, 4))]

    loop = Loop(SMALL, step)
    assert loop.feed([5, 6])[:, 0].tolist() == [10, 11]
    assert loop.feed([7])[:, 0].tolist() == [20]
    assert loop.position == 3
    assert [call[0][0].tolist() for call in calls] == [[5, 6, 0], [7]]
    assert [call[2].tolist() for call in calls] == [[[0, 1, 2]], [[2]]]
    for call in calls:
        assert [array.dtype.name for array in call[:3]] == ["int32", "float32", "int32"]
    assert calls[0][1].tolist() == [
        [[[-9, -9, -9, 0, -9, -9], [-9, -9, -9, 0, 0, -9], [-9, -9, -9, 0, 0, 0]]]
    ]
    assert calls[1][1].tolist() == [[[[0, 0, -9, -9, -9, 0]]]]
    assert [call[3].shape for call in calls] == [(1, 1, 4, 3), (1, 1, 4, 5)]
    assert calls[1][3][0, 0, 1].tolist() == [10, 11, 0, 0, 0]
    assert calls[1][4][0, 0, :, 2].tolist() == [10, 11, 0, 0, 0]
    loop.feed([1, 2, 3])
    assert loop.caches[0][0, 0, 3].tolist() == [10, 11, 20, 30, 31, 32]
    with pytest.raises(ValueError, match="6 cached and 1 new tokens exceed"):
        loop.feed([1])
    with pytest.raises(ValueError, match="6 cached and 3 new tokens exceed"):
        Loop(SMALL, step).feed([1, 2, 3, 4, 5, 6, 7])
