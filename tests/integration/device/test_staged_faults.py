"""Single faults of what is staged for a phone: the doctor refuses each under its id."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.device.bundle import Target, require_fit
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.android_apps import library, make_set, skel
from tests.stand_ins.lowered import make_binary, make_program

HTP, SYSTEM, STUB, SKEL = (
    "libQnnHtp.so",
    "libQnnSystem.so",
    "libQnnHtpV75Stub.so",
    "libQnnHtpV75Skel.so",
)
OTHER = "v2.48.10.260101000000"
ARTIFACTS = Path(__file__).parents[2] / "artifacts/elf"
Spoil = Callable[[Path], object]


def gone(*names: str) -> Spoil:
    return lambda place: [(place / name).unlink() for name in names]


def holds(name: str, data: bytes) -> Spoil:
    return lambda place: (place / name).write_bytes(data)


def cut(name: str, share: float) -> Spoil:
    def spoil(place: Path) -> None:
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[: int(len(data) * share)])

    return spoil


def edited(name: str, edit: elf.Edit) -> Spoil:
    def spoil(place: Path) -> None:
        data = bytearray((place / name).read_bytes())
        edit(data)
        (place / name).write_bytes(data)

    return spoil


def dangling(name: str) -> Spoil:
    def spoil(place: Path) -> None:
        (place / name).unlink()
        (place / name).symlink_to("../gone")

    return spoil


def flip(place: Path) -> None:
    data = bytearray((place / SKEL).read_bytes())
    data[0x100] ^= 1
    (place / SKEL).write_bytes(data)


X86 = (ARTIFACTS / "libx86.so").read_bytes()
LINUX = (ARTIFACTS / "libaarch64.so").read_bytes()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
V79 = make_program(make_binary(soc=("SM8750", 69, 79)), soc=(69, 79, 8))
FAULTS: dict[str, tuple[Spoil, str]] = {
    "no backend": (gone(HTP), "QNN310"),
    "no System": (gone(SYSTEM), "QNN310"),
    "no stub": (gone(STUB), "QNN312"),
    "no skel": (gone(SKEL), "QNN317"),
    "a skel by another name": (
        lambda place: (place / SKEL).rename(place / "libQnnHtpV79Skel.so"),
        "QNN304",
    ),
    "no stub and no skel": (gone(STUB, SKEL), "QNN312"),
    "System of another build": (holds(SYSTEM, library(SYSTEM, OTHER)), "QNN301"),
    "stub of another build": (holds(STUB, library(STUB, OTHER)), "QNN301"),
    "skel of another build": (holds(SKEL, skel(SKEL, 0x75, OTHER)), "QNN301"),
    "a stripped skel": (holds(SKEL, skel(SKEL, 0x75, stripped=True)), "QNN236"),
    "one bit of the skel": (flip, "QNN230"),
    "a skel for V79 by the name of V75": (holds(SKEL, skel(SKEL, 0x79)), "QNN306"),
    "an x86-64 library as skel": (holds(SKEL, X86), "QNN212"),
    "half a skel": (cut(SKEL, 0.5), "QNN206"),
    "an empty skel": (holds(SKEL, b""), "QNN202"),
    "an x86-64 backend": (holds(HTP, X86), "QNN212"),
    "a backend that needs what nothing brings": (holds(HTP, LINUX), "QNN216"),
    "half a backend": (cut(HTP, 0.5), "QNN206"),
    "a backend that is an LFS pointer": (holds(HTP, POINTER), "QNN203"),
    "all are LFS pointers": (
        lambda place: [path.write_bytes(POINTER) for path in place.iterdir()],
        "QNN321",
    ),
    "a link that leads nowhere": (dangling(SYSTEM), "QNN300"),
    "nothing at all": (lambda place: [path.unlink() for path in place.iterdir()], "QNN309"),
    "a program of an SDK to come": (
        holds("model.pte", make_program().replace(b"v2.49.40", b"v2.99.40")),
        "QNN313",
    ),
    "half a program": (holds("model.pte", make_program()[:200]), "QNN322"),
    "a program for V79": (holds("model.pte", V79), "QNN323"),
}


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "files"
    place.mkdir()
    for name, data in make_set().items():
        (place / Path(name).name).write_bytes(data)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def test_what_is_whole_is_not_refused(staged: Path) -> None:
    require_fit(Target.ANDROID, "SM8650", staged, Progress())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_under_its_id(staged: Path, name: str) -> None:
    spoil, wanted = FAULTS[name]
    spoil(staged)
    with pytest.raises(UnfitError) as caught:
        require_fit(Target.ANDROID, "SM8650", staged, Progress())
    assert caught.value.what.partition(":")[0] == wanted, caught.value
