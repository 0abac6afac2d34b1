"""Runs a context binary in this process on raw input files, and says which provider did what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnxruntime.capi.onnxruntime_pybind11_state import EngineError

from ci.cases.artifact import OUTPUT, write_set
from ci.cases.forked import run_forked
from ci.cases.outputs import read_tensor
from ci.onnx.contexts import check_context
from ci.onnx.fallback import read_profile
from ci.onnx.job import SessionJob, SessionResult
from ci.onnx.session import NO_FALLBACK, open_session
from provisioning.errors import FailedError

PROFILE = "profile"
MAX_RESTARTS = 3


def run_session_job(job: SessionJob) -> SessionResult:
    """Make the session once and run every input set, in a fork: QNN's libraries keep a device,
    which a later session for another SoC would get.

    Raises UnfitError for a context of another SoC, which the emulator would run, and FailedError
    where the subsystem restarts again and again, or onnxruntime raises.
    """
    return run_forked(lambda: run_session(job))


def run_session(job: SessionJob) -> SessionResult:
    """The same, in this process."""
    outputs = Path(job.outputs)
    check_context(Path(job.model), job.soc)
    recovering = Recovering(lambda: open_job_session(job))
    lines = Path(job.input_list).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        write_set(outputs, number, recovering.run(read_inputs(job, line.split())), OUTPUT)
    return SessionResult(
        read_profile(Path(recovering.session.end_profiling())), recovering.restarts
    )


def open_job_session(job: SessionJob) -> Any:
    """The session, whose profile lies beside the directory of outputs."""
    return open_session(
        Path(job.model),
        job.options,
        NO_FALLBACK if job.strict else {},
        profile=Path(job.outputs).with_name(PROFILE),
    )


def read_inputs(job: SessionJob, files: Sequence[str]) -> list[Any]:
    """The arrays of one input set. Raises OSError or ValueError as read_tensor does."""
    return [
        read_tensor(Path(file), info).view(info.dtype)
        for file, info in zip(files, job.tensors, strict=True)
    ]


class Recovering:
    """A session that is made anew when the subsystem, the NPU's own system, has restarted.

    QNN's provider raises ENGINE_ERROR then, and its session is of no more use.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.session, self.restarts = make, make(), 0

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Outputs of one input set. Raises FailedError after MAX_RESTARTS restarts."""
        feed = dict(zip((one.name for one in self.session.get_inputs()), arrays, strict=True))
        try:
            outputs: Sequence[Any] = self.session.run(None, feed)
        except EngineError as error:
            if self.restarts == MAX_RESTARTS:
                raise FailedError(
                    f"the subsystem restarted {MAX_RESTARTS + 1} times",
                    why=" ".join(str(error).split()),
                    fix="see what else runs on the NPU, and its log (logcat, dmesg)",
                ) from error
            self.restarts += 1
            self.session = self.make()
            return self.run(arrays)
        return outputs
