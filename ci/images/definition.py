"""The definition of an image, from manifests/images.toml and docker/. The image's tag is a digest
of everything that determines its content.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
from docker.client import DockerClient
from docker.errors import ImageNotFound

from ci.images.engine import read_file
from ci.packages.locks import Lock
from provisioning.console.git import ask_git
from provisioning.documents import read_text
from provisioning.errors import ToolError, UnfitError, UsageError
from provisioning.files import hash_file, write_whole
from provisioning.manifest.reader import find_row, manifests_root, read_toml

REPOSITORY = "executorch-qnn-ci"
LABEL = "executorch-qnn-ci"
SCRIPTS = ("Dockerfile", "packages.sh", "environments.sh", "entry.sh")
APT_LOCKS = "locks/images"  # the directory with the locks of apt packages
SOURCES = ("docker", "manifests/images.toml", "manifests/locks")
REMEMBERED = ".nox/image-base"
# 64 bits, which suffice to tell images apart, and can be read in a list.
TAG_DIGITS = 16
# The environments of an image. ./nox runs in the first one.
LOCKS = (Lock("bootstrap"), Lock("core"), Lock("lowering"))
# The Python version of each distribution, for a user's own base.
PYTHONS = {
    "debian-12": "3.11",
    "debian-13": "3.13",
    "ubuntu-22.04": "3.10",
    "ubuntu-24.04": "3.12",
}


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A base image: a reference with a digest, and the version of its Python. ``snapshot`` is the
    snapshot of its package archive, or "" if it has none.
    """

    image: str
    python: str
    snapshot: str = ""


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image in manifests/images.toml. ``budget_mb`` limits its size in MB (10^6 bytes), and
    ``profile`` is the profile that its dev shell uses. ``parent`` is the image that it extends, or
    "" if it is built on a base.
    """

    summary: str
    profile: str
    budget_mb: int
    parent: str = ""


class Images(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of manifests/images.toml."""

    default_base: str
    bases: dict[str, Base]
    images: dict[str, Image]


@dataclass(frozen=True)
class ImagePlan:
    """One image on one base, with everything that determines the image and therefore its tag.

    ``base`` is a base in manifests/images.toml or the user's own image. ``base_digest`` is the
    base's reference with a digest, or the id of the user's image.
    """

    name: str
    image: Image
    base_name: str
    base: Base
    base_digest: str
    checkout: Path

    @property
    def apt_lock(self) -> Path:
        """The lock of apt packages, one name=version per line. Only a base without a snapshot needs
        it.
        """
        return manifests_root() / APT_LOCKS / f"{self.base_name}-{self.name}.apt.txt"

    def inputs(self) -> dict[str, str]:
        """Map the name of each input that determines the image to the input's SHA-256, or to the
        input itself.
        """
        docker = self.checkout / "docker"
        files = [docker / name for name in SCRIPTS]
        files += [docker / "packages" / f"{name}.txt" for name in chain(self.name)]
        files += python_locks()
        if self.apt_lock.is_file():
            files.append(self.apt_lock)
        return {
            "base": self.base_digest,
            "snapshot": self.base.snapshot,
            **{path.name: hash_file(path) for path in files},
        }

    def labels(self) -> dict[str, str]:
        """Return labels that state the origin of the image: its commit, its inputs and its base."""
        return {
            f"{LABEL}.image": self.name,
            f"{LABEL}.base": self.base.image,
            f"{LABEL}.pins": json.dumps(self.inputs(), sort_keys=True),
            "org.opencontainers.image.revision": describe_revision(self.checkout),
        }

    def reference(self) -> str:
        """Return ``executorch-qnn-ci/NAME:TAG``, where the tag is a digest of the inputs."""
        text = "\n".join(f"{name} {value}" for name, value in sorted(self.inputs().items()))
        tag = hashlib.sha256(text.encode()).hexdigest()[:TAG_DIGITS]
        return f"{REPOSITORY}/{self.name}:{tag}"


def python_locks() -> list[Path]:
    """Return the locks of the packages in an image's environments."""
    return [path for lock in LOCKS for path in lock.files()]


def read_images() -> Images:
    """Read manifests/images.toml. Raises ManifestError if the file is invalid."""
    return read_toml("images.toml", Images)


def find_image(name: str) -> Image:
    """Return the image ``name``. Raises UsageError with the existing names if there is none."""
    return find_row(read_images().images, name, "image")


def chain(name: str) -> list[str]:
    """Return the names of the image and its parents, starting with the one that has no parent."""
    image = find_image(name)
    return [*(chain(image.parent) if image.parent else []), name]


def find_checkout() -> Path:
    """Return the checkout that contains this code. Raises UnfitError if it has no
    docker/Dockerfile.
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "docker" / "Dockerfile").is_file():
        raise UnfitError(
            "images can only be built from a checkout",
            why=f"{checkout} has no docker/Dockerfile",
            fix="clone executorch-qnn-ci and run `./nox -s docker_build -- emulator` in it",
        )
    return checkout


def recall_base(checkout: Path) -> str:
    """Return the base that ``remember_base`` wrote in ``checkout``, or "" if there is none."""
    file = checkout / REMEMBERED
    return read_text(file).strip() if file.is_file() else ""


def remember_base(checkout: Path, base: str) -> None:
    """Remember ``base`` for later builds in ``checkout`` that do not specify a base."""
    if recall_base(checkout) != base:
        (checkout / REMEMBERED).parent.mkdir(exist_ok=True)
        write_whole(checkout / REMEMBERED, f"{base}\n")


def describe_revision(checkout: Path) -> str:
    """Return the commit that last changed the sources of images, followed by ``+changes`` if the
    sources have uncommitted changes.

    The result is empty outside a repository, or if git is missing.
    """
    try:
        commit = ask_git(checkout, "log", "-1", "--format=%H", "--", *SOURCES).decode().strip()
        changed = ask_git(checkout, "status", "--porcelain", "--", *SOURCES)
    except ToolError:
        return ""
    return f"{commit}+changes" if commit and changed else commit


def name_base(reference: str) -> str:
    """Return the name of the user's own base in file names: ``debian-bookworm`` for
    ``debian:bookworm``."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", reference.split("@", maxsplit=1)[0]).strip("-")


def plan_image(client: DockerClient, name: str, base: str = "") -> ImagePlan:
    """Return the plan of the image ``name`` on ``base``.

    ``base`` is the name of a base in manifests/images.toml or of an image in the engine, or "" for
    the default base. Raises UsageError if there is no such image or base, or if the version of the
    base's Python is unknown.
    """
    images = read_images()
    image = find_image(name)
    base_name = base or images.default_base
    if base_name in images.bases:
        row = images.bases[base_name]
        return ImagePlan(name, image, base_name, row, row.image, find_checkout())
    try:
        # The id instead of the name, which may mean another image tomorrow.
        image_id = str(client.images.get(base_name).id)
    except ImageNotFound as error:
        raise UsageError(
            f"there is no base {base_name!r}",
            why="manifests/images.toml does not list it, and the engine has no image of that name",
            fix=f"run `docker pull {base_name}`, or use one of: {', '.join(images.bases)}",
        ) from error
    chosen_base = Base(image=base_name, python=_read_python(client, base_name, image_id))
    return ImagePlan(name, image, name_base(base_name), chosen_base, image_id, find_checkout())


def _read_python(client: DockerClient, reference: str, image_id: str) -> str:
    """Return the Python version of the base's distribution, which follows from its release. Raises
    UsageError if the release is unknown.
    """
    # Created, not started: files can be read from a container that never ran.
    container = client.containers.create(image_id, ["true"])
    try:
        # /etc/os-release is a link to this file, and get_archive returns links as they are.
        text = read_file(client, str(container.id), "/usr/lib/os-release")
    finally:
        container.remove()
    fields = {key: value.strip('"') for key, value in re.findall(r"(?m)^(\w+)=(.*)$", text)}
    release = f"{fields.get('ID')}-{fields.get('VERSION_ID')}"
    if release not in PYTHONS:
        raise UsageError(
            f"{reference} is based on {release}, whose Python version is unknown",
            fix="use a base with one of these releases: " + ", ".join(PYTHONS),
        )
    return PYTHONS[release]
