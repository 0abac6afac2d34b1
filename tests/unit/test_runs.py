"""A program that ends otherwise than a test expects shows its code and what it printed."""

from __future__ import annotations

import pytest

from tests.stand_ins.runs import JUDGED, run_to_end


def test_a_program_that_fails_shows_its_code_and_output() -> None:
    argv = ["sh", "-c", "echo out; echo reason >&2; exit 3"]
    with pytest.raises(AssertionError, match="exit 3\nout\nreason"):
        run_to_end(argv, timeout_s=60, codes=JUDGED)
    assert run_to_end(argv, timeout_s=60, codes={3}) == "out\nreason\n"
    with pytest.raises(AssertionError, match="exit -9"):
        run_to_end(["sh", "-c", "kill -9 $$"], timeout_s=60)
