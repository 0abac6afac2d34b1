"""Each failure of the libraries below, as one of the two kinds, in words."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import certifi
import pytest
import requests
import urllib3

from provisioning.fetch.transfer import (
    PermanentError,
    TransientError,
    check_bundle,
    explain_failures,
)
from tests.build.fetch import outcome
from tests.stand_ins.snapshots import check_snapshot

URL = "https://me:secret@host/a.zip?token=x"


def explain(error: BaseException) -> str:
    with pytest.raises((PermanentError, TransientError)) as caught, explain_failures(URL):
        raise error
    assert caught.value.__cause__ is error
    return f"{type(caught.value).__name__}: {caught.value}"


def refused(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> ssl.SSLError:
    error = kind(1, f"[SSL: {reason}] words")
    error.reason = reason
    return error


def untrusted() -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "self-signed certificate"
    return error


def inside(error: BaseException) -> requests.ConnectionError:
    """As requests and urllib3 wrap it."""
    return requests.ConnectionError(urllib3.exceptions.MaxRetryError(None, "/", error))  # type: ignore[arg-type]


FAILURES: dict[str, BaseException] = {
    "URL": requests.exceptions.InvalidURL(),
    "schema": requests.exceptions.InvalidSchema(),
    "a proxy's URL": requests.exceptions.InvalidProxyURL(),
    "SOCKS": requests.exceptions.InvalidSchema("Missing dependencies for SOCKS support."),
    "no schema": requests.exceptions.MissingSchema(),
    "header": requests.exceptions.InvalidHeader(),
    "certificate": inside(untrusted()),
    "TLS": inside(refused("WRONG_VERSION_NUMBER")),
    "407": requests.exceptions.ProxyError(OSError("Tunnel connection failed: 407 No")),
    "proxy 403": requests.exceptions.ProxyError(OSError("Tunnel connection failed: 403 No")),
    "proxy 499": requests.exceptions.ProxyError("Tunnel connection failed: 499 No"),
    "proxy 500": requests.exceptions.ProxyError("Tunnel connection failed: 500 No"),
    "proxy": requests.exceptions.ProxyError(ConnectionRefusedError()),
    "TLS closed": inside(refused("X", ssl.SSLEOFError)),
    "TLS ended": inside(refused("X", ssl.SSLZeroReturnError)),
    "name": inside(socket.gaierror()),
    "refused": inside(ConnectionRefusedError()),
    "cut": urllib3.exceptions.IncompleteRead(1, 2),
    "cut below": inside(http.client.IncompleteRead(b"")),
    "silent": inside(http.client.RemoteDisconnected("x")),
    "reset": inside(ConnectionResetError()),
    "late": inside(TimeoutError()),
    "late too": urllib3.exceptions.ReadTimeoutError(None, "/", "x"),  # type: ignore[arg-type]
    "else": BrokenPipeError(),
    "else inside": inside(BrokenPipeError()),
    "value": ValueError("x"),
    "line": http.client.BadStatusLine("x"),
}


def test_each_network_failure_is_transient_or_permanent_with_a_message() -> None:
    lines = "".join(f"{name}: {explain(error)}\n" for name, error in FAILURES.items())
    check_snapshot(Path(__file__).parent / "snapshots/failures.txt", lines)


@pytest.mark.parametrize(
    ("edit", "end"),
    [
        (lambda raw: b"", "contains no certificates"),
        (lambda raw: raw[: len(raw) // 2], "contains a damaged certificate"),
        (lambda raw: raw.replace(b"MII", b"M$I"), "contains a damaged certificate"),
    ],
    ids=["empty", "truncated", "damaged"],
)
def test_a_damaged_ca_bundle_is_refused_before_any_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, edit: Callable[[bytes], bytes], end: str
) -> None:
    bundle, raw = tmp_path / "bundle.pem", Path(certifi.where()).read_bytes()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    bundle.write_bytes(raw)
    check_bundle()
    bundle.write_bytes(edit(raw))
    why = f"PermanentError: REQUESTS_CA_BUNDLE points to {bundle}, which {end}"
    assert outcome(check_bundle) == why
