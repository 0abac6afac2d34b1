"""One server on loopback for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stand_ins import bad_server
from tests.stand_ins.bad_server import BadServer


@pytest.fixture(scope="session")
def only_server() -> Iterator[BadServer]:
    with bad_server.running() as server:
        yield server


@pytest.fixture
def server(only_server: BadServer, monkeypatch: pytest.MonkeyPatch) -> BadServer:
    """As new; and the machine's proxies, authorities and credentials are not used."""
    for name in (
        *("http_proxy", "HTTP_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("QNN_CI_BEARER_TOKENS", "QNN_CI_CREDENTIAL_HELPER"),
    ):
        monkeypatch.delenv(name, raising=False)
    only_server.files.clear()
    only_server.faults.clear()
    only_server.requests.clear()
    only_server.busy = 0
    return only_server
