"""docs/onnx.md: a context model made byte by byte."""

from __future__ import annotations

from tests.documented.recipe import Recipe
from tests.documented.stage import Stage
from tests.qnn_provider.contexts import write_context


def leave_context(stage: Stage) -> None:
    write_context(stage.project).rename(stage.project / "model_ctx.onnx")


SHOWN = {"setup": (leave_context,)}

RECIPES = {
    "qnn-ci context model_ctx.onnx": Recipe(says=("QNN 2.49.40", "SM8750"), **SHOWN),
    "qnn-ci context model_ctx.onnx --soc SM8750 --qnn 2.49.40": Recipe(
        says=("fits SM8750",), **SHOWN
    ),
    "qnn-ci context model_ctx.onnx --seal": Recipe(says=("sealed +yes",), **SHOWN),
}
