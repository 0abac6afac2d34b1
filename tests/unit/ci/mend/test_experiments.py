"""The time that experiments may take on a busy machine."""

from __future__ import annotations

import pytest

from ci.mend.experiments import MOST_SLOW, find_slowness


@pytest.mark.parametrize(
    ("load", "cores", "slowness"),
    [
        (0.0, 2, 1.0),
        (2.0, 2, 1.0),  # the run's own two jobs
        (5.0, 2, 2.5),
        (90.0, 2, MOST_SLOW),
        (20.0, 64, 1.0),
        (3.0, 0, 3.0),
    ],
)
def test_experiments_may_take_longer_where_cores_are_shared(
    load: float, cores: int, slowness: float
) -> None:
    assert find_slowness(load, cores) == slowness
