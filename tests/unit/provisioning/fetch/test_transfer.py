"""What a head says, when it is tried again and how long it waits, what a message may show."""

from __future__ import annotations

import email.utils
import io
import math
from collections.abc import Callable, Iterable

import pytest

from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from provisioning.fetch.download import range_headers
from provisioning.fetch.transfer import (
    PROGRESS_BYTES,
    BusyError,
    PermanentError,
    TransferPolicy,
    TransientError,
    check_status,
    parse_head,
    redact_url,
    try_again,
    usable_validator,
)

POLICY = TransferPolicy(attempts=3, backoff_s=2, patience_s=9)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited; chance is always 1."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    return waited


def fail(*steps: int | TransientError) -> tuple[Callable[[], str], Callable[[], int]]:
    """Work that fails at each step, with that many bytes more or that error; and their count."""
    left, there = list(steps), [0]

    def work() -> str:
        if not left:
            return "done"
        step = left.pop(0)
        if isinstance(step, TransientError):
            raise step
        there[0] += step
        raise TransientError("broken")

    return work, lambda: there[0]


def test_it_is_tried_again_until_it_is_done(waits: list[float]) -> None:
    said = io.StringIO()
    assert try_again(*fail(0, 0), POLICY, Progress(said), "a.zip") == "done"
    assert waits == [2, 4]
    assert said.getvalue() == (
        "a.zip: broken; trying again in 2.0 s\na.zip: broken; trying again in 4.0 s\n"
    )


def test_the_last_try_is_the_last(waits: list[float]) -> None:
    with pytest.raises(PermanentError, match=r"^broken \(3 tries\)$"):
        try_again(*fail(0, 0, 0), POLICY, Progress(), "a.zip")
    assert waits == [2, 4]
    once = TransferPolicy(attempts=1)
    with pytest.raises(PermanentError, match=r"^broken \(1 try\)$"):
        try_again(*fail(0), once, Progress(), "a.zip")


@pytest.mark.parametrize(
    ("steps", "ends_well"),
    [
        ((0, 0, PROGRESS_BYTES, 0), True),
        ((0, 0, PROGRESS_BYTES - 1), False),
        ((0, 0, PROGRESS_BYTES, 0, 0), False),
        ((PROGRESS_BYTES, -PROGRESS_BYTES, PROGRESS_BYTES), False),
        ((0, PROGRESS_BYTES, 0, 2 * PROGRESS_BYTES, 0, PROGRESS_BYTES), True),
    ],
)
@pytest.mark.usefixtures("waits")
def test_bytes_that_are_new_start_the_counting_anew(steps: Iterable[int], ends_well: bool) -> None:
    work, count = fail(*steps)
    if ends_well:
        assert try_again(work, count, POLICY, Progress(), "a.zip") == "done"
        return
    with pytest.raises(PermanentError):
        try_again(work, count, POLICY, Progress(), "a.zip")


def test_after_progress_the_wait_is_short_again(waits: list[float]) -> None:
    try_again(*fail(0, 0, PROGRESS_BYTES, 0), POLICY, Progress(), "a.zip")
    assert waits == [2, 4, 2, 4]


@pytest.mark.usefixtures("waits")
def test_work_that_begins_anew_too_often_ends() -> None:
    with pytest.raises(PermanentError, match=r"^broken \(1 try, started over 3 times\)$"):
        try_again(*fail(PROGRESS_BYTES), POLICY, Progress(), "a.zip", restarts=lambda: 3)
    once = TransferPolicy(attempts=1)
    with pytest.raises(PermanentError, match=r"^broken \(1 try, started over 1 time\)$"):
        try_again(*fail(0), once, Progress(), "a.zip", restarts=lambda: 1)
    assert try_again(*fail(0), POLICY, Progress(), "a.zip", restarts=lambda: 2) == "done"


def test_a_server_is_waited_for_as_long_as_there_is_patience(waits: list[float]) -> None:
    assert try_again(*fail(TransientError("busy", 9)), POLICY, Progress(), "a.zip") == "done"
    assert waits == [9]
    with pytest.raises(BusyError, match=r"^busy; the server asks for a delay of 10 s$"):
        try_again(*fail(TransientError("busy", 9.5)), POLICY, Progress(), "a.zip")
    assert TransientError("x").wait_s == 0
    assert TransferPolicy().patience_s == math.inf


def test_how_long_a_wait_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[tuple[float, float]] = []

    def choose(low: float, high: float) -> float:
        bounds.append((low, high))
        return 1.0

    monkeypatch.setattr("random.uniform", choose)
    policy = TransferPolicy(backoff_s=0.5, longest_wait_s=30)
    assert [policy.wait_s(count, 0) for count in (1, 2, 3, 9)] == [0.5, 1, 2, 30]
    assert [policy.wait_s(1, asked) for asked in (0.4, 0.6, 31)] == [0.5, 0.6, 30]
    assert set(bounds) == {(0.5, 1.5)}


LIMITS = {
    "QNN_CI_ATTEMPTS": ("attempts", ("1", "1000"), ("0", "nan", "many", "1001"), "from 1 to 1000"),
    "QNN_CI_BACKOFF_S": (
        "backoff_s",
        ("0", "3600"),
        ("-0.1", "\u00b2", "3600.5"),
        "from 0 to 3600",
    ),
    "QNN_CI_TIMEOUT_S": (
        "read_timeout_s",
        ("0.01", "86400"),
        ("0.009", "86401"),
        "from 0.01 to 86400",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_variable_is_in_its_limits(name: str) -> None:
    field, good, bad, words = LIMITS[name]
    for text in good:
        assert getattr(TransferPolicy.from_environment({name: text}), field) == float(text)
    for text in bad:
        with pytest.raises(UnfitError) as caught:
            TransferPolicy.from_environment({name: text})
        assert caught.value.what == f"{name}={text} is not usable"
        assert caught.value.why == f"it must be a number {words}"


def test_the_connection_may_take_as_long_as_an_answer_at_most() -> None:
    seconds = {
        text: TransferPolicy.from_environment({"QNN_CI_TIMEOUT_S": text}).connect_timeout_s
        for text in ("14", "16", "")
    }
    assert seconds == {"14": 14, "16": 15, "": 15}
    assert TransferPolicy.from_environment({}) == TransferPolicy()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_these_are_tried_again(status: int) -> None:
    with pytest.raises(TransientError):
        check_status(status, {})


@pytest.mark.parametrize("status", [200, 206, 416])
def test_these_pass(status: int) -> None:
    check_status(status, {})


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "HTTP 401: the server needs credentials; put them into ~/.netrc"),
        (403, "HTTP 403: access is refused; if credentials are needed, put them into ~/.netrc"),
        (404, "HTTP 404: not found"),
        (407, "HTTP 407: the proxy needs credentials"),
        (410, "HTTP 410: gone"),
        (418, "HTTP 418"),
        *((status, f"HTTP {status}") for status in (201, 400, 451, 501, 505)),
    ],
)
def test_a_status_in_words(status: int, words: str) -> None:
    with pytest.raises(PermanentError) as caught:
        check_status(status, {"Retry-After": "5"})
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("0", 0),
        ("7", 7),
        (email.utils.formatdate(1050, usegmt=True), 50),
        (email.utils.formatdate(999, usegmt=True), 0),
        *((text, 0) for text in ("soon", "\u00b2", "-5", "9" * 5000, "Mon, 99 Foo 99999 99:99:99")),
    ],
)
def test_what_a_server_asks_for(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    with pytest.raises(TransientError, match=r"^HTTP 503$") as caught:
        check_status(503, {"Retry-After": text})
    assert caught.value.wait_s == seconds


@pytest.mark.parametrize(
    ("text", "is_usable"),
    [
        ('"a"', True),
        (" ~", True),
        ("x" * 300, True),
        ("x" * 301, False),
        ("", False),
        ("a\x7f", False),
        ("a\x1f", False),
        ("a\n", False),
    ],
)
def test_a_validator_that_a_header_can_carry(text: str, is_usable: bool) -> None:
    assert usable_validator(text) == (text if is_usable else "")
    assert parse_head(200, {"ETag": text}).validator == (text if is_usable else "")


@pytest.mark.parametrize(
    ("headers", "start", "total", "length"),
    [
        ({"Content-Range": "bytes 5-9/20", "Content-Length": "5"}, 5, 20, 5),
        ({"Content-Range": "bytes */20"}, -1, 20, -1),
        ({"Content-Range": "bytes 5-9/*"}, 5, -1, -1),
        ({"Content-Range": "items 5-9/20", "Content-Length": "-3"}, -1, -1, -1),
        ({"Content-Length": "9" * 18}, -1, -1, int("9" * 18)),
        ({"Content-Length": "9" * 5000}, -1, -1, -1),
        ({"Content-Range": f"bytes 0-1/{'9' * 5000}"}, 0, -1, -1),
        ({"Content-Length": "\u0663"}, -1, -1, -1),
    ],
)
def test_what_is_malformed_in_a_head_is_not_said(
    headers: dict[str, str], start: int, total: int, length: int
) -> None:
    head = parse_head(206, headers)
    assert (head.range_start, head.total, head.length) == (start, total, length)


def test_all_of_a_head_is_read() -> None:
    head = parse_head(206, {"ETag": '"a"', "Last-Modified": "then", "Content-Type": "text/x"})
    assert (head.status, head.validator, head.content_type) == (206, '"a"', "text/x")
    empty = parse_head(200, {})
    assert (empty.content_type, empty.validator) == ("", "")
    assert (empty.length, empty.range_start, empty.total) == (-1, -1, -1)
    assert parse_head(200, {"ETag": 'W/"a"'}).validator == ""
    assert parse_head(200, {"ETag": 'W/"a"', "Last-Modified": "then"}).validator == "then"
    assert range_headers(10, "") == {}
    assert range_headers(10, '"a"') == {"Range": "bytes=10-", "If-Range": '"a"'}
    assert parse_head(200, {"Content-Length": "1" * 19}).length == -1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:secret@[::1/a?token=x", "[::1/a"),
        ("http://[::1/a?token=x", "http://[::1/a"),
        ("http://[::1/a?token=x?y", "http://[::1/a"),
        ("a/b?token=x?y", "a/b"),
        ("https://me@you@host/a", "https://host/a"),
        ("https://me:secret@host:8443/a/b.zip?token=x#y", "https://host:8443/a/b.zip"),
        ("file:///a/b.zip", "file:///a/b.zip"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown
