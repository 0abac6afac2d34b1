"""Where the seconds of a lowering go, by stage."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ci.cases.forked import note_step

ADAPTOR = "executorch.backends.qualcomm.python.PyQnnManagerAdaptor"
QNN = "QNN"
QNN_CALLS = ("InitBackend", "InitContext", "IsNodeSupportedByBackend", "Compile")


class Stages:
    """Wall-clock seconds by stage; a stage inside another one counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add what the block takes to ``name``."""
        outer, self._inner = self._inner, 0.0
        began = time.monotonic()
        try:
            yield
        finally:
            taken = time.monotonic() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + taken - self._inner
            self._inner = outer + taken

    @contextmanager
    def measure_qnn(self) -> Iterator[None]:
        """Count what ExecuTorch asks of QNN in the block as the stage QNN."""
        adaptor = importlib.import_module(ADAPTOR)
        manager = adaptor.QnnManager
        calls = {name: getattr(manager, name) for name in QNN_CALLS if hasattr(manager, name)}
        for name, call in calls.items():
            setattr(manager, name, self._timed(name, call))
        try:
            yield
        finally:
            for name, call in calls.items():
                setattr(manager, name, call)

    def _timed(self, name: str, call: Any) -> Any:
        def timed(*words: Any) -> Any:
            if name == "Compile":
                note_step("QNN compiled the graph; the operators are the last ones of the log")
            with self.measure(QNN):
                return call(*words)

        return timed
