"""Runs a function in a fork of a process that is already warmed up.

QNN's libraries number graphs and tensors over the lifetime of a process, so only the first lowering
in a process is reproducible. But torch.export and ExecuTorch are slow when they are first used. So
a worker warms up without ever loading QNN, and each lowering runs in a fork of the worker. The fork
starts fast, and its lowering is the first in its process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from ci.facts.finding import NOWHERE, Origin, PlacedError
from provisioning.console.command import explain_limit
from provisioning.console.process import describe_exit, end_with_parent
from provisioning.documents import DocumentError, decode_json
from provisioning.errors import (
    MAX_DESCRIBED,
    DefectError,
    FailedError,
    QnnCiError,
    describe_exception,
)
from provisioning.files import explain_no_room

R = TypeVar("R")
STEP_BYTES, STEP_TEXT_BYTES, MAX_RAISED = 4096, 256, 300
LOWERING = "lowering"  # what a fork does, in its error
OWN_DESCRIPTORS: set[int] = set()  # of this worker; a model's code must not write to them
OWN_CODE = tuple(f"{Path(__file__).parents[2] / name}/" for name in ("ci", "provisioning"))
_steps: list[mmap.mmap] = []  # of this fork and of the forks around it, shared with their parents


def run_forked(function: Callable[[], R], doing: str = "") -> R:
    """Run ``function`` in a fork. Return its result, or raise its exception. An exception that is
    not a QnnCiError becomes a FailedError, or a StoreError if the disk is full.

    If the fork dies, a FailedError is raised. Its message contains ``doing`` and the last step that
    was passed to note_step. Garbage collection is off in the fork, because it would write to every
    shared object, and the kernel would have to copy them.
    """
    gc.collect()
    gc.freeze()
    step = mmap.mmap(-1, STEP_BYTES)
    reading, writing = os.pipe()
    answers = os.fdopen(writing, "wb")
    # Otherwise the fork would write what is still buffered here a second time.
    flush_stdio()
    worker = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(worker)
        os.setpgid(0, 0)  # see end_descendants
        code = 1
        try:
            for descriptor in OWN_DESCRIPTORS:
                os.close(descriptor)
            OWN_DESCRIPTORS.clear()
            _steps.append(step)
            # Processes that the function forks do not answer, nor keep the parent waiting. In
            # processes that those fork, the descriptor may be another file's: it is closed once.
            os.register_at_fork(after_in_child=answers.close)
            gc.disable()
            code = _answer(function, answers)
        finally:
            # Seen with a model that closes its streams: the fork went on as a second process of its
            # worker, and spoiled all later cases.
            os._exit(code)  # the fork must not return into the parent's code
    answers.close()
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code or not data:
        last, origin = "", NOWHERE
        with suppress(DocumentError):  # the fork was killed while it wrote
            last, origin = decode_json(step[:].rstrip(b"\0") or b'["",{}]', tuple[str, Origin])
        text = f"the process {describe_exit(code)} without a result"
        died = DiedError(f"{doing}: {text}" if doing else text, why=last and f"while {last}")
        died.places, died.doing = origin.places, doing
        raise died
    try:
        result: Any = pickle.loads(data)  # noqa: S301 - from our own fork
    except Exception as error:
        text = "the process wrote no valid result"
        raise DiedError(
            f"{doing}: {text}" if doing else text,
            why="the model's code wrote to a file that it did not open",
        ) from error
    if isinstance(result, QnnCiError):
        raise result
    return cast("R", result)


@contextmanager
def without_collection() -> Iterator[None]:
    """Do not collect garbage during the block, which imports much: what imports make stays, and
    looking through it again and again took a sixth of the time of importing ExecuTorch."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class DiedError(PlacedError):
    """A fork died, or its result was not what it should be. ``doing`` is what it did, if it
    died."""

    doing = ""


def still_tqdm() -> None:
    """Keep tqdm from starting a thread, which a fork would lose with a warning, and from creating
    a system semaphore, which would remain if a worker is killed. Call this before tqdm is used.
    """
    with suppress(ImportError):
        tqdm = importlib.import_module("tqdm").tqdm
        tqdm.monitor_interval = 0
        tqdm.set_lock(threading.RLock())


def flush_stdio() -> None:
    """Flush the buffers of Python's streams and of C's stdio, through which QNN prints."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a model may have closed or replaced it
            stream.flush()
    ctypes.CDLL(None).fflush(None)


@contextmanager
def redirected(target: int, *descriptors: int) -> Iterator[None]:
    """Redirect ``descriptors`` of this process to the file that ``target`` refers to, during the
    block. This also redirects the output of C++ code."""
    copies = [os.dup(descriptor) for descriptor in descriptors]
    try:
        for replaced in descriptors:
            os.dup2(target, replaced)
        yield
    finally:
        flush_stdio()
        for replaced, before in zip(descriptors, copies, strict=True):
            os.dup2(before, replaced)
            os.close(before)


def note_step(doing: str, origin: Origin = NOWHERE) -> None:
    """Record the step that the fork has reached, such as ``QNN compiled the graph``. If the fork
    dies, the error shows the last step and its ``origin``. Outside a fork this does nothing."""
    for step in _steps[-1:]:
        text = doing.encode("utf-8", "replace")[:STEP_TEXT_BYTES].decode("utf-8", "ignore")
        data = msgspec.json.encode((text, origin))
        if len(data) >= STEP_BYTES:
            data = msgspec.json.encode((text, NOWHERE))
        step[:] = data.ljust(STEP_BYTES, b"\0")


def answer_job(function: Callable[[], Any]) -> Any:
    """Return the result of ``function``, or the exception that it raised. An exception that is not
    a QnnCiError becomes a FailedError, or a StoreError if the disk is full."""
    try:
        return function()
    except QnnCiError as error:
        return error
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reported as the case's failure
        with suppress(Exception):  # a model may have closed or replaced stderr
            print_traceback(error)
        limit = explain_limit(error) if isinstance(error, ImportError) else None
        return explain_no_room(error) or limit or FailedError(describe_exception(error))


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an exception to stderr. Of a huge message only the start is printed:
    in Python 3.13, the traceback module needs three times the length of a message, which can be
    more memory than the job may use."""
    text = describe_exception(error)
    if len(text) > MAX_DESCRIBED:
        sys.stderr.writelines([*traceback.format_tb(error.__traceback__), f"{text}\n"])
    else:
        traceback.print_exception(error)


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception on one line, cut after MAX_RAISED characters."""
    text = " ".join(describe_exception(error).split())
    return text if len(text) <= MAX_RAISED else f"{text[:MAX_RAISED]}..."


def is_own(error: BaseException) -> bool:
    """Return whether code of this project raised the first cause of ``error`` by mistake. A
    QnnCiError is meant, unless it is a DefectError."""
    visited: list[BaseException] = []
    # A model's code can raise exceptions that are causes of each other.
    while error.__cause__ and error not in visited and not isinstance(error, QnnCiError):
        visited.append(error)
        error = error.__cause__
    if isinstance(error, QnnCiError):
        return isinstance(error, DefectError)
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(OWN_CODE)


def _answer(function: Callable[[], Any], answers: BinaryIO) -> int:
    try:
        data = pickle.dumps(answer_job(function))
        with answers:
            answers.write(data)
    except BaseException:  # noqa: BLE001 - the exit code shows it
        return 1
    flush_stdio()
    return 0
