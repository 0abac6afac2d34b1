from __future__ import annotations

import pytest

from provisioning.console.clock import read_clock


@pytest.mark.parametrize("environ", [{}, {"SOURCE_DATE_EPOCH": ""}])
def test_the_clock_tells_the_time(environ: dict[str, str]) -> None:
    moment, source = read_clock(environ)
    assert (source, moment.microsecond) == ("clock", 0)
    assert moment.year > 2024


def test_source_date_epoch_stands_in_for_the_clock() -> None:
    moment, source = read_clock({"SOURCE_DATE_EPOCH": "0"})
    assert (moment.isoformat(), source) == ("1970-01-01T00:00:00+00:00", "SOURCE_DATE_EPOCH")
