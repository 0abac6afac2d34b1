"""Applies rewrites to .onnx files. The opset, names and types of inputs and outputs, and weights in
another file stay. A batch size that varies still varies, unless a rewrite depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import onnx
from numpy.lib.format import write_array
from onnx import inliner, numpy_helper
from onnx.external_data_helper import set_external_data

from ci.graphs.graph import Array
from ci.graphs.onnx_file import infer
from ci.graphs.onnx_part import resize
from ci.graphs.onnx_session import open_reference
from ci.mend.onnx_rewrites.folding import drop_unused, fold_rounds
from ci.mend.onnx_rewrites.functions import inline_operators
from ci.mend.rewrite import EXTERNAL, ONNX, SAMPLES, Change, find_rewrite, require_changes
from ci.onnx.models import (
    Shapes,
    find_batch,
    fix_shapes,
    list_external,
    list_free,
    list_required_inputs,
)
from ci.onnx.source import list_inputs, read_beside
from provisioning.files import explain_writes

OLDEST_IR = 4  # the first IR version in which initializers need not be inputs
LEAST_EXTERNAL = 1 << 10  # bytes of a weight in another file


@dataclass(frozen=True)
class OnnxFile:
    """A user's .onnx file, and the ``shapes`` of inputs with which it is judged."""

    path: Path
    shapes: Shapes

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model without functions and without inputs that have an initializer."""
        model = onnx.load(self.path)
        if model.functions:
            model = inliner.inline_local_functions(model)
        inputs = list_required_inputs(model)
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = max(model.ir_version, OLDEST_IR)
        return model

    @cached_property
    def prepared(self) -> dict[tuple[Any, ...], onnx.ModelProto]:
        """Prepared models by shapes and ``fold``: searches apply many recipes to the same one."""
        return {}

    def prepare(self, shapes: Shapes, *, fold: bool) -> onnx.ModelProto:
        """Return a copy of the model with inputs of these ``shapes`` and with inferred shapes. With
        ``fold``, constants are computed."""
        key = (tuple(shapes), fold)
        if key not in self.prepared:
            model = deepcopy(self.model)
            fix_shapes(model, shapes)
            model = infer(model)
            self.prepared[key] = fold_rounds(model) if fold else model
        return deepcopy(self.prepared[key])

    def rewrite(self, names: Sequence[str]) -> tuple[onnx.ModelProto, list[tuple[Change, ...]]]:
        """Return the rewritten model, and what each rewrite changed. Shapes become fixed, unless
        only the batch size varies in the file, and the rewrites do not depend on it. Raises
        ValueError if there is no rewrite with one of the names."""
        rewritten, changes = apply_rewrites(self.prepare(self.shapes, fold=True), names)
        if not self.shapes:
            return keep_types(rewritten, self.model), changes
        if not all(changes) or not self.takes_batches:
            return rewritten, changes
        # Folded constants may contain the batch size, so a model without them is tried first.
        for fold in (False, True):
            prepared = self.prepare(self.enlarge(2), fold=fold)
            for_two, changes_for_two = apply_rewrites(prepared, names)
            for_three, _ = apply_rewrites(self.prepare(self.enlarge(3), fold=fold), names)
            is_same = [*map(len, changes_for_two)] == [*map(len, changes)]
            if is_same and free_batch(for_two.graph, for_three.graph):
                return keep_types(for_two, self.model), changes_for_two
        return rewritten, changes

    def enlarge(self, size: int) -> Shapes:
        """Return the shapes of inputs for a batch of ``size``."""
        _, batch = find_batch(self.model)
        return tuple((name, (size, *shape[1:])) for name, shape in batch.items())

    @cached_property
    def takes_batches(self) -> bool:
        """Whether only the batch size varies, and the model runs with another one."""
        shapes = self.enlarge(2)
        free = {port.name for port in list_free(self.model.graph.input)}
        if free != {name for name, _ in shapes}:
            return False
        ports = onnx.ModelProto()  # only the inputs, whose weights may be large
        ports.graph.input.extend(self.model.graph.input)
        fix_shapes(ports, shapes)
        feed = {name: np.zeros(shape, kind) for name, (kind, shape) in list_inputs(ports).items()}
        try:
            # A batch may vary in name only: the model itself then fails for another size.
            open_reference(self.path).run(None, feed)
        except Exception:  # noqa: BLE001 - onnxruntime's errors have no common class
            return False
        return True

    def write(self, names: Sequence[str], target: Path) -> None:
        """Write the rewritten model to ``target``, in a directory of this project, with weights in
        another file if they were in one, and the samples that are next to the user's file. Raises
        ValueError if a rewrite changes nothing or does not exist, and StoreError if a file
        cannot be written."""
        model, changes = self.rewrite(names)
        require_changes(names, changes, self.path.name)
        original = onnx.load(self.path, load_external_data=False)
        data = target.with_name(f"{target.name}{EXTERNAL}")
        if any(list_external(original)):
            data.unlink(missing_ok=True)  # onnx appends to it
            # Not save_as_external_data, which refuses a file of that name in the working directory.
            for tensor in model.graph.initializer:
                if tensor.HasField("raw_data") and len(tensor.raw_data) >= LEAST_EXTERNAL:
                    set_external_data(tensor, data.name)
        fix_shapes(original, self.shapes)
        inputs = list_inputs(original)
        sets = [*read_beside(self.path, inputs)]
        # The path is passed because this runs in a worker: /tmp was blamed for the full disk of
        # `target`.
        with explain_writes(target):
            onnx.save(model, target)
            if data.is_file():  # onnx lets only its owner read it
                data.chmod(target.stat().st_mode)
            if not sets:
                return
            with ZipFile(target.with_suffix(SAMPLES), "w") as archive:  # a name may be `file`
                for name, column in zip(inputs, zip(*sets, strict=True), strict=True):
                    # The time of an entry is fixed, so that the same samples are the same file.
                    with archive.open(ZipInfo(f"{name}.npy"), "w") as stream:
                        write_array(stream, np.stack(column))


def apply_rewrites(
    model: onnx.ModelProto, names: Sequence[str]
) -> tuple[onnx.ModelProto, list[tuple[Change, ...]]]:
    """Apply rewrites to a model whose shapes have been inferred, and return it without inferred
    shapes, and what each of them changed. Raises ValueError as OnnxFile.rewrite does."""
    changes = []
    for name in names:
        changes.append(find_rewrite(ONNX, name)(model))
        model = infer(model) if changes[-1] else model
    del model.graph.value_info[:]
    drop_unused(model)
    return model, changes


def keep_types(model: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """Give the values of a model the types and shapes that the original states, and return it."""
    graph, stated = model.graph, original.graph
    results = {name for node in graph.node for name in node.output}
    value_info = [port for port in stated.value_info if port.name in results]
    del graph.input[:], graph.output[:], graph.value_info[:]
    graph.input.extend(stated.input)
    graph.output.extend(stated.output)
    graph.value_info.extend(value_info)
    return model


def free_batch(graph: onnx.GraphProto, peer: onnx.GraphProto) -> bool:
    """Change a graph that was rewritten for one batch size, so that any size works. ``peer`` is
    the same for another size: a size that differs in the shape of a Reshape is left to the Reshape.
    Return False if anything else differs."""
    if [*map(repr, graph.node)] != [*map(repr, peer.node)]:
        return False
    operands = {name for node in graph.node for name in node.input}
    reshapes = [node.input for node in graph.node if node.op_type == "Reshape"]
    other_operands = operands - {shape for _, shape in reshapes} | {data for data, _ in reshapes}
    twins = {initializer.name: initializer for initializer in peer.initializer}
    for initializer in graph.initializer:
        twin = twins[initializer.name]
        if initializer == twin:
            continue
        sizes = numpy_helper.to_array(initializer).copy()
        differs = None
        if initializer.name not in other_operands and list(initializer.dims) == list(twin.dims):
            differs = sizes != numpy_helper.to_array(twin)
        if differs is None or np.sum(differs) != 1:
            return False
        # Zero takes the size from the operand, -1 from what is left.
        sizes[differs] = 0 if -1 in sizes else -1
        initializer.CopyFrom(numpy_helper.from_array(sizes, initializer.name))
    return True


def change_form(path: Path, decomposed: str, inputs: Sequence[Array]) -> None:
    """Give a file the shapes of these inputs, and write an operator as its definition in ONNX,
    unless it is empty. Raises ValueError if it has none."""
    model = onnx.load(path)
    resize(model, inputs)
    if decomposed and not inline_operators(model, [decomposed]):
        raise ValueError(f"ONNX has no definition of {decomposed}")
    onnx.save(model, path)
