"""The most memory that a fetch takes, for each kind of source by itself.

An archive is streamed, a tar.xz with the largest dictionary that xz's presets have, components come
by ranges, git gets a repository of libraries of up to 12 MB.
"""

from __future__ import annotations

import lzma
import shutil
import sys
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from provisioning.archives.zipfiles import FileSource, inflate_member, read_directory
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.files import hash_file
from tests.bench.sdk_course import HOST, Course

LIMIT_MB = 300
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 << 20}]  # that of xz -9
MOST_IN_GIT = 16 << 20
TIMEOUT_S = 1200
# The largest process that it started counts with it.
RUN_MEASURED = """
import pathlib, resource, sys
from provisioning.__main__ import main
code = main(sys.argv[2:])
own = pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
pathlib.Path(sys.argv[1]).write_text(str(int(own) + child))
sys.exit(code)
"""
COMMON = """
name = "{name}"
summary = "benchmark"
default = "1.0"
[licence]
name = "Qualcomm"
text = "LICENSE.pdf"
[[releases]]
version = "1.0"
"""
TARBALL = """
source = "archive"
filename = "tools.tar.xz"
url = "{url}"
size_bytes = {size}
sha256 = "{sha256}"
unpacked_bytes = 4000000000
layout = [{{ take = "tools/**", put = "" }}]
"""
CHECKOUT = """
source = "git"
url = "file://{url}"
tag = "v1.0"
commit = "{commit}"
"""


def measure_memory(course: Course, progress: Progress) -> Mapping[str, float]:
    """MB, by ``memory_KIND_mb``. The archive of ``course`` is locked already."""
    libraries = course.work / "tools"
    unpack_host(course, libraries)
    add_tarball(course, libraries)
    add_checkout(course, libraries)
    artifacts = {"zip": "qnn-sdk", "parts": "qnn-sdk:host", "tar_xz": "tools", "git": "sources"}
    figures = {}
    for kind, artifact in artifacts.items():
        progress.step(f"measuring the memory of a fetch: {kind}")
        shutil.rmtree(course.home, ignore_errors=True)
        note = course.work / "memory"
        argv = [sys.executable, "-c", RUN_MEASURED, str(note), "fetch", artifact]
        run_process(argv, env=course.variables, timeout_s=TIMEOUT_S)
        figures[f"memory_{kind}_mb"] = int(note.read_text()) * 1024 / 1e6
    return figures


def unpack_host(course: Course, target: Path) -> None:
    """The host's libraries of the archive."""
    target.mkdir()
    with closing(FileSource(course.archive)) as source:
        for member in read_directory(source):
            if member.name.startswith(HOST) and member.kind == "file":
                with (target / Path(member.name).name).open("wb") as out:
                    inflate_member(source, member, out.write)


def add_tarball(course: Course, libraries: Path) -> None:
    """Serve the libraries as a tar.xz, and pin it."""
    tarball = course.archive.with_name("tools.tar.xz")
    with (
        lzma.open(tarball, "wb", filters=XZ) as packed,
        tarfile.open(fileobj=packed, mode="w") as out,
    ):
        out.add(libraries, "tools")
    pin = {"url": f"{course.base}/{tarball.name}", "sha256": hash_file(tarball)}
    pin_artifact(course, "tools", TARBALL.format(**pin, size=tarball.stat().st_size))


def add_checkout(course: Course, libraries: Path) -> None:
    """Commit the smaller libraries, and pin the commit."""
    for path in libraries.iterdir():
        if path.stat().st_size > MOST_IN_GIT:
            path.unlink()

    def git(*words: str) -> str:
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.invalid"]
        argv = ["git", "-C", str(libraries), *identity, *words]
        return run_process(argv, timeout_s=TIMEOUT_S).output.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "libraries")
    git("tag", "v1.0")
    commit = git("rev-parse", "HEAD")
    pin_artifact(course, "sources", CHECKOUT.format(url=libraries, commit=commit))


def pin_artifact(course: Course, name: str, release: str) -> None:
    manifest = course.work / "manifests" / "toolchains" / f"{name}.toml"
    manifest.write_text(COMMON.format(name=name) + release, encoding="utf-8")
