"""A model to lower: one of the suite by name, or a user's ``path/to/file.py:factory``.

A factory returns ``(module, example_inputs)`` or ``(module, example_inputs, calibration_inputs)``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ci.lowering.suite import SUITE, seeding
from provisioning.errors import UsageError

MIN_SETS = 4
DERIVED_SETS = 7
CONTRACT = "a factory returns (module, example_inputs) or (module, example_inputs, calibration)"

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Model:
    """A module in eval mode, the input sets it is judged on, and those it is calibrated on.

    ``sources`` are the files that define it.
    """

    name: str
    module: nn.Module
    evaluation: tuple[Inputs, ...]
    calibration: tuple[Inputs, ...]
    sources: tuple[Path, ...]


def load_model(reference: str) -> Model:
    """Build a model. Raises UsageError when the reference or what it returns is not of the form."""
    in_suite = reference in SUITE
    written, made = _call_suite(reference) if in_suite else _call_factory(reference)
    module, example, calibration = _unpack(reference, made)
    module.eval()
    sets = (example, *calibration) if calibration else derive_inputs(example)
    if len(sets) < MIN_SETS:
        sets = (*sets, *derive_inputs(example)[1:])
    sources = {*written, *_own_files(_defining_modules(module))}
    return Model(reference, module, sets[:MIN_SETS], sets, tuple(sorted(sources)))


def _call_suite(name: str) -> tuple[set[Path], object]:
    """The files of a model of the suite, whatever was imported before, and what it makes."""
    found = importlib.import_module(f"ci.lowering.suite.{name}")
    return set(_own_files([found, seeding])), found.make_case()


def _call_factory(reference: str) -> tuple[set[Path], object]:
    """The files that a user's factory brought into this process, and what it made.

    Right only where no other user's model was loaded in the process.
    """
    before = set(sys.modules)
    file, separator, attribute = reference.rpartition(":")
    path = Path(file).resolve()
    if not separator or not path.is_file():
        raise UsageError(f"no model {reference!r}", why=f"{path} is not a file")
    # Python prepends the directory of a script; siblings of the model are importable alike.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    factory = getattr(loaded, attribute, None)
    if not callable(factory):
        raise UsageError(f"{path} has no function {attribute!r}", todo=CONTRACT)
    made = factory()
    brought = [sys.modules[name] for name in sys.modules.keys() - before]
    return {path, *_own_files(brought)}, made


def _unpack(reference: str, made: Any) -> tuple[nn.Module, Inputs, tuple[Inputs, ...]]:
    wrong = UsageError(f"{reference} did not return what is wanted", todo=CONTRACT)
    if not isinstance(made, tuple) or len(made) not in {2, 3} or not isinstance(made[0], nn.Module):
        raise wrong
    sets = [made[1], *(made[2] if len(made) == 3 and made[2] is not None else [])]
    as_tuples = [(inputs,) if isinstance(inputs, Tensor) else tuple(inputs) for inputs in sets]
    if any(not isinstance(tensor, Tensor) for inputs in as_tuples for tensor in inputs):
        raise wrong
    shapes = {tuple((t.shape, t.dtype) for t in inputs) for inputs in as_tuples}
    if len(shapes) != 1:
        raise UsageError(
            f"{reference} gives inputs of different shapes or dtypes", why=f"{len(shapes)} kinds"
        )
    return made[0], as_tuples[0], tuple(as_tuples[1:])


def derive_inputs(example: Inputs, seed: int = 0) -> tuple[Inputs, ...]:
    """``example`` and DERIVED_SETS seeded variations of it.

    Elements are shuffled, which keeps their range; a constant floating tensor gets normal noise.
    """
    sets = [example]
    for number in range(DERIVED_SETS):
        generator = torch.Generator().manual_seed(seed + number)
        sets.append(tuple(_vary(tensor, generator) for tensor in example))
    return tuple(sets)


def _vary(tensor: Tensor, generator: torch.Generator) -> Tensor:
    flat = tensor.reshape(-1)
    if flat.numel() > 1 and bool((flat != flat[0]).any()):
        return flat[torch.randperm(flat.numel(), generator=generator)].reshape(tensor.shape)
    if tensor.is_floating_point():
        return tensor + torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    return tensor


def _defining_modules(module: nn.Module) -> Iterable[ModuleType]:
    for child in module.modules():
        found = inspect.getmodule(type(child))
        if found is not None:
            yield found


def _own_files(modules: Iterable[ModuleType]) -> Iterable[Path]:
    """Files of modules that are neither the standard library's nor an installed package's."""
    paths = sysconfig.get_paths()
    foreign = tuple({paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    for module in modules:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(foreign):
            yield Path(file).resolve()


def hash_model(model: Model, context: Sequence[str]) -> str:
    """SHA-256 over what determines a lowered program: sources, weights, inputs and ``context``."""
    digest = hashlib.sha256()
    for word in context:
        digest.update(f"{len(word)}:{word}".encode())
    for source in model.sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    for name, tensor in sorted(model.module.state_dict().items()):
        digest.update(name.encode())
        _hash_tensor(digest, tensor)
    for inputs in model.calibration:
        for tensor in inputs:
            _hash_tensor(digest, tensor)
    return digest.hexdigest()


def _hash_tensor(digest: Any, tensor: Tensor) -> None:
    dense = tensor.detach().cpu().contiguous()
    digest.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
    count = math.prod(dense.shape) * dense.element_size()
    digest.update(bytes(dense.reshape(-1).view(torch.uint8).numpy()) if count else b"")
