"""The rows for which QNN computes convolutions wrongly in float16. This module imports nothing, so
that a file with rewritten models that needs nothing of this project can contain it."""

from __future__ import annotations

from collections.abc import Sequence


def find_short_row(
    shape: Sequence[int],
    weight: Sequence[int],
    *,
    padding: int,
    stride: int,
    dilation: int,
    apart: int = 0,
) -> int:
    """Return the length of the row that a convolution reads, if QNN 2.47 to 2.51 compute it wrongly
    in float16, else 0.

    ``shape`` and ``weight`` are the shapes of the input and of the weights. The other arguments are
    those of the last axis. ``apart`` is the number of zeros that an operator before the convolution
    adds at each end of the row.

    The row is the last axis of [batch, channels, length] or [batch, channels, 1, length]. The
    result is wrong if it has the same length as the row, the length is a multiple of 8, above the
    dilation and at most 8 * (padding - 1), and the convolution has a stride of 1 and is not
    depthwise. The limits are measured, see docs/findings/faults.md.
    """
    if len(shape) not in {3, 4} or len(weight) != len(shape):
        return 0
    padding += apart
    length, kernel = shape[-1] - 2 * apart, weight[-1]
    is_row = len(shape) == 3 or (shape[2], weight[2]) == (1, 1)
    is_depthwise = weight[1] == 1 < shape[1]
    keeps_length = 2 * padding == (kernel - 1) * dilation
    if not (is_row and keeps_length and stride == 1) or is_depthwise:
        return 0
    return length if length % 8 == 0 and dilation < length <= 8 * (padding - 1) else 0
