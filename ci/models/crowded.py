"""The depthwise convolutions with so many outputs that QNN computes them wrongly in float16.
LiteRT's converter makes such ones of convolutions of one input channel, too."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Measured with QNN 2.51.0, see docs/findings/faults.md.
MOST_OUTPUTS = 256  # of one input channel
LEAST_KERNEL = 4  # elements along one axis; with 3, up to 1,024 outputs are right
MOST_DEPTHWISE_WEIGHTS = 30_000  # 24,576 are right, and 30,976 are wrong
# Of several channels, for images and along one axis, see docs/findings/faults.md: with QNN 2.49.40,
# 160 and 257 outputs are right, with 2.51.0, which LiteRT uses, 254 and 460.
LEAST_CROWDED = (192, 320)
LEAST_CROWDED_IN_LITERT = (256, 480)
# With more channels, all images were right up to 4,096 outputs, and rows up to 16 outputs of each.
CROWDED_CHANNELS = 32
CROWDED_MULTIPLIER = 32


def has_too_many_outputs(kernel: Sequence[int], outputs: int) -> bool:
    """Return whether a depthwise convolution of one input channel has more ``outputs`` than QNN
    computes right with a kernel of these sizes. Above the limits most convolutions are wrong; a
    few, such as one of 257 outputs with a kernel of 16 and a stride of 4, are right."""
    size = math.prod(kernel)
    is_row = size == max(kernel, default=0)
    is_long = is_row and size >= LEAST_KERNEL
    return outputs * size >= MOST_DEPTHWISE_WEIGHTS or (is_long and outputs > MOST_OUTPUTS)


def has_crowded_channels(
    image: Sequence[int],
    channels: int,
    outputs: int,
    least: tuple[int, int] = LEAST_CROWDED,
) -> bool:
    """Return whether a depthwise convolution of several input ``channels`` may have more
    ``outputs`` than QNN computes right for an image of these sizes. ``least`` are the numbers from
    which on some were wrong, for images and along one axis. Above these, it depends on all sizes
    which ones are right: with QNN 2.51.0, 256 outputs of 8 x 8 are wrong, and of 24 x 24 right."""
    multiplier = outputs // max(channels, 1)
    if channels <= 1 or multiplier <= 1:
        return False
    is_row = math.prod(image) == max(image, default=0)
    if channels > CROWDED_CHANNELS:
        return is_row and multiplier >= CROWDED_MULTIPLIER
    return outputs >= least[is_row]
