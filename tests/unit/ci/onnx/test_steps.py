"""The operators of ONNX models as steps: known faults are found in them as in torch's graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch")

import numpy as np  # noqa: E402

from ci.analysis.steps import Operand, Step, describe_steps, list_unread, measure_step  # noqa: E402
from ci.faults.graph import parse_graph, read_operators  # noqa: E402
from ci.faults.known import Fault, find_pattern, read_faults, rename_steps  # noqa: E402
from ci.faults.match import match_faults  # noqa: E402
from ci.faults.onnx_graphs import write_model  # noqa: E402
from ci.graphs.onnx_reader import read_file  # noqa: E402


def has_onnx_graph(fault: Fault) -> bool:
    front_ends = fault.pattern.front_ends
    if not fault.graph or (front_ends and "onnx" not in front_ends):
        return False
    return all(read_operators()[name].onnx for name in parse_graph(fault.graph).operators)


FAULTS = [fault for fault in read_faults() if has_onnx_graph(fault)]


def read(text: str, path: Path) -> list[Step]:
    """The steps of a graph's ONNX model, with the names of ci.faults."""
    write_model([parse_graph(text)], [0], path)
    return rename_steps(describe_steps(read_file(path)))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_known_fault_is_matched_in_its_onnx_graph(fault: Fault, tmp_path: Path) -> None:
    assert find_pattern(fault.pattern, read(fault.graph, tmp_path / "graph.onnx"))
    if fault.mended:
        assert not find_pattern(fault.pattern, read(fault.mended, tmp_path / "mended.onnx"))


def save(path: Path, nodes: list[Any], **constants: Any) -> None:
    tensors = [
        onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    ports = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4, 4])]
        for name in ("x", "y")
    ]
    graph = onnx.helper.make_graph(nodes, "g", *ports, tensors)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)


def test_an_onnx_shape_with_an_unknown_size_is_empty(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    nodes = [make("Compress", ["x", "keep"], ["a"], axis=1), make("Add", ["a", "one"], ["y"])]
    save(tmp_path / "m.onnx", nodes, keep=np.array([True] * 4), one=np.ones((4, 4), np.float32))
    assert [
        operand.shape for operand in describe_steps(read_file(tmp_path / "m.onnx"))[1].operands
    ] == [
        (),
        (4, 4),
    ]


def test_a_large_mask_is_matched_through_identity_and_cast_nodes(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    nodes = [
        make("Identity", ["x"], ["a"]),
        make("Where", ["keep", "a", "fill"], ["b"]),
        make("Cast", ["b"], ["c"], to=1),
        make("Softmax", ["c"], ["y"]),
    ]
    path = tmp_path / "mask.onnx"
    save(path, nodes, keep=np.eye(4, dtype=bool)[None], fill=np.float32(-1e9))
    where, softmax = describe_steps(read_file(path))
    assert where.operands[2] == Operand((), True, 1e9, smallest=-1e9)
    assert softmax.sources == ("b",)
    faults = [fault.fault for fault in match_faults((where, softmax), "u8", "")]
    assert faults == ["mask-too-large", "where-far-below"]
    assert match_faults((where, softmax), "fp16", "") == ()


def test_elements_that_are_scattered_are_a_fault_of_quantized_models(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    places = np.full((1, 4, 1), 2, np.int64)
    path = tmp_path / "scatter.onnx"
    for operator, indices, is_faulty in (
        ("ScatterElements", "places", True),
        ("ScatterElements", "best", True),
        ("ScatterND", "places", False),
    ):
        nodes = [
            make("Relu", ["x"], ["a"]),
            make("ReduceMax", ["a"], ["b"], axes=[2]),
            make("ArgMax", ["a"], ["best"], axis=2),
            make(operator, ["a", indices, "b"], ["y"]),
        ]
        save(path, nodes, places=places)
        steps = describe_steps(read_file(path))
        for scheme, is_known in (("u8", is_faulty), ("u16a8w", is_faulty), ("fp16", False)):
            faults = [fault.fault for fault in match_faults(steps, scheme, "2.49.40")]
            assert faults == ["scatter-elements-quantized"] * is_known


def test_a_norm_that_onnxruntime_joins_is_a_fault_in_8_bits(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    nodes = [
        make("ReduceL2", ["x"], ["a"], axes=[2]),
        make("Clip", ["a", "least"], ["b"]),
        make("Expand", ["b", "shape"], ["c"]),
        make("Div", ["x", "c"], ["y"]),
    ]
    path = tmp_path / "norm.onnx"
    save(path, nodes, least=np.float32(1e-12), shape=np.array([1, 4, 4]))
    steps = describe_steps(read_file(path))
    for scheme, names in (("u8", ["lp-norm-low-in-8-bits"]), ("u16a8w", []), ("fp16", [])):
        assert [fault.fault for fault in match_faults(steps, scheme, "2.49.40")] == names


def test_a_relu_behind_a_product_and_a_bias_is_a_fault_in_8_bits(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    path = tmp_path / "relu.onnx"
    for activation, is_known in (("Relu", True), ("Tanh", False)):
        nodes = [
            make("MatMul", ["x", "w"], ["a"]),
            make("Add", ["a", "b"], ["c"]),
            make(activation, ["c"], ["y"]),
        ]
        save(path, nodes, w=np.ones((4, 4), np.float32), b=np.ones(4, np.float32))
        steps = describe_steps(read_file(path))
        for scheme, names in (("u8", ["relu-of-biased-product"]), ("u16a8w", []), ("fp16", [])):
            faults = [fault.fault for fault in match_faults(steps, scheme, "2.49.40")]
            assert faults == names * is_known


@pytest.mark.parametrize(
    ("integers", "has_fault"), [(np.uint8, True), (np.int8, True), (np.uint16, False)]
)
def test_a_file_that_contains_its_quantization_has_the_faults_of_its_integers(
    integers: Any, has_fault: bool, tmp_path: Path
) -> None:
    make, nodes = onnx.helper.make_node, list[Any]()

    def rounded(name: str) -> str:
        reads = ("scale", "zero")
        nodes.append(make("QuantizeLinear", [name, *reads], [f"{name}_q"]))
        nodes.append(make("DequantizeLinear", [f"{name}_q", *reads], [f"{name}_r"]))
        return f"{name}_r"

    nodes.append(make("Mul", [rounded("x"), "half"], ["product"]))
    nodes.append(make("Relu", [rounded("product")], ["activated"]))
    nodes.append(make("Add", [rounded("activated"), "shift"], ["sum"]))
    nodes.append(make("Identity", [rounded("sum")], ["y"]))
    constants = {"half": np.float32(0.5), "shift": np.float32(0.3), "scale": np.float32(0.01)}
    save(tmp_path / "g.onnx", nodes, **constants, zero=integers(0))
    steps = describe_steps(read_file(tmp_path / "g.onnx"))
    matches = match_faults(steps, "asis", "2.49.40", compiled=True)
    names = ["relu-between-product-and-sum-in-onnx"] if has_fault else []
    assert [match.fault for match in matches] == names


@pytest.mark.parametrize(
    ("shapes", "is_known"),
    [
        (((1, 2, 16, 1), (1, 2, 1, 16)), True),
        (((1, 2, 1, 16), (1, 2, 16, 1)), True),
        (((1, 2, 16, 16), (1, 2, 1, 16)), False),
        (((1, 2, 16, 1), (1, 2, 16, 16)), False),
        (((2, 16, 1), (2, 1, 16)), False),  # not measured
    ],
)
def test_a_product_of_a_column_and_a_row_is_known(
    shapes: tuple[tuple[int, ...], ...], is_known: bool
) -> None:
    operands = tuple(Operand(shape) for shape in shapes)
    result = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    step = Step("y", "mul", operands, ("", ""), result, measure_step(operands, {}))
    for scheme, names in (
        ("u8", ["column-times-row"]),
        ("16a8w", ["column-times-row"]),
        ("fp16", []),
    ):
        faults = [fault.fault for fault in match_faults((step,), scheme, "2.49.40")]
        assert faults == names * is_known


def save_graph(
    path: Path, nodes: list[Any], kind: int = onnx.TensorProto.FLOAT, shape: Any = (1, 16, 4, 32)
) -> Path:
    """Write a model whose first input is x and whose output is y. The constants have the names that
    the nodes of these tests read."""
    constants = {
        "two": np.float32(2),
        "half": np.float32(0.5),
        "one": np.float32(1),
        "tiny": np.float32(1e-6),
        "blocked": np.float32(-1e4),
        "last": np.array([-1]),
        "weight": np.linspace(0.5, 1.5, shape[-1], dtype=np.float32),
        "sizes": np.array([1, 16, 6, 48]),
        "yes": np.array(True),
    }
    tensors = [
        onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    inputs = [onnx.helper.make_tensor_value_info("x", kind, shape)]
    inputs.append(onnx.helper.make_tensor_value_info("keep", onnx.TensorProto.FLOAT, shape[-1:]))
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


make = onnx.helper.make_node
MEAN = [
    make("Pow", ["x", "two"], ["p"]),
    make("ReduceMean", ["p", "last"], ["m"]),
    make("Add", ["m", "tiny"], ["a"]),
    make("Sqrt", ["a"], ["q"]),
]
BY_RECIPROCAL = [
    *MEAN,
    make("Reciprocal", ["q"], ["r"]),
    make("Mul", ["x", "r"], ["z"]),
    make("Mul", ["z", "weight"], ["y"]),
]
BY_DIVISION = [*MEAN, make("Div", ["x", "q"], ["z"]), make("Mul", ["z", "weight"], ["y"])]
MASK = [
    make("Sub", ["one", "keep"], ["i"]),
    make("Mul", ["i", "blocked"], ["b"]),
    make("Unsqueeze", ["b", "last"], ["u"]),
    make("Transpose", ["u"], ["t"], perm=[1, 0]),
    make("Add", ["x", "t"], ["s"]),
    make("Softmax", ["s"], ["y"]),
]
RESIZE = make("Resize", ["x", "", "", "sizes"], ["y"], coordinate_transformation_mode="asymmetric")


@pytest.mark.parametrize(
    ("nodes", "scheme", "names"),
    [
        (BY_RECIPROCAL, "fp16", ["rms-norm-by-reciprocal"]),
        (BY_RECIPROCAL, "u8", []),
        (BY_DIVISION, "fp16", []),
        ([make("Mul", ["x", "x"], ["p"]), *BY_RECIPROCAL[1:]], "fp16", []),
        (MASK, "u8", ["mask-too-large"]),
        (MASK, "fp16", []),
        ([RESIZE], "fp16", []),  # through ExecuTorch alone, it reads other pixels
        ([make("PRelu", ["x", "weight"], ["y"])], "fp16", []),
        (BY_RECIPROCAL[::-1], "fp16", ["rms-norm-by-reciprocal"]),  # in any order
    ],
)
def test_a_known_fault_is_named_however_onnx_writes_its_operators(
    tmp_path: Path, nodes: list[Any], scheme: str, names: list[str]
) -> None:
    steps = describe_steps(read_file(save_graph(tmp_path / "m.onnx", nodes)))
    assert [match.fault for match in match_faults(steps, scheme, "2.49.40")] == names


@pytest.mark.parametrize(
    ("kind", "names"),
    [(onnx.TensorProto.UINT8, ["cast-of-bytes"]), (onnx.TensorProto.INT32, [])],
)
def test_a_cast_of_bytes_is_a_known_fault_in_a_file_too(
    tmp_path: Path, kind: int, names: list[str]
) -> None:
    nodes = [make("Cast", ["x"], ["c"], to=1), make("Mul", ["c", "half"], ["y"])]
    steps = describe_steps(read_file(save_graph(tmp_path / "m.onnx", nodes, kind)))
    assert [match.fault for match in match_faults(steps, "fp16", "2.49.40")] == names


def test_calls_that_are_one_operator_are_joined_and_kept_if_they_are_read(tmp_path: Path) -> None:
    silu = [make("Sigmoid", ["x"], ["s"]), make("Mul", ["s", "x"], ["z"])]
    for last, operators in (
        (make("Relu", ["z"], ["y"]), ["silu", "relu"]),
        (make("Add", ["z", "s"], ["y"]), ["sigmoid", "silu", "add"]),
    ):
        graph = read_file(save_graph(tmp_path / "m.onnx", [*silu, last]))
        assert [step.operator for step in describe_steps(graph)] == operators
        (joined,) = (node for node in graph.nodes if node.operator == "silu")
        assert joined.compute
        (result,) = joined.compute([np.ones(3, np.float32)])
        assert result == pytest.approx(0.731, abs=1e-3)


def test_graphs_inside_of_nodes_are_listed_as_unread_and_a_cycle_is_refused(tmp_path: Path) -> None:
    """Graphs inside of nodes are not searched, and nodes in a cycle have no order."""
    bodies = {
        name: onnx.helper.make_graph(
            [make(kind, ["x"], ["b"])],
            name,
            [],
            [onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, None)],
        )
        for name, kind in (("then_branch", "Relu"), ("else_branch", "Sigmoid"))
    }
    nodes = [make("If", ["yes"], ["z"], name="choice", **bodies), make("Neg", ["z"], ["y"])]
    graph = read_file(save_graph(tmp_path / "m.onnx", nodes))
    assert [step.operator for step in describe_steps(graph)] == ["if", "neg"]
    (text,) = list_unread(graph)
    assert "If 'choice'" in text
    cycle = [make("Add", ["x", "y"], ["z"]), make("Neg", ["z"], ["y"])]
    with pytest.raises(ValueError, match="reads its own result"):
        read_file(save_graph(tmp_path / "m.onnx", cycle))
