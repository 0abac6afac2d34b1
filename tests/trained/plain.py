"""What is true of each case, by ExecuTorch's and onnxruntime's documented calls and numpy alone.

``python plain.py FOLDER LANE CASE...`` computes the float model, the quantized one and the
program on the emulator, for cases MODEL[-FAULT]:SCHEME of a folder that corpus.py wrote. It prints
a line of JSON for each: the metric of all three, and SQNR in dB by output, of all sets and of the
worst. No module of ci/ or provisioning/ takes part. Needs QNN_SDK_ROOT and LD_LIBRARY_PATH.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

Array = np.ndarray[Any, Any]
Columns = list[Array]  # an output each, [samples, *shape]
SOC = 57  # SM8650, QnnTypes.h
WIDTHS = {"u8": ("QUInt8", "QUInt8"), "u16a8w": ("QUInt16", "QUInt8")}


def read_arrays(file: Path) -> list[Array]:
    with np.load(file) as archive:
        return [archive[name] for name in archive.files]


def sqnr(signal: Columns, noisy: Columns) -> list[list[float]]:
    """dB by output, of all sets and of the worst."""
    figures_of_outputs = []
    for right, output in zip(signal, noisy, strict=True):
        axes = tuple(range(1, right.ndim))
        power = np.square(right.astype(np.float64)).sum(axes) + 1e-30
        noise = np.square(right.astype(np.float64) - output).sum(axes) + 1e-30
        figures = power.sum() / noise.sum(), (power / noise).min()
        figures_of_outputs.append(
            [round(min(float(10 * np.log10(figure)), 199.0), 1) for figure in figures]
        )
    return figures_of_outputs


def stack(sets: list[Any]) -> Columns:
    return [np.stack(column).astype(np.float32) for column in zip(*sets, strict=True)]


def run_torch(policy: dict[str, Any], scheme: str) -> dict[str, Columns | str]:
    import plain_script
    import torch

    torch.backends.mkldnn.enabled = False
    torch.set_num_threads(1)
    file, _, function = policy["path"].rpartition(":")
    with torch.no_grad():
        module, _ = getattr(importlib.import_module(Path(file).stem), function)()

        def sets(kind: str) -> list[Any]:
            rows = zip(*map(torch.from_numpy, read_arrays(policy[kind])), strict=True)
            return [tuple(row) for row in rows]

        def run(model: Any) -> Columns:
            outputs_of_sets = []
            for inputs in sets("inputs"):
                outputs = model(*(tensor.clone() for tensor in inputs))
                outputs_of_sets.append(outputs if isinstance(outputs, tuple | list) else (outputs,))
            return stack(outputs_of_sets)

        result: dict[str, Columns | str] = {"float": run(module)}
        if scheme != "fp16":
            module = plain_script.quantize(module, sets("calibration"), scheme)
        result["quantized"] = run(module)
        try:
            program = plain_script.compile_module(module, sets("inputs")[0], scheme)
            from executorch.extension.pybindings import _C

            method = _C._load_for_executorch_from_buffer(program)
            result["program"] = stack([method.run_method("forward", row) for row in sets("inputs")])
        except Exception as error:  # noqa: BLE001 - a refusal is a result
            result["refused"] = f"{type(error).__name__}: {error}"[:200]
    return result


def run_onnx(policy: dict[str, Any], scheme: str) -> dict[str, Columns | str]:
    import onnxruntime
    import onnxruntime_qnn
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import (
        get_qnn_qdq_config,
        qnn_preprocess_model,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    onnxruntime.set_default_logger_severity(4)
    names = [port.name for port in onnxruntime.InferenceSession(policy["path"]).get_inputs()]

    def feeds(kind: str) -> list[dict[str, Array]]:
        rows = zip(*read_arrays(policy[kind]), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def run(session: Any) -> Columns:
        return stack([session.run(None, feed) for feed in feeds("inputs")])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter(feeds("calibration"))

        def get_next(self) -> dict[str, Array] | None:
            return next(self.feeds, None)

    result: dict[str, Columns | str] = {"float": run(onnxruntime.InferenceSession(policy["path"]))}
    with tempfile.TemporaryDirectory() as folder:
        chosen = policy["path"]
        try:
            if scheme != "fp16":
                import onnx

                model = onnx.load(chosen)
                steps = [str(Path(folder, f"{number}.onnx")) for number in range(4)]
                onnx.save(model, steps[0])
                quant_pre_process(steps[0], steps[1], skip_symbolic_shape=True)
                model = onnx.load(steps[1])
                del model.metadata_props[:]  # the quantizer cannot copy them
                onnx.save(model, steps[1])
                changed = qnn_preprocess_model(steps[1], steps[2])
                ready = steps[2] if changed else steps[1]
                activations, weights = (QuantType[quant_type] for quant_type in WIDTHS[scheme])
                config = get_qnn_qdq_config(
                    ready, Reader(), activation_type=activations, weight_type=weights
                )
                quantize(ready, steps[3], config)
                chosen = steps[3]
            plain = onnxruntime.SessionOptions()
            plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            result["quantized"] = run(onnxruntime.InferenceSession(chosen, plain))
            library = onnxruntime_qnn.get_library_path()
            onnxruntime.register_execution_provider_library("QNNExecutionProvider", library)
            device = next(
                candidate
                for candidate in onnxruntime.get_ep_devices()
                if "QNN" in candidate.ep_name
            )
            settings = onnxruntime.SessionOptions()
            settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            options = {
                "soc_model": str(SOC),
                "backend_type": "htp",
                "offload_graph_io_quantization": "0",
                "enable_htp_fp16_precision": str(int(scheme == "fp16")),
            }
            settings.add_provider_for_devices([device], options)
            result["program"] = run(
                onnxruntime.InferenceSession(chosen, settings, enable_fallback=0)
            )
        except Exception as error:  # noqa: BLE001 - a refusal is a result
            result["refused"] = f"{type(error).__name__}: {error}"[:200]
    return result


def examine(policy: dict[str, Any], lane: str, case: str, scheme: str) -> None:
    import metrics
    import torch

    result = {"torch": run_torch, "onnx": run_onnx}[lane](policy, scheme)
    function = getattr(metrics, policy["metric"]["function"].rpartition(":")[2])
    labels = torch.from_numpy(np.load(policy["metric"]["labels"]))
    row: dict[str, Any] = {"lane": lane, "case": case, "scheme": scheme, "metric": {}}
    for kind in ("float", "quantized", "program"):
        if kind in result:
            columns = [torch.from_numpy(column.copy()) for column in result[kind]]
            try:
                row["metric"][kind] = round(float(function(columns, labels)), 4)
            except (RuntimeError, ValueError, IndexError) as error:
                row["metric"][kind] = None
                row["why"] = str(error)[:100]
    if "quantized" in result:
        row["quantized_float"] = sqnr(result["float"], result["quantized"])
    if "program" in result:
        row["program_quantized"] = sqnr(result["quantized"], result["program"])
        row["program_float"] = sqnr(result["float"], result["program"])
    if "refused" in result:
        row["refused"] = result["refused"]
    print("\nRESULT " + json.dumps(row), flush=True)


def main() -> None:
    """QNN numbers graphs through a process's life, so each case has a process of its own."""
    import tomllib

    folder, lane, *cases = sys.argv[1:]
    needed = {"torch": "plain_script", "onnx": "onnxruntime.quantization.execution_providers.qnn"}
    for module in ("metrics", needed[lane]):  # imported once
        importlib.import_module(module)
    policy = tomllib.loads(Path(folder, "qnn.toml").read_text())["models"]
    for case in cases:
        name, _, scheme = case.partition(":")
        entry = policy[name]
        words = {key: str(Path(folder, entry[key])) for key in ("path", "calibration", "inputs")}
        metric = {key: str(Path(folder, entry["metric"][key])) for key in ("function", "labels")}
        case_policy = {**words, "metric": metric}
        process = multiprocessing.get_context("fork").Process(
            target=examine, args=(case_policy, lane, name, scheme)
        )
        process.start()
        process.join()
        if process.exitcode:
            row = {"lane": lane, "case": name, "scheme": scheme, "crashed": process.exitcode}
            print("\nRESULT " + json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
