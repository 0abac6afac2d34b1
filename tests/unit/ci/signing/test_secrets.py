"""Secrets and serials: how a serial is read, and that neither reaches a log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.signing.masking import (
    SERIAL_FILE,
    Masker,
    list_secrets,
    mask_arguments,
    parse_serial,
    read_device_serial,
)
from provisioning.errors import UnfitError, UsageError

SERIALS = st.integers(1, 0xFFFFFFFF)


@given(SERIALS, st.sampled_from(["{:d}", "0x{:x}", "0X{:08X}", " {:012d}\n", "0x{:x} "]))
def test_a_serial_is_hexadecimal_or_decimal(number: int, form: str) -> None:
    assert parse_serial(form.format(number)) == hex(number)


@pytest.mark.parametrize(
    ("text", "part"),
    [(text, "32 bits") for text in ("0", "0x0", "-1", "0x100000000", "4294967296")]
    + [(text, "cannot be parsed") for text in ("", "beef", "0xbeeg", "1.0")],
)
def test_a_wrong_serial_is_refused_without_being_shown(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        parse_serial(text)
    assert len(text) < 4 or text not in str(caught.value)


@pytest.fixture
def adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put an adb on PATH that runs some lines of shell, or none."""

    def put(body: str) -> None:
        (tmp_path / "adb").unlink(missing_ok=True)
        if body:
            (tmp_path / "adb").write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / "adb").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if body else "/none")

    return put


def test_the_serial_is_the_line_of_adbs_output_that_is_a_number(adb: Callable[[str], None]) -> None:
    for output in ("12", "* daemon started\n  0x0C  \n"):
        adb(f"printf '{output}'")
        assert read_device_serial() == "0xc"
    command = f"shell cat {SERIAL_FILE}"
    adb(f'case "$*" in "{command}") echo 1 ;; "-s one {command}") echo 2 ;; esac')
    assert (read_device_serial(), read_device_serial("one")) == ("0x1", "0x2")


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("echo 1 serial", f"{SERIAL_FILE} on the device does not contain a number"),
        ("echo no devices found >&2; exit 1", "no devices found"),
        ("", "adb is not on PATH"),
    ],
)
def test_a_device_whose_serial_cannot_be_read_is_unfit(
    adb: Callable[[str], None], body: str, part: str
) -> None:
    adb(body)
    with pytest.raises(UnfitError, match=part):
        read_device_serial()


FORMS = ("{:#010x}", "{:#x}", "{:X}", "{:08X}", "{:d}", "testsig-{:#x}.so")


@given(SERIALS.filter(lambda number: number > 0xFFFFF), st.sampled_from(FORMS))
def test_every_form_of_a_serial_is_masked(number: int, form: str) -> None:
    mask = Masker(list_secrets({}, hex(number)))
    text = form.format(number)
    assert mask(f"for {text} done") in {"for *** done", "for testsig-***.so done"}


def test_values_of_secret_variables_and_options_are_masked() -> None:
    for name in ("SIGN_TOKEN", "DB_PASSWORD", "api_key", "MY_CLIENT_SECRET"):
        mask = Masker(list_secrets({name: "hunter22", "HOME": "/root"}))
        assert mask("said Hunter22 in /root") == "said *** in /root"
    words = "sign --password a --api-key=b -i c token d --out=e=f TOKEN=g --token x --secret= h"
    masked = "sign --password *** --api-key=*** -i c token d --out=e=f TOKEN=g --token *** "
    assert " ".join(mask_arguments(words.split())) == masked + "--secret=*** h"


BEGIN = "-----BEGIN RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("secrets", "text", "masked"),
    [
        (["1"], "1 of 12", "1 of 12"),  # short values are everywhere
        (["abcd", "abc"], "abcd abc", "*** abc"),
        (["abcd", "abcdefgh"], "abcdefgh", "***"),  # longer ones go first
        ([], "/out/testsig-0xDEADBEEF.so", "/out/testsig-***.so"),
        ([], f"a {BEGIN}\nxyz\n-----END RSA PRIVATE KEY----- b", "a *** b"),
        ([], f"a {BEGIN}\nxyz", "a ***"),
    ],
)
def test_secrets_and_private_keys_are_masked(secrets: list[str], text: str, masked: str) -> None:
    assert Masker(secrets)(text) == masked
