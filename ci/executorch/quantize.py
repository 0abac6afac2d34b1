"""Quantization for QNN: calibration, training, per-part schemes and recipes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import (
    FusedMovingAvgObsFakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from ci.analysis.mixtures import assign_parts, belongs
from ci.executorch.compiled_types import mark_annotated, mark_parts
from ci.executorch.internals import ModuleQConfig, QnnQuantizer, QuantDtype, QuantRecipe, qc_schema
from ci.graphs.torch_candidates import list_candidates, mark_origins
from ci.models.eager import copy_inputs, flatten_outputs, keep_state, run_eager
from ci.models.exports import export_module
from ci.models.factory import Inputs
from ci.models.lowering_options import NO_CHOICES, Choices, Part
from ci.models.model import Model, join_modules, split_model, split_module
from ci.models.schemes import Scheme
from ci.models.user_code import call_function
from ci.report.text import name_some
from provisioning.errors import FailedError, UsageError
from provisioning.manifest.targets import Backend

BLOCK_SCALE_STEPS = 16


def make_quantizer(soc: str, backend: Backend = Backend.HTP) -> QnnQuantizer:
    """Return ExecuTorch's quantizer for an SoC and a backend."""
    chipset = qc_schema.QcomChipset[soc]
    if backend is Backend.HTP:
        return QnnQuantizer(soc_model=chipset)
    kind = qc_schema.QnnExecuTorchBackendType[f"k{backend.kind.capitalize()}Backend"]
    return QnnQuantizer(backend=kind, soc_model=chipset)


def quantize_model(
    model: Model,
    scheme: Scheme,
    soc: str,
    choices: Choices = NO_CHOICES,
    backend: Backend = Backend.HTP,
) -> Any:
    """Return the model's module, with each method quantized if the scheme is a quantized one. The
    result can run eagerly and can be lowered to QNN."""
    if not scheme.quantized:
        return model.module
    parts = {
        name: quantize_method(part, scheme, choices, make_quantizer(soc, backend))
        for name, part in split_model(model).items()
    }
    return join_modules(model.module, parts)


def quantize_method(
    model: Model,
    scheme: Scheme,
    choices: Choices,
    quantizer: Any,
    annotations: Sequence[Callable[[GraphModule], None]] = (),
) -> GraphModule:
    """Calibrate a module, or train it if the scheme requires that, and return it quantized. The
    functions in ``annotations`` run before the annotation function in ``choices``. Raises
    UsageError for an invalid lowering option and for a model in float16, and FailedError if nothing
    would be quantized."""
    recipe = scheme.recipe
    check_float32(model, scheme)
    # An exported program shares its weights with the module, and training must not change those.
    module = copy.deepcopy(model.module) if recipe.training_steps else model.module
    with torch.no_grad():
        # Strict, because ExecuTorch documents it so: a model is lowered as in a user's script.
        program = export_module(module, model.evaluation[0], strict=True)
        # With check_guards, the module would call a guard function, and ExecuTorch would mistake
        # that call for the observer of a concatenated input. If the caller is in ExecuTorch's
        # files, torch omits the call by itself.
        exported = program.module(check_guards=False)
    mark_origins(exported.graph)
    quantizer.set_default_quant_config(**configure(scheme, choices.observer))
    if recipe.block:
        block = choices.block_size or recipe.block
        quantizer.set_block_size_map(block_sizes(exported, block, choices.parts))
        if choices.block_size and not quantizer.block_size_map:
            raise UsageError(
                f"block_size: no layer of {Path(model.name).name} can have blocks of size {block}",
                why="a layer needs a kernel of size 1, and its number of input channels must be a"
                " multiple of the block size",
            )
    with annotated(quantizer, choices, annotations):
        prepare = prepare_qat_pt2e if recipe.training_steps else prepare_pt2e
        prepared = prepare(exported, quantizer)
    mark_annotated(_nodes_of(prepared), choices.discard_nodes)
    buffers = [name for name, _ in model.module.named_buffers()]
    # Only the model's own buffers are restored: the ranges of observers are buffers, too.
    with keep_state(prepared, buffers):
        if recipe.training_steps:
            train(prepared, model, recipe.training_steps)
        else:
            run_eager(prepared, model.calibration)
    converted: GraphModule = convert_pt2e(prepared)
    names = (getattr(node.target, "__name__", "") for node in _nodes_of(converted))
    if not any("quantize_" in name for name in names):
        raise FailedError(
            f"{scheme} quantizes nothing in {Path(model.name).name}",
            why="ExecuTorch's quantizer has no rule for its operators, as with nn.GRUCell",
            fix="write them as linear layers, like ci/models/suite/lstm.py, or use fp16",
        )
    return converted


def check_float32(model: Model, scheme: Scheme) -> None:
    """Raise UsageError if a weight or an input of a model is float16. Such a number cannot hold the
    integers of 16 bits that the quantized model computes with."""
    for tensor in (*model.module.parameters(), *model.module.buffers(), *model.evaluation[0]):
        if tensor.dtype == torch.float16:
            raise UsageError(
                f"{Path(model.name).name} is in float16, but {scheme} needs float32",
                why="a quantized model computes with integers as floats, and float16 holds only"
                " those up to 2048",
                fix="convert the module and its inputs with .float()",
            )


def check_dtypes(name: str, outputs: Inputs, quantized: Inputs) -> None:
    """Raise FailedError if an output of a quantized model has another dtype than in float32, as
    that of a quotient of integers."""
    for number, (tensor, quantized_output) in enumerate(zip(outputs, quantized, strict=True)):
        if tensor.dtype != quantized_output.dtype:
            before = str(tensor.dtype).removeprefix("torch.")
            after = str(quantized_output.dtype).removeprefix("torch.")
            raise FailedError(
                f"output {number} of {name} is {after} instead of {before} when quantized",
                why="ExecuTorch quantizes operators on integers, such as a quotient, as floats",
                fix="convert the output at the end of forward, for example with .int()",
            )


def round_blocks(module: Any) -> Any:
    """Return a copy of ``module`` in which the blocks' scales are rounded as for QNN: to sixteenths
    of the largest scale in their channel.

    ExecuTorch's make_qnn_per_block_config in builders/node_visitor.py rounds them in this way.
    """
    rounded = copy.deepcopy(module)
    for part in split_module(rounded).values():
        for node in _nodes_of(part):
            if getattr(node.target, "__name__", "").startswith("dequantize_affine"):
                scale: Any = getattr(part, str(node.args[2]))
                rows = scale.reshape(scale.shape[0], -1)
                unit = rows.amax(-1, keepdim=True) / BLOCK_SCALE_STEPS
                steps = torch.round(rows / unit).clamp(1)
                scale.copy_((steps * unit).reshape(scale.shape))
    return rounded


def _nodes_of(part: Any) -> Iterable[Node]:
    return part.graph.nodes if isinstance(part, GraphModule) else ()


def _list_calls(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def block_sizes(
    graph_module: GraphModule, block: int, parts: Sequence[Part] = ()
) -> dict[str, tuple[int, ...]]:
    """Return the block shape (output, input, kernel...) of each layer that can have blocks. The
    keys are node names. Layers of ``parts``, whose schemes have no blocks, are omitted.

    All layers have the same block size, because ExecuTorch 1.5.1 has one configuration per model.
    """
    targets = {torch.ops.aten.conv2d.default, torch.ops.aten.linear.default}
    candidates = list_candidates(graph_module.graph)
    # ExecuTorch's quantizer refuses 16a4w_block with an output layer of another scheme, unless that
    # layer is left out of the blocks.
    in_parts = {
        candidate.name
        for candidate in candidates
        if any(belongs(candidate, part) for part in parts)
    }
    shapes = {
        node.name: node.args[1].meta["val"].shape
        for node in graph_module.graph.nodes
        if node.target in targets and node.name not in in_parts
    }
    # Measured with QNN 2.49.40: with a larger kernel, the emulator's results differ from the
    # quantized model's (SQNR near 0 dB). They also differ between runs.
    return {
        name: (1, block, *kernel)
        for name, (_, inputs, *kernel) in shapes.items()
        if not inputs % block and set(kernel) <= {1}
    }


ANNOTATION = "an annotation function takes the exported GraphModule and annotates its nodes"
RECIPE = "a recipe's function has no parameters and returns ExecuTorch's QuantRecipe"
OBSERVERS = {
    "": MinMaxObserver,
    "histogram": HistogramObserver,
    "moving_average": MovingAverageMinMaxObserver,
}


def configure(scheme: Scheme, observer: str = "") -> dict[str, Any]:
    """Return the arguments with which QnnQuantizer or ModuleQConfig is configured for a scheme and
    an observer of Choices.

    ExecuTorch's default observer uses a moving average, which clips values if there are few
    calibration samples. Except for training, an observer of the minimum and maximum is used
    instead. Raises FailedError if the installed ExecuTorch does not have the scheme.
    """
    if scheme.recipe.dtype not in QuantDtype.__members__:
        installed = version("executorch")
        raise FailedError(
            f"executorch {installed} has no scheme {scheme}",
            why=f"its QuantDtype has no {scheme.recipe.dtype}",
            fix="use another scheme, or lower with a later ExecuTorch",
        )
    training = bool(scheme.recipe.training_steps)
    return {
        "quant_dtype": QuantDtype[scheme.recipe.dtype],
        "is_qat": training,
        "is_conv_per_channel": True,
        "is_linear_per_channel": True,
        # Measured: with the moving average, a perceptron stays at 21 dB, whatever the bits. With
        # minimum and maximum, it reaches 33 dB in 8a8w and 56 dB in 16a16w.
        "act_observer": None if training else OBSERVERS[observer],
    }


@contextmanager
def annotated(
    quantizer: QnnQuantizer,
    choices: Choices,
    annotations: Sequence[Callable[[GraphModule], None]] = (),
) -> Iterator[None]:
    """Configure ``quantizer`` with ``annotations`` and with the lowering options while the block
    runs.

    Raises UsageError for an invalid recipe, for a part without own nodes, for a pattern of a
    recipe that matches no module and, at the end of the block, if a node to discard does not exist.
    """
    names: list[str] = []
    functions = [*annotations]
    if choices.parts:
        select_parts(quantizer, choices)
    if choices.discard_nodes:
        quantizer.add_discard_nodes(choices.discard_nodes)
        # Only an annotation function sees the graph that ExecuTorch annotates.
        functions.append(lambda module: names.extend(node.name for node in _list_calls(module)))
    if choices.annotation:
        functions.append(partial(call_annotation, choices.annotation))
    quantizer.add_custom_quant_annotations(functions)
    if choices.recipe:
        recipe = call_function(choices.recipe, RECIPE)
        if not isinstance(recipe, QuantRecipe):
            raise UsageError(f"{Path(choices.recipe).name} returns no recipe", fix=RECIPE)
        # In the recipe, because QnnQuantizer.annotate reads nothing else if there is one.
        check = partial(require_matches, recipe, Path(choices.recipe).name)
        recipe.custom_quant_annotations = [*recipe.custom_quant_annotations, check]
        quantizer.set_recipe(recipe)
    yield
    for name in choices.discard_nodes:
        if name not in names:
            fix = f"use one of: {', '.join(names)}"
            raise UsageError(f"discard_nodes: the graph has no {name}", fix=fix)


def require_matches(recipe: Any, name: str, module: GraphModule) -> None:
    """Raise UsageError if a pattern of the recipe ``name`` matches no module of an annotated graph,
    as ByNameRegex of ExecuTorch's quant_recipe.py matches them: its layers would have the types of
    another strategy."""
    stacks = [call.meta.get("nn_module_stack", {}) for call in _list_calls(module)]
    modules = dict.fromkeys(path for stack in stacks for path, _ in stack.values() if path)
    for strategy in recipe._strategies:
        for pattern in getattr(strategy, "patterns", ()):
            if not any(re.search(pattern, path) for path in modules):
                raise UsageError(
                    f"recipe: {name} has the pattern '{pattern}', which matches no module",
                    why=f"the graph has the modules {name_some([*modules], 20)}",
                    fix="correct the pattern, or remove it",
                )


def call_annotation(function: str, module: GraphModule) -> None:
    """Call a user's annotation function with ``module``. Raises UsageError if it annotates nothing,
    because then the model would have only the types of its scheme."""

    def describe() -> list[str]:
        return [repr(node.meta.get("quantization_annotation")) for node in module.graph.nodes]

    before = describe()
    call_function(function, ANNOTATION, module)
    if describe() == before:
        names = {str(node.target) for node in _list_calls(module)}
        raise UsageError(
            f"annotation: {Path(function).name} annotates no node",
            why=f"it left all annotations unchanged in a graph of {', '.join(sorted(names))}",
            fix="compare with targets of this graph, which ExecuTorch's passes have changed",
        )


def select_parts(quantizer: Any, choices: Choices) -> None:
    """Configure ``quantizer`` with the parts of a model. The parts are assigned to the nodes of the
    graph that ExecuTorch's passes return, which it annotates."""
    owners: dict[str, Part] = {}
    transform = quantizer.transform_for_annotation

    def transform_and_assign(module: GraphModule) -> GraphModule:
        transformed: GraphModule = transform(module)
        owners.update(assign_parts(list_candidates(transformed.graph), choices.parts))
        mark_parts(transformed.graph, owners)
        return transformed

    quantizer.transform_for_annotation = transform_and_assign
    configs = [ModuleQConfig(**configure(part.scheme, choices.observer)) for part in choices.parts]
    # A default, because all functions would otherwise see the last part.
    owns = [lambda node, part=part: owners.get(node.name) is part for part in choices.parts]
    quantizer.set_submodule_qconfig_list([*zip(owns, configs, strict=True)])


RATE = 1e-3


def train(prepared: GraphModule, model: Model, steps: int) -> None:
    """Train ``prepared`` with Adam so that it matches the float32 model's outputs for the
    calibration samples, with one set per step.

    No labels are needed, because the float32 model is the teacher. Nothing is random, so training
    always results in the same weights.
    """
    with keep_state(model.module):
        targets = run_eager(model.module, model.calibration)
    cover_ranges(prepared, model.calibration)
    weights = [weight for weight in prepared.parameters() if weight.is_floating_point()]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        number = step % len(targets)
        optimizer.zero_grad()
        outputs = flatten_outputs(prepared(*copy_inputs(model.calibration[number])))
        measure_loss(outputs, targets[number]).backward()
        optimizer.step()
        schedule.step()
    for weight in weights:
        weight.requires_grad_(requires_grad=False)


def measure_loss(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Return the ratio of noise power to signal power, summed over the floating-point outputs."""
    pairs = [pair for pair in zip(outputs, targets, strict=True) if pair[1].is_floating_point()]
    noise = [(output - target).square().mean() / target.square().mean() for output, target in pairs]
    return torch.stack(noise).sum()


def cover_ranges(prepared: GraphModule, sets: Sequence[Inputs]) -> None:
    """Set the range of each observer to the minimum and maximum over all samples, as calibration
    does.

    By default, torchao moves a range by a hundredth towards each set's range. After only a few
    sets, the range would be too narrow, and values would be clipped.
    """
    modules = prepared.modules()
    fakes = [fake for fake in modules if isinstance(fake, FusedMovingAvgObsFakeQuantize)]
    observers = [fake.activation_post_process for fake in fakes]
    for observer in observers:
        observer.averaging_constant = 1.0
    ranges = []
    for inputs in sets:
        run_eager(prepared, [inputs])
        # Copies, because the observers write into their tensors.
        ranges.append([(each.min_val.clone(), each.max_val.clone()) for each in observers])
    for fake, observer, extremes in zip(fakes, observers, zip(*ranges, strict=True), strict=True):
        observer.min_val.copy_(torch.stack([low for low, _ in extremes]).amin(0))
        observer.max_val.copy_(torch.stack([high for _, high in extremes]).amax(0))
        scale, zero = fake.calculate_qparams()
        fake.scale.copy_(scale.reshape(fake.scale.shape))
        fake.zero_point.copy_(zero.reshape(fake.zero_point.shape))
        # Training must not move the range again.
        fake.disable_observer()
