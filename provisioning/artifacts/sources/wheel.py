"""Fetch a pinned wheel with pip, so that the user's index, proxy and certificates are used.

The wheel is kept in downloads/, so that a repair needs no network. If the same wheel is installed
in this Python and all its files match the lock, they are copied, and nothing is fetched.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path, PurePosixPath

import msgspec
from packaging.utils import parse_wheel_filename

from provisioning.archives.zipfiles import FileSource, read_directory
from provisioning.artifacts.sources import LEAVE_OFFLINE, FillJob, copy_to_mirror
from provisioning.artifacts.sources.downloads import (
    cannot_fetch,
    find_mismatch,
    obtain_file,
    pin_of,
)
from provisioning.artifacts.sources.unpacking import (
    complete_tree,
    copy_file,
    select_members,
    unpack_file,
)
from provisioning.console.process import module_command, run_process
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import DownloadError, IntegrityError, ToolError, UnfitError
from provisioning.fetch.download import FILE_MODE, fetch_file, mirror_urls
from provisioning.files import SPARE_BYTES, hash_file, mib
from provisioning.manifest.releases import WheelRelease
from provisioning.quoting import show_command
from provisioning.store.tree import TreeEntry
from provisioning.versions import is_older, is_same

# In a pattern that re.escape returned, so with backslashes before - and the dot.
HASHED = re.compile(r"\\-[0-9a-f]+(?=\\\.)")
GLIBCS = range(5, 46)  # the minor versions of manylinux tags
ADVICE = "check pip's index and proxy (pip config list)"


def fill(job: FillJob) -> tuple[TreeEntry, ...]:
    """Write the wheel's files: from this Python if the same wheel is installed in it, else from the
    wheel in downloads/, which is fetched if it is missing.
    """
    if installed := find_installed(job):
        return copy_installed(job, installed)
    return unpack_file(obtain_wheel(job), job)


def find_installed(job: FillJob) -> dict[str, Path]:
    """Return the wanted files of the wheel as it is installed in this Python, by their paths in the
    tree. The result is empty if another version or platform is installed, if a file differs from
    the lock, or if the wheel is in downloads/ already."""
    release = job.request.release_as(WheelRelease)
    try:
        package = metadata.distribution(release.package)
        files, tags = package.files or (), package.read_text("WHEEL") or ""
    # An installed wheel only saves a download: without it, the wheel is fetched.
    except (metadata.PackageNotFoundError, OSError):
        return {}
    # The same version exists for several platforms, whose libraries differ.
    is_pinned = is_same(package.version, release.package_version) and release.platform in tags
    if not is_pinned or not job.locked or (job.store.downloads / release.filename).exists():
        return {}
    layout = job.request.layout()
    placed = {layout.place(file.as_posix()): Path(str(file.locate())) for file in files}
    generated = {*release.links, *release.write}
    installed = {}
    for entry in job.locked:
        if entry.path in generated:
            continue
        path = placed.get(entry.path)
        if not path or not path.is_file() or hash_file(path) != entry.sha256:
            reason = f"{entry.path} of the installed {release.package} does not match the lock"
            job.progress.step(f"{job.request.label}: {reason}, so the wheel is fetched")
            return {}
        installed[entry.path] = path
    return installed


def copy_installed(job: FillJob, files: Mapping[str, Path]) -> tuple[TreeEntry, ...]:
    """Copy installed files to their paths in the tree. Raises OSError."""
    release = job.request.release_as(WheelRelease)
    name = f"{release.package} {release.package_version}"
    total = sum(path.stat().st_size for path in files.values())
    action = f"copying {mib(total)} of the installed {name}, whose files match the lock"
    job.progress.step(f"{job.request.label}: {action}")
    job.store.check_space(total, job.request.label)
    modes = {entry.path: entry.mode for entry in job.locked}
    entries = [copy_file(path, job.root, target, modes[target]) for target, path in files.items()]
    return complete_tree(job, entries, {}, name)


def mirror(job: FillJob, directory: Path) -> list[Path]:
    """Copy the wheel to ``directory``, and return its path there."""
    return [copy_to_mirror(obtain_wheel(job), directory)]


def find_release(job: FillJob, version: str) -> WheelRelease:
    """Return the release of ``version`` that pip selects for the pinned release's Python version
    and machine.

    '' means the newest version that the cooldown allows. If that is older than the pinned version,
    return the pinned release.
    """
    old = job.request.release_as(WheelRelease)
    wheel = _download_version(job, old, version)
    new = describe_wheel(old, wheel)
    if (new.filename, new.sha256) == (old.filename, old.sha256):
        return old
    if not version and is_older(new.package_version, old.package_version):
        return old  # the pinned version is newer than the cooldown allows
    download = wheel.replace(job.store.downloads / wheel.name)
    job.store.note_download(wheel.name)
    job = replace(job, request=replace(job.request, release=new), root=job.root / "tree")
    with closing(FileSource(download)) as source:
        paths = [path for path, _ in select_members(source, job)]
    new = msgspec.structs.replace(new, links=follow_links(new.links, paths))
    job.root.mkdir()
    unpack_file(download, replace(job, request=replace(job.request, release=new)))
    return msgspec.structs.replace(new, version=stated_version(job.root) or new.package_version)


def describe_wheel(old: WheelRelease, wheel: Path) -> WheelRelease:
    """Return ``old`` with the version, file name, platform, sizes and hash of another wheel."""
    _, version, _, _ = parse_wheel_filename(wheel.name)
    with closing(FileSource(wheel)) as source:
        unpacked_bytes = sum(member.size for member in read_directory(source))
    return msgspec.structs.replace(
        old,
        package_version=str(version),
        filename=wheel.name,
        # A file name may have several platform tags, separated by dots; pip accepts any of them.
        platform=wheel.stem.rpartition("-")[2].partition(".")[0],
        size_bytes=wheel.stat().st_size,
        sha256=hash_file(wheel),
        unpacked_bytes=max(old.unpacked_bytes, unpacked_bytes),
    )


def follow_links(links: Mapping[str, str], paths: Collection[str]) -> dict[str, str]:
    """Return ``links`` with the names that their targets have in the new tree, which contains
    ``paths``. They may change, because auditwheel puts a hash into the names of libraries.

    Raises IntegrityError if a target matches no file, or several.
    """
    new_links = {}
    for link, end in links.items():
        directory = str(PurePosixPath(link).parent)
        pattern = re.compile(HASHED.sub("-[0-9a-f]+", re.escape(end)))
        names = [path.name for path in map(PurePosixPath, paths) if str(path.parent) == directory]
        fitting = [name for name in names if name == end] or list(filter(pattern.fullmatch, names))
        if len(fitting) != 1:
            has = ", ".join(fitting) or "no such file"
            raise IntegrityError(
                f"the link {link} needs {end}; this wheel has {has}",
                why="a library that needs the link would not find it",
                fix="correct `links` in the artifact's manifest by hand",
            )
        new_links[link] = fitting[0]
    return new_links


def stated_version(root: Path) -> str:
    """Return the most common QNN version in the libraries, or '' if none contains one."""
    builds = map(find_qnn_build, sorted(root.rglob("lib*.so")))
    counted = Counter(build.version for build in builds if build and build.version)
    return counted.most_common(1)[0][0] if counted else ""


def _download_version(job: FillJob, old: WheelRelease, version: str) -> Path:
    if job.request.options.offline:
        raise cannot_fetch(job, "--offline was given", LEAVE_OFFLINE)
    machine = re.sub(r"manylinux_2_\d+_", "", old.platform)
    # With --platform, pip accepts only the tags that are listed, not older ones that are
    # compatible.
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBCS]
    requirement = f"{old.package}=={version}" if version else old.package
    job.progress.step(f"{job.request.name}: fetching {requirement} with pip")
    arguments = ["--dest", str(job.root), requirement]
    if days := job.request.options.cooldown_days:
        arguments.append(f"--uploaded-prior-to=P{days}D")
    if machine == old.platform:
        platforms = [old.platform]
    try:
        with job.progress.waiting(job.request.name):
            download_with_pip(requirement, platforms, old.python, arguments)
    except DownloadError as error:
        of = f"{old.package}, of which {old.package_version} contains {job.request.label}"
        newest = show_command("update", job.request.name)
        fix = f"name a version of {of} ({newest} shows what the newest one contains)"
        fix += ", or lower --cooldown" if days else ""
        raise DownloadError(error.what, why=error.why, fix=f"{fix}; {error.fix}") from error
    # Exactly one, because of --no-deps.
    (wheel,) = job.root.glob("*.whl")
    return wheel


def obtain_wheel(job: FillJob) -> Path:
    """Return the verified wheel in downloads/, fetched from QNN_CI_MIRROR or else with pip.

    Raises the errors of obtain_file.
    """
    release = job.request.release_as(WheelRelease)

    def fetch(target: Path) -> None:
        if urls := mirror_urls(release.filename, release.sha256):
            with suppress(DownloadError, IntegrityError):  # fetch_file printed the error; try pip
                fetch_file(urls, target, pin_of(release), job.progress)
                return
        _fetch_with_pip(job, target)

    return obtain_file(job, fetch, ADVICE)


def _fetch_with_pip(job: FillJob, target: Path) -> None:
    request, release = job.request, job.request.release_as(WheelRelease)
    if not release.sha256:
        raise IntegrityError(
            f"{request.label} has no known SHA-256 to check it against",
            why="a wheel is fetched with pip only by its hash",
            fix=f"add `sha256` to its release in manifests/toolchains/{request.name}.toml",
        )
    size = mib(release.size_bytes)
    job.progress.step(f"{request.label}: fetching {release.filename} ({size}) with pip")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=target.parent) as scratch:
        directory = Path(scratch)
        requirements = directory / "requirements.txt"
        pin = f"{release.package}=={release.package_version}"
        requirements.write_text(f"{pin} --hash=sha256:{release.sha256}\n", encoding="utf-8")
        # pip accepts hashes only in a file of requirements.
        arguments = ["--require-hashes", "--dest", scratch, "--requirement", str(requirements)]
        with job.progress.waiting(request.label):
            most_bytes = release.size_bytes + SPARE_BYTES if release.size_bytes else 0
            platforms = [release.platform]
            download_with_pip(
                release.filename, platforms, release.python, arguments, most_bytes=most_bytes
            )
        fetched = directory / release.filename
        if not fetched.is_file():
            names = ", ".join(sorted(path.name for path in directory.glob("*.whl"))) or "nothing"
            raise DownloadError(release.filename, why=f"pip downloaded {names}")
        if problem := find_mismatch(fetched, pin_of(release)):
            raise IntegrityError(
                f"{release.filename} is not the pinned wheel",
                why=problem,
                fix="the index has a different file under this name: check pip's index",
            )
        fetched.chmod(FILE_MODE)
        fetched.replace(target)


def download_with_pip(
    label: str,
    platforms: Sequence[str],
    python: str,
    arguments: Sequence[str],
    *,
    most_bytes: int = 0,
) -> None:
    """Download a wheel with pip for the Python version ``python`` and one of ``platforms``.
    ``arguments`` are those of pip that select the wheel and the directory; ``label`` is the
    wheel's name in messages. No file that pip writes exceeds ``most_bytes``, unless that is 0.

    Raises DownloadError with pip's message, and UnfitError if this Python has no pip.
    """
    if importlib.util.find_spec("pip") is None:
        raise UnfitError(
            "this Python has no pip, which is needed to fetch wheels",
            why=f"{sys.executable} cannot import it",
            fix=f"run `{sys.executable} -m ensurepip`",
        )
    command = module_command("pip", most_bytes=most_bytes)
    # pip requires --only-binary with --platform; it would build a source archive for this machine.
    argv = [*command, "download", "--no-deps", "--only-binary", ":all:"]
    argv += [word for platform in platforms for word in ("--platform", platform)]
    # Not this Python's version, so that every Python gets the same wheel.
    argv += ["--python-version", python, "--implementation", "cp"]
    # Without --no-input, pip would ask for a login and wait for the answer.
    argv += ["--disable-pip-version-check", "--progress-bar", "off", "--no-input", *arguments]
    try:
        run_process(argv, timeout_s=3600)
    except ToolError as error:
        raise DownloadError(
            f"{label} could not be fetched",
            why=_last_words(error.why),
            fix="check the version, and pip's index and proxy (pip config list)",
        ) from error


def _last_words(output: str) -> str:
    """Return the reason in pip's ``output``. A broken connection is stated first, since pip's last
    line does not show it.
    """
    lines = output.splitlines()
    error_lines = [line for line in lines if line.startswith("ERROR:")] or lines[-1:]
    reasons = [line.removeprefix("ERROR:").strip() for line in error_lines]
    if broken := re.search(r"connection broken by '(\w+)", output):
        reasons.insert(0, f"the package index cannot be reached ({broken[1]})")
    return "; ".join(reasons)
