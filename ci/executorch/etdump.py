"""Reads the trace of a run (an ETDump) with ExecuTorch's Inspector: QNN's events and tensors."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ci.cases.qnn_files import PROFILE_CSV, sum_figures
from ci.executorch.internals import Inspector, TimeScale
from ci.executorch.tracing import DEBUG, ETDUMP
from provisioning.errors import FailedError

INTERMEDIATES = "intermediates"
EVENT = re.compile(r"(.+) \((cycles|us|count)\)")


def read_trace(
    directory: Path, runs: int, partitions: int, *, debug: bool
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Write the contents of a trace to files. Return the accelerator's figures and the names of the
    files.

    Raises FailedError if the trace has no QNN event.
    """
    inspector = Inspector(
        etdump_path=str(directory / ETDUMP),
        debug_buffer_path=str(directory / DEBUG) if debug else None,
        source_time_scale=TimeScale.NS,
        target_time_scale=TimeScale.NS,
    )
    events = [
        event for block in inspector.event_blocks for event in block.events if event.is_delegated_op
    ]
    if debug:
        return {}, tuple(write_tensors(events, directory / INTERMEDIATES))
    rows = [row for event in events for row in list_rows(event)]
    if not rows:
        raise FailedError("the trace has no QNN event", fix="profile_level needs QNN's profiler")
    with (directory / PROFILE_CSV).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("Event Identifier", "Unit of Measurement", "Run", "Time"))
        writer.writerows(rows)
    events_of = ((unit, name, value) for name, unit, _, value in rows)
    return sum_figures(events_of, runs, partitions), (PROFILE_CSV,)


def list_rows(event: Any) -> Iterator[tuple[str, str, int, int]]:
    """Yield rows of name, unit, run and value for an event, one row per run."""
    match = EVENT.fullmatch(event.name)
    if match and event.perf_data:
        for number, value in enumerate(event.perf_data.raw):
            yield match[1], match[2].upper(), number, round(value)


def write_tensors(events: list[Any], directory: Path) -> Iterator[str]:
    """Write each tensor that QNN dumped as ``NAME.npy``. Raises FailedError if there are none."""
    directory.mkdir()
    for event in events:
        tensors = [one for one in event.debug_data or () if isinstance(one, torch.Tensor)]
        for number, tensor in enumerate(tensors):
            more = f"-{number}" if len(tensors) > 1 else ""
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{event.name}{more}")
            np.save(directory / f"{name}.npy", tensor.detach().numpy())
            yield f"{INTERMEDIATES}/{name}.npy"
    if not any(directory.iterdir()):
        raise FailedError("QNN dumped no intermediate output")
