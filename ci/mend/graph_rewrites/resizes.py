"""Resizes in forms that QNN takes."""

from __future__ import annotations

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Node
from ci.mend.graph_rewrites.definition import defines

RESIZES = [
    f"upsample_{mode}{axes}d"
    for mode in ("nearest", "linear", "bilinear", "bicubic")  # one of ONNX is never "linear"
    for axes in (1, 2, 3)
]


# QNN takes rank 4, and only some kinds of rounding. ExecuTorch decomposes a linear resize over one
# axis with an index, which stays on the CPU.
@defines("resize-flat", *RESIZES)
def resize_flat(edit: GraphEditor, node: Node) -> None:
    """Resize a sequence as an image with one row. If the nearest element is not rounded down, but
    the same elements are chosen, round down, which QNN takes."""
    if edit.graph.front_end == EXECUTORCH:
        # Over one axis, select-nearest has the other modes, and torch always rounds down.
        if node.operator == "upsample_linear1d" and "scales" not in node.numbers:
            resize_row(edit, node)
    else:
        resize_by_scales(edit, node)


def resize_row(edit: GraphEditor, node: Node) -> None:
    """Resize a sequence linearly as an image with one row, with torch's arguments."""
    sizes = [*map(int, node.numbers.get("output_size", ()))]
    factors = [*node.numbers.get("scale_factors", ())]
    new = edit.upsample_bilinear2d(
        edit.unsqueeze(node.reads[0], dim=-2),
        output_size=[1, *sizes] if sizes else None,
        align_corners=bool(edit.argument(node, "align_corners")),
        scale_factors=[1.0, *factors] if factors else None,
    )
    after = 'F.interpolate(x.unsqueeze(-2), (1, size), mode="bilinear").squeeze(-2)'
    edit.replace(node, edit.squeeze(new, dim=-2), after)


def resize_by_scales(edit: GraphEditor, node: Node) -> None:
    """Resize a sequence as an image with one row, and round down, with ONNX's arguments."""
    x, scales = node.reads[0], edit.value(node.reads[2]) if len(node.reads) > 2 else None
    # The scales are float32, and a new constant has the type of x.
    if scales is None or edit.dtypes.get(x) != "float32":
        return
    shape, result_shape = [*edit.shape(x)], [*edit.shape(node.results[0])]
    factors = [*map(float, scales)]
    rounding = node.texts.get("nearest_mode", "round_prefer_floor")
    is_nearest = node.operator.startswith("upsample_nearest") and rounding != "floor"
    is_nearest &= node.texts.get("coordinate_transformation_mode") == "asymmetric"
    axes = zip(result_shape, factors, strict=False)
    rounds = is_nearest and all(chooses_floor(rounding, *axis) for axis in axes)
    is_sequence = len(shape) == 3 and factors[:2] == [1.0, 1.0] and "axes" not in node.numbers
    arguments = {"nearest_mode": "floor"} if rounds else {}
    if is_sequence:
        image = edit.reshape(x, shape=[*shape[:2], 1, shape[2]])
        image_factors = np.array([1.0, 1.0, 1.0, factors[2]])
        resized = edit.call_again(node, image, None, image_factors, **arguments)
        new = edit.reshape(resized, shape=result_shape)
    elif rounds:
        new = edit.call_again(node, x, None, **arguments)
    else:
        return
    before = f"a resize of rank {len(shape)}" + f", nearest_mode {rounding}" * rounds
    after = "a resize of rank 4" + ", nearest_mode floor" * rounds
    edit.replace(node, new, after, before)


def chooses_floor(rounding: str, size: int, scale: float) -> bool:
    """Return whether a rounding of the nearest element chooses the same elements as rounding down,
    for a result of this ``size``."""
    places = np.arange(size) / scale
    rounded = {
        "round_prefer_floor": np.ceil(places - 0.5),
        "round_prefer_ceil": np.floor(places + 0.5),
        "ceil": np.ceil(places),
    }
    return rounding in rounded and np.array_equal(np.floor(places), rounded[rounding])
