"""The libraries that a folder for Genie is run with: one fault each, as users met them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.build.genie import Change, make_config
from tests.build.genie_faults import (
    SKEL,
    WRONG,
    Row,
    both,
    list_words,
    make_tests,
    of_another_machine,
    parts,
    put_htp,
    settings,
)
from tests.stand_ins.android_apps import ARTIFACTS, library, make_set, skel

OLDER, NEWER = "v2.42.0.251225135753", "v2.51.0.261010101010"
GENIE_KEYS = b"\0".join(sorted({key.encode() for key in list_words(make_config())}))


def libraries(*, genie: bytes = b"", **how: Any) -> Change:
    """QNN's libraries are in the folder, too. ``genie`` are the texts of libGenie.so."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        files = make_set(**how)
        files |= {name: library(name) for name in ("libQnnHtpNetRunExtensions.so",)}
        files["libGenie.so"] = library("libGenie.so") + genie
        for name, data in files.items():
            (folder / name).write_bytes(data)

    return change


def of_another_libqnn(folder: Path, _: dict[str, Any]) -> None:
    """The skel is of another SDK than the other libraries."""
    name = "libQnnHtpV75Skel.so"
    (folder / name).write_bytes(make_set(build=NEWER)[name])


def of_the_host(folder: Path, _: dict[str, Any]) -> None:
    """libGenie.so is the one for x86-64."""
    of_another_machine(folder / "libGenie.so")


def name_needed(path: Path, needed: bytes = b"libQnnCpu.so") -> None:
    """A library needs another one."""
    data = (ARTIFACTS / "elf" / "libandroid.so").read_bytes()
    path.write_bytes(data.replace(b"libneeded.so", needed))


def write_dlls(folder: Path, _: dict[str, Any]) -> None:
    """The libraries are those for Windows, with the skel, which is the same."""
    for name in ("Genie.dll", "QnnHtp.dll", "QnnSystem.dll", "QnnHtpV75Stub.dll"):
        (folder / name).write_bytes(b"MZ" + bytes(62))
    (folder / SKEL).write_bytes(skel(SKEL, 0x75))


def of_windows(folder: Path, config: dict[str, Any]) -> None:
    """Contexts and libraries are for a PC with Windows."""
    parts(soc=("SC8380XP", 60, 73))(folder, config)
    settings(60, "v73")(folder, config)
    for name in ("Genie.dll", "QnnHtp.dll"):
        (folder / name).write_bytes(b"MZ" + bytes(62))


FAULTS: dict[str, Row] = {
    "contexts of a newer QNN than the libraries": Row(
        "ai-hub-apps 148", libraries(build=OLDER), [], WRONG, {"QNN964": "2.42.0"}
    ),
    "no libraries for the Hexagon version": Row(
        "ai-hub-apps 148", libraries(hexagon=0x79), [], WRONG, {"QNN965": "libQnnHtpV75"}
    ),
    "libraries of two SDKs": Row(
        "ai-hub-models 192",
        both(libraries(), of_another_libqnn),
        [],
        WRONG,
        {"QNN972": "libQnnHtpV75Skel.so is of QNN 2.51.0"},
    ),
    "a key that the shipped libGenie does not know": Row(
        "ai-hub-models 82",
        both(libraries(genie=GENIE_KEYS), put_htp("allow-async-init", value=True)),
        [],
        WRONG,
        {"QNN971": "allow-async-init"},
    ),
    "a library for the host": Row(
        "ai-hub-apps 26",
        both(libraries(), of_the_host),
        [],
        WRONG,
        {"QNN979": "libGenie.so is for x86-64, and the other libraries are for aarch64"},
    ),
    "a stripped skel": Row(
        "GenieX 1143",
        both(
            libraries(),
            lambda folder, _: (folder / SKEL).write_bytes(skel(SKEL, 0x75, stripped=True)),
        ),
        [],
        WRONG,
        {"QNN983": "libQnnHtpV75Skel.so cannot be loaded: it was stripped"},
    ),
    "a library that needs a missing one": Row(
        "ai-hub-apps 57",
        both(libraries(), lambda folder, _: name_needed(folder / "libGenie.so")),
        [],
        WRONG,
        {"QNN984": "libGenie.so needs libQnnCpu.so, which is missing"},
    ),
    "a library that needs the runtime of OpenMP": Row(
        "GenieX 1118",
        both(
            libraries(), lambda folder, _: name_needed(folder / "libGenie.so", b"libomp.so\0\0\0")
        ),
        [],
        WRONG,
        {"QNN984": "libGenie.so needs libomp.so, which is missing"},
    ),
    "libraries for Windows": Row(
        "ai-hub-models 164",
        write_dlls,
        ["--soc", "SM8650"],
        WRONG,
        {"QNN979": "Genie.dll is for Windows, and the contexts are for SM8650"},
    ),
    "a renamed skel": Row(
        "ai-hub-apps 148",
        both(libraries(), lambda folder, _: (folder / SKEL).write_bytes(skel(SKEL, 0x79))),
        [],
        WRONG,
        {"QNN983": "it is for Hexagon V79, and its name says V75"},
    ),
    "a skel for ARM": Row(
        "ai-hub-apps 39",
        both(libraries(), lambda folder, _: (folder / SKEL).write_bytes(library(SKEL))),
        [],
        WRONG,
        {"QNN983": "libQnnHtpV75Skel.so cannot be loaded: it is for aarch64, and a skel runs on"},
    ),
    "an empty library": Row(
        "ai-hub-apps 148",
        both(libraries(), lambda folder, _: (folder / SKEL).write_bytes(b"")),
        [],
        WRONG,
        {"QNN983": "libQnnHtpV75Skel.so cannot be loaded: empty"},
    ),
}
RIGHT: dict[str, tuple[Change, Sequence[str]]] = {
    "with libraries for Windows": (of_windows, ["--soc", "SC8380XP"]),
    "with its libraries": (
        libraries(genie=GENIE_KEYS),
        ["--soc", "SM8650"],
    ),
}


test_a_folder_is_judged_by_its_fault, test_a_right_folder_is_judged_by_nothing = make_tests(
    FAULTS, RIGHT
)
