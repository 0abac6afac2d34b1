"""Runs .tflite files for the proof of rewrites, see ci.mend.proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ci.graphs.graph import Array, Graph, Node
from ci.graphs.litert_file import read_dtype, read_model, read_shape
from ci.graphs.litert_program import LitertProgram, name_method
from ci.graphs.litert_session import Reference
from ci.graphs.run import Recipe
from ci.mend.litert_files import LitertFile
from ci.mend.proof import Arrays
from ci.mend.rewrite import Change


class LitertSubject:
    """A file that rewrites are applied to, on the judged samples ``sets``."""

    def __init__(self, file: LitertFile, sets: Sequence[Arrays]) -> None:
        self.file, self.sets = file, sets
        self.original = LitertForm(file.data)

    def rewrite(self, names: Sequence[str]) -> tuple[bytes, list[tuple[Change, ...]]]:
        """Return the rewritten file, and what each rewrite changed."""
        return self.file.rewrite(names)

    def open(self, rewritten: bytes) -> LitertForm:
        """Return a rewritten file as a Form."""
        return LitertForm(rewritten)

    def enlarge_batch(self, _rewritten: bytes) -> None:
        """Return nothing: a file is compiled with the shapes that it has."""


class LitertForm:
    """A file in one form, on LiteRT's CPU interpreter."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.program = LitertProgram(data)
        (self.entry,) = self.program.entries
        self.method = name_method(self.entry)

    @cached_property
    def reference(self) -> Reference:
        """The model as LiteRT runs it."""
        return Reference(self.data, read_model(self.data), [self.entry])

    @property
    def graph(self) -> Graph:
        """The graph of the model."""
        return self.program.graphs[self.method]

    def label(self, node: Node) -> str:
        """Return the name of a call in the file: that of its result."""
        return node.name

    def list_ports(self, kind: str) -> list[tuple[str, tuple[int, ...], str]]:
        """Return the names, the shapes and the types of the inputs or outputs."""
        entry = self.entry
        is_input = kind == "input"
        numbers = entry.inputs if is_input else entry.outputs
        names = entry.input_names if is_input else entry.output_names
        tensors = self.program.model.subgraphs[entry.subgraph].tensors
        return [
            (name, read_shape(tensors[number]), read_dtype(tensors[number]))
            for name, number in zip(names, numbers, strict=True)
        ]

    def run(self, inputs: Arrays, fixed: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for one sample."""
        if not fixed:
            (outputs,) = self.reference.run([inputs])
            return [*outputs]
        run = self.program.prepare({self.method: Recipe(fixed=fixed)})
        (outputs,) = run.run([inputs])
        return [*outputs]

    def run_exactly(self, _inputs: Arrays, _fixed: Mapping[str, Array]) -> None:
        """Return nothing: LiteRT's interpreter has no float64 kernels."""

    def read_values(self, inputs: Arrays, names: Sequence[str]) -> dict[str, Array]:
        """Return values inside of the model for one sample."""
        run = self.program.prepare({self.method: Recipe(decisions=frozenset(names))})
        (records,) = run.record([inputs])
        values = records[self.method].values
        return {name: values[name] for name in names if name in values}
