"""Which headers go to which host, and what a helper may answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioning.errors import UnfitError
from provisioning.fetch import credentials
from provisioning.fetch.credentials import find_headers, parse_tokens


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QNN_CI_BEARER_TOKENS", "QNN_CI_CREDENTIAL_HELPER"):
        monkeypatch.delenv(name, raising=False)


TOKENS = (
    "host=one, host:8443=two 127.0.0.1=three\nlocalhost=four,\tother=five ::1=six"
    " localhost.host=seven 127.0.0.1.host=eight"
)


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("https://host/a", "one"),
        ("https://host:8443/a", "two"),
        ("https://host:99/a", "one"),
        ("https://me:x@host:8443/a", "two"),
        ("https://HOST/a", "one"),
        ("https://sub.host/a", ""),
        ("https://hos/a", ""),
        ("http://host/a", ""),
        ("http://127.0.0.1:5/a", "three"),
        ("http://localhost/a", "four"),
        ("http://[::1]:8080/a", "six"),
        ("http://[::2]/a", ""),
        ("http://other/a", ""),
        ("https://other/a", "five"),
        ("http:///a", ""),
        ("http://localhost.host/a", ""),
        ("http://127.0.0.1.host/a", ""),
    ],
)
def test_a_token_goes_to_its_host_alone(
    monkeypatch: pytest.MonkeyPatch, url: str, token: str
) -> None:
    assert find_headers(url) == {}
    monkeypatch.setenv("QNN_CI_BEARER_TOKENS", TOKENS)
    assert find_headers(url) == ({"Authorization": f"Bearer {token}"} if token else {})


def test_tokens_are_words() -> None:
    assert parse_tokens("a=b=c") == {"a": "b=c"}
    assert parse_tokens("  a=!,b=~  ") == {"a": "!", "b": "~"}
    for text in ("a", "a=", "=b", "a=b c", "a=\u00e9", "a=b\x7f"):
        with pytest.raises(UnfitError) as caught:
            parse_tokens(text)
        assert caught.value.what == "QNN_CI_BEARER_TOKENS is malformed"
        assert caught.value.why == "an entry is not HOST=TOKEN"


def make_helper(monkeypatch: pytest.MonkeyPatch, directory: Path, script: str) -> Path:
    path = directory / "helper"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("QNN_CI_CREDENTIAL_HELPER", str(path))
    return path


def test_a_helper_is_asked_once_and_told_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = '{"headers": {"X-One": ["a", "b ~"], "X-Two": ["c"]}}'
    make_helper(
        monkeypatch,
        tmp_path,
        f"cat >> {tmp_path}/asked; echo \"$@\" >> {tmp_path}/asked; echo '{answer}'",
    )
    for _ in range(2):
        found = find_headers("https://me:secret@host:99/a/b?sig=secret")
        assert found == {"X-One": "a, b ~", "X-Two": "c"}
    (asked,) = [(tmp_path / "asked").read_text()]
    assert asked == json.dumps({"uri": "https://host:99/a/b"}) + "get\n"
    assert find_headers("http://host/a") == {}


def test_a_helper_has_a_limited_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(credentials, "HELPER_TIMEOUT_S", 0.2)
    make_helper(monkeypatch, tmp_path, "exec sleep 60")
    with pytest.raises(UnfitError, match="the credential helper failed") as caught:
        find_headers("https://host/a")
    assert "did not end" in caught.value.why


def test_a_helper_may_print_a_long_answer_and_any_messages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    value = "x" * (credentials.MAX_CHARACTERS - 1000)
    (tmp_path / "answer").write_text(f'{{"headers": {{"a": ["{value}"]}}}}\n')
    script = f"seq 300000 >&2; cat {tmp_path}/answer"
    make_helper(monkeypatch, tmp_path, script)
    assert find_headers("https://host/a") == {"a": value}


def test_a_token_comes_before_the_helper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_helper(monkeypatch, tmp_path, "exit 1")
    monkeypatch.setenv("QNN_CI_BEARER_TOKENS", "host=one")
    assert find_headers("https://host/a") == {"Authorization": "Bearer one"}


FLOOD = "it printed more than 1048576 characters"
OTHER = 'it printed something other than {"headers": {NAME: [VALUE]}}'


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "helper"),
        ("yes", FLOOD),
        ("yes ''", FLOOD),
        ("head -c 1048576 /dev/zero; echo", FLOOD),
        ("echo no json", OTHER),
        ("echo '[]'", OTHER),
        ("""echo '{"headers": 5}'""", OTHER),
        ("""echo '{"headers": {"a": 5}}'""", OTHER),
        ("""echo '{"headers": {"a": [5]}}'""", OTHER),
        (
            r"""echo '{"headers": {"a": ["x\\ny"]}}'""",
            "one of its headers has characters that HTTP does not allow",
        ),
        (
            r"""echo '{"headers": {"a\\u0000": ["x"]}}'""",
            "one of its headers has characters that HTTP does not allow",
        ),
    ],
)
def test_a_helper_that_fails_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, why: str
) -> None:
    path = make_helper(monkeypatch, tmp_path, script)
    with pytest.raises(UnfitError) as caught:
        find_headers("https://host/a")
    assert caught.value.what == "the credential helper failed"
    assert caught.value.why == why or (why == "helper" and why in caught.value.why)
    assert caught.value.fix == (
        f"check what `{path} get` prints for https://host/a, or unset QNN_CI_CREDENTIAL_HELPER"
    )


def test_a_helper_may_have_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_helper(monkeypatch, tmp_path, "echo '{}'")
    assert find_headers("https://host/a") == {}
