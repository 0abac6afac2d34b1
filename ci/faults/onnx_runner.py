"""Compiles and runs several graphs in one ONNX model, with onnxruntime and QNN's provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ci.cases.engine import QUANTIZING
from ci.faults.graph import parse_graph
from ci.faults.onnx_graphs import number_of, write_model
from ci.faults.results import LEFT, Item, Result, Runs, judge_graphs
from ci.faults.torch_graphs import draw_sets
from ci.models.rounding import find_version
from ci.models.schemes import Scheme
from ci.onnx.noise import find_grids, predict_noise
from ci.onnx.preparation import quantize_file
from ci.onnx.session import PROVIDER, RECORD_ASSIGNMENT, open_reference, open_session
from ci.onnx.stages import QNN, stage


def run_items(
    items: Sequence[Item],
    scheme: Scheme,
    options: Mapping[str, str],
) -> list[Result]:
    """Compile the graphs of ``items`` as one model, run it, and return a result per graph. Raises
    StageError or onnxruntime's errors, which any of the graphs may have caused."""
    graphs = [parse_graph(one.text) for one in items]
    drawn = [draw_sets(graph, one.seed) for graph, one in zip(graphs, items, strict=True)]
    sets = [tuple(array for part in one for array in part) for one in zip(*drawn, strict=True)]
    with TemporaryDirectory(prefix="graphs") as directory:
        path, other = (Path(directory, name) for name in ("graphs.onnx", "other.onnx"))
        write_model(graphs, [one.seed for one in items], path)
        names = [f"g{number}_{name}" for number, one in enumerate(graphs) for name in one.inputs]
        if scheme.quantized:
            quantized = Path(directory, "quantized.onnx")
            quantize_file(path, quantized, scheme, sets)
            path = quantized
        reference = open_reference(path)
        feeds = [dict(zip(names, one, strict=True)) for one in sets]
        kept = [one.name for one in reference.get_inputs()]
        feeds = [{name: one[name] for name in kept} for one in feeds]
        ordered = [tuple(one[name] for name in kept) for one in feeds]
        right = [tuple(reference.run(None, one)) for one in feeds]
        qnn = find_version(Path(options.get("backend_path", "")))
        noise = predict_noise(path, other, ordered, right, qnn)
        grids = find_grids(path)
        with stage(QNN):
            session = open_session(path, options, RECORD_ASSIGNMENT)
            left = list_left(session, len(items))
            made = [session.run(None, one) for one in feeds]
    counts = [len(graph.outputs) for graph in graphs]
    runs = Runs(right, made, noise, [one[0] for one in grids])
    return judge_graphs(items, counts, runs, left, scheme)


def list_left(session: Any, graphs: int) -> dict[int, str]:
    """Return messages about operators that stay on the CPU, at most one per graph. The keys are the
    graphs' numbers. Raises ValueError if onnxruntime renamed such a node and the model has several
    ``graphs``: they have to be compiled separately."""
    left: dict[int, str] = {}
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            if part.ep_name != PROVIDER and node.op_type not in QUANTIZING:
                left[number_of(node.name) if graphs > 1 else 0] = node.op_type + LEFT
    return left
