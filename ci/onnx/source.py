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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from ci.graphs.onnx_file import read_constants
from ci.models import user_models
from ci.models.tensors import digest_sets
from ci.models.user_data import find_lacking_axes, read_judged, read_sets
from ci.models.user_models import DERIVED_SETS, RANDOM, SHUFFLED
from ci.onnx.models import Shapes, is_quantized, list_free, list_required_inputs, read_model
from provisioning.console.caller import shown_path
from provisioning.documents import read_user_file
from provisioning.errors import FailedError, UsageError, at_key, describe_exception
from provisioning.files import hash_file
from provisioning.quoting import python_string

if TYPE_CHECKING:
    from ci.models.model import Model  # it imports torch, which .onnx files do not need

SEED = 20250724
RANDOM_IDS = 4  # random integers are below this, because they may be indices of a table
# Names of inputs that accept only a few values, reduced to lowercase letters.
RATES = {"sr", "samplerate", "samplingrate", "samplefreq", "samplingfreq"}
# Operators that keep the value of a tensor with a single element.
PASSING = {"Identity", "Cast", "Reshape", "Gather", "Squeeze", "Unsqueeze"}

Array = NDArray[Any]
Arrays = tuple[Array, ...]
Ports = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape by input name


@dataclass(frozen=True)
class Source:
    """A model and its inputs. ``digest`` is a hash of everything that determines both.

    ``origin`` is a user's file or a torch model. ``reference`` contains the torch model's outputs
    for ``evaluation``; for a file, it is empty. ``made_inputs`` and ``made_calibration`` describe
    inputs that were generated because the user provided too few.
    """

    origin: Model | Path
    digest: str
    evaluation: tuple[Arrays, ...]
    calibration: tuple[Arrays, ...]
    reference: tuple[Arrays, ...] = ()
    made_inputs: str = ""
    made_calibration: str = ""


def from_torch(model: Model, digest: str) -> Source:
    """Return the source for a model of the suite or from a user's function."""
    return Source(
        model,
        digest,
        evaluation=_to_arrays(model.evaluation),
        calibration=_to_arrays(model.calibration),
        reference=_to_arrays(model.reference),
        made_inputs=model.made_inputs,
        made_calibration=model.made_calibration,
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
        path, inputs, data, lambda: find_rates(path, model, inputs)
    )
    # What is compiled also records how its inputs were generated.
    digest = hashlib.sha256(f"{hash_file(path)} {made_inputs}, {made_calibration}".encode())
    for file in external:
        digest.update(hash_file(file).encode())
    for sets in (judged, calibration):
        digest.update(digest_sets(sets).encode())
    return Source(path, digest.hexdigest(), judged, calibration, (), made_inputs, made_calibration)


class GatheredSets(NamedTuple):
    """The samples of a file: those that are judged, and those for calibration. The texts describe
    samples that were generated, and are empty if none were."""

    judged: tuple[Arrays, ...]
    calibration: tuple[Arrays, ...]
    made_inputs: str
    made_calibration: str


def gather_sets(
    path: Path,
    inputs: Ports,
    data: user_models.Source,
    find_fixed: Callable[[], Mapping[str, int]],
    *,
    calibrates: bool = True,
) -> GatheredSets:
    """Return the samples for a file with these ``inputs``: the policy's ``data``, or else the sets
    next to the file, completed by generated ones. ``find_fixed`` returns inputs that need certain
    values. A lane that ``calibrates`` nothing judges all sets next to the file. Raises the errors
    of from_file."""
    has_all_data = data.calibration and data.inputs
    beside = () if has_all_data else tuple(read_beside(path, inputs))
    judged = beside[: user_models.MIN_SETS] if calibrates else beside
    if data.inputs:
        with at_key("inputs"):
            judged = fit_sets(data.inputs, read_judged(data.inputs, [*inputs]), inputs)
    calibration = tuple(arrays for arrays in beside if not _contains(judged, arrays))
    if data.calibration:
        with at_key("calibration"):
            calibration = fit_sets(data.calibration, read_sets(data.calibration, [*inputs]), inputs)
    examples = judged or calibration
    kind = SHUFFLED if examples else RANDOM
    made_inputs = kind if len(judged) < user_models.MIN_SETS else ""
    made_calibration = "" if calibration else kind
    fixed = {} if examples else find_fixed()
    if made_inputs:
        missing = user_models.MIN_SETS - len(judged)
        judged = (*judged, *make_sets(inputs, examples, fixed, missing, SEED))
    if made_calibration:
        # Another seed, so that no judged set is calibrated on.
        calibration = make_sets(inputs, examples, fixed, DERIVED_SETS + 1, SEED + 1)
    return GatheredSets(judged, calibration, made_inputs, made_calibration)


def _contains(sets: Sequence[Arrays], arrays: Arrays) -> bool:
    return any(all(map(np.array_equal, arrays, candidate)) for candidate in sets)


def read_float(path: Path, quantized: onnx.ModelProto, shapes: Shapes = ()) -> None:
    """Check that a ``quantized`` model could have been made from the float model at ``path``, with
    inputs of these ``shapes``.

    Raises UsageError if read_model rejects the float model, if the float model is itself quantized,
    if ``quantized`` is not, or if the inputs or outputs of the two models differ.
    """
    model = read_model(path, shapes)
    check_pair(path.name, is_quantized(model), is_quantized(quantized))
    inputs, quantized_inputs = list_inputs(model), list_inputs(quantized)
    same_inputs = list(inputs.items()) == list(quantized_inputs.items())
    if not same_inputs or _list_output_types(model) != _list_output_types(quantized):
        float_text, quantized_text = _describe_ports(inputs), _describe_ports(quantized_inputs)
        why = "their inputs are the same, but the number or the types of their outputs differ"
        if float_text != quantized_text:
            why = f"its inputs are {float_text}, but the quantized model's are {quantized_text}"
        raise describe_mismatch(path.name, why)


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
    packed = path.with_suffix(".npz")
    if os.path.lexists(packed):  # a pipe, or a link to nothing, is refused and not left out
        yield from fit_sets(str(packed), read_sets(str(packed), [*inputs]), inputs)
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


def fit_sets(place: str, sets: Sequence[Sequence[Any]], inputs: Ports) -> tuple[Arrays, ...]:
    """Return the sets as arrays, in the order of ``inputs``. A mapping whose keys are the names of
    the inputs may be in any order; all other sets must be in this order. Raises UsageError if a set
    has different dtypes or shapes."""
    rows = []
    for number, values in enumerate(sets):
        if len(values) == 1 and isinstance(values[0], Mapping):
            by_name = values[0]
            has_names = by_name.keys() == inputs.keys()
            values = [by_name[name] for name in inputs] if has_names else [*by_name.values()]
        # copy() also makes an array row-major.
        row = tuple(np.asarray(value).copy() for value in values)
        if [(array.dtype, array.shape) for array in row] != list(inputs.values()):
            stacked = [(len(sets), *array.shape) for array in row]
            called = shown_path(Path(place))
            if lacking := find_lacking_axes(stacked, [shape for _, shape in inputs.values()]):
                arrays = (f"{array.dtype}{[len(sets), *array.shape]}" for array in row)
                raise UsageError(
                    f"{called} has {lacking.description}",
                    why=f"it has {', '.join(arrays)}, and needs"
                    f" {_describe_ports(inputs, lacking.samples)}",
                    fix=lacking.fix,
                )
            described = ", ".join(f"{array.dtype}{list(array.shape)}" for array in row)
            raise UsageError(
                f"{called} does not match the model",
                why=f"its set {number} has {described}",
                fix=f"provide one array per input: {_describe_ports(inputs)}",
            )
        rows.append(row)
    return tuple(rows)


def _describe_ports(inputs: Ports, *sets: int) -> str:
    """Return text such as ``x float32[1, 3], ids int64[4]``. ``sets`` are extra dimensions in front
    of each shape."""
    return ", ".join(f"{name} {dtype}{[*sets, *shape]}" for name, (dtype, shape) in inputs.items())


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
        f" {', '.join(arrays)}), with {_describe_ports(other_inputs, sets)}",
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


def make_sets(
    inputs: Ports, examples: Sequence[Arrays], fixed: Mapping[str, int], count: int, seed: int
) -> tuple[Arrays, ...]:
    """Return ``count`` samples; the same seed makes the same sets. If there are ``examples``,
    their elements are shuffled, which keeps their range. A floating-point input whose elements are
    all equal gets normal noise instead.

    Without examples, floating-point elements are normally distributed and integers are below
    RANDOM_IDS. ``fixed`` maps names of inputs to the value of all their elements.
    """
    random = np.random.default_rng(seed)

    def draw_normal(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        return random.standard_normal(shape).astype(dtype)

    def draw(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        if name in fixed:
            return np.full(shape, fixed[name], dtype)
        if dtype.kind == "f":
            return draw_normal(dtype, shape)
        return random.integers(0, 2 if dtype.kind == "b" else RANDOM_IDS, shape).astype(dtype)

    def shuffle(array: Array) -> Array:
        if array.dtype.kind == "f" and np.all(array == array.flat[0]):
            return array + draw_normal(array.dtype, array.shape)
        return random.permutation(array.reshape(-1)).reshape(array.shape)

    samples: list[Arrays] = []
    for number in range(count):
        if examples:
            samples.append(tuple(map(shuffle, examples[number % len(examples)])))
        else:
            drawn = [draw(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
            samples.append(tuple(drawn))
    return tuple(samples)
