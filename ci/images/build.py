"""Build an image and its parents, and write package locks. An image gets its tag only once it is
complete. A package lock lists apt packages with their versions for one image on one base.

The Python packages are fetched with this machine's pip and its settings, and their hashes are
checked. The engine gets only the fetched files, not the indexes, credentials and proxies of this
machine, so no layer contains these.
"""

from __future__ import annotations

import difflib
import os
import re
import tarfile
import tempfile
import zipfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PathDistribution
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
    LABEL,
    LOCKS,
    SCRIPTS,
    ImagePlan,
    chain,
    find_image,
    plan_image,
    python_locks,
)
from ci.images.engine import add_file, explain_error, is_full, normalize_image, save_image
from ci.packages.locks import CUDA, list_pins
from ci.packages.torch_builds import list_indexes, point_pip
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.documents import open_regular, read_text
from provisioning.errors import DownloadError, QnnCiError, ToolError
from provisioning.files import write_whole
from provisioning.store.home import store_home

# QNN needs glibc 2.34, so the wheels may need it too.
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in range(34, 16, -1)), "manylinux2014_x86_64")


def fetch_wheels(plan: ImagePlan, progress: Progress) -> list[Path]:
    """Fetch the locked packages into the store's downloads, and return their files.

    Raises DownloadError if pip fails, or if torch is a CUDA build.
    """
    directory = store_home() / "downloads" / "wheels" / f"python-{plan.base.python}"
    directory.mkdir(parents=True, exist_ok=True)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    target = ["--python-version", plan.base.python, *platforms]
    common = ["download", "--quiet", "--no-deps", "--dest", str(directory), *target]
    locked: set[tuple[str, str]] = set()
    for lock in LOCKS:
        pins = [*list_pins(lock.path, plan.base.python)]
        progress.step(f"fetching {len(pins)} packages of {lock.name} for Python {plan.base.python}")
        # pip would evaluate conditions for the Python that runs it.
        requirements = directory / "requirements.txt"
        requirements.write_text("".join(f"{drop_marker(line)}\n" for _, line in pins), "utf-8")
        _run_pip([*common, "--require-hashes", "-r", requirements], {})
        locked |= {(canonicalize_name(pin.name), str(pin.specifier)) for pin, _ in pins}
        if lock.torch:
            _fetch_torch([*common, f"torch=={lock.torch}"])
            locked.add(("torch", f"=={lock.torch}"))
    # The directory is shared by several locks, and keeps wheels of earlier ones.
    wheels = sorted(path for path in directory.iterdir() if read_pin(path) in locked)
    for path in wheels:
        if path.name.startswith("torch-") and needs_cuda(path):
            raise DownloadError(
                f"{path.name} is a CUDA build of torch",
                why="an image with CUDA's libraries would have 5 GB more",
                fix="set QNN_CI_TORCH_INDEX to the URL of an index that has CPU builds of torch",
            )
    return wheels


def drop_marker(line: str) -> str:
    """Return the line of a lock without its condition."""
    pin, _, hashes = line.partition(" --hash")
    return f"{pin.partition(';')[0].strip()} --hash{hashes}"


def needs_cuda(wheel: Path) -> bool:
    """Return whether a wheel of torch depends on CUDA's packages."""
    about = "-".join(wheel.name.split("-")[:2])
    torch = PathDistribution(zipfile.Path(wheel, f"{about}.dist-info/"))
    return any(CUDA.match(need) for need in torch.requires or ())


def _fetch_torch(words: Sequence[str | Path]) -> None:
    """Fetch torch from the first index that has it, as ./nox does."""
    *other_indexes, last_index = list_indexes()
    for index in other_indexes:
        with suppress(DownloadError):
            _run_pip(words, point_pip(index))
            return
    _run_pip(words, point_pip(last_index))


def read_pin(path: Path) -> tuple[str, str] | None:
    """Return the normalized name of the package and "==" with its version, without a local part,
    for a wheel or a source archive. Return None for any other file."""
    parse = parse_wheel_filename if path.suffix == ".whl" else parse_sdist_filename
    try:
        name, version = parse(path.name)[:2]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return name, f"=={version.public}"


def _run_pip(words: Sequence[str | Path], variables: Mapping[str, str]) -> None:
    """Run pip with additional variables."""
    pip = [*module_command("pip"), "--disable-pip-version-check", "--no-input"]
    env = {**os.environ, **variables}
    try:
        run_process([*pip, *words], env=env, fix="check pip's index, proxy and certificates")
    except ToolError as error:
        raise DownloadError(
            "pip could not fetch the image's packages", why=error.why, fix=error.fix
        ) from error


STEP = re.compile(r"^(?:Step|STEP) (\d+)/(\d+) ?: (.*)")  # as Docker and Podman print it
TAIL_LINES = 30
# What to do if a step fails, by the script that it runs.
STEP_FIXES = {
    "packages.sh": "give the engine's build containers access to the base's package archive, or"
    " pass --base with a local image whose apt uses an archive that they can reach"
    " (docs/guides/docker.md#bases)",
    "environments.sh": "remove {wheels}, so that the Python packages are downloaded again, or pass"
    " --base with another image (docs/guides/docker.md#bases)",
}
OTHER_STEP_FIX = "check that the engine can start a container: `docker run --rm {base} true`"
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
            raw_id = follow_build(answer, plan.name, base, progress)
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


def follow_build(events: Iterable[dict[str, Any]], name: str, base: str, progress: Progress) -> str:
    """Show the steps of a build on the image ``base``, and return the id of the new image.

    Raises ToolError with the last lines of the step that failed and what to do, or StoreError if
    the disk is full.
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
                fix=find_step_fix(step, base),
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


def find_step_fix(step: str, base: str) -> str:
    """Return what to do about the step of a build that failed."""
    texts = (text for script, text in STEP_FIXES.items() if script in step)
    text = next(texts, OTHER_STEP_FIX)
    return text.format(base=base, wheels=store_home() / "downloads" / "wheels")


def write_context(file: IO[bytes], plan: ImagePlan, wheels: list[Path]) -> None:
    """Write the build context, a tar: the files in docker/, locks, and ``wheels``.

    ``wheels`` is empty for an image with a parent, because it inherits the parent's packages.
    """
    names = [f"docker/{name}" for name in (*SCRIPTS, f"packages/{plan.name}.txt")]
    members = {name: plan.checkout / name for name in names}
    if wheels:
        members.update({f"python/{path.name}": path for path in python_locks()})
        members.update({f"wheels/{path.name}": path for path in wheels})
    if plan.apt_lock.is_file():
        members["locks/apt.lock"] = plan.apt_lock
    with tarfile.open(fileobj=file, mode="w") as archive:
        for directory in ("locks", "python", "wheels"):
            info = tarfile.TarInfo(directory)
            # They always exist, because COPY in a Dockerfile fails without its source.
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for inside, path in sorted(members.items()):
            mode = 0o755 if path.suffix == ".sh" else 0o644
            add_file(archive, inside, path, mode)


PACKAGES = "/opt/qnn-ci/packages"


def write_locks(
    client: DockerClient, name: str, progress: Progress, *, base: str = "", write: bool = False
) -> str:
    """Make new locks of apt packages for the image ``name`` and its parents, and return how they
    differ from the existing ones. If ``write`` is true, also replace the existing locks.

    Only a base without a snapshot needs them. They are made by building the image and listing its
    packages.
    """
    diff = ""
    for member in chain(name):
        plan = plan_image(client, member, base)
        if not plan.base.snapshot:
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
