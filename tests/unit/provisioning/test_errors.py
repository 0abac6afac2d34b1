from __future__ import annotations

import pytest

from provisioning import errors


def test_an_error_says_what_why_and_what_to_do() -> None:
    assert str(errors.UnfitError("no cmake", why="not on PATH", fix="install it")) == (
        "no cmake\n  why: not on PATH\n  fix: install it"
    )
    assert str(errors.UnfitError("no cmake")) == "no cmake"


class SilentError(Exception):
    """Its message cannot be shown."""

    def __str__(self) -> str:
        raise KeyError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a reason"), "ValueError: a reason"),
        (ValueError(), "ValueError"),
        (SilentError(), "SilentError, whose message raised KeyError"),
        (ValueError("x" * 3988), f"ValueError: {'x' * 3988}"),
        (ValueError("x" * 3989), f"ValueError: {'x' * 3988}..."),
    ],
)
def test_an_exception_of_a_user_is_told_in_few_words(error: Exception, text: str) -> None:
    assert errors.describe_exception(error) == text
