"""Edits of graphs, and what they write to exported programs and to ONNX models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
import onnx
from onnx import numpy_helper, parser, shape_inference

from ci.graphs.edit import GraphEditor
from ci.graphs.onnx_edit import OnnxLane

Edit = Callable[[GraphEditor], None]
IF = (
    "k = Constant<value = bool {1}>() y = If(k) <then_branch = t () => (float[2,8] o)"
    " { o = Relu(m) }, else_branch = e () => (float[2,8] q) { q = Tanh(m) }>"
)
SLICE = "y/Slice = Slice(x,y/constant,y/constant_b,y/constant_b_b)"


def read_model(body: str, opset: int = 18) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2,8] x) => (float[2,8] y) '
    model = parser.parse_model(f"{head} {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    return shape_inference.infer_shapes(model, data_prop=True)


def list_calls(model: onnx.ModelProto) -> str:
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    calls = (f"{','.join(node.output)} = {node.op_type}({','.join(node.input)})" for node in nodes)
    return " ".join(calls)


def double(edit: GraphEditor) -> None:
    """Write products with 2 as sums."""
    for node in edit.find("mul"):
        operands = edit.operands(node)
        if operands and operands[1].item() == 2:
            edit.replace(node, edit.add(operands[0], operands[0]), "x + x")


def skip(edit: GraphEditor) -> None:
    """Replace products by their operand."""
    for node in edit.find("mul"):
        edit.replace(node, node.reads[0], "x")


def forget(edit: GraphEditor) -> None:
    """Insert calls that nothing needs, besides others."""
    for node in edit.find("mul"):
        edit.exp(edit.neg(node.reads[0]))
        edit.replace(node, edit.tanh(node.reads[0]), "tanh(x)")


def exchange(edit: GraphEditor) -> None:
    """Insert a mean with a slice of its operand."""
    for node in edit.find("mul"):
        part = edit.slice(node.reads[0], dim=1, start=0, end=4)
        mean = edit.mean(part, dim=[1], keepdim=True)
        edit.replace(node, edit.sub(node.reads[0], mean), "x - mean")


@pytest.mark.parametrize(("edit", "body", "opset", "calls"), [
    (double, "m = Mul(x, two) y = Relu(m)", 18, "m = Add(x,x) y = Relu(m)"),
    (double, "m = Mul(two, x) n = Mul(m, two) y = Relu(n)", 18,
     "m = Add(x,x) n = Add(m,m) y = Relu(n)"),
    (double, f"m = Mul(x, two) {IF}", 18, "m = Add(x,x) y = If(k)"),
    (double, "y = Mul(x, two)", 18, "y = Add(x,x)"),
    (skip, "m = Mul(x, two) y = Relu(m)", 18, "y = Relu(x)"),
    (skip, "y = Mul(x, two)", 18, "y = Identity(x)"),
    (skip, f"m = Mul(x, two) {IF}", 18, "m = Identity(x) y = If(k)"),
    (forget, "y = Mul(x, two)", 18, "y = Tanh(x)"),
    (exchange, "y = Mul(x, two)", 18,
     f"{SLICE} y/ReduceMean = ReduceMean(y/Slice,y/constant_b_b_b) y = Sub(x,y/ReduceMean)"),
    (exchange, "y = Mul(x, two)", 9,
     "y/Slice = Slice(x) y/ReduceMean = ReduceMean(y/Slice) y = Sub(x,y/ReduceMean)"),
])  # fmt: skip
def test_each_edit_of_an_onnx_model_changes_its_calls(
    edit: Edit, body: str, opset: int, calls: str
) -> None:
    model = read_model(body, opset)
    editor = GraphEditor(OnnxLane(model))
    edit(editor)
    assert editor.finish()
    assert list_calls(model) == calls
    onnx.checker.check_model(model, full_check=True)


def test_a_value_of_another_shape_is_refused() -> None:
    edit = GraphEditor(OnnxLane(read_model("m = Mul(x, two) y = Relu(m)")))
    for node in edit.find("mul"):
        wrong = edit.sum(node.reads[0], dim=[1], keepdim=True)
        with pytest.raises(ValueError, match="m: "):
            edit.replace(node, wrong, "a sum")


def test_a_constant_that_depends_on_a_replaced_one_is_unknown() -> None:
    edit = GraphEditor(OnnxLane(read_model("c = Neg(two) d = Exp(c) m = Mul(x, d) y = Relu(m)")))
    assert edit.number("d") == pytest.approx(np.exp(-2))
    (node,) = edit.find("neg")
    with edit.at(node):
        edit.replace(node, edit.hold(3.0), "3")
    assert edit.number("d") is None
    assert edit.number("two") == 2


def test_results_of_a_call_with_several_are_replaced_one_by_one_in_a_module() -> None:
    torch: Any = pytest.importorskip("torch")
    from ci.graphs.torch_edit import TorchLane, TorchModule
    from ci.mend.rewrite import export_module

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            values, places = x.max(1)
            return values + values.relu(), places

    x = torch.randn(3, 4)
    module = export_module(Net(), [x])
    editor = GraphEditor(TorchLane(TorchModule(module)))
    for node in editor.find("max"):
        highest = editor.amax(node.reads[0], dim=[1])
        editor.replace(node, [highest, editor.argmax(node.reads[0], dim=1)], "amax and argmax")
    assert editor.finish()
    module.recompile()
    assert "aten.max" not in module.code
    for output, right in zip(module(x), Net()(x), strict=True):
        torch.testing.assert_close(output, right)
