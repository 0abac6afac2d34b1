"""A model to lower, with what it is judged on, and the SHA-256 of what determines its program."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ci.lowering.eager import compute_reference
from ci.lowering.factory import Inputs, call_factory, own_files, unpack
from ci.lowering.suite import SUITE, seeding

MIN_SETS = 4
DERIVED_SETS = 7


@dataclass(frozen=True)
class Model:
    """A module in eval mode, the input sets it is judged on, and those it is calibrated on.

    ``sources`` are the files that define it, ``reference`` its outputs for ``evaluation``.
    """

    name: str
    module: nn.Module
    evaluation: tuple[Inputs, ...]
    calibration: tuple[Inputs, ...]
    sources: tuple[Path, ...]
    reference: tuple[Inputs, ...] = ()


def load_model(reference: str) -> Model:
    """Build a model and run it. Raises UsageError when the reference or what it returns is not of
    the form, FailedError when its own code fails."""
    in_suite = reference in SUITE
    written, made = _call_suite(reference) if in_suite else call_factory(reference)
    module, example, calibration = unpack(reference, made)
    # Seen with ExecuTorch 1.5.1: what a convolution with channels-last weights gives is declared
    # channels-last, and QNN writes it row-major (SQNR -3 dB).
    module.eval().to(memory_format=torch.contiguous_format)
    sets = (example, *calibration) if calibration else derive_inputs(example)
    if len(sets) < MIN_SETS:
        sets = (*sets, *derive_inputs(example)[1:])
    sources = {*written, *own_files(_defining_modules(module))}
    judged = sets[:MIN_SETS]
    outputs = compute_reference(Path(reference).name, module, judged)
    return Model(reference, module, judged, sets, tuple(sorted(sources)), outputs)


def _call_suite(name: str) -> tuple[set[Path], object]:
    """The files of a model of the suite, whatever was imported before, and what it makes."""
    found = importlib.import_module(f"ci.lowering.suite.{name}")
    return set(own_files([found, seeding])), found.make_case()


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


def hash_model(model: Model, context: Sequence[str]) -> str:
    """SHA-256 over what determines a lowered program: sources, weights, inputs and ``context``.

    The name of the factory and the outputs stand for what is in none of these: two factories of
    one file, a number out of a configuration file, a table that is no persistent buffer.
    """
    digest = hashlib.sha256()
    for word in (model.name.rpartition(":")[2], *context, *_packages(model.module)):
        digest.update(f"{len(word)}:{word}".encode())
    for source in model.sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    for name, tensor in sorted(model.module.state_dict().items()):
        digest.update(name.encode())
        _hash_tensor(digest, tensor)
    for tensors in (*model.calibration, *model.reference):
        digest.update(f"{len(tensors)} tensors".encode())
        for tensor in tensors:
            _hash_tensor(digest, tensor)
    return digest.hexdigest()


def _packages(module: nn.Module) -> list[str]:
    """The packages that define parts of a module, with their versions."""
    names = {type(child).__module__.partition(".")[0] for child in module.modules()}
    return [f"{name} {getattr(sys.modules.get(name), '__version__', '')}" for name in sorted(names)]


def _hash_tensor(digest: Any, tensor: Tensor) -> None:
    dense = tensor.detach().cpu().contiguous()
    digest.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
    count = math.prod(dense.shape) * dense.element_size()
    digest.update(bytes(dense.reshape(-1).view(torch.uint8).numpy()) if count else b"")
