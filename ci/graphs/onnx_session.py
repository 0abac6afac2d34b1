"""Runs ONNX models on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ci.models.numerics import THREADS

CPU = "CPUExecutionProvider"
WARNINGS = 2  # the severity from which on onnxruntime logs


def open_reference(model: Path, *, optimize: bool = False) -> Any:
    """Open a session on the CPU. Without ``optimize``, it runs the nodes one by one, without fusing
    any."""
    settings = onnxruntime.SessionOptions()
    if not optimize:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # The number of threads changes the order in which sums are computed, see ci.models.numerics.
    settings.intra_op_num_threads = settings.inter_op_num_threads = THREADS
    settings.log_severity_level = WARNINGS
    return onnxruntime.InferenceSession(str(model), sess_options=settings, providers=[CPU])


def run_sets(session: Any, sets: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return the outputs of a session for each sample, as arrays. The arrays of a set are in the
    order of the model's inputs."""
    names = [port.name for port in session.get_inputs()]
    feeds = (dict(zip(names, arrays, strict=True)) for arrays in sets)
    return [tuple(map(np.asarray, session.run(None, feed))) for feed in feeds]
