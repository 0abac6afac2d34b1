"""Finds the layer at which a quantized model loses the most accuracy, and makes models that also
return the results of their layers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_flatten, tree_leaves

from ci.graphs.torch_program import read_torch
from ci.graphs.torch_reader import computes_node, name_operator
from ci.graphs.torch_state import is_state
from ci.models.eager import copy_inputs, keep_state
from ci.models.factory import Inputs
from ci.models.float16_range import LOST_DB, MOST_RANGED, SPLIT, RangeLoss, find_spoiling
from ci.models.model import split_inputs, split_module
from ci.models.parts import ORIGIN
from ci.models.rounding import FLOAT16_MAX
from ci.models.tensors import (
    BEST_DB,
    DECISIONS,
    MOST_BYTES,
    MOST_LAYERS,
    READERS,
    Decision,
    Layer,
    Loss,
    LostDecisions,
    Reading,
    choose_nodes,
    find_lost_decisions,
    limit_db,
    make_reading,
)
from ci.models.user_code import find_origin

PROJECTIONS = 8
RANKS = frozenset({"topk", "sort"})
CASTS = frozenset({"to", "_to_copy", "type_as"})
TINY = 1e-12
QUANTIZERS = {"quantize_per_tensor", "dequantize_per_tensor"}


def find_loss(
    module: nn.Module, inputs: Inputs, reference: Inputs, *, float16: bool = False
) -> Loss | None:
    """Return where a quantized model loses the most accuracy on one sample. ``reference`` holds
    the float32 model's outputs. With ``float16``, the model is the float32 model, each of whose
    results is rounded to float16. Return None if the model has no graph or loses no accuracy.
    Raises TraceError if a float32 model cannot be traced."""
    losses: list[Loss] = []
    readings: list[Reading] = []
    beyond: list[Reading] = []
    decided: list[LostDecisions] = []
    effects: Counter[Any] = Counter()
    left = iter(reference)  # each method takes its own outputs
    parts = read_torch(module, inputs).parts if float16 else split_module(module)
    for name, part in parts.items():
        if isinstance(part, GraphModule):
            given = split_inputs(module, inputs)[name]
            rounded = _Recorder(part, plain=False, rounds=_round_to_float16 if float16 else None)
            exact = _Recorder(part, plain=True)
            wide = _Recorder(part, plain=False, rounds=_round_significand)
            for recorder in (rounded, exact, *([wide] if float16 else [])):
                with torch.no_grad(), keep_state(part):
                    recorder.run(*copy_inputs(given))
            beyond += _list_beyond(rounded, wide, exact) if float16 else []
            if found := _find_decided(part, given, rounded, exact):
                decided.append(found)
            losses += _rank(rounded, exact, left, float16=float16)
            readings += _list_readings(rounded, exact)
            if not float16:
                effects.update(measure_effects(part, given))
    greatest = max(losses, key=lambda one: one.added, default=None)
    facts = {"nodes": choose_nodes(effects), "readings": tuple(readings), "is_float16": float16}
    facts["beyond"] = next(iter(beyond), None)
    facts["decided"] = next(iter(decided), None)
    return greatest and structs.replace(greatest, **facts)


def _find_decided(
    part: GraphModule, inputs: Inputs, rounded: _Recorder, exact: _Recorder
) -> LostDecisions | None:
    """Return the decisions of a rounded graph that cost its outputs accuracy. ``rounded`` and
    ``exact`` have run it with these inputs."""
    decisions: dict[str, Decision] = {}
    for node, value in exact.decided.items():
        changed = float((rounded.decided[node] != value).double().mean()) if value.numel() else 0.0
        if changed:
            name = name_operator(node)
            decisions[node.name] = Decision(name, changed, find_origin(node))

    def keep(names: Collection[str]) -> float:
        kept = {node: value for node, value in exact.decided.items() if node.name in names}
        recorder = _Recorder(part, plain=False, rounds=rounded.rounds, kept=kept)
        with torch.no_grad(), keep_state(part):
            recorder.run(*copy_inputs(inputs))
        return _compare_outputs(exact, recorder)

    return find_lost_decisions(decisions, _compare_outputs(exact, rounded), keep)


def _compare_outputs(exact: _Recorder, rounded: _Recorder) -> float:
    """Return the least SQNR in dB of a floating-point output."""
    pairs = zip(exact.outputs, rounded.outputs, strict=True)
    return min((_decibels(*pair) for pair in pairs if pair[0].is_floating_point()), default=BEST_DB)


def find_float16_loss(
    module: nn.Module, sets: Sequence[Inputs], references: Sequence[Inputs]
) -> Loss | None:
    """Return the loss of the first sample with numbers that float16 cannot hold, of at most
    MOST_RANGED samples, or else that of the first sample. ``references`` are the float32 model's
    outputs."""
    losses = []
    for inputs, reference in zip(sets[:MOST_RANGED], references, strict=False):
        losses.append(find_loss(module, inputs, reference, float16=True))
        if losses[-1] and losses[-1].beyond:
            return losses[-1]
    return losses[0]


def measure_effects(part: GraphModule, inputs: Inputs) -> dict[tuple[str, ...], float]:
    """Return how much noise the rounding of each result causes in the outputs, relative to their
    power. The keys are the names of the operators that compute and read the result.

    An operator may amplify the noise of others, so that more bits for itself are of no use. The
    noise is estimated to first order: the errors of a result, times the gradients of PROJECTIONS
    random projections of the outputs. The result is empty if the model has no gradients.
    """
    recorder = _Rounding(part)
    try:
        with torch.enable_grad(), keep_state(part):
            recorder.run(*copy_inputs(inputs))
            return recorder.project()
    except (RuntimeError, NotImplementedError):  # an operator without a derivative
        return {}


def expose_layers(module: nn.Module, inputs: Inputs) -> tuple[GraphModule, tuple[Layer, ...]]:
    """Return a copy of a model that also returns the results of its operators, after the model's
    own outputs. The second value lists these operators with their source lines.

    Operators that only move elements are omitted. If there are more than MOST_LAYERS results or
    they exceed MOST_BYTES, only every nth operator is included. The model must have a single
    method.
    """
    part = copy.deepcopy(module)
    if not isinstance(part, GraphModule):
        with torch.no_grad():
            part = torch.export.export(part, inputs, strict=True).module(check_guards=False)
    recorder = _Recorder(part, plain=False)
    with torch.no_grad(), keep_state(part):
        recorder.run(*copy_inputs(inputs))
    end = next(node for node in part.graph.nodes if node.op == "output")
    given = tree_leaves(end.args[0])
    quantized = any(_find_rounded(node) for node in recorder.values)
    layers = {
        source: node
        for node in recorder.values
        for source in [_find_rounded(node) if quantized else node]
        if computes_node(source) and source not in given and node not in given
    }
    size = sum(recorder.values[node].numel() * 4 for node in layers.values())
    every = max(-(-len(layers) // MOST_LAYERS), -(-size // MOST_BYTES), 1)
    chosen = dict(list(layers.items())[every - 1 :: every])
    leaves = (*given, *chosen.values())
    end.args = (leaves,)
    codegen: Any = part.graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=tree_flatten(leaves)[1])
    part.recompile()
    return part, tuple(map(_make_layer, chosen))


def _make_layer(node: Any) -> Layer:
    operator = name_operator(node)
    return Layer(operator, operator, find_origin(node), node.meta.get(ORIGIN, (node.name,))[0])


def _rank(
    rounded: _Recorder, exact: _Recorder, reference: Iterator[Tensor], *, float16: bool
) -> list[Loss]:
    weights = min(
        (
            _decibels(wanted, given)
            for given, wanted in zip(exact.outputs, reference, strict=False)
            if wanted.is_floating_point() and wanted.shape == given.shape
        ),
        default=BEST_DB,
    )
    values = rounded.values.items()
    reached = {node: _decibels(exact.values[node], value) for node, value in values}
    harmless: set[str] = set()
    if float16:  # such as a mask that float16 cannot hold, which is zero behind a softmax
        by_name = {node.name: db for node, db in reached.items()}
        harmless = {name for name, db in by_name.items() if db < LOST_DB}
        harmless -= find_spoiling(by_name, *_list_reads(rounded))
    losses = []
    for node, behind in reached.items():
        origin = _find_rounded(node)
        sources = [origin] if origin else node.all_input_nodes
        hidden = None if origin else _find_hidden(node, reached)
        if hidden:  # such as a comparison, whose result is no float
            sources = hidden.all_input_nodes
        before = min((reached[one] for one in sources if one in reached), default=behind)
        if float16 and node.op == "placeholder":
            continue
        if node.name in harmless:
            continue
        if behind < before and (origin or computes_node(hidden or node)):
            given = name_operator(origin) or str(origin)
            what = f"the range of {given}" if origin else name_operator(hidden or node)
            largest = 0.0 if origin else _find_largest(exact, hidden or node)
            place = find_origin(origin or hidden or node)
            losses.append(Loss(what, before, behind, weights, place, largest=largest))
    return losses


def _find_hidden(node: Node, values: Collection[Node]) -> Node | None:
    """Return the operator whose result a node only moves or converts, if it is no recorded value
    itself, as that of a comparison, but reads one. Otherwise return None."""
    source = node
    while not computes_node(source) and len(source.all_input_nodes) == 1:
        source = source.all_input_nodes[0]
        if source in values:
            return None
    is_hidden = source is not node and computes_node(source)
    return source if is_hidden and any(one in values for one in source.all_input_nodes) else None


def _find_largest(exact: _Recorder, node: Node) -> float:
    """Return the largest finite magnitude among the operands of a node, or 0 if there is none."""
    operands = [exact.values[one] for one in node.all_input_nodes if one in exact.values]
    return max((float(one.abs().nan_to_num(0, 0, 0).max()) for one in operands), default=0.0)


def _list_readings(rounded: _Recorder, exact: _Recorder) -> Iterator[Reading]:
    for node, value in rounded.values.items():
        name = name_operator(node)
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if name in READERS and source in exact.values:
            behind_db = _decibels(exact.values[node], value)
            numbers = exact.values[source].numpy()
            if reading := make_reading(name, name, numbers, behind_db, find_origin(node)):
                yield reading


def _list_beyond(rounded: _Recorder, wide: _Recorder, exact: _Recorder) -> Iterator[Reading]:
    """Yield the first result that float16 cannot hold, if that costs the outputs accuracy."""
    nodes = {node.name: node for node in rounded.values}
    readers, ends = _list_reads(rounded)
    db = [
        [_decibels(right, given) for right, given in zip(exact.outputs, one.outputs, strict=True)]
        for one in (rounded, wide)
    ]
    loss = RangeLoss(
        reached_db={
            name: _decibels(wide.values[one], rounded.values[one]) for name, one in nodes.items()
        },
        readers=readers,
        ends=ends,
        output_db=min(db[0], default=BEST_DB),
        wide_db=min(db[1], default=BEST_DB),
    )
    if node := nodes.get(loss.find_first()):
        name, numbers = name_operator(node) or node.name, exact.values[node].numpy()
        if reading := make_reading(
            name, name, numbers, loss.reached_db[node.name], find_origin(node)
        ):
            yield reading


def _list_reads(recorder: _Recorder) -> tuple[dict[str, list[str]], set[str]]:
    """Return the names of the values that are made from each recorded value, and of the outputs."""
    readers = {node.name: [*_list_readers(node, recorder.values)] for node in recorder.values}
    ends = recorder.module.graph.find_nodes(op="output")
    return readers, {source.name for end in ends for source in end.all_input_nodes}


def _list_readers(node: Node, values: Collection[Node]) -> Iterator[str]:
    """Yield the names of the values that are made from a node."""
    for reader in node.users:
        if reader in values:
            yield reader.name
        else:  # such as one with several results
            yield from _list_readers(reader, values)


def _round_to_float16(value: Tensor) -> Tensor:
    return value.clamp(-FLOAT16_MAX, FLOAT16_MAX).to(torch.float16).to(value.dtype)


def _round_significand(value: Tensor) -> Tensor:
    """Round the significand to the bits of float16, and keep the exponent (Veltkamp's method)."""
    scaled = value * SPLIT
    rounded = scaled - (scaled - value)
    return torch.where(rounded.isfinite(), rounded, value)


def _find_rounded(node: Node) -> Node | None:
    """If ``node`` dequantizes the output of a quantizer, return the quantizer's input. Otherwise
    return None."""
    taken: Any = node.args[0] if name_operator(node) == "dequantize_per_tensor" else None
    rounded = taken.args[0] if name_operator(taken) == "quantize_per_tensor" else None
    return rounded if isinstance(rounded, Node) else None


def _decibels(wanted: Tensor, given: Tensor) -> float:
    """Return the SQNR in dB, limited to the range from -BEST_DB to BEST_DB."""
    signal, noise = wanted.double().square().sum(), (wanted.double() - given).square().sum()
    if not noise:
        return BEST_DB
    return limit_db(float(10 * torch.log10(signal / noise)) if signal else -BEST_DB)


def _find_read(node: Node) -> Node | None:
    """Return the activation that ``node`` quantizes or dequantizes, or None for other nodes. A
    buffer is an activation if the graph also writes it."""
    source = node.args[0] if name_operator(node) in QUANTIZERS else None
    is_weight = isinstance(source, Node) and source.op == "get_attr" and not is_state(source)
    return source if isinstance(source, Node) and not is_weight else None


class _Rounding(Interpreter):
    """Runs a model without rounding activations, and records the error of each rounding."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.errors: list[tuple[Node, Tensor, Tensor]] = []  # node, added zeros, error
        self.outputs: Sequence[Tensor] = ()

    def run_node(self, n: Node) -> Any:
        if source := _find_read(n):
            value: Tensor = self.env[source]
            if name_operator(n) == "quantize_per_tensor":
                scale, zero, low, high = (float(str(number)) for number in n.args[1:5])
                rounded = (value.detach() / scale).round() + zero
                error = (rounded.clamp(low, high) - zero) * scale - value.detach()
                shift = torch.zeros_like(value, requires_grad=True)
                self.errors.append((source, shift, error))
                value = value + shift
            return value
        result = super().run_node(n)
        if n.op == "output":
            leaves = (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            self.outputs = [leave for leave in leaves if leave.requires_grad]
        return result

    def project(self) -> dict[tuple[str, ...], float]:
        """Return the result of measure_effects."""
        effects: Counter[Any] = Counter()
        generator = torch.Generator().manual_seed(0)
        shifts = [shift for _, shift, _ in self.errors]
        for _ in range(PROJECTIONS if self.outputs and shifts else 0):
            total = torch.zeros(())
            for output in self.outputs:
                signs = torch.randint(0, 2, output.shape, generator=generator) * 2.0 - 1
                total = total + (output * signs).sum() / output.detach().norm().clamp(min=TINY)
            grads = torch.autograd.grad(total, shifts, retain_graph=True, allow_unused=True)
            for (node, _, error), grad in zip(self.errors, grads, strict=True):
                # A gradient may be infinite, such as that of the root of zero.
                effect = torch.zeros(()) if grad is None else (grad * error).nan_to_num(0, 0, 0)
                noise = float(effect.sum()) ** 2
                effects.update({_name_rounded(node): noise / PROJECTIONS})
        return dict(effects)


def _name_rounded(node: Node) -> tuple[str, ...]:
    """Return the name of the operator that computes a result, if it is no input, and the names of
    those that read it. All of them need more bits, or the result is rounded again."""
    found, readers = ([node] if node.op == "call_function" else []), [*node.users]
    while readers:
        one = readers.pop(0)
        if name_operator(one) in QUANTIZERS:
            readers += one.users
        elif one.op == "call_function":
            found.append(one)
    return tuple(dict.fromkeys(one.meta.get(ORIGIN, (one.name,))[0] for one in found))


class _Recorder(Interpreter):
    """Records the model's outputs, the results of decisions, and the floating-point tensor of each
    call and each input. With ``plain``, activations are not rounded. If there is a function
    ``rounds``, floats are. Decisions in ``kept`` have these results, not those they compute."""

    def __init__(
        self,
        module: GraphModule,
        *,
        plain: bool,
        rounds: Callable[[Tensor], Tensor] | None = None,
        kept: Mapping[Node, Tensor] | None = None,
    ) -> None:
        super().__init__(module)
        self.plain, self.rounds, self.kept = plain, rounds, kept or {}
        self.decided: dict[Node, Tensor] = {}
        self.values: dict[Node, Tensor] = {}
        self.outputs: Sequence[Tensor] = ()

    def run_node(self, n: Node) -> Any:
        source = _find_read(n) if self.plain else None
        result = self.env[source] if source else super().run_node(n)
        result = self.decide(n, result)
        if self.rounds and isinstance(result, Tensor) and result.is_floating_point():
            result = self.rounds(result)
        gives = n.op in {"call_function", "placeholder"} and isinstance(result, Tensor)
        if gives and result.is_floating_point():
            self.values[n] = result
        if n.op == "output":
            self.outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result

    def decide(self, node: Node, result: Any) -> Any:
        """Record the result of a decision. Return it, or the one that is kept."""
        place = 1 if name_operator(node) in RANKS else None  # values and indices
        decided = result if place is None else result[place]
        if not isinstance(decided, Tensor) or not self.is_decision(node, decided):
            return result
        self.decided[node] = decided
        kept = self.kept.get(node, decided)
        return kept if place is None else (result[0], kept)

    def is_decision(self, node: Node, result: Tensor) -> bool:
        operands = [self.env[source] for source in node.all_input_nodes if source in self.env]
        reads_floats = any(
            isinstance(value, Tensor) and value.is_floating_point() for value in operands
        )
        name = name_operator(node)
        is_cast = name in CASTS and not result.is_floating_point()
        return reads_floats and (is_cast or name in DECISIONS)
