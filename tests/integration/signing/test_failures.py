"""A signer that fails is named, and the output directory is as it was; what is accepted, and when.

Each way to fail is in tests/unit/ci/signing (test_signer, test_run).
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ci.signing.signer import Failure
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify

Snapshot = Callable[[Path], dict[str, bytes]]


@pytest.mark.parametrize(
    ("how", "failure", "existing"),
    [("exit 1", Failure.EXITED, False), ("wrong hash", Failure.WRONG_HASH, True)],
)
def test_a_failed_signing_is_named_and_changes_no_file(
    verb,
    libraries,
    take_snapshot: Snapshot,
    tmp_path: Path,
    how: str,
    failure: Failure,
    existing: bool,
) -> None:
    out = tmp_path / "signed"
    if existing:
        out.mkdir()
        (out / "libold.so").write_bytes(b"old")
        (out / "signing.json").write_text("{}")
    before = take_snapshot(tmp_path)
    ended = verb.run(
        "sign", "--json", "--force", "--out", out, *libraries,
        STAND_IN_FAILS=how, STAND_IN_FAILS_ON="second",
    )  # fmt: skip
    assert ended.returncode == 5, ended.stderr
    error = json.loads(ended.stdout)
    assert error["what"] == f"libsecond.so: {failure.value}"
    assert error["why"]
    assert "Traceback" not in ended.stderr
    assert take_snapshot(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == (
        ["in", "signed"] if existing else ["in"]
    )


def test_unrecognised_signature_fails_unless_it_is_accepted(
    verb, libraries, tmp_path: Path
) -> None:
    authority = ec.generate_private_key(ec.SECP256R1())
    leaf = ed25519.Ed25519PrivateKey.generate()
    chain = certify(LEAF_NAME, leaf, ROOT_NAME, authority)
    chain += certify(ROOT_NAME, authority, ROOT_NAME, authority)
    keys = str(tmp_path / "keys")
    Path(keys).mkdir()
    shutil.copy(Path(verb.environment["STAND_IN_KEYS"]) / "valid.json", keys)
    Path(keys, "valid.der").write_bytes(chain)
    words = ("sign", "--out", "signed", *libraries)
    ended = verb.run(*words, STAND_IN_KEYS=keys)
    assert ended.returncode == 5
    assert Failure.UNRECOGNISED.value in ended.stderr
    assert "pass --accept-unrecognised" in " ".join(ended.stderr.split())
    assert not (tmp_path / "signed").exists()
    assert verb.run(*words, "--accept-unrecognised", STAND_IN_KEYS=keys).returncode == 0
    assert verb.run("sign", "--verify", "signed").returncode == 1
    assert verb.run("sign", "--verify", "--accept-unrecognised", "signed").returncode == 0
    unsigned = ("--expect", "unsigned", "--accept-unrecognised")
    assert verb.run("sign", "--verify", *unsigned, "signed").returncode == 1


def test_verify_signature_at_a_date_judges_certificates_at_that_date(verb, libraries) -> None:
    assert verb.run("sign", "--out", "signed", *libraries).returncode == 0
    assert verb.run("sign", "--verify", "signed").returncode == 0
    today = dt.datetime.now(dt.timezone.utc)
    for date, code in ((today.date(), 0), ("2020-01-01", 1), ("2020-01-01T00:00:00+02:00", 1)):
        assert verb.run("sign", "--verify", "--at", str(date), "signed").returncode == code
    wrong = verb.run("sign", "--verify", "--at", "yesterday", "signed")
    assert wrong.returncode == 2
    assert "'yesterday' is not a date such as 2026-11-20" in wrong.stderr


def test_one_bad_file_of_two_fails_the_verification(verb, libraries, tmp_path: Path) -> None:
    """A good file and an unsigned one, and a record that does not match."""
    assert verb.run("sign", "--out", "signed", *libraries).returncode == 0
    first, second = sorted((tmp_path / "signed").glob("*.so"))
    assert verb.run("sign", "--verify", first, second).returncode == 0
    assert verb.run("sign", "--verify", first, libraries[0]).returncode == 1
    unsigned = ("sign", "--verify", "--expect", "unsigned", "--accept-unrecognised")
    assert verb.run(*unsigned, *libraries).returncode == 0
    assert verb.run(*unsigned, first).returncode == 1
    (tmp_path / "signed" / "more.so").write_bytes(first.read_bytes())
    ended = verb.run("sign", "--verify", "signed")
    assert ended.returncode == 1
    assert "wrong: more.so is not in signing.json" in ended.stdout
