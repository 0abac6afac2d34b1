"""The figures of channels and of the parts of a concatenation, worked out by hand."""

from __future__ import annotations

from math import log10

import numpy as np
import pytest

from ci.judging.channels import channel_axes, measure_joined, worst_channel
from ci.models.tensors import TensorInfo


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((4, 5), [1]), ((4, 5, 6), [2]), ((4, 3, 2), [2]), ((4, 3, 1), []), ((4, 1, 5, 6), [2, 3])],
)
def test_channels_lie_along_the_last_axis_and_the_second(
    shape: tuple[int, ...], axes: list[int]
) -> None:
    assert channel_axes(np.zeros(shape)) == axes


def test_a_channel_that_is_lost_in_permitted_noise_counts_as_loud_as_that_permits() -> None:
    right = np.ones((4, 4, 4))
    right[:, :, 3] = 1e-4
    part = worst_channel(right, right + 0.01, 16, 20.0)
    assert part is not None
    assert part.place == "channel 3 of 4 along axis 1"
    assert part.sqnr_db == pytest.approx(20 * log10(4 * 0.01 * 10 / 0.01))


def test_each_part_of_a_concatenation_has_its_own_figure() -> None:
    right = np.array([[2.0] * 3 + [0.0] * 2 + [30.0] * 4])
    off = np.array([[0.2] * 3 + [0.5] * 2 + [0.3] * 4])
    info = TensorInfo("float32", (9,), joined=(3, 2, 4), joined_axis=0)
    parts = [*measure_joined(right, right + off, info, 0.01, 40.0)]
    assert [p.place for p in parts] == [f"part {n} along axis 0" for n in ("0:3", "3:5", "5:9")]
    signals = (5.0**0.5, 1.0, 901.0**0.5)
    expected = [20 * log10(s / n) for s, n in zip(signals, (0.2, 0.5, 0.3), strict=True)]
    assert [part.sqnr_db for part in parts] == pytest.approx(expected)
