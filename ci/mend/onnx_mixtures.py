"""How mend measures mixtures of an .onnx file: by the quantized file, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from ci.graphs.onnx_file import list_candidates
from ci.graphs.onnx_reader import computes_node, parse_model
from ci.mend.mixture_search import MOST_SETS, Selector, Unit, count_products, measure_sqnr
from ci.models.lowering_options import Choices
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx.compile import run_reference
from ci.onnx.models import external_files, read_model
from ci.onnx.precision import find_added, find_results, list_floats
from ci.onnx.preparation import prepare_file, quantize_file, write_normal_form
from ci.onnx.source import Arrays, from_file


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
        self.units: Sequence[Unit] = list_units(source, prepare_file(plain))
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


def list_units(source: onnx.ModelProto, prepared: onnx.ModelProto) -> list[Unit]:
    """Return the units of the file ``source``, which onnxruntime's preprocessing turned into
    ``prepared``: its nodes that compute, each with those that only move its result. Nodes of
    integers have no precision, and those that a part cannot select are left out."""
    selectable = {result for _, result in find_results(source, prepared).values()}
    selectable.intersection_update(list_floats(prepared))
    modules: dict[str, str] = {}
    for candidate in list_candidates(source):
        modules |= dict.fromkeys(candidate.tensor, next(reversed(candidate.module), ""))
    copied = onnx.ModelProto()
    copied.CopyFrom(prepared)  # the reader infers shapes
    costs = count_products(parse_model(copied, Path(), joins=False))
    for name, result in find_added(source, prepared).items():
        costs[result] = costs.get(result, 0.0) + costs.get(name, 0.0)
    owners: dict[str, str] = {}  # the first result of each result's unit
    names_of_unit: dict[str, list[str]] = {}
    for node in prepared.graph.node:
        name = node.output[0]
        if name not in selectable:
            continue
        owner = name if computes_node(node) else owners.get(node.input[0], name)
        owners |= dict.fromkeys(node.output, owner)
        names_of_unit.setdefault(owner, []).append(name)
    return [
        Unit(tuple(names), costs[owner], modules[owner]) for owner, names in names_of_unit.items()
    ]
