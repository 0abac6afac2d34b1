"""The downloader against a real server that misbehaves: the right action, the right words."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import ipaddress
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.fetch.transfer import TransferPolicy
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

DATA = random.Random(7).randbytes(3_000_000)
PIN = Pin(len(DATA), hashlib.sha256(DATA).hexdigest())
PATIENT = TransferPolicy(attempts=3, backoff_s=0.01, read_timeout_s=600, connect_timeout_s=600)
HALF = len(DATA) // 2


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad.running() as server:
        server.files["a.zip"] = DATA
        yield server


def fetch(
    url: str | list[str], directory: Path, pin: Pin = PIN, policy: TransferPolicy = PATIENT
) -> tuple[str, str]:
    """How a fetch ended (ok, DownloadError, ...) and all that it said."""
    stream = io.StringIO()
    urls = [url] if isinstance(url, str) else url
    target = directory / "a.zip"
    try:
        digest = fetch_file(urls, target, pin, Progress(stream), policy=policy)
    except QnnCiError as error:
        assert not target.exists()
        return type(error).__name__, f"{stream.getvalue()}{error}"
    assert target.read_bytes() == DATA
    assert digest == PIN.sha256
    assert [path.name for path in directory.iterdir()] == ["a.zip"]
    return "ok", stream.getvalue()


# What each status asks for is in test_transfer; where a body begins, whether it is whole, and what
# no other try mends, in test_download. Faults that another try mends: what is said, and the most
# body bytes that may go out when what came before is used again (in units of the file). Those that
# end at a limit of time are in tests/stress.
MENDED: dict[str, tuple[list[Fault], str, float]] = {
    "closed at once": ([bad.cut(0.0)], "closed before the end", 1.01),
    "no length, closed in the middle": ([bad.cut(0.5, sized=False)], "body ended after", 1.01),
    "reset in the middle": ([bad.cut(0.5, hard=True)], "trying again", 1.6),
    "chunked, cut": ([bad.chunked(0.5)], "connection", 1.6),
}


@pytest.mark.parametrize("name", MENDED)
def test_a_transient_download_fault_succeeds_on_a_retry(
    server: BadServer, tmp_path: Path, name: str
) -> None:
    faults, words, most = MENDED[name]
    server.faults["a.zip"] = list(faults)
    ended, messages = fetch(server.url("a.zip"), tmp_path)
    assert ended == "ok", messages
    assert words in messages
    assert server.sent_bytes <= most * len(DATA)
    assert len(server.requests) <= len(faults) + 1


def test_an_unreachable_proxy_is_reported_without_its_password(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    ended, messages = fetch(server.url("a.zip"), tmp_path)
    assert (ended, "proxy cannot be reached" in messages) == ("DownloadError", True)
    assert "secret" not in messages


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and certificate for 127.0.0.1 that nobody trusts; the certificate alone in .crt."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.timezone.utc)
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    certificate_of_server = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    public = certificate_of_server.public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + public)
    Path(f"{path}.crt").write_bytes(public)
    return path


def test_an_untrusted_certificate_is_refused_at_once(certificate: Path, tmp_path: Path) -> None:
    with bad.running(certificate) as server:
        server.files["a.zip"] = DATA
        ended, messages = fetch(server.url("a.zip"), tmp_path)
    assert ended == "DownloadError"
    assert "certificate is not trusted" in messages
    assert "REQUESTS_CA_BUNDLE" in messages
    assert server.requests == []


def test_a_trusted_certificate_is_accepted_and_a_redirect_to_http_refused(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", f"{certificate}.crt")
    with bad.running(certificate) as server, bad.running() as plain:
        plain.files["a.zip"] = server.files["a.zip"] = DATA
        server.faults["down.zip"] = [bad.redirect(plain.url("a.zip"))]
        ended, messages = fetch(server.url("down.zip"), tmp_path)
        assert (ended, "from https to http" in messages) == ("DownloadError", True)
        plain.faults["back.zip"] = [bad.redirect(server.url("a.zip"))]
        server.faults["round.zip"] = [bad.redirect(plain.url("back.zip"))]
        ended, messages = fetch(server.url("round.zip"), tmp_path)
        assert (ended, "from https to http" in messages) == ("DownloadError", True)
        assert plain.requests == []
        assert fetch(server.url("a.zip"), tmp_path)[0] == "ok"


def test_credentials_are_used_and_never_shown(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret1\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    authorizations: list[str] = []

    def check(handler: bad.Handler, data: bytes) -> None:
        authorizations.append(handler.headers.get("Authorization", ""))
        bad.status(403)(handler, data)

    server.faults["a.zip"] = [check, check]
    url = server.url("a.zip").replace("//", "//me:secret2@") + "?token=secret3"
    messages = fetch([server.url("a.zip"), url], tmp_path)[1]
    assert all(value.startswith("Basic ") for value in authorizations)
    assert len(authorizations) == 2
    assert "secret" not in messages


LOGIN = "Basic bWU6czNjcmV0"  # me:s3cret
OTHER = "Basic eW91OncwcmQ="  # you:w0rd
OF_REDIRECT = "Basic MTI3LjAuMC4xOg=="  # 127.0.0.1: in the URL of the redirect


@pytest.mark.parametrize(
    ("netrc", "login_of_other"),
    [
        ("machine 127.0.0.1 login me password s3cret\n", OF_REDIRECT),
        ("default login me password s3cret\n", ""),
        ("machine localhost login you password w0rd\ndefault login me password s3cret\n", OTHER),
    ],
    # Without passwords: pytest-xdist names its processes after the test that runs.
    ids=("machine", "default", "both"),
)
def test_a_login_of_netrc_goes_to_its_host_alone_and_to_no_other_process(
    server: BadServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    netrc: str,
    login_of_other: str,
) -> None:
    (tmp_path / "netrc").write_text(netrc)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    logins: list[tuple[str, str]] = []
    arguments: list[bytes] = []

    def note_login(handler: bad.Handler) -> None:
        host = handler.headers["Host"].partition(":")[0]
        logins.append((host, handler.headers.get("Authorization", "")))

    def serve(handler: bad.Handler, _: bytes) -> None:
        note_login(handler)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # the process has ended
                arguments.append(path.read_bytes())
        bad.whole(DATA)(handler, DATA)

    def move(handler: bad.Handler, data: bytes) -> None:
        note_login(handler)
        # Versions of requests before 2.32.4 took the name before the second colon for the host.
        other_host = server.url("b.zip").replace("//127.0.0.1", "//127.0.0.1:@localhost")
        bad.redirect(other_host)(handler, data)

    target = tmp_path / "out"
    target.mkdir()
    server.faults = {"a.zip": [serve], "moved.zip": [move], "b.zip": [serve]}
    for name in ("a.zip", "moved.zip"):
        ended, messages = fetch(server.url(name), target)
        assert ended == "ok", messages
        assert "s3cret" not in messages
        (target / "a.zip").unlink()
    first_login = ("127.0.0.1", LOGIN)
    assert logins == [first_login, first_login, ("localhost", login_of_other)]
    assert arguments
    assert not any(secret in text for text in arguments for secret in (b"s3cret", LOGIN.encode()))


def test_an_interrupted_download_resumes_its_part_file(server: BadServer, tmp_path: Path) -> None:
    class Tired(Progress):
        @contextlib.contextmanager
        def bar(self, label: str, total: float = 0, unit: str = "B") -> Iterator[object]:  # type: ignore[override]
            class Bar:
                done = 0.0

                def advance(self, amount: float) -> None:
                    self.done += amount
                    if self.done > HALF:
                        raise KeyboardInterrupt

            yield Bar()

    with pytest.raises(KeyboardInterrupt):
        fetch_file([server.url("a.zip")], tmp_path / "a.zip", PIN, Tired(), policy=PATIENT)
    assert fetch(server.url("a.zip"), tmp_path)[0] == "ok"
    assert int(server.requests[-1].range[6:-1]) > HALF
