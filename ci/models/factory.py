"""Reads what a user's ``path/to/file.py:factory`` returns.

This is ``(module, example_inputs)`` or ``(module, example_inputs, calibration_inputs)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ci.models.user_code import CONTRACT, users_code
from ci.models.user_data import find_lacking_axes
from provisioning.errors import UsageError

# Other dtypes, such as float64, bfloat16, complex numbers and float8, are refused.
# With float64, QNN computes wrong values (-775 dB, docs/findings/models.md).
DTYPES_OF_QNN = {torch.bool, torch.float16, torch.float32} | {
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
}

Inputs = tuple[Tensor, ...]
# A dict is how users write keyword arguments.
POSITIONAL = "wrap the module in one whose forward takes the tensors by position and passes them on"
FIXED = "leave it out: a program for QNN has fixed shapes, which are those of the example"
CONSTANT = "make it a constant of the module: a program for QNN takes only tensors"
WITH_WEIGHTS = "create the model, pass this dict of weights to its load_state_dict, and return it"
ORIGINAL = "return the original module: the session calls torch.export itself"


def unpack(reference: str, result: Any) -> tuple[nn.Module, Inputs, tuple[Inputs, ...]]:
    """Return the module, the example and the calibration samples from the ``result`` of a
    factory. Raises UsageError if the result does not have the required form."""
    name = Path(reference).name
    if not isinstance(result, tuple) or len(result) not in {2, 3}:
        length = f" and length {len(result)}" if isinstance(result, (tuple, list)) else ""
        raise _unwanted(name, f"it returned an object of type {type(result).__name__}{length}")
    module, example, *optional = result
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        fix = CONTRACT
        if isinstance(module, torch.export.ExportedProgram):
            fix = ORIGINAL
        elif isinstance(module, Mapping) and any(map(torch.is_tensor, module.values())):
            fix = WITH_WEIGHTS
        raise _unwanted(name, f"the first item has type {kind}, not torch.nn.Module", fix)
    if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        why = "the module has weights on the device meta, which holds no values"
        raise _unwanted(name, why, "create the module on the CPU, or load its weights onto it")
    require_names(name, module)
    (calibration,) = optional or (None,)
    calibration = () if calibration is None else calibration
    if isinstance(calibration, Mapping):
        # Others pass their dynamic_shapes, as torch.export takes them.
        is_keywords = any(map(torch.is_tensor, calibration.values()))
        fix = POSITIONAL if is_keywords else FIXED
        raise _unwanted(name, "its third item is a dict, not a list of samples", fix)
    try:
        samples = iter(calibration)
    except TypeError:
        raise _unwanted(
            name, f"the calibration has type {type(calibration).__name__}; it must be a list"
        ) from None
    with users_code(reference):  # it may be a generator
        sets = [*samples]
    example, *calibration = fit_sets(name, example, sets)
    return module, example, tuple(calibration)


# torch.export 2.13 writes a function with the names of the inputs, in which it uses these itself.
REFUSED_NAMES = frozenset({"fx_pytree", "pytree", "self", "torch"})


def require_names(name: str, module: nn.Module) -> None:
    """Raise UsageError if an input of a module has a name with which torch.export makes no program
    that runs. ``name`` is the file that defines the module."""
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # as of a compiled one
        return
    refused = [parameter for parameter in parameters if parameter in REFUSED_NAMES]
    if refused:
        raise UsageError(
            f"{name}: torch.export refuses an input of forward with the name {refused[0]!r}",
            why="it writes the inputs' names into a function that uses this name itself",
            fix="rename this argument of forward",
        )


def fit_sets(
    name: str, example: Any, sets: Sequence[Any], kind: str = "calibration sample"
) -> list[Inputs]:
    """Return the example and the samples as tuples of tensors. ``name`` is the file or function
    that provides them, for error messages. Raises UsageError if a set contains anything but
    non-empty dense tensors, or if its shapes or dtypes differ from the example's."""
    as_tuples = [_read_inputs(name, "the example", example)]
    as_tuples += [_read_inputs(name, f"{kind} {n}", inputs) for n, inputs in enumerate(sets)]
    for number, inputs in enumerate(as_tuples):
        if _describe(inputs) == _describe(as_tuples[0]):
            continue
        arrays = [(len(sets), *tensor.shape) for tensor in inputs]
        example_shapes = [tuple(tensor.shape) for tensor in as_tuples[0]]
        if lacking := find_lacking_axes(arrays, example_shapes):
            raise UsageError(
                f"{name} has {lacking.description}",
                why=f"it has {_describe(inputs, len(sets))}, and needs"
                f" {_describe(as_tuples[0], lacking.samples)}: samples of the shape of the example",
                fix=f"{lacking.fix}; or return tensors of the example's shape from a function",
            )
        shapes = [tuple(tensor.shape) for tensor in inputs]
        if shapes == example_shapes:
            fix = "convert them to the dtypes of the example"
        elif [*map(len, shapes)] == [*map(len, example_shapes)]:
            fix = "pad or crop them to one shape: a program for QNN has fixed shapes"
        else:
            fix = "provide samples with as many inputs and axes as the example"
        raise UsageError(
            f"{name} has a sample whose shapes or dtypes differ from those of the example",
            why=f"the example is {_describe(as_tuples[0])}, {kind} {number - 1} is"
            f" {_describe(inputs)}",
            fix=fix,
        )
    return as_tuples


def _describe(inputs: Inputs, *samples: int) -> str:
    rows = (f"{str(t.dtype).removeprefix('torch.')}{[*samples, *t.shape]}" for t in inputs)
    return f"({', '.join(rows)})"


def _unwanted(name: str, why: str, fix: str = CONTRACT) -> UsageError:
    return UsageError(f"{name} returned an invalid result", why=why, fix=fix)


def _read_inputs(name: str, place: str, inputs: Any) -> Inputs:
    """Return one sample as a tuple of dense, row-major tensors."""
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list)):
        kind = type(inputs).__name__
        fix = POSITIONAL if isinstance(inputs, Mapping) else CONTRACT
        raise _unwanted(name, f"{place} has type {kind}; it must be a tuple of tensors", fix)
    if not inputs:
        raise _unwanted(name, f"{place} is empty, but a QNN graph needs an input")
    return tuple(
        _read_input(name, f"input {index} of {place}", value) for index, value in enumerate(inputs)
    )


def _read_input(name: str, place: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        if hasattr(value, "__array__"):
            fix = "convert it with torch.from_numpy"
        else:
            fix = POSITIONAL if isinstance(value, (Mapping, tuple, list)) else CONSTANT
        raise _unwanted(name, f"{place} has type {type(value).__name__}; it must be a tensor", fix)
    check_tensor(name, place, value)
    if value.device.type != "cpu":
        why = f"{place} is on the device {value.device}"
        raise _unwanted(name, why, "move the module and its inputs with .to('cpu')")
    # With channels-last inputs, ExecuTorch 1.5.1 declares a convolution's output as channels-last,
    # but QNN writes it row-major (SQNR -3 dB).
    return value.detach().contiguous()


def check_tensor(name: str, place: str, tensor: Tensor) -> None:
    """Raise UsageError for a tensor that is empty or not dense, and for a dtype that HTP computes
    incorrectly or does not support."""
    if tensor.dtype not in DTYPES_OF_QNN:
        raise UsageError(
            f"{name} has a dtype that HTP does not support",
            why=f"{place} is {str(tensor.dtype).removeprefix('torch.')}",
            fix="convert the module and its inputs with .float(); the scheme sets the precision",
        )
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    if not is_dense or not tensor.numel():
        raise UsageError(
            f"{name} has a tensor that a program for QNN cannot take or return",
            why=f"{place} is {'empty' if is_dense else 'sparse or nested'}",
            fix="make it a dense tensor with at least one element",
        )
