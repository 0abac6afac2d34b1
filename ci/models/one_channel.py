"""The convolutions of one input channel that QNN computes wrongly in float16 as LiteRT's plugin
passes them on: as depthwise ones, which LiteRT's converter makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Measured with QNN 2.51.0, see docs/findings/faults.md.
MOST_OUTPUTS = 256
LEAST_KERNEL = 4  # elements along one axis; with 3, up to 1,024 outputs are right
MOST_DEPTHWISE_WEIGHTS = 30_000  # 24,576 are right, and 30,976 are wrong


def has_too_many_outputs(kernel: Sequence[int], outputs: int) -> bool:
    """Return whether a depthwise convolution of one input channel has more ``outputs`` than QNN
    computes right with a kernel of these sizes. Above the limits most convolutions are wrong; a
    few, such as one of 257 outputs with a kernel of 16 and a stride of 4, are right."""
    size = math.prod(kernel)
    is_row = size == max(kernel, default=0)
    is_long = is_row and size >= LEAST_KERNEL
    return outputs * size >= MOST_DEPTHWISE_WEIGHTS or (is_long and outputs > MOST_OUTPUTS)
