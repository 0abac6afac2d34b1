"""One run in this process: a signer of a few lines of shell, the record, what is published."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ci.signing.mbn import parse_image
from ci.signing.plan import Roots, SignPlan, SignRequest
from ci.signing.selection import Input, RequestedLibrary, Selection, SigningPolicy, find_qnn_build
from ci.signing.sign import sign, stage
from ci.signing.signer import Failure, Interpreter, Signer, SignerError
from provisioning.console.progress import Progress
from provisioning.console.user_folder import RECORD
from provisioning.errors import StoreError, UsageError
from provisioning.manifest.reader import read_policy
from tests.build.signing import show
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf
from tests.stand_ins.elfsigner.spoil import PLACE, flip
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")

# -i IN -o OUT, or -t SERIAL -o OUT: copies what was signed before, and says where it runs.
SIGNER = """
read answer
echo "$1 $(basename "$2") $answer $(pwd) $SIGN_TOKEN"
cp "$STORE"/$(test "$1" = -t && echo "testsig-$2.so" || basename "$2") "$4"/
"""


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


Plan = Callable[..., SignPlan]
Write = Callable[[dict[str, bytes]], None]


@pytest.fixture
def write(store: Path) -> Write:
    """Put what the signer will write for each name into its store."""

    def put(files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (store / f"{name}.so").write_bytes(data)

    return put


@pytest.fixture
def plan(tmp_path: Path, library: bytes) -> Plan:
    """A plan for libraries of some names, and more of the request."""

    def make(*names: str, **options: object) -> SignPlan:
        inputs = []
        for name in names:
            (tmp_path / name).write_bytes(library)
            requested = RequestedLibrary(tmp_path / name, f"{{qnn_sdk}}/{name}", "")
            inputs.append(Input(requested, library, 0x68, find_qnn_build(tmp_path / name)))
        roots = Roots(hexagon_sdk=tmp_path / "6.4.0.2")
        request = SignRequest(Selection(), roots, tmp_path / "signed", **options)  # type: ignore[arg-type]
        return SignPlan(request, read_policy("signing", SigningPolicy), tuple(inputs), ())

    return make


def list_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def refuse(plan: SignPlan, signer: Signer) -> SignerError:
    """The error of a run, which publishes nothing."""
    with pytest.raises(SignerError) as caught:
        sign(plan, signer, Progress())
    assert not plan.request.target.exists()
    return caught.value


def without_scheme(key: Key) -> Key:
    """A chain whose leaf has a key for which no scheme is published."""
    authority = generate_private_key(SECP256R1())
    chain = certify(LEAF_NAME, Ed25519PrivateKey.generate(), ROOT_NAME, authority)
    chain += certify(ROOT_NAME, authority, ROOT_NAME, authority)
    return replace(key, chain=chain)


def test_outputs_of_a_signer_that_are_not_proven_are_refused(
    plan: Plan, signer: Signer, write: Write, key: Key, library: bytes
) -> None:
    """The most specific of several faults is reported."""
    good, expired = sign_elf(library, key), sign_elf(library, make_key(-1))
    altered = flip(library, parse_image(memoryview(library)).segments[2].header.offset)
    outputs = {
        "expired": expired,
        "expired, with a wrong hash": flip(expired, PLACE + 600),
        "unsigned": library,
        "another library": sign_elf(altered, key),
        "another library, changed once more": flip(
            sign_elf(altered, key), next(parse_image(memoryview(good)).loadable()).end - 1
        ),
        "truncated": good[:-1],
        "a wrong hash": sign_elf(library, key, wrong_entry=3),
        "a wrong signature": flip(good, PLACE + 60),
        "encrypted": sign_elf(library, key, trailer=b"ISMQ" + b"\x17" * 96),
        "no published scheme": sign_elf(library, without_scheme(key)),
    }
    errors = {}
    for name, data in outputs.items():
        write({"liba": data})
        error = refuse(plan("liba.so"), signer)
        # The dates and names of this run's keys are not ours.
        errors[name] = f"{error.what}\n{error.why.partition(' expired on')[0]}\n{error.fix}"
    check_snapshot(SNAPSHOTS / "refused.txt", show(errors))
    done = sign(plan("liba.so", accept_unrecognised=True), signer, Progress())
    assert done.record.libraries[0].verdict == "signature not recognised"


@pytest.mark.parametrize("altered", ["liba", "libb"])
def test_each_signed_file_is_compared_with_its_own_input(
    plan: Plan, signer: Signer, write: Write, key: Key, library: bytes, altered: str
) -> None:
    other_library = flip(library, parse_image(memoryview(library)).segments[2].header.offset)
    good = sign_elf(library, key)
    write({**dict.fromkeys(("liba", "libb"), good), altered: sign_elf(other_library, key)})
    error = refuse(plan("liba.so", "libb.so"), signer)
    assert error.failure is Failure.ALTERED
    assert error.what.startswith(f"{altered}.so")


def test_another_serial_is_refused_and_not_shown(
    plan: Plan, signer: Signer, write: Write, key: Key, library: bytes
) -> None:
    write({"testsig-0xbadcafe": sign_elf(library, key, serial=0xBADCAFF)})
    error = refuse(plan(serial="0xbadcafe"), signer)
    assert error.failure is Failure.WRONG_HASH
    assert "badcafe" not in str(error)


# A directory appears whole, or the old one stays


def test_a_published_directory_replaces_the_old_one_and_a_failure_keeps_it(tmp_path: Path) -> None:
    target = tmp_path / "signed"
    for text in ("first", "second"):
        with stage(target, force=True) as ready:
            (ready / ".scratch" / "lib.so").write_text("not this")
            (ready / "lib.so").write_text(text)
        assert (target / "lib.so").read_text() == text
        assert list_names(target) == [RECORD, "lib.so"]

    def fail() -> None:
        with stage(target, force=True) as ready:
            (ready / "lib.so").write_text("third")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (target / "lib.so").read_text() == "second"
    assert list_names(tmp_path) == ["signed"]


@pytest.mark.parametrize(("force", "expected"), [(False, "other"), (True, "ours")])
def test_a_directory_that_another_run_published_meanwhile_is_kept_unless_forced(
    tmp_path: Path, force: bool, expected: str
) -> None:
    target = tmp_path / "signed"
    refused = nullcontext() if force else pytest.raises(UsageError, match="already exists")
    with refused, stage(target, force=force) as ready:
        (ready / "lib.so").write_text("ours")
        with stage(target, force=False) as rival:
            (rival / "lib.so").write_text("other")
        assert (target / "lib.so").read_text() == "other"
    assert (target / "lib.so").read_text() == expected
    assert list_names(tmp_path) == ["signed"]
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        stage(tmp_path / "file" / "signed", force=False).__enter__()
