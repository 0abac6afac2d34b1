"""Imported into a lane's pool alone: sessions that do what the file that LIE names says.

cpu MODEL       the CPU runs MODEL, and the session says that it is QNN's
zeros, others   outputs of zeros, or of the sample before
crash, hang     in the first run
restart N       the subsystem restarts in each of the first N runs
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import EngineError

from ci.onnx import session

LIE = "LYING_SESSIONS"
open_session = session.open_session


class Lying:
    """A session in front of a real one."""

    left = 0

    def __init__(self, session: Any, lie: str) -> None:
        self.session, self.lie, self.last = session, lie, None

    def get_inputs(self) -> Any:
        return self.session.get_inputs()

    def get_providers(self) -> list[str]:
        return ["QNNExecutionProvider", "CPUExecutionProvider"]

    def end_profiling(self) -> Any:
        return self.session.end_profiling()

    def run(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> Any:
        if self.lie == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.lie == "hang":
            time.sleep(600)
        if Lying.left:
            Lying.left -= 1
            raise EngineError("[ONNXRuntimeError] : 17 : ENGINE_ERROR : NPU crashed. SSR detected.")
        outputs = self.session.run(names, feed)
        if self.lie == "zeros":
            return [np.zeros_like(output) for output in outputs]
        if self.lie == "others":
            self.last, outputs = outputs, self.last or outputs
        return outputs


def open_lying(
    model: Path, options: Any, entries: Any, *, profile: Path, **session_options: Any
) -> Any:
    lie, _, argument = Path(os.environ[LIE]).read_text().partition(" ")
    if lie == "cpu":
        settings = onnxruntime.SessionOptions()
        settings.enable_profiling, settings.profile_file_prefix = True, str(profile)
        return Lying(onnxruntime.InferenceSession(argument, settings), lie)
    honest = open_session(model, options, entries, profile=profile, **session_options)
    if lie == "restart" and not hasattr(Lying, "begun"):
        Lying.begun, Lying.left = True, int(argument)
    return Lying(honest, lie) if lie else honest


session.open_session = open_lying
