"""What the provisioning benchmark runs on: an archive as an SDK is laid out, served and pinned."""

from __future__ import annotations

import os
import re
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from provisioning.archives.layout import Member
from provisioning.archives.zipfiles import LOCAL_BYTES, FileSource, read_directory
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.artifacts.sources.wheel import obtain_wheel
from provisioning.console.caller import CI_VARIABLES
from provisioning.console.progress import Progress
from provisioning.files import hash_file
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.bench.file_server import serving

LOCAL = struct.Struct("<4sHHHHHIIIHH")
CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
END = struct.Struct("<4sHHHHIIH")
UNIX, DATE = 3 << 8 | 20, 0x2821
VERSION = "2.49.40.260810"
PREFIX = f"qairt/{VERSION}"
HOST = f"{PREFIX}/lib/x86_64-linux-clang"
DEVICES = (
    "aarch64-android",
    "aarch64-oe-linux-gcc11.2",
    "aarch64-oe-linux-gcc9.3",
    "aarch64-oe-linux-gcc8.2",
    "aarch64-ubuntu-gcc9.4",
    "aarch64-ubuntu-gcc7.5",
)
SKEL = re.compile(r"libQnnHtpV(\d+)Skel\.so")
SPACE_BYTES = 5 << 30
SLOW = re.compile(r"lib(QnnHtpV\d+Skel|HtpPrepare)\.so")  # each there once, 62 MB together
LATENCY_S, LIMIT_BYTES_S = 0.02, 2e6
MANIFEST = """
name = "qnn-sdk"
summary = "benchmark"
default = "{version}"
[licence]
name = "Qualcomm"
text = "LICENSE.pdf"
[components]
host = ["lib/x86_64-linux-clang/**"]
[[releases]]
source = "archive"
version = "{version}"
filename = "sdk.zip"
url = "{url}"
{pin}
unpacked_bytes = 4000000000
layout = [{{ take = "{prefix}/**", put = "" }}]
"""


@dataclass(frozen=True)
class Course:
    """What a benchmark runs on: directories, the archive and its server."""

    work: Path
    archive: Path
    base: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{self.base}/{self.archive.name}"

    @property
    def home(self) -> Path:
        return Path(self.variables["QNN_CI_HOME"])


@contextmanager
def lay_course(progress: Progress) -> Iterator[Course]:
    """The archive made and served, with manifests that pin it. All of it is removed after."""
    store = Store()
    store.check_space(SPACE_BYTES, "the benchmark")
    wheels = {}
    for name in ("qnn-runtime", "qnn-runtime-aarch64"):
        toolchain = read_toolchain(name)
        wheels[name] = obtain_wheel(
            ArtifactRequest(toolchain, toolchain.release()), store, progress
        )
    with tempfile.TemporaryDirectory(prefix="bench-", dir=store.home) as directory:
        work = Path(directory)
        (work / "served").mkdir()
        archive = work / "served" / "sdk.zip"
        progress.step("making an archive of real QNN libraries")
        make_archive(archive, wheels["qnn-runtime"], wheels["qnn-runtime-aarch64"])
        with serving(archive.parent) as base:
            yield _pin_archive(work, archive, base)


@contextmanager
def slow_course(course: Course) -> Iterator[Course]:
    """Some tens of MB from a server as a network has it: LATENCY_S, LIMIT_BYTES_S."""
    work = course.work / "slow"
    (work / "served").mkdir(parents=True)
    archive = work / "served" / "sdk.zip"
    parts: list[tuple[Path, Callable[[str], str]]] = [(course.archive, place_host)]
    write_archive(archive, parts, {f"{PREFIX}/sdk.yaml": f"version: {VERSION}\n".encode()})
    with serving(archive.parent, LATENCY_S, LIMIT_BYTES_S) as base:
        yield _pin_archive(work, archive, base)


def place_host(name: str) -> str:
    """Where a library of the slow course goes."""
    return HOST if SLOW.fullmatch(name) else ""


def _pin_archive(work: Path, archive: Path, base: str) -> Course:
    variables = {
        **{name: text for name, text in os.environ.items() if name not in CI_VARIABLES},
        "QNN_CI_HOME": str(work / "home"),
        "QNN_CI_MANIFESTS": str(work / "manifests"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    course = Course(work, archive, base, variables)
    write_manifests(course)
    return course


def make_archive(target: Path, host: Path, device: Path) -> int:
    """At least 400 MB: the host's libraries once, the device's once a toolchain, as in an SDK."""

    def place_skel(name: str) -> str:
        found = SKEL.fullmatch(name)
        return f"{PREFIX}/lib/hexagon-v{found[1]}/unsigned" if found else ""

    def place_library(folder: str) -> Callable[[str], str]:
        return lambda name: "" if SKEL.fullmatch(name) else f"{PREFIX}/lib/{folder}"

    parts = [(host, lambda name: HOST), (device, place_skel)]
    parts += [(device, place_library(folder)) for folder in DEVICES]
    return write_archive(target, parts, {f"{PREFIX}/sdk.yaml": f"version: {VERSION}\n".encode()})


def write_manifests(course: Course, *, pinned: bool = True) -> None:
    """A manifest of the archive, with its pin or without, and no profiles."""
    folder = course.work / "manifests" / "toolchains"
    folder.mkdir(parents=True, exist_ok=True)
    size, sha256 = course.archive.stat().st_size, hash_file(course.archive)
    pin = f'size_bytes = {size}\nsha256 = "{sha256}"' if pinned else ""
    text = MANIFEST.format(version=VERSION, prefix=PREFIX, url=course.url, pin=pin)
    (folder / "qnn-sdk.toml").write_text(text, encoding="utf-8")
    (folder.parent / "profiles.toml").write_text("", encoding="utf-8")


def copy_member(source: FileSource, member: Member) -> bytes:
    """A member's compressed bytes."""
    header = source.read_at(member.offset, LOCAL_BYTES)
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    start = member.offset + LOCAL_BYTES + name_bytes + extra_bytes
    return source.read_at(start, member.compressed)


def write_archive(
    target: Path, parts: Iterable[tuple[Path, Callable[[str], str]]], texts: dict[str, bytes]
) -> int:
    """Write a ZIP of members of other ZIPs, and of stored texts; returns its size.

    ``parts`` are a ZIP and, for a library's file name, the directory to put it in (or none).
    """
    central: list[bytes] = []
    with target.open("wb") as out:
        for path, place in parts:
            with closing(FileSource(path)) as source:
                for member in read_directory(source):
                    base = member.name.rpartition("/")[2]
                    if ".so" in base and (directory := place(base)):
                        data = copy_member(source, member)
                        central.append(_add(out, f"{directory}/{base}", data, member))
        for name, data in texts.items():
            central.append(_add(out, name, data, _stored(name, data)))
        start = out.tell()
        out.writelines(central)
        size = out.tell() - start
        count = len(central)
        out.write(END.pack(b"PK\5\6", 0, 0, count, count, size, start, 0))
    return target.stat().st_size


def _stored(name: str, data: bytes) -> Member:
    return Member(name, len(data), compressed=len(data), crc=zlib.crc32(data))


def _add(out: BinaryIO, name: str, data: bytes, member: Member) -> bytes:
    """Write one member; its entry for the central directory."""
    raw, offset = name.encode(), out.tell()
    sizes = (member.crc, member.compressed, member.size)
    out.write(LOCAL.pack(b"PK\3\4", 20, 0, member.method, 0, DATE, *sizes, len(raw), 0))
    out.write(raw)
    out.write(data)
    head = (b"PK\1\2", UNIX, 20, 0, member.method, 0, DATE, *sizes, len(raw))
    return CENTRAL.pack(*head, 0, 0, 0, 0, 0o100755 << 16, offset) + raw
