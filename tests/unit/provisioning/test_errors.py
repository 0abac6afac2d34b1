from __future__ import annotations

import pickle

import pytest

from provisioning import errors


def test_an_error_says_what_why_and_what_to_do() -> None:
    assert str(errors.UnfitError("no cmake", why="not on PATH", fix="install it")) == (
        "no cmake\n  why: not on PATH\n  fix: install it"
    )
    assert str(errors.UnfitError("no cmake")) == "no cmake"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://u:p@q@h/a", "https://***@h/a"),
        ("https://h/a@b", "https://h/a@b"),
        ("'https://h/a?sig=x&t=1#f' and", "'https://h/a?***' and"),
        ("git+ssh://t@h/a http://u:p@h/?a=b", "git+ssh://***@h/a http://***@h/?***"),
        ("is it there? ask a@b", "is it there? ask a@b"),
    ],
)
def test_no_part_of_an_error_has_a_secret(text: str, masked: str) -> None:
    error = errors.UsageError(text, why=text, fix=text)
    assert (error.what, error.why, error.fix) == (masked, masked, masked)
    assert str(error) == f"{masked}\n  why: {masked}\n  fix: {masked}"


def test_an_error_survives_pickling_between_processes() -> None:
    error = errors.ToolError("no net", why="no cable", fix="find one")
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(copied), str(copied)) == (errors.ToolError, str(error))


class SilentError(Exception):
    """Its message cannot be shown."""

    def __str__(self) -> str:
        raise KeyError("no words")


class EndingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a reason"), "ValueError: a reason"),
        (ValueError(), "ValueError"),
        (SilentError(), "SilentError, whose message raised KeyError"),
        (EndingError(), "EndingError, whose message raised SystemExit"),
        (ValueError("x" * 3988), f"ValueError: {'x' * 3988}"),
        (ValueError("x" * 3989), f"ValueError: {'x' * 3988}..."),
    ],
)
def test_a_users_exception_is_described_in_one_line(error: Exception, text: str) -> None:
    assert errors.describe_exception(error) == text


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.QnnCiError, 1),
        (errors.FailedError, 1),
        (errors.UsageError, 2),
        (errors.ManifestError, 2),
        (errors.UnfitError, 3),
        (errors.MissingToolError, 3),
        (errors.DownloadError, 4),
        (errors.IntegrityError, 4),
        (errors.StoreError, 4),
        (errors.ToolError, 5),
        (errors.DefectError, 70),
        (errors.InterruptedRunError, 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(kind: type[errors.QnnCiError], code: int) -> None:
    assert kind("what").exit_code == code


@pytest.mark.parametrize(("key", "message"), [("models.net", "models.net: bad"), ("", "bad")])
def test_a_usage_error_in_a_file_is_prefixed_with_its_key(key: str, message: str) -> None:
    with pytest.raises(errors.UsageError) as caught, errors.at_key(key):
        raise errors.UsageError("bad", why="a reason", fix="correct it")
    assert (caught.value.what, caught.value.why, caught.value.fix) == (
        message,
        "a reason",
        "correct it",
    )
    with pytest.raises(errors.UnfitError, match=r"^other$"), errors.at_key(key):
        raise errors.UnfitError("other")
