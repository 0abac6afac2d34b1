"""Applies rewrites to .onnx files. The opset, names and types of inputs and outputs, and weights in
another file stay. A batch size that varies still varies, unless a rewrite depends on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import onnx
from numpy.lib.format import write_array
from onnx import helper, inliner, numpy_helper
from onnx.external_data_helper import set_external_data

from ci.graphs.onnx_file import list_bodies
from ci.graphs.onnx_session import open_reference
from ci.mend.onnx_rewrites.graph import Graph, read
from ci.mend.rewrite import EXTERNAL, ONNX, SAMPLES, Change, find_rewrite, require_changes
from ci.onnx.models import (
    QUANTIZED,
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
MOST_ROUNDS = 8  # of folding, each of which may make more shapes known
MOST_FOLDED = 1 << 24  # elements of a folded constant
LEAST_EXTERNAL = 1 << 10  # bytes of a weight in another file
# Operators whose results are not constants although their operands are.
KEPT = (
    *QUANTIZED, "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
    "Multinomial", "Bernoulli", "Dropout", "Constant",
)  # fmt: skip


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
    def known(self) -> dict[tuple[Any, ...], onnx.ModelProto]:
        return {}

    def prepare(self, shapes: Shapes, *, fold: bool) -> onnx.ModelProto:
        """Return a copy of the model with inputs of these ``shapes`` and with inferred shapes. With
        ``fold``, constants are computed."""
        key = (tuple(shapes), fold)
        if key not in self.known:
            whole = deepcopy(self.model)
            fix_shapes(whole, shapes)
            whole = infer(whole)
            for _ in range(MOST_ROUNDS if fold else 0):
                if not fold_constants(whole):
                    break
                whole = infer(whole)
            self.known[key] = whole
        return deepcopy(self.known[key])

    def rewrite(self, names: Sequence[str]) -> tuple[onnx.ModelProto, list[tuple[Change, ...]]]:
        """Return the rewritten model, and what each rewrite changed. Shapes become fixed, unless
        only the batch size varies in the file, and the rewrites do not depend on it. Raises
        ValueError if there is no rewrite with one of the names."""
        made, changes = apply_rewrites(self.prepare(self.shapes, fold=True), names)
        if not self.shapes:
            return keep_types(made, self.model), changes
        for fold in (False, True) if all(changes) and self.takes_batches else ():
            (two, found), (three, _) = (
                apply_rewrites(self.prepare(self.enlarge(size), fold=fold), names)
                for size in (2, 3)
            )
            same = [*map(len, found)] == [*map(len, changes)]
            if same and free_batch(two.graph, three.graph):
                return keep_types(two, self.model), found
        return made, changes

    def enlarge(self, size: int) -> Shapes:
        """Return the shapes of inputs for a batch of ``size``."""
        _, batch = find_batch(self.model)
        return tuple((name, (size, *one[1:])) for name, one in batch.items())

    @cached_property
    def takes_batches(self) -> bool:
        """Whether only the batch size varies, and the model runs with another one."""
        shapes = self.enlarge(2)
        if {one.name for one in list_free(self.model.graph.input)} != {name for name, _ in shapes}:
            return False
        model = onnx.ModelProto()
        model.graph.input.extend(self.model.graph.input)
        fix_shapes(model, shapes)
        feed = {name: np.zeros(shape, kind) for name, (kind, shape) in list_inputs(model).items()}
        try:
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
        given = onnx.load(self.path, load_external_data=False)
        data = target.with_name(f"{target.name}{EXTERNAL}")
        if any(list_external(given)):
            data.unlink(missing_ok=True)  # onnx appends to it
            # Not save_as_external_data, which refuses a file of that name in the working directory.
            for tensor in model.graph.initializer:
                if tensor.HasField("raw_data") and len(tensor.raw_data) >= LEAST_EXTERNAL:
                    set_external_data(tensor, data.name)
        fix_shapes(given, self.shapes)
        inputs = list_inputs(given)
        sets = [*read_beside(self.path, inputs)]
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
    one, other = model.graph, original.graph
    made = {name for node in one.node for name in node.output}
    known = [port for port in other.value_info if port.name in made]
    del one.input[:], one.output[:], one.value_info[:]
    one.input.extend(other.input)
    one.output.extend(other.output)
    one.value_info.extend(known)
    return model


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def fold_constants(model: onnx.ModelProto) -> bool:
    """Replace nodes whose results do not depend on the inputs by constants, in place. A Shape is
    such a node, because shapes are known. Return whether there are any."""
    graph, chosen, made = Graph(model), [], set[str]()
    for node in graph.nodes:
        sizes = [math.prod(graph.shapes.get(output, ())) for output in node.output]
        is_kept = node.domain not in ("", "ai.onnx") or node.op_type in KEPT or list_bodies(node)
        if is_kept or max(sizes) > MOST_FOLDED or graph.outputs.intersection(node.output):
            continue
        if node.op_type == "Shape" and node.input[0] in graph.shapes:
            shape = graph.shape(node.input[0])[read(node, "start", 0) : read(node, "end", None)]
            value = numpy_helper.from_array(np.array(shape, np.int64))
            node.CopyFrom(helper.make_node("Constant", [], node.output, node.name, value=value))
        elif not all(one in graph.tensors or one in made for one in node.input if one):
            continue
        chosen.append(node)
        made.update(node.output)
    wanted = [name for node in chosen for name in node.output if graph.reads[name]]
    try:
        values = compute(model, graph, chosen, wanted)
    except Exception:  # noqa: BLE001 - onnxruntime's errors have no common class
        return False
    done = {id(node) for node in chosen}
    nodes = [node for node in graph.nodes if id(node) not in done]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    held = [numpy_helper.from_array(value, name) for name, value in values.items()]
    model.graph.initializer.extend(held)
    drop_unused(model)
    return bool(chosen)


def drop_unused(model: onnx.ModelProto) -> None:
    """Remove initializers that nothing reads."""
    reads = Graph(model).reads
    held = [initializer for initializer in model.graph.initializer if reads[initializer.name]]
    del model.graph.initializer[:]
    model.graph.initializer.extend(held)


def compute(
    model: onnx.ModelProto, graph: Graph, nodes: Sequence[onnx.NodeProto], wanted: Sequence[str]
) -> Mapping[str, Any]:
    """Return the ``wanted`` results of nodes that read only constants of ``graph`` and one
    another."""
    if not wanted:
        return {}
    outputs = [helper.make_empty_tensor_value_info(name) for name in wanted]
    own = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    own.graph.CopyFrom(helper.make_graph(nodes, "constants", [], outputs))
    for name in {name for node in nodes for name in node.input} & graph.tensors.keys():
        own.graph.initializer.add().CopyFrom(graph.tensors[name])
        own.graph.initializer[-1].name = name
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "constants.onnx")
        onnx.save(infer(own), path)
        return dict(zip(wanted, open_reference(path).run([*wanted], {}), strict=True))


def free_batch(graph: onnx.GraphProto, other: onnx.GraphProto) -> bool:
    """Change a graph that was rewritten for one batch size, so that any size works. ``other`` is
    the same for another size: a size that differs in the shape of a Reshape is left to the Reshape.
    Return False if anything else differs."""
    twins = {initializer.name: initializer for initializer in other.initializer}
    if [*map(repr, graph.node)] != [*map(repr, other.node)]:
        return False
    reshapes = [node.input for node in graph.node if node.op_type == "Reshape"]
    others = {name for node in graph.node for name in node.input} - {one[1] for one in reshapes}
    others |= {one[0] for one in reshapes}
    for one in graph.initializer:
        if one == twins[one.name]:
            continue
        sizes, its = (numpy_helper.to_array(each).copy() for each in (one, twins[one.name]))
        if sizes.shape != its.shape or one.name in others or np.sum(sizes != its) != 1:
            return False
        # Zero takes the size from the operand, -1 from what is left.
        sizes[sizes != its] = 0 if -1 in sizes else -1
        one.CopyFrom(numpy_helper.from_array(sizes, one.name))
    return True
