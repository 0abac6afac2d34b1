"""Build an image and what it is built on; a tag exists only for an image that is whole."""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.images.contents import save_image
from ci.images.context import write_context
from ci.images.definition import (
    LABEL,
    Base,
    ImagePlan,
    find_checkout,
    find_image,
    name_base,
    read_images,
)
from ci.images.engine import explain_error
from ci.images.normalize import normalize_image
from ci.images.wheels import fetch_wheels
from provisioning.console.progress import Progress
from provisioning.errors import ToolError, UsageError
from provisioning.store.store import store_home

if TYPE_CHECKING:
    from docker.client import DockerClient

STEP = re.compile(r"^(?:Step|STEP) (\d+)/(\d+) ?: (.*)")  # Docker, Podman
TAIL_LINES = 30
# 2026-01-01T00:00:00Z: the one time in an image, unless SOURCE_DATE_EPOCH is set.
TIME_S = 1767225600


@dataclass(frozen=True)
class Built:
    """An image that is there: its reference, its id, and whether it was made now."""

    reference: str
    image_id: str
    size_bytes: int
    fresh: bool


def plan_image(client: DockerClient, name: str, base: str = "") -> ImagePlan:
    """What ``name`` is made of on ``base``: a row of the manifest, or an image of one's own.

    Raises UsageError for an image that the engine does not have.
    """
    images = read_images()
    image = find_image(name)
    base_name = base or images.default_base
    if base_name in images.bases:
        row = images.bases[base_name]
        return ImagePlan(name, image, base_name, row, row.image, find_checkout())
    found = _find_local(client, base_name)
    python = _read_python(client, base_name, found)
    own = Base(image=base_name, python=python)
    return ImagePlan(name, image, name_base(base_name), own, found, find_checkout())


def _find_local(client: DockerClient, reference: str) -> str:
    from docker.errors import ImageNotFound

    try:
        return str(client.images.get(reference).id)
    except ImageNotFound as error:
        known = ", ".join(read_images().bases)
        raise UsageError(
            f"no base {reference!r}",
            why="no row of manifests/images.toml, and the engine has no image of that name",
            fix=f"docker pull it, or name one of: {known}",
        ) from error


def _read_python(client: DockerClient, reference: str, image_id: str) -> str:
    """The Python that the base's distribution has, by its release."""
    container = client.containers.create(image_id, ["true"])
    try:
        stream, _ = container.get_archive("/usr/lib/os-release")
        text = b"".join(stream).decode("utf-8", "replace")
    finally:
        container.remove()
    found = {key: value.strip('"') for key, value in re.findall(r"(?m)^(\w+)=(.*)$", text)}
    release = f"{found.get('ID')}-{found.get('VERSION_ID')}"
    if release not in PYTHONS:
        raise UsageError(
            f"{reference} is {release}, whose Python is not known here",
            fix="use a base of " + ", ".join(PYTHONS),
        )
    return PYTHONS[release]


PYTHONS = {
    "debian-12": "3.11",
    "debian-13": "3.13",
    "ubuntu-22.04": "3.10",
    "ubuntu-24.04": "3.12",
}


def build_image(
    client: DockerClient, name: str, progress: Progress, *, base: str = "", fresh: bool = False
) -> Built:
    """Build ``name`` and its parents, or find that they are there. ``fresh`` uses no cache.

    Raises UnfitError, UsageError, DownloadError, ToolError, StoreError.
    """
    below = find_image(name).parent
    parent = build_image(client, below, progress, base=base, fresh=fresh) if below else None
    plan = plan_image(client, name, base)
    found = None if fresh else find_built(client, plan)
    return found or _build_one(client, plan, progress, parent, fresh=fresh)


def find_built(client: DockerClient, plan: ImagePlan) -> Built | None:
    """The image of this plan, where the engine has it."""
    from docker.errors import ImageNotFound

    reference = plan.reference()
    try:
        image = client.images.get(reference)
    except ImageNotFound:
        return None
    return Built(reference, str(image.id), int(image.attrs["Size"]), fresh=False)


def _build_one(
    client: DockerClient, plan: ImagePlan, progress: Progress, parent: Built | None, *, fresh: bool
) -> Built:
    wheels = [] if parent else fetch_wheels(plan, progress)
    base = parent.image_id if parent else plan.base_digest
    staging = store_home() / "tmp"
    staging.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=staging, prefix="image-") as directory:
        context = Path(directory) / "context.tar"
        with context.open("wb") as file:
            write_context(file, plan, wheels)
        with context.open("rb") as file:
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
                nocache=fresh,
                rm=True,
                forcerm=True,
                decode=True,
            )
            raw_id = follow_build(answer, plan.name, progress)
        context.unlink()
        progress.step(f"{plan.name}: making its layers independent of time and machine")
        image_id = _load_normalized(client, raw_id, plan, base, Path(directory))
    reference = plan.reference()
    repository, tag = reference.split(":")
    client.api.tag(image_id, repository, tag)
    client.api.tag(image_id, repository, "latest")
    size = int(client.images.get(reference).attrs["Size"])
    return Built(reference, image_id, size, fresh=True)


def follow_build(events: Iterable[dict[str, Any]], name: str, progress: Progress) -> str:
    """Show the steps of a build and give the id of its image.

    Raises ToolError with the failing step's last lines, StoreError for a full disk.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    step, image_id, failure = "", "", None
    for event in events:
        for line in str(event.get("stream", "")).splitlines():
            if found := STEP.match(line):
                step = line
                progress.step(f"{name}: step {found[1]} of {found[2]}: {found[3][:60]}")
                tail.clear()
            elif line.strip():
                tail.append(line.rstrip())
        image_id = str((event.get("aux") or {}).get("ID", image_id))
        if "error" in event:
            failure = _explain_step(name, step, str(event["error"]), list(tail))
    if failure:
        raise failure
    if not image_id:
        raise ToolError(f"the engine built no image {name}", why="\n".join(tail))
    return image_id


def _explain_step(name: str, step: str, error: str, tail: list[str]) -> Exception:
    if "no space left on device" in " ".join([error, *tail]).lower():
        return explain_error(OSError("no space left on device: " + step))
    return ToolError(
        f"image {name} was not built: {step or 'the build did not start'}",
        why="\n".join([*tail, error]),
        fix="the lines above are the last of that step; nothing was tagged",
    )


def _load_normalized(
    client: DockerClient,
    raw_id: str,
    plan: ImagePlan,
    base: str,
    directory: Path,
) -> str:
    saved, target = directory / "saved.tar", directory / "image.tar"
    save_image(client, raw_id, saved)
    keep = len(client.images.get(base).attrs["RootFS"]["Layers"])
    labels = {f"{LABEL}.image": plan.name, f"{LABEL}.base": plan.base.image}
    normalize_image(saved, target, keep_layers=keep, time_s=TIME_S, labels=labels)
    saved.unlink()
    with target.open("rb") as file:
        (image,) = client.images.load(file)
    return str(image.id)
