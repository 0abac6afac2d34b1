"""Creates sessions on QNN's provider, with checked options.

By default, Python's InferenceSession falls back to the CPU if a provider raises an exception, and
prints the error. This fallback is disabled here. QNN and the provider log to stderr, which a job
redirects to its log.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime
import onnxruntime_qnn

from ci.onnx.fallback import PROVIDER
from ci.onnx.options import rate_severity
from provisioning.errors import FailedError

RECORD_ASSIGNMENT = {"session.record_ep_graph_assignment_info": "1"}


def open_session(
    model: Path,
    options: Mapping[str, str],
    entries: Mapping[str, str],
    *,
    profile: Path | None = None,
    log_level: str = "",
) -> Any:
    """Open a session on QNN's provider, which uses ``log_level`` for QNN's log. Raises
    onnxruntime's errors, and FailedError if the provider is missing. All sessions of a process must
    be for the same SoC, because a second session can inherit the device of the first (seen with
    onnxruntime-qnn 2.5.0)."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = rate_severity(log_level)
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    if profile:
        settings.enable_profiling, settings.profile_file_prefix = True, str(profile)
    settings.add_provider_for_devices([find_device()], dict(options))
    return onnxruntime.InferenceSession(str(model), sess_options=settings, enable_fallback=0)


@functools.cache
def find_device() -> Any:
    """Load the library of QNN's provider, and return the device that it registers."""
    library = onnxruntime_qnn.get_library_path()
    onnxruntime.register_execution_provider_library(PROVIDER, library)
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise FailedError(
            "ONNX Runtime has no device for QNN's provider",
            why=f"{library} was registered, but it provides no device",
            fix="install the onnxruntime and onnxruntime-qnn that pyproject.toml pins",
        )
    return devices[0]
