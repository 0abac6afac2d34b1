"""A program is opened once: the tokens of a call select its method, and decode is timed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.llm import generation
from ci.llm.interface import DECODE, PREFILL

SIZES = {PREFILL: 4, DECODE: 1}


class Runtime:
    """ExecuTorch's runtime: each method returns its inputs, doubled by decode, and overwrites them
    in its next call."""

    def __init__(self, path: str) -> None:
        assert path == "m.pte"

    def method_meta(self, name: str) -> Any:
        metas = [SimpleNamespace(sizes=lambda: (1, SIZES[name]), of=(name, n)) for n in range(2)]
        return SimpleNamespace(num_inputs=lambda: 2, input_tensor_meta=metas.__getitem__)

    def load_method(self, name: str) -> Any:
        memory = [np.zeros((1, SIZES[name])) for _ in range(2)]

        def run(inputs: Any) -> list[Any]:
            for output, array in zip(memory, inputs, strict=True):
                output[:] = array * (2 if name == DECODE else 1)
            return [SimpleNamespace(detach=lambda output=output: output) for output in memory]

        return run


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, with the declarations for which its inputs were converted in ``converted``."""
    converted: list[Any] = []

    def convert(array: Any, meta: Any) -> Any:
        converted.append(meta.of)
        return array

    internals = SimpleNamespace(pybindings=SimpleNamespace(_load_program=Runtime))
    freed: list[bool] = []
    runtime = SimpleNamespace(
        convert_input=convert, overwrite_freed_memory=lambda: freed.append(True)
    )
    monkeypatch.setitem(sys.modules, "ci.executorch.internals", internals)
    monkeypatch.setattr("ci.executorch.internals", internals, raising=False)
    monkeypatch.setitem(sys.modules, "ci.executorch.runtime", runtime)
    opened: Any = generation.open_static(SimpleNamespace(path=Path("m.pte")))  # type: ignore[arg-type]
    assert freed == [True]
    opened.converted = converted
    return opened


def test_the_number_of_tokens_selects_prefill_or_decode(program: Any) -> None:
    prefill = [np.ones((1, 4), np.int32), np.full((1, 4), 3, np.float32)]
    decode = [np.ones((1, 1), np.int32), np.full((1, 1), 5, np.float32)]
    outputs = program.run([prefill, decode])
    of_prefill, of_decode = outputs
    assert [array.tolist() for array in of_prefill] == [[[1] * 4], [[3.0] * 4]]
    assert [array.tolist() for array in of_decode] == [[[2]], [[10.0]]]
    assert program.converted == [
        (name, number) for name in (PREFILL, DECODE) for number in range(2)
    ]
    later_outputs = program.run([decode, [3 * array for array in decode]])
    assert [output[0].tolist() for output in later_outputs] == [[[2]], [[6]]]
