"""A lowering in a fork of its own, from a process in which what Python needs is warm.

QNN's libraries number graphs and tensors through a process's life, so that only the first
lowering of a process is reproducible; torch.export and ExecuTorch are slow in the first one. A
fork of a process that has exported once, and has never loaded QNN, is both quick and the first.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable

import torch
from executorch.exir import to_edge_transform_and_lower

from ci.lowering.model import Model
from ci.lowering.quantize import quantize_model
from ci.lowering.schemes import Scheme
from provisioning.console.parent import end_with_parent
from provisioning.console.process import signal_name
from provisioning.errors import FailedError


@functools.cache
def warm_up(soc: str) -> None:
    """Export, quantize and lower a small model without QNN, once a process."""
    # Its thread would be lost in a fork, and Python warns of that.
    if "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.monitor_interval = 0
        # Its own lock is a semaphore of the system, which a worker that is ended leaves behind.
        sys.modules["tqdm"].tqdm.set_lock(threading.RLock())
    inputs = tuple((torch.ones(1, 4) * number,) for number in range(2))
    model = Model("warm-up", torch.nn.Linear(4, 4).eval(), inputs[:1], inputs, ())
    converted = quantize_model(model, Scheme.A8W8, soc)
    to_edge_transform_and_lower(torch.export.export(converted, inputs[0], strict=True))


def run_forked(function: Callable[[], bytes]) -> bytes:
    """What ``function`` returns, computed in a fork. Raises FailedError when the fork dies."""
    # Collections would touch, and so copy, every object that the fork shares.
    gc.collect()
    gc.freeze()
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    worker = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(worker)
        os._exit(_answer(function, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        how = f"was ended by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        raise FailedError(f"its process {how}")
    return data


def _answer(function: Callable[[], bytes], writing: int) -> int:
    try:
        data = function()
        with os.fdopen(writing, "wb") as stream:
            stream.write(data)
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's code
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
