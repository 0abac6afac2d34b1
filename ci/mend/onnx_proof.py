"""Proves that a rewritten .onnx model computes the same function as the original one, in float32 on
the CPU.

Both run on the user's inputs, on others of the same shapes and dtypes, with another batch size if
it varies, and with other values between their operators, as in ci.mend.proof.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ci.graphs.onnx_session import open_reference
from ci.mend.different import DRAWN, Different, compare_arrays, thin_out
from ci.mend.onnx_files import OnnxFile, infer
from ci.mend.rewrite import Change
from ci.onnx.layers import compute_sets
from ci.onnx.models import find_batch
from ci.onnx.source import Array, Arrays

GIVEN = "the given inputs"
# The values that replace inputs or results, see SCALES in ci.mend.proof.
SCALES: tuple[Callable[[Array], Array], ...] = (
    lambda value: (value * 1e-3).astype(value.dtype),
    np.zeros_like,
    lambda value: np.ascontiguousarray(value.reshape(-1)[::-1].reshape(value.shape)),
)


class OnnxProof:
    """Compares rewritten forms of a file with the file itself, on the judged samples ``sets``
    and on others. Models are written to ``scratch``."""

    def __init__(self, file: OnnxFile, sets: Sequence[Arrays], scratch: Path) -> None:
        self.file, self.sets, self.scratch = file, sets, scratch
        self.names = [port.name for port in file.model.graph.input]
        self.labelled_inputs = [*self.list_inputs()]
        self.original_outputs = [
            run(file.path, self.names, inputs) for _, inputs in self.labelled_inputs
        ]

    def rewrite(self, names: Sequence[str]) -> tuple[onnx.ModelProto, list[tuple[Change, ...]]]:
        """Return the rewritten model, and what each rewrite changed."""
        return self.file.rewrite(names)

    def measure(self, rewritten: onnx.ModelProto, bound: float, replaced: Sequence[str]) -> float:
        """Return the largest difference between the outputs of the file and those of its rewritten
        form, relative to the range of an output. ``replaced`` are the names of the nodes that were
        replaced.

        Raises Different if a difference exceeds ``bound``, if outputs have other names, shapes or
        dtypes, or if other elements are NaN or infinite.
        """
        compare_ports(self.file.model, rewritten)
        differences = []
        for inputs, originals, outputs in self.run_both(rewritten, replaced):
            differences.append(compare_arrays(originals, outputs, bound, inputs))
        return max(differences)

    def run_both(
        self, rewritten: onnx.ModelProto, replaced: Sequence[str]
    ) -> Iterator[tuple[str, list[Any], list[Any]]]:
        """Yield what the file and its rewritten form are run on, and the outputs of both. Inputs of
        our own are left out if they make infinite outputs."""
        path = save(rewritten, self.scratch / "rewritten.onnx")
        for (label, inputs), originals in zip(
            self.labelled_inputs, self.original_outputs, strict=True
        ):
            if label == GIVEN or all(map(is_finite, originals)):
                yield label, originals, run(path, self.names, inputs)

        larger = self.enlarge_batch(find_batch(rewritten)[1])
        if larger:
            originals = run(self.file.path, self.names, larger)
            yield "a larger batch", originals, run(path, self.names, larger)

        cuts = choose_cuts(self.file.model, rewritten, replaced)
        for name, value in self.read_values(cuts).items():
            cut_original = save(cut(self.file.model, name, value), self.scratch / "cut0.onnx")
            cut_rewritten = save(cut(rewritten, name, value), self.scratch / "cut1.onnx")
            names = [*self.names, name]
            for change in SCALES:
                inputs = (*self.sets[0], change(value))
                originals = run(cut_original, names, inputs)
                outputs = run(cut_rewritten, names, inputs)
                if all(map(is_finite, originals)):
                    yield f"other values of {name}", originals, outputs

    def enlarge_batch(self, batch: Collection[str]) -> Arrays | None:
        """Return the first two samples as one, or None if there is only one. ``batch`` are the
        inputs whose batch size varies, or none of them."""
        if not batch or len(self.sets) < 2:
            return None
        enlarged = []
        for name, first, second in zip(self.names, *self.sets[:2], strict=True):
            enlarged.append(np.concatenate([first, second]) if name in batch else first)
        return tuple(enlarged)

    def list_inputs(self) -> Iterator[tuple[str, Arrays]]:
        """Yield the given inputs, then random ones within their ranges and variations of the first
        set, with what they are."""
        for inputs in self.sets:
            yield GIVEN, inputs
        generator = np.random.default_rng(0)
        for _ in range(DRAWN):
            columns = zip(*self.sets, strict=True)
            yield "random inputs", tuple(draw(column, generator) for column in columns)
        for change in SCALES:
            yield "random inputs", tuple(change_float(array, change) for array in self.sets[0])

    def read_values(self, names: Sequence[str]) -> dict[str, Array]:
        """Return values inside of the file's model for the first sample."""
        if not names:
            return {}
        scratch = self.scratch / "values.onnx"
        (values,) = compute_sets(deepcopy(self.file.model), scratch, self.sets[:1], names)
        return values


def change_float(array: Array, change: Callable[[Array], Array]) -> Array:
    """Return a changed floating-point array, and another one as it is."""
    return change(array) if is_float(array) else array


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model, and return its path."""
    onnx.save(model, path)
    return path


def run(path: Path, names: Sequence[str], inputs: Arrays) -> list[Any]:
    """Return a model's outputs. ``names`` are those of its ``inputs``."""
    feed = dict(zip(names, inputs, strict=True))
    return [np.asarray(output) for output in open_reference(path).run(None, feed)]


def compare_ports(original: onnx.ModelProto, rewritten: onnx.ModelProto) -> None:
    """Raise Different if the names or the types of the inputs or outputs differ."""
    for kind in ("input", "output"):
        if list_ports(original, kind) != list_ports(rewritten, kind):
            raise Different(f"the names, the types or the number of its {kind}s differ")


def list_ports(model: onnx.ModelProto, kind: str) -> list[tuple[str, int]]:
    """Return the names and the element types of a model's inputs or outputs: ``kind`` is ``input``
    or ``output``."""
    return [(port.name, port.type.tensor_type.elem_type) for port in getattr(model.graph, kind)]


def cut(model: onnx.ModelProto, name: str, value: Array) -> onnx.ModelProto:
    """Return a copy of a model in which a value inside of it is an input, after its own inputs."""
    copy = deepcopy(model)
    for node in copy.graph.node:
        node.output[:] = [f"{output}/cut" if output == name else output for output in node.output]
    copy.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape))
    return copy


def choose_cuts(
    original: onnx.ModelProto, rewritten: onnx.ModelProto, replaced: Sequence[str]
) -> list[str]:
    """Return the names of float32 results that both models have and that nodes of ``replaced``
    read. These results determine what the replaced nodes compute."""
    types = {
        port.name: port.type.tensor_type.elem_type for port in infer(original).graph.value_info
    }
    results = {name for node in original.graph.node for name in node.output}
    results &= {name for node in rewritten.graph.node for name in node.output}
    cuts: dict[str, None] = {}  # a set in order
    for node in original.graph.node:
        if (node.name or node.output[0]) not in replaced:
            continue
        for name in node.input:
            if name in results and types.get(name) == TensorProto.FLOAT:
                cuts[name] = None
    return thin_out(cuts)


def draw(column: Sequence[Array], generator: np.random.Generator) -> Array:
    """Return a random array with the shape, the dtype and the range of the arrays of a column."""
    first, samples = column[0], np.stack(column)
    if first.dtype.kind == "b":
        return generator.integers(0, 2, first.shape).astype(bool)
    low, high = samples.min(), samples.max()
    if is_float(first):
        return generator.uniform(float(low), float(high), first.shape).astype(first.dtype)
    return generator.integers(int(low), int(high), first.shape, endpoint=True).astype(first.dtype)


def is_float(array: Array) -> bool:
    """Return whether an array has floating-point elements."""
    return bool(array.dtype.kind == "f")


def is_finite(array: Array) -> bool:
    """Return whether an array has neither NaN nor infinite elements."""
    return not is_float(array) or bool(np.isfinite(array).all())
