"""A process that makes sessions with the QNN execution provider, one request a line of stdin.

A request is {"model": PATH, "options": {}, "entries": {}, "run": {}, "keep": false, "compare":
[LEAST, MOST, STEP]}: with "run" it is run once, with "keep" the session lives as long as the
process, with "compare" its outputs for inputs in that range are compared with the CPU's, where
two steps off is right. The answer, a line of stdout, is {"session": bool, "error": TEXT,
"log": TEXT, "outputs": [[...]], "agreement": DECIBELS}; of integers 100 where 95 in 100 are equal,
else a negative number. The log is what ONNX Runtime and the provider wrote, verbose.
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
    agreement: dict[str, Any] = {}
    try:
        session = open_session(request, devices)
        if request.get("compare"):
            agreement["agreement"] = compare(session, request["model"], *request["compare"])
        if request.get("keep"):
            KEPT.append(session)
        if request.get("run") is not None:
            outputs = run(session, request["run"])
        return {"session": True, "error": "", "outputs": outputs, **agreement}
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
    feeds = {port.name: np.full(port.shape, 1.0001, np.float32) for port in session.get_inputs()}
    return [output.tolist() for output in session.run(None, feeds, settings)]


def compare(
    session: Any, model: str, lowest: float, highest: float, step: float = 0.0
) -> float | None:
    """The worst output's agreement with the CPU; None where the CPU cannot run the model."""
    dice = np.random.default_rng(0)
    feeds = {port.name: make_input(port, dice, (lowest, highest)) for port in session.get_inputs()}
    try:
        right = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        expected = right.run(None, feeds)
    except Exception:  # noqa: BLE001 - no kernel for the type
        return None
    pairs = zip(expected, session.run(None, feeds), strict=True)
    return float(min(agree(left, output, step) for left, output in pairs))


def make_input(port: Any, dice: Any, span: tuple[float, float]) -> Any:
    kinds = {"float": "float32", "float16": "float16", "bool": "bool"}
    kind = port.type.removeprefix("tensor(").removesuffix(")")
    if kind.startswith("float"):
        return dice.uniform(*span, port.shape).astype(kinds[kind])
    return dice.integers(0, 2, port.shape).astype(kinds.get(kind, kind))


def agree(expected: Any, output: Any, step: float) -> float:
    if expected.shape != output.shape:
        return -100.0
    if expected.dtype.kind != "f":
        share = float(np.mean(expected == output)) if expected.size else 1.0
        return 100.0 if share > 0.95 else 100.0 * (share - 1)  # equal values have no order
    fit = np.isfinite(expected)
    expected, output = expected[fit].astype(np.float64), output[fit].astype(np.float64)
    if np.abs(expected - output).max(initial=0) <= 2 * step:
        return 100.0
    signal, noise = float(np.sum(expected**2)), float(np.sum((expected - output) ** 2))
    if not np.isfinite(noise):
        return -100.0
    return 100.0 if not noise else 10 * np.log10(signal / noise) if signal else -100.0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryFile() as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        onnxruntime.register_execution_provider_library(NAME, onnxruntime_qnn.get_library_path())
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
        for line in sys.stdin:
            log.seek(0)
            log.truncate()
            answered = answer(json.loads(line), devices)
            sys.stdout.flush()
            log.seek(0)
            answered["log"] = log.read().decode(errors="replace")
            answers.write(json.dumps(answered) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
