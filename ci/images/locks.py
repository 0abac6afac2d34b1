"""Write package locks. A lock lists Python packages with their hashes for one version of Python, or
apt packages with their versions for one image on one base.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from docker.client import DockerClient

from ci.images.build import build_image
from ci.images.definition import chain, plan_image
from ci.images.wheels import resolve_lock
from provisioning.console.progress import Progress
from provisioning.documents import read_text
from provisioning.files import write_whole

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
    for one in chain(name):
        plan = plan_image(client, one, base)
        if not plan.base.snapshot and first.python_lock.is_file():
            built = build_image(client, one, progress, base=base)
            output = client.containers.run(
                built.image_id, ["cat", f"{PACKAGES}/{one}.txt"], entrypoint="", remove=True
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
