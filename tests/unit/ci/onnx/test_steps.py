"""The operators of ONNX models as steps: known faults are found in them as in torch's graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch")

import numpy as np  # noqa: E402
from msgspec import structs  # noqa: E402

from ci.facts.finding import NOWHERE  # noqa: E402
from ci.faults.graph import parse_graph, read_operators  # noqa: E402
from ci.faults.known import Fault, find_pattern, read_faults  # noqa: E402
from ci.faults.match import match_faults, name_operators  # noqa: E402
from ci.faults.onnx_graphs import write_model  # noqa: E402
from ci.models.graph_steps import Operand, Step, note_padding  # noqa: E402
from ci.onnx.steps import describe_steps  # noqa: E402

FAULTS = [
    one
    for one in read_faults()
    if any(row.frontend == "onnx" for row in one.tried)
    and all(read_operators()[name].onnx for name in parse_graph(one.graph).operators)
]


def read(text: str, path: Path) -> list[Step]:
    """The steps of a graph's ONNX model, with the names of ci.faults."""
    write_model([parse_graph(text)], [0], path)
    names = name_operators()
    steps = note_padding(describe_steps(path))
    return [
        structs.replace(step, operator=names.get(step.operator, step.operator), origin=NOWHERE)
        for step in steps
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.name)
def test_each_known_fault_is_matched_in_its_onnx_graph(fault: Fault, tmp_path: Path) -> None:
    assert find_pattern(fault.pattern, read(fault.graph, tmp_path / "graph.onnx"))
    if fault.mended:
        assert not find_pattern(fault.pattern, read(fault.mended, tmp_path / "mended.onnx"))


def save(path: Path, nodes: list[Any], **constants: Any) -> None:
    tensors = [
        onnx.numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()
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
    assert [operand.shape for operand in describe_steps(tmp_path / "m.onnx")[1].operands] == [
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
    where, softmax = describe_steps(path)
    assert where.operands[2] == Operand((), True, 1e9, least=-1e9)
    assert softmax.sources == ("b",)
    assert [one.fault for one in match_faults((where, softmax), "u8", "")] == ["mask-too-large"]
    assert match_faults((where, softmax), "fp16", "") == ()
