"""docs/onnx.md: models through the lane, and a context model made byte by byte."""

from __future__ import annotations

import importlib.util

import pytest

from tests.documented.recipe import Recipe
from tests.documented.setups import record_report, shrink_suite, use_our_store, write_suite
from tests.documented.stage import Stage
from tests.qnn_provider.contexts import write_context


def leave_context(stage: Stage) -> None:
    write_context(stage.project).rename(stage.project / "model_ctx.onnx")


def require_lane(stage: Stage) -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("onnxruntime-qnn is not installed")


def shrink_lane(stage: Stage) -> None:
    """A suite of one model in one scheme for this lane, too."""
    write_suite(stage, 'mlp = ["fp16"]', "onnx")


def write_file(stage: Stage) -> None:
    """net.onnx: one node, without weights."""
    import onnx

    form = (onnx.TensorProto.FLOAT, [1, 8, 4])
    ends = [onnx.helper.make_tensor_value_info(name, *form) for name in "xy"]
    node = onnx.helper.make_node("Sigmoid", ["x"], ["y"], name="node")
    graph = onnx.helper.make_graph([node], "graph", ends[:1], ends[1:])
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, stage.project / "net.onnx")


LANE = {"setup": (require_lane, use_our_store, shrink_suite, shrink_lane), "with_models": True}
SHOWN = {"setup": (leave_context,)}

RECIPES = {
    "nox -s test_onnx": Recipe(
        says=("1 passed", "mlp +fp16"), leaves=("reports/test_onnx/index.html",), **LANE
    ),
    "nox -s test_onnx -- --list": Recipe(says=("mlp ", "u16a8w_channel", "SM8650")),
    "nox -s test_onnx -- --model mlp --scheme u8": Recipe(
        says=("1 passed", "mlp +u8"), leaves=("reports/test_onnx/report.json",), **LANE
    ),
    "nox -s test_onnx -- --model mlp --scheme u8 --saver --profile": Recipe(
        says=("1 passed", "cycles +us", "no gate +no gate"),
        leaves=tuple(
            f"reports/test_onnx/qnn/mlp-u8-SM8650/{name}"
            for name in ("saver_output.c", "params.bin", "profile.csv")
        ),
        **LANE,
    ),
    "nox -s test_onnx -- --model net.onnx --scheme fp16 --soc SM8750": Recipe(
        says=("1 passed", "net.onnx +fp16 +SM8750"),
        setup=(require_lane, use_our_store, write_file),
        with_models=True,
    ),
    "nox -s test_onnx -- --model mlp --compare": Recipe(
        setup=(*LANE["setup"], record_report),
        says=("1 passed", "fp16 / fp16"),
        leaves=("reports/test_onnx/compare.md",),
        with_models=True,
    ),
    "qnn-ci context model_ctx.onnx": Recipe(says=("QNN 2.49.40", "SM8750"), **SHOWN),
    "qnn-ci context model_ctx.onnx --soc SM8750 --qnn 2.49.40": Recipe(
        says=("fits SM8750",), **SHOWN
    ),
    "qnn-ci context model_ctx.onnx --seal": Recipe(says=("sealed +yes",), **SHOWN),
}
