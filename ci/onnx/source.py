"""A model to compile as ONNX, from a file or from torch, with its inputs.

The inputs of an .onnx file are next to it:

- in an .npz file of the same name, with one array of shape [sample, *shape] per input
- in directories test_data_set_0, test_data_set_1 etc., as in the ONNX model zoo; each contains one
  sample in the files input_0.pb, input_1.pb etc.

A policy can specify other files. Missing inputs are generated, and the report shows this.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ci.graphs.onnx_file import read_constants
from ci.models import user_models
from ci.models.file_checks import check_pair, describe_mismatch
from ci.models.file_samples import (
    Array,
    Arrays,
    Ports,
    describe_ports,
    fit_sets,
    gather_sets,
    read_packed,
)
from ci.models.tensors import digest_sets
from ci.models.user_data import read_sets
from ci.models.user_models import DERIVED_SETS
from ci.onnx.models import Shapes, is_quantized, list_free, list_required_inputs, read_model
from ci.onnx.weights import has_other_weights
from provisioning.documents import read_user_file
from provisioning.errors import UsageError, describe_exception
from provisioning.files import hash_file
from provisioning.quoting import python_string

if TYPE_CHECKING:
    from ci.models.model import Model  # it imports torch, which .onnx files do not need

# Names of inputs that accept only a few values, reduced to lowercase letters.
RATES = {"sr", "samplerate", "samplingrate", "samplefreq", "samplingfreq"}
# Operators that keep the value of a tensor with a single element.
PASSING = {"Identity", "Cast", "Reshape", "Gather", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True)
class Source:
    """A model and its inputs. ``digest`` is a hash of everything that determines both.

    ``origin`` is a user's file or a torch model. ``reference`` contains the torch model's outputs
    for ``evaluation``; for a file, it is empty. ``state`` are the buffers that each call of the
    torch model changes. ``made_inputs`` and ``made_calibration`` describe
    inputs that were generated because the user provided too few.
    """

    origin: Model | Path
    digest: str
    evaluation: tuple[Arrays, ...]
    calibration: tuple[Arrays, ...]
    reference: tuple[Arrays, ...] = ()
    made_inputs: str = ""
    made_calibration: str = ""
    state: tuple[str, ...] = ()


def from_torch(model: Model, digest: str) -> Source:
    """Return the source for a model of the suite or from a user's function."""
    from ci.models.eager import find_changed  # it imports torch

    return Source(
        model,
        digest,
        evaluation=_to_arrays(model.evaluation),
        calibration=_to_arrays(model.calibration),
        reference=_to_arrays(model.reference),
        made_inputs=model.made_inputs,
        made_calibration=model.made_calibration,
        state=tuple(find_changed(model.module, model.evaluation[0])),
    )


def _to_arrays(sets: Sequence[Sequence[Any]]) -> tuple[Arrays, ...]:
    return tuple(tuple(tensor.numpy() for tensor in tensors) for tensors in sets)


def from_file(
    path: Path,
    model: onnx.ModelProto,
    external: Sequence[Path],
    data: user_models.Source = user_models.NO_SOURCE,
) -> Source:
    """Return the source for a user's .onnx file that was already read and checked.

    The inputs are the policy's ``data``, or else the sets next to the file: the first MIN_SETS are
    for judging, and the others for calibration. Only a policy can use a set for both. Raises
    UsageError if the data does not match the model, and FailedError if a user's function raises an
    exception.
    """
    inputs = list_inputs(model)
    judged, calibration, made_inputs, made_calibration = gather_sets(
        inputs,
        data,
        lambda: read_beside(path, inputs),
        lambda: find_rates(path, model, inputs),
    )
    # What is compiled also records how its inputs were generated.
    digest = hashlib.sha256(f"{hash_file(path)} {made_inputs}, {made_calibration}".encode())
    for file in external:
        digest.update(hash_file(file).encode())
    for sets in (judged, calibration):
        digest.update(digest_sets(sets).encode())
    return Source(path, digest.hexdigest(), judged, calibration, (), made_inputs, made_calibration)


def read_float(path: Path, quantized: onnx.ModelProto, shapes: Shapes = ()) -> None:
    """Check that a ``quantized`` model could have been made from the float model at ``path``, with
    inputs of these ``shapes``.

    Raises UsageError if read_model rejects the float model, if the float model is itself quantized,
    if ``quantized`` is not, if the inputs or outputs of the two models differ, or if no layer has
    the same weights in both.
    """
    model = read_model(path, shapes)
    check_pair(path.name, is_quantized(model), is_quantized(quantized))
    inputs, quantized_inputs = list_inputs(model), list_inputs(quantized)
    same_inputs = list(inputs.items()) == list(quantized_inputs.items())
    if not same_inputs or _list_output_types(model) != _list_output_types(quantized):
        float_text, quantized_text = describe_ports(inputs), describe_ports(quantized_inputs)
        why = "their inputs are the same, but the number or the types of their outputs differ"
        if float_text != quantized_text:
            why = f"its inputs are {float_text}, but the quantized model's are {quantized_text}"
        raise describe_mismatch(path.name, why)
    if has_other_weights(quantized, model):
        raise describe_mismatch(
            path.name,
            "no layer of the quantized model has the same weights up to rounding as the one of the"
            " same name in it",
        )


def _list_output_types(model: onnx.ModelProto) -> list[int]:
    return [output.type.tensor_type.elem_type for output in model.graph.output]


def list_inputs(model: onnx.ModelProto) -> Ports:
    """Return the dtype and the shape of each input that has no initializer, in the model's
    order."""
    inputs = {}
    for port in list_required_inputs(model):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        shape = tuple(dim.dim_value for dim in port.type.tensor_type.shape.dim)
        inputs[port.name] = dtype, shape
    return inputs


def read_beside(path: Path, inputs: Ports) -> Iterator[Arrays]:
    """Yield the samples next to a model. Raises UsageError if a set does not match the model."""
    yield from read_packed(path, inputs)
    folders = path.parent.glob("test_data_set_*")
    for folder in sorted(folders, key=lambda folder: (len(folder.name), folder)):  # 10 behind 9
        files = [folder / f"input_{index}.pb" for index in range(len(inputs))]
        yield from fit_sets(str(folder), [[_read_tensor(file) for file in files]], inputs)


def find_shapes(path: Path, data: str, model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's inputs in the user's first sample: that of the file
    ``data``, or else that next to the model. Empty if no shape varies, or if there is no set."""
    ports = list_required_inputs(model)
    if not list_free(ports):
        return {}
    names = [port.name for port in ports]
    packed = data or str(path.with_suffix(".npz"))
    sample: Sequence[Any] = ()
    with suppress(UsageError, OSError):
        if os.path.lexists(packed):
            sample = read_sets(packed, names)[0]
        elif not data:
            folder = path.parent / "test_data_set_0"
            sample = [_read_tensor(folder / f"input_{index}.pb") for index in range(len(names))]
    if len(sample) != len(names):
        return {}
    return {name: array.shape for name, array in zip(names, sample, strict=True)}


def _read_tensor(file: Path) -> Array:
    data = read_user_file(file, "the input")
    try:
        return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))
    # Whatever protobuf or onnx raises, a damaged file is the user's to correct.
    except Exception as error:
        why = describe_exception(error)
        raise UsageError(f"{file} cannot be read", why=why, fix="write it again") from error


def find_rates(path: Path, model: onnx.ModelProto, inputs: Ports) -> dict[str, int]:
    """Return a value for each single-element integer input that is named like a sampling rate. The
    value is taken from the model's metadata, or else from a comparison in the model. Raises
    UsageError unless exactly one value is found."""
    metadata = {_plain_name(prop.key): prop.value for prop in model.metadata_props}
    from_metadata = {
        int(metadata[name]) for name in metadata.keys() & RATES if metadata[name].isdecimal()
    }
    rates: dict[str, int] = {}
    for name, (dtype, shape) in inputs.items():
        if _plain_name(name) in RATES and dtype.kind in "iu" and np.prod(shape) == 1:
            candidates = from_metadata or find_compared(model, name)
            if len(candidates) != 1:
                raise _ask_for_rate(path, name, inputs)
            (rates[name],) = candidates
    return rates


def _plain_name(name: str) -> str:
    return "".join(filter(str.isalpha, name.lower()))


def find_compared(model: onnx.ModelProto, name: str) -> set[int]:
    """Return the constants with which the model compares the single-element input ``name``."""
    constants = read_constants(model.graph)
    same_value = {name}  # the input, and what only passes it on
    numbers: set[int] = set()
    for node in model.graph.node:
        if node.op_type in PASSING and node.input[0] in same_value:
            same_value.add(node.output[0])
        if node.op_type == "Equal" and same_value.intersection(node.input):
            for operand in node.input:
                if operand in constants:
                    array = onnx.numpy_helper.to_array(constants[operand])
                    numbers.update(int(number) for number in array.flat)
    return numbers


def _ask_for_rate(path: Path, name: str, inputs: Ports) -> UsageError:
    sets = DERIVED_SETS + 1
    dtype, shape = inputs[name]
    value = f"np.full({[sets, *shape]}, 16000, '{dtype}')"
    arrays = [f"{key}=" + (value if key == name else key.upper()) for key in inputs]
    other_inputs = {key: port for key, port in inputs.items() if key != name}
    samples = python_string(str(path.with_suffix(".npz")))
    return UsageError(
        f"input {name!r} of {path.name} looks like a sampling rate, but its value is not known",
        why="the model does not show which value it accepts, and a random value is probably wrong",
        fix=f"put samples next to the model: np.savez({samples},"
        f" {', '.join(arrays)}), with {describe_ports(other_inputs, sets)}",
    )
