"""Which value of a graph does not fit into the range of float16, and spoils an output."""

from __future__ import annotations

import pytest

from ci.models.float16_range import RangeLoss

CHAIN = {"pow": ["mean"], "mean": ["mul"], "mul": []}
MASKED = {"add": ["softmax"], "softmax": ["product"], "product": []}


@pytest.mark.parametrize(
    ("readers", "reached_db", "output_db", "wide_db", "first"),
    [
        (CHAIN, (4.8, 3.0, 5.0), 5.0, 60.0, "pow"),
        (CHAIN, (60.0, 3.0, 5.0), 5.0, 60.0, "mean"),
        (CHAIN, (4.8, 3.0, 5.0), 5.0, 9.0, ""),  # the significand is what costs it
        (MASKED, (0.0, 60.0, 60.0), 50.0, 60.0, ""),  # a mask
        (MASKED, (0.0, 60.0, 4.0), 4.0, 60.0, "product"),  # a mask, and another cause
        (CHAIN, (60.0, 60.0, 60.0), 60.0, 60.0, ""),
    ],
)
def test_the_first_value_beyond_the_range_that_spoils_an_output_is_found(
    readers: dict[str, list[str]],
    reached_db: tuple[float, ...],
    output_db: float,
    wide_db: float,
    first: str,
) -> None:
    reached = dict(zip(readers, reached_db, strict=True))
    assert RangeLoss(reached, readers, [[*readers][-1]], output_db, wide_db).find_first() == first
