from __future__ import annotations

import platform
import re

import pytest

from ci.report.host import read_host, started_now
from provisioning.errors import UsageError


def test_the_epoch_stands_in_for_the_clock() -> None:
    assert started_now({"SOURCE_DATE_EPOCH": "1700000000"}) == "2023-11-14T22:13:20Z"
    assert started_now({"SOURCE_DATE_EPOCH": "-62000000000"}) == "0005-04-19T09:46:40Z"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", started_now({}))


@pytest.mark.parametrize("text", ["yesterday", "1e9", "9" * 30, "-99999999999999"])
def test_an_epoch_that_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        started_now({"SOURCE_DATE_EPOCH": text})


def test_facts_of_this_machine() -> None:
    host = read_host()
    assert host.machine == platform.machine()
    assert host.cpus >= 1
    assert host.memory_bytes > 1 << 20
