"""Build an image and its parents, and write package locks. An image gets its tag only once it is
complete. A lock lists Python packages with their hashes for one version of Python, or apt packages
with their versions for one image on one base.

The Python packages are fetched with this machine's pip and its settings, and their hashes are
checked. The engine gets only the fetched files, not the indexes, credentials and proxies of this
machine, so no layer contains these.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from docker.client import DockerClient
from docker.errors import APIError, ImageNotFound
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from ci.images.definition import (
    BUILD_FILES,
    LABEL,
    SCRIPTS,
    ImagePlan,
    chain,
    find_image,
    plan_image,
    wanted_requirements,
)
from ci.images.engine import add_file, explain_error, is_full, normalize_image, save_image
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.documents import decode_json, open_regular, read_text
from provisioning.errors import DownloadError, QnnCiError, ToolError, UnfitError
from provisioning.files import write_whole
from provisioning.store.store import store_home

# QNN needs glibc 2.34, so the wheels may need it too.
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in range(34, 16, -1)), "manylinux2014_x86_64")
# torch may come from different indexes, with different bytes, so it has no hash.
UNHASHED = "torch"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A package that has no wheel (antlr4-python3-runtime) is built with these in the image.
SOURCE_BUILDERS = ("setuptools", "wheel")
# Packages that only a CUDA build of torch requires.
CUDA = re.compile(r"(nvidia|cuda|triton)(-|$)")


def resolve_lock(plan: ImagePlan, progress: Progress) -> str:
    """Return the requirements for the base's Python, each with its version and, except for torch,
    its hash.

    pip evaluates markers for the Python that runs it, so a Python of the base's version is needed.
    Raises UnfitError if there is none, and DownloadError if pip fails.
    """
    python = shutil.which(f"python{plan.base.python}")
    if python is None:
        raise UnfitError(
            f"python{plan.base.python} is not on PATH",
            why="pip resolves packages for the Python that runs it",
            fix=f"install this Python, or run this command in a container of {plan.base.image}",
        )
    progress.step(f"resolving the packages of Python {plan.base.python}")
    answer = _run_pip(
        # Without --ignore-installed, the report would lack what is installed here.
        ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"],
        [*wanted_requirements(plan.checkout), *SOURCE_BUILDERS],
        python,
    )
    # pip may print warnings before the report.
    rows = decode_json(answer[answer.index("{") :], dict[str, Any])["install"]
    return "".join(sorted(pin_lines(rows)))


def pin_lines(rows: Sequence[dict[str, dict[str, object]]]) -> Iterator[str]:
    """Yield the lines of a lock for the packages in pip's report, except those that only a CUDA
    build of torch needs.
    """
    for row in rows:
        name = str(row["metadata"]["name"]).lower().replace("_", "-")
        if CUDA.match(name):
            continue
        # A local version, such as +cpu, belongs to one index.
        pin = f"{name}=={str(row['metadata']['version']).split('+')[0]}"
        hashes = row["download_info"]["archive_info"]["hashes"]  # type: ignore[index]
        yield f"{pin}\n" if name == UNHASHED else f"{pin} --hash=sha256:{hashes['sha256']}\n"


def fetch_wheels(plan: ImagePlan, progress: Progress) -> list[Path]:
    """Fetch the packages in the lock into the store's downloads, and return their files.

    Raises UnfitError if there is no lock, and DownloadError if pip fails.
    """
    if not plan.python_lock.is_file():
        raise UnfitError(
            f"there is no package lock for Python {plan.base.python}",
            why=f"{plan.python_lock} is missing",
            fix=f"run `qnn-ci image lock {plan.name} --write` with the same --base",
        )
    lines = read_text(plan.python_lock).splitlines()
    directory = store_home() / "downloads" / "wheels" / f"python-{plan.base.python}"
    directory.mkdir(parents=True, exist_ok=True)
    hashed = directory / "requirements.txt"
    # torch apart, because --require-hashes refuses a list in which one line has no hash.
    hashed.write_text("".join(f"{line}\n" for line in lines if "--hash" in line), "utf-8")
    progress.step(f"fetching {len(lines)} wheels for Python {plan.base.python}")
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    target = ["--python-version", plan.base.python, *platforms]
    common = ["download", "--quiet", "--no-deps", "--dest", str(directory), *target]
    _run_pip(common, ["--require-hashes", "-r", hashed])
    _fetch_torch([*common, *(line for line in lines if "--hash" not in line)])
    pins = (line.split()[0].split("==") for line in lines)
    locked = {(canonicalize_name(name), version) for name, version in pins}
    # The directory is shared by several locks, and keeps wheels of earlier ones.
    return sorted(path for path in directory.iterdir() if read_pin(path) in locked)


def _fetch_torch(words: Sequence[str | Path]) -> None:
    """Fetch torch from the same index as ./nox.

    This is the index in QNN_CI_TORCH_INDEX. If the variable is empty or ``none``, it is pip's
    index. If the variable is not set, it is PyTorch's index for the CPU, or pip's index if that
    fails.
    """
    named = os.environ.get("QNN_CI_TORCH_INDEX")
    if named is None:
        try:
            # Short, so that a machine without access to this index soon tries pip's.
            _run_pip(words, ["--index-url", CPU_INDEX, "--timeout", "5", "--retries", "0"])
            return
        except DownloadError:
            named = ""
    _run_pip(words, ["--index-url", named] if named not in {"", "none"} else [])


def read_pin(path: Path) -> tuple[str, str] | None:
    """Return the normalized name of the package and its version, without a local part, for a wheel
    or a source archive. Return None for any other file."""
    parse = parse_wheel_filename if path.suffix == ".whl" else parse_sdist_filename
    try:
        name, version = parse(path.name)[:2]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return name, version.public


def _run_pip(
    command: Sequence[str | Path], words: Sequence[str | Path], python: str = sys.executable
) -> str:
    pip = [*module_command("pip", python), "--disable-pip-version-check", "--no-input"]
    argv = [*pip, *command, *words]
    try:
        return run_process(argv, fix="check pip's index, proxy and certificates").output
    except ToolError as error:
        raise DownloadError(
            "pip could not fetch the image's packages", why=error.why, fix=error.fix
        ) from error


STEP = re.compile(r"^(?:Step|STEP) (\d+)/(\d+) ?: (.*)")  # as Docker and Podman print it
TAIL_LINES = 30
# 2026-01-01T00:00:00Z: the time of everything that we add to an image.
TIME_S = 1767225600


@dataclass(frozen=True)
class Built:
    """An existing image. ``fresh`` is true if this run built it."""

    reference: str
    image_id: str
    size_bytes: int
    fresh: bool


def build_image(
    client: DockerClient, name: str, progress: Progress, *, base: str = "", fresh: bool = False
) -> Built:
    """Return the image ``name``. If the engine does not have it, build it, and its parents if
    needed.

    If ``fresh`` is true, always build it and its parents, without a cache. Raises:

    - UsageError for an unknown image or an unusable base
    - UnfitError if this project's checkout or a lock is missing
    - DownloadError if the base or a package cannot be downloaded
    - ToolError if the build fails
    - StoreError if the engine's disk is full
    """
    below = find_image(name).parent
    parent = build_image(client, below, progress, base=base, fresh=fresh) if below else None
    plan = plan_image(client, name, base)
    existing = None if fresh else find_built(client, plan)
    return existing or _build_one(client, plan, progress, parent, fresh=fresh)


def find_built(client: DockerClient, plan: ImagePlan) -> Built | None:
    """Return the image of ``plan``, or None if the engine does not have it."""
    reference = plan.reference()
    try:
        image = client.images.get(reference)
    except ImageNotFound:
        return None
    return Built(reference, str(image.id), int(image.attrs["Size"]), fresh=False)


def _build_one(
    client: DockerClient, plan: ImagePlan, progress: Progress, parent: Built | None, *, fresh: bool
) -> Built:
    if parent is None:
        pull_base(client, plan, progress)
    wheels = [] if parent else fetch_wheels(plan, progress)
    base = parent.image_id if parent else plan.base_digest
    staging = store_home() / "tmp"
    staging.mkdir(parents=True, exist_ok=True)
    # In the store and not in /tmp, which may be in memory: a saved image is large.
    with tempfile.TemporaryDirectory(dir=staging, prefix="image-") as directory:
        context = Path(directory) / "context.tar"
        with context.open("wb") as file:
            write_context(file, plan, wheels)
        with open_regular(context) as file:
            answer = client.api.build(
                fileobj=file,
                custom_context=True,
                dockerfile="docker/Dockerfile",
                target="packages" if parent else "emulator",
                buildargs={
                    "BASE": base,
                    "IMAGE": plan.name,
                    "SNAPSHOT": plan.base.snapshot,
                    "SOURCE_DATE_EPOCH": str(TIME_S),
                },
                labels={
                    f"{LABEL}.image": plan.name
                },  # by this label, Docker finds the images of an interrupted build
                nocache=fresh,
                rm=True,
                forcerm=True,
                decode=True,
            )
            raw_id = follow_build(answer, plan.name, progress)
        context.unlink()
        progress.step(f"{plan.name}: removing times and machine names from the layers")
        saved, target = Path(directory, "saved.tar"), Path(directory, "image.tar")
        save_image(client, raw_id, saved)
        keep = len(client.images.get(base).attrs["RootFS"]["Layers"])
        normalize_image(saved, target, keep_layers=keep, time_s=TIME_S, labels=plan.labels())
        saved.unlink()
        with open_regular(target) as file:
            (image,) = client.images.load(file)
    repository, _, tag = plan.reference().partition(":")
    for name in (tag, "latest"):
        client.api.tag(str(image.id), repository, name)
    size_bytes = int(client.images.get(str(image.id)).attrs["Size"])
    return Built(plan.reference(), str(image.id), size_bytes, fresh=True)


def pull_base(client: DockerClient, plan: ImagePlan, progress: Progress) -> None:
    """Pull the base of ``plan`` unless the engine has it.

    Raises DownloadError, or StoreError if the engine's disk is full.
    """
    with suppress(ImageNotFound):
        client.images.get(plan.base_digest)
        return
    progress.step(f"pulling {plan.base.image}")
    try:
        events = list(client.api.pull(plan.base.image, stream=True, decode=True))
    except APIError as error:
        events = [{"error": str(error.explanation or error)}]
    # The engine answers with status 200 before it pulls, so an error is only an event.
    if why := next((str(event["error"]) for event in events if "error" in event), ""):
        if is_full(why):
            raise explain_error(OSError(why))
        raise DownloadError(
            f"the base {plan.base_name} cannot be pulled",
            why=why,
            fix="give the engine access to the registry or to a mirror, or load the image into the"
            " engine and pass its name with --base",
        )


def follow_build(events: Iterable[dict[str, Any]], name: str, progress: Progress) -> str:
    """Show the steps of a build and return the id of its image.

    Raises ToolError with the last lines of the step that failed, or StoreError if the disk is full.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    step, image_id = "", ""
    failure: QnnCiError | None = None
    for event in events:
        for line in str(event.get("stream", "")).splitlines():
            if match := STEP.match(line):
                step = line
                progress.step(f"{name}: step {match[1]} of {match[2]}: {match[3][:60]}")
                # Only what the failed step printed explains it.
                tail.clear()
            elif line.strip():
                tail.append(line.rstrip())
        # The engine sends the id in an event of its stream, and may send several.
        image_id = str((event.get("aux") or {}).get("ID", image_id))
        if "error" in event:
            error = str(event["error"])
            failure = ToolError(
                f"image {name} was not built: {step or 'the build did not start'}",
                why="\n".join([*tail, error]),
                fix="read the last lines of that step above; the image was not tagged",
            )
            # A full disk appears in the output of the tool that could not write, and the engine
            # only reports an exit code.
            if is_full(" ".join([error, *tail])):
                failure = explain_error(OSError("no space left on device: " + step))
    if failure:
        raise failure
    if not image_id:
        raise ToolError(
            f"the container engine returned no ID for the image {name}", why="\n".join(tail)
        )
    return image_id


def write_context(file: IO[bytes], plan: ImagePlan, wheels: list[Path]) -> None:
    """Write the build context: a tar with files of this project and ``wheels``.

    ``wheels`` is empty for an image with a parent, because it inherits the parent's packages.
    """
    names = [f"docker/{name}" for name in (*SCRIPTS, f"packages/{plan.name}.txt")]
    members = {name: plan.checkout / name for name in (*names, *BUILD_FILES)}
    members.update({f"wheels/{path.name}": path for path in wheels})
    if plan.apt_lock.is_file():
        members["locks/apt.lock"] = plan.apt_lock
    with tarfile.open(fileobj=file, mode="w") as archive:
        for directory in ("locks", "wheels"):
            info = tarfile.TarInfo(directory)
            # Both directories always exist, because COPY in a Dockerfile fails without its source.
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for inside, path in sorted(members.items()):
            mode = 0o755 if path.suffix in ("", ".sh") and path.name != "Dockerfile" else 0o644
            add_file(archive, inside, path, mode)


PACKAGES = "/opt/qnn-ci/packages"


def write_locks(
    client: DockerClient, name: str, progress: Progress, *, base: str = "", write: bool = False
) -> str:
    """Make new locks for the image ``name``, and return how they differ from the existing ones. If
    ``write`` is true, also replace the existing locks.

    Only a base without a snapshot needs a lock of apt packages. It is made by building the image
    and listing its packages. It is left out if there is still no lock of Python packages, because
    the image cannot be built then.
    """
    first = plan_image(client, chain(name)[0], base)
    diff = _change(first.python_lock, resolve_lock(first, progress), write=write)
    for member in chain(name):
        plan = plan_image(client, member, base)
        if not plan.base.snapshot and first.python_lock.is_file():
            built = build_image(client, member, progress, base=base)
            output = client.containers.run(
                built.image_id, ["cat", f"{PACKAGES}/{member}.txt"], entrypoint="", remove=True
            )
            diff += _change(plan.apt_lock, output.decode("utf-8"), write=write)
    return diff


def _change(path: Path, text: str, *, write: bool) -> str:
    before = read_text(path) if path.is_file() else ""
    if write and before != text:
        write_whole(path, text)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), text.splitlines(keepends=True), path.name, path.name, n=0
    )
    return "".join(lines)
