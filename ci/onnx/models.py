"""A user's ONNX model, read and judged before ONNX Runtime sees it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from ci.onnx.files.faults import find_faults
from ci.onnx.files.graph import Model, read_graph
from provisioning.errors import UsageError

MOST_SHOWN = 8


def check_model(path: Path) -> Model:
    """What the file holds, without its weights and without the onnx package.

    Raises UsageError for a file that is no whole ONNX model, or one that QNN cannot take: a shape
    that is not fixed, a loop, weights that are missing or lie outside its directory ...
    """
    model = read_graph(path)
    faults = list(itertools.islice(find_faults(model), MOST_SHOWN))
    if faults:
        first, *others = [fault.what for fault in faults]
        raise UsageError(
            f"{path.name} cannot be used: {first}",
            why="; ".join(others),
            fix=faults[0].fix,
        )
    return model


def read_model(path: Path) -> Any:
    """The onnx.ModelProto without its external weights. Raises UsageError as check_model does."""
    import onnx
    from google.protobuf.message import DecodeError

    check_model(path)
    try:
        return onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise UsageError(f"{path.name} is not an ONNX model", why=str(error)) from error


def external_files(path: Path) -> list[Path]:
    """The files beside a model that hold its weights. Raises UsageError as check_model does."""
    model = check_model(path)
    names = {tensor.external["location"] for tensor in model.graph.all_tensors() if tensor.external}
    return sorted(path.parent / name for name in names)
