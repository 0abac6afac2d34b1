"""What the verb needs of a .tflite file, read in a process with limits (see ci.cases.limited). This
module does not import LiteRT, so that the verb does not either."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ci.cases.limited import run_limited
from ci.cases.spec import CaseSpec
from provisioning.errors import FailedError, UsageError

SIMPLER = "write the file again if it is damaged, use a smaller model, or raise --timeout-s"


@dataclass(frozen=True)
class LitertFit:
    """How a file can be used. ``free`` are the inputs with axes whose length may change, as text,
    and ``is_quantized`` is true if it computes with integers that stand for other numbers."""

    is_quantized: bool
    free: tuple[str, ...] = ()


def fit_litert(spec: CaseSpec, label: str, timeout_s: float) -> LitertFit:
    """Read the file of a case and check that LiteRT can use it. Raises UsageError if not. ``label``
    names the model in errors."""
    # In another process: LiteRT's reader is written in C++, and may crash or never end.
    return run_limited(partial(_fit, spec), label, timeout_s=timeout_s, fix=SIMPLER)


def ask_quantized(path: Path) -> bool:
    """Return whether a .tflite file is quantized. Raises UsageError if it cannot be read."""
    return run_limited(partial(_ask_quantized, path), path.name)


def _ask_quantized(path: Path) -> bool:
    from ci.graphs.litert_file import read_model
    from ci.litert.source import is_quantized, read_litert

    return is_quantized(read_model(read_litert(path)))


def _fit(spec: CaseSpec) -> LitertFit:
    from ci.graphs.litert_file import describe_free_axes, read_model
    from ci.litert.source import (
        check_model,
        is_quantized,
        load_litert,
        read_litert,
    )
    from ci.litert.split import list_unknown

    if spec.is_file:
        # LiteRT's verifier comes before the generated classes, which check nothing.
        path = Path(spec.reference)
        data = read_litert(path)
        model = read_model(data)
        try:
            list_unknown(data, model)  # first, because it finds tensors that do not exist
        except FailedError as error:
            raise UsageError(error.what, why=error.why, fix=error.fix) from error
        check_model(path.name, model)
    source = load_litert(spec)
    return LitertFit(is_quantized(source.model), tuple(describe_free_axes(source.model)))
