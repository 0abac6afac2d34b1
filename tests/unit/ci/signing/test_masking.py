"""Secrets and serials do not reach a log."""

from __future__ import annotations

import pytest

from ci.signing.device import parse_serial
from ci.signing.masking import Masker, list_secrets, mask_arguments
from provisioning.errors import UsageError


@pytest.mark.parametrize(
    "text",
    ["0x0badcafe", "0xbadcafe", "BADCAFE", "0BADCAFE", "195939070", "testsig-0xbadcafe.so"],
)
def test_every_form_of_a_serial_is_masked(text: str) -> None:
    mask = Masker(list_secrets({}, "0xbadcafe"))
    assert mask(f"for {text} done") in {"for *** done", "for testsig-***.so done"}


@pytest.mark.parametrize("name", ["SIGN_TOKEN", "DB_PASSWORD", "api_key", "MY_CLIENT_SECRET"])
def test_values_of_secret_variables_are_masked(name: str) -> None:
    mask = Masker(list_secrets({name: "hunter22", "HOME": "/root"}))
    assert mask("said Hunter22 in /root") == "said *** in /root"


def test_short_values_are_not_masked_since_they_are_everywhere() -> None:
    assert Masker(list_secrets({"A_TOKEN": "1"}))("1 of 12") == "1 of 12"


def test_longer_secrets_go_first() -> None:
    assert Masker(["abcd", "abcdefgh"])("abcdefgh") == "***"


def test_private_keys_are_masked_even_when_cut_off() -> None:
    begin = "-----BEGIN RSA PRIVATE KEY-----"
    assert Masker()(f"a {begin}\nxyz\n-----END RSA PRIVATE KEY----- b") == "a *** b"
    assert Masker()(f"a {begin}\nxyz") == "a ***"


def test_values_of_secret_options_are_masked() -> None:
    words = ["sign", "--password", "a", "--api-key=b", "-i", "c", "token"]
    assert list(mask_arguments(words)) == [
        "sign", "--password", "***", "--api-key=***", "-i", "c", "token",
    ]  # fmt: skip


def test_test_signature_of_any_device_is_masked() -> None:
    assert Masker()("/out/testsig-0xDEADBEEF.so") == "/out/testsig-***.so"


@pytest.mark.parametrize(
    ("text", "serial"),
    [("0x0BADCAFE", "0xbadcafe"), (" 3735928559\n", "0xdeadbeef"), ("0042", "0x2a")],
)
def test_serial_is_taken_in_hexadecimal_and_decimal(text: str, serial: str) -> None:
    assert parse_serial(text) == serial


@pytest.mark.parametrize("text", ["", "hello", "0", "-1", "0x1ffffffff"])
def test_wrong_serial_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_serial(text)
    assert len(text) < 3 or text not in str(caught.value)
