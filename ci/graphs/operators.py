"""What operators do to the elements of tensors, by torch's names."""

from __future__ import annotations

from collections.abc import Mapping

MOVED = "moved"  # a number of a padding of an image whose channels were last
CONVERTS = "converts"  # a number of quantizers that round what an operator computes in float
# The result of these operators equals their first operand.
PASSES_ON = frozenset(
    {
        *("_assert_tensor_metadata", "_to_copy", "alias", "alias_copy", "clone", "contiguous"),
        *("dequantize", "dequantize_per_tensor", "dequantize_per_channel", "detach", "dropout"),
        *("feature_dropout", "lift_fresh_copy", "native_dropout", "quantize"),
        *("quantize_per_channel", "quantize_per_tensor", "requires_grad", "to", "type_as"),
    }
)
# Each element of the result depends on the elements of the operands at the same place.
ELEMENTWISE = frozenset(
    {
        *("abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "batch_norm"),
        *("_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "native_batch_norm"),
        *("bitwise_and", "bitwise_not", "bitwise_or", "ceil", "celu", "clamp", "clamp_max"),
        *("clamp_min", "clip", "copysign", "cos", "cosh", "div", "divide", "elu", "eq", "erf"),
        *("erfinv", "exp", "exp2", "expm1", "fix", "float_power", "floor", "floor_divide", "fmax"),
        *("fmin", "fmod", "frac", "ge", "gelu", "greater", "gt", "hardshrink", "hardsigmoid"),
        *("hardswish", "hardtanh", "heaviside", "hypot", "isfinite", "isinf", "isnan", "le"),
        *("leaky_relu", "less", "lerp", "log", "log10", "log1p", "log2", "log_sigmoid"),
        *("logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "lt"),
        *("maximum", "minimum", "mish", "mul", "multiply", "nan_to_num", "ne", "neg", "negative"),
        *("pow", "prelu", "_prelu_kernel", "reciprocal", "relu", "relu6", "remainder", "round"),
        *("rrelu", "rsqrt", "rsub", "selu", "sgn", "sigmoid", "sign", "silu", "sin", "sinh"),
        *("softplus", "softshrink", "softsign", "sqrt", "square", "sub", "subtract", "sum_of"),
        *("tan", "tanh", "threshold", "true_divide", "trunc", "xlogy", "addcmul", "addcdiv"),
        *("affine", "scale", "swish", "fill", "masked_fill", "where", "deg2rad", "rad2deg"),
    }
)
FIRST, ALL, ENDS, TAIL = "first", "all", "ends", "tail"
# Operators that move elements, and which of their operands have these elements. The others, such as
# indices, have to be constant.
MOVES: Mapping[str, str] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"), ALL),
    **dict.fromkeys(("column_stack", "einsum_permutation"), ALL),
    **dict.fromkeys(("scatter", "slice_scatter", "select_scatter", "diagonal_scatter"), ENDS),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "index_copy", "masked_scatter"), ENDS),
    **dict.fromkeys(("copy", "scatter_nd"), ENDS),
    **dict.fromkeys(
        ("as_strided", "broadcast_to", "channel_shuffle", "chunk", "constant_pad_nd"), FIRST
    ),
    **dict.fromkeys(
        ("depth_to_space", "diagonal", "expand", "expand_as", "flatten", "flip"), FIRST
    ),
    **dict.fromkeys(("gather", "gather_nd", "index", "_unsafe_index", "index_select", "mT"), FIRST),
    **dict.fromkeys(("matrix_H", "moveaxis", "movedim", "narrow", "native_channel_shuffle"), FIRST),
    **dict.fromkeys(("numpy_T", "pad", "permute", "pixel_shuffle", "pixel_unshuffle"), FIRST),
    **dict.fromkeys(("reflection_pad1d", "reflection_pad2d", "replication_pad1d"), FIRST),
    **dict.fromkeys(("repeat", "repeat_interleave", "replication_pad2d", "reshape"), FIRST),
    **dict.fromkeys(("reshape_as", "roll", "rot90", "select", "slice", "space_to_depth"), FIRST),
    **dict.fromkeys(("split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t"), FIRST),
    **dict.fromkeys(("take", "take_along_dim", "tensor_split", "tile", "transpose", "tril"), FIRST),
    **dict.fromkeys(("triu", "unbind", "unflatten", "unfold", "unsafe_chunk"), FIRST),
    **dict.fromkeys(("unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "view"), FIRST),
    **dict.fromkeys(("_unsafe_view", "_reshape_alias", "view_as", "masked_fill_constant"), FIRST),
    **dict.fromkeys(("reverse_sequence", "squeeze_copy", "unsqueeze_copy", "view_copy"), FIRST),
    **dict.fromkeys(
        ("permute_copy", "slice_copy", "select_copy", "expand_copy", "split_copy"), FIRST
    ),
    **dict.fromkeys(("split_with_sizes_copy", "transpose_copy", "unbind_copy", "t_copy"), FIRST),
}
# Of these, the first ones repeat elements, and the others only change the shape.
EXPANDS = frozenset({"broadcast_to", "expand", "expand_as", "expand_copy"})
RESHAPES = frozenset(
    {
        *("_reshape_alias", "_unsafe_view", "flatten", "reshape", "reshape_as", "squeeze"),
        *(
            "squeeze_copy",
            "unflatten",
            "unsqueeze",
            "unsqueeze_copy",
            "view",
            "view_as",
            "view_copy",
        ),
    }
)
CHOICES: Mapping[str, str] = {"where": TAIL, "masked_fill": FIRST}  # by a constant condition
# Operators over whole axes, which give their axes, and those over the axes of an image.
REDUCTIONS = frozenset(
    {
        *("_log_softmax", "_softmax", "_safe_softmax", "all", "amax", "amin", "any", "cummax"),
        *("cummin", "cumprod", "cumsum", "instance_norm", "layer_norm", "linalg_vector_norm"),
        *("log_softmax", "logcumsumexp", "logsumexp", "max", "mean", "min", "native_layer_norm"),
        *("norm", "normalize", "prod", "rms_norm", "softmax", "softmin", "std", "sum", "var"),
    }
)
OF_IMAGES = (
    *("adaptive_avg_pool", "adaptive_max_pool", "_adaptive_avg_pool", "avg_pool", "grid_sampler"),
    *("interpolate", "max_pool", "lp_pool", "upsample", "_upsample"),
)
# Operators with elements in their results that come from no operand.
FILLS = frozenset({"constant_pad_nd", "pad", "tril", "triu", "masked_fill"})
# Each element of the result is one of the operand's, or a limit. HTP rounds nothing in these.
SELECTS = frozenset(
    {
        *("clamp", "hardtanh", "max_pool1d", "max_pool1d_with_indices", "max_pool2d"),
        *("max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices", "relu", "shape"),
    }
)
# Operators whose results depend on the elements of no operand, torch's and ONNX's
CREATES = frozenset(
    {
        *("arange", "constant", "constant_of_shape", "empty", "empty_like", "eye", "eye_like"),
        *("full", "full_like", "new_empty", "new_full", "new_ones", "new_zeros", "ones"),
        *("ones_like", "range", "scalar_tensor", "zeros", "zeros_like"),
    }
)
_COPIES = PASSES_ON | MOVES.keys() | SELECTS


def computes(operator: str) -> bool:
    """Return whether an operator computes new elements, instead of moving or selecting some."""
    return operator not in _COPIES and not is_dequantizer(operator)


def list_moved(operator: str, count: int) -> list[int]:
    """Return the places of the operands, of which there are ``count``, with the elements that an
    operator moves, selects or passes on. It is one that does not compute, or one of CHOICES."""
    choice = MOVES.get(operator) or CHOICES.get(operator, FIRST)
    return {
        FIRST: [0],
        ALL: [*range(count)],
        ENDS: sorted({0, count - 1}),
        TAIL: [*range(1, count)],
    }[choice]


def is_quantizer(operator: str) -> bool:
    """Return whether an operator quantizes."""
    return operator.startswith("quantize")


def is_dequantizer(operator: str) -> bool:
    """Return whether an operator dequantizes."""
    return operator.startswith("dequantize")


def is_layer(operator: str) -> bool:
    """Return whether an operator multiplies by weights and adds the products."""
    return operator in {"linear", "addmm", "mm", "bmm", "matmul"} or "conv" in operator
