"""A process that makes sessions with the QNN execution provider, one request a line of stdin.

A request is {"model": PATH, "options": {}, "entries": {}, "run": {}, "keep": false}; with "run" it
is run once, with "keep" the session lives as long as the process. The answer, a line of stdout, is
{"session": bool, "error": TEXT, "log": TEXT, "outputs": [[...]]}. The log is what ONNX Runtime and
the provider wrote meanwhile, verbose.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime_qnn

NAME = "QNNExecutionProvider"
KEPT: list[Any] = []


def answer(request: dict[str, Any], devices: list[Any]) -> dict[str, Any]:
    outputs: list[Any] = []
    try:
        session = open_session(request, devices)
        if request.get("keep"):
            KEPT.append(session)
        if request.get("run") is not None:
            outputs = run(session, request["run"])
        return {"session": True, "error": "", "outputs": outputs}
    except Exception as error:  # noqa: BLE001 - what a user would see
        return {"session": False, "error": str(error), "outputs": []}


def open_session(request: dict[str, Any], devices: list[Any]) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 0
    for key, value in request.get("entries", {}).items():
        settings.add_session_config_entry(key, value)
    settings.add_provider_for_devices(devices, request.get("options", {}))
    return onnxruntime.InferenceSession(request["model"], sess_options=settings, enable_fallback=0)


def run(session: Any, entries: dict[str, str]) -> list[Any]:
    settings = onnxruntime.RunOptions()
    for key, value in entries.items():
        settings.add_run_config_entry(key, value)
    feeds = {given.name: np.full(given.shape, 1.0001, np.float32) for given in session.get_inputs()}
    return [output.tolist() for output in session.run(None, feeds, settings)]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryFile() as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        onnxruntime.register_execution_provider_library(NAME, onnxruntime_qnn.get_library_path())
        devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
        for line in sys.stdin:
            log.seek(0)
            log.truncate()
            said = answer(json.loads(line), devices)
            sys.stdout.flush()
            log.seek(0)
            said["log"] = log.read().decode(errors="replace")
            answers.write(json.dumps(said) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
