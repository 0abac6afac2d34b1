"""Parts of an ONNX model compute what they compute in the whole model, and a search among them
names a node that is spoiled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime_qnn", reason="ONNX Runtime's QNN provider is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from ci.audit.localise_onnx import OnnxGraphs, hold_file  # noqa: E402
from ci.audit.localise_search import Cut, Departure, Laboratory, Located, Search, Trial  # noqa: E402
from ci.cases.spec import CaseSpec  # noqa: E402
from ci.judging.figures import measure_pooled  # noqa: E402
from ci.models.schemes import Scheme  # noqa: E402
from ci.models.user_models import Source  # noqa: E402
from ci.onnx.compile import run_reference  # noqa: E402

# Nodes in no order; one result of the split leads to each output; a shape is computed; an If reads
# a value of the graph around it.
NODES = [
    ("Tanh", ["moved"], ["out"], "tanh", {}),
    ("Conv", ["/x", "w"], ["c"], "first", {"pads": [1, 1, 1, 1]}),
    ("Relu", ["c"], ["r"], "relu", {}),
    ("Split", ["r", "half"], ["left", "right"], "split", {"axis": 1}),
    ("Sigmoid", ["left"], ["other"], "", {}),
    ("Shape", ["right"], ["shape"], "shape", {}),
    ("Mul", ["right", "gain"], ["product"], "mul", {}),
    ("Reshape", ["product", "shape"], ["moved"], "reshape", {}),
]


def write_model(path: Path, *, branches: bool = False) -> Path:
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((8, 4, 3, 3)).astype(np.float32) / 6,
        "half": np.array([4, 4]),
        "gain": random.standard_normal((4, 1, 1)).astype(np.float32),
    }
    nodes = [helper.make_node(*each, name=name, **attributes) for *each, name, attributes in NODES]
    if branches:
        constants["is_true"] = np.array(True)
        bodies = {
            key: helper.make_graph(
                [helper.make_node(kind, ["moved"], [f"{key}_out"])],
                key,
                [],
                [helper.make_tensor_value_info(f"{key}_out", TensorProto.FLOAT, [1, 4, 6, 6])],
            )
            for key, kind in (("then_branch", "Tanh"), ("else_branch", "Neg"))
        }
        nodes[0] = helper.make_node("If", ["is_true"], ["out"], name="tanh", **bodies)
    ports = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 6, 6])
        for name in ("/x", "out", "other")
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [ports["/x"]],
        [ports["other"], ports["out"]],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    np.savez(path.with_suffix(".npz"), random.standard_normal((8, 1, 4, 6, 6)).astype(np.float32))
    return path


def open_graphs(tmp_path: Path, scheme: Scheme, *, branches: bool = False) -> OnnxGraphs:
    path = write_model(tmp_path / "net.onnx", branches=branches)
    spec = CaseSpec("net.onnx", scheme, "SM8650", Source(reference=str(path)))
    return hold_file(spec, tmp_path / "work")


def run_part(graphs: OnnxGraphs, cut: Cut, directory: Path) -> list[tuple[Any, ...]]:
    source = graphs.cut(cut, directory / "part.onnx")
    return run_reference(directory / "part.onnx", source.evaluation)


@pytest.mark.parametrize("scheme", [Scheme.FP16, Scheme.U8, Scheme.U16A8W])
def test_each_operator_alone_computes_what_the_whole_model_does(
    tmp_path: Path, scheme: Scheme
) -> None:
    graphs = open_graphs(tmp_path, scheme, branches=scheme is Scheme.FP16)
    recorded = graphs.record(graphs.operators, graphs.sets)
    assert len(graphs.operators) > 6
    for name in graphs.operators:
        part_outputs = run_part(graphs, Cut((name,), (name,)), tmp_path)
        for values, (outputs,) in zip(recorded, part_outputs, strict=True):
            np.testing.assert_allclose(outputs, values[name], rtol=1e-6, atol=1e-6)
    model_outputs = run_part(graphs, Cut((*graphs.operators,), graphs.outputs), tmp_path)
    for outputs, right_outputs in zip(
        model_outputs, run_reference(graphs.model, graphs.sets), strict=True
    ):
        for output, right_output in zip(outputs, right_outputs, strict=True):
            np.testing.assert_array_equal(output, right_output)
    assert [*tmp_path.glob("recorded*")] == [], "nothing is written next to the user's file"


@pytest.mark.parametrize("scheme", [Scheme.FP16, Scheme.U8])
@pytest.mark.parametrize(("kind", "label"), [("Mul", "Mul 'mul'"), ("Sigmoid", "Sigmoid 'other'")])
def test_localise_names_a_planted_faulty_onnx_node(
    tmp_path: Path, scheme: Scheme, kind: str, label: str
) -> None:
    graphs = open_graphs(tmp_path, scheme)
    located = search(graphs, kind, tmp_path)
    assert [str(operator) for operator in (located.first, *located.part)] == [label, label]
    assert [output.wrong for output in located.outputs] == [kind == "Sigmoid", kind == "Mul"]


def test_localise_names_no_node_of_a_right_onnx_program(tmp_path: Path) -> None:
    located = search(open_graphs(tmp_path, Scheme.U8), "Softmax", tmp_path)
    assert (located.first, located.part) == (None, ())


def test_the_range_that_loses_most_is_the_first_row(tmp_path: Path) -> None:
    rows = open_graphs(tmp_path, Scheme.U8).rank_losses()
    assert {str(row.operator) for row in rows} >= {"Mul 'mul'", "input /x"}
    assert [row.added for row in rows] == sorted((row.added for row in rows), reverse=True)
    assert all(row.lost_db > 0 for row in rows)


def search(graphs: OnnxGraphs, spoiled: str, directory: Path) -> Located:
    """What a search finds on a machine that gives a tenth too much for nodes of one type."""

    def try_cut(cut: Cut) -> Trial:
        right = run_part(graphs, cut, directory)
        part = onnx.load(directory / "part.onnx")
        for node in [*part.graph.node]:
            if node.op_type == spoiled:
                name, node.output[0] = node.output[0], "spoiled"
                nodes = [helper.make_node("Mul", ["spoiled", "factor"], [name]), *part.graph.node]
                part.graph.initializer.append(
                    numpy_helper.from_array(np.array(1.1, np.float32), "factor")
                )
                del part.graph.node[:]
                part.graph.node.extend(nodes)
        onnx.save(part, directory / "spoiled.onnx")
        sets = graphs.cut(cut, directory / "part.onnx").evaluation
        program_outputs = run_reference(directory / "spoiled.onnx", sets)
        return Trial(
            tuple(
                map(
                    measure,
                    cut.outputs,
                    zip(*right, strict=True),
                    zip(*program_outputs, strict=True),
                )
            )
        )

    operators = {operator.name: operator for operator in graphs.describe()}
    return Search(operators, graphs.outputs, Laboratory(try_cut, 60)).run()


def measure(name: str, right: Sequence[Any], program_values: Sequence[Any]) -> Departure:
    reached = min(map(measure_pooled, right, program_values))
    return Departure(
        operator=name, reached_db=min(reached, 120), predicted_db=60, faithful=reached > 50
    )


def test_a_chain_of_1500_quantizers_is_traced_to_its_operator(tmp_path: Path) -> None:
    nodes, last = [helper.make_node("Relu", ["x"], ["r"])], "r"
    for number in range(1500):
        quantized, rounded = f"q{number}", f"d{number}"
        nodes.append(helper.make_node("QuantizeLinear", [last, "s", "z"], [quantized]))
        nodes.append(helper.make_node("DequantizeLinear", [quantized, "s", "z"], [rounded]))
        last = rounded
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", last)]
    constants = {"s": np.float32(0.1), "z": np.uint8(8)}
    tensors = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], tensors)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph), path)
    assert OnnxGraphs(path, path, (), tmp_path, False).outputs == ("r",)


def test_an_infinite_result_is_not_returned_by_a_program_of_all_results(tmp_path: Path) -> None:
    nodes = [helper.make_node("Div", ["x", "zero"], ["d"]), helper.make_node("Tanh", ["d"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    zero = numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [zero])
    path = tmp_path / "net.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    graphs = OnnxGraphs(path, path, [(np.ones(4, np.float32),)], tmp_path, False)
    assert [(operator.name, operator.computes) for operator in graphs.describe()] == [
        ("d", False),
        ("y", True),
    ]
