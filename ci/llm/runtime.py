"""Runs a program with two methods in a worker. The program is opened once and called many times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ci.cases.engine import OpenProgram, Program, RunNotes, Sets
from ci.cases.pool import Pool
from ci.cases.runners import PooledProgram, PooledRunner
from ci.judging.figures import Array
from ci.llm.generation import Step
from ci.llm.interface import DECODE, PREFILL, Border

NAME = "python"


class StaticProgram:
    """An opened program with the methods for prefill and decode. The number of tokens in the first
    input selects the method."""

    def __init__(self, path: Path) -> None:
        from ci.executorch import internals
        from ci.executorch.runtime import overwrite_freed_memory

        overwrite_freed_memory()
        self.program = internals.pybindings._load_program(str(path))
        self.methods: dict[int, Any] = {}
        self.metas: dict[int, list[Any]] = {}
        for name in (PREFILL, DECODE):
            meta = self.program.method_meta(name)
            size = tuple(meta.input_tensor_meta(0).sizes())[1]
            self.methods[size] = self.program.load_method(name)
            self.metas[size] = [meta.input_tensor_meta(n) for n in range(meta.num_inputs())]
        self.times_s: list[float] = []

    def run(self, sets: Sets) -> Sets:
        """Call the program once per input set, and return the outputs. Raises FailedError if an
        input does not have the size that the program declares."""
        return [self.call(arrays) for arrays in sets]

    def call(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of the method for the number of tokens in the first array."""
        from ci.executorch.runtime import convert_input

        size = arrays[0].shape[1]
        given = [convert_input(*pair) for pair in zip(arrays, self.metas[size], strict=True)]
        start = time.perf_counter()
        made = self.methods[size](given)
        if size == 1:
            self.times_s.append(time.perf_counter() - start)
        return [np.array(one.detach()) for one in made]

    def finish(self) -> float:
        """Return the mean time of a decode step in seconds, or 0 if there was none."""
        return sum(self.times_s) / max(len(self.times_s), 1)


def open_static(program: Program) -> StaticProgram:
    """Open a program in a worker."""
    return StaticProgram(program.path)


def make_runner(pool: Pool) -> PooledRunner:
    """Return a runner for ExecuTorch's Python runtime."""

    def note(_: PooledProgram, mean_s: float) -> RunNotes:
        return RunNotes(run_ms=mean_s * 1000)

    return PooledRunner(NAME, pool, open_static, note)


def program_step(opened: OpenProgram, borders: Mapping[int, Border]) -> Step:
    """Return the step function of an opened program, with floats as inputs and outputs."""
    return code_step(lambda arrays: opened.run([arrays])[0], borders)


def code_step(run: Step, borders: Mapping[int, Border]) -> Step:
    """Return a step function that converts floats to a program's inputs, and outputs to floats. For
    a quantized program, ``borders`` maps the number of tokens that a method takes to the method's
    Border."""

    def step(arrays: Sequence[Array]) -> Sequence[Array]:
        border = borders.get(arrays[0].shape[1])
        if not border:
            return run(arrays)
        given = zip(arrays, border.inputs, strict=True)
        made = run([coding.encode(one) if coding else one for one, coding in given])
        pairs = zip(made, border.outputs, strict=True)
        return [coding.decode(one) if coding else one for one, coding in pairs]

    return step
