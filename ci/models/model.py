"""A model to lower, with its inputs, and the SHA-256 digest that cache keys contain."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ci.models.calls import digest_calls
from ci.models.eager import compute_reference, flatten_outputs
from ci.models.exports import export_module
from ci.models.factory import Inputs, fit_sets, unpack
from ci.models.lowering_options import Choices
from ci.models.numerics import fix_numerics
from ci.models.user_code import blame_model, call_function, find_origin
from ci.models.user_data import read_judged, read_sets
from ci.models.user_models import (
    DERIVED_SETS,
    MIN_SETS,
    NO_SOURCE,
    SHUFFLED,
    Source,
    is_function,
    is_suite,
)
from provisioning.errors import at_key


@dataclass(frozen=True)
class Model:
    """A module in eval mode, with the samples for judging it and those for calibrating it.

    ``reference`` holds its outputs for ``evaluation``. ``made_inputs`` and ``made_calibration`` are
    notes on generated inputs for the report: RANDOM, SHUFFLED or an empty string.
    """

    name: str
    module: nn.Module
    evaluation: tuple[Inputs, ...]
    calibration: tuple[Inputs, ...]
    reference: tuple[Inputs, ...] = ()
    made_inputs: str = ""
    made_calibration: str = ""


def load_model(reference: str, source: Source = NO_SOURCE) -> Model:
    """Return a model of the suite or a user's model, with its outputs for the inputs on which it is
    judged.

    The judged inputs are the source's ``inputs``, or else the first MIN_SETS of the example and the
    calibration samples. If there are fewer, variations of the example are added. Raises UsageError
    if the reference, a data file or the factory's result is invalid, and FailedError if the user's
    code fails.
    """
    module, example, calibration, source_sets = read_source(reference, source)
    # Seen with ExecuTorch 1.5.1: if a convolution has channels-last weights, the program declares
    # its output as channels-last, but QNN writes it row-major (SQNR -3 dB).
    with blame_model(Path(reference).name, " (in module.eval())"):
        module.eval().to(memory_format=torch.contiguous_format)
    calibration_sets = (example, *calibration) if calibration else derive_inputs(example)
    if len(calibration_sets) < MIN_SETS:
        variations = derive_inputs(example)[1:]  # without the example
        calibration_sets = (*calibration_sets, *variations)
    judged_sets = source_sets or calibration_sets[:MIN_SETS]

    # The report says which inputs were generated, except for models of the suite.
    made_inputs = made_calibration = ""
    if not is_suite(reference):
        if not source_sets and len(calibration) + 1 < MIN_SETS:
            made_inputs = SHUFFLED
        if not calibration:
            made_calibration = SHUFFLED
    # Before the reference: on AMD hosts, ExecuTorch's quantizer disables oneDNN for the whole
    # process, and references from before and after that differ in the last bits (seen with a
    # depthwise convolution).
    fix_numerics()
    outputs = compute_reference(Path(reference).name, module, judged_sets)
    return Model(
        reference, module, judged_sets, calibration_sets, outputs, made_inputs, made_calibration
    )


def read_source(
    reference: str, source: Source
) -> tuple[nn.Module, Inputs, tuple[Inputs, ...], tuple[Inputs, ...]]:
    """Return the module, the example, the calibration samples, and the source's samples for judging
    (empty if it has none). Raises UsageError or FailedError as load_model does. A message about a
    data file starts with the file's key in the policy."""
    module, example, calibration = make_model(reference, source.choices)
    results: dict[str, tuple[Inputs, ...]] = {"calibration": calibration, "inputs": ()}
    for key, file, read, kind in (
        ("calibration", source.calibration, read_sets, "calibration sample"),
        ("inputs", source.inputs, read_judged, "sample"),
    ):
        with at_key(key):
            if file:
                sets = read(file)
                if not is_function(file):  # a function has to return tensors
                    sets = [tuple(map(torch.from_numpy, arrays)) for arrays in sets]
                _, *rows = fit_sets(Path(file).name, example, sets, kind)
                results[key] = tuple(rows)
    return module, example, results["calibration"], results["inputs"]


def count_judged(reference: str, source: Source) -> int:
    """Return the number of samples on which a model is judged. The model is not run. Raises
    UsageError or FailedError as load_model does."""
    *_, judged = read_source(reference, source)
    return len(judged) or MIN_SETS


def make_model(reference: str, choices: Choices) -> Made:
    """Return the module, the example and the calibration samples from a user's factory or a model
    of the suite. Each method in ``choices`` is another function in the same file; their results are
    joined into one."""
    file, _, _ = reference.rpartition(":")
    results = {FORWARD: unpack(reference, call_function(reference))}
    for name in choices.methods:
        function = f"{file or reference}:{name}"
        results[name] = unpack(function, call_function(function))
    return join_methods(results) if choices.methods else results[FORWARD]


def split_model(model: Model) -> dict[str, Model]:
    """Return each method of a model as a separate model. The keys are the names of the methods."""
    evaluation = [split_inputs(model.module, inputs) for inputs in model.evaluation]
    calibration = [split_inputs(model.module, inputs) for inputs in model.calibration]
    methods = {}
    for name, module in split_module(model.module).items():
        methods[name] = Model(
            f"{model.name}.{name}",
            module,
            tuple(inputs[name] for inputs in evaluation),
            tuple(inputs[name] for inputs in calibration),
        )
    return methods


def derive_inputs(example: Inputs) -> tuple[Inputs, ...]:
    """Return ``example`` and DERIVED_SETS variations of it, which are the same in each call.

    The elements of each tensor are shuffled, which keeps their range. If all elements are equal,
    normal noise is added to a floating-point tensor, and any other tensor stays unchanged.
    """
    sets = [example]
    for number in range(DERIVED_SETS):
        generator = torch.Generator().manual_seed(number)
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
    """Return the SHA-256 of the calls or the graph of each method of a model, and of the model's
    weights, inputs and reference outputs."""
    # What is lowered also records how its inputs were generated.
    digest = hashlib.sha256(f"{model.made_inputs}, {model.made_calibration}".encode())
    inputs = split_inputs(model.module, model.evaluation[0])
    for name, module in split_module(model.module).items():
        sample = inputs[name]
        computed = digest_calls(module, sample, update_tensor) or digest_graph(module, sample)
        digest.update(f"{name} {computed}".encode())
    for tensors in (*model.evaluation, *model.calibration, *model.reference):
        digest.update(f"{len(tensors)} tensors".encode())
        for tensor in tensors:
            update_tensor(digest, tensor)
    return digest.hexdigest()


def digest_weights(module: nn.Module) -> str:
    """Return the SHA-256 of a module's parameters and buffers, including their names."""
    digest = hashlib.sha256()
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in sorted(state.items()):
        digest.update(f"{len(name)}:{name}".encode())
        update_tensor(digest, tensor)
    return digest.hexdigest()


@cache
def load_digested(reference: str, source: Source = NO_SOURCE) -> tuple[Model, str]:
    """Return a model and its digest. Each process loads a model only once."""
    loaded = load_model(reference, source)
    return loaded, digest_model(loaded)


def preload_model(reference: str, source: Source) -> None:
    """Load a model before the worker forks, if it belongs to the suite and uses none of the user's
    data. A user's code and data may be loaded only in a fork."""
    if is_suite(reference) and not source.has_data:
        load_digested(reference, source)


def preload_exports(reference: str, source: Source) -> None:
    """Export a model that ``preload_model`` loads, in both ways that a lowering needs."""
    if not is_suite(reference) or source.has_data:
        return
    model, _ = load_digested(reference, source)
    for strict in (True, False):
        with suppress(Exception):  # the lowering exports again, and reports why it cannot
            export_module(model.module, model.evaluation[0], strict=strict)


def before_forks() -> None:
    """Run an operator once, before workers are forked, because the first run is slow."""
    fix_numerics()
    digest_calls(nn.Identity(), (torch.ones(1),), update_tensor)


def digest_graph(module: nn.Module, inputs: Inputs) -> str:
    """Return the SHA-256 of a module's exported graph and weights. If the module cannot be
    exported, the digest is random."""
    try:
        # Measured: without strictness, a digest takes 0.02 to 0.19 s per model, and it is equal in
        # all processes.
        program = export_module(module, inputs, strict=False)
    except Exception:  # noqa: BLE001 - the lowering also exports, and reports why
        return secrets.token_hex()
    digest = hashlib.sha256()
    for word in _describe(program):
        digest.update(f"{len(word)}:{word}".encode())
    for name, value in (*sorted(program.state_dict.items()), *sorted(program.constants.items())):
        digest.update(f"{len(name)}:{name}".encode())
        if isinstance(value, Tensor):
            update_tensor(digest, value)
        else:
            digest.update(type(value).__qualname__.encode())
    return digest.hexdigest()


def _describe(program: Any) -> Iterable[str]:
    for specs in (program.graph_signature.input_specs, program.graph_signature.output_specs):
        yield from map(repr, specs)
    yield repr(program.call_spec)
    for name, part in program.graph_module.named_modules():
        yield name
        if isinstance(part, GraphModule):
            yield from map(_describe_node, part.graph.nodes)


def _describe_node(node: Node) -> str:
    name = getattr(node.target, "__name__", "")
    target = f"{getattr(node.target, '__module__', '')}.{name}" if name else str(node.target)
    shapes = []
    for leaf in torch.utils._pytree.tree_leaves(node.meta.get("val")):
        is_tensor = isinstance(leaf, Tensor)
        shapes.append(f"{leaf.dtype}{tuple(leaf.shape)}" if is_tensor else repr(leaf))
    place = find_origin(node)
    return f"{node.op} {node.name} {target} {node.args} {node.kwargs} {shapes} {place}"


def update_tensor(digest: Any, tensor: Tensor) -> None:
    """Add the dtype, shape, strides and elements of a tensor to the digest."""
    dense = tensor.detach().cpu()
    if dense.layout is not torch.strided:
        digest.update(str(dense.layout).encode())
        dense = dense.to_dense()
    digest.update(f"{dense.dtype}{tuple(dense.shape)}{dense.stride()}".encode())
    row_major = dense.contiguous()
    size_bytes = math.prod(row_major.shape) * row_major.element_size()
    if size_bytes:  # an empty tensor cannot be viewed as bytes
        digest.update(bytes(row_major.reshape(-1).view(torch.uint8).numpy()))


FORWARD = "forward"
Made = tuple[nn.Module, Inputs, tuple[Inputs, ...]]


class Methods(nn.Module):
    """Joins the modules of several methods. ``counts`` maps each method to the number of its
    inputs."""

    def __init__(self, modules: Mapping[str, nn.Module], counts: Mapping[str, int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules.values())
        self.names, self.counts = tuple(modules), dict(counts)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all methods, in order."""
        outputs: list[Tensor] = []
        for part, part_inputs in zip(self.parts, self.split(inputs).values(), strict=True):
            outputs += flatten_outputs(part(*part_inputs))
        return tuple(outputs)

    def split(self, inputs: Inputs) -> dict[str, Inputs]:
        """Return the inputs of each method, split from the concatenated ``inputs``. The keys are
        the names of the methods."""
        by_method, start = {}, 0
        for name in self.names:
            by_method[name] = inputs[start : start + self.counts[name]]
            start += self.counts[name]
        return by_method


def join_methods(results: Mapping[str, Made]) -> Made:
    """Join the factories' results for several methods: modules, examples and calibration
    samples."""
    modules = {name: module for name, (module, _, _) in results.items()}
    counts = {name: len(example) for name, (_, example, _) in results.items()}
    example = _concatenate([example for _, example, _ in results.values()])
    sets = zip(*(calibration for _, _, calibration in results.values()), strict=False)
    return Methods(modules, counts), example, tuple(map(_concatenate, sets))


def split_module(module: nn.Module) -> dict[str, nn.Module]:
    """Return the module of each method. The keys are the names of the methods. A module that is not
    a Methods object has only the method ``forward``."""
    if not isinstance(module, Methods):
        return {FORWARD: module}
    return dict(zip(module.names, module.parts, strict=True))


def split_inputs(module: nn.Module, inputs: Inputs) -> dict[str, Inputs]:
    """Return the inputs of each method of a module, split from ``inputs``. The keys are the names
    of the methods."""
    return module.split(inputs) if isinstance(module, Methods) else {FORWARD: inputs}


def join_modules(module: nn.Module, modules: Mapping[str, Any]) -> Any:
    """Return a module like ``module`` in which the methods are replaced by ``modules``."""
    return Methods(modules, module.counts) if isinstance(module, Methods) else modules[FORWARD]


def _concatenate(sets: Sequence[Inputs]) -> Inputs:
    return tuple(tensor for inputs in sets for tensor in inputs)
