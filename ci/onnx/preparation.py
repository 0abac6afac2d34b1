"""Prepares an ONNX file for QNN: converts it to a form that the tools accept, and quantizes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import digits
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import inliner, version_converter
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import (
    get_qnn_qdq_config,
    qnn_preprocess_model,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.tools.remove_initializer_from_input import remove_initializer_from_input

from ci.graphs.onnx_file import list_graphs, read_attributes, read_constants
from ci.models.file_samples import Arrays
from ci.models.lowering_options import NO_CHOICES, Choices, Part
from ci.models.schemes import Recipe, Scheme
from ci.onnx.fallback import ONNXRUNTIME, QUANTIZER, stage
from ci.onnx.models import (
    NEWEST_TAKEN_OPSET,
    RMS_NORM,
    Shapes,
    count_newer_operators,
    fix_shapes,
    list_external,
)
from ci.onnx.precision import WEIGHTS, find_owners, override_parts
from ci.onnx.source import list_inputs
from ci.report.text import count, name_some
from provisioning.errors import FailedError

OLDEST_OPSET = 13  # the first opset with per-channel scales in DequantizeLinear
# The newest opset of a model with operators that NEWEST_TAKEN_OPSET lacks, and those of them that
# onnxruntime 1.32 computes. QNN's provider leaves them to the CPU, except the norm.
NEWEST_KEPT_OPSET = 25
OLDEST_IR = 4  # the first IR version in which initializers need not be inputs
# For these operators, onnxruntime 1.32 quantizes the weights to the type of activations;
# get_qnn_qdq_config corrects this only for MatMul's 8-bit weights.
OVERRIDDEN = ("MatMul", "LSTM", "GRU")
# onnxruntime's options for the observers of a policy.
OBSERVERS = {
    "": {},
    "moving_average": {"CalibMovingAverage": True},
    "percentile": {"CalibPercentile": 99.99},
}
LARGEST = (-65504.0, 65504.0)  # float16's range, to which infinite values are limited
MOST_NAMED = 3
SIMPLIFIED, ELSEWHERE = "SimplifiedLayerNormalization", "qnn-ci"
LAYER_NORM = "LayerNormalization"


@stage(ONNXRUNTIME)
def write_normal_form(path: Path, target: Path, shapes: Shapes = ()) -> Path:
    """Return the path of an equivalent model that has constant weights, an opset from OLDEST_OPSET
    to NEWEST_TAKEN_OPSET, or to NEWEST_KEPT_OPSET if it has operators that older ones lack, and
    inputs of these ``shapes``. If nothing has to change, this is ``path`` itself. Otherwise, the
    new model is written to ``target``.

    QNN's provider crashes if the weights in another file lack the optional field ``length``, so
    they become part of the model. Functions are replaced by their operators, as ONNX Runtime does.
    Up to IR version 3, each initializer is also an input that a caller may replace, but QNN
    executes only nodes with constant weights. Raises StageError with onnx's error as its cause, for
    example if onnx cannot convert the opset.
    """
    # The weights are read only if something has to change.
    model = onnx.load(path, load_external_data=False)
    opsets = [entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}]
    opset = max(opsets, default=OLDEST_OPSET)
    new_opset = min(max(opset, OLDEST_OPSET), NEWEST_TAKEN_OPSET)
    if opset > NEWEST_TAKEN_OPSET and count_newer_operators(model, NEWEST_TAKEN_OPSET):
        new_opset = min(opset, NEWEST_KEPT_OPSET)
    has_replaceable_weights = len(list_inputs(model)) < len(model.graph.input)
    lacks_length = not all(map(_has_length, list_external(model)))
    must_change = (
        shapes or has_replaceable_weights or opset != new_opset or lacks_length or model.functions
    )
    if not must_change:
        return path
    if opset != new_opset:
        require_known_operators(model, new_opset)
    model = onnx.load(path)
    fix_shapes(model, shapes)
    if model.functions:
        model = inliner.inline_local_functions(model, convert_version=True)
    if opset != new_opset:
        model = convert_opset(model, new_opset)
    model.ir_version = max(model.ir_version, OLDEST_IR)
    remove_initializer_from_input(model)
    onnx.save(model, target)
    return target


def require_known_operators(model: Any, opset: int) -> None:
    """Raise FailedError if a model has operators that an opset lacks, except RMSNormalization. The
    rule onnx-operator-too-new explains the error."""
    newer = count_newer_operators(model, opset)
    if newer:
        raise FailedError(
            f"the model has {name_some([*newer], MOST_NAMED)}, which opset {opset} lacks"
        )


def convert_opset(model: Any, opset: int) -> Any:
    """Return the model in another opset. RMSNormalization, which opset 21 lacks, becomes
    onnxruntime's own operator, which computes the same: ONNX's converter knows only what has an
    equivalent in ONNX."""
    norms = [
        node
        for graph in list_graphs(model.graph)
        for node in graph.node
        if node.op_type == RMS_NORM and node.domain in {"", "ai.onnx"}
    ]
    for node in norms:
        # In another domain, the converter leaves it as it is.
        node.op_type, node.domain = SIMPLIFIED, ELSEWHERE
    if norms:
        model.opset_import.append(onnx.helper.make_opsetid(ELSEWHERE, 1))
    model = version_converter.convert_version(model, opset)
    for graph in list_graphs(model.graph):
        for node in graph.node:
            if node.domain == ELSEWHERE:
                node.domain = ""
    opsets = [entry for entry in model.opset_import if entry.domain != ELSEWHERE]
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    return model


def _has_length(tensor: Any) -> bool:
    return any(entry.key == "length" for entry in tensor.external_data)


def copy_file(path: Path, target: Path) -> Path:
    """Copy a model and all its weights to a single file, ``target``, and return its path."""
    onnx.save(onnx.load(path), target)
    return target


class SetReader(CalibrationDataReader):
    """Passes the calibration samples one by one to the quantizer."""

    def __init__(self, names: Sequence[str], sets: Sequence[Arrays]) -> None:
        self.feeds = iter([dict(zip(names, arrays, strict=True)) for arrays in sets])

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample by input name, or None after the last one."""
        return next(self.feeds, None)


@stage(ONNXRUNTIME)
def prepare_file(source: Path) -> Any:
    """Return the float model in a form that can be quantized: constants are folded, batch norms are
    merged into convolutions, shapes are inferred, and operators are rewritten for QNN.

    Raises StageError with the error of onnxruntime as its cause.
    """
    with TemporaryDirectory() as scratch:
        single, folded, prepared = (
            Path(scratch, name) for name in ("single", "folded", "prepared")
        )
        # quant_pre_process does not find weights in another file, as torch.onnx.export writes them.
        copy_file(source, single)
        # Shapes are fixed, so symbolic inference is unnecessary, and it fails on some models.
        # Without this call, the quantizer leaves constants unfolded (142 nodes of a model stayed on
        # the CPU, with error 7004), and does not see weights that are Constant nodes.
        quant_pre_process(str(single), str(folded), skip_symbolic_shape=True)
        model = onnx.load(folded)
        metadata = {prop.key: prop.value for prop in model.metadata_props}
        # If a model has metadata, qnn_preprocess_model of onnxruntime 1.32 raises "cannot convert
        # dictionary update sequence element".
        del model.metadata_props[:]
        fold_casts(model.graph)
        mend_names(model.graph)
        mend_constants(model.graph)
        onnx.save(model, folded)
        changed = qnn_preprocess_model(str(folded), str(prepared))
        model = infer_norms(onnx.load(prepared if changed else folded))
    onnx.helper.set_model_props(model, metadata)
    return model


def infer_norms(model: Any) -> Any:
    """Return the model with the types of all results if it has onnxruntime's SIMPLIFIED. ONNX does
    not know this operator, so it infers no type for its result, and the quantizer would leave the
    result and all that reads it in float. LayerNormalization has the same result types."""
    norms = [node for node in model.graph.node if node.op_type == SIMPLIFIED and not node.domain]
    if not norms:
        return model
    names = {node.output[0] for node in norms}
    for node in norms:
        node.op_type = LAYER_NORM
    model = onnx.shape_inference.infer_shapes(model)
    for node in model.graph.node:
        if node.op_type == LAYER_NORM and node.output[0] in names:
            node.op_type = SIMPLIFIED
    return model


def mend_names(graph: Any) -> None:
    """Rename each initializer whose name, followed by digits, is the name of another value. To name
    copies of a bias, the quantizer appends digits. If such a name already exists, it raises "All
    inputs to Concat must have same rank"."""
    heads = set()  # of "x12": "x" and "x1"
    for node in graph.node:
        for name in node.output:
            for end in range(len(name.rstrip(digits)), len(name)):
                heads.add(name[:end])
    renamed = {}
    for initializer in graph.initializer:
        if initializer.name in heads:
            renamed[initializer.name] = f"{initializer.name}_weight"
            initializer.name = renamed[initializer.name]
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)


def fold_casts(graph: Any) -> None:
    """Cast constants. ONNX Runtime computes a float16 model in float32, and leaves a Cast behind
    each weight, so the quantizer would take the weights for activations."""
    constants = {initializer.name: initializer for initializer in graph.initializer}
    for node in [*graph.node]:
        if node.op_type == "Cast" and node.input[0] in constants:
            kind = onnx.helper.tensor_dtype_to_np_dtype(read_attributes(node)["to"])
            value = onnx.numpy_helper.to_array(constants[node.input[0]]).astype(kind)
            graph.initializer.append(onnx.numpy_helper.from_array(value, node.output[0]))
            graph.node.remove(node)


def mend_constants(graph: Any) -> None:
    """Change constants that the quantizer cannot handle. Infinite elements are limited to float16's
    range. Gemm's bias becomes one-dimensional; otherwise, the quantizer raises "truth value of an
    array ..."."""
    biases = set()
    for node in graph.node:
        if node.op_type == "Gemm" and len(node.input) > 2:
            biases.add(node.input[2])
    for initializer in graph.initializer:
        if initializer.data_type != onnx.TensorProto.FLOAT:
            continue
        array = onnx.numpy_helper.to_array(initializer)
        mended = array
        if np.isinf(array).any():
            mended = np.clip(array, *LARGEST)
        if initializer.name in biases and array.ndim == 2 and len(array) == 1:
            mended = mended[0]
        if mended is not array:
            initializer.CopyFrom(onnx.numpy_helper.from_array(mended, initializer.name))


@stage(QUANTIZER)
def quantize_file(
    source: Path,
    target: Path,
    scheme: Scheme,
    sets: Sequence[Arrays],
    choices: Choices = NO_CHOICES,
) -> Mapping[str, Part]:
    """Quantize the model ``source`` and write it to ``target``, with QuantizeLinear and
    DequantizeLinear as QNN's provider expects them. Return the parts of the tensors, as
    find_owners does.

    The quantization ranges cover the values for all of ``sets``, unless the choices name another
    observer. The metadata of the source is kept. Raises StageError; its cause is an error of
    onnxruntime's quantizer, or a FailedError if a weight does not have its type, or a UsageError
    for a part without nodes.
    """
    recipe = scheme.recipe
    model = prepare_file(source)
    owners = find_owners(onnx.load(source, load_external_data=False), model, choices.parts)
    part_overrides = override_parts(model, owners, recipe)  # first: it names nodes
    overrides = {**override_weights(model.graph, recipe), **part_overrides}
    config = get_qnn_qdq_config(
        model,
        SetReader([port.name for port in model.graph.input], sets),
        CalibrationMethod["Percentile" if choices.observer == "percentile" else "MinMax"],
        activation_type=QuantType[recipe.activations],
        weight_type=QuantType[recipe.weights],
        per_channel=recipe.per_channel,
        init_overrides=overrides,
        # override_parts converts types instead, see there.
        add_qtype_converts=False,
    )
    config.extra_options |= OBSERVERS[choices.observer]
    quantize(model, str(target), config)
    require_weights(onnx.load(target, load_external_data=False), scheme, owners)
    return owners


def override_weights(graph: Any, recipe: Recipe) -> dict[str, list[dict[str, Any]]]:
    """Return overrides that make the quantizer use the recipe's type for the weights of the
    operators in OVERRIDDEN.

    With per-channel weights, a layer norm's scale stays unsigned, because HTP requires it.
    """
    kind = QuantType[recipe.weights]
    symmetric = kind in {QuantType.QInt8, QuantType.QInt16}
    constants = {initializer.name for initializer in graph.initializer}
    overrides: dict[str, list[dict[str, Any]]] = {}
    for node in graph.node:
        if node.op_type in OVERRIDDEN:
            for place in WEIGHTS[node.op_type]:
                # Without an axis: QNN supports no MatMul with a scale per channel (quant_config.py
                # of onnxruntime 1.32).
                overrides[node.input[place]] = [{"quant_type": kind, "symmetric": symmetric}]
        if node.op_type == LAYER_NORM and recipe.per_channel:
            overrides[node.input[1]] = [{"quant_type": QuantType.QUInt8, "symmetric": False}]
    return {name: override for name, override in overrides.items() if name in constants}


def require_weights(
    model: Any, scheme: Scheme, owners: Mapping[str, Part] = MappingProxyType({})
) -> None:
    """Raise FailedError if weights of a quantized model have neither the scheme's type nor that of
    one of the parts, ``owners``. Which of them a node has is judged later, as for QNN."""
    schemes = {scheme, *(part.scheme for part in owners.values())}
    types = {QuantType[allowed.recipe.weights].tensor_type for allowed in schemes}
    wrong = {name: kind for name, kind in find_weights(model) if kind not in types}
    if wrong:
        required = _name_type(QuantType[scheme.recipe.weights].tensor_type)
        named = [f"{name} {_name_type(kind)}" for name, kind in wrong.items()]
        raise FailedError(
            f"{count(len(wrong), 'weight does', 'weights do')} not have type {required},"
            f" which {scheme} requires: {name_some(named, MOST_NAMED)}",
            why="the quantizer skips weights in branches of an If, weights that another node"
            " computes, and weights that another node reads as an activation",
            fix="export the model without branches and with its weights as initializers without"
            " another use, or use fp16",
        )


def _name_type(kind: int) -> str:
    return str(onnx.TensorProto.DataType.Name(kind)).lower()


def find_weights(model: Any) -> Iterator[tuple[str, int]]:
    """Yield the name and the element type of each constant weight of the operators in WEIGHTS,
    including operators in branches. A name has the form ``Conv 'first' input 1``."""
    for graph in list_graphs(model.graph):
        types = {name: constant.data_type for name, constant in read_constants(graph).items()}
        dequantized = {}
        for node in graph.node:
            if node.op_type == "DequantizeLinear" and node.input[0] in types:
                dequantized[node.output[0]] = types[node.input[0]]
        types |= dequantized
        for node in graph.node:
            for place in WEIGHTS.get(node.op_type, ()):
                if node.input[place] in types:
                    yield f"{node.op_type} {node.name!r} input {place}", types[node.input[place]]
