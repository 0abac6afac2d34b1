"""One-node ONNX models, one an operator, variant, type and rank: what the provider is asked."""

from __future__ import annotations

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


def write_case(case: Case, path: Path) -> Path:
    """The model of a case. Raises what the onnx package does for one that is no ONNX."""
    nodes: list[Any] = []
    constants = [_constant(name, value) for name, value in case.constants.items()]
    feeds: dict[str, str] = {}
    ports = []
    for place, given in enumerate(case.inputs):
        dims, kind = given if isinstance(given[0], tuple) else (given, case.kind)
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
    found = {one.name: one for one in (*inferred.graph.output, *inferred.graph.value_info)}
    final, known = [], []
    for name in outputs:
        one = found[name] if case.shape is None else tensor(name, case.shape)
        is_float = one.type.tensor_type.elem_type in (TensorProto.FLOAT, 0)
        if case.kind in QUANTIZED and is_float:
            target = _quantize(name, case.kind, nodes, constants)
            known.append(one)
            one = helper.make_tensor_value_info(
                target, TensorProto.FLOAT, [dim.dim_value for dim in one.type.tensor_type.shape.dim]
            )
        final.append(one)
    return write_model(path, nodes, ports, final, constants, opset=case.opset, known=known)


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
    whole = np.clip(np.round(values / 0.01) + 128, 0, 255)
    constants += [
        constant(f"{name}_q", whole, np.uint8),
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


def split(names: str) -> list[str]:
    return names.split()


UNARY = split(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Log LogSoftmax Mish Neg
    Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh
    ThresholdedRelu
    """
)
BINARY = split(
    """
    Add Sub Mul Div Pow Max Min Mean Sum Equal Greater GreaterOrEqual Less LessOrEqual
    """
)
REDUCE = split(
    """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
    """
)
INTEGERS = {"Abs", "Neg", "Sign", "Identity", "Relu"}
RANKS = range(1, 6)


def list_cases() -> Iterator[Case]:
    """Every case, an operator after the other."""
    for op in UNARY:
        kinds = MOVED if op == "Identity" else NUMBERS if op in INTEGERS else FLOATS
        yield from _by_rank(op, kinds, lambda rank: {"inputs": [shape(rank)]})
    for op in BINARY:
        yield from _by_rank(op, NUMBERS, lambda rank: {"inputs": [shape(rank)] * 2})
    yield from _by_rank("Mod", ("int32", "u8"), lambda rank: {"inputs": [shape(rank)] * 2})
    for op in ("And", "Or", "Xor"):
        yield from _by_rank(op, ("bool",), lambda rank: {"inputs": [shape(rank)] * 2})
    yield from _by_rank("Not", ("bool",), lambda rank: {"inputs": [shape(rank)]})
    for op in REDUCE:
        yield from _by_rank(
            op, NUMBERS, lambda rank: {"inputs": [shape(rank)], "constants": {"axes": whole(-1)}}
        )
    for op in ("ArgMax", "ArgMin"):
        yield from _by_rank(
            op, NUMBERS, lambda rank: {"inputs": [shape(rank)], "attributes": {"axis": -1}}
        )
    for make in SPECIAL:
        yield from make()


def _by_rank(
    op: str,
    kinds: Sequence[str],
    make: Callable[[int], dict[str, Any]],
    ranks: Sequence[int] = RANKS,
    **more: Any,
) -> Iterator[Case]:
    for kind in kinds:
        for rank in ranks:
            yield Case(op, kind, **{**make(rank), **more})


def _moves() -> Iterator[Case]:
    """Operators that move elements."""
    some = (2, 3, 4, 5)
    yield from _by_rank(
        "Reshape", MOVED, lambda r: {"inputs": [shape(r)], "constants": {"s": whole(-1)}}
    )
    yield from _by_rank("Flatten", MOVED, lambda r: {"inputs": [shape(r)]})
    yield from _by_rank(
        "Transpose",
        MOVED,
        lambda r: {"inputs": [shape(r)], "attributes": {"perm": [*range(r)][::-1]}},
    )
    yield from _by_rank(
        "Squeeze",
        MOVED,
        lambda r: {"inputs": [(1, *shape(r)[1:])], "constants": {"a": whole(0)}},
        some,
    )
    yield from _by_rank(
        "Unsqueeze", MOVED, lambda r: {"inputs": [shape(r)], "constants": {"a": whole(0)}}
    )
    yield from _by_rank(
        "Concat", MOVED, lambda r: {"inputs": [shape(r)] * 2, "attributes": {"axis": -1}}
    )
    yield from _by_rank(
        "Split",
        MOVED,
        lambda r: {
            "inputs": [shape(r)],
            "attributes": {"axis": -1, "num_outputs": 2},
            "outputs": 2,
        },
    )
    yield from _by_rank(
        "Slice",
        MOVED,
        lambda r: {
            "inputs": [shape(r)],
            "constants": {"b": whole(1), "e": whole(4), "a": whole(r - 1)},
        },
    )
    yield from _by_rank(
        "Slice",
        ("float32", "u8"),
        lambda r: {
            "inputs": [shape(r)],
            "constants": {"b": whole(-1), "e": whole(-100), "a": whole(r - 1), "st": whole(-1)},
        },
        (4,),
        variant="backwards",
    )
    yield from _by_rank(
        "Expand",
        MOVED,
        lambda r: {"inputs": [(*shape(r)[:-1], 1)], "constants": {"s": whole(*shape(r))}},
    )
    yield from _by_rank(
        "Tile",
        MOVED,
        lambda r: {"inputs": [shape(r)], "constants": {"t": whole(*[1] * (r - 1), 2)}},
    )
    yield from _by_rank(
        "Gather",
        MOVED,
        lambda r: {
            "inputs": [shape(r)],
            "constants": {"i": whole(0, 2)},
            "attributes": {"axis": r - 1},
        },
    )
    yield from _by_rank(
        "Gather",
        ("float32", "u8"),
        lambda r: {
            "inputs": [shape(r)],
            "constants": {"i": whole(0, -1)},
            "attributes": {"axis": r - 1},
        },
        (2, 4),
        variant="negative index",
    )
    yield from _by_rank(
        "Gather",
        ("float32", "u8"),
        lambda r: {"inputs": [shape(r), ((2,), "int64")]},
        (2, 4),
        variant="index is an input",
    )
    yield from _by_rank(
        "GatherElements",
        FLOATS,
        lambda r: {"inputs": [shape(r)], "constants": {"i": np.zeros(shape(r), np.int64)}},
    )
    yield from _by_rank(
        "GatherND",
        FLOATS,
        lambda r: {"inputs": [shape(r)], "constants": {"i": np.zeros((2, r), np.int64)}},
    )
    yield from _by_rank(
        "ScatterElements",
        FLOATS,
        lambda r: {
            "inputs": [shape(r)] * 2,
            "constants": {"i": np.zeros(shape(r), np.int64)},
            "order": ("x0", "i", "x1"),
            "attributes": {"axis": r - 1},
        },
    )
    yield from _by_rank(
        "ScatterND",
        FLOATS,
        lambda r: {
            "inputs": [shape(r), (2,)],
            "constants": {"i": np.zeros((2, r), np.int64)},
            "order": ("x0", "i", "x1"),
        },
    )
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield from _by_rank(
            "Pad",
            FLOATS,
            lambda r: {
                "inputs": [shape(r)],
                "constants": {"p": whole(*[0] * (r - 1), 1, *[0] * (r - 1), 1)},
            },
            variant="" if mode == "constant" else mode,
            attributes={"mode": mode},
        )
    yield from _by_rank(
        "Where", FLOATS, lambda r: {"inputs": [(shape(r), "bool"), shape(r), shape(r)]}
    )
    yield from _by_rank(
        "CumSum",
        (*FLOATS, "int32"),
        lambda r: {"inputs": [shape(r)], "constants": {"a": np.int64(-1)}},
    )
    yield from _by_rank("Trilu", FLOATS, lambda r: {"inputs": [shape(r)]}, some)
    yield from _by_rank("Shape", ("float32",), lambda r: {"inputs": [shape(r)]})
    yield from _by_rank(
        "OneHot",
        ("int32", "int64"),
        lambda r: {
            "inputs": [shape(r)],
            "constants": {"d": np.int64(4), "v": np.asarray([0, 1], np.float32)},
        },
        (1, 2, 3),
    )
    yield from _by_rank("NonZero", ("float32", "bool"), lambda r: {"inputs": [shape(r)]}, (1, 2, 4))
    for largest in (1, 0):
        yield from _by_rank(
            "TopK",
            FLOATS,
            lambda r: {"inputs": [shape(r)], "constants": {"k": whole(2)}, "outputs": 2},
            attributes={"largest": largest},
            variant="" if largest else "smallest",
        )
    for kind, mode in (("DepthToSpace", "DCR"), ("DepthToSpace", "CRD"), ("SpaceToDepth", "")):
        attributes = {"blocksize": 2, **({"mode": mode} if mode else {})}
        yield from _by_rank(
            kind,
            FLOATS,
            lambda r: {"inputs": [(1, 8, 4, 4)]},
            (4,),
            attributes=attributes,
            variant="CRD" if mode == "CRD" else "",
        )


def _casts() -> Iterator[Case]:
    targets = {"float16": 10, "int32": 6, "int64": 7, "bool": 9, "uint8": 2, "float64": 11}
    for source in ("float32", "float16", "int32", "int64", "bool"):
        for name, kind in {**targets, "float32": 1}.items():
            if name != source:
                yield Case("Cast", source, [shape(4)], f"to {name}", attributes={"to": kind})
    yield Case("CastLike", "float32", [shape(4), (shape(4), "int32")])


def _clips() -> Iterator[Case]:
    limits = {"low": np.float32(0), "high": np.float32(6)}
    yield from _by_rank("Clip", FLOATS, lambda r: {"inputs": [shape(r)], "constants": limits})
    yield from _by_rank("PRelu", FLOATS, lambda r: {"inputs": [shape(r)], "weights": {"w": [0.25]}})


def _convolutions() -> Iterator[Case]:
    for spatial in (1, 2, 3):
        size = (1, 4, *(8,) * spatial)
        weights = {"w": filled(8, 4, *(3,) * spatial)}
        for kind in FLOATS:
            yield Case("Conv", kind, [size], f"{spatial}d", weights)
            yield Case(
                "ConvTranspose", kind, [size], f"{spatial}d", {"w": filled(4, 8, *(3,) * spatial)}
            )
            for op in ("MaxPool", "AveragePool", "LpPool"):
                yield Case(
                    op,
                    kind,
                    [size],
                    f"{spatial}d",
                    attributes={"kernel_shape": [2] * spatial, "strides": [2] * spatial},
                )
            for op in ("GlobalAveragePool", "GlobalMaxPool"):
                yield Case(op, kind, [size], f"{spatial}d")
    size = (1, 4, 8, 8)
    variants: dict[str, dict[str, Any]] = {
        "dilations": {"dilations": [2, 2]},
        "auto_pad": {"auto_pad": "SAME_UPPER"},
        "depthwise": {"group": 4},
        "groups": {"group": 2},
    }
    for kind in FLOATS:
        for variant, attributes in variants.items():
            groups = attributes.get("group", 1)
            yield Case(
                "Conv",
                kind,
                [size],
                variant,
                {"w": filled(8, 4 // groups, 3, 3)},
                attributes=attributes,
            )
        yield Case("Conv", kind, [size, (8, 4, 3, 3)], "weights are an input")
        yield Case(
            "AveragePool",
            kind,
            [size],
            "ceil_mode",
            attributes={"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        )
        yield Case(
            "AveragePool",
            kind,
            [size],
            "count_include_pad",
            attributes={"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
        )
        yield Case(
            "MaxPool",
            kind,
            [size],
            "dilations",
            attributes={"kernel_shape": [2, 2], "dilations": [2, 2]},
        )
        yield Case(
            "MaxPool", kind, [size], "with indices", attributes={"kernel_shape": [2, 2]}, outputs=2
        )
        yield Case("LpPool", kind, [size], "p=1", attributes={"kernel_shape": [2, 2], "p": 1})
        yield Case("LpPool", kind, [size], "p=3", attributes={"kernel_shape": [2, 2], "p": 3})


def _products() -> Iterator[Case]:
    for kind in FLOATS:
        for rank in (2, 3, 4, 5):
            left = shape(rank)
            yield Case("MatMul", kind, [left, (*left[:-2], left[-1], 4)], "both are inputs")
            yield Case("MatMul", kind, [left], "", {"w": filled(left[-1], 4)})
        yield Case("MatMul", kind, [(8,), (8, 4)], "vector")
        for variant, attributes in {
            "": {},
            "transA": {"transA": 1},
            "transB": {"transB": 1},
            "alpha": {"alpha": 0.5},
            "beta": {"beta": 0.5},
        }.items():
            weights = {
                "w": filled(4, 8) if attributes.get("transB") else filled(8, 4),
                "c": filled(4),
            }
            yield Case(
                "Gemm",
                kind,
                [(8, 6) if attributes.get("transA") else (6, 8)],
                variant,
                weights,
                attributes=attributes,
            )
        for equation in (
            "ij,jk->ik",
            "bhwc,hkc->bhwk",
            "bij,bjk->bik",
            "ij->ji",
            "bi->b",
            "bchq,bkhc->bkhq",
        ):
            parts = equation.split("->")[0].split(",")
            sizes = dict(zip("bchijkqw", (1, 4, 3, 5, 6, 7, 8, 9), strict=True))
            yield Case(
                "Einsum",
                kind,
                [tuple(sizes[letter] for letter in part) for part in parts],
                equation,
                attributes={"equation": equation},
            )
    for left, right in (("u8", "u16"), ("u16", "u8")):
        yield Case("MatMul", left, [(6, 8), ((8, 4), right)], f"{left} by {right}")


def _norms() -> Iterator[Case]:
    for kind in FLOATS:
        for rank in (2, 3, 4, 5):
            size = (1, 4, *(6,) * (rank - 2))
            channels = {"s": filled(4) + 2, "b": filled(4)}
            more = {"m": filled(4), "v": filled(4) + 2}
            yield Case("BatchNormalization", kind, [size], "", {**channels, **more})
            if rank > 2:
                yield Case("InstanceNormalization", kind, [size], "", channels)
                yield Case(
                    "GroupNormalization",
                    kind,
                    [size],
                    "",
                    channels,
                    attributes={"num_groups": 2},
                    shape=size,
                )
                yield Case("LRN", kind, [size], attributes={"size": 3})
            last = {"s": filled(size[-1]) + 2}
            yield Case("LayerNormalization", kind, [size], "", {**last, "b": filled(size[-1])})
            yield Case(
                "LayerNormalization",
                kind,
                [size],
                "axis 1",
                {"s": filled(*size[1:])},
                attributes={"axis": 1},
            )
            yield Case("RMSNormalization", kind, [size], "", last, opset=23)
            yield Case("SimplifiedLayerNormalization", kind, [size], "", last)
            yield Case("LpNormalization", kind, [size])
        yield Case("LpNormalization", kind, [(4, 8)], "p=1", attributes={"p": 1})
        yield Case("LpNormalization", kind, [(4, 8)], "axis 0", attributes={"axis": 0})
        for op in ("Softmax", "LogSoftmax", "Hardmax"):
            yield Case(op, kind, [shape(4)], "axis 1", attributes={"axis": 1})


def _resizes() -> Iterator[Case]:
    size, scales = (
        (1, 4, 8, 8),
        {"r": np.zeros(0, np.float32), "sc": np.asarray([1, 1, 2, 2], np.float32)},
    )
    for kind in FLOATS:
        for mode in ("nearest", "linear", "cubic"):
            for how in (
                "half_pixel",
                "pytorch_half_pixel",
                "align_corners",
                "asymmetric",
                "tf_crop_and_resize",
            ):
                yield Case(
                    "Resize",
                    kind,
                    [size],
                    f"{mode}, {how}",
                    constants=scales,
                    attributes={"mode": mode, "coordinate_transformation_mode": how},
                )
        yield Case(
            "Resize",
            kind,
            [(1, 4, 8)],
            "3",
            constants={**scales, "sc": np.asarray([1, 1, 2], np.float32)},
        )
        yield Case(
            "Resize",
            kind,
            [(1, 4, 4, 4, 4)],
            "5",
            constants={**scales, "sc": np.asarray([1, 1, 2, 2, 2], np.float32)},
        )
        yield Case("Upsample", kind, [size], constants={"sc": scales["sc"]}, opset=9)
        for mode in ("linear", "nearest", "cubic"):
            yield Case("GridSample", kind, [size, (1, 6, 6, 2)], mode, attributes={"mode": mode})
        rois = {"rois": np.asarray([[0, 0, 4, 4]], np.float32), "b": whole(0)}
        yield Case(
            "RoiAlign",
            kind,
            [size],
            constants=rois,
            attributes={"output_height": 2, "output_width": 2},
        )


def _sequences() -> Iterator[Case]:
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for kind in ("float32", "u8", "u16"):
            for direction in ("forward", "reverse", "bidirectional"):
                count = 2 if direction == "bidirectional" else 1
                weights = {"w": filled(count, gates * 5, 6), "r": filled(count, gates * 5, 5)}
                yield Case(
                    op,
                    kind,
                    [(4, 1, 6)],
                    direction,
                    weights,
                    attributes={"hidden_size": 5, "direction": direction},
                    outputs=1,
                )
        weights = {"w": filled(1, gates * 5, 6), "r": filled(1, gates * 5, 5)}
        yield Case(
            op,
            "float32",
            [(1, 4, 6)],
            "layout 1",
            weights,
            attributes={"hidden_size": 5, "layout": 1},
        )
        if op == "GRU":
            yield Case(
                op,
                "float32",
                [(4, 1, 6)],
                "linear_before_reset",
                weights,
                attributes={"hidden_size": 5, "linear_before_reset": 1},
            )


def _others() -> Iterator[Case]:
    yield Case("Gelu", "float32", [shape(4)], "tanh", attributes={"approximate": "tanh"}, opset=21)
    yield Case("Dropout", "float32", [shape(4)])
    yield Case(
        "NonMaxSuppression",
        "float32",
        [(1, 8, 4), (1, 2, 8)],
        constants={"n": np.int64(3), "i": np.float32(0.5), "s": np.float32(0.1)},
    )
    yield Case("DynamicQuantizeLinear", "float32", [shape(2)], outputs=3)
    yield Case("RandomUniformLike", "float32", [shape(2)])
    yield Case("RandomNormalLike", "float32", [shape(2)])
    yield Case("Det", "float32", [(4, 4)])
    yield Case(
        "STFT",
        "float32",
        [(1, 64, 1)],
        constants={"step": np.int64(8), "w": np.ones(16, np.float32)},
        shape=(1, 7, 9, 2),
    )
    yield Case("Unique", "float32", [shape(1)])
    yield Case("ReverseSequence", "float32", [(4, 3, 2)], constants={"l": whole(4, 3, 2)})
    yield Case("Gelu", "float32", [shape(4)], domain="com.microsoft")
    yield Case("QuickGelu", "float32", [shape(4)], domain="com.microsoft")
    yield Case("FusedMatMul", "float32", [(6, 8), (8, 4)], domain="com.microsoft")
    yield Case(
        "SkipLayerNormalization",
        "float32",
        [(1, 4, 8)] * 2,
        weights={"g": filled(8)},
        domain="com.microsoft",
    )
    yield Case("Inverse", "float32", [(4, 4)], domain="com.microsoft")
    for op in ("MeanVarianceNormalization", "Size"):
        yield Case(op, "float32", [shape(4)])


SPECIAL = (_moves, _casts, _clips, _convolutions, _products, _norms, _resizes, _sequences, _others)
