"""What the provisioning benchmark runs on: an archive as an SDK is laid out, served and pinned."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from provisioning.artifacts.sources import ArtifactRequest, FillJob
from provisioning.artifacts.sources.wheel import obtain_wheel
from provisioning.console.caller import CI_VARIABLES
from provisioning.console.progress import Progress
from provisioning.files import hash_file
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.bench.file_server import serving

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
size_bytes = {size}
sha256 = "{sha256}"
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
        request = ArtifactRequest(toolchain, toolchain.release())
        wheels[name] = obtain_wheel(FillJob(request, store.downloads, store, progress))
    with tempfile.TemporaryDirectory(prefix="bench-", dir=store.home) as directory:
        work = Path(directory)
        (work / "served").mkdir()
        archive = work / "served" / "sdk.zip"
        progress.step("making an archive of real QNN libraries")
        make_archive(archive, wheels["qnn-runtime"], wheels["qnn-runtime-aarch64"])
        with serving(archive.parent) as base:
            yield _pin_archive(work, archive, base)


def _pin_archive(work: Path, archive: Path, base: str) -> Course:
    # With this variable, each process would compile modules that were changed since the last run.
    unwanted = {*CI_VARIABLES, "PYTHONDONTWRITEBYTECODE"}
    variables = {
        **{name: text for name, text in os.environ.items() if name not in unwanted},
        "QNN_CI_HOME": str(work / "home"),
        "QNN_CI_MANIFESTS": str(work / "manifests"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    course = Course(work, archive, base, variables)
    write_manifests(course)
    return course


def make_archive(target: Path, host: Path, device: Path) -> None:
    """At least 400 MB: the host's libraries once, the device's once a toolchain, as in an SDK."""

    def place_skel(name: str) -> str:
        match = SKEL.fullmatch(name)
        return f"{PREFIX}/lib/hexagon-v{match[1]}/unsigned" if match else ""

    def place_library(folder: str) -> Callable[[str], str]:
        return lambda name: "" if SKEL.fullmatch(name) else f"{PREFIX}/lib/{folder}"

    parts = [(host, lambda name: HOST), (device, place_skel)]
    parts += [(device, place_library(folder)) for folder in DEVICES]
    write_archive(target, parts)


def write_manifests(course: Course) -> None:
    """A manifest of the archive, and no profiles."""
    folder = course.work / "manifests" / "toolchains"
    folder.mkdir(parents=True, exist_ok=True)
    size, sha256 = course.archive.stat().st_size, hash_file(course.archive)
    pin = {"size": size, "sha256": sha256}
    text = MANIFEST.format(version=VERSION, prefix=PREFIX, url=course.url, **pin)
    (folder / "qnn-sdk.toml").write_text(text, encoding="utf-8")
    (folder.parent / "profiles.toml").write_text("", encoding="utf-8")


def write_archive(target: Path, parts: Iterable[tuple[Path, Callable[[str], str]]]) -> None:
    """Write a ZIP of members of other ZIPs. ``parts`` are a ZIP and, for a library's file name,
    the directory to put it in (or "")."""
    with ZipFile(target, "w", ZIP_DEFLATED) as out:
        out.writestr(f"{PREFIX}/sdk.yaml", f"version: {VERSION}\n")
        for path, place in parts:
            with ZipFile(path) as source:
                for member in source.infolist():
                    base = member.filename.rpartition("/")[2]
                    if ".so" in base and (directory := place(base)):
                        out.writestr(f"{directory}/{base}", source.read(member))
