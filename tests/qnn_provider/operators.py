"""One-node ONNX models, one an operator, variant, type and rank: what the provider is asked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.qnn_provider.models import constant, tensor, write_model

FLOATS = ("float32", "u8", "u16")
NUMBERS = (*FLOATS, "int32")
MOVED = (*NUMBERS, "int64", "bool")
KINDS = {
    "float32": TensorProto.FLOAT,
    "u8": TensorProto.FLOAT,
    "u16": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
# Scale, zero point and dtype of activations; weights are uint8.
QUANTIZED = {"u8": (0.05, 128, np.uint8), "u16": (0.0002, 32768, np.uint16)}
DIMS = (2, 4, 6, 8, 10)
RANKS = range(1, 6)
Inputs = Callable[[int], Sequence[Any]]
NARROW = {"Acos", "Acosh", "Asin", "Atanh", "Div", "Log", "Pow", "Reciprocal", "Sqrt", "Tan"}


def shape(rank: int) -> tuple[int, ...]:
    """(8,), (6, 8), (4, 6, 8) ...: the batch is 1 from rank 3 on, as in models."""
    dims = DIMS[4 - rank :] if rank < 5 else DIMS
    return (1, *dims[1:rank]) if rank > 2 else dims[:rank]


@dataclass(frozen=True)
class Case:
    """One model. ``weights`` are float constants, quantized with the type; ``constants`` are not.

    ``inputs`` are shapes of the case's type, or a shape and another type.
    """

    op: str
    kind: str
    inputs: Sequence[Any]
    variant: str = ""
    weights: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    order: Sequence[str] = ()
    outputs: int = 1
    shape: Sequence[int] | None = None  # of the output, where onnx does not infer it
    domain: str = ""
    opset: int = 21

    @property
    def span(self) -> tuple[float, float]:
        """Of which inputs are drawn: where the operator is defined, and not too steep."""
        if self.variant == "to uint8":
            return 0.0, 200.0
        return (0.1, 0.9) if self.op in NARROW else (-2.0, 2.0)

    @property
    def step(self) -> float:
        """Of its quantized values; 0 without."""
        return QUANTIZED[self.kind][0] if self.kind in QUANTIZED else 0.0

    @property
    def rank(self) -> int:
        return len(self.inputs[0][0] if isinstance(self.inputs[0][0], tuple) else self.inputs[0])

    @property
    def key(self) -> str:
        name = f"{self.domain}:{self.op}" if self.domain else self.op
        return f"{name}{'/' + self.variant if self.variant else ''} {self.kind} {self.rank}"


FIELDS = {field.name for field in dataclasses.fields(Case)} - {"attributes"}


def write_case(case: Case, path: Path) -> Path:
    """The model of a case. Raises what the onnx package does for one that is no ONNX."""
    nodes: list[Any] = []
    constants = [_constant(name, value) for name, value in case.constants.items()]
    feeds: dict[str, str] = {}
    ports = []
    for place, declared in enumerate(case.inputs):
        dims, kind = declared if isinstance(declared[0], tuple) else (declared, case.kind)
        name = f"x{place}"
        ports.append(tensor(name, dims, KINDS[kind]))
        feeds[name] = _quantize(name, kind, nodes, constants) if kind in QUANTIZED else name
    for name, value in case.weights.items():
        feeds[name] = _weigh(name, value, case.kind, nodes, constants)
    order = case.order or (*feeds, *case.constants)
    outputs = [f"y{place}" for place in range(case.outputs)]
    names = [feeds.get(name, name) for name in order]
    nodes.append(
        helper.make_node(case.op, names, outputs, "n0", domain=case.domain, **case.attributes)
    )
    return _finish(case, path, nodes, ports, outputs, constants)


def _finish(
    case: Case,
    path: Path,
    nodes: list[Any],
    ports: list[Any],
    outputs: list[str],
    constants: list[Any],
) -> Path:
    """With the outputs' types and shapes as onnx infers them, quantized where the case is."""
    bare = [helper.make_empty_tensor_value_info(name) for name in outputs]
    write_model(path, nodes, ports, bare, constants, opset=case.opset)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    inferred_by_name = {
        output.name: output for output in (*inferred.graph.output, *inferred.graph.value_info)
    }
    final, inner_values = [], []
    for name in outputs:
        output = inferred_by_name[name] if case.shape is None else tensor(name, case.shape)
        kind = output.type.tensor_type
        if case.kind in QUANTIZED and kind.elem_type in (TensorProto.FLOAT, 0):
            target = _quantize(name, case.kind, nodes, constants)
            inner_values.append(output)
            dims = [dim.dim_value for dim in kind.shape.dim]
            output = helper.make_tensor_value_info(target, TensorProto.FLOAT, dims)
        final.append(output)
    return write_model(
        path, nodes, ports, final, constants, opset=case.opset, inner_values=inner_values
    )


def _quantize(name: str, kind: str, nodes: list[Any], constants: list[Any]) -> str:
    scale, zero, dtype = QUANTIZED[kind]
    constants += [constant(f"{name}_s", scale), constant(f"{name}_z", zero, dtype)]
    parts = [f"{name}_s", f"{name}_z"]
    nodes.append(helper.make_node("QuantizeLinear", [name, *parts], [f"{name}_q"]))
    nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parts], [f"{name}_d"]))
    return f"{name}_d"


def _weigh(name: str, value: Any, kind: str, nodes: list[Any], constants: list[Any]) -> str:
    values = np.asarray(value, np.float32)
    if kind not in QUANTIZED:
        constants.append(constant(name, values, np.float16 if kind == "float16" else np.float32))
        return name
    quantized = np.clip(np.round(values / 0.01) + 128, 0, 255)
    constants += [
        constant(f"{name}_q", quantized, np.uint8),
        constant(f"{name}_s", 0.01),
        constant(f"{name}_z", 128, np.uint8),
    ]
    parts = [f"{name}_q", f"{name}_s", f"{name}_z"]
    nodes.append(helper.make_node("DequantizeLinear", parts, [name]))
    return name


def _constant(name: str, value: Any) -> Any:
    return constant(name, value, np.asarray(value).dtype)


def whole(*values: int) -> Any:
    return np.asarray(values, np.int64)


def filled(*dims: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, dims).astype(np.float32)


def make_case(
    op: str, kind: str, inputs: Sequence[Any], variant: str = "", **fields_and_attributes: Any
) -> Case:
    """A case whose fields are in ``fields_and_attributes``, with the operator's attributes."""
    fields = {
        name: fields_and_attributes.pop(name) for name in [*fields_and_attributes] if name in FIELDS
    }
    return Case(op, kind, inputs, variant, **fields, attributes=fields_and_attributes)


def by_rank(
    ops: str, kinds: Sequence[str], inputs: Inputs, ranks: Sequence[int] = RANKS, **options: Any
) -> Iterator[Case]:
    """A case per operator, type and rank, on which ``inputs`` depend and what in ``options`` can
    be called."""
    for op in ops.split():
        for kind in kinds:
            for rank in ranks:
                options_of_rank = {
                    name: value(rank) if callable(value) else value
                    for name, value in options.items()
                }
                yield make_case(op, kind, inputs(rank), **options_of_rank)


def one(rank: int) -> list[Any]:
    return [shape(rank)]


def two(rank: int) -> list[Any]:
    return [shape(rank)] * 2


def zeros(*dims: int) -> dict[str, Any]:
    return {"i": np.zeros(dims, np.int64)}


INTEGERS = ("Abs", "Neg", "Sign", "Relu")
UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Log LogSoftmax Mish Neg
    Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh
    ThresholdedRelu
"""
BINARY = "Add Sub Mul Div Pow Max Min Mean Sum Equal Greater GreaterOrEqual Less LessOrEqual"
REDUCE = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
"""


def list_cases() -> Iterator[Case]:
    """Every case, an operator after the other."""
    for op in UNARY.split():
        kinds = MOVED if op == "Identity" else NUMBERS if op in INTEGERS else FLOATS
        yield from by_rank(op, kinds, one)
    yield from by_rank(BINARY, NUMBERS, two)
    yield from by_rank("Mod", ("int32", "u8"), two)
    yield from by_rank("And Or Xor", ("bool",), two)
    yield from by_rank("Not", ("bool",), one)
    yield from by_rank(REDUCE, NUMBERS, one, constants={"axes": whole(-1)})
    yield from by_rank("ArgMax ArgMin", NUMBERS, one, axis=-1)
    for make in SPECIAL:
        yield from make()


def _moves() -> Iterator[Case]:
    """Operators that move elements."""
    some, few = (2, 3, 4, 5), ("float32", "u8")
    yield from by_rank("Reshape", MOVED, one, constants={"s": whole(-1)})
    yield from by_rank("Flatten", MOVED, one)
    yield from by_rank("Transpose", MOVED, one, perm=lambda r: [*range(r)][::-1])
    yield from by_rank(
        "Squeeze", MOVED, lambda r: [(1, *shape(r)[1:])], some, constants={"a": whole(0)}
    )
    yield from by_rank("Unsqueeze", MOVED, one, constants={"a": whole(0)})
    yield from by_rank("Concat", MOVED, two, axis=-1)
    yield from by_rank("Split", MOVED, one, axis=-1, num_outputs=2, outputs=2)
    yield from by_rank(
        "Slice", MOVED, one, constants=lambda r: {"b": whole(1), "e": whole(4), "a": whole(r - 1)}
    )
    back = {"b": whole(-1), "e": whole(-100), "a": whole(3), "st": whole(-1)}
    yield from by_rank("Slice", few, one, (4,), variant="backwards", constants=back)
    yield from by_rank(
        "Expand",
        MOVED,
        lambda r: [(*shape(r)[:-1], 1)],
        constants=lambda r: {"s": whole(*shape(r))},
    )
    yield from by_rank("Tile", MOVED, one, constants=lambda r: {"t": whole(*[1] * (r - 1), 2)})
    last = {"axis": lambda r: r - 1}
    yield from by_rank("Gather", MOVED, one, constants={"i": whole(0, 2)}, **last)
    back = {"i": whole(0, -1)}
    yield from by_rank("Gather", few, one, (2, 4), variant="negative index", constants=back, **last)
    yield from by_rank(
        "Gather",
        few,
        lambda r: [shape(r), ((2,), "int64")],
        (2, 4),
        variant="index is an input",
    )
    yield from by_rank("GatherElements", FLOATS, one, constants=lambda r: zeros(*shape(r)))
    yield from by_rank("GatherND", FLOATS, one, constants=lambda r: zeros(2, r))
    order = ("x0", "i", "x1")
    yield from by_rank(
        "ScatterElements", FLOATS, two, constants=lambda r: zeros(*shape(r)), order=order, **last
    )
    yield from by_rank(
        "ScatterND",
        FLOATS,
        lambda r: [shape(r), (2,)],
        constants=lambda r: zeros(2, r),
        order=order,
    )
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield from by_rank(
            "Pad",
            FLOATS,
            one,
            variant="" if mode == "constant" else mode,
            constants=lambda r: {"p": whole(*[*[0] * (r - 1), 1] * 2)},
            mode=mode,
        )
    yield from by_rank("Where", FLOATS, lambda r: [(shape(r), "bool"), *two(r)])
    yield from by_rank("CumSum", (*FLOATS, "int32"), one, constants={"a": np.int64(-1)})
    yield from by_rank("Trilu", FLOATS, one, some)
    yield from by_rank("Shape", ("float32",), one)
    hot = {"d": np.int64(4), "v": np.asarray([0, 1], np.float32)}
    yield from by_rank("OneHot", ("int32", "int64"), one, (1, 2, 3), constants=hot)
    yield from by_rank("NonZero", ("float32", "bool"), one, (1, 2, 4))
    for largest, variant in ((1, ""), (0, "smallest")):
        top = {"constants": {"k": whole(2)}, "largest": largest, "outputs": 2}
        yield from by_rank("TopK", FLOATS, one, variant=variant, **top)
    for op, mode in (("DepthToSpace", "DCR"), ("DepthToSpace", "CRD"), ("SpaceToDepth", "")):
        for kind in FLOATS:
            modes = {"mode": mode} if mode else {}
            variant = mode if mode == "CRD" else ""
            yield make_case(op, kind, [(1, 8, 4, 4)], variant, blocksize=2, **modes)


def _casts() -> Iterator[Case]:
    targets = {"float16": 10, "int32": 6, "int64": 7, "bool": 9, "uint8": 2, "float64": 11}
    for source in ("float32", "float16", "int32", "int64", "bool"):
        for name, kind in {**targets, "float32": 1}.items():
            if name != source:
                yield make_case("Cast", source, [shape(4)], f"to {name}", to=kind)
    yield make_case("CastLike", "float32", [shape(4), (shape(4), "int32")])


def _clips() -> Iterator[Case]:
    limits = {"low": np.float32(0), "high": np.float32(6)}
    yield from by_rank("Clip", FLOATS, one, constants=limits)
    yield from by_rank("PRelu", FLOATS, one, weights={"w": [0.25]})


def _convolutions() -> Iterator[Case]:
    for spatial in (1, 2, 3):
        size, variant, kernel = (1, 4, *(8,) * spatial), f"{spatial}d", (3,) * spatial
        pool = {"kernel_shape": [2] * spatial, "strides": [2] * spatial}
        for kind in FLOATS:
            for op, ends in (("Conv", (8, 4)), ("ConvTranspose", (4, 8))):
                yield make_case(op, kind, [size], variant, weights={"w": filled(*ends, *kernel)})
            for op in ("MaxPool", "AveragePool", "LpPool"):
                yield make_case(op, kind, [size], variant, **pool)
            for op in ("GlobalAveragePool", "GlobalMaxPool"):
                yield make_case(op, kind, [size], variant)
    size = (1, 4, 8, 8)
    convolutions: dict[str, dict[str, Any]] = {
        "dilations": {"dilations": [2, 2]},
        "auto_pad": {"auto_pad": "SAME_UPPER"},
        "depthwise": {"group": 4},
        "groups": {"group": 2},
    }
    wide, narrow = {"kernel_shape": [3, 3]}, {"kernel_shape": [2, 2]}
    pools: list[tuple[str, str, dict[str, Any]]] = [
        ("AveragePool", "ceil_mode", {**wide, "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", "count_include_pad", {**wide, "pads": [1] * 4, "count_include_pad": 1}),
        ("MaxPool", "dilations", {**narrow, "dilations": [2, 2]}),
        ("MaxPool", "with indices", {**narrow, "outputs": 2}),
        ("LpPool", "p=1", {**narrow, "p": 1}),
        ("LpPool", "p=3", {**narrow, "p": 3}),
    ]
    for kind in FLOATS:
        for variant, attributes in convolutions.items():
            weights = {"w": filled(8, 4 // attributes.get("group", 1), 3, 3)}
            yield make_case("Conv", kind, [size], variant, weights=weights, **attributes)
        yield make_case("Conv", kind, [size, (8, 4, 3, 3)], "weights are an input")
        for op, variant, pooling in pools:
            yield make_case(op, kind, [size], variant, **pooling)


def _products() -> Iterator[Case]:
    gemms = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 0.5}
    equations = "ij,jk->ik bhwc,hkc->bhwk bij,bjk->bik ij->ji bi->b bchq,bkhc->bkhq"
    sizes = dict(zip("bchijkqw", (1, 4, 3, 5, 6, 7, 8, 9), strict=True))
    for kind in FLOATS:
        for rank in (2, 3, 4, 5):
            left = shape(rank)
            right = (*left[:-2], left[-1], 4)
            yield make_case("MatMul", kind, [left, right], "both are inputs")
            yield make_case("MatMul", kind, [left], weights={"w": filled(left[-1], 4)})
        yield make_case("MatMul", kind, [(8,), (8, 4)], "vector")
        for variant in ("", *gemms):
            size = (8, 6) if variant == "transA" else (6, 8)
            weights = {"w": filled(*((4, 8) if variant == "transB" else (8, 4))), "c": filled(4)}
            transposed = {variant: gemms[variant]} if variant else {}
            yield make_case("Gemm", kind, [size], variant, weights=weights, **transposed)
        for equation in equations.split():
            parts = equation.split("->")[0].split(",")
            inputs = [tuple(map(sizes.__getitem__, part)) for part in parts]
            yield make_case("Einsum", kind, inputs, equation, equation=equation)
    for left, right in (("u8", "u16"), ("u16", "u8")):
        yield make_case("MatMul", left, [(6, 8), ((8, 4), right)], f"{left} by {right}")


def _norms() -> Iterator[Case]:
    channels = {"s": filled(4) + 2, "b": filled(4)}
    batch = {**channels, "m": filled(4), "v": filled(4) + 2}
    for kind in FLOATS:
        for rank in (2, 3, 4, 5):
            size = (1, 4, *(6,) * (rank - 2))
            last = {"s": filled(size[-1]) + 2}
            scale_and_bias, scale_of_rest = (
                {**last, "b": filled(size[-1])},
                {"s": filled(*size[1:])},
            )
            yield make_case("BatchNormalization", kind, [size], weights=batch)
            if rank > 2:
                yield make_case("InstanceNormalization", kind, [size], weights=channels)
                groups = {"num_groups": 2, "shape": size}
                yield make_case("GroupNormalization", kind, [size], weights=channels, **groups)
                yield make_case("LRN", kind, [size], size=3)
            yield make_case("LayerNormalization", kind, [size], weights=scale_and_bias)
            yield make_case(
                "LayerNormalization", kind, [size], "axis 1", weights=scale_of_rest, axis=1
            )
            yield make_case("RMSNormalization", kind, [size], weights=last, opset=23)
            yield make_case("SimplifiedLayerNormalization", kind, [size], weights=last)
            yield make_case("LpNormalization", kind, [size])
        yield make_case("LpNormalization", kind, [(4, 8)], "p=1", p=1)
        yield make_case("LpNormalization", kind, [(4, 8)], "axis 0", axis=0)
        for op in ("Softmax", "LogSoftmax", "Hardmax"):
            yield make_case(op, kind, one(4), "axis 1", axis=1)


def _resizes() -> Iterator[Case]:
    size = (1, 4, 8, 8)
    places = "half_pixel pytorch_half_pixel align_corners asymmetric tf_crop_and_resize"

    def scaled(*factors: int) -> dict[str, Any]:
        return {"r": np.zeros(0, np.float32), "sc": np.asarray([1, 1, *factors], np.float32)}

    rois = {"rois": np.asarray([[0, 0, 4, 4]], np.float32), "b": whole(0)}
    for kind in FLOATS:
        for mode in ("nearest", "linear", "cubic"):
            for place in places.split():
                how = {"mode": mode, "coordinate_transformation_mode": place}
                variant = f"{mode}, {place}"
                yield make_case("Resize", kind, [size], variant, constants=scaled(2, 2), **how)
        yield make_case("Resize", kind, [(1, 4, 8)], "3", constants=scaled(2))
        yield make_case("Resize", kind, [(1, 4, 4, 4, 4)], "5", constants=scaled(2, 2, 2))
        older = {"sc": scaled(2, 2)["sc"]}
        yield make_case("Upsample", kind, [size], constants=older, opset=9)
        for mode in ("linear", "nearest", "cubic"):
            yield make_case("GridSample", kind, [size, (1, 6, 6, 2)], mode, mode=mode)
        yield make_case("RoiAlign", kind, [size], constants=rois, output_height=2, output_width=2)


def _sequences() -> Iterator[Case]:
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights_by_directions = {
            count: {
                "weights": {"w": filled(count, gates * 5, 6), "r": filled(count, gates * 5, 5)},
                "hidden_size": 5,
            }
            for count in (1, 2)
        }
        for kind in ("float32", "u8", "u16"):
            for way, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
                yield make_case(
                    op, kind, [(4, 1, 6)], way, direction=way, **weights_by_directions[count]
                )
        yield make_case(
            op, "float32", [(1, 4, 6)], "layout 1", layout=1, **weights_by_directions[1]
        )
        if op == "GRU":
            variant = "linear_before_reset"
            yield make_case(
                op,
                "float32",
                [(4, 1, 6)],
                variant,
                linear_before_reset=1,
                **weights_by_directions[1],
            )


def _others() -> Iterator[Case]:
    make = functools.partial(make_case, kind="float32")
    yield make("Gelu", inputs=one(4), variant="tanh", approximate="tanh")
    yield make("Dropout", inputs=one(4))
    boxes = {"n": np.int64(3), "i": np.float32(0.5), "s": np.float32(0.1)}
    yield make("NonMaxSuppression", inputs=[(1, 8, 4), (1, 2, 8)], constants=boxes)
    yield make("DynamicQuantizeLinear", inputs=one(2), outputs=3)
    yield make("RandomUniformLike", inputs=one(2))
    yield make("RandomNormalLike", inputs=one(2))
    yield make("Det", inputs=[(4, 4)])
    frames = {"step": np.int64(8), "w": np.ones(16, np.float32)}
    yield make("STFT", inputs=[(1, 64, 1)], constants=frames, shape=(1, 7, 9, 2))
    yield make("Unique", inputs=one(1))
    yield make("ReverseSequence", inputs=[(4, 3, 2)], constants={"l": whole(4, 3, 2)})
    make = functools.partial(make, domain="com.microsoft")
    yield make("Gelu", inputs=one(4))
    yield make("QuickGelu", inputs=one(4))
    yield make("FusedMatMul", inputs=[(6, 8), (8, 4)])
    yield make("SkipLayerNormalization", inputs=[(1, 4, 8)] * 2, weights={"g": filled(8)})
    yield make("Inverse", inputs=[(4, 4)])
    for op in ("MeanVarianceNormalization", "Size"):
        yield make_case(op, "float32", one(4))


SPECIAL = (_moves, _casts, _clips, _convolutions, _products, _norms, _resizes, _sequences, _others)
