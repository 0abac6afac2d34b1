"""The generation loop for a static decoder, and the program with two methods that it calls. The
host computes masks, positions and caches, as in upstream's C++ runner
(examples/qualcomm/oss_scripts/llama/runner).

Caches are filled from the start of their time axis. The last columns of the mask are for the new
tokens. A program is opened once in a worker and called many times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ci.cases.engine import OpenProgram, Program, RunNotes, Sets
from ci.cases.pool import Pool
from ci.cases.runners import PooledProgram, PooledRunner
from ci.judging.figures import Array
from ci.llm.interface import DECODE, PREFILL, Border, Interface

MOST_CACHED = 8 << 20  # bytes of the keys and values of a generation that are kept
# A function that runs one method and returns its outputs. The number of tokens in the first input
# selects the method.
Step = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass
class Loop:
    """The state of a generation. The caches contain ``position`` tokens."""

    interface: Interface
    step: Step
    position: int = 0
    caches: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.caches:
            self.caches = self.interface.empty_caches()

    def feed(self, tokens: Sequence[int]) -> Array:
        """Add tokens to the caches, and return the float logits [tokens, vocabulary].

        A single token uses the decode method. More tokens use prefill, with as many calls as
        needed. The last call is padded with zeros, whose keys and values are dropped.
        """
        if len(tokens) == 1:
            return self.call(tokens, 1)
        size = self.interface.prefill
        parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
        return np.concatenate([self.call(part, size) for part in parts])

    def call(self, tokens: Sequence[int], size: int) -> Array:
        """Call the method for ``size`` tokens once, and return the logits [tokens, vocabulary].
        Raises ValueError if ``size`` more tokens exceed the context."""
        interface, count = self.interface, len(tokens)
        if self.position + size > interface.context:
            raise ValueError(
                f"{self.position} cached and {size} new tokens exceed a context of"
                f" {interface.context}"
            )
        outputs = self.step(self.inputs(tokens, size))
        logits, new = outputs[0], outputs[1:]
        for index, (cache, update) in enumerate(zip(self.caches, new, strict=True)):
            axis = interface.time_axis(index)
            rows = np.moveaxis(cache, axis, 0)  # a view
            rows[self.position : self.position + count] = np.moveaxis(update, axis, 0)[:count]
        self.position += count
        return np.asarray(logits, np.float32)[0, :count]

    def read_caches(self) -> Array:
        """Return the cached keys of all layers, then the values, [cache, token, kv heads, head
        dim]. Only the first tokens are returned if all of them exceed MOST_CACHED bytes."""
        interface = self.interface
        size = (
            2 * interface.layers * interface.kv_heads * interface.head_dim * np.float32().itemsize
        )
        count = min(self.position, MOST_CACHED // size)
        pairs = enumerate(self.caches)
        moved = [np.moveaxis(cache[0], interface.time_axis(index) - 1, 0) for index, cache in pairs]
        return np.stack([each[:count] for each in moved])

    def inputs(self, tokens: Sequence[int], size: int) -> list[Array]:
        """Return the inputs of the method for ``size`` tokens: tokens, mask, positions and
        caches."""
        interface = self.interface
        row = np.zeros((1, size), np.int32)
        row[0, : len(tokens)] = tokens
        attends = np.zeros((1, 1, size, interface.context), bool)
        attends[..., : self.position] = True
        attends[..., interface.context - size :] = np.tril(np.ones((size, size), bool))
        positions = self.position + np.arange(size)
        return [
            row,
            np.where(attends, 0.0, interface.masked).astype(np.float32),
            positions[None].astype(np.int32),
            *(
                np.take(cache, range(interface.context - size), interface.time_axis(index))
                for index, cache in enumerate(self.caches)
            ),
        ]


@dataclass(frozen=True)
class Generated:
    """The result of a generation. ``fed`` are the input tokens, including the prompt. ``tokens``
    are the chosen tokens, one for each row of ``logits`` [step, vocabulary]. ``caches`` are what
    Loop.read_caches returns at the end; they are empty in a control."""

    fed: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: Array
    caches: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.float32))


def run_free(loop: Loop, prompt: Sequence[int], count: int, stop: Sequence[int] = ()) -> Generated:
    """Feed the prompt, then choose up to ``count`` tokens greedily, feeding back each one before
    choosing the next. The last token is not fed. Stop after a token in ``stop``."""
    rows = [loop.feed(prompt)[-1]]
    tokens = [int(np.argmax(rows[-1]))]
    while len(tokens) < count and tokens[-1] not in stop:
        rows.append(loop.feed(tokens[-1:])[0])
        tokens.append(int(np.argmax(rows[-1])))
    return collect((*prompt, *tokens[:-1]), rows, loop)


def run_forced(loop: Loop, prompt: Sequence[int], generated: Sequence[int]) -> Generated:
    """Feed the prompt and then the ``generated`` tokens. Return the logits after the prompt and
    after each generated token, and the most likely token at each of these steps."""
    rows = [loop.feed(prompt)[-1], *(loop.feed([token])[0] for token in generated)]
    return collect((*prompt, *generated), rows, loop)


def run_decode(loop: Loop, tokens: Sequence[int]) -> Generated:
    """Feed tokens one by one with the decode method. Return the logits and the most likely token
    after each."""
    rows = [loop.feed([token])[0] for token in tokens]
    return collect(tokens, rows, loop)


def collect(fed: Sequence[int], rows: Sequence[Array], loop: Loop) -> Generated:
    """Return a generation that was fed these tokens, from the logits of each step."""
    tokens = tuple(int(np.argmax(row)) for row in rows)
    return Generated(tuple(fed), tokens, np.stack(rows), loop.read_caches())


def count_same(tokens: Sequence[int], other_tokens: Sequence[int]) -> int:
    """Return the number of equal tokens at the start of two texts."""
    pairs = enumerate(zip(tokens, other_tokens, strict=False))
    differing = (number for number, (token, other_token) in pairs if token != other_token)
    return next(differing, min(len(tokens), len(other_tokens)))


def eager_step(modules: dict[int, Any]) -> Step:
    """Return a step function for eager modules. ``modules`` maps the number of tokens that a module
    takes to the module."""
    import torch

    def step(arrays: Sequence[Array]) -> list[Array]:
        with torch.no_grad():
            outputs = modules[arrays[0].shape[1]](*map(torch.from_numpy, arrays))
        return [output.numpy() for output in outputs]

    return step


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
        """Call the program once per sample, and return the outputs. Raises FailedError if an
        input does not have the size that the program declares."""
        return [self.call(arrays) for arrays in sets]

    def call(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of the method for the number of tokens in the first array."""
        from ci.executorch.runtime import convert_input

        size = arrays[0].shape[1]
        inputs = [convert_input(*pair) for pair in zip(arrays, self.metas[size], strict=True)]
        start = time.perf_counter()
        outputs = self.methods[size](inputs)
        if size == 1:
            self.times_s.append(time.perf_counter() - start)
        return [np.array(output.detach()) for output in outputs]

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
        coded_inputs = zip(arrays, border.inputs, strict=True)
        outputs = run([coding.encode(array) if coding else array for array, coding in coded_inputs])
        pairs = zip(outputs, border.outputs, strict=True)
        return [coding.decode(output) if coding else output for output, coding in pairs]

    return step
