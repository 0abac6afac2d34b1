"""What a head says, when it is tried again and how long it waits, what a message may show."""

from __future__ import annotations

import email.utils
import io
import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning.console.progress import Progress
from provisioning.fetch.transfer import (
    PROGRESS_BYTES,
    Head,
    TransferPolicy,
    TransientError,
    check_status,
    parse_head,
    redact_url,
    try_again,
)
from tests.build.fetch import outcome

POLICY = TransferPolicy(attempts=3, backoff_s=2, patience_s=9)
NEW = PROGRESS_BYTES
BUSY = "BusyError: busy; the server asks for a delay of 10 s"
GIVEN_UP = "PermanentError: broken (3 tries)"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited; chance is always 1."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    return waited


@pytest.mark.parametrize(
    ("steps", "attempts", "restarts", "ended", "waited"),
    [
        ((0, 0), 3, 0, "done", [2, 4]),
        ((0, 0, 0), 3, 0, GIVEN_UP, [2, 4]),
        ((0, 0, NEW, 0), 3, 0, "done", [2, 4, 2, 4]),
        ((0, 0, NEW, 0, 0), 3, 0, GIVEN_UP, [2, 4, 2, 4]),
        ((NEW,), 3, 3, "PermanentError: broken (1 try, started over 3 times)", []),
        ((9.0,), 3, 0, "done", [9]),
        ((9.5,), 3, 0, BUSY, []),
    ],
)
def test_a_transfer_is_retried_as_long_as_it_makes_progress(
    waits: list[float],
    steps: tuple[float, ...],
    attempts: int,
    restarts: int,
    ended: str,
    waited: list[float],
) -> None:
    """Each step fails, after that many more bytes or because the server asks for some seconds."""
    left, received, messages = list(steps), [0], io.StringIO()

    def work() -> str:
        if not left:
            return "done"
        step = left.pop(0)
        if isinstance(step, float):
            raise TransientError("busy", step)
        received[0] += step
        raise TransientError("broken")

    policy, progress = replace(POLICY, attempts=attempts), Progress(messages)

    def tried() -> str:
        return try_again(
            work, lambda: received[0], policy, progress, "a.zip", restarts=lambda: restarts
        )

    assert (outcome(tried), waits) == (ended, waited)
    why = "busy" if isinstance(steps[0], float) else "broken"
    assert messages.getvalue() == "".join(
        f"a.zip: {why}; trying again in {s:.1f} s\n" for s in waits
    )


USUAL = TransferPolicy()
ATTEMPTS, BACKOFF, TIMEOUT = "QNN_CI_ATTEMPTS", "QNN_CI_BACKOFF_S", "QNN_CI_TIMEOUT_S"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("", "", USUAL),
        (ATTEMPTS, "1", replace(USUAL, attempts=1)),
        *((ATTEMPTS, text, "from 1 to 1000") for text in ("0", "nan", "many", "1001")),
        (BACKOFF, "0", replace(USUAL, backoff_s=0)),
        *((BACKOFF, text, "from 0 to 3600") for text in ("-0.1", "\u00b2", "3600.5")),
        (TIMEOUT, "0.01", replace(USUAL, read_timeout_s=0.01, connect_timeout_s=0.01)),
        (TIMEOUT, "86400", replace(USUAL, read_timeout_s=86400, connect_timeout_s=15)),
        *((TIMEOUT, text, "from 0.01 to 86400") for text in ("0.009", "86401")),
    ],
)
def test_environment_sets_the_policy_within_limits(
    name: str, text: str, expected: TransferPolicy | str
) -> None:
    if isinstance(expected, str):
        why = f"  why: it must be a number {expected}\n  fix: correct or unset {name}"
        expected = f"UnfitError: {name}={text} is not usable\n{why}"
    assert outcome(lambda: TransferPolicy.from_environment({name: text})) == expected


REFUSED = {
    401: "HTTP 401: the server needs credentials; put them into ~/.netrc",
    403: "HTTP 403: access is refused; if credentials are needed, put them into ~/.netrc",
    404: "HTTP 404: not found",
    407: "HTTP 407: the proxy needs credentials",
    410: "HTTP 410: gone",
    **{status: f"HTTP {status}" for status in (201, 400, 418, 451, 501, 505)},
}
WANTED: dict[int, str | None] = {
    **dict.fromkeys((200, 206, 416)),
    **{status: f"TransientError: HTTP {status}" for status in (408, 425, 429, 500, 502, 503, 504)},
    **{status: f"PermanentError: {words}" for status, words in REFUSED.items()},
}


def test_each_http_status_is_accepted_retried_or_refused() -> None:
    retry_header = {"Retry-After": "5"}
    assert {
        status: outcome(partial(check_status, status, retry_header)) for status in WANTED
    } == WANTED


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        (email.utils.formatdate(1050, usegmt=True), 50),
        (email.utils.formatdate(999, usegmt=True), 0),
        *((text, 0) for text in ("soon", "\u00b2", "-5", "9" * 5000, "Mon, 99 Foo 99999 99:99:99")),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    with pytest.raises(TransientError) as caught:
        check_status(503, {"Retry-After": text})
    assert caught.value.wait_s == seconds
    assert TransientError("x").wait_s == 0


NOTHING = Head(206, -1, -1, -1, "", "")
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, NOTHING),
        (
            {"Content-Range": "bytes 5-9/20", "Content-Length": "5", "Content-Type": "text/x"},
            Head(206, 5, 5, 20, "", "text/x"),
        ),
        ({"Content-Range": "bytes */20"}, replace(NOTHING, total=20)),
        ({"Content-Range": "items 5-9/20", "Content-Length": "-3"}, NOTHING),
        ({"Content-Range": f"bytes 0-1/{'9' * 5000}"}, replace(NOTHING, range_start=0)),
        ({"ETag": '"a"', "Last-Modified": DATE}, replace(NOTHING, validator='"a"')),
        ({"ETag": 'W/"a"', "Last-Modified": DATE}, replace(NOTHING, validator=DATE)),
        ({"ETag": 'W/"a"'}, NOTHING),
        *(({"ETag": text}, NOTHING) for text in ("x" * 301, "a\x7f", "a\x1f", "a\n", "\u20ac")),
    ],
)
def test_malformed_response_headers_are_not_used(
    headers: Mapping[str, str], expected: Head
) -> None:
    assert parse_head(206, headers) == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:secret@[::1/a?token=x", "[::1/a"),
        ("http://[::1/a?token=x?y", "http://[::1/a"),
        ("https://me@you@host/a", "https://host/a"),
        ("https://me:secret@host:8443/a/b.zip?token=x#y", "https://host:8443/a/b.zip"),
    ],
)
def test_a_url_is_shown_without_credentials_and_query(url: str, shown: str) -> None:
    assert redact_url(url) == shown


PARTS = [("", "me:SECRET@", "SECRET@", "a@SECRET@"), ("", "?k=SECRET", "?a=b?SECRET", "#SECRET")]


@settings(deadline=None)
@given(host=st.sampled_from(["host", "[::1]", "[::1", "h:99"]), path=st.text("ab/.%~ ", max_size=9))
def test_a_url_is_shown_without_secrets(host: str, path: str) -> None:
    for login, query in itertools.product(*PARTS):
        assert "SECRET" not in redact_url(f"https://{login}{host}/{path}{query}")
