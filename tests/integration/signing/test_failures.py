"""Each way in which a signer fails is caught by its name, and the output directory is as it was."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ci.signing.signer import Failure
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify

Snapshot = Callable[[Path], dict[str, bytes]]
FAILURES = {
    "exit 1": Failure.EXITED,
    "no output": Failure.NO_OUTPUT,
    "truncated": Failure.TRUNCATED,
    "unchanged": Failure.UNCHANGED,
    "wrong hash": Failure.WRONG_HASH,
    "expired": Failure.EXPIRED,
    "hang": Failure.HUNG,
    "prompt": Failure.PROMPT,
    "elsewhere": Failure.ELSEWHERE,
    "in place": Failure.ELSEWHERE,
    "other bytes": Failure.ALTERED,
}


@pytest.mark.parametrize(
    ("how", "existing"), list(zip(FAILURES, itertools.cycle([False, True]), strict=False))
)
def test_failure_is_named_and_leaves_no_trace(
    verb, libraries, take_snapshot: Snapshot, tmp_path: Path, how: str, existing: bool
) -> None:
    out = tmp_path / "signed"
    if existing:
        out.mkdir()
        (out / "libold.so").write_bytes(b"old")
    before = take_snapshot(tmp_path)
    limit_s = "2" if FAILURES[how] in (Failure.HUNG, Failure.PROMPT) else "60"
    ended = verb.run(
        "sign", "--json", "--force", "--timeout", limit_s, "--out", out, *libraries,
        STAND_IN_FAILS=how, STAND_IN_FAILS_ON="second",
    )  # fmt: skip
    assert ended.returncode == 5, ended.stderr
    error = json.loads(ended.stdout)
    assert error["what"] == f"{FAILURES[how].value}: libsecond.so"
    assert error["why"]
    assert "Traceback" not in ended.stderr
    assert take_snapshot(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == (
        ["in", "signed"] if existing else ["in"]
    )


def test_signer_in_a_python_without_imp_is_named(
    verb, libraries, take_snapshot: Snapshot, tmp_path: Path
) -> None:
    """The crash under Python 3.12, in whatever Python runs this test: imp is made unimportable."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "run.py").write_text(
        "import runpy, sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'imp':\n"
        "            raise ModuleNotFoundError(\"No module named 'imp'\", name='imp')\n"
        "sys.modules.pop('imp', None)\n"
        "sys.meta_path.insert(0, Without())\n"
        "script = sys.argv.pop(1)\n"
        "sys.path.insert(0, script.rpartition('/')[0])\n"
        "runpy.run_path(script, run_name='__main__')\n"
    )
    script = Path(verb.environment["HEXAGON_SDK_ROOT"]) / "tools/elfsigner/elfsigner.py"
    before = take_snapshot(tmp_path)
    ended = verb.run(
        "sign", "--signer", f"{sys.executable} {blocked / 'run.py'} {script}",
        "--out", tmp_path / "signed", *libraries,
    )  # fmt: skip
    assert ended.returncode == 5
    assert f"{Failure.WRONG_PYTHON.value}: libfirst.so" in ended.stderr
    assert take_snapshot(tmp_path) == before


def test_a_python_without_imp_is_refused_before_anything_runs(
    verb, libraries, tmp_path: Path
) -> None:
    new = tmp_path / "python-new"
    new.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'imp'\" >&2\nexit 1\n")
    new.chmod(0o755)
    ended = verb.run("sign", "--signer-python", new, "--out", "signed", *libraries)
    assert ended.returncode == 3
    assert "is not a Python below 3.12" in ended.stderr
    assert not (tmp_path / "signed").exists()


def write_other_keys(verb, directory: Path, chain: bytes = b"", **numbers: int) -> Path:
    """The signer's keys with another chain, or other ``numbers``."""
    key = Path(verb.environment["STAND_IN_KEYS"]) / "valid.json"
    directory.mkdir()
    (directory / "valid.json").write_text(json.dumps({**json.loads(key.read_text()), **numbers}))
    (directory / "valid.der").write_bytes(chain or key.with_suffix(".der").read_bytes())
    return directory


def test_signature_of_another_key_fails_whatever_is_accepted(
    verb, libraries, tmp_path: Path
) -> None:
    keys = write_other_keys(verb, tmp_path / "keys", private_exponent=65537)
    words = ("sign", "--accept-unrecognised", "--out", "signed", *libraries)
    ended = verb.run(*words, STAND_IN_KEYS=str(keys))
    assert ended.returncode == 5
    assert Failure.INVALID.value in ended.stderr
    assert "the signature does not verify with the leaf's key" in ended.stderr
    assert not (tmp_path / "signed").exists()


def test_unrecognised_signature_fails_unless_it_is_accepted(
    verb, libraries, tmp_path: Path
) -> None:
    authority = ec.generate_private_key(ec.SECP256R1())
    leaf = ed25519.Ed25519PrivateKey.generate()
    chain = certify(LEAF_NAME, leaf, ROOT_NAME, authority)
    chain += certify(ROOT_NAME, authority, ROOT_NAME, authority)
    keys = str(write_other_keys(verb, tmp_path / "keys", chain))
    words = ("sign", "--out", "signed", *libraries)
    ended = verb.run(*words, STAND_IN_KEYS=keys)
    assert ended.returncode == 5
    assert Failure.UNRECOGNISED.value in ended.stderr
    assert not (tmp_path / "signed").exists()
    assert verb.run(*words, "--accept-unrecognised", STAND_IN_KEYS=keys).returncode == 0
    assert verb.run("verify-signature", "signed").returncode == 1
    assert verb.run("verify-signature", "--accept-unrecognised", "signed").returncode == 0
    unsigned = ("--expect", "unsigned", "--accept-unrecognised")
    assert verb.run("verify-signature", *unsigned, "signed").returncode == 1


def test_verification_at_a_date(verb, libraries) -> None:
    assert verb.run("sign", "--out", "signed", *libraries).returncode == 0
    assert verb.run("verify-signature", "signed").returncode == 0
    today = dt.datetime.now(dt.timezone.utc)
    for date, code in ((today.date(), 0), ("2020-01-01", 1), ("2020-01-01T00:00:00+02:00", 1)):
        assert verb.run("verify-signature", "--at", str(date), "signed").returncode == code
    wrong = verb.run("verify-signature", "--at", "yesterday", "signed")
    assert wrong.returncode == 2
    assert "'yesterday' is not a date such as 2026-11-20" in wrong.stderr


def test_one_bad_file_of_two_fails(verb, libraries, tmp_path: Path) -> None:
    """A good one beside it, an unsigned one that is wanted signed, a record that does not match."""
    assert verb.run("sign", "--out", "signed", *libraries).returncode == 0
    first, second = sorted((tmp_path / "signed").glob("*.so"))
    assert verb.run("verify-signature", first, second).returncode == 0
    assert verb.run("verify-signature", first, libraries[0]).returncode == 1
    unsigned = ("verify-signature", "--expect", "unsigned", "--accept-unrecognised")
    assert verb.run(*unsigned, *libraries).returncode == 0
    assert verb.run(*unsigned, first).returncode == 1
    (tmp_path / "signed" / "more.so").write_bytes(first.read_bytes())
    ended = verb.run("verify-signature", "signed")
    assert ended.returncode == 1
    assert "wrong: more.so is not in signing.json" in ended.stdout
