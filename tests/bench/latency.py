"""Writes manifests/latency and the plots of docs/findings/latency.md: public times of models on
devices, QNN's simulation of the same models, and the lines from one to the other.

``QNN_CI_LATENCY`` (default: reports/latency) is a directory for downloads and simulations, which
are not made twice. It takes some hours to fill. The times are facts of the pinned wheel; its text
and code are not used.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import yaml

from ci.cases.forked import run_forked
from ci.latency.calibrate import Point, count_order, make_line, predict_left_out
from ci.latency.estimate import (
    DEVICES,
    FIGURES,
    FOLDER,
    IMPLAUSIBLE,
    LINES,
    RUNTIME,
    Count,
    Device,
    Figure,
    Line,
    Lines,
    Positive,
    find_figures,
    read_rows,
)
from ci.latency.simulation import SIMULATED, read_simulation
from ci.models.schemes import Scheme
from ci.report.schema import Simulation
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError
from provisioning.files import hash_file
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import read_socs
from tests.bench.latency_plot import draw_plot

WHEEL = "qai-hub-models==0.65.0"
WHEEL_SHA256 = "35198f76e3b98a759bc0d1ec94692b21f44e0cf20dc6f6fe51d8dceb05f12f2c"
PACKAGES = (
    "torchvision==0.28.0", "timm==1.0.31", "transformers==5.24.0", "ultralytics==8.4.190",
    "pillow==13.0.0", "safetensors==0.8.0", "psutil==7.2.2", "opencv-python-headless==5.0.0.93",
    "matplotlib==3.11.2", "contourpy==1.3.3", "cycler==0.12.1", "fonttools==4.68.0",
    "kiwisolver==1.5.1", "pyparsing==3.3.3", "python-dateutil==4.0.0",
)  # fmt: skip
# The lane's schemes with the published precisions. AI Hub's weights have a scale per channel, too.
SCHEMES = {
    "float": Scheme.FP16,
    "w8a8": Scheme.U8_CHANNEL,
    "w8a16": Scheme.U16A8W_CHANNEL,
}
LEAST, LEAST_FAMILIES = 8, 3  # a line needs so many models and families
SHOWN = (
    "Dragonwing IQ-9075 EVK", "QCS8550 (Proxy)", "Samsung Galaxy S24", "Samsung Galaxy S25",
    "Samsung Galaxy S26",
)  # fmt: skip
# How many layers a rebuilt model may have more or fewer than published. Published programs have up
# to three more at their ends.
ALIKE, ENDS = 0.1, 3
# On SA8797, time in HMX predicts too little of a phone's time, so it counts separately.
WITH_HMX = {("float", "SA8797")}
PLOT = Path("docs/images/latency.svg")
PROGRAMS = "programs.csv"
LIMIT_S = 3600
JOB_S = 900


class Simulated(msgspec.Struct, frozen=True):
    """A kept simulation, or in ``fault`` the reason why there is none."""

    simulation: Simulation | None = None
    parameters: int = 0
    layers: int = 0
    cpu_nodes: int = 0
    context_bytes: int = 0
    fault: str = ""


class SimulatedProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """QNN's simulation of a model that was rebuilt without weights. ``excluded`` is the reason why
    it is not fitted, found before fitting, or "". ``held_out`` models were chosen before fitting
    and are not fitted either."""

    model: str
    family: str
    held_out: bool
    excluded: str
    precision: str
    soc: str
    qnn: str
    parameters: Count
    layers: Count
    cpu_nodes: Count
    clock_mhz: Positive
    cycles: Count
    lower_cycles: Count
    upper_cycles: Count
    read_bytes: Count
    write_bytes: Count
    fill_bytes: Count
    spill_bytes: Count
    missing_ops: Count
    implausible_cycles: Count
    hmx_cycles: Count
    context_bytes: Count

    @property
    def is_implausible(self) -> bool:
        """Return whether too many of the cycles have a wrong cost."""
        return self.implausible_cycles > IMPLAUSIBLE * self.cycles

    @property
    def simulated_ms(self) -> float:
        """Return the simulated time on the simulated SoC."""
        return self.cycles / self.clock_mhz / 1000

    @property
    def hmx_ms(self) -> float:
        """Return the time in which HMX is busy on the simulated SoC."""
        return self.hmx_cycles / self.clock_mhz / 1000


def write_rows(path: Path, kind: type[msgspec.Struct], rows: Sequence[msgspec.Struct]) -> None:
    """Write rows as read_rows reads them."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, kind.__struct_fields__, lineterminator="\n")
        writer.writeheader()
        writer.writerows(msgspec.to_builtins(row) for row in rows)


def run_bench(progress: Progress) -> Mapping[str, Any]:
    home = Path(os.environ.get("QNN_CI_LATENCY", "reports/latency")).absolute()
    folder = manifests_root() / FOLDER
    folder.mkdir(exist_ok=True)
    sys.path.insert(0, str(install_packages(home, progress)))
    from tests.bench.latency_models import MODELS

    with zipfile.ZipFile(download_wheel(home, progress)) as wheel:
        parts = {name: published.component for name, published in MODELS.items()}
        figures = sorted(read_figures(wheel, parts), key=msgspec.structs.astuple)
        used = {figure.device for figure in figures}
        devices = [device for device in read_published_devices(wheel) if device.device in used]
    write_rows(folder / DEVICES, Device, devices)
    write_rows(folder / FIGURES, Figure, figures)
    programs = list(simulate_models(home, figures, progress))
    write_rows(folder / PROGRAMS, SimulatedProgram, programs)
    lines = list(fit_lines(devices, figures, programs))
    qnn = programs[0].qnn if programs else ""
    data = msgspec.json.encode(Lines(source=WHEEL, qnn=qnn, lines=tuple(lines)))
    (folder / LINES).write_bytes(msgspec.json.format(data, indent=1) + b"\n")
    return summarize(folder, lines)


def install_packages(home: Path, progress: Progress) -> Path:
    """Install PACKAGES to a directory, without the packages that they need, and return it."""
    site = home / "site"
    if not site.is_dir():
        progress.step("bench: installing packages that build the models")
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        run_process([*words, str(site), *PACKAGES], timeout_s=LIMIT_S)
    return site


def download_wheel(home: Path, progress: Progress) -> Path:
    """Return the pinned wheel. It is only read, never installed."""
    path = next((home / "dl").glob("qai_hub_models-*.whl"), None)
    if path is None:
        progress.step(f"bench: downloading {WHEEL}")
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        run_process([*words, str(home / "dl"), WHEEL], timeout_s=LIMIT_S)
        path = next((home / "dl").glob("qai_hub_models-*.whl"))
    assert hash_file(path) == WHEEL_SHA256, f"{path} is not the pinned wheel"
    return path


def read_published_devices(wheel: zipfile.ZipFile) -> Iterator[Device]:
    """Yield the devices with their SoCs. A SoC that socs.toml lacks has no name."""
    data = yaml.load(wheel.read("qai_hub_models/devices_and_chipsets.yaml"), yaml.CSafeLoader)
    names = {soc.id: name for name, soc in read_socs().items()}
    for device, row in sorted(data["devices"].items()):
        chip = data["chipsets"].get(row["chipset"], {})
        if chip.get("soc_model") and chip["htp_version"] in SIMULATED:
            number = chip["soc_model"]
            yield Device(device, names.get(number, ""), number, chip["htp_version"])


def read_figures(wheel: zipfile.ZipFile, components: Mapping[str, str]) -> Iterator[Figure]:
    """Yield the published times of models on the NPU. ``components`` names the part of each model
    that was rebuilt."""
    for model, component in components.items():
        text = wheel.read(f"qai_hub_models/models/{model}/perf.yaml")
        for precision, parts in yaml.load(text, yaml.CSafeLoader)["precisions"].items():
            if precision not in SCHEMES:
                continue
            for name, part in parts["components"].items():
                if component in {"", name}:
                    yield from _read_part(model, precision, part["performance_metrics"])


def _read_part(model: str, precision: str, devices: Mapping[str, Any]) -> Iterator[Figure]:
    for device, runtimes in devices.items():
        for runtime, measurement in runtimes.items():
            memory = measurement.get("estimated_peak_memory_range_mb")
            layers = measurement.get("layer_counts")
            if runtime == RUNTIME and measurement.get("primary_compute_unit") == "NPU" and layers:
                yield Figure(
                    model=model,
                    precision=precision,
                    device=device,
                    runtime=runtime,
                    ms=measurement["inference_time_milliseconds"],
                    memory_low_mb=memory["min"],
                    memory_high_mb=memory["max"],
                    npu_layers=layers.get("npu", 0),
                    layers=layers["total"],
                    job=measurement["job_id"],
                )


def simulate_models(
    home: Path, figures: Sequence[Figure], progress: Progress
) -> Iterator[SimulatedProgram]:
    """Yield a row for each model, precision and simulated SoC with a published time. A model that
    cannot be built, quantized or simulated is left out."""
    from tests.bench.latency_models import MODELS

    for model, rebuilt in MODELS.items():
        for precision, scheme in SCHEMES.items():
            layers = [
                figure.layers
                for figure in figures
                if (figure.model, figure.precision) == (model, precision)
            ]
            for soc in sorted(set(SIMULATED.values())) if layers else ():
                simulated = find_simulated(home, model, scheme, soc, progress)
                if simulated.simulation is None:
                    progress.step(f"bench: left out: {model} {precision} {soc}: {simulated.fault}")
                    continue
                simulation = simulated.simulation
                apart = min(abs(simulated.layers - number) for number in layers)
                differs = apart > max(ENDS, ALIKE * min(layers))
                yield SimulatedProgram(
                    model=model,
                    family=rebuilt.family,
                    held_out=rebuilt.held_out,
                    excluded=f"{simulated.layers} layers instead of {min(layers)}" * differs,
                    precision=precision,
                    soc=soc,
                    qnn="2.49.40",
                    parameters=simulated.parameters,
                    layers=simulated.layers,
                    cpu_nodes=simulated.cpu_nodes,
                    context_bytes=simulated.context_bytes,
                    **{
                        name: getattr(simulation, name)
                        for name in (
                            *("clock_mhz", "cycles", "lower_cycles", "upper_cycles"),
                            *("read_bytes", "write_bytes", "fill_bytes", "spill_bytes"),
                            *("missing_ops", "implausible_cycles", "hmx_cycles"),
                        )
                    },
                )


def find_simulated(
    home: Path, model: str, scheme: Scheme, soc: str, progress: Progress
) -> Simulated:
    """Return the kept simulation of a model, or make it in a fork."""
    path = home / "simulated" / f"{model}-{scheme.value}-{soc}.json"
    if not path.is_file():
        progress.step(f"bench: {model} {scheme.value} {soc}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            simulated = run_forked(lambda: simulate(home, model, scheme, soc), model)
        except QnnCiError as error:
            simulated = Simulated(fault=str(error).splitlines()[0])
        path.write_bytes(msgspec.json.encode(simulated))
    return msgspec.json.decode(path.read_bytes(), type=Simulated)


def simulate(home: Path, model: str, scheme: Scheme, soc: str) -> Simulated:
    """Build, export, quantize and simulate a model. The float and the quantized file are kept."""
    import signal

    import onnxruntime_qnn
    import torch

    from ci.onnx.export import export_module
    from ci.onnx.options import choose_options
    from ci.onnx.preparation import quantize_file
    from ci.onnx.simulate import simulate_file
    from tests.bench.latency_models import MODELS

    signal.alarm(JOB_S)
    torch.set_num_threads(1)
    folder = home / "onnx"
    folder.mkdir(exist_ok=True)
    source, inputs = folder / f"{model}.onnx", folder / f"{model}.npz"
    if not (folder / f"{model}.json").is_file():
        torch.manual_seed(0)
        module, example = MODELS[model].make()
        export_module(module.eval(), example, source)
        np.savez(inputs, *map(np.asarray, example))
        count = sum(parameter.numel() for parameter in module.parameters())
        (folder / f"{model}.json").write_text(json.dumps({"parameters": count}))
    path = source
    if scheme.quantized:
        path = folder / f"{model}-{scheme.value}.onnx"
        if not path.is_file():
            with np.load(inputs) as arrays:
                sets = [tuple(arrays[name] for name in arrays.files)]
            quantize_file(source, path, scheme, sets)
            quantize_ends(path)
    library = Path(onnxruntime_qnn.__file__).with_name("libQnnHtp.so")
    options = {**choose_options(scheme, "SM8650", {}), "backend_path": str(library)}
    with TemporaryDirectory(dir=home) as scratch:
        place = Path(scratch)
        (place / "log").touch()
        delegation, footprint, observed = simulate_file(path, soc, options, place, place / "log")
    return Simulated(
        simulation=read_simulation(observed, soc, delegation.partitions),
        parameters=json.loads((folder / f"{model}.json").read_text())["parameters"],
        layers=delegation.delegated_nodes + delegation.fallback_nodes,
        cpu_nodes=delegation.fallback_nodes,
        context_bytes=footprint.context_bytes or 0,
    )


def quantize_ends(path: Path) -> None:
    """Make the inputs and outputs of a quantized model integers, as those of published programs."""
    import onnx

    model = onnx.load(path)
    graph = model.graph
    for end, kind in ((graph.input, "QuantizeLinear"), (graph.output, "DequantizeLinear")):
        for value in end:
            outer, inner = ("input", "output") if end is graph.input else ("output", "input")
            nodes = [node for node in graph.node if value.name in getattr(node, outer)]
            if len(nodes) != 1 or nodes[0].op_type != kind:
                continue
            (node,) = nodes
            zero = next(
                initializer
                for initializer in graph.initializer
                if initializer.name == node.input[2]
            )
            users = [
                user_node
                for user_node in graph.node
                if end is graph.output and value.name in user_node.input
            ]
            if users:  # the graph uses this output, too
                node.output[0] = f"{value.name}_float"
                for user in users:
                    names = list(user.input)
                    for place, name in enumerate(names):
                        if name == value.name:
                            names[place] = node.output[0]
                    del user.input[:]
                    user.input.extend(names)
            else:
                graph.node.remove(node)
            value.name = getattr(node, inner)[0]
            value.type.tensor_type.elem_type = zero.data_type
    onnx.save(model, path)


def find_points(
    figures: Sequence[Figure], programs: Sequence[SimulatedProgram], device: Device, precision: str
) -> Iterator[tuple[SimulatedProgram, Point]]:
    """Yield each simulated program that can be told, with its time on the device."""
    soc = SIMULATED[device.hexagon]
    measured = find_figures(figures, device.device, precision)
    for program in programs:
        best = measured.get(program.model)
        untold = (
            program.excluded or program.missing_ops or program.cpu_nodes or program.is_implausible
        )
        if best and not untold and (program.soc, program.precision) == (soc, precision):
            hmx_ms = program.hmx_ms if (precision, soc) in WITH_HMX else 0.0
            times = (program.simulated_ms, best.ms, best.job, hmx_ms)
            yield program, Point(program.model, program.family, *times)


def fit_lines(
    devices: Sequence[Device], figures: Sequence[Figure], programs: Sequence[SimulatedProgram]
) -> Iterator[Line]:
    """Yield a line for each device and precision with enough models of several families."""
    for device in devices:
        for precision in SCHEMES:
            program_points = find_points(figures, programs, device, precision)
            points = [point for program, point in program_points if not program.held_out]
            if len(points) >= LEAST and len({point.group for point in points}) >= LEAST_FAMILIES:
                yield make_line(points, device.device, precision, SIMULATED[device.hexagon])


def summarize(folder: Path, lines: Sequence[Line]) -> Mapping[str, Any]:
    """Return the figures of docs/findings/latency.md: errors of left-out families, the models that
    were held out, and what is known of memory and of nodes on the CPU."""
    figures = read_rows(FIGURES, Figure, folder)
    programs = read_rows(PROGRAMS, SimulatedProgram, folder)
    devices = {device.device: device for device in read_rows(DEVICES, Device, folder)}
    rows, held_out, pairs, dots = [], [], {}, []
    for line in lines:
        program_points = list(find_points(figures, programs, devices[line.device], line.precision))
        points = [point for program, point in program_points if not program.held_out]
        predicted = predict_left_out(points)
        right, total = count_order(predicted, [point.measured_ms for point in points])
        before = pairs.get(line.precision, (0, 0))
        pairs[line.precision] = (before[0] + right, before[1] + total)
        predictions = list(zip(predicted, points, strict=True))
        dots += [(line, point.model, mine, point.measured_ms) for mine, point in predictions]
        errors = sorted(
            ((mine / point.measured_ms - 1, point.model) for mine, point in predictions),
            key=lambda row: -abs(row[0]),
        )
        rows.append(
            {
                "device": line.device, "precision": line.precision, "models": len(points),
                "families": len({point.group for point in points}),
                "median_error": line.median_error,
                "held_80": float(np.quantile([abs(error) for error, _ in errors], 0.8)),
                "worst": [(name, round(error, 3)) for error, name in errors[:4]],
                "order": line.order, "base_ms": line.base_ms, "factor": line.factor,
                "hmx_factor": line.hmx_factor,
            }
        )  # fmt: skip
        for program, point in program_points:
            if program.held_out:
                ms = line.predict(point.simulated_ms, point.hmx_ms)
                inside = ms * line.low <= point.measured_ms <= ms * line.high
                held_out.append(
                    (line.device, line.precision, program.model, ms, point.measured_ms, inside)
                )
    PLOT.write_text(draw_plot([dot for dot in dots if dot[0].device in SHOWN]), encoding="utf-8")
    return {"lines": rows, "held_out": held_out, "pairs": pairs, **compare_facts(figures, programs)}


def compare_facts(
    figures: Sequence[Figure], programs: Sequence[SimulatedProgram]
) -> Mapping[str, Any]:
    """Return the models that have nodes on the CPU here or in a published program, and how the
    published peak memory on one device depends on the size of our context."""
    split = {
        *(
            (figure.model, figure.precision, "published")
            for figure in figures
            if figure.npu_layers < figure.layers
        ),
        *(
            (program.model, program.precision, "rebuilt")
            for program in programs
            if program.cpu_nodes
        ),
    }
    memory = {
        figure.model: figure.memory_high_mb
        for figure in figures
        if (figure.device, figure.precision) == (SHOWN[0], "float")
    }
    sizes = [
        (program.context_bytes, memory[program.model])
        for program in programs
        if (program.precision, program.soc) == ("float", "QCS9100") and program.model in memory
    ]
    linked = float(np.corrcoef(np.log([[size, peak + 1] for size, peak in sizes]).T)[0, 1])
    return {"on_cpu": sorted(split), "memory_r": linked, "memory_mb": sorted(memory.values())}


def render_bench(figures: Mapping[str, Any]) -> str:
    text = [
        f"{line['device']:28} {line['precision']:6} {line['models']:3} models {line['families']:2}"
        f" families  median {line['median_error']:6.1%}  80 % {line['held_80']:6.1%}  order"
        f" {line['order']:.1%}  {line['base_ms']:.3f} + {line['factor']:.3f} x"
        f" + {line['hmx_factor']:.3f} x HMX  {line['worst']}"
        for line in figures["lines"]
    ]
    for device in SHOWN:
        for _, precision, model, ms, measured, inside in (
            row for row in figures["held_out"] if row[0] == device
        ):
            word = "inside" if inside else "OUTSIDE"
            text.append(
                f"held out: {device} {precision} {model}: {ms:.3f} ms predicted, {measured:.3f}"
                f" measured ({ms / measured - 1:+.0%}), {word}"
            )
    held_out = figures["held_out"]
    text.append(
        f"held out: {sum(row[-1] for row in held_out)} of {len(held_out)} inside of the interval"
    )
    for precision, (right, total) in figures["pairs"].items():
        text.append(f"order: {precision}: {right} of {total} pairs")
    text.append(f"nodes on the CPU: {figures['on_cpu']}")
    text.append(f"peak memory against context, logarithms: r = {figures['memory_r']:.2f}")
    return "\n".join(text) + "\n"
