"""Turn errors of requests, urllib3, ssl and sockets into TransientError or PermanentError with
plain messages.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning.fetch.transfer import PermanentError, TransientError, redact_url

BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def check_bundle() -> None:
    """Raise PermanentError if REQUESTS_CA_BUNDLE or, if that is not set, CURL_CA_BUNDLE points to a
    missing file, or to a file without certificates or with a damaged one.
    """
    name = next((one for one in BUNDLES if os.environ.get(one)), "")
    if not name:
        return
    path = Path(os.environ[name])
    if not path.exists():
        raise PermanentError(f"{name} points to {path}, which does not exist")
    if not path.is_dir():
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError as error:
            empty = error.reason == "NO_CERTIFICATE_OR_CRL_FOUND"
            has = "contains no certificates" if empty else "contains a damaged certificate"
            raise PermanentError(f"{name} points to {path}, which {has}") from error
        except OSError as error:
            why = error.strerror
            raise PermanentError(f"{name} points to {path}, which cannot be read: {why}") from error


@contextmanager
def explain_failures(url: str) -> Iterator[None]:
    """Turn errors of requests, urllib3 and sockets in the block into TransientError or
    PermanentError.
    """
    import requests
    import urllib3

    try:
        yield
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        if isinstance(error, requests.exceptions.InvalidProxyURL) or "SOCKS" in str(error):
            why = "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY is not the URL of an HTTP proxy"
            raise PermanentError(why) from error
        raise PermanentError(f"{redact_url(url)} is not a URL that can be fetched") from error
    except requests.exceptions.MissingSchema as error:
        raise PermanentError(f"{redact_url(url)} has no scheme") from error
    except requests.exceptions.InvalidHeader as error:
        raise PermanentError("a request header has characters that HTTP does not allow") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise _classify(error) from error
    except (ValueError, http.client.HTTPException) as error:
        raise TransientError(f"the response is not HTTP ({type(error).__name__})") from error


def _classify(error: BaseException) -> TransientError | PermanentError:
    import requests

    chain = list(_causes(error))
    if found := _classify_tls(chain):
        return found
    if isinstance(error, requests.exceptions.ProxyError):
        return _classify_proxy(chain)
    for kind, why in _transient_kinds():
        if any(isinstance(cause, kind) for cause in chain):
            return TransientError(why)
    return TransientError(f"the connection failed ({type(chain[-1]).__name__})")


def _classify_tls(chain: list[BaseException]) -> TransientError | PermanentError | None:
    errors = [cause for cause in chain if isinstance(cause, ssl.SSLError)]
    for cause in errors:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return PermanentError(
                f"its certificate is not trusted: {cause.verify_message} "
                "(REQUESTS_CA_BUNDLE can point to other authorities)"
            )
        if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return TransientError("the server closed the connection during the TLS handshake")
    if errors:
        return PermanentError(
            "TLS failed: the server and this machine may have no protocol in common"
        )
    return None


def _classify_proxy(chain: list[BaseException]) -> TransientError | PermanentError:
    said = " ".join(str(cause) for cause in chain)
    if found := re.search(r"Tunnel connection failed: (\d{3})", said):
        status = int(found[1])
        if status == 407:
            return PermanentError(
                "the proxy needs credentials (HTTP 407); set HTTPS_PROXY=http://USER:PASSWORD@HOST"
            )
        if status < 500:
            return PermanentError(f"the proxy refuses this host (HTTP {status})")
        return TransientError(f"the proxy failed (HTTP {status})")
    return TransientError("the proxy cannot be reached; check HTTP_PROXY and HTTPS_PROXY")


def _transient_kinds() -> list[tuple[type[BaseException], str]]:
    import urllib3

    return [
        (socket.gaierror, "the host's name cannot be resolved"),
        (ConnectionRefusedError, "the connection was refused"),
        (urllib3.exceptions.IncompleteRead, "the connection closed before the end of the body"),
        (http.client.IncompleteRead, "the connection closed before the end of the body"),
        (http.client.RemoteDisconnected, "the server closed the connection without a response"),
        (ConnectionResetError, "the connection was reset"),
        (TimeoutError, "no data arrived within the time limit"),
        (urllib3.exceptions.TimeoutError, "no data arrived within the time limit"),
    ]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    stack: list[BaseException] = [error]
    while stack:
        at = stack.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        yield at
        inner = [at.__cause__, at.__context__, getattr(at, "reason", None), *at.args]
        stack.extend(item for item in inner if isinstance(item, BaseException))
