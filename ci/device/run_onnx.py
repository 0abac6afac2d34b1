"""Run a context model on a board with the board's own ONNX Runtime, on QNN's provider and on
nothing else.

This file is copied to the board. There, it needs Python 3.10, numpy, and an onnxruntime with QNN's
provider: the package onnxruntime-qnn, or one that is built into onnxruntime. It has the flags of
qnn_executor_runner that ``DeviceProgram`` passes. With ``--about``, it prints what the board has as
JSON, and runs nothing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

PROVIDER, PLUGIN = "QNNExecutionProvider", "onnxruntime_qnn"
LIBRARY_PATH, SKEL_PATH, RESTARTED = "LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "QNN_CI_RESTARTED"
QNN_BUILD = re.compile(rb"v(\d{1,3}(?:\.\d{1,4}){2})\.\d{12}(?!\d)")
OUTPUT = "output_{}_{}.raw"
MS_PER_S = 1000


def find_package(name: str) -> Path | None:
    """Return the directory of a package, or None if it is not installed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def find_folder(library: str) -> Path | None:
    """Return the directory of the package that has QNN's ``library``, or None if the board's loader
    has to find it."""
    for name, below in ((PLUGIN, ""), ("onnxruntime", "capi")):
        package = find_package(name)
        if package and (package / below / library).is_file():
            return package / below
    return None


def load_plugin() -> Any:
    """Return the package with QNN's provider, or None if it is not installed."""
    try:
        return importlib.import_module(PLUGIN)
    except ImportError:
        return None


def restart(folder: Path | None) -> None:
    """Start this process again with QNN's directory on the search paths, which the loader reads
    only at the start of a process. libQnnHtp.so opens the SoC's stub by its name, and the DSP opens
    the skel in the other path."""
    if RESTARTED in os.environ:
        return
    environment = {**os.environ, RESTARTED: "1"}
    environment.pop(SKEL_PATH, None)  # the caller's directory has no skel
    if folder:
        older = environment.get(LIBRARY_PATH, "")
        environment[LIBRARY_PATH] = os.pathsep.join(filter(None, [str(folder), older]))
        environment[SKEL_PATH] = str(folder)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - no shell


def read_build(library: Path) -> str:
    """Return the version of QNN in a library, or "" if there is none."""
    try:
        build = QNN_BUILD.search(library.read_bytes())
    except OSError:
        return ""
    return build[1].decode() if build else ""


def list_devices(onnxruntime: Any, plugin: Any) -> list[Any]:
    """Return the devices that the plugin with QNN's provider offers."""
    onnxruntime.register_execution_provider_library(PROVIDER, plugin.get_library_path())
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]


def describe(library: str) -> dict[str, Any]:
    """Return what the board has: versions, providers, and why QNN's cannot be used, "" if it
    can."""
    missing = [name for name in ("numpy", "onnxruntime") if not find_package(name)]
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "missing": missing,
        "onnxruntime": "",
        "plugin": "",
        "providers": [],
        "qnn": "",
        "refusal": "",
    }
    if missing:
        return facts
    onnxruntime, plugin = importlib.import_module("onnxruntime"), load_plugin()
    facts["onnxruntime"] = onnxruntime.__version__
    facts["providers"] = onnxruntime.get_available_providers()
    folder = find_folder(library)
    facts["qnn"] = read_build(folder / library) if folder else ""
    if plugin is not None:
        facts["plugin"] = getattr(plugin, "__version__", "")
        try:
            if list_devices(onnxruntime, plugin):
                facts["providers"].insert(0, PROVIDER)
            else:
                facts["refusal"] = "its plugin finds no device"
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has many kinds
            facts["refusal"] = " ".join(str(error).split())
    return facts


def open_session(arguments: argparse.Namespace, profile: Path) -> Any:
    """Open a session of the model on QNN's provider."""
    onnxruntime, plugin = importlib.import_module("onnxruntime"), load_plugin()
    folder = find_folder(arguments.library)
    library = str(folder / arguments.library) if folder else arguments.library
    options = {"backend_path": library, **json.loads(arguments.provider_options)}
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = arguments.log_severity
    for key, value in json.loads(arguments.session_entries).items():
        settings.add_session_config_entry(key, value)
    settings.enable_profiling, settings.profile_file_prefix = True, str(profile)
    words: dict[str, Any] = {"sess_options": settings, "enable_fallback": 0}
    if plugin is not None:
        settings.add_provider_for_devices(list_devices(onnxruntime, plugin)[:1], options)
    else:
        words.update(providers=[PROVIDER], provider_options=[options])
    return onnxruntime.InferenceSession(arguments.model_path, **words)


def read_inputs(session: Any, files: list[str]) -> dict[str, Any]:
    """Return the inputs of a sample. Each is a file with the elements of a tensor."""
    import numpy as np

    dtypes = {"float": "float32", "double": "float64"}
    feed = {}
    for declared, file in zip(session.get_inputs(), files, strict=True):
        name = declared.type[len("tensor(") : -1]
        elements = np.fromfile(file, dtypes.get(name, name))
        feed[declared.name] = elements.reshape(declared.shape)
    return feed


def run(arguments: argparse.Namespace) -> None:
    """Run the model on each sample, and write the outputs, the times and which provider ran which
    node."""
    import numpy as np

    profile = Path(arguments.profile_path)
    began = time.perf_counter()
    session = open_session(arguments, profile.with_suffix(""))
    load_ms = MS_PER_S * (time.perf_counter() - began)
    runs_ms = []
    samples = Path(arguments.input_list_path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(samples):
        feed = read_inputs(session, line.split())
        outputs: list[Any] = []
        for _ in range(arguments.warm_up + arguments.iteration):
            began = time.perf_counter()
            outputs = session.run(None, feed)
            runs_ms.append(MS_PER_S * (time.perf_counter() - began))
            if len(runs_ms) == 1:  # which provider runs a node does not change in a session
                Path(session.end_profiling()).replace(profile)
        for index, output in enumerate(outputs):
            path = Path(arguments.output_folder_path, OUTPUT.format(number, index))
            path.write_bytes(np.ascontiguousarray(output).tobytes())
    times = {"load_ms": load_ms, "runs_ms": runs_ms}
    Path(arguments.times_path).write_text(json.dumps(times), encoding="utf-8")


def parse(words: list[str]) -> argparse.Namespace:
    """Return the parsed arguments."""
    parser = argparse.ArgumentParser(description="Run a context model on QNN's provider.")
    parser.add_argument("--about", action="store_true")
    parser.add_argument("--library", default="libQnnHtp.so")
    for name in ("model", "input_list", "output_folder", "times", "profile"):
        parser.add_argument(f"--{name}_path", default="")
    for name in ("provider_options", "session_entries"):
        parser.add_argument(f"--{name}", default="{}")
    parser.add_argument("--log_severity", type=int, default=2)
    parser.add_argument("--warm_up", type=int, default=0)
    parser.add_argument("--iteration", type=int, default=1)
    return parser.parse_args(words)


if __name__ == "__main__":
    parsed = parse(sys.argv[1:])
    restart(find_folder(parsed.library))
    if parsed.about:
        sys.stdout.write(f"{json.dumps(describe(parsed.library))}\n")
    else:
        run(parsed)
