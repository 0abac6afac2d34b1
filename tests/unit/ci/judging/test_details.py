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
    values: Array = np.random.default_rng(0).normal(size=(4, 1, 10, 8)).astype(np.float32)
    return values


def test_details_of_an_output_have_sqnr_per_set_and_worst_elements(right: Array) -> None:
    output = right.copy()
    output[2, 0, 7, 5] += 3.0
    output[1] += 0.01
    quantized = right + np.float32(0.001)
    (details,) = describe_outputs(References(expect(right), expect(quantized)), [output])
    assert (details.dtype, details.shape) == ("float32", (1, 10, 8))
    assert details.sqnr_db[0] is None, "equal"
    assert [sqnr_db for sqnr_db in details.sqnr_db if sqnr_db is not None] == pytest.approx(
        [40, 9.5], abs=1.0
    )
    assert len(details.sqnr_db_quantized) == 4
    assert details.sqnr_db_quantized[0] == pytest.approx(60, abs=1.0)  # not the float32 one's
    assert {(channel.axis, channel.index) for channel in details.channels[:2]} <= {(1, 7), (2, 5)}
    assert len(details.channels) == CHANNELS
    assert details.worst
    assert (details.worst.input_set, details.worst.index) == (2, (0, 7, 5))
    assert details.worst.value == pytest.approx(float(output[2, 0, 7, 5]))
    assert details.worst.expected == pytest.approx(float(quantized[2, 0, 7, 5]))


def test_each_output_is_compared_with_its_own_references(right: Array) -> None:
    """Two outputs with different values have a float32 and a quantized reference each."""
    second_output = 10 + np.float32(2) * right[..., ::-1]
    references = References(
        expect(right, second_output),
        expect(right * np.float32(1.001), second_output * np.float32(1.01)),
    )
    first, second = describe_outputs(references, [right * np.float32(1.1), second_output])
    assert first.sqnr_db == pytest.approx([20] * 4, abs=0.1)
    assert second.sqnr_db == (None,) * 4, "equal"
    assert second.sqnr_db_quantized == pytest.approx([40] * 4, abs=0.1)
    assert second.worst
    assert second.worst.value == pytest.approx(float(np.abs(second_output).max()))


def test_the_error_histogram_is_centred_on_zero(right: Array) -> None:
    output = right.copy()
    output[0, 0, 0, 0] += 1.0
    output[3] -= 0.5
    (details,) = describe_outputs(References(expect(right)), [output])
    assert details.max_error == pytest.approx(1.0)
    assert (len(details.errors), sum(details.errors)) == (BINS, right.size)
    assert details.errors[BINS // 2] == right.size - 81
    assert details.errors[-1] == 1
    assert details.errors[BINS // 4] == 80
    assert details.sqnr_db_quantized == ()


def test_nan_and_infinite_values_are_null_in_the_details(right: Array) -> None:
    output = right.copy()
    output[1, 0, 2, 3] = np.nan
    (details,) = describe_outputs(References(expect(right)), [output])
    assert details.worst
    assert (details.worst.input_set, details.worst.index) == (1, (0, 2, 3))
    assert details.worst.value is None
    assert sum(details.errors) in {0, right.size - 1}
    (details,) = describe_outputs(References(expect(right)), [right * np.float32(np.nan)])
    assert (details.max_error, details.errors, details.sqnr_db) == (0.0, (), (None,) * 4)


def test_indices_have_shares_and_the_element_that_is_furthest_off() -> None:
    right = np.arange(8, dtype=np.int64).reshape(4, 2)
    output = right.copy()
    output[3] = [0, 7]
    (details,) = describe_outputs(References(expect(right)), [output])
    assert details.equal[:3] == (1.0, 1.0, 1.0)
    assert details.equal[3] < 1
    assert details.sqnr_db == details.channels == details.errors == ()
    assert details.max_error is None
    assert details.worst
    assert (details.worst.index, details.worst.value, details.worst.expected) == ((0,), 0.0, 6.0)
