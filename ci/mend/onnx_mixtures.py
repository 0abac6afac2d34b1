"""How mend measures mixtures of a model that ONNX Runtime quantizes, an .onnx file or a PyTorch
model: by the quantized file, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ci.graphs.onnx_file import list_candidates
from ci.graphs.onnx_reader import parse_model
from ci.mend.mixture_search import (
    MOST_SETS,
    Selectable,
    Selector,
    Unit,
    count_products,
    list_units,
    measure_sqnr,
)
from ci.models.file_samples import Arrays
from ci.models.lowering_options import Choices
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx.compile import measure_file, run_reference, write_float
from ci.onnx.models import external_files, read_model
from ci.onnx.precision import find_added, find_results, list_floats
from ci.onnx.preparation import prepare_file, quantize_file, write_normal_form
from ci.onnx.source import from_file, from_torch

if TYPE_CHECKING:
    from ci.analysis.steps import Step
    from ci.models.model import Model

MEASURED = "measured.onnx"


class MixableFile:
    """A float32 file whose parts ONNX Runtime quantizes in different schemes, see
    ci.mend.mixture_search.Mixable. Files are written to ``scratch``."""

    selector: Selector = "tensor"  # the preprocessing renames nodes

    def __init__(
        self, plain: Path, scheme: Scheme, calibration: Sequence[Arrays], scratch: Path
    ) -> None:
        self.plain, self.scheme, self.calibration = plain, scheme, calibration
        self.quantized = scratch / "quantized.onnx"
        source = onnx.load(plain, load_external_data=False)
        self.units: Sequence[Unit] = list_units_of_file(source, prepare_file(plain))
        self.exact_outputs = run_reference(plain, calibration[:MOST_SETS])

    def measure(self, choices: Choices) -> float:
        """Return the lowest SQNR of an output of the quantized file in dB."""
        quantize_file(self.plain, self.quantized, self.scheme, self.calibration, choices)
        return measure_sqnr(
            self.exact_outputs, run_reference(self.quantized, self.calibration[:MOST_SETS])
        )


def open_file(
    path: Path, source: Source, rewritten: Path, scheme: Scheme, scratch: Path
) -> MixableFile:
    """Return the file ``rewritten``, with the samples of the original one at ``path``. Both may be
    the same."""
    shapes = source.shapes
    model = read_model(path, shapes)
    calibration = from_file(path, model, external_files(model, path), source).calibration
    plain = write_normal_form(rewritten, scratch / "float.onnx", shapes)
    return MixableFile(plain, scheme, calibration, scratch)


def measure_steps_of_file(
    path: Path, source: Source, rewritten: Path, scratch: Path
) -> tuple[Step, ...]:
    """Return the steps of the file ``rewritten``, whose numbers are those of the samples on which
    the original one at ``path`` is judged, as a verdict has them."""
    model = read_model(path, source.shapes)
    samples = from_file(path, model, external_files(model, path), source).evaluation
    return measure_file(rewritten, scratch / MEASURED, samples)


def measure_steps_of_model(model: Model, scratch: Path) -> tuple[Step, ...]:
    """Return the steps of a PyTorch model as the engine exports it, see measure_steps_of_file."""
    path = export_model(model, scratch)
    return measure_file(path, scratch / MEASURED, from_torch(model, "").evaluation)


def export_model(model: Model, scratch: Path) -> Path:
    """Return the file of a PyTorch model, as the engine exports it, in ``scratch``."""
    return write_float(from_torch(model, ""), scratch / "float.onnx")


def open_model(model: Model, scheme: Scheme, scratch: Path) -> MixableFile:
    """Return a PyTorch model as ONNX Runtime quantizes it."""
    calibration = from_torch(model, "").calibration
    return MixableFile(export_model(model, scratch), scheme, calibration, scratch)


def list_units_of_file(source: onnx.ModelProto, prepared: onnx.ModelProto) -> list[Unit]:
    """Return the units of the file ``source``, which onnxruntime's preprocessing turned into
    ``prepared``. Nodes of integers have no precision, and those that a part cannot select are left
    out."""
    results = {result for _, result in find_results(source, prepared).values()}
    modules: dict[str, str] = {}
    for candidate in list_candidates(source):
        modules |= dict.fromkeys(candidate.tensor, next(reversed(candidate.module), ""))
    selectable = {
        name: Selectable((name,), modules[name])
        for name in results.intersection(list_floats(prepared))
    }
    copied = onnx.ModelProto()
    copied.CopyFrom(prepared)  # the reader infers shapes
    graph = parse_model(copied, Path(), joins=False)
    costs = count_products(graph)
    for name, result in find_added(source, prepared).items():
        costs[result] = costs.get(result, 0.0) + costs.get(name, 0.0)
    return list_units(graph, selectable, costs)
