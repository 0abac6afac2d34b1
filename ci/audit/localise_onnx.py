"""Opens .onnx files for localise, and writes their parts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import onnx

from ci.audit.localise_graph import Division, find_alike
from ci.audit.localise_search import MOST_SETS, Cut
from ci.cases.spec import CaseSpec
from ci.graphs.onnx_file import list_candidates, name_result
from ci.graphs.onnx_part import change_scales, cut_model
from ci.graphs.onnx_program import OnnxProgram
from ci.models.file_samples import Arrays
from ci.models.schemes import Scheme
from ci.onnx.compile import load_source, write_float
from ci.onnx.models import list_required_inputs
from ci.onnx.preparation import quantize_file
from ci.onnx.source import Source

FLOAT, MEASURED = "float.onnx", "measured.onnx"


@cache
def divide_file(spec: CaseSpec, work: Path) -> Division:
    """Return the division of a case's model, with at most MOST_SETS of its samples. It is made once
    per process, and its files are written to ``work``."""
    work.mkdir(parents=True, exist_ok=True)
    source = load_source(spec)
    plain = write_float(source, work / FLOAT, spec.source.shapes)
    stride = -(-len(source.evaluation) // MOST_SETS)
    sets = source.evaluation[::stride]
    if not spec.scheme.quantized or spec.scheme is Scheme.ASIS:
        return make_division(plain, plain, sets, work)
    model, choices = work / "quantized.onnx", spec.source.choices
    quantize_file(plain, model, spec.scheme.base, source.calibration, choices)
    return make_division(model, plain, sets, work)


def make_division(model: Path, plain: Path, sets: tuple[Arrays, ...], work: Path) -> Division:
    """Return the division of the file ``model``. ``plain`` is the float model from which it was
    quantized, or the same file."""
    proto, float_proto = onnx.load(model), onnx.load(plain)
    is_quantized = model != plain
    # The types stay, because parts have those of the file.
    program = OnnxProgram(
        proto, work / "recorded.onnx", float_proto if is_quantized else None, widens=False
    )
    modules, names = {}, {}
    for candidate, node in zip(list_candidates(proto), list_nodes(proto), strict=True):
        for name in node.output:
            modules[name] = next(reversed(candidate.module), "")
            names[name] = node.name or name
    # The quantizer names nodes that have no name, and replaces some. The user knows those of the
    # float model.
    float_nodes = {name: node for node in float_proto.graph.node for name in node.output}
    operators = {name: node.op_type for node in proto.graph.node for name in node.output}
    for name in names:
        float_node = float_nodes.get(name_result(name))
        if float_node is not None and float_node.op_type == operators[name]:
            names[name] = float_node.name or name_result(float_node.output[0])
    inputs = [port.name for port in list_required_inputs(proto)]
    if not is_quantized:
        return Division(program, inputs, sets, modules=modules, names=names)
    float32 = OnnxProgram(float_proto, work / "float_recorded.onnx", widens=False)
    (graph,), (float_graph,) = program.graphs.values(), float32.graphs.values()
    alike = find_alike(graph, float_graph, name_result)
    return Division(program, inputs, sets, float32, alike, modules, names)


def list_nodes(model: onnx.ModelProto) -> list[Any]:
    """Return the nodes that list_candidates describes."""
    return [node for node in model.graph.node if node.op_type != "Constant"]


def write_file(division: Division, cut: Cut, target: Path) -> Source:
    """Write a part of a model to ``target``, and return it with its inputs."""
    part, sets = division.cut(cut)
    program: Any = division.program
    model = program.model
    if cut.mended:
        model = onnx.ModelProto()
        model.CopyFrom(program.model)
        change_scales(model, part.scales, part.biases)
    inputs = dict(zip(part.inputs, sets[0], strict=True))
    onnx.save(cut_model(model, inputs, part.outputs, division.graph.constants), target)
    return Source(target, f"{cut}", tuple(sets), ())
