"""The engine that the ``docker`` package talks to: Docker, or Podman's Docker-compatible socket.

An engine puts times, container ids and host names into layers and into the configuration of an
image. So that equal contents have equal bytes, an image that was saved as a tar is rewritten.
Members of all layers above the base get the same time and no owner names. The configuration keeps
only the labels and what a container needs.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from docker.client import DockerClient
from docker.errors import DockerException
from docker.types import Mount

from provisioning.documents import open_regular
from provisioning.errors import QnnCiError, StoreError, ToolError, UnfitError
from provisioning.files import hash_file

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
    # A build step can be silent for long; an engine that does not answer the first request is not
    # running.
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


# What a container needs. The rest of a configuration describes how the image was built.
KEPT_CONFIG = ("Cmd", "Entrypoint", "Env", "Labels", "User", "WorkingDir")
KEPT_PAX = ("SCHILY.xattr.",)


def normalize_image(
    saved: Path, target: Path, *, keep_layers: int, time_s: int, labels: Mapping[str, str]
) -> None:
    """Rewrite the saved image ``saved`` as ``target``.

    The lowest ``keep_layers`` layers stay unchanged, so that images share the layers of their base.
    The files in all other layers get the time ``time_s``, in seconds since the epoch.
    """
    with tarfile.open(saved) as source, tarfile.open(target, "w") as out:
        manifest = json.load(_open_member(source, "manifest.json"))[0]
        config = json.load(_open_member(source, manifest["Config"]))
        names, digests = [], []
        for index, path in enumerate(manifest["Layers"]):
            layer = _rewrite_layer(source, path, target.parent, index < keep_layers, time_s)
            digest = hash_file(layer)
            names.append(f"{digest}.tar")
            digests.append(f"sha256:{digest}")
            add_file(out, names[-1], layer)
            layer.unlink()
        text = json.dumps(_clean_config(config, digests, time_s, labels), sort_keys=True)
        name = f"{hashlib.sha256(text.encode()).hexdigest()}.json"
        add_text(out, name, text)
        # Without tags, since an image gets its tag only once it is complete.
        rows = [{"Config": name, "RepoTags": None, "Layers": names}]
        add_text(out, "manifest.json", json.dumps(rows))


def _open_member(source: tarfile.TarFile, path: str) -> IO[bytes]:
    body = source.extractfile(path)  # this follows links, because older engines link equal layers
    if body is None:
        raise ToolError("the engine saved an unreadable image", why=f"{path} is not a file")
    return body


def _clean_config(
    config: dict[str, Any], digests: list[str], time_s: int, labels: Mapping[str, str]
) -> dict[str, Any]:
    created = dt.datetime.fromtimestamp(time_s, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    container_config = {
        name: config["config"][name] for name in KEPT_CONFIG if config["config"].get(name)
    }
    container_config["Labels"] = {**container_config.get("Labels", {}), **labels}
    return {
        "architecture": config["architecture"],
        "os": config["os"],
        "created": created,
        "config": container_config,
        "history": [{"created": created, "created_by": "docker/Dockerfile"} for _ in digests],
        "rootfs": {"type": "layers", "diff_ids": digests},
    }


def _rewrite_layer(
    source: tarfile.TarFile, path: str, directory: Path, keep: bool, time_s: int
) -> Path:
    body = _open_member(source, path)
    target = directory / "layer.tar"
    with target.open("wb") as out:
        if keep:
            shutil.copyfileobj(body, out)
        else:
            with (
                # As a stream, since a layer may be larger than the memory.
                tarfile.open(fileobj=body, mode="r|") as layer,
                tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as fresh,
            ):
                for member in layer:
                    member.mtime = time_s
                    member.uname = member.gname = ""
                    pax = member.pax_headers.items()
                    member.pax_headers = {k: v for k, v in pax if k.startswith(KEPT_PAX)}
                    fresh.addfile(member, layer.extractfile(member) if member.isreg() else None)
    return target


def add_file(out: tarfile.TarFile, name: str, path: Path, mode: int = 0o644) -> None:
    """Add the file ``path`` to ``out`` as ``name``, without its owner and time."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = path.stat().st_size, mode
    with open_regular(path) as body:
        out.addfile(info, body)


def add_text(out: tarfile.TarFile, name: str, text: str) -> None:
    """Add a file ``name`` with the content ``text`` to ``out``."""
    info = tarfile.TarInfo(name)
    info.size = len(text.encode())
    out.addfile(info, io.BytesIO(text.encode()))


def save_image(client: DockerClient, image_id: str, target: Path) -> None:
    """Write the image ``image_id`` to ``target`` as a tar, in the engine's format."""
    with target.open("wb") as file:
        for chunk in client.images.get(image_id).save(named=False):
            file.write(chunk)
