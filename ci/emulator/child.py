"""What a forked child does: jobs from a pipe, one after the other, each with a log of its own."""

from __future__ import annotations

import importlib
import os
import traceback
from multiprocessing.connection import Connection

import msgspec
from msgspec import Struct

from ci.emulator.job import RunJob
from ci.lowering.job import LowerJob
from provisioning.console.parent import end_with_parent
from provisioning.errors import QnnCiError

# kind -> job, module, function. The modules import torch: only children import them.
JOBS: dict[str, tuple[type[Struct], str, str]] = {
    "lower": (LowerJob, "ci.lowering.lower", "run_lower_job"),
    "run": (RunJob, "ci.emulator.program", "run_program"),
}


class Failure(Struct, frozen=True):
    """Why a job gave no result."""

    error: str


def serve(connection: Connection) -> None:
    """Do jobs until the other end closes: (kind, job as JSON, log) in, result as JSON out."""
    end_with_parent(os.getppid())
    os.setpgid(0, 0)
    while True:
        try:
            kind, job, log = connection.recv()
        except EOFError:
            return
        connection.send_bytes(run_job(kind, job, log))


def run_job(kind: str, job: bytes, log: str) -> bytes:
    """Do one job. Everything that it prints, QNN's C++ included, goes to ``log``."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    job_type, module_name, function = JOBS[kind]
    try:
        module = importlib.import_module(module_name)
        made = getattr(module, function)(msgspec.json.decode(job, type=job_type))
    except QnnCiError as error:
        made = Failure(str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the parent reports it as the case's failure
        traceback.print_exc()
        made = Failure(f"{type(error).__name__}: {error}")
    return msgspec.json.encode({type(made).__name__: made})
