"""Runs a .pte program in this process with ExecuTorch's Python runtime."""

from __future__ import annotations

import csv
import ctypes
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from ci.cases.engine import Program, Sets
from ci.cases.qnn_files import DEBUG, ETDUMP, PROFILE_CSV, sum_figures
from ci.executorch import internals
from ci.models.lowering_options import ONE_RUN, RunOptions
from provisioning.errors import FailedError

M_PERTURB = -6  # malloc.h; see mallopt(3)
FILL = 0x5A  # 1.5e16 as float32, 90 as int8
# ExecuTorch encodes ScalarType with torch's numbers.
SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
    27: torch.uint16,
}


class LoadedProgram:
    """A loaded program.

    A process may load several programs, but none of them can find another's outputs in memory. If
    the program has several methods, their inputs are concatenated, and so are their outputs.
    ``quantizes`` is true if the CPU quantizes inputs and outputs. If ``debug_bytes`` is not None,
    the runtime records a trace, with at most this many bytes of intermediate outputs. ``repeated``
    defines how often each sample runs.
    """

    def __init__(
        self,
        program: Program,
        *,
        quantizes: bool = False,
        debug_bytes: int | None = None,
        repeated: RunOptions = ONE_RUN,
    ) -> None:
        overwrite_freed_memory()
        if quantizes:
            _ = internals.quantized_kernels
        traces = debug_bytes is not None
        debug_options = {"enable_etdump": True, "debug_buffer_size": debug_bytes} if traces else {}
        # executorch.runtime would run the same, but its import also imports the compiler: 4.2 s of
        # CPU instead of 1.1 s.
        self.program = internals.pybindings._load_program(str(program.path), **debug_options)
        names = program.compiled.methods or ("forward",)
        self.methods = [self.program.load_method(name) for name in names]
        self.repeated, self.times_s = repeated, list[float]()

    def run(self, sets: Sets) -> Sets:
        """Execute every method for each sample as often as ``repeated`` requires, and return the
        outputs of each set's last run. The times are recorded, except for warm-up runs. Raises
        FailedError if a sample has the wrong number of inputs, or an input has the wrong size."""
        last: list[list[Any]] = []
        for number, tensors in enumerate(sets):
            for _ in range(self.repeated.warm_up):
                self.run_set(number, tensors)
            for _ in range(self.repeated.iteration):
                start = time.perf_counter()
                outputs = self.run_set(number, tensors)
                self.times_s.append(time.perf_counter() - start)
            last.append(outputs)
        return last

    def run_set(self, number: int, tensors: Sequence[Any]) -> list[Any]:
        """Run one sample once, and return its outputs."""
        metas = []
        for method in self.methods:
            meta = method.method_meta()
            metas.append([meta.input_tensor_meta(index) for index in range(meta.num_inputs())])
        number_of_inputs = sum(map(len, metas))
        if len(tensors) != number_of_inputs:
            raise FailedError(
                f"sample {number} has the wrong number of inputs:"
                f" {len(tensors)} instead of {number_of_inputs}"
            )
        outputs: list[Any] = []
        for method, method_metas in zip(self.methods, metas, strict=True):
            inputs = [
                convert_input(tensor, meta)
                # Not strict, because the inputs of the next methods follow.
                for tensor, meta in zip(tensors, method_metas, strict=False)
            ]
            tensors = tensors[len(method_metas) :]
            # Outputs that are None or numbers are not compared. Tensors are copied, because the
            # next method may write to the same memory.
            results = [tensor for tensor in method(inputs) if isinstance(tensor, torch.Tensor)]
            outputs += [np.array(tensor.detach()) for tensor in results]
        return outputs

    def finish(self) -> float:
        """Return the mean duration of the timed runs, in seconds."""
        return fmean(self.times_s)


def overwrite_freed_memory() -> None:
    """Make the allocator fill freed memory with FILL, and allocated memory with its complement. An
    output that a program does not write then cannot contain the outputs of an earlier program.

    Small blocks are filled only if GLIBC_TUNABLES contains TUNABLES from ci.cases.pool.
    """
    # Without the tunable, blocks of up to 1 KiB that a thread keeps for itself are not filled.
    ctypes.CDLL(None).mallopt(M_PERTURB, FILL)


def convert_input(array: Any, meta: Any) -> torch.Tensor:
    """Return ``array`` as a tensor with the dtype and shape in ``meta``, as the program expects.
    Raises FailedError if the array's size in bytes does not match."""
    dtype, shape = SCALAR_TYPES[int(meta.dtype())], tuple(meta.sizes())
    expected_bytes = int(np.prod(shape)) * dtype.itemsize
    # The runtime reads memory without regard to strides: stacked transposed images, which are not
    # contiguous, gave 0 dB in every scheme.
    data = bytearray(np.ascontiguousarray(array).tobytes())
    if len(data) != expected_bytes:
        raise FailedError(f"an input is {len(data)} bytes long instead of {expected_bytes}")
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


INTERMEDIATES = "intermediates"
EVENT = re.compile(r"(.+) \((cycles|us|count)\)")


def read_trace(
    directory: Path, runs: int, partitions: int, *, debug: bool
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Extract QNN's events from a trace to a CSV file or, with ``debug``, extract each intermediate
    output to a file. Return the accelerator's figures, which are empty with ``debug``, and the
    names of the files.

    Raises FailedError if the trace contains none of them.
    """
    inspector = internals.Inspector(
        etdump_path=str(directory / ETDUMP),
        debug_buffer_path=str(directory / DEBUG) if debug else None,
        source_time_scale=internals.TimeScale.NS,
        target_time_scale=internals.TimeScale.NS,
    )
    events = [
        event for block in inspector.event_blocks for event in block.events if event.is_delegated_op
    ]
    if debug:
        return {}, tuple(write_tensors(events, directory / INTERMEDIATES))
    rows = [row for event in events for row in list_rows(event)]
    if not rows:
        raise FailedError(
            "the trace contains no QNN events",
            fix="remove profile_level, or use QNN libraries with a profiler",
        )
    with (directory / PROFILE_CSV).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("Event Identifier", "Unit of Measurement", "Run", "Time"))
        writer.writerows(rows)
    events_of = ((unit, name, value) for name, unit, _, value in rows)
    return sum_figures(events_of, runs, partitions), (PROFILE_CSV,)


def list_rows(event: Any) -> Iterator[tuple[str, str, int, int]]:
    """Yield rows of name, unit, run and value for an event, one row per run. Events whose name has
    no known unit are skipped."""
    match = EVENT.fullmatch(event.name)
    if match and event.perf_data:
        for number, value in enumerate(event.perf_data.raw):
            yield match[1], match[2].upper(), number, round(value)


def write_tensors(events: list[Any], directory: Path) -> Iterator[str]:
    """Write a file ``NAME.npy`` for each tensor that QNN dumped. Raises FailedError if there are
    none."""
    directory.mkdir()
    for event in events:
        tensors = [data for data in event.debug_data or () if isinstance(data, torch.Tensor)]
        for number, tensor in enumerate(tensors):
            suffix = f"-{number}" if len(tensors) > 1 else ""
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{event.name}{suffix}")
            np.save(directory / f"{name}.npy", tensor.detach().numpy())
            yield f"{INTERMEDIATES}/{name}.npy"
    if not any(directory.iterdir()):
        raise FailedError("QNN dumped no intermediate outputs")
