"""What a forked child does: jobs from a pipe, one after the other, each with a log of its own."""

from __future__ import annotations

import ctypes
import importlib
import os
from multiprocessing.connection import Connection
from typing import Any

from msgspec import Struct

from ci.cases.forked import answer_job
from provisioning.console.process import end_with_parent

# kind -> module, function. The modules import torch or onnxruntime: only children import them.
JOBS = {
    "lower": ("ci.executorch.engine", "run_lower_job"),
    "trace": ("ci.executorch.etdump", "read_trace"),
    "run": ("ci.executorch.runtime", "run_program"),
    "compile": ("ci.onnx.engine", "run_compile_job"),
    "session": ("ci.onnx.run", "run_session_job"),
    "metric": ("ci.models.metric", "run_metric"),
}


def serve(connection: Connection) -> None:
    """Do jobs until the other end closes: (kind, job, log) in, result or QnnCiError out."""
    end_with_parent(os.getppid())
    os.setpgid(0, 0)
    while True:
        try:
            kind, job, log = connection.recv()
        except EOFError:
            return
        connection.send(answer_job(lambda: run_job(kind, job, log)))  # noqa: B023 - called at once


def run_job(kind: str, job: Struct, log: str) -> Any:
    """Do one job. Everything that it prints, QNN's C++ included, goes to ``log``."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    module, function = JOBS[kind]
    try:
        return getattr(importlib.import_module(module), function)(job)
    finally:
        ctypes.CDLL(None).fflush(None)  # what C code printed belongs to this log
