"""Check that an image is reproducible by comparing two clean builds, and write package locks.

A lock lists Python packages with their hashes for one version of Python, or apt packages with their
versions for one image on one base.
"""

from __future__ import annotations

import difflib
import hashlib
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.client import DockerClient

from ci.images.build import Built, build_image
from ci.images.definition import chain, plan_image
from ci.images.normalize import read_layers
from ci.images.wheels import resolve_lock
from ci.report.text import count
from provisioning.console.progress import Progress
from provisioning.documents import read_text
from provisioning.files import hash_stream, write_whole

SHOWN = 20


@dataclass(frozen=True)
class Comparison:
    """Two builds of one image: their ids and their number of layers. ``differences`` maps the index
    of each layer that differs to the paths that differ in it.
    """

    name: str
    ids: tuple[str, str]
    layers: int
    differences: Mapping[int, tuple[str, ...]]

    @property
    def equal(self) -> bool:
        return self.ids[0] == self.ids[1] and not self.differences


def describe_digest(client: DockerClient, built: Built) -> dict[str, Any]:
    """Return the reference, the id (a digest of the configuration) and the digests of the
    layers.
    """
    diff_ids = _digests(client, built.image_id)
    return {"reference": built.reference, "id": built.image_id, "diff_ids": diff_ids}


def compare_builds(
    client: DockerClient, name: str, progress: Progress, *, base: str = ""
) -> Comparison:
    """Build the image ``name`` twice without any cache, and compare the layers path by path."""
    first = build_image(client, name, progress, base=base, fresh=True)
    second = build_image(client, name, progress, base=base, fresh=True)
    found = find_differences(client, first.image_id, second.image_id)
    ids = (first.image_id, second.image_id)
    return Comparison(name, ids, len(_digests(client, first.image_id)), found)


def find_differences(client: DockerClient, first: str, second: str) -> dict[int, tuple[str, ...]]:
    """Compare two images. Return the index of each layer that differs, with the paths that differ
    in it.
    """
    pairs = zip(_digests(client, first), _digests(client, second), strict=True)
    unequal = [index for index, (one, other) in enumerate(pairs) if one != other]
    if not unequal:
        return {}
    left, right = (
        [
            {member.name: _describe(layer, member) for member in layer}
            for layer in read_layers(client, one)
        ]
        for one in (first, second)
    )
    return {
        index: tuple(sorted({path for path, _ in left[index].items() ^ right[index].items()}))
        for index in unequal
    }


def _digests(client: DockerClient, image_id: str) -> list[str]:
    return list(client.images.get(image_id).attrs["RootFS"]["Layers"])


def _describe(layer: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    body = layer.extractfile(member) if member.isreg() else None
    content = hash_stream(body, hashlib.sha256()) if body else member.linkname
    return f"{member.type!r} {member.mode:o} {member.uid}:{member.gid} {content}"


def describe_comparison(compared: Comparison) -> list[str]:
    """Return lines with the verdict, the ids and, if layers differ, up to SHOWN paths for each
    layer.
    """
    verdict = "equal" if compared.equal else "NOT equal"
    lines = [
        f"{compared.name}: two clean builds with {count(compared.layers, 'layer')} are {verdict}"
    ]
    lines += [f"  id {one}" for one in compared.ids]
    for index, paths in compared.differences.items():
        lines.append(f"  layer {index}: differences in {count(len(paths), 'path')}")
        lines += [f"    {path}" for path in paths[:SHOWN]]
    return lines


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
