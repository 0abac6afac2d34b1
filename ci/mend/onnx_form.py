"""Runs .onnx models for the proof of rewrites, see ci.mend.proof."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ci.graphs.graph import Array, Graph, Node
from ci.graphs.onnx_edit import DOMAIN, name_proto
from ci.graphs.onnx_program import widen
from ci.graphs.onnx_reader import parse_model
from ci.graphs.onnx_session import open_reference
from ci.mend.onnx_files import OnnxFile
from ci.mend.proof import Arrays
from ci.mend.rewrite import Change
from ci.onnx.layers import compute_sets
from ci.onnx.models import find_batch


class OnnxSubject:
    """A file that rewrites are applied to, on the judged samples ``sets``. Models are written to
    ``scratch``."""

    def __init__(self, file: OnnxFile, sets: Sequence[Arrays], scratch: Path) -> None:
        self.file, self.sets, self.scratch = file, sets, scratch
        self.original = OnnxForm(file.model, scratch, file.path)

    def rewrite(self, names: Sequence[str]) -> tuple[onnx.ModelProto, list[tuple[Change, ...]]]:
        """Return the rewritten model, and what each rewrite changed."""
        return self.file.rewrite(names)

    def open(self, rewritten: onnx.ModelProto) -> OnnxForm:
        """Return a rewritten model as a Form."""
        return OnnxForm(rewritten, self.scratch, save(rewritten, self.scratch / "rewritten.onnx"))

    def enlarge_batch(self, rewritten: onnx.ModelProto) -> Arrays | None:
        """Return the first two samples as one, or None if there is only one, or if the batch size
        does not vary."""
        _, batch = find_batch(rewritten)
        if not batch or len(self.sets) < 2:
            return None
        enlarged = []
        names = [port.name for port in self.file.model.graph.input]
        for name, first, second in zip(names, *self.sets[:2], strict=True):
            enlarged.append(np.concatenate([first, second]) if name in batch else first)
        return tuple(enlarged)


class OnnxForm:
    """A model in one form, which is stored at ``path``."""

    def __init__(self, model: onnx.ModelProto, scratch: Path, path: Path) -> None:
        self.model, self.scratch, self.path = model, scratch, path
        self.names = [port.name for port in model.graph.input]
        self.labels = {
            proto.output[0]: name_proto(proto) for proto in model.graph.node if proto.output
        }
        self.session: Any = None

    @cached_property
    def graph(self) -> Graph:
        """The graph of the model."""
        return parse_model(deepcopy(self.model), self.path.parent, joins=False)

    def label(self, node: Node) -> str:
        """Return the name of a call in the file, or that of its result."""
        return self.labels[node.name]

    def list_ports(self, kind: str) -> list[tuple[str, int]]:
        """Return the names and the element types of the inputs or outputs."""
        ports = getattr(self.model.graph, kind)
        return [(port.name, port.type.tensor_type.elem_type) for port in ports]

    def run(self, inputs: Arrays, fixed: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for one sample."""
        feed = {**dict(zip(self.names, inputs, strict=True)), **fixed}
        inner = {name: array for name, array in fixed.items() if name not in self.names}
        if inner:
            path = self.scratch / "cut.onnx"
            save(cut(self.model, inner), path)
            session = open_reference(path)
        else:
            self.session = session = self.session or open_reference(self.path)
        return [np.asarray(output) for output in session.run(None, feed)]

    def run_exactly(self, inputs: Arrays, fixed: Mapping[str, Array]) -> list[Array] | None:
        """Return what ``run`` returns, computed in float64 by onnx's own evaluator, or None for a
        model that it cannot run. It takes float64 wherever ONNX has float32, and needs 0.1 s for a
        convolution of 30 million products; onnxruntime 1.32 has no convolution in float64, no
        average pool, and no Erf."""
        wide = {name: _widen(array) for name, array in fixed.items()}
        feed = {**dict(zip(self.names, map(_widen, inputs), strict=True)), **wide}
        inner = {name: array for name, array in wide.items() if name not in self.names}
        try:
            model = cut(self.widened, inner) if inner else self.widened
            outputs = ReferenceEvaluator(model, new_ops=[Gelu]).run(None, feed)
        except Exception:  # noqa: BLE001 - it raises any that numpy raises, and its own
            return None
        return [np.asarray(output) for output in outputs]

    @cached_property
    def widened(self) -> onnx.ModelProto:
        """The model with float64 wherever it has float32."""
        return widen(deepcopy(self.model), TensorProto.FLOAT, TensorProto.DOUBLE)

    def read_values(self, inputs: Arrays, names: Sequence[str]) -> dict[str, Array]:
        """Return values inside of the model for one sample."""
        values = {name: inputs[place] for place, name in enumerate(self.names) if name in names}
        inner = [name for name in names if name not in self.names]
        if inner:
            scratch = self.scratch / "values.onnx"
            (computed,) = compute_sets(deepcopy(self.model), scratch, [tuple(inputs)], inner)
            values |= computed
        return {name: values[name] for name in names}


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model, and return its path."""
    onnx.save(model, path)
    return path


def cut(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """Return a copy of a model in which values inside of it are inputs, after its own inputs."""
    copy = deepcopy(model)
    for node in copy.graph.node:
        node.output[:] = [f"{output}/cut" if output in values else output for output in node.output]
    for name, value in values.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        copy.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
    return copy


class Gelu(OpRun):
    """onnxruntime's own operator, which rewrites write. onnx's evaluator has none of them."""

    op_domain = DOMAIN

    def _run(self, x: Array) -> tuple[Array]:
        erf = np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2.0))
        return ((0.5 * x * (1 + erf)).astype(x.dtype),)


def _widen(array: Array) -> Array:
    """Return an array of float32 as float64, and any other as it is."""
    return array.astype(np.float64) if array.dtype == np.float32 else array
