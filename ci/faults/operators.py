"""The operators that graphs of faults have, with what torch's graph and ONNX call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    """``kind`` says how the generator uses it; ``aten`` and ``onnx`` are the names that a model's
    graph has for it, without overload. Without ``onnx`` that front end cannot build it."""

    kind: str
    aten: tuple[str, ...]
    onnx: tuple[str, ...] = ()


def _rows(kind: str, text: str) -> Mapping[str, Operator]:
    """Read rows such as ``add: add add_ / Add``."""
    found = {}
    for row in text.strip().splitlines():
        name, _, names = row.partition(":")
        aten, _, onnx = names.partition("/")
        found[name.strip()] = Operator(kind, tuple(aten.split()), tuple(onnx.split()))
    return found


# ONNX's RMSNormalization needs an opset in which onnxruntime draws no random numbers, which the
# prediction of noise does. Which of these a backend takes:
# docs/findings/operators.md, docs/findings/onnx.md.
OPERATORS: Mapping[str, Operator] = {
    **_rows(
        "unary",
        """
        relu: relu relu_ / Relu
        sigmoid: sigmoid sigmoid_ / Sigmoid
        tanh: tanh tanh_ / Tanh
        gelu: gelu / Gelu
        hardswish: hardswish hardswish_ / HardSwish
        hardsigmoid: hardsigmoid hardsigmoid_ / HardSigmoid
        elu: elu elu_ / Elu
        leaky_relu: leaky_relu leaky_relu_ / LeakyRelu
        abs: abs / Abs
        neg: neg / Neg
        sin: sin / Sin
        cos: cos / Cos
        exp: exp / Exp
        clip: clamp hardtanh hardtanh_ / Clip
        """,
    ),
    **_rows(
        "positive",  # an operand away from zero
        """
        log: log / Log
        sqrt: sqrt / Sqrt
        reciprocal: reciprocal / Reciprocal
        """,
    ),
    **_rows(
        "binary",
        """
        add: add add_ / Add
        sub: sub sub_ / Sub
        mul: mul mul_ / Mul
        div: div div_ / Div
        maximum: maximum / Max
        minimum: minimum / Min
        """,
    ),
    **_rows(
        "axis",
        """
        softmax: softmax _softmax / Softmax
        log_softmax: log_softmax _log_softmax / LogSoftmax
        lp_norm: linalg_vector_norm / LpNormalization
        cumsum: cumsum / CumSum
        """,
    ),
    **_rows(
        "norm",
        """
        layer_norm: layer_norm native_layer_norm / LayerNormalization
        rms_norm: rms_norm /
        batch_norm: batch_norm _native_batch_norm_legit_no_training / BatchNormalization
        instance_norm: instance_norm / InstanceNormalization
        """,
    ),
    **_rows(
        "reduce",
        """
        mean: mean / ReduceMean
        sum: sum / ReduceSum
        amax: amax / ReduceMax
        amin: amin / ReduceMin
        """,
    ),
    **_rows(
        "layer",
        """
        linear: linear addmm / Gemm MatMul
        matmul: matmul bmm mm / MatMul
        conv: convolution conv2d conv1d / Conv
        conv_transpose: conv_transpose2d / ConvTranspose
        """,
    ),
    **_rows(
        "pool",
        """
        max_pool: max_pool2d max_pool2d_with_indices / MaxPool
        avg_pool: avg_pool2d avg_pool3d / AveragePool
        """,
    ),
    **_rows(
        "move",
        """
        reshape: view reshape _unsafe_view flatten / Reshape Flatten
        transpose: permute transpose t / Transpose
        slice: slice slice_copy / Slice
        pad: constant_pad_nd pad / Pad
        expand: expand / Expand
        concat: cat / Concat
        upsample: upsample_nearest2d / Resize
        prelu: prelu / PRelu
        """,
    ),
    **_rows(
        "power",  # not generated
        """
        pow: pow / Pow
        """,
    ),
}
