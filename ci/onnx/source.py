"""A model to compile as ONNX, whatever it comes as, with the inputs that it is judged on.

An .onnx file brings its inputs in one of two ways: folders test_data_set_0, test_data_set_1 ...
next to it, each with input_0.pb, input_1.pb ... (as the ONNX model zoo packs them), or a file of
the same name that ends in .npz with an array per input, [input set, *shape]. Without either they
are random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ci.models.model import DERIVED_SETS, MIN_SETS, Model
from provisioning.errors import UsageError
from provisioning.files import hash_file

SUFFIX = ".onnx"
SEED = 20250724
RANDOM_IDS = 4  # random integers stay below: they may be indices of a table

Array = NDArray[Any]
Arrays = tuple[Array, ...]


@dataclass(frozen=True)
class Source:
    """``digest`` names all that determines the float model and its inputs.

    ``origin`` is a model of torch, which makes ``reference`` of ``evaluation``, or a user's file.
    """

    origin: Model | Path
    digest: str
    evaluation: tuple[Arrays, ...]
    calibration: tuple[Arrays, ...]
    reference: tuple[Arrays, ...] = ()


def from_torch(model: Model, digest: str) -> Source:
    """A suite model, or what a user's factory made."""

    def plain(sets: Sequence[Sequence[Any]]) -> tuple[Arrays, ...]:
        return tuple(tuple(tensor.numpy() for tensor in tensors) for tensors in sets)

    sets = (model.evaluation, model.calibration, model.reference)
    return Source(model, digest, *map(plain, sets))


def from_file(path: Path, model: onnx.ModelProto, external: Sequence[Path]) -> Source:
    """A user's .onnx, which was read and found to be sound. Raises UsageError for its data."""
    inputs = list_inputs(model)
    sets = tuple(read_sets(path, inputs))
    if len(sets) < MIN_SETS:
        sets = (*sets, *draw_sets(inputs, max(MIN_SETS, DERIVED_SETS + 1) - len(sets)))
    digest = hashlib.sha256(hash_file(path).encode())
    for file in external:
        digest.update(f"{file.name} {hash_file(file)}".encode())
    for arrays in sets:
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return Source(path, digest.hexdigest(), sets[:MIN_SETS], sets)


def list_inputs(model: onnx.ModelProto) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """dtype and shape of each input that no initializer fills, in the model's order."""
    known = {one.name for one in model.graph.initializer}
    return {
        one.name: (
            onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type),
            tuple(size.dim_value for size in one.type.tensor_type.shape.dim),
        )
        for one in model.graph.input
        if one.name not in known
    }


def read_sets(path: Path, inputs: Mapping[str, tuple[Any, tuple[int, ...]]]) -> Iterator[Arrays]:
    """The input sets next to a model. Raises UsageError for one that does not fit it."""
    packed = path.with_suffix(".npz")
    if packed.is_file():
        held = _read_arrays(packed)
        if held.keys() != inputs.keys():
            raise _misfit(packed, f"it has {', '.join(held) or 'nothing'}", inputs)
        for row in zip(*(held[name] for name in inputs), strict=False):
            yield _fit(packed, row, inputs)
    for folder in sorted(path.parent.glob("test_data_set_*"), key=lambda one: (len(one.name), one)):
        files = [folder / f"input_{index}.pb" for index in range(len(inputs))]
        yield _fit(folder, [_read_arrays(file) for file in files], inputs)


def _read_arrays(file: Path) -> Any:
    """The arrays of an .npz by name, or the one of a .pb."""
    try:
        if file.suffix == ".npz":
            with file.open("rb") as stream:
                return dict(np.load(stream, allow_pickle=False))
        return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"{file} cannot be read", why=why, fix="write it again") from error


def _fit(place: Path, row: Sequence[Any], inputs: Mapping[str, Any]) -> Arrays:
    found = [(np.asarray(one).dtype, np.asarray(one).shape) for one in row]
    if found != list(inputs.values()):
        told = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in found)
        raise _misfit(place, f"it has {told}", inputs)
    return tuple(np.ascontiguousarray(one) for one in row)


def _misfit(place: Path, why: str, inputs: Mapping[str, tuple[Any, tuple[int, ...]]]) -> UsageError:
    wanted = (f"{name} {dtype}{list(shape)}" for name, (dtype, shape) in inputs.items())
    return UsageError(
        f"{place} does not fit the model", why=why, fix=f"an array per input: {', '.join(wanted)}"
    )


def draw_sets(
    inputs: Mapping[str, tuple[Any, tuple[int, ...]]], count: int, seed: int = SEED
) -> tuple[Arrays, ...]:
    """Seeded random inputs: normal floats, integers below RANDOM_IDS, booleans."""
    random = np.random.default_rng(seed)

    def draw(dtype: Any, shape: tuple[int, ...]) -> Array:
        if np.issubdtype(dtype, np.floating):
            return random.standard_normal(shape).astype(dtype)
        return random.integers(0, 2 if dtype.kind == "b" else RANDOM_IDS, shape).astype(dtype)

    return tuple(tuple(draw(*one) for one in inputs.values()) for _ in range(count))
