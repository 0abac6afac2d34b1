"""A real engine and a tiny image of busybox: skipped, with the reason, where there is none."""

from __future__ import annotations

import io
import os
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker.client import DockerClient
from docker.errors import APIError

from ci.images.engine import connect_engine
from provisioning.errors import UnfitError
from tests.programs import NOT_INSTALLED, find_program, missing_programs

ROOT = Path(__file__).parents[3]
PROGRAMS = (
    "sh",
    "cat",
    "flock",
    "sleep",
    "id",
    "touch",
    "stty",
    "chown",
    "mkdir",
    "basename",
    "ls",
)
PROGRAMS = (*PROGRAMS, "stat", "true", "false", "echo", "kill", "head", "ln", "rm", "env", "printf")


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        pytest.skip(f"{NOT_INSTALLED}a Docker engine")
    try:
        with connect_engine() as client:
            yield client
    except UnfitError as error:
        pytest.skip(f"{error.what}: {error.why}")


@pytest.fixture(scope="session")
def busybox(engine: DockerClient) -> Iterator[str]:
    """The id of an image with busybox and docker/entry.sh."""
    program = find_program("busybox")
    if program is None:
        pytest.skip(f"{missing_programs('busybox')} (Debian: busybox-static)")
    files = {"bin/busybox": Path(program).read_bytes()}
    files["usr/local/bin/qnn-ci-entry"] = (ROOT / "docker" / "entry.sh").read_bytes()
    files["etc/passwd"] = b"root:x:0:0:root:/root:/bin/sh\n"
    files["etc/group"] = b"root:x:0:\n"
    links = {f"bin/{name}": "busybox" for name in PROGRAMS}
    dockerfile = (
        'FROM scratch\nADD root.tar /\nENTRYPOINT ["/usr/local/bin/qnn-ci-entry"]\nCMD ["sh"]\n'
    )
    image_id = build(engine, dockerfile, {"root.tar": pack(files, links)})
    # With a tag, for Podman removes an untagged parent along with its last child.
    engine.api.tag(image_id, f"qnn-ci-test/busybox-{uuid.uuid4().hex[:8]}", "1")
    yield image_id
    with suppress(APIError):  # what tests built on it still needs it
        engine.images.remove(image_id, force=True)


def pack(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """A tar of executable files and symbolic links."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("tmp", "run", "home"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return out.getvalue()


def build(engine: DockerClient, dockerfile: str, files: dict[str, bytes]) -> str:
    """Build without a cache, so that two builds have two times."""
    context = pack({"Dockerfile": dockerfile.encode(), **files})
    image, _ = engine.images.build(
        fileobj=io.BytesIO(context),
        custom_context=True,
        nocache=True,
        rm=True,
        labels={"executorch-qnn-ci.test": uuid.uuid4().hex} if "FROM scratch" in dockerfile else {},
    )
    return str(image.id)
