"""The engine that the ``docker`` package talks to: Docker, or Podman's Docker-compatible socket."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docker.client import DockerClient
from docker.errors import DockerException
from docker.types import Mount

from provisioning.errors import QnnCiError, StoreError, ToolError, UnfitError

CONNECT_S, TIMEOUT_S = 20, 1800  # for the first answer, for each later one
GROUP_FIX = (
    "add yourself to the docker group (sudo usermod -aG docker $USER, then log in again), "
    "or set DOCKER_HOST to another engine's socket"
)
START_FIX = (
    "start Docker (sudo systemctl start docker) or Podman (systemctl --user start podman.socket, "
    "and DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/podman.sock), or install docker.io"
)


@contextmanager
def connect_engine() -> Iterator[DockerClient]:
    """Yield a client of the engine that the variable DOCKER_HOST names, or of the local engine if
    the variable is not set.

    Raises UnfitError if no engine answers. An error of the engine inside the block is raised as
    StoreError or ToolError.
    """
    try:
        client = DockerClient.from_env(timeout=CONNECT_S)
    except (DockerException, ValueError) as error:  # a ValueError means a malformed DOCKER_HOST
        raise explain_connection(error) from error
    client.api.timeout = TIMEOUT_S
    try:
        yield client
    except DockerException as error:
        raise explain_error(error) from error
    finally:
        client.close()


def explain_connection(error: Exception) -> UnfitError:
    """Return an error that states the socket, the reason why it does not answer, and the fix."""
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    denied = "Permission denied" in str(error)
    return UnfitError(
        "no Docker engine answers",
        why=f"{where}: {'permission denied' if denied else error}",
        fix=GROUP_FIX if denied else START_FIX,
    )


def is_full(text: str) -> bool:
    """Return whether an engine's message reports a full disk."""
    return "no space left on device" in text.lower()


def explain_error(error: Exception) -> QnnCiError:
    """Return StoreError if ``error`` reports a full disk, otherwise ToolError with the engine's
    message.
    """
    text = str(getattr(error, "explanation", None) or error)
    if is_full(text):
        return StoreError(
            "the engine's disk is full",
            why=text,
            fix="free some space: `docker system df` shows what uses it",
        )
    return ToolError("the Docker engine reported an error", why=text)


def is_podman(client: DockerClient) -> bool:
    """Return whether the engine is Podman, which needs an option to keep the caller's user id."""
    components = client.version().get("Components") or []
    return any("podman" in str(row.get("Name", "")).lower() for row in components)


def bind_mount(outside: Path, inside: Path, *, read_only: bool = False) -> Mount:
    """Return a mount of ``outside``, a directory or file of this machine, at ``inside``.

    The paths may contain a colon, unlike in Docker's short form ``outside:inside``.
    """
    return Mount(str(inside), str(outside), type="bind", read_only=read_only)


def read_file(client: DockerClient, container_id: str, path: str) -> str:
    """Return the text of the file ``path`` in a container, which need not be running."""
    stream, _ = client.api.get_archive(container_id, path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        body: Any = archive.extractfile(Path(path).name)
        return str(body.read().decode("utf-8", "replace"))
