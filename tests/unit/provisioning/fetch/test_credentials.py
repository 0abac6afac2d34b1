"""Which headers go to which host, and what a helper may answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from provisioning.fetch import credentials
from provisioning.fetch.credentials import parse_tokens
from tests.build.fetch import outcome


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QNN_CI_BEARER_TOKENS", "QNN_CI_CREDENTIAL_HELPER"):
        monkeypatch.delenv(name, raising=False)


def find_headers(url: str) -> dict[str, str]:
    return credentials.find_headers(url, Progress())


TOKENS = (
    "host=one, host:8443=two 127.0.0.1=three\nlocalhost=four,\tother=five ::1=six"
    " localhost.host=seven 127.0.0.1.host=eight"
)


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("https://host/a", "one"),
        ("https://host:8443/a", "two"),
        ("https://sub.host/a", ""),
        ("http://host/a", ""),
        ("http://127.0.0.1:5/a", "three"),
        ("http://localhost/a", "four"),
        ("http://other/a", ""),
        ("https://other/a", "five"),
        ("http://localhost.host/a", ""),
    ],
)
def test_a_token_goes_to_its_host_alone(
    monkeypatch: pytest.MonkeyPatch, url: str, token: str
) -> None:
    assert find_headers(url) == {}
    monkeypatch.setenv("QNN_CI_BEARER_TOKENS", TOKENS)
    assert find_headers(url) == ({"Authorization": f"Bearer {token}"} if token else {})


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a=b=c", {"a": "b=c"}),
        *((text, None) for text in ("a", "a=", "=b", "a=b c", "a=\u00e9", "a=b\x7f")),
    ],
)
def test_malformed_bearer_token_entry_is_refused(text: str, tokens: dict[str, str] | None) -> None:
    if tokens is not None:
        assert parse_tokens(text) == tokens
        return
    with pytest.raises(UnfitError, match="QNN_CI_BEARER_TOKENS is malformed") as caught:
        parse_tokens(text)
    assert caught.value.why == "an entry is not HOST=TOKEN"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("QNN_CI_BEARER_TOKENS", "host=s3cret"), ("QNN_CI_CREDENTIAL_HELPER", "/s3cret/helper")],
)
def test_each_variable_is_used_with_one_warning_that_names_netrc(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setattr(credentials, "_ask_helper", lambda *_: {"X-One": "a"})
    monkeypatch.setattr(credentials, "_reported_variables", set())
    monkeypatch.setenv(variable, value)
    stream = io.StringIO()
    assert credentials.find_headers("http://host/a", Progress(stream)) == {}
    assert stream.getvalue() == ""
    for _ in range(2):
        assert credentials.find_headers("https://host/a", Progress(stream))
    message = " ".join(stream.getvalue().split())
    assert message.count(f"warning: {variable} ") == 1
    assert "~/.netrc" in message
    assert "s3cret" not in message


Make = Callable[[str], Path]


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    def make(script: str) -> Path:
        path = tmp_path / "helper"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("QNN_CI_CREDENTIAL_HELPER", str(path))
        return path

    return make


def test_a_credential_helper_is_called_once_and_gets_no_secrets_of_the_url(
    helper: Make, tmp_path: Path
) -> None:
    questions = tmp_path / "asked"
    answer = '{"headers": {"X-One": ["a", "b ~"], "X-Two": ["c"]}}'
    helper(f"cat >> {questions}; echo \"$@\" >> {questions}; echo '{answer}'")
    for _ in range(2):
        headers = find_headers("https://me:secret@host:99/a/b?sig=secret")
        assert headers == {"X-One": "a, b ~", "X-Two": "c"}
    assert questions.read_text() == json.dumps({"uri": "https://host:99/a/b"}) + "get\n"
    assert find_headers("http://host/a") == {}


def test_a_credential_helper_may_return_nothing_and_a_token_takes_precedence(
    helper: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper("echo '{}'")
    assert find_headers("https://host/a") == {}
    helper("exit 1")
    monkeypatch.setenv("QNN_CI_BEARER_TOKENS", "host=one")
    assert find_headers("https://host/a") == {"Authorization": "Bearer one"}


FLOOD = "it printed more than 4096 characters"
OTHER = 'it printed something other than {"headers": {NAME: [VALUE]}}'
CHARACTERS = "one of its headers has characters that HTTP does not allow"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "helper"),
        ("exec sleep 600", "did not end"),
        ("yes ''", FLOOD),
        ("echo no json", OTHER),
        ("""echo '{"headers": {"a": [5]}}'""", OTHER),
        (r"""echo '{"headers": {"a": ["x\\ny"]}}'""", CHARACTERS),
        (r"""echo '{"headers": {"a\\u0000": ["x"]}}'""", CHARACTERS),
    ],
)
def test_a_failing_credential_helper_is_an_error_with_the_reason(
    helper: Make, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setattr(credentials, "MAX_CHARACTERS", 4096)
    if "sleep" in script:
        monkeypatch.setattr(credentials, "HELPER_TIMEOUT_S", 0.2)
    path = helper(script)
    lines = str(outcome(lambda: find_headers("https://host/a"))).splitlines()
    assert lines[0] == "UnfitError: the credential helper failed"
    assert why in lines[1]
    assert lines[2] == (
        f"  fix: check what `{path} get` prints for https://host/a, "
        "or unset QNN_CI_CREDENTIAL_HELPER"
    )
