"""Small decisions of signing, each at its limit: inputs, names, words, the order of failures."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from ci.signing.device import parse_serial, read_serial
from ci.signing.inputs import list_mixed_notes, read_inputs
from ci.signing.interpreter import Interpreter, is_fit
from ci.signing.masking import Masker
from ci.signing.policy import SigningPolicy, read_signing_policy
from ci.signing.proof.verdict import Kind, Verification
from ci.signing.selection import Selection, Wanted, list_wanted, read_place
from ci.signing.sign import require_good
from ci.signing.signer import (
    DROPPED,
    Failure,
    Signer,
    SignerError,
    find_output,
    is_named,
    run_signer,
)
from ci.verbs.verify_signature import parse_date
from provisioning.errors import UnfitError, UsageError
from tests.stand_ins.dsp_toolchains import make_library

BUILDS = ("v2.49.40.260810104044", "v2.48.40.260601000000")


@pytest.fixture
def policy() -> SigningPolicy:
    return read_signing_policy()


def read(tmp_path: Path, policy: SigningPolicy, *libraries: tuple[str, int, str]) -> list[str]:
    """Read libraries of a name, a Hexagon version and a build; the names and what is wrong."""
    wanted = []
    for name, hexagon, build in libraries:
        make_library(tmp_path / name, hexagon, build)
        wanted.append(Wanted(tmp_path / name, name, ""))
    try:
        found = read_inputs(wanted, Selection(), policy, None)
    except UnfitError as error:
        return sorted(error.why.replace(f"{tmp_path}/", "").split("\n       "))
    return [*(one.wanted.name for one in found), *list_mixed_notes(found)]


def test_third_library_of_another_build_is_seen(tmp_path: Path, policy: SigningPolicy) -> None:
    good = [("a.so", 0x79, BUILDS[0]), ("b.so", 0x79, ""), ("c.so", 0x79, BUILDS[0])]
    assert read(tmp_path, policy, *good) == ["a.so", "b.so", "c.so"]
    wrong = read(tmp_path, policy, *good, ("d.so", 0x79, BUILDS[1]))
    assert wrong[-1] == f"d.so: is from QNN {BUILDS[1]}, others are not"


@pytest.mark.parametrize(("hexagon", "notes"), [(0x75, 0), (0x79, 0), (0x81, 1)])
def test_only_a_newer_hexagon_than_lpai_is_noted(
    tmp_path: Path, policy: SigningPolicy, hexagon: int, notes: int
) -> None:
    libraries = [("libQnnLpai.so", 0x79, ""), ("libc++.so.1", hexagon, "")]
    assert len(read(tmp_path, policy, *libraries)) == 2 + notes
    assert len(read(tmp_path, policy, ("a.so", 0x79, ""), ("b.so", hexagon, ""))) == 2


def test_place_nearest_to_the_file_counts() -> None:
    assert read_place(Path("hexagon-v75/unsigned/hexagon-v79/unsigned/lib.so")) == "v79"


def test_build_that_holds_two_of_a_name_is_not_guessed(
    tmp_path: Path, policy: SigningPolicy
) -> None:
    for folder in ("one", "two"):
        make_library(tmp_path / folder / "libqnn_executorch_backend.so", 0x81)
    selection = Selection(lpai_arch="v6", htp_arch="v81", direct_mode=True)
    roots = {"build": tmp_path, "qnn_sdk": None, "hexagon_tools": None}
    with pytest.raises(UnfitError) as caught:
        list_wanted(selection, policy, roots)
    assert "backends/qualcomm/libqnn_executorch_backend.so" in caught.value.why
    (tmp_path / "two/libqnn_executorch_backend.so").unlink()
    with pytest.raises(UnfitError) as caught:
        list_wanted(selection, policy, roots)
    assert "libqnn_executorch_backend.so" not in caught.value.why


@pytest.mark.parametrize(
    ("name", "wanted", "same"),
    [
        ("lib.so", "lib.so", True),
        ("lib.so", "libb.so", False),
        ("testsig-0x00adcafe.so", "testsig-0xadcafe.so", True),
        ("testsig-0xADCAFE.so", "testsig-0xadcafe.so", True),
        ("testsig-0xadcaff.so", "testsig-0xadcafe.so", False),
        ("lib.so", "testsig-0xadcafe.so", False),
        ("testsig-0xadcafe.so", "lib.so", False),
    ],
)
def test_name_of_an_output(name: str, wanted: str, same: bool) -> None:
    assert is_named(name, wanted) is same


@pytest.mark.parametrize(
    ("name", "serial"),
    [
        ("testsig-0x1.so", 1),
        ("testsig-0x0badcafe.so", 0x0BADCAFE),
        ("testsig-0x123456789.so", None),
        ("testsig-0x.so", None),
        ("testsig-0x1.so.bak", None),
    ],
)
def test_serial_in_a_name(name: str, serial: int | None) -> None:
    assert read_serial(name) == serial


@pytest.mark.parametrize(("text", "good"), [("1", True), ("0", False), ("0x0", False)])
@pytest.mark.parametrize(("largest", "fits"), [("4294967295", True), ("4294967296", False)])
def test_serials_are_of_32_bits_and_not_zero(
    text: str, good: bool, largest: str, fits: bool
) -> None:
    for word, expected in ((text, good), (largest, fits)):
        if expected:
            assert parse_serial(word) == hex(int(word, 0))
        else:
            with pytest.raises(UsageError, match="32 bits"):
                parse_serial(word)


def test_link_in_the_output_is_not_an_output(tmp_path: Path) -> None:
    source, output = tmp_path / "in" / "lib.so", tmp_path / "out"
    for folder in (source.parent, output):
        folder.mkdir()
    source.write_bytes(b"unsigned")
    (output / "lib.so").symlink_to(source)
    with pytest.raises(SignerError) as caught:
        find_output(tmp_path, output, source, b"unsigned", Masker())
    assert caught.value.failure is Failure.NO_OUTPUT
    (output / "lib.so").unlink()
    (output / "lib.so").write_bytes(b"signed")
    assert find_output(tmp_path, output, source, b"unsigned", Masker()) == output / "lib.so"


@pytest.mark.parametrize(
    ("kinds", "failure"),
    [
        ((Kind.HASH, Kind.TRUNCATED), Failure.TRUNCATED),
        ((Kind.HASH, Kind.DATE), Failure.EXPIRED),
        ((Kind.HASH, Kind.DIFFERENT), Failure.ALTERED),
        ((Kind.SIGNATURE, Kind.HASH), Failure.WRONG_HASH),
        ((Kind.SIGNATURE, Kind.CHAIN), Failure.INVALID),
    ],
)
def test_most_telling_fault_names_the_failure(kinds: tuple[Kind, ...], failure: Failure) -> None:
    report = Verification(1, signed=True)
    for kind in kinds:
        report.add(kind, kind.value)
    with pytest.raises(SignerError) as caught:
        require_good(report, "lib.so", accept=True)
    assert caught.value.failure is failure


def test_short_secret_of_four_letters_is_masked() -> None:
    assert Masker(["abcd", "abc"])("abcd abc") == "*** abc"


@pytest.mark.parametrize(
    ("version", "fit"), [("3.11.99", True), ("3.12", False), ("3.12.0", False), ("3.13.1", False)]
)
def test_signer_s_python_is_below_its_limit(policy: SigningPolicy, version: str, fit: bool) -> None:
    assert is_fit(Interpreter(Path("python"), version), policy.python) is fit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20", "2026-11-20T00:00:00+00:00"),
        ("2026-11-20T12:00:00", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20T12:00:00+02:00", "2026-11-20T12:00:00+02:00"),
    ],
)
def test_date_is_utc_wherever_one_is(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert parse_date(text) == datetime.fromisoformat(expected)
        assert parse_date(text).utcoffset() == datetime.fromisoformat(expected).utcoffset()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_signer_gets_our_environment_without_another_python_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*DROPPED, "SIGNING_SERVER"):
        monkeypatch.setenv(name, str(tmp_path))
    names = {"SIGNING_SERVER", *DROPPED}
    program = f"import os; print(sorted(set(os.environ) & {names}))"
    words = (sys.executable, "-I", "-c", program)
    said = run_signer(Signer(words, 60.0), words, tmp_path, "lib.so", Masker())
    assert said.strip() == "['SIGNING_SERVER']"
