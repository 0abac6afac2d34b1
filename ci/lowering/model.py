"""A model to lower, with what it is judged on, and the SHA-256 of what determines its program."""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ci.lowering.digests.graph_digest import digest_graph, update_tensor
from ci.lowering.factory import Inputs, call_factory, unpack
from ci.lowering.references.eager import compute_reference
from ci.lowering.references.numerics import fix_numerics
from ci.lowering.suite import SUITE
from ci.lowering.users.data import read_sets
from ci.lowering.users.entry import NO_SOURCE, Source
from provisioning.errors import UsageError

MIN_SETS = 4
DERIVED_SETS = 7


@dataclass(frozen=True)
class Model:
    """A module in eval mode, the input sets it is judged on, and those it is calibrated on.

    ``reference`` is its outputs for ``evaluation``.
    """

    name: str
    module: nn.Module
    evaluation: tuple[Inputs, ...]
    calibration: tuple[Inputs, ...]
    reference: tuple[Inputs, ...] = ()


def load_model(reference: str, source: Source = NO_SOURCE) -> Model:
    """Build a model, or load the user's, and run it on what it is judged on: the ``inputs`` of
    its source, else the first MIN_SETS of example and calibration.

    Raises UsageError when the reference or what it returns is not of the form, FailedError when
    its own code fails.
    """
    in_suite = reference in SUITE
    made = _call_suite(reference) if in_suite else call_factory(reference)
    module, example, calibration = unpack(reference, made)
    if source.calibration:
        *_, calibration = unpack(reference, (module, example, read_sets(source.calibration)))
    # Seen with ExecuTorch 1.5.1: what a convolution with channels-last weights gives is declared
    # channels-last, and QNN writes it row-major (SQNR -3 dB).
    module.eval().to(memory_format=torch.contiguous_format)
    sets = (example, *calibration) if calibration else derive_inputs(example)
    if len(sets) < MIN_SETS:
        sets = (*sets, *derive_inputs(example)[1:])
    judged = sets[:MIN_SETS]
    if source.inputs:
        *_, judged = unpack(reference, (module, example, read_sets(source.inputs)))
        if len(judged) < MIN_SETS:
            why = f"{Path(source.inputs).name} has {len(judged)} input sets"
            raise UsageError("too few inputs to judge on", why=why, fix=f"give {MIN_SETS} or more")
    fix_numerics()
    outputs = compute_reference(Path(reference).name, module, judged)
    return Model(reference, module, judged, sets, outputs)


def _call_suite(name: str) -> object:
    return importlib.import_module(f"ci.lowering.suite.{name}").make_case()


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


def digest_model(model: Model) -> str:
    """SHA-256 over the graph, the inputs, and the outputs that are kept with the program."""
    digest = hashlib.sha256(digest_graph(model.module, model.evaluation[0]).encode())
    for tensors in (*model.evaluation, *model.calibration, *model.reference):
        digest.update(f"{len(tensors)} tensors".encode())
        for tensor in tensors:
            update_tensor(digest, tensor)
    return digest.hexdigest()
