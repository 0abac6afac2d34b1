"""One file from its URLs: each answer at its limit, and what is left on disk afterwards."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioning.console.progress import Bar, Progress
from provisioning.errors import DownloadError, IntegrityError, QnnCiError
from provisioning.fetch import download
from provisioning.fetch.client import Client
from provisioning.fetch.download import (
    PAGE_BYTES,
    MixedError,
    Pin,
    check_pin,
    check_whole,
    fetch_file,
    is_web_page,
    looks_like_page,
    place_body,
    range_headers,
)
from provisioning.fetch.part_file import PartFile
from provisioning.fetch.ranges import split_spans
from provisioning.fetch.transfer import (
    MismatchError,
    PermanentError,
    TransferPolicy,
    TransientError,
    parse_head,
)
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer

DATA = random.Random(5).randbytes(100_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
PIN = Pin(len(DATA), SHA256)
LIMITS = (len(DATA), len(DATA) - 1)
QUICK = TransferPolicy(attempts=3, backoff_s=0, connect_timeout_s=5, read_timeout_s=5)


def fetch(
    urls: list[str], directory: Path, pin: Pin = PIN, policy: TransferPolicy = QUICK
) -> tuple[str, str]:
    """How it ended, and all that was said."""
    said = io.StringIO()
    try:
        found = fetch_file(urls, directory / "a.zip", pin, Progress(said), policy=policy)
    except QnnCiError as error:
        assert not (directory / "a.zip").exists()
        return type(error).__name__, f"{said.getvalue()}{error}"
    assert found == hashlib.sha256((directory / "a.zip").read_bytes()).hexdigest()
    return "ok", said.getvalue()


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_comes_with_its_mode_and_nothing_beside_it(
    server: BadServer, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    deep = tmp_path / "deep/er"
    assert fetch([server.url("a")], deep) == ("ok", "")
    assert (deep / "a.zip").read_bytes() == DATA
    assert stat.S_IMODE((deep / "a.zip").stat().st_mode) == 0o644
    assert names_in(deep) == ["a.zip"]


def test_what_other_urls_left_goes_and_what_is_not_of_this_file_stays(
    server: BadServer, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    others = [".a.zip.1.txt", ".a.zipp.1.part", ".b.zip.1.part", "a.zip.1.part", ".a.zip.parts"]
    for name in [".a.zip.1.part", ".a.zip.2.json", *others]:
        (tmp_path / name).touch()
    assert fetch([server.url("a")], tmp_path)[0] == "ok"
    assert names_in(tmp_path) == sorted(["a.zip", *others])


def test_a_name_with_glob_characters_is_a_name(server: BadServer, tmp_path: Path) -> None:
    server.files["a"] = DATA
    for name in (".[ab].zip.1.part", ".a.zip.1.part"):
        (tmp_path / name).touch()
    fetch_file([server.url("a")], tmp_path / "[ab].zip", PIN, Progress(), policy=QUICK)
    assert names_in(tmp_path) == [".a.zip.1.part", "[ab].zip"]


def test_the_first_url_that_has_it_gives_it(server: BadServer, tmp_path: Path) -> None:
    server.files |= {"good": DATA, "wrong": b"x" + DATA[1:], "never": DATA}
    urls = [server.url(name) for name in ("none", "wrong", "good", "never")]
    ended, said = fetch([f"{url}?sig=secret" for url in urls], tmp_path)
    assert ended == "ok"
    assert said.splitlines() == [
        f"a.zip: {urls[0]}: HTTP 404: not found",
        (
            f"a.zip: {urls[1]}: its SHA-256 is "
            f"{hashlib.sha256(server.files['wrong']).hexdigest()}, the pin is {SHA256}"
        ),
    ]
    assert [asked.name for asked in server.requests] == ["none", "wrong", "good"]


@pytest.mark.parametrize("has_other", [True, False])
def test_a_server_that_states_an_absurd_size_is_left_for_the_next(
    server: BadServer, tmp_path: Path, has_other: bool
) -> None:
    server.faults["huge"] = [bad.whole(DATA, length=1 << 50)] * 9
    server.files["huge"] = DATA
    if has_other:
        server.files["good"] = DATA
    urls = [server.url("huge"), server.url("good")]
    target, said = tmp_path / "a.zip", Progress(io.StringIO())
    if has_other:
        assert fetch_file(urls, target, Pin(sha256=SHA256), said, policy=QUICK) == SHA256
        return
    with pytest.raises(OSError, match=f"at least {1 << 50} bytes long.*HTTP 404") as caught:
        fetch_file(urls, target, Pin(sha256=SHA256), said, policy=QUICK)
    assert caught.value.errno == errno.ENOSPC
    assert names_in(tmp_path) == []


def test_all_failures_are_told(server: BadServer, tmp_path: Path) -> None:
    server.files["wrong"] = DATA[:-1]
    urls = [server.url("none"), server.url("wrong")]
    with pytest.raises(IntegrityError) as caught:
        fetch_file(urls, tmp_path / "a.zip", PIN, Progress(), policy=QUICK)
    assert caught.value.why == (
        f"{urls[0]}: HTTP 404: not found; {urls[1]}: "
        "the server's file is 99999 bytes long, not the pinned 100000"
    )
    with pytest.raises(IntegrityError, match=r"^a\.zip does not match its pin"):
        fetch_file(urls[::-1], tmp_path / "a.zip", PIN, Progress(), policy=QUICK)
    with pytest.raises(DownloadError) as missing:
        fetch_file(urls[:1], tmp_path / "a.zip", PIN, Progress(), policy=QUICK)
    assert missing.value.why == f"{urls[0]}: HTTP 404: not found"
    with pytest.raises(DownloadError) as none:
        fetch_file([], tmp_path / "a.zip", PIN, Progress(), policy=QUICK)
    assert none.value.why == "there is no URL for it"
    assert names_in(tmp_path) == []


def test_who_asks_for_patience_is_asked_last_and_once_more(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    this, sleep = threading.current_thread(), time.sleep

    def wait(wait_s: float) -> None:  # another thread may be ending a process
        if threading.current_thread() is this:
            waits.append(wait_s)
        else:
            sleep(wait_s)

    monkeypatch.setattr("time.sleep", wait)
    server.files |= {"a": DATA, "b": DATA}
    server.faults["a"] = [bad.status(503, Retry_After="2"), bad.status(503, Retry_After="3")]
    ended, said = fetch([server.url("a"), server.url("none")], tmp_path)
    assert (ended, waits) == ("ok", [2])
    assert "the server asks for a delay of 3 s" in said
    assert [asked.name for asked in server.requests] == ["a", "a", "none", "a"]
    server.requests.clear()
    server.faults["b"] = [bad.status(503, Retry_After="9")] * 9
    ended, said = fetch([server.url("b"), server.url("none")], tmp_path / "other")
    assert (ended, "HTTP 503 (3 tries)" in said) == ("DownloadError", True)
    assert [asked.name for asked in server.requests] == ["b", "none", "b", "b", "b"]


def test_a_shorter_body_after_a_restart_is_the_file(server: BadServer, tmp_path: Path) -> None:
    """The part file was longer before."""
    old = random.Random(6).randbytes(150_000)
    server.files["a"] = old
    server.faults["a"] = [bad.cut(0.9)]
    once = TransferPolicy(attempts=1)
    assert fetch([server.url("a")], tmp_path, Pin(), once)[0] == "DownloadError"
    (part,) = tmp_path.glob(".a.zip.*.part")
    assert part.stat().st_size == 135_000
    server.files["a"] = DATA
    assert fetch([server.url("a")], tmp_path)[0] == "ok"
    assert (tmp_path / "a.zip").read_bytes() == DATA


@pytest.mark.parametrize("pin", [PIN, Pin(), Pin(len(DATA)), Pin(0, SHA256)])
def test_a_cut_download_is_resumed_whatever_is_known(
    server: BadServer, tmp_path: Path, pin: Pin
) -> None:
    server.files["a"] = DATA
    server.faults["a"] = [bad.cut(0.5)]
    ended, said = fetch([server.url("a")], tmp_path, pin)
    assert (ended, "closed before the end" in said) == ("ok", True)
    assert [asked.range for asked in server.requests] == ["", "bytes=50000-"]


def test_what_was_resumed_and_is_wrong_is_brought_once_from_its_beginning(
    server: BadServer, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    server.faults["a"] = [bad.cut(0.5), bad.cut(0.5)]
    once = TransferPolicy(attempts=1)
    for _ in range(2):
        fetch([server.url("a")], tmp_path, PIN, once)
    (part,) = tmp_path.glob(".a.zip.*.part")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    server.requests.clear()
    ended, said = fetch([server.url("a")], tmp_path)
    assert ended == "ok"
    assert "starting over, since this download was resumed" in said
    assert [asked.range for asked in server.requests] == ["bytes=75000-", ""]
    server.files["a"] = b"x" + DATA[1:]
    server.faults["a"] = [bad.cut(0.5)]
    (tmp_path / "a.zip").unlink()
    ended, said = fetch([server.url("a")], tmp_path)
    assert ended == "IntegrityError"
    assert said.count("starting over") == 1
    assert names_in(tmp_path) == []


def test_a_part_that_is_whole_or_too_long_is_known_by_its_size(
    server: BadServer, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    for extra, asked in ((b"", []), (b"x", [""])):
        server.faults["a"] = [bad.cut(0.5)]
        fetch([server.url("a")], tmp_path, PIN, TransferPolicy(attempts=1))
        (part,) = tmp_path.glob(".a.zip.*.part")
        part.write_bytes(DATA + extra)
        server.requests.clear()
        server.faults.clear()
        assert fetch([server.url("a")], tmp_path)[0] == "ok"
        assert [one.range for one in server.requests] == asked
        (tmp_path / "a.zip").unlink()


def test_a_server_that_has_no_more_says_416(server: BadServer, tmp_path: Path) -> None:
    server.files["a"] = DATA
    server.faults["a"] = [bad.cut(0.5)]
    fetch([server.url("a")], tmp_path, Pin(), TransferPolicy(attempts=1))
    (part,) = tmp_path.glob(".a.zip.*.part")
    part.write_bytes(DATA)
    server.requests.clear()
    assert fetch([server.url("a")], tmp_path, Pin()) == ("ok", "")
    assert [one.range for one in server.requests] == ["bytes=100000-"]


def test_fewer_bytes_than_came_before_begin_anew(server: BadServer, tmp_path: Path) -> None:
    server.files["a"] = DATA
    server.faults["a"] = [bad.cut(0.5), bad.status(416, Content_Range="bytes */49999")]
    ended, said = fetch([server.url("a")], tmp_path)
    assert ended == "ok"
    assert (
        "HTTP 416: the server's file is shorter than the part downloaded so far; starting over"
        in said
    )
    assert [one.range for one in server.requests] == ["", "bytes=50000-", ""]


def test_a_416_to_nothing_is_not_a_file(server: BadServer, tmp_path: Path) -> None:
    server.faults["a"] = [bad.status(416, Content_Range="bytes */0")] * 9
    assert fetch([server.url("a")], tmp_path, Pin())[0] == "DownloadError"
    assert names_in(tmp_path) == []


def test_one_byte_more_than_pinned_ends_it(server: BadServer, tmp_path: Path) -> None:
    server.faults["a"] = [bad.chunked(1)]
    server.files["a"] = DATA + b"x"
    ended, said = fetch([server.url("a")], tmp_path)
    assert (ended, "it is longer than the pinned 100000 bytes" in said) == ("IntegrityError", True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_keeps_no_part(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(part: PartFile, data: bytes) -> None:
        raise OSError(code, "no room")

    server.files["a"] = DATA
    monkeypatch.setattr(PartFile, "append", fail)
    with pytest.raises(OSError, match="no room"):
        fetch([server.url("a")], tmp_path)
    assert len(names_in(tmp_path)) == (2 if code == errno.EIO else 0)


def test_a_failure_keeps_what_came_and_nothing_where_nothing_came(
    server: BadServer, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    server.faults["a"] = [bad.cut(0.5), bad.status(404), bad.cut(0.5, sized=False)]
    assert fetch([server.url("a")], tmp_path)[0] == "DownloadError"
    (part,) = tmp_path.glob(".a.zip.*.part")
    assert part.read_bytes() == DATA[:50_000]
    assert fetch([server.url("none")], tmp_path)[0] == "DownloadError"
    assert len(names_in(tmp_path)) == 2


@pytest.mark.parametrize("make", [Path.as_uri, str, lambda path: path.as_uri().replace("a", "%61")])
def test_a_file_of_this_machine_is_copied(tmp_path: Path, make: Callable[[Path], str]) -> None:
    source = tmp_path / "from here"
    source.write_bytes(DATA)
    target = tmp_path / "to"
    for url in ("/not there", str(tmp_path), make(source)):
        ended, said = fetch([url], target)
    assert (ended, said) == ("ok", "")
    ended, said = fetch(["file:///not%20there", str(tmp_path)], tmp_path / "other")
    assert ended == "DownloadError"
    assert "file:///not%20there: No such file or directory; " in said
    assert f"{tmp_path}: it is a directory" in said
    assert names_in(tmp_path / "other") == []
    limited = [fetch([make(source)], tmp_path / str(most), Pin(most_bytes=most)) for most in LIMITS]
    assert [ended for ended, _ in limited] == ["ok", "DownloadError"]
    assert "it is 100000 bytes long, but at most 99999 are expected" in limited[1][1]
    source.write_bytes(DATA[:-1])
    assert fetch([make(source)], tmp_path / "wrong")[0] == "IntegrityError"


def test_what_is_no_url_is_said(tmp_path: Path) -> None:
    ended, said = fetch(["http://[::1"], tmp_path)
    assert (ended, "it is not a URL" in said) == ("DownloadError", True)


def test_a_pin_is_size_and_hash() -> None:
    assert check_pin(5, "aa", Pin()) == "aa"
    assert check_pin(5, "aa", Pin(5, "aa")) == "aa"
    for pin, words in (
        (Pin(6, "aa"), "it is 5 bytes long, not the pinned 6"),
        (Pin(0, "ab"), "its SHA-256 is aa, the pin is ab"),
    ):
        with pytest.raises(MismatchError) as caught:
            check_pin(5, "aa", pin)
        assert str(caught.value) == words


def head(
    status: int = 200, length: int = -1, start: int = -1, total: int = -1, **more: str
) -> object:
    headers = dict(more)
    if length >= 0:
        headers["Content-Length"] = str(length)
    if start >= 0 or total >= 0:
        headers["Content-Range"] = f"bytes {start}-99/{total if total >= 0 else '*'}"
    return parse_head(status, {name.replace("_", "-"): text for name, text in headers.items()})


PLACES: dict[str, tuple[object, int, Pin, object]] = {
    "from the beginning": (head(), 0, Pin(), 0),
    "all, though a part was asked for": (head(), 7, Pin(), 0),
    "the whole as a part": (head(206, 10, 0, 10), 0, Pin(), 0),
    "a part that was not asked for": (
        head(206, 9, 1, 10),
        0,
        Pin(),
        "the server sends a part, but the whole file was requested",
    ),
    "the length is pinned": (head(length=PAGE_BYTES + 1), 0, Pin(PAGE_BYTES + 1), 0),
    "another length, of a page": (head(length=PAGE_BYTES), 0, Pin(5), 0),
    "another length": (
        head(length=PAGE_BYTES + 1),
        0,
        Pin(5),
        f"the server's file is {PAGE_BYTES + 1} bytes long, not the pinned 5",
    ),
    "the rest": (head(206, 3, 7, 10, ETag='"v"'), 7, Pin(10), 7),
    "the rest, of an unknown total": (head(206, 3, 7), 7, Pin(10), 7),
    "the rest, without a pin": (head(206, 3, 7, 10), 7, Pin(), 7),
    "one byte off": (
        head(206, 3, 8, 10),
        7,
        Pin(10),
        "the server resumed at byte 8, not at 7; starting over",
    ),
    "another ETag": (
        head(206, 3, 7, 10, ETag='"w"'),
        7,
        Pin(10),
        "the file changed during the download (another ETag or date); starting over",
    ),
    "another total": (
        head(206, 3, 7, 11),
        7,
        Pin(10),
        "the file changed during the download (now 11 bytes); starting over",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_where_a_body_begins(name: str) -> None:
    seen, have, pin, wanted = PLACES[name]
    if isinstance(wanted, int):
        assert place_body(seen, have, '"v"', pin) == wanted  # type: ignore[arg-type]
        return
    with pytest.raises((TransientError, PermanentError)) as caught:
        place_body(seen, have, '"v"', pin)  # type: ignore[arg-type]
    assert str(caught.value) == wanted
    assert isinstance(caught.value, MixedError) == ("starting over" in str(wanted))


# The part has 10 bytes, and the disk has room for 100 more.
SIZES: dict[str, tuple[object, Pin, float | str]] = {
    "pinned": (head(length=90), Pin(20, most_bytes=15), 20),
    "beyond its pin": (head(), Pin(9), "it is longer than the pinned 9 bytes"),
    "of a limit": (head(), Pin(most_bytes=15), 15),
    "up to its limit": (head(length=5), Pin(most_bytes=15), 15),
    "beyond its limit": (
        head(length=6),
        Pin(most_bytes=15),
        "it is at least 16 bytes long, but at most 15 are expected",
    ),
    "a total beyond its limit": (
        head(206, 3, 10, 16),
        Pin(most_bytes=15),
        "it is at least 16 bytes long, but at most 15 are expected",
    ),
    "not known": (head(), Pin(), 110),
    "all of the room": (head(length=100), Pin(), 110),
    "a limit beyond the room": (head(), Pin(most_bytes=500), 110),
    "more than the room": (head(length=101), Pin(), "the file is at least 111 bytes long"),
}


@pytest.mark.parametrize("name", SIZES)
def test_how_far_a_file_may_grow(
    part: PartFile, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, pin, wanted = SIZES[name]
    monkeypatch.setattr(download, "free_bytes", lambda _: 100 + download.SPARE_BYTES)
    if isinstance(wanted, (int, float)):
        assert download._check_size(seen, part, pin) == wanted  # type: ignore[arg-type]
        return
    with pytest.raises((PermanentError, OSError)) as caught:
        download._check_size(seen, part, pin)  # type: ignore[arg-type]
    assert wanted in str(caught.value)


def test_the_headers_for_the_rest() -> None:
    assert range_headers(0, "v") == {}
    assert range_headers(1, "v") == {"Range": "bytes=1-", "If-Range": "v"}


@pytest.fixture
def part(tmp_path: Path) -> PartFile:
    part = PartFile(tmp_path / "a.zip", "http://h/a")
    part.append(b"0123456789")
    return part


WHOLE: dict[str, tuple[object, int, Pin, str]] = {
    "as long as said": (head(length=10), 0, Pin(10), ""),
    "the rest as long as said": (head(206, 4, 6), 6, Pin(10), ""),
    "not said": (head(), 0, Pin(10), ""),
    "the rest, not said": (head(206), 6, Pin(10), ""),
    "nothing known": (head(), 0, Pin(), ""),
    "shorter than said": (head(length=11), 0, Pin(10), "the body ended after 10 of 11 bytes"),
    "nothing, as said": (head(length=0), 0, Pin(10), "the body ended after 10 of 0 bytes"),
    "longer than said": (head(length=9), 0, Pin(10), "the body ended after 10 of 9 bytes"),
    "a small body": (
        head(length=10),
        0,
        Pin(11),
        "the server sent an error page with status 200: '0123456789'",
    ),
    "a page": (
        head(length=10, Content_Type="text/html"),
        0,
        Pin(),
        "the server sent an error page with status 200: '0123456789'",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whether_a_file_is_whole(part: PartFile, name: str) -> None:
    seen, position, pin, words = WHOLE[name]
    if not words:
        check_whole(seen, position, part, pin)  # type: ignore[arg-type]
        assert part.size == 10
        return
    with pytest.raises(TransientError) as caught:
        check_whole(seen, position, part, pin)  # type: ignore[arg-type]
    assert str(caught.value) == words
    assert part.size == (0 if "page" in words else 10)


def test_a_large_body_of_another_size_is_another_file(part: PartFile) -> None:
    part.append(bytes(PAGE_BYTES))
    size = PAGE_BYTES + 10
    with pytest.raises(MismatchError) as caught:
        check_whole(head(length=size), 0, part, Pin(size + 1))  # type: ignore[arg-type]
    assert str(caught.value) == f"the server's file is {size} bytes long, not the pinned {size + 1}"
    with pytest.raises(TransientError) as cut:
        check_whole(head(), 0, part, Pin(size + 1))  # type: ignore[arg-type]
    assert str(cut.value) == f"the body ended after {size} of {size + 1} bytes"


def make_part(tmp_path: Path, start: bytes, size: int) -> PartFile:
    part = PartFile(tmp_path / "a.zip", "http://h/a")
    part.restart()
    part.append(start + bytes(size - len(start)))
    return part


@pytest.mark.parametrize(
    ("start", "size", "kind", "is_page"),
    [
        (b"PK", PAGE_BYTES, "", True),
        (b"PK", PAGE_BYTES + 1, "", False),
        (b"PK", PAGE_BYTES + 1, "text/plain", True),
        (b"PK", PAGE_BYTES + 1, "application/json; charset=x", True),
        (b"PK", PAGE_BYTES + 1, "application/xml", True),
        (b"PK", PAGE_BYTES + 1, "application/zip", False),
        (b"<!DOCTYPE x", PAGE_BYTES + 1, "", True),
        (b"<HTML>", PAGE_BYTES + 1, "", True),
        (b"<?xml", PAGE_BYTES + 1, "", True),
        (b'{"error"', PAGE_BYTES + 1, "", True),
        (b"x{", PAGE_BYTES + 1, "", False),
    ],
)
def test_what_looks_like_a_page(
    tmp_path: Path, start: bytes, size: int, kind: str, is_page: bool
) -> None:
    part = make_part(tmp_path, start, size)
    assert looks_like_page(part, head(Content_Type=kind)) == is_page  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "kind", "is_page"),
    [
        (b"PK", "", False),
        (b"PK", "TEXT/HTML; charset=x", True),
        (b"PK", "application/xhtml+xml", True),
        (b"PK", "text/plain", False),
        (b"<!Doctype HTML>", "", True),
        (b"<HTML>", "", True),
        (b"<!doctype xml>", "", False),
        (b"{", "", False),
    ],
)
def test_what_is_a_page_for_a_person(
    tmp_path: Path, start: bytes, kind: str, is_page: bool
) -> None:
    part = make_part(tmp_path, start, 100)
    assert is_web_page(part, head(Content_Type=kind)) == is_page  # type: ignore[arg-type]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_slow_large_pinned_file_is_spread(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(download, "MIN_FILE_BYTES", len(DATA))
    monkeypatch.setattr(download, "is_worth_it", lambda left, came, seconds: came > 0)
    monkeypatch.setattr(download, "split_spans", lambda spans: split_spans(spans, 20_000))
    server.files["a"] = DATA
    server.usual = bad.limited(1e6)
    try:
        assert fetch([server.url("a")], tmp_path, PIN if is_known else Pin(len(DATA)))[0] == "ok"
    finally:
        server.usual = bad.serve
    assert (len(server.requests) > 1) == is_known


@pytest.mark.parametrize("brings", [0, 1])
def test_what_was_spread_was_resumed_and_may_be_again_where_it_brought_something(
    part: PartFile, monkeypatch: pytest.MonkeyPatch, brings: int
) -> None:
    class Fake:
        def __init__(
            self, url: str, pieces: object, take: Any, *, size_bytes: int, **words: object
        ) -> None:
            assert (url, size_bytes) == ("u", 99)
            assert words == {"validator": part.validator, "policy": QUICK}
            assert pieces == [(part.size, 99)]
            self.take = take

        def run(self) -> None:
            self.take(part.size, b"x" * brings)

    monkeypatch.setattr(download, "Spread", Fake)
    bar = Bar("", 99, "B", None, live=False)
    download._spread("u", part, Pin(99), QUICK, bar)
    assert bar.done == brings
    assert part.was_resumed is True
    assert part.can_spread is (brings > 0)


@pytest.mark.parametrize("brings", [0, 70])
def test_how_long_is_waited_for_how_many_bytes_decides_on_spreading(
    part: PartFile, monkeypatch: pytest.MonkeyPatch, brings: int
) -> None:
    """Of 100 bytes 10 are there; then 10 come in each second of a clock of our own."""
    clock, asked = [50.0], []

    class Fake:
        policy = QUICK

        @contextmanager
        def get(self, url: str, headers: dict[str, str]) -> Iterator[tuple[object, object]]:
            assert headers == {"Range": "bytes=10-", "If-Range": "v"}
            yield head(206, 90, 10, 100, ETag="v"), self.body()

        def body(self) -> Iterator[bytes]:
            for _ in range(9):
                clock[0] += 1
                yield b"x" * 10

    class FakeSpread:
        def __init__(self, *words: object, **named: object) -> None:
            pass

        def run(self) -> None:
            part.append(b"x" * brings)

    def judge(left: int, came: int, seconds: float) -> bool:
        asked.append((left, came, seconds))
        clock[0] += 7  # is not spent on waiting
        return came == 20

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(download, "MIN_FILE_BYTES", 100)
    monkeypatch.setattr(download, "is_worth_it", judge)
    monkeypatch.setattr(download, "Spread", FakeSpread)
    part.validator = "v"
    bar = Bar("", 100, "B", None, live=False)
    bar.done = 10
    pin = Pin(100, "aa")
    if brings:
        download._attempt(Fake(), "u", part, pin, bar)  # type: ignore[arg-type]
    else:
        with pytest.raises(TransientError, match=r"^the download over several connections failed$"):
            download._attempt(Fake(), "u", part, pin, bar)  # type: ignore[arg-type]
    assert asked == [(80, 10, 1.0), (70, 20, 2.0)]
    assert bar.done == 30
    assert part.size == 30 + brings


def test_a_bar_begins_anew_with_the_file(server: BadServer, tmp_path: Path) -> None:
    server.files["a"] = DATA
    part = PartFile(tmp_path / "a.zip", server.url("a"))
    bar = Bar("", len(DATA), "B", None, live=False)
    bar.done = 77
    with closing(Client(QUICK)) as client:
        download._attempt(client, server.url("a"), part, PIN, bar)
    assert bar.done == len(DATA)
    part.close()


def test_what_may_be_spread(part: PartFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MIN_FILE_BYTES", 1000)
    part.validator = "v"
    assert download._may_spread(part, Pin(1000, "aa"))
    assert not download._may_spread(part, Pin(999, "aa"))
    assert not download._may_spread(part, Pin(1000, ""))
    part.can_spread = False
    assert not download._may_spread(part, Pin(1000, "aa"))
    part.can_spread, part.validator = True, ""
    assert not download._may_spread(part, Pin(1000, "aa"))


def test_the_limits_are_these() -> None:
    assert (PAGE_BYTES, download.PATIENCE_S, download.FILE_MODE) == (64 << 10, 2, 0o644)


def test_a_resume_that_is_answered_wrongly_starts_over(server: BadServer, tmp_path: Path) -> None:
    """Each time: a server that never resumes rightly gives the whole."""
    server.files["a"] = DATA

    def resume_wrongly(handler: bad.Handler, data: bytes) -> None:
        (bad.part(-5) if handler.asked.range else bad.serve)(handler, data)

    server.faults["a"] = [bad.cut(0.5)]
    fetch([server.url("a")], tmp_path, PIN, TransferPolicy(attempts=1))
    server.faults["a"] = [resume_wrongly] * 9
    assert fetch([server.url("a")], tmp_path)[0] == "ok"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pin", [PIN, Pin(), Pin(0, "", 10)])
@pytest.mark.parametrize(
    "kind", ["a pipe", "zeros", "a loop", "below a file", "a null byte", "another size"]
)
def test_what_is_no_such_file_of_this_machine_is_left_at_once(
    tmp_path: Path, kind: str, pin: Pin
) -> None:
    path = tmp_path / "from"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "a loop":
        path.symlink_to("from")
    elif kind == "another size" and pin != Pin():
        path.write_bytes(DATA + b"x")
    elif kind == "below a file":
        path.touch()
        path /= "a.zip"
    url = "/tmp/\0" if kind == "a null byte" else str(path)  # noqa: S108
    assert fetch([url], tmp_path / "to", pin)[0] in {"DownloadError", "IntegrityError"}
    (tmp_path / "good").write_bytes(DATA)
    assert fetch([url, str(tmp_path / "good")], tmp_path / "to", PIN)[0] == "ok"
    assert names_in(tmp_path / "to") == ["a.zip"]
