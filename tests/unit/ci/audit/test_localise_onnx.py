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

from ci.audit.localise_graph import Division  # noqa: E402
from ci.audit.localise_onnx import divide_file, make_division, write_file  # noqa: E402
from ci.audit.localise_search import (  # noqa: E402
    Cut,
    Departure,
    Laboratory,
    Located,
    Mend,
    Search,
    Trial,
)
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


def open_graphs(tmp_path: Path, scheme: Scheme, *, branches: bool = False) -> Division:
    path = write_model(tmp_path / "net.onnx", branches=branches)
    spec = CaseSpec("net.onnx", scheme, "SM8650", Source(reference=str(path)))
    return divide_file(spec, tmp_path / "work")


def save_whole(graphs: Division, directory: Path) -> Path:
    program: Any = graphs.program
    onnx.save(program.model, directory / "whole.onnx")
    return directory / "whole.onnx"


def run_part(graphs: Division, cut: Cut, directory: Path) -> list[tuple[Any, ...]]:
    source = write_file(graphs, cut, directory / "part.onnx")
    return run_reference(directory / "part.onnx", source.evaluation)


@pytest.mark.parametrize("scheme", [Scheme.FP16, Scheme.U8, Scheme.U16A8W])
def test_each_operator_alone_computes_what_the_whole_model_does(
    tmp_path: Path, scheme: Scheme
) -> None:
    graphs = open_graphs(tmp_path, scheme, branches=scheme is Scheme.FP16)
    values = {name: graphs.results[name] for name in graphs.operators}
    recorded = [
        {name: row[value] for name, value in values.items()}
        for row in graphs.record(values.values())
    ]
    assert len(graphs.operators) > 6
    for name in graphs.operators:
        part_outputs = run_part(graphs, Cut((name,), (name,)), tmp_path)
        for values, (outputs,) in zip(recorded, part_outputs, strict=True):
            np.testing.assert_allclose(outputs, values[name], rtol=1e-6, atol=1e-6)
    model_outputs = run_part(graphs, Cut((*graphs.operators,), graphs.outputs), tmp_path)
    for outputs, right_outputs in zip(
        model_outputs, run_reference(save_whole(graphs, tmp_path), graphs.sets), strict=True
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


def search(graphs: Division, spoiled: str, directory: Path) -> Located:
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
        sets = write_file(graphs, cut, directory / "part.onnx").evaluation
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
    assert make_division(path, path, (), tmp_path).outputs == ("r",)


def test_an_infinite_result_is_not_returned_by_a_program_of_all_results(tmp_path: Path) -> None:
    nodes = [helper.make_node("Div", ["x", "zero"], ["d"]), helper.make_node("Tanh", ["d"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    zero = numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [zero])
    path = tmp_path / "net.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    graphs = make_division(path, path, ((np.ones(4, np.float32),),), tmp_path)
    assert [(operator.name, operator.computes) for operator in graphs.describe()] == [
        ("d", False),
        ("y", True),
    ]


def write_quantized(path: Path, nodes: Sequence[Any], shape: Sequence[int], **values: Any) -> Path:
    """Write a quantized model with the input x and the output y, of this shape."""
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    ends = [helper.make_empty_tensor_value_info("y")]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "net", ports, ends, tensors)
    opset = helper.make_opsetid("", 21)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


def round_value(name: str, result: str, scale: str) -> list[Any]:
    """A quantizer and a dequantizer."""
    return [
        helper.make_node("QuantizeLinear", [name, scale, "middle"], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", scale, "middle"], [result]),
    ]


def test_a_range_of_an_onnx_file_that_clips_is_found_and_widened(tmp_path: Path) -> None:
    nodes = [
        *round_value("x", "x_r", "fine"),
        helper.make_node("Mul", ["x_r", "two"], ["m"], "twice"),
        *round_value("m", "m_r", "fine"),
        helper.make_node("Tanh", ["m_r"], ["t"], "last"),
        *round_value("t", "y", "fine"),
    ]
    values = {"fine": np.float32(1e-4), "middle": np.uint16(32768), "two": np.float32(2)}
    path = write_quantized(tmp_path / "net.onnx", nodes, [1, 16], **values)
    sets = tuple((np.linspace(-1, most, 16, dtype=np.float32)[None],) for most in (0.5, 2.0))
    graphs = make_division(path, path, sets, tmp_path)
    by_name = {operator.name: operator for operator in graphs.describe()}
    assert by_name["m"].range == pytest.approx((-3.2768, 3.2767))
    assert by_name["m"].clipped == pytest.approx(4 / 3.2767 - 1, abs=1e-3)
    assert by_name["t"].clipped == 0.0
    for mended, most in (((), 3.2767), ((Mend.RANGES,), 4.0)):
        outputs = run_part(graphs, Cut(("m",), ("m",), mended), tmp_path)
        assert outputs[-1][0].max() == pytest.approx(most, abs=1e-3)


def test_a_bias_of_an_onnx_file_with_a_wrong_scale_is_found_and_corrected(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    nodes = [
        *round_value("x", "x_r", "fine"),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_r"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "b_scale", "b_zero"], ["b_r"], axis=0),
        helper.make_node("Conv", ["x_r", "w_r", "b_r"], ["c"], "layer"),
        *round_value("c", "y", "coarse"),
    ]
    values = {
        "fine": np.float32(4e-4),
        "coarse": np.float32(1e-3),
        "middle": np.uint16(32768),
        "w": random.integers(-127, 128, (4, 8, 1)).astype(np.int8),
        "w_scale": np.full(4, 0.01, np.float32),
        "w_zero": np.zeros(4, np.int8),
        "b": random.integers(-900000, 900000, 4).astype(np.int32),
        "b_scale": np.full(4, 1e-6, np.float32),
        "b_zero": np.zeros(4, np.int32),
    }
    path = write_quantized(tmp_path / "net.onnx", nodes, [1, 8, 2], **values)
    sets = ((random.standard_normal((1, 8, 2)).astype(np.float32),),)
    graphs = make_division(path, path, sets, tmp_path)
    outputs = []
    for mended, off in (((), 0.75), ((Mend.BIASES,), 0.0)):
        outputs.append(run_part(graphs, Cut(("c",), ("c",), mended), tmp_path)[0][0])
        part = make_division(tmp_path / "part.onnx", tmp_path / "part.onnx", sets, tmp_path)
        assert part.find_bias_off("c") == pytest.approx(off, abs=1e-6)
    np.testing.assert_allclose(*outputs, atol=2e-3)
