"""The pure parts of a transfer: what a head says, what a policy allows, what a message shows."""

from __future__ import annotations

import pytest

from provisioning.archives.layout import Layout, Member
from provisioning.artifacts.sources.archive import member_spans
from provisioning.console.progress import Bar
from provisioning.errors import UnfitError
from provisioning.fetch.download import Pin, place_body, range_headers
from provisioning.fetch.mirrors import mirror_urls
from provisioning.fetch.ranges import merge_spans, plan_spans, split_spans
from provisioning.fetch.transfer import (
    MismatchError,
    PermanentError,
    TransferPolicy,
    TransientError,
    check_status,
    parse_head,
    redact_url,
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host:8443/a/b.zip?token=x#y", "https://host:8443/a/b.zip"),
        ("file:///a/b.zip", "file:///a/b.zip"),
        ("/a/b.zip?x", "/a/b.zip"),
    ],
)
def test_no_message_shows_credentials_or_a_query(url: str, shown: str) -> None:
    assert redact_url(url) == shown


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
def test_a_head_is_read_and_what_is_malformed_is_not_said(
    headers: dict[str, str], start: int, total: int, length: int
) -> None:
    head = parse_head(206, headers)
    assert (head.range_start, head.total, head.length) == (start, total, length)


def test_a_weak_etag_cannot_validate_a_range() -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    assert parse_head(200, {"ETag": 'W/"a"', "Last-Modified": date}).validator == date
    assert parse_head(200, {"ETag": '"a"', "Last-Modified": date}).validator == '"a"'
    assert range_headers(10, "") == {}
    assert range_headers(10, '"a"') == {"Range": "bytes=10-", "If-Range": '"a"'}


def test_where_a_body_begins() -> None:
    whole = parse_head(200, {"Content-Length": "20", "ETag": '"a"'})
    rest = parse_head(206, {"Content-Range": "bytes 10-19/20", "ETag": '"a"'})
    assert place_body(whole, 10, '"a"', Pin(20)) == 0
    assert place_body(rest, 10, '"a"', Pin(20)) == 10
    for have, validator, pin in ((9, '"a"', 20), (10, '"b"', 20), (10, '"a"', 21)):
        with pytest.raises(TransientError):
            place_body(rest, have, validator, Pin(pin))
    with pytest.raises(MismatchError):
        place_body(parse_head(200, {"Content-Length": "999999"}), 0, "", Pin(20))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_these_are_tried_again(status: int) -> None:
    with pytest.raises(TransientError):
        check_status(status, {})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 407, 410, 451, 501, 505])
def test_these_are_not(status: int) -> None:
    with pytest.raises(PermanentError):
        check_status(status, {})


def test_a_server_may_ask_to_wait_but_not_for_ever() -> None:
    with pytest.raises(TransientError) as caught:
        check_status(503, {"Retry-After": "3600"})
    assert caught.value.wait_s == 3600
    assert TransferPolicy().wait_s(1, caught.value.wait_s) == TransferPolicy().longest_wait_s
    assert 0.25 <= TransferPolicy().wait_s(1, 0) <= 0.75
    assert TransferPolicy().wait_s(4, 0) > TransferPolicy().wait_s(1, 0)


def test_variables_change_the_policy() -> None:
    changed = TransferPolicy.from_environment({"QNN_CI_ATTEMPTS": "2", "QNN_CI_TIMEOUT_S": "5"})
    assert (changed.attempts, changed.read_timeout_s, changed.connect_timeout_s) == (2, 5, 5)
    assert TransferPolicy.from_environment({"QNN_CI_ATTEMPTS": ""}) == TransferPolicy()


@pytest.mark.parametrize("name", ["QNN_CI_ATTEMPTS", "QNN_CI_TIMEOUT_S", "QNN_CI_BACKOFF_S"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e300", "many", "\u00b2"])
def test_a_variable_that_is_no_usable_number_is_said(name: str, value: str) -> None:
    with pytest.raises(UnfitError, match=f"{name}=.* is not usable") as caught:
        TransferPolicy.from_environment({name: value})
    assert "a number from" in caught.value.why


@pytest.mark.parametrize("text", ["\u00b2", "-5", "nan", "9" * 5000, "Mon, 99 Foo 99999 99:99:99"])
def test_a_strange_retry_after_is_no_defect(text: str) -> None:
    with pytest.raises(TransientError) as caught:
        check_status(503, {"Retry-After": text})
    assert caught.value.wait_s == 0


def test_spans_near_each_other_become_one() -> None:
    assert merge_spans([(100, 200), (0, 50), (210, 300)], 10) == [(0, 50), (100, 300)]
    assert merge_spans([(0, 100), (20, 30)], 0) == [(0, 100)]
    member = Member("name", 500, offset=1000, compressed=100)
    assert member_spans([member], 1150) == [(1000, 1150)]
    assert member_spans([member], 1 << 20) == [(1000, 1000 + 30 + 4 + 64 + 100)]


def test_parts_follow_the_round_trip_or_give_way_to_the_whole() -> None:
    few = [(number * 100_000, number * 100_000 + 10) for number in range(8)]
    many = [(number * 100_000, number * 100_000 + 10) for number in range(100)]
    dense = [(number * 100_000, number * 100_000 + 90_000) for number in range(100)]
    assert plan_spans(few, 10_000_000, 1.0, 1e6) == few
    assert plan_spans(many, 10_000_000, 0.001, 1e6) == many
    assert plan_spans(many, 90_000_000, 0.2, 1e6) == [(0, 9_900_010)]
    assert plan_spans(dense, 10_000_000, 0.02, 1e6) == [(0, 10_000_000)]
    assert split_spans([(0, 25), (30, 31)], 10) == [(0, 10), (10, 20), (20, 25), (30, 31)]


@pytest.mark.parametrize(
    ("mirror", "url"),
    [
        ("https://h/c/{filename}?sv=1&sig=a%2Fb", "https://h/c/a%20b.zip?sv=1&sig=a%2Fb"),
        ("https://h/c?sig=x", "https://h/c/a%20b.zip?sig=x"),
        ("https://h/get?file={filename}", "https://h/get?file=a%20b.zip"),
        ("/m/{filename}", "file:///m/a%20b.zip"),
        ("https://h/v2/me/sdks/blobs/sha256:{sha256}", "https://h/v2/me/sdks/blobs/sha256:5e"),
        ("/m/{sha256}/{filename}", "file:///m/5e/a%20b.zip"),
    ],
)
def test_a_mirror_may_be_a_template_or_have_a_query(mirror: str, url: str) -> None:
    assert mirror_urls("a b.zip", "5e", {"QNN_CI_MIRROR": mirror}) == [url]


def test_a_bar_says_how_long_it_takes_yet() -> None:
    bar = Bar("x", 100 << 20, "B", None, live=False)
    bar.done = 40 << 20  # resumed
    bar.advance(10 << 20)
    assert ", 10 s left" in bar.describe(bar._started + 2)


def test_a_mirror_is_a_directory_or_a_url() -> None:
    assert mirror_urls("a.zip", variables={}) == []
    assert mirror_urls("a.zip", variables={"QNN_CI_MIRROR": "https://h/{sha256}"}) == []
    assert mirror_urls("a.zip", variables={"QNN_CI_MIRROR": "/m i"}) == ["file:///m%20i/a.zip"]
    assert mirror_urls("a.zip", variables={"QNN_CI_MIRROR": "https://h/m/"}) == [
        "https://h/m/a.zip"
    ]


def test_a_layout_says_where_members_go() -> None:
    layout = Layout([("sdk/1.0/**", ""), ("x/lib*.so", "lib/"), ("x/a", "b/c")], ["lib/**", "*"])
    assert layout.place("sdk/1.0/lib/a/b.so") == "lib/a/b.so"
    assert layout.place("sdk/1.0/include/a.h") == ""
    assert layout.place("sdk/1.0/sdk.yaml") == "sdk.yaml"
    assert layout.place("x/libQ.so") == "lib/libQ.so"
    assert layout.place("x/deep/libQ.so") == ""
    assert layout.place("other") == ""
    assert Layout([("x/a", "b/c")]).literal_paths() == {"b/c"}
    assert Layout([("x/*", "")]).literal_paths() == set()
