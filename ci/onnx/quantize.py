"""ONNX -> ONNX with QuantizeLinear and DequantizeLinear, as QNN's provider wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import (
    get_qnn_qdq_config,
    qnn_preprocess_model,
)

from ci.models.schemes import Scheme
from ci.onnx.source import Arrays

PREPARED = "prepared.onnx"


class SetReader(CalibrationDataReader):
    """Calibration sets, one after the other."""

    def __init__(self, names: Sequence[str], sets: Sequence[Arrays]) -> None:
        self.names, self.sets = names, sets
        self.rewind()

    def get_next(self) -> Mapping[str, Any] | None:
        arrays = next(self.left, None)
        return None if arrays is None else dict(zip(self.names, arrays, strict=True))

    def rewind(self) -> None:
        self.left: Iterator[Arrays] = iter(self.sets)


def quantize_file(source: Path, target: Path, scheme: Scheme, sets: Sequence[Arrays]) -> None:
    """Write the quantized model of ``source`` to ``target``; ranges cover all of ``sets``.

    Raises what onnxruntime's quantizer raises.
    """
    prepared = target.with_name(PREPARED)
    changed = qnn_preprocess_model(str(source), str(prepared))
    chosen = prepared if changed else source
    recipe = scheme.recipe
    names = [one.name for one in onnx.load(chosen, load_external_data=False).graph.input]
    config = get_qnn_qdq_config(
        chosen,
        SetReader(names, sets),
        activation_type=QuantType[recipe.activations],
        weight_type=QuantType[recipe.weights],
        per_channel=recipe.per_channel,
    )
    quantize(str(chosen), str(target), config)
    prepared.unlink(missing_ok=True)
