"""Android apps of a few files: archives and directories, or only the facts about one."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ci.inspect.app_checks import judge_unit
from ci.inspect.app_trees import read_app
from ci.inspect.apps import QNN_ABI, AppUnit, Kind, PackedFile
from provisioning.doctor.facts import FileFacts, TreeFacts
from provisioning.doctor.registry import Finding
from provisioning.elf.facts import ElfFacts
from tests.stand_ins.android_apps import ABI, make_set, write_apk

Make = Callable[[Path], Path]
SET = make_set()
CPU = {name: data for name, data in SET.items() if "Skel" not in name}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
SKELS = ("libQnnHtpV75Skel.so", "libQnnHtpV79Skel.so", "libQnnHtpV81Skel.so")


# -- files ----------------------------------------------------------------------------------------


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files. Names that end in '/' are directories, and '-> x' makes a link to x."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(parents=True)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_text(content, "utf-8")
    return root


def pack(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """A ZIP archive of these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def apk(libraries: Mapping[str, bytes] = SET, **change: object) -> Make:
    return lambda place: write_apk(place / "app.apk", libraries, **change)  # type: ignore[arg-type]


def unpacked(place: Path) -> Path:
    """A directory with libraries for an ABI, but without a manifest."""
    return write_files(place, {f"{ABI}/{name}": data for name, data in SET.items()})


def read(path: Path, scratch: Path) -> list[AppUnit]:
    scratch.mkdir(exist_ok=True)
    return read_app(path, scratch)


def judge(path: Path, scratch: Path, *socs: str) -> list[Finding]:
    return [finding for unit in read(path, scratch) for finding in judge_unit(unit, socs)]


def show(findings: Iterable[Finding], indent: str = "  ") -> str:
    """A line for what each finding says, and one for its fix."""
    return "".join(
        f"{indent}{finding.id} {finding.severity.value}: {finding.what}"
        f" [{finding.subject} at {finding.where}]\n"
        f"{indent}  {finding.fix}\n"
        for finding in findings
    )


# -- facts ----------------------------------------------------------------------------------------


def packed(
    *names: str, abi: str = QNN_ABI, place: str = "app", **fields: int
) -> tuple[PackedFile, ...]:
    """Files of 7 bytes that are not there."""
    return tuple(
        PackedFile(name, Path(name), f"{place}/{name}", 7, abi, **fields) for name in names
    )


def facts(name: str, *needed: str, machine: int = 183, program: bool = False) -> FileFacts:
    """A library that needs others, or a program."""
    elf = ElfFacts(Path(name), 1, 64, True, machine, 3, 0, needed=needed)
    elf = replace(elf, interpreter="/linker" if program else None)
    return FileFacts(f"lib/{QNN_ABI}/{name}", Path(name), 1, elf)


def unit(kind: Kind = Kind.DIRECTORY, *files: FileFacts, **fields: object) -> AppUnit:
    """An app with libQnnHtp.so and three skels, which are not there."""
    libraries = fields.pop("libraries", packed("libQnnHtp.so", *SKELS))
    tree = TreeFacts(Path(), (*map(facts, SKELS), *files))
    values = {"manifest": None, "libraries": libraries, "tree": tree, **fields}
    return AppUnit("u", kind, **values)  # type: ignore[arg-type]
