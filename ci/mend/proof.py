"""Proves that a rewritten model computes the same function as the original one, in float32 on the
CPU, whichever lane it is of. A deep model may round so differently in float32 that the outputs show
it: then both are compared in float64, where a form can be run in it.

Both run on the user's inputs and on others of the same shapes and dtypes. They also run with other
values between their operators, because inside of a model, inputs alone seldom reach small values or
zeros, at which a lost epsilon or a wrong sign shows. Importing this module imports neither torch
nor onnx: torch_form and onnx_form run the models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from ci.graphs.graph import EXECUTORCH, Array, Graph, Node
from ci.mend.different import (
    DRAWN,
    BeyondBound,
    Different,
    compare_arrays,
    rounds_as_well,
    thin_out,
)
from ci.mend.rewrite import Change

Arrays: TypeAlias = Sequence[Array]

GIVEN = "the given inputs"
# The values that replace inputs or results. All keep the signs and the order of magnitude or less,
# because a model may compute only for such values, such as a logarithm of a positive number.
SCALES: tuple[Callable[[Array], Array], ...] = (
    lambda value: (value * 1e-3).astype(value.dtype),
    np.zeros_like,
    # A copy: a reversed array of one element counts as contiguous, and torch takes no negative
    # strides.
    lambda value: value.reshape(-1)[::-1].reshape(value.shape).copy(),
)


class Form(Protocol):
    """A model in one form: as the user has it, or rewritten."""

    @property
    def graph(self) -> Graph:
        """The graph of the model."""

    def label(self, node: Node) -> str:
        """Return the name of a call, as a Change has it."""

    def list_ports(self, kind: str) -> Any:
        """Return the names of the inputs or outputs, and what else must not change about them:
        ``kind`` is ``input`` or ``output``."""

    def run(self, inputs: Arrays, fixed: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for one sample, if the values in ``fixed`` are these, followed by the
        state that the run changed, if nothing is fixed."""

    def run_exactly(self, inputs: Arrays, fixed: Mapping[str, Array]) -> list[Array] | None:
        """Return what ``run`` returns, computed in float64, or None if that cannot be done."""

    def read_values(self, inputs: Arrays, names: Sequence[str]) -> Mapping[str, Array]:
        """Return values inside of the model for one sample."""


class Subject(Protocol):
    """A model that rewrites are applied to."""

    @property
    def sets(self) -> Sequence[Arrays]:
        """The judged samples."""

    @property
    def original(self) -> Form:
        """The model as the user has it."""

    def rewrite(self, names: Sequence[str]) -> tuple[Any, list[tuple[Change, ...]]]:
        """Return the rewritten model, and what each rewrite changed."""

    def open(self, rewritten: Any) -> Form:
        """Return a rewritten model as a Form."""

    def enlarge_batch(self, rewritten: Any) -> Arrays | None:
        """Return inputs with a larger batch, or None if the batch of the model cannot vary."""


class Comparison(NamedTuple):
    """What the original model and a rewritten form are run on: ``inputs``, with the values in
    ``fixed`` inside of them, described by ``label``; and their outputs."""

    label: str
    inputs: Arrays
    fixed: Mapping[str, Array]
    originals: list[Array]
    outputs: list[Array]


class RewriteProof:
    """Compares rewritten forms of a model with the model itself, on the judged samples and on
    others."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.sets, self.original = subject, subject.sets, subject.original
        self.labelled_inputs = [*self.list_inputs()]
        self.original_outputs = [
            self.original.run(inputs, {}) for _, inputs in self.labelled_inputs
        ]

    def rewrite(self, names: Sequence[str]) -> tuple[Any, list[tuple[Change, ...]]]:
        """Return the rewritten model, and what each rewrite changed."""
        return self.subject.rewrite(names)

    def measure(self, rewritten: Any, bound: float, replaced: Sequence[str]) -> float:
        """Return the largest difference between the outputs of the model and those of its rewritten
        form, relative to the range of an output. ``replaced`` are the names of the nodes that were
        replaced.

        Raises Different if a difference exceeds ``bound``, if inputs or outputs have other names,
        shapes or dtypes, if other elements are NaN or infinite, if the state differs, or if the
        rewritten model draws random numbers.
        """
        form = self.subject.open(rewritten)
        compare_forms(self.original, form)
        larger = self.subject.enlarge_batch(rewritten)
        differences = []
        for comparison in self.run_both(form, larger, replaced):
            label, _, _, originals, outputs = comparison
            try:
                differences.append(compare_arrays(originals, outputs, bound, label))
            except BeyondBound as beyond:
                differences.append(self.compare_exactly(form, comparison, bound, beyond))
        return max(differences)

    def compare_exactly(
        self, form: Form, comparison: Comparison, bound: float, beyond: BeyondBound
    ) -> float:
        """Return the largest difference of both models in float64. Raises Different as ``measure``
        does, and ``beyond``, which was raised for float32, if one of them cannot be run in float64
        or if the rewritten form loses more digits in float32."""
        label, inputs, fixed, originals, outputs = comparison
        exact = self.original.run_exactly(inputs, fixed)
        exact_rewritten = form.run_exactly(inputs, fixed)
        if exact is None or exact_rewritten is None:
            raise beyond
        difference = compare_arrays(exact, exact_rewritten, bound, f"{label} in float64")
        if not rounds_as_well(originals, outputs, exact):
            raise beyond
        return difference

    def run_both(
        self, form: Form, larger: Arrays | None, replaced: Sequence[str]
    ) -> Iterator[Comparison]:
        """Yield what the model and its rewritten form are run on, with the outputs of both. Random
        inputs and other values are left out if they make infinite outputs."""
        for (label, inputs), originals in zip(
            self.labelled_inputs, self.original_outputs, strict=True
        ):
            if label == GIVEN or all(map(is_finite, originals)):
                yield Comparison(label, inputs, {}, originals, form.run(inputs, {}))
        if larger is not None:
            originals, outputs = self.original.run(larger, {}), form.run(larger, {})
            yield Comparison("a larger batch", larger, {}, originals, outputs)
        cuts = choose_cuts(self.original, form, replaced)
        for name, value in self.original.read_values(self.sets[0], cuts).items():
            for change in SCALES:
                fixed = {name: change(value)}
                originals = self.original.run(self.sets[0], fixed)
                if all(map(is_finite, originals)):
                    label, outputs = f"other values of {name}", form.run(self.sets[0], fixed)
                    yield Comparison(label, self.sets[0], fixed, originals, outputs)

    def list_inputs(self) -> Iterator[tuple[str, Arrays]]:
        """Yield the given inputs, then random ones within their ranges and variations of the first
        set, with what they are."""
        for inputs in self.sets:
            yield GIVEN, inputs
        generator = np.random.default_rng(0)
        for _ in range(DRAWN):
            columns = zip(*self.sets, strict=True)  # all samples of an input
            yield "random inputs", tuple(draw(column, generator) for column in columns)
        for change in SCALES:
            yield "random inputs", tuple(change_float(array, change) for array in self.sets[0])


def compare_forms(original: Form, rewritten: Form) -> None:
    """Raise Different if the names, the types or the number of the inputs or outputs differ, or if
    the rewritten model draws random numbers."""
    for kind in ("input", "output"):
        if original.list_ports(kind) != rewritten.list_ports(kind):
            raise Different(f"the names, the types or the number of its {kind}s differ")
    dtypes, new_dtypes = (
        [form.graph.dtypes.get(name) for name in form.graph.outputs]
        for form in (original, rewritten)
    )
    if None not in (*dtypes, *new_dtypes) and dtypes != new_dtypes:
        raise Different(f"the outputs have the dtypes {new_dtypes} instead of {dtypes}")
    # Not all of them: dropout in eval mode draws nothing, and was in the original.
    added = list_random(rewritten.graph) - list_random(original.graph)
    if added:
        raise Different(f"{min(added)} draws random numbers")


def list_random(graph: Graph) -> set[str]:
    """Return the calls of operators that draw random numbers, or would in training, with their
    options: their operands may be rewritten."""
    return {f"{node.name} {sorted(node.numbers.items())}" for node in graph.nodes if node.is_random}


def choose_cuts(original: Form, rewritten: Form, replaced: Sequence[str]) -> list[str]:
    """Return the names of floating-point values that depend on an input, that both forms have and
    that nodes of ``replaced`` or removed nodes read. These values determine what the replaced nodes
    compute."""
    graph = original.graph
    remaining = {node.name for node in rewritten.graph.nodes}
    gone = {node.name for node in graph.nodes if original.label(node) in replaced}
    shared = list_shared(graph, rewritten.graph, gone)
    varying = {*graph.list_inputs()}
    cuts: dict[str, None] = {}  # a set in order
    for node in graph.nodes:
        if not varying.isdisjoint(node.reads):
            varying.update(node.results)
        if node.name in remaining and node.name not in gone:
            continue
        for name in node.reads:
            if name in varying & shared and "float" in graph.dtypes.get(name, ""):
                cuts[name] = None
    return thin_out(cuts)


def list_shared(original: Graph, rewritten: Graph, gone: Collection[str]) -> set[str]:
    """Return the names that mean the same value in both graphs. ``gone`` are replaced calls."""
    shared = {*original.list_inputs()} & {*rewritten.list_inputs()}
    makers = rewritten.list_makers()
    for name, maker in original.list_makers().items():
        new_maker = makers.get(name)
        if new_maker is None or maker.name in gone:
            continue
        # torch.fx gives free names to other nodes, and a rewrite may change the operator of a node
        # in place, such as relu_ to relu. In a file, what replaces a value has its name.
        if maker.operator == new_maker.operator or original.front_end != EXECUTORCH:
            shared.add(name)
    return shared


def draw(column: Sequence[Array], generator: np.random.Generator) -> Array:
    """Return a random array with the shape, the dtype and the range of the arrays of a column."""
    first, samples = column[0], np.stack(column)
    if first.dtype.kind == "b":
        return generator.integers(0, 2, first.shape).astype(bool)
    low, high = samples.min(), samples.max()
    if is_float(first):
        return generator.uniform(float(low), float(high), first.shape).astype(first.dtype)
    return generator.integers(int(low), int(high), first.shape, endpoint=True).astype(first.dtype)


def change_float(array: Array, change: Callable[[Array], Array]) -> Array:
    """Return a changed floating-point array, and another one as it is."""
    return change(array) if is_float(array) else array


def is_float(array: Array) -> bool:
    """Return whether an array has floating-point elements."""
    return bool(array.dtype.kind == "f")


def is_finite(array: Array) -> bool:
    """Return whether an array has neither NaN nor infinite elements."""
    return not is_float(array) or bool(np.isfinite(array).all())
