"""What a report shows of an output more closely."""

from __future__ import annotations

import numpy as np
import pytest

from ci.judging.details import BINS, CHANNELS, describe_outputs
from ci.judging.figures import Array
from ci.judging.gate import Expected, References


def expect(*outputs: Array) -> list[Expected]:
    return [Expected(output, output, output) for output in outputs]


@pytest.fixture
def right() -> Array:
    """Four samples of [1, 10, 8]."""
    found: Array = np.random.default_rng(0).normal(size=(4, 1, 10, 8)).astype(np.float32)
    return found


def test_details_of_an_output_have_sqnr_per_set_and_worst_elements(right: Array) -> None:
    output = right.copy()
    output[2, 0, 7, 5] += 3.0
    output[1] += 0.01
    quantized = right + np.float32(0.001)
    (found,) = describe_outputs(References(expect(right), expect(quantized)), [output])
    assert (found.dtype, found.shape) == ("float32", (1, 10, 8))
    assert found.sqnr_db[0] is None, "equal"
    assert [one for one in found.sqnr_db if one is not None] == pytest.approx([40, 9.5], abs=1.0)
    assert len(found.sqnr_db_quantized) == 4
    assert found.sqnr_db_quantized[0] == pytest.approx(60, abs=1.0)  # not the float32 one's
    assert {(channel.axis, channel.index) for channel in found.channels[:2]} <= {(1, 7), (2, 5)}
    assert len(found.channels) == CHANNELS
    assert found.worst
    assert (found.worst.input_set, found.worst.index) == (2, (0, 7, 5))
    assert found.worst.value == pytest.approx(float(output[2, 0, 7, 5]))
    assert found.worst.expected == pytest.approx(float(quantized[2, 0, 7, 5]))


def test_each_output_is_compared_with_its_own_references(right: Array) -> None:
    """Two outputs with different values have a float32 and a quantized reference each."""
    other = 10 + np.float32(2) * right[..., ::-1]
    references = References(
        expect(right, other), expect(right * np.float32(1.001), other * np.float32(1.01))
    )
    first, second = describe_outputs(references, [right * np.float32(1.1), other])
    assert first.sqnr_db == pytest.approx([20] * 4, abs=0.1)
    assert second.sqnr_db == (None,) * 4, "equal"
    assert second.sqnr_db_quantized == pytest.approx([40] * 4, abs=0.1)
    assert second.worst
    assert second.worst.value == pytest.approx(float(np.abs(other).max()))


def test_the_error_histogram_is_centred_on_zero(right: Array) -> None:
    output = right.copy()
    output[0, 0, 0, 0] += 1.0
    output[3] -= 0.5
    (found,) = describe_outputs(References(expect(right)), [output])
    assert found.max_error == pytest.approx(1.0)
    assert (len(found.errors), sum(found.errors)) == (BINS, right.size)
    assert found.errors[BINS // 2] == right.size - 81
    assert found.errors[-1] == 1
    assert found.errors[BINS // 4] == 80
    assert found.sqnr_db_quantized == ()


def test_nan_and_infinite_values_are_null_in_the_details(right: Array) -> None:
    output = right.copy()
    output[1, 0, 2, 3] = np.nan
    (found,) = describe_outputs(References(expect(right)), [output])
    assert found.worst
    assert (found.worst.input_set, found.worst.index) == (1, (0, 2, 3))
    assert found.worst.value is None
    assert sum(found.errors) in {0, right.size - 1}
    (found,) = describe_outputs(References(expect(right)), [right * np.float32(np.nan)])
    assert (found.max_error, found.errors, found.sqnr_db) == (0.0, (), (None,) * 4)


def test_indices_have_shares_and_the_element_that_is_furthest_off() -> None:
    right = np.arange(8, dtype=np.int64).reshape(4, 2)
    output = right.copy()
    output[3] = [0, 7]
    (found,) = describe_outputs(References(expect(right)), [output])
    assert found.equal[:3] == (1.0, 1.0, 1.0)
    assert found.equal[3] < 1
    assert found.sqnr_db == found.channels == found.errors == ()
    assert found.max_error is None
    assert found.worst
    assert (found.worst.index, found.worst.value, found.worst.expected) == ((0,), 0.0, 6.0)
