"""One request at a time: redirects, headers, connections, time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioning.fetch import client as clients
from provisioning.fetch.client import Client, end_transfers, judge_redirect
from provisioning.fetch.transfer import PermanentError, TransferPolicy, TransientError
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer

POLICY = TransferPolicy(connect_timeout_s=5, read_timeout_s=5)
DATA = bytes(range(256)) * 8


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client(POLICY)
    yield client
    client.close()


def read(client: Client, url: str, **headers: str) -> bytes:
    with client.get(url, headers) as (_, body):
        return b"".join(body)


def test_a_head_and_a_body_come(client: Client, server: BadServer) -> None:
    server.files["a"] = DATA
    seen: list[dict[str, str]] = []

    def look(handler: bad.Handler, data: bytes) -> None:
        seen.append(dict(handler.headers.items()))
        bad.serve(handler, data)

    server.faults["a"] = [look, look]
    with client.get(server.url("a"), {"Range": "bytes=1-3", "X-Mine": "1"}) as (head, body):
        assert (head.status, head.range_start, head.total, head.length) == (206, 1, len(DATA), 3)
        assert b"".join(body) == DATA[1:4]
    assert read(client, server.url("a")) == DATA
    assert seen[0]["X-Mine"] == "1"
    assert {one["Accept-Encoding"] for one in seen} == {"identity"}
    assert {one["User-Agent"] for one in seen} == {"executorch-qnn-ci"}
    assert len(client.sockets) == 1  # the connection was used again


def test_a_token_comes_before_the_machines_netrc(
    client: Client, server: BadServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    seen: list[str | None] = []

    def look(handler: bad.Handler, data: bytes) -> None:
        seen.append(handler.headers.get("Authorization"))
        bad.serve(handler, data)

    server.faults["a"] = [look] * 4
    read(client, server.url("a"))
    assert seen.pop() is None
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    read(client, server.url("a"))
    monkeypatch.setenv("QNN_CI_BEARER_TOKENS", "127.0.0.1=t0ken")
    read(client, server.url("a"))
    read(client, server.url("a").replace("//", "//you:word@"))
    assert str(seen[0]).startswith("Basic ")
    assert seen[1:] == ["Bearer t0ken"] * 2


def test_what_was_not_read_to_its_end_ends_the_connection(
    client: Client, server: BadServer
) -> None:
    server.files["a"] = DATA
    with client.get(server.url("a"), {}) as (_, body):
        del body
    assert client.sockets == []
    server.files["empty"] = b""
    assert read(client, server.url("empty")) == b""
    assert len(client.sockets) == 1
    with pytest.raises(PermanentError, match="404"):
        read(client, server.url("none"))
    client.close()
    assert client.sockets == []


def test_ten_redirects_are_followed_and_eleven_are_not(client: Client, server: BadServer) -> None:
    server.files["a"] = DATA
    for count, ends_well in ((10, True), (11, False)):
        server.faults = {
            f"{at}": [bad.redirect(f"/{at + 1}" if at < count else "/a")]
            for at in range(1, count + 1)
        }
        if ends_well:
            assert read(client, server.url("1")) == DATA
        else:
            with pytest.raises(PermanentError, match="more than 10 redirects"):
                read(client, server.url("1"))


def test_the_connection_of_a_redirect_with_a_body_is_closed(
    client: Client, server: BadServer
) -> None:
    server.files["a"] = DATA
    server.faults["1"] = [bad.status(302, b"moved", Location="/a")]
    assert read(client, server.url("1")) == DATA
    assert len(client.sockets) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_these_redirect(client: Client, server: BadServer, status: int) -> None:
    server.files["a"] = DATA
    server.faults["1"] = [bad.status(status, Location="/a")]
    assert read(client, server.url("1")) == DATA


@pytest.mark.parametrize("status", [300, 304])
def test_these_do_not(client: Client, server: BadServer, status: int) -> None:
    server.faults["1"] = [bad.status(status, Location="/a"), bad.status(302)]
    for words in (f"HTTP {status}", "HTTP 302"):
        with pytest.raises(PermanentError, match=words):
            read(client, server.url("1"))


@pytest.mark.parametrize(
    ("url", "location", "words"),
    [
        ("http://h/a/b", "c", "http://h/a/c"),
        ("http://h/a/b", "//g/c", "http://g/c"),
        ("http://h/a", "https://g/c", "https://g/c"),
        ("https://h/a", "https://g/c", "https://g/c"),
        ("https://h/a", "http://g/c", "! the server redirects from https to http"),
        ("http://h/a", "http://[::1", "! the server redirects to something that is not a URL"),
        ("http://h/a", "ftp://g/c", "! the server redirects to a URL with the scheme ftp"),
        ("http://h/a", "https:///c", "! the server redirects to a URL without a host"),
    ],
)
def test_where_a_redirect_leads(url: str, location: str, words: str) -> None:
    if words.startswith("! "):
        with pytest.raises(PermanentError) as caught:
            judge_redirect(url, location)
        assert str(caught.value) == words[2:]
    else:
        assert judge_redirect(url, location) == words


def test_a_compressed_body_is_not_taken(client: Client, server: BadServer) -> None:
    server.faults["a"] = [
        bad.whole(DATA, Content_Encoding="gzip"),
        bad.whole(DATA, Content_Encoding="identity"),
    ]
    words = r"^the server sends the body compressed \(gzip\)$"
    with pytest.raises(PermanentError, match=words):
        read(client, server.url("a"))
    assert read(client, server.url("a")) == DATA


def pieces(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A response whose pieces take a second each."""
    clock, left = [100.0], list(sizes)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def read1(most: int) -> bytes:
        assert most == 512 << 10
        clock[0] += 1
        return bytes(left.pop(0)) if left else b""

    return SimpleNamespace(headers={}, raw=SimpleNamespace(read1=read1))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([10, 9], "the transfer stalled: 19 bytes in 2 s"),
        ([10, 10, 10, 9], "the transfer stalled: 19 bytes in 2 s"),
        ([10, 10, 10, 10, 1], ""),
        ([1], ""),
        ([20, 1, 1], ""),
        ([20, 1, 1, 1], "the transfer stalled: 2 bytes in 2 s"),
    ],
)
def test_a_window_in_which_too_little_came_is_a_stall(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], words: str
) -> None:
    client = Client(TransferPolicy(read_timeout_s=2, slowest_bytes_s=10))
    body = client._body("http://h/a", pieces(sizes, monkeypatch))
    if words:
        with pytest.raises(TransientError) as caught:
            list(body)
        assert str(caught.value) == words
    else:
        assert [len(data) for data in body] == sizes


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "fault",
    [
        bad.after(CHUNKED + b"5;", bad.drip_head(b"a", 0.02, 1000)),
        bad.after(CHUNKED + b"1\r\na\r\n0\r\n", bad.repeat(b"X: y\r\n")),
    ],
    ids=["an extension of a chunk", "headers after the last chunk"],
)
def test_a_body_may_not_go_on_without_data(server: BadServer, fault: bad.Fault) -> None:
    client = Client(TransferPolicy(connect_timeout_s=5, read_timeout_s=0.1))
    server.faults["a"] = [fault]
    began = time.monotonic()
    with pytest.raises(TransientError):
        read(client, server.url("a"))
    assert time.monotonic() - began < 5
    client.close()


def test_a_head_that_does_not_come_is_given_up(server: BadServer) -> None:
    client = Client(TransferPolicy(connect_timeout_s=0.1, read_timeout_s=0.2))
    server.faults["a"] = [bad.drip_head(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50, 0.05, 100)]
    with pytest.raises(TransientError) as caught:
        read(client, server.url("a"))
    assert str(caught.value) == "no response within 0 s"
    client.close()


def test_what_takes_too_long_loses_its_connections(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = threading.Event()
    monkeypatch.setattr(client, "abort", aborted.set)
    for seconds, told in ((0.01, "no response within 0 s"), (60, "it was closed")):

        def wait(ends: bool = seconds < 1) -> None:
            assert aborted.wait(30) or not ends
            raise TransientError("it was closed")

        with pytest.raises(TransientError, match=told), client._within(seconds):
            wait()


def test_another_failure_keeps_its_words(client: Client, server: BadServer) -> None:
    before = threading.active_count()
    server.faults["a"] = [bad.raw(b"")]
    with pytest.raises(TransientError, match="without a response"):
        read(client, server.url("a"))
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before  # no timer is left


def test_transfers_end_and_none_begins_as_long_as_the_block_lasts(
    client: Client, server: BadServer
) -> None:
    server.files["a"] = DATA
    ended: list[Exception] = []
    server.faults["a"] = [bad.stall(0.5, 60)]
    has_begun = threading.Event()

    def work() -> None:
        try:
            with client.get(server.url("a"), {}) as (_, body):
                for _ in body:
                    has_begun.set()
        except TransientError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert has_begun.wait(5)
    with end_transfers():
        thread.join(30)
        assert not thread.is_alive()
        with pytest.raises(PermanentError, match=r"^the transfer was ended$"):
            read(client, server.url("a"))
    assert "closed before the end" in str(ended[0])
    assert read(client, server.url("a")) == DATA


def test_a_bundle_that_is_not_there_is_said_before_the_request(
    client: Client, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/not there")
    with pytest.raises(PermanentError, match="REQUESTS_CA_BUNDLE points to /not there"):
        read(client, server.url("a"))
    assert server.requests == []


def test_a_proxy_is_asked_and_its_connection_can_be_ended(
    client: Client, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url(""))
    server.files["http://vendor.invalid/a"] = DATA
    assert read(client, "http://vendor.invalid/a") == DATA
    assert len(client.sockets) == 1


def test_the_limits_are_these() -> None:
    assert (clients.MAX_REDIRECTS, clients.READ_BYTES) == (10, 512 << 10)
