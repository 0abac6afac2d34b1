"""The operators that graphs in ci.faults can have, with their names in torch and in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    """An operator. ``kind`` determines how the generator uses it: operators of kind ``positive``
    read only values that are not near zero, and those of kind ``power`` are never generated.
    ``aten`` are its names in torch graphs, without the overload and without a final underscore.
    ``onnx`` is its name in ONNX, or empty if it cannot be used there."""

    kind: str
    aten: tuple[str, ...]
    onnx: str


# rms_norm has no ONNX name here, because RMSNormalization needs an opset in which onnxruntime
# cannot draw the random numbers that the noise prediction needs. docs/findings/operators.md and
# docs/findings/onnx.md list the operators that each front end supports.
TABLE = """
unary     relu            relu                                             Relu
unary     sigmoid         sigmoid                                          Sigmoid
unary     tanh            tanh                                             Tanh
unary     gelu            gelu                                             Gelu
unary     hardswish       hardswish                                        HardSwish
unary     hardsigmoid     hardsigmoid                                      HardSigmoid
unary     elu             elu                                              Elu
unary     leaky_relu      leaky_relu                                       LeakyRelu
unary     abs             abs                                              Abs
unary     neg             neg                                              Neg
unary     sin             sin                                              Sin
unary     cos             cos                                              Cos
unary     exp             exp                                              Exp
unary     clip            clamp,clamp_min,hardtanh                         Clip
positive  log             log,log10,log2                                   Log
positive  sqrt            sqrt                                             Sqrt
positive  reciprocal      reciprocal                                       Reciprocal
binary    add             add                                              Add
binary    sub             sub                                              Sub
binary    mul             mul                                              Mul
binary    div             div                                              Div
binary    maximum         maximum                                          Max
binary    minimum         minimum                                          Min
axis      softmax         softmax,_softmax                                 Softmax
axis      log_softmax     log_softmax,_log_softmax                         LogSoftmax
axis      lp_norm         linalg_vector_norm                               LpNormalization
axis      cumsum          cumsum                                           CumSum
norm      layer_norm      layer_norm,native_layer_norm                     LayerNormalization
norm      rms_norm        rms_norm                                         -
norm      batch_norm      batch_norm,_native_batch_norm_legit_no_training  BatchNormalization
norm      instance_norm   instance_norm                                    InstanceNormalization
reduce    mean            mean                                             ReduceMean
reduce    sum             sum                                              ReduceSum
reduce    amax            amax                                             ReduceMax
reduce    amin            amin                                             ReduceMin
layer     linear          linear,addmm                                     Gemm
layer     matmul          matmul,bmm,mm                                    MatMul
layer     conv            convolution,conv2d,conv1d                        Conv
layer     conv_transpose  conv_transpose2d,conv_transpose1d                ConvTranspose
pool      max_pool        max_pool2d,max_pool2d_with_indices               MaxPool
pool      avg_pool        avg_pool2d,avg_pool3d                            AveragePool
move      reshape         view,reshape,_unsafe_view,flatten                Reshape
move      transpose       permute,transpose,t                              Transpose
move      slice           slice,slice_copy                                 Slice
move      pad             constant_pad_nd,pad                              Pad
move      expand          expand                                           Expand
move      concat          cat                                              Concat
move      upsample        upsample_nearest2d                               Resize
move      prelu           prelu                                            PRelu
power     pow             pow                                              Pow
"""


def _read_table() -> Mapping[str, Operator]:
    rows = (line.split() for line in TABLE.strip().splitlines())
    return {
        name: Operator(kind, tuple(aten.split(",")), onnx.strip("-"))
        for kind, name, aten, onnx in rows
    }


OPERATORS = _read_table()
# Operators that patterns can name but graphs cannot have, with their names in ONNX.
ONLY_IN_PATTERNS: Mapping[str, str] = {
    "where": "Where",
    "masked_fill": "",
    "scaled_dot_product_attention": "",
}
