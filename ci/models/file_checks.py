"""What is refused of a model in a file, whichever lane compiles it."""

from __future__ import annotations

from collections.abc import Sequence

from ci.models.file_samples import Arrays
from provisioning.errors import FailedError, UsageError


def check_pair(name: str, float_is_quantized: bool, file_is_quantized: bool) -> None:
    """Raise UsageError if the float model in the file ``name`` is itself quantized, or if the file
    to which it belongs is not."""
    if not file_is_quantized:
        raise UsageError(
            "this key is only for a model that is already quantized",
            why="the model in `path` is itself a float model",
            fix="remove this key",
        )
    if float_is_quantized:
        raise UsageError(f"{name} is itself quantized", fix="specify the float model")


def describe_mismatch(name: str, why: str) -> UsageError:
    """Return the error for a float model, in the file ``name``, of another model."""
    return UsageError(
        f"{name} does not match the quantized model",
        why=why,
        fix="specify the file from which the quantized model was made",
    )


def require_fixed_shapes(outputs: Sequence[Arrays], counting: str) -> None:
    """Raise FailedError if the shape of an output, of which ``outputs`` has one row per sample,
    depends on the sample. ``counting`` are operators that are often the cause."""
    for first, *later in zip(*outputs, strict=True):  # an output, in each sample
        for array in later:
            if array.shape != first.shape:
                raise FailedError(
                    f"the shape of an output depends on the data: {[*first.shape]} for one"
                    f" sample, {[*array.shape]} for another",
                    why="QNN supports only fixed shapes",
                    fix=f"end the model before the operator that counts elements, such as"
                    f" {counting}",
                )


def describe_random(operator: str) -> FailedError:
    """Return the error for a model in which an operator draws random numbers."""
    return FailedError(
        f"the model draws random numbers, in {operator}",
        why="its outputs differ from run to run, so nothing can be compared with them",
        fix="make the random numbers an input of the model",
    )
