"""The locks of an image: wheels by hash for its Python, packages by version for its base."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from ci.images.build import build_image
from ci.images.definition import chain, plan_image
from ci.images.wheels import resolve_lock
from provisioning.console.progress import Progress
from provisioning.files import write_whole

if TYPE_CHECKING:
    from docker.client import DockerClient

PACKAGES = "/opt/qnn-ci/packages"


def write_locks(
    client: DockerClient, name: str, progress: Progress, *, base: str = "", write: bool = False
) -> str:
    """The diff of every lock of ``name``; the files are written with ``write``.

    The lock of packages is what an image that was built now has; a base with a snapshot has
    none, since the snapshot says it all.
    """
    first = plan_image(client, chain(name)[0], base)
    diff = _change(first.python_lock, resolve_lock(first, progress), write=write)
    for one in chain(name):
        plan = plan_image(client, one, base)
        if not plan.base.snapshot and (write or first.python_lock.is_file()):
            built = build_image(client, one, progress, base=base)
            output = client.containers.run(
                built.image_id, ["cat", f"{PACKAGES}/{one}.txt"], entrypoint="", remove=True
            )
            diff += _change(plan.apt_lock, output.decode("utf-8"), write=write)
    return diff


def _change(path: Path, text: str, *, write: bool) -> str:
    before = path.read_text("utf-8") if path.is_file() else ""
    if write and before != text:
        write_whole(path, text)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), text.splitlines(keepends=True), path.name, path.name, n=0
    )
    return "".join(lines)
