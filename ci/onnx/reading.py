"""What the verbs need of a user's .onnx file, read in a process with limits (see
ci.cases.limited). This module does not import onnx, so that the verbs do not either."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci.cases.limited import run_limited
from ci.models.user_models import Source
from provisioning.errors import at_key

if TYPE_CHECKING:
    from ci.onnx.models import Shapes

SIMPLER = "use a smaller model, or raise --timeout-s"


@dataclass(frozen=True)
class FileFit:
    """How a file can be used. ``batch`` is the name of its batch size, "" if that does not vary,
    and ``shapes`` are those of the inputs with a batch of 1. ``is_quantized`` is true if it is
    quantized already. ``untaken`` says how many nodes have each operator that QNN's provider takes
    in no model."""

    batch: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    is_quantized: bool
    untaken: tuple[tuple[str, int], ...] = ()


def fit_file(source: Source, label: str, command: str, entry: str, timeout_s: float) -> FileFit:
    """Read the file of a case and check that QNN can use it. Raises UsageError if not. ``label``
    names the model in errors; ``command`` and ``entry`` are as for ci.onnx.models.check_model."""
    # In another process: a parser in C++ that does not end, takes all memory or aborts would do the
    # same to the verb.
    job = partial(_fit_file, source, label, command, entry)
    return run_limited(job, Path(source.reference).name, timeout_s=timeout_s, fix=SIMPLER)


def _fit_file(source: Source, label: str, command: str, entry: str) -> FileFit:
    from ci.onnx import models
    from ci.onnx.source import find_shapes

    path, shapes = Path(source.reference), source.shapes
    model = models.parse_model(path)
    size, batch = models.find_batch(model, shapes)
    shapes = (*shapes, *batch.items())
    with at_key(label):
        models.fix_shapes(model, shapes)
    data_shapes = find_shapes(path, source.inputs, model).items()
    models.check_model(model, path, command, entry, data_shapes)
    untaken = tuple(models.count_untaken(model).items())
    return FileFit(size, shapes, models.is_quantized(model), untaken)


def check_float_model(source: Source, shapes: Shapes, timeout_s: float) -> None:
    """Raise UsageError if the file of a case cannot be the quantized form of its float model.
    ``shapes`` are those of the inputs."""
    job = partial(_check_float_model, source, tuple(shapes))
    run_limited(job, Path(source.float_model).name, timeout_s=timeout_s, fix=SIMPLER)


def _check_float_model(source: Source, shapes: Shapes) -> None:
    from ci.onnx.models import fix_shapes, parse_model
    from ci.onnx.source import read_float

    quantized = parse_model(Path(source.reference))
    fix_shapes(quantized, shapes)
    read_float(Path(source.float_model), quantized, shapes)


@dataclass(frozen=True)
class ShapesLine:
    """A line of a policy with the shapes of a file's inputs, "" if they are fixed. ``is_default``
    is true if only the batch size varies, so that the line is not needed."""

    text: str = ""
    is_default: bool = False


def suggest_shapes_line(path: Path) -> ShapesLine:
    """Return the line for the file at ``path``. Raises UsageError if it cannot be read."""
    return run_limited(partial(_suggest_shapes_line, path), path.name)


def _suggest_shapes_line(path: Path) -> ShapesLine:
    from ci.onnx import models

    model = models.parse_model(path)
    if batch := models.find_batch(model)[1]:
        return ShapesLine(models.write_shapes(batch), is_default=True)
    if free := models.list_free(models.list_required_inputs(model)):
        return ShapesLine(models.write_shapes(models.suggest_shapes(free)))
    return ShapesLine()


def seal_file(path: Path) -> None:
    """Write the SHA-256 of a context model's binary into the model, see
    ci.onnx.contexts.seal_context."""
    run_limited(partial(_seal_file, path), path.name)


def _seal_file(path: Path) -> None:
    from ci.onnx.contexts import seal_context

    seal_context(path)
