"""Libraries of several versions of QNN's wheels, in the shape of an SDK, for benchmarks only.

Only the pinned version has hashes; the others are not for use, so they never enter the store.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import msgspec

from provisioning.archives.layout import Layout
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import ToolError
from provisioning.manifest.reader import read_toolchain
from provisioning.manifest.releases import WheelRelease

ARTIFACTS = ("qnn-runtime", "qnn-runtime-aarch64")
VERSIONS = ("2.3.0", "2.4.0", "2.5.0", "2.6.0", "2.7.0")
TIMEOUT_S = 1800


def unpack_versions(tree: Path, downloads: Path, progress: Progress) -> list[Path]:
    """Roots of one tree a version below ``tree``, of those that pip can bring."""
    roots = []
    for version in VERSIONS:
        root = tree / version
        for name in ARTIFACTS:
            release = read_toolchain(name).release()
            assert isinstance(release, WheelRelease)
            wheel = _download(
                msgspec.structs.replace(release, package_version=version), downloads, progress
            )
            if wheel:
                _unpack(wheel, release, root)
        if root.is_dir():
            roots.append(root)
    return roots


def _download(release: WheelRelease, downloads: Path, progress: Progress) -> Path | None:
    """The wheel of a version, None where the index has none for this platform's tag or older."""
    directory = downloads / f"{release.package_version}-{release.platform}"
    if not any(directory.glob("*.whl")):
        progress.step(f"bench: {release.package} {release.package_version}, {release.platform}")
        words = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        words += ["--quiet", "--disable-pip-version-check", "--python-version", release.python]
        words += [word for tag in _tags(release.platform) for word in ("--platform", tag)]
        words += ["--dest", str(directory), f"{release.package}=={release.package_version}"]
        try:
            run_process(words, timeout_s=TIMEOUT_S)
        except ToolError as error:
            progress.step(f"bench: left out: {error.why.splitlines()[-1]}")
    return next(directory.glob("*.whl"), None)


def _tags(platform: str) -> list[str]:
    """manylinux_2_17_x to manylinux_2_40_x of manylinux_2_35_x."""
    machine = platform.split("_", 3)[3]
    return [f"manylinux_2_{minor}_{machine}" for minor in range(17, 41)]


def _unpack(wheel: Path, release: WheelRelease, root: Path) -> None:
    layout = Layout([(rule.take, rule.put) for rule in release.layout])
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            place = layout.place(member.filename)
            if ".so" in place:
                (root / place).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, (root / place).open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
