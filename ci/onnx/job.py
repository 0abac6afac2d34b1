"""A compilation and a run as they are asked for and answered: what crosses between processes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ci.cases.artifact import TensorInfo
from ci.cases.engine import LowerJob
from ci.cases.run_job import RunJob

PROGRAM, CONTEXT = "program", "model.onnx"  # the context model, in a directory of the artifact


class CompileJob(LowerJob, frozen=True, kw_only=True):
    """What to compile: ``options`` are the provider's, ``embed`` says whether the context binary
    lies inside the ONNX file (embed mode 1) or beside it (0). Saver's library, where one is given,
    writes QNN's calls too."""

    options: Mapping[str, str] = {}
    embed: bool = True
    saver: str = ""


class SessionJob(RunJob, frozen=True, kw_only=True):
    """A run of the context at ``model`` as ``soc`` would run it; its inputs are ``tensors``.

    ``strict`` lets no node fall back to the CPU. ``options`` are the provider's.
    """

    soc: str
    tensors: tuple[TensorInfo, ...]
    options: Mapping[str, str]
    strict: bool = True


class SessionResult(Struct, frozen=True):
    """Which nodes each provider executed, by the session's own profile, and how often the session
    had to be made anew because the subsystem restarted."""

    providers: Mapping[str, tuple[str, ...]]
    restarts: int = 0
