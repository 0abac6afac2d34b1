"""One request at a time: redirects, headers, connections, time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.fetch.client import Client, end_transfers, judge_redirect
from provisioning.fetch.transfer import PermanentError, TransferPolicy, TransientError
from tests.build.fetch import DATA, QUICK, SIZE, note, outcome
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client(QUICK)
    yield client
    client.close()
    assert client.sockets == []


def read(client: Client, url: str) -> bytes:
    with client.get(url, {}) as (_, body):
        return b"".join(body)


def test_request_sends_its_headers_and_the_next_reuses_its_connection(
    client: Client, server: BadServer
) -> None:
    server.files["a"] = DATA
    request_headers: list[dict[str, str]] = []
    server.faults["a"] = [note(request_headers)] * 2
    with client.get(server.url("a"), {"Range": "bytes=1-3", "X-Mine": "1"}) as (head, body):
        assert (head.status, head.range_start, head.total, head.length) == (206, 1, SIZE, 3)
        assert b"".join(body) == DATA[1:4]
    assert read(client, server.url("a")) == DATA
    assert request_headers[0]["X-Mine"] == "1"
    assert {headers["Accept-Encoding"] for headers in request_headers} == {"identity"}
    assert {headers["User-Agent"] for headers in request_headers} == {"executorch-qnn-ci"}
    assert len(client.sockets) == 1


def test_a_token_comes_before_the_machines_netrc(
    client: Client, server: BadServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.files["a"] = DATA
    request_headers: list[dict[str, str]] = []
    server.faults["a"] = [note(request_headers)] * 4
    read(client, server.url("a"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    read(client, server.url("a"))
    monkeypatch.setenv("QNN_CI_BEARER_TOKENS", "127.0.0.1=t0ken")
    read(client, server.url("a"))
    read(client, server.url("a").replace("//", "//you:word@"))
    logins = [headers.get("Authorization") for headers in request_headers]
    assert logins == [None, "Basic bWU6c2VjcmV0", "Bearer t0ken", "Bearer t0ken"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        *((bad.status(code, Location="/a"), DATA) for code in (301, 302, 303, 307, 308)),
        (bad.status(302, b"moved", Location="/a"), DATA),
        (bad.status(302), "PermanentError: HTTP 302"),
        *((bad.status(code, Location="/a"), f"PermanentError: HTTP {code}") for code in (300, 304)),
        (bad.status(404), "PermanentError: HTTP 404: not found"),
        (bad.raw(b""), "TransientError: the server closed the connection without a response"),
        (
            bad.whole(DATA, Content_Encoding="gzip"),
            "PermanentError: the server sends the body compressed (gzip)",
        ),
        (bad.whole(DATA, Content_Encoding="identity"), DATA),
    ],
)
def test_response_is_followed_accepted_or_refused(
    client: Client, server: BadServer, fault: Fault, expected: bytes | str
) -> None:
    """It takes one connection and leaves no timer behind."""
    before = set(threading.enumerate())
    server.files["a"] = DATA
    server.faults["1"] = [fault]
    assert outcome(lambda: read(client, server.url("1"))) == expected
    if expected == DATA:
        assert len(client.sockets) == 1
    for timer in set(threading.enumerate()) - before:
        if isinstance(timer, threading.Timer):
            assert timer.finished.is_set()


def test_ten_redirects_are_followed_and_eleven_are_not(client: Client, server: BadServer) -> None:
    server.files["0"] = DATA
    too_many = "PermanentError: the server sends more than 10 redirects"
    for count, expected in ((10, DATA), (11, too_many)):
        server.faults = {f"{at}": [bad.redirect(f"/{at - 1}")] for at in range(1, count + 1)}
        assert outcome(lambda: read(client, server.url(f"{count}"))) == expected  # noqa: B023


@pytest.mark.parametrize(
    ("url", "location", "expected"),
    [
        ("http://h/a/b", "c", "http://h/a/c"),
        ("http://h/a/b", "//g/c", "http://g/c"),
        ("http://h/a", "https://g/c", "https://g/c"),
        ("https://h/a", "https://g/c", "https://g/c"),
        ("https://h/a", "http://g/c", "from https to http"),
        ("http://h/a", "http://[::1", "to something that is not a URL"),
        ("http://h/a", "ftp://g/c", "to a URL with the scheme ftp"),
        ("http://h/a", "https:///c", "to a URL without a host"),
    ],
)
def test_redirect_to_a_less_secure_scheme_is_refused(
    url: str, location: str, expected: str
) -> None:
    good = f"PermanentError: the server redirects {expected}" if " " in expected else expected
    assert outcome(lambda: judge_redirect(url, location)) == good


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (bad.after(CHUNKED + b"5;", bad.drip_head(b"a", 0.02)), "."),
        (bad.after(CHUNKED + b"1\r\na\r\n0\r\n", bad.repeat(b"X: y\r\n")), "."),
        (
            bad.drip_head(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50, 0.05),
            "^no response within 0 s$",
        ),
    ],
    ids=["an extension of a chunk", "headers after the last chunk", "a head"],
)
def test_response_that_sends_no_data_times_out(server: BadServer, fault: Fault, words: str) -> None:
    client = Client(TransferPolicy(connect_timeout_s=0.3, read_timeout_s=0.1))
    server.faults["a"] = [fault]
    with pytest.raises(TransientError, match=words):
        read(client, server.url("a"))
    client.close()


def test_running_transfers_end_and_no_new_one_starts_within_the_block(
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
    has_begun.wait()
    with end_transfers():
        thread.join()
        with pytest.raises(PermanentError, match=r"^the transfer was ended$"):
            read(client, server.url("a"))
    assert "closed before the end" in str(ended[0])
    assert read(client, server.url("a")) == DATA


def test_requests_go_through_the_proxy_of_the_environment(
    client: Client, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url(""))
    server.files["http://vendor.invalid/a"] = DATA
    assert read(client, "http://vendor.invalid/a") == DATA
    assert len(client.sockets) == 1
