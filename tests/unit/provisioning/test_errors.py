from __future__ import annotations

from provisioning import errors


def test_an_error_says_what_why_and_what_to_do() -> None:
    assert str(errors.UnfitError("no cmake", why="not on PATH", fix="install it")) == (
        "no cmake\n  why: not on PATH\n  fix: install it"
    )
    assert str(errors.UnfitError("no cmake")) == "no cmake"
