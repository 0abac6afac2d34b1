"""The build context of an image: a tar of our own files and of checked wheels, and nothing else."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO

from ci.images.definition import BUILD_FILES, SCRIPTS, ImagePlan


def write_context(file: IO[bytes], plan: ImagePlan, wheels: list[Path]) -> None:
    """Write the tar; wheels only for an image that has no parent, since others inherit them."""
    docker = plan.checkout / "docker"
    members = {f"docker/{name}": docker / name for name in SCRIPTS}
    name = f"packages/{plan.name}.txt"
    members[f"docker/{name}"] = docker / name
    members.update({name: plan.checkout / name for name in BUILD_FILES})
    members.update({f"wheels/{path.name}": path for path in wheels})
    if plan.apt_lock.is_file():
        members["locks/apt.lock"] = plan.apt_lock
    with tarfile.open(fileobj=file, mode="w") as archive:
        for directory in ("locks", "wheels"):
            archive.addfile(_member(directory, tarfile.DIRTYPE, 0o755))
        for inside, path in sorted(members.items()):
            mode = 0o755 if path.suffix in ("", ".sh") and path.name != "Dockerfile" else 0o644
            info = _member(inside, tarfile.REGTYPE, mode)
            info.size = path.stat().st_size
            with path.open("rb") as source:
                archive.addfile(info, source)


def _member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    return info
