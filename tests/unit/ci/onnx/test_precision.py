"""Mixtures of ONNX models, and the types of a compiled model's tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from onnx import NodeProto, TensorProto, load
from onnx.helper import make_node

from ci.analysis import effects
from ci.analysis.effects import choose_rounded
from ci.analysis.noise import predict_noise
from ci.graphs.onnx_file import list_candidates
from ci.graphs.onnx_program import read_onnx
from ci.models.lowering_options import Choices, Part
from ci.models.schemes import Scheme
from ci.models.tensors import count_types, find_retyped
from ci.onnx.compile import run_reference
from ci.onnx.fallback import StageError
from ci.onnx.precision import find_asked, list_tensors, name_types
from ci.onnx.preparation import quantize_file
from tests.qnn_provider.models import build_model, constant, tensor, write_model

SETS = [(np.linspace(-size, size, 12, dtype=np.float32).reshape(3, 4),) for size in (1, 3)]
MATRIX = np.random.default_rng(0).standard_normal((4, 4))


def write_net(path: Path) -> Path:
    """A layer of two nodes, which are merged, and a softmax; a folded node."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"], "product"),
        make_node("Add", ["a", "b"], ["c"], "sum"),
        make_node("Sigmoid", ["c"], ["d"], "gate"),
        make_node("Mul", ["b", "b"], ["k"], "folded"),
        make_node("Add", ["d", "k"], ["e"]),
        make_node("Softmax", ["e"], ["y"], "end"),
    ]
    weights = [constant("w", MATRIX), constant("b", MATRIX[0])]
    return write_model(path, nodes, [tensor("x", (3, 4))], [tensor("y", (3, 4))], weights)


@pytest.mark.parametrize(
    ("base", "part", "types"),
    [
        (Scheme.U8, Part(Scheme.U16A8W, op="softmax"), "8 8 8 16"),
        (Scheme.U8, Part(Scheme.U16A8W, node="product"), "16 8 8 8"),
        (Scheme.U8, Part(Scheme.U16A8W, tensor="w"), "16 8 8 8"),
        (Scheme.U8, Part(Scheme.U16A8W, node="e"), "8 8 16 8"),
        (Scheme.U16A8W, Part(Scheme.U8, op="Sigmoid"), "16 8 16 16"),
    ],
)
def test_the_nodes_of_a_part_have_its_types(
    tmp_path: Path, base: Scheme, part: Part, types: str
) -> None:
    target = tmp_path / "quantized.onnx"
    quantize_file(write_net(tmp_path / "net.onnx"), target, base, SETS, Choices(parts=(part,)))
    types_by_node = {
        name: kind for name, kind in name_types(target).items() if "Linear" not in name
    }
    assert [*types_by_node.values()] == [f"uint{bits}" for bits in types.split()]


def test_a_result_that_the_preprocessing_adds_has_the_part_of_its_node(tmp_path: Path) -> None:
    """A product of three axes and a sum become a Gemm between two Reshapes."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"], "product"),
        make_node("Add", ["a", "b"], ["c"], "sum"),
        make_node("Sigmoid", ["c"], ["y"], "gate"),
    ]
    weights = [constant("w", MATRIX), constant("b", MATRIX[0])]
    ends = [tensor("x", (2, 3, 4))], [tensor("y", (2, 3, 4))]
    source, target = write_model(tmp_path / "net.onnx", nodes, *ends, weights), tmp_path / "q.onnx"
    sets = [(np.stack([*SETS[0], *SETS[1]]),)]
    choices = Choices(parts=(Part(Scheme.U16A8W, node="product"),))
    quantize_file(source, target, Scheme.U8, sets, choices)
    operators = {node.name: node.op_type for node in load(target).graph.node}
    types = {operators[name]: kind for name, kind in name_types(target).items()}
    assert (types["Gemm"], types["Sigmoid"]) == ("uint16", "uint8")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([Part(Scheme.U16A8W, node="folded")], "is lost before the model is quantized"),
        ([Part(Scheme.U16A8W, node="gone")], "no node belongs to the part gone u16a8w"),
        (
            [Part(Scheme.U16A8W, op="add"), Part(Scheme.U16A8W, node="sum")],
            "the part sum u16a8w is hidden by the part add u16a8w",
        ),
    ],
)
def test_a_part_without_own_nodes_is_refused(
    tmp_path: Path, parts: list[Part], reason: str
) -> None:
    path = write_net(tmp_path / "net.onnx")
    with pytest.raises(StageError) as caught:
        quantize_file(
            path, tmp_path / "quantized.onnx", Scheme.U8, SETS, Choices(parts=tuple(parts))
        )
    assert reason in str(caught.value.__cause__)


def quantize(source: str, zero: str, **kind: int) -> list[NodeProto]:
    integers, terms = f"{source}_int", ["s", zero] if zero else ["s"]
    return [
        make_node("QuantizeLinear", [source, *terms], [integers], f"{source}_q", **kind),
        make_node("DequantizeLinear", [integers, *terms], [f"{source}_dq"], f"{source}_dq"),
    ]


ENDS = [tensor("x", (3, 4))], [tensor("y", (3, 4))]


def test_the_types_in_a_file_that_others_quantized_are_read(tmp_path: Path) -> None:
    nodes = [
        *quantize("x", "", output_dtype=TensorProto.INT16),
        *quantize("w", "z8"),
        make_node("MatMul", ["x_dq", "w_dq"], ["a"], "fused"),
        make_node("Relu", ["a"], ["b"], "relu"),
        *quantize("b", "z16"),
        *quantize("b_dq", ""),  # a conversion
        make_node("Sigmoid", ["b_dq_dq"], ["c"], "island"),
        make_node("Softmax", ["c"], ["y"], "end"),
    ]
    constants = [constant("w", MATRIX), constant("s", 0.1)]
    constants += [constant("z8", 0, np.int8), constant("z16", 0, np.int16)]
    types_by_node = name_types(write_model(tmp_path / "net.onnx", nodes, *ENDS, constants))
    assert " ".join(f"{name} {kind}" for name, kind in types_by_node.items()) == (
        "x_q int16 x_dq int16 w_q int8 w_dq int8 relu int16 b_q int16 b_dq int16"
        " b_dq_q uint8 b_dq_dq uint8 island float end float"
    )
    assert name_types(write_net(tmp_path / "float.onnx")) == {}


def test_noise_is_the_same_whether_a_weight_is_stored_in_float_or_as_integers(
    tmp_path: Path,
) -> None:
    grid_constants = [
        constant("s", 0.001),
        constant("z16", 30000, np.uint16),
        constant("z8", 0, np.int8),
    ]
    integers = np.clip(np.round(MATRIX / 0.01), -128, 127)
    spreads = []
    for weight in (constant("w", integers * 0.01), constant("w_int", integers, np.int8)):
        nodes = [*quantize("x", "z16"), *quantize("w", "z8"), *quantize("a", "z16")]
        nodes[4:4] = [make_node("MatMul", ["x_dq", "w_dq"], ["a"])]
        for node in nodes[2:4]:
            node.input[1] = "ws"
        nodes[-1].output[0] = "y"
        kept_nodes = [node for node in nodes if weight.name == "w" or node.name != "w_q"]
        path = tmp_path / f"{weight.name}.onnx"
        write_model(path, kept_nodes, *ENDS, [*grid_constants, constant("ws", 0.01), weight])
        right = run_reference(path, SETS)
        (noise,) = predict_noise(read_onnx(path, tmp_path / "noisy.onnx"), SETS, right)
        spreads.append(np.std(noise))
    assert spreads[0] == pytest.approx(spreads[1], rel=0.2)


def test_nodes_of_torchs_exporter_have_modules_types_and_lines() -> None:
    node = make_node("Relu", ["x"], ["y"], "node_relu")
    scopes, classes = "['', 'body', 'body.0', 'relu']", "['net.Net', 'a.Sequential', 'b.ReLU', 'x']"
    traceback = 'File "/home/me/net.py", line 9, in forward\n    relu(x)'
    names = ("name_scopes", "class_hierarchy", "stack_trace")
    for name, text in zip(names, (scopes, classes, traceback), strict=True):
        node.metadata_props.add(key=f"pkg.torch.onnx.{name}", value=text)
    model = build_model([node], [tensor("x", (1,))], [tensor("y", (1,))])
    (candidate,) = list_candidates(model)
    assert (candidate.module, candidate.type) == (("body", "body.0"), ("Net", "Sequential", "ReLU"))
    assert candidate.line[0].endswith("net.py:9")
    node.metadata_props[0].value = "['',"  # damaged
    (candidate,) = list_candidates(build_model([node], [], []))
    assert candidate.module == ()


def test_a_requested_precision_that_the_quantized_file_lost_is_found(tmp_path: Path) -> None:
    part = Part(Scheme.U16A8W, op="softmax")
    target = tmp_path / "quantized.onnx"
    owners = quantize_file(
        write_net(tmp_path / "net.onnx"), target, Scheme.U8, SETS, Choices(parts=(part,))
    )
    model = load(target)
    quantized_names = {
        node.input[0].removesuffix("_QuantizeLinear_Input"): node.output[0]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }
    weight = next(
        node.input[0]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0].startswith("w")
    )
    for softmax, losses in ((0x0416, []), (0x0408, ["end: 16 bit requested, 8 bit compiled"])):
        tensors = {
            quantized_names["c"]: {"type": 3, "data_type": 0x0408, "dims": [3, 4]},
            quantized_names["y"]: {"type": 3, "data_type": softmax, "dims": [3, 4]},
            weight: {"type": 4, "data_type": 0x0408, "dims": [4, 4]},
            "shape": {"type": 4, "data_type": 0x0032, "dims": [2, 2]},
        }
        nodes = {
            "product": {"type": "FullyConnected", "output_names": [quantized_names["c"]]},
            "end": {"type": "Softmax", "output_names": [quantized_names["y"]]},
            "convert": {"type": "Convert", "output_names": [quantized_names["y"]]},
        }
        graphs = tmp_path / str(softmax)
        graphs.mkdir()
        (graphs / "a.json").write_text(json.dumps({"graph": {"nodes": nodes, "tensors": tensors}}))
        (graphs / "a_log.json").write_text("{}")
        compiled_tensors = [*list_tensors(model, graphs)]
        lost = find_retyped(find_asked(model, owners), compiled_tensors)
        assert [str(retyped).removeprefix("the result of ") for retyped in lost] == losses
        assert sum(count.weight_bytes for count in count_types(compiled_tensors)) == 16


def test_noise_is_attributed_to_the_rounding_not_to_what_amplifies_it(
    tmp_path: Path,
) -> None:
    nodes = [
        make_node("Mul", ["x", "x"], ["a"], "square"),
        make_node("Relu", ["a"], ["b"], "limit"),  # the quantizer merges it
        make_node("Sqrt", ["b"], ["y"], "root"),
    ]
    ends = [tensor("x", (3, 4))], [tensor("y", (3, 4))]
    plain, target = write_model(tmp_path / "net.onnx", nodes, *ends), tmp_path / "quantized.onnx"
    quantize_file(plain, target, Scheme.U8, SETS)
    program = read_onnx(target, tmp_path / "scratch.onnx", plain)
    assert choose_rounded(program, SETS[0])[:3] == ("b", "a", "y")


def test_a_file_with_more_roundings_than_runs_gets_a_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MOST_RUNS", 32)
    nodes = [make_node("Neg", [f"n{number}"], [f"n{number + 1}"]) for number in range(40)]
    nodes.append(make_node("Mul", ["n40", "n40"], ["square"]))
    nodes.append(make_node("Sqrt", ["square"], ["y"]))
    ends = [tensor("n0", (3, 4))], [tensor("y", (3, 4))]
    plain, target = write_model(tmp_path / "net.onnx", nodes, *ends), tmp_path / "quantized.onnx"
    quantize_file(plain, target, Scheme.U8, SETS)
    program = read_onnx(target, tmp_path / "scratch.onnx", plain)
    assert choose_rounded(program, SETS[0])[:2] == ("square", "y")
