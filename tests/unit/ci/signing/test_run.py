"""One run in this process: a signer of a few lines of shell, and every word of the record."""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ci.signing.inputs import Input, find_qnn_build
from ci.signing.interpreter import Interpreter
from ci.signing.masking import Masker
from ci.signing.plan import SignPlan, SignRequest
from ci.signing.policy import read_signing_policy
from ci.signing.proof.certificates import parse_chain
from ci.signing.proof.segments import parse_image
from ci.signing.proof.verdict import Verdict
from ci.signing.publish import stage
from ci.signing.record import read_record
from ci.signing.roots import Roots
from ci.signing.selection import Selection, Wanted
from ci.signing.sign import Run, SignJob, list_jobs, sign
from ci.signing.signer import Failure, Signer, SignerError
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf

# -i IN -o OUT, or -t SERIAL -o OUT: copies what was signed before, and says where it runs.
SIGNER = """
read answer
echo "$1 $(basename "$2") $answer $(pwd) $SIGN_TOKEN"
cp "$STORE"/$(test "$1" = -t && echo "testsig-$2.so" || basename "$2") "$4"/
"""
DAY = 86400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the signer takes what it writes from."""
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setenv("STORE", str(folder))
    monkeypatch.setenv("SIGN_TOKEN", "s3cr3t-value")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    return folder


@pytest.fixture
def signer(tmp_path: Path, store: Path) -> Signer:
    script = tmp_path / "signer.sh"
    script.write_text(SIGNER)
    return Signer(("/bin/sh", str(script)), 60.0, Interpreter(Path("/bin/sh"), "3.10.9"))


@pytest.fixture
def plan(tmp_path: Path, library: bytes) -> Callable[..., SignPlan]:
    """A plan for libraries of some names, and more of the request."""

    def make(*names: str, **more: object) -> SignPlan:
        inputs = []
        for name in names:
            (tmp_path / name).write_bytes(library)
            wanted = Wanted(tmp_path / name, f"{{qnn_sdk}}/{name}", "")
            inputs.append(Input(wanted, library, 0x68, find_qnn_build(tmp_path / name)))
        roots = Roots(hexagon_sdk=tmp_path / "6.4.0.2")
        request = SignRequest(Selection(), roots, tmp_path / "signed", **more)  # type: ignore[arg-type]
        return SignPlan(request, read_signing_policy(), tuple(inputs), ())

    return make


def digest(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}


def test_every_word_of_a_run(
    plan: Callable[..., SignPlan],
    signer: Signer,
    store: Path,
    tmp_path: Path,
    key: Key,
    library: bytes,
) -> None:
    signed, testsig = sign_elf(library, key, 5, "sha256"), sign_elf(library, key, serial=0xBADCAFE)
    (store / "liba.so").write_bytes(signed)
    (store / "testsig-0xbadcafe.so").write_bytes(testsig)
    stream = io.StringIO()

    done = sign(plan("liba.so", serial="0xbadcafe"), signer, Progress(stream))

    out = tmp_path / "signed"
    names = [
        "liba.so",
        "signer.log",
        "signing.json",
        "statement.intoto.json",
        "testsig-0xbadcafe.so",
    ]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "liba.so").read_bytes() == signed
    assert (out / "testsig-0xbadcafe.so").stat().st_mode & 0o777 == 0o644
    assert stream.getvalue().splitlines() == [
        "signing liba.so (1 of 2)",
        "signing testsig-***.so (2 of 2)",
    ]
    assert (out / "signer.log").read_text() == (
        "# liba.so\n-i liba.so y . ***\n# testsig-***.so\n-t *** y . ***\n"
    )
    chain = [one.fingerprint for one in parse_chain(key.chain)]
    script = tmp_path / "signer.sh"
    common = {"verdict": "proven", "certificates": chain}
    assert msgspec.json.decode((out / "signing.json").read_bytes()) == {
        "schema_version": 2,
        "created": "2023-11-14T22:13:20+00:00",
        "created_from": "SOURCE_DATE_EPOCH",
        "tool": f"executorch-qnn-ci, Python {platform.python_version()}",
        "signer": [{"path": str(script), "sha256": digest(script.read_bytes())["sha256"]}],
        "python": "3.10.9",
        "qnn_sdk": "2.49.40",
        "hexagon_sdk": "6.4.0.2",
        "libraries": [
            {
                **common,
                "name": "liba.so",
                "source": "{qnn_sdk}/liba.so",
                "input": digest(library),
                "output": digest(signed),
                "arguments": ["-i", "IN/liba.so", "-o", "OUT"],
                "mbn_header_version": 5,
                "hash_algorithm": "sha256",
            },
            {
                **common,
                "name": "testsig-***.so",
                "source": "the signer's own",
                "input": digest(b""),
                "output": digest(testsig),
                "arguments": ["-t", "***", "-o", "OUT"],
                "mbn_header_version": 6,
                "hash_algorithm": "sha384",
            },
        ],
    }
    assert read_record(out) == done.record
    assert {name: one.verdict for name, one in done.reports.items()} == {
        "liba.so": Verdict.PROVEN,
        "testsig-***.so": Verdict.PROVEN,
    }


def test_a_signer_without_a_python_of_ours_is_two_programs(
    plan: Callable[..., SignPlan],
    signer: Signer,
    store: Path,
    tmp_path: Path,
    key: Key,
    library: bytes,
) -> None:
    (store / "liba.so").write_bytes(sign_elf(library, key))
    other = Signer((shutil.which("sh") or "", *signer.words[1:]), 60.0)

    record = sign(plan("liba.so"), other, Progress()).record
    assert record.python == ""
    assert [one.path for one in record.signer] == list(other.words)


def failure(plan: SignPlan, signer: Signer) -> SignerError:
    with pytest.raises(SignerError) as caught:
        sign(plan, signer, Progress())
    assert not plan.request.target.exists()
    return caught.value


def test_each_file_is_proven_beside_its_input(
    plan: Callable[..., SignPlan], signer: Signer, store: Path, key: Key, library: bytes
) -> None:
    """The first of two is another library's, then the second."""
    position = parse_image(memoryview(library)).segments[2].offset
    altered = library[:position] + bytes([library[position] ^ 1]) + library[position + 1 :]
    good, other = sign_elf(library, key), sign_elf(altered, key)
    for name, wrong in (("liba.so", "liba.so"), ("libb.so", "libb.so")):
        for each in ("liba.so", "libb.so"):
            (store / each).write_bytes(other if each == wrong else good)
        error = failure(plan("liba.so", "libb.so"), signer)
        assert (error.failure, error.what) == (
            Failure.ALTERED,
            f"the signer changed what will be loaded: {name}",
        )


def test_a_certificate_past_its_date_is_refused(
    plan: Callable[..., SignPlan], signer: Signer, store: Path, library: bytes
) -> None:
    (store / "liba.so").write_bytes(sign_elf(library, make_key(-1)))

    error = failure(plan("liba.so"), signer)
    assert error.failure is Failure.EXPIRED
    assert "OEM: certificate 0 expired on" in error.why


def test_another_serial_is_refused(
    plan: Callable[..., SignPlan], signer: Signer, store: Path, key: Key, library: bytes
) -> None:
    (store / "testsig-0xbadcafe.so").write_bytes(sign_elf(library, key, serial=0xBADCAFF))

    error = failure(plan(serial="0xbadcafe"), signer)
    assert error.failure is Failure.WRONG_HASH
    assert "own entry" in error.why
    assert "badcafe" not in str(error)


def test_a_signer_that_writes_nothing_is_named(
    plan: Callable[..., SignPlan], signer: Signer, tmp_path: Path
) -> None:
    (tmp_path / "signer.sh").write_text("exit 0\n")

    assert failure(plan("liba.so"), signer).failure is Failure.NO_OUTPUT


def test_a_key_of_no_published_scheme_is_taken_when_it_is_accepted(
    plan: Callable[..., SignPlan], signer: Signer, store: Path, key: Key, library: bytes
) -> None:
    leaf, authority = Ed25519PrivateKey.generate(), generate_private_key(SECP256R1())
    chain = certify(LEAF_NAME, leaf, ROOT_NAME, authority)
    chain += certify(ROOT_NAME, authority, ROOT_NAME, authority)
    (store / "liba.so").write_bytes(sign_elf(library, replace(key, chain=chain)))

    assert failure(plan("liba.so"), signer).failure is Failure.UNRECOGNISED
    done = sign(plan("liba.so", accept_unrecognised=True), signer, Progress())
    assert done.record.libraries[0].verdict == "signature not recognised"


def test_an_unsigned_output_is_refused(
    plan: Callable[..., SignPlan], signer: Signer, store: Path, library: bytes
) -> None:
    (store / "liba.so").write_bytes(library)

    error = failure(plan("liba.so"), signer)
    assert (error.failure, error.why, error.fix) == (
        Failure.UNCHANGED,
        "it has no hash segment",
        "read the signer's log",
    )


def test_a_target_that_is_there_is_kept_unless_it_is_forced(
    plan: Callable[..., SignPlan],
    signer: Signer,
    store: Path,
    tmp_path: Path,
    key: Key,
    library: bytes,
) -> None:
    (store / "liba.so").write_bytes(sign_elf(library, key))
    (tmp_path / "signed").mkdir()

    with pytest.raises(UsageError):
        sign(plan("liba.so"), signer, Progress())
    assert list((tmp_path / "signed").iterdir()) == []
    sign(plan("liba.so", force=True), signer, Progress())
    assert (tmp_path / "signed" / "liba.so").is_file()


def test_the_signer_s_answers_come_from_its_own_area(
    plan: Callable[..., SignPlan],
    signer: Signer,
    store: Path,
    tmp_path: Path,
    key: Key,
    library: bytes,
) -> None:
    """Each library has an area; the signer is given a copy of it there, and runs there."""
    (store / "liba.so").write_bytes(sign_elf(library, key))
    script = tmp_path / "signer.sh"
    script.write_text(f'{SIGNER}\necho "$2"; cmp "$2" {tmp_path}/liba.so && echo same; ls . in\n')

    sign(plan("liba.so"), signer, Progress())
    assert (tmp_path / "signed" / "signer.log").read_text().splitlines()[2:] == [
        "./in/liba.so",
        "same",
        ".:",
        "in",
        "out",
        "",
        "in:",
        "liba.so",
    ]


def test_what_is_made_from_a_serial_has_no_input(
    plan: Callable[..., SignPlan],
    signer: Signer,
    store: Path,
    tmp_path: Path,
    key: Key,
    library: bytes,
) -> None:
    (store / "testsig-0x1.so").write_bytes(sign_elf(library, key, serial=1))
    (tmp_path / "signer.sh").write_text(f"{SIGNER}\nls in\n")
    with stage(tmp_path / "signed", force=False) as staging:
        run = Run(plan(serial="0x1"), signer, staging, Masker())
        (made,) = run.make_all([SignJob("testsig-0x1.so", "l", serial="0x1")], Progress())
        assert made.library.source == "l"
        assert (staging.ready / "testsig-0x1.so").is_file()
        assert list((staging.scratch / "0" / "in").iterdir()) == []


def test_jobs_are_the_libraries_and_then_the_test_signature(
    plan: Callable[..., SignPlan], library: bytes
) -> None:
    assert list_jobs(plan("b.so", "a.so")) == [
        SignJob("b.so", "{qnn_sdk}/b.so", library),
        SignJob("a.so", "{qnn_sdk}/a.so", library),
    ]
    assert list_jobs(plan(serial="0x1")) == [
        SignJob("testsig-0x1.so", "the signer's own", b"", "0x1"),
    ]
