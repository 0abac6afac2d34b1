"""Use or copy existing installations. The version of a QNN SDK is read from its sdk.yaml."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.archives.layout import FileWriter, find_dangling, make_links, make_parents
from provisioning.artifacts.sources import ArtifactRequest, FillJob
from provisioning.console.caller import caller_path
from provisioning.documents import decoding, open_regular, read_user_file
from provisioning.errors import IntegrityError, UnfitError, UsageError
from provisioning.files import READ_BYTES
from provisioning.manifest.reader import Adoption
from provisioning.manifest.releases import Release
from provisioning.store.tree import TreeEntry, list_files
from provisioning.versions import is_older


def find_installation(
    request: ArtifactRequest, variables: Mapping[str, str]
) -> tuple[Path, str] | None:
    """Check the installation that a variable points to, and return its root and version; None if
    the variable is not set.

    Raises UnfitError if a marker file or a component is missing, or if the version is too old.
    """
    adoption = request.toolchain.adoption
    variable, named = adoption.find_named(variables) if adoption else ("", "")
    if adoption is None or not named:
        return None
    root = caller_path(Path(named).expanduser())
    missing = [path for path in expected_paths(request, adoption) if not (root / path).exists()]
    if missing:
        raise UnfitError(
            f"{variable}={named} is not a usable {request.name}",
            why=f"it has no {' and no '.join(missing)}",
            fix=f"correct {variable}, or unset it and run `qnn-ci fetch {request.name}`",
        )
    version = read_version(root, adoption)
    check_minimum(request, variable, version)
    return root.resolve(), version


def expected_paths(request: ArtifactRequest, adoption: Adoption) -> list[str]:
    """Return the paths that an installation must contain: the marker files and, for each glob of
    the wanted components, the path without a wildcard or the directory ``DIR`` of ``DIR/*``.
    """
    fixed = [re.split(r"[*?]", pattern, maxsplit=1) for pattern in request.patterns]
    heads = [parts[0] for parts in fixed if len(parts) == 1 or parts[0].endswith("/")]
    return list(dict.fromkeys([*adoption.markers, *(head.rstrip("/") for head in heads)]))


def read_version(root: Path, adoption: Adoption) -> str:
    """Return the version that an installation states, or ``unknown``."""
    if not adoption.version_file:
        return "unknown"
    if adoption.version_file == SDK_YAML:
        return read_sdk_yaml(root).version or "unknown"
    try:
        raw = read_user_file(root / adoption.version_file, "the version", MAX_BYTES)
    except UsageError:
        return "unknown"
    found = re.search(adoption.version_pattern, raw.decode("utf-8", "replace"))
    return found.group(1) if found else "unknown"


def check_minimum(request: ArtifactRequest, variable: str, version: str) -> None:
    """Raise UnfitError if the version is older than the profile's minimum."""
    if request.minimum and version != "unknown" and is_older(version, request.minimum):
        raise UnfitError(
            f"{request.name} {version} in {variable} is too old",
            why=request.minimum_reason or f"{request.minimum} or later is needed",
            fix=f"set {variable} to version {request.minimum} or later, or unset it",
        )


def fill(job: FillJob) -> tuple[TreeEntry, ...]:
    request = job.request
    found = find_installation(request, os.environ)
    if found is None:
        adoption = request.toolchain.adoption
        name = adoption.variable if adoption else "no variable"
        raise UnfitError(
            f"{request.label} must be copied from the directory in {name}, which is not set",
            fix=f"set {name} to an installation",
        )
    root, _ = found
    with explain_reads(root):
        return copy_installation(job, root)


@contextmanager
def explain_reads(root: Path) -> Iterator[None]:
    """Turn an OSError in the block that comes from a file below ``root``, or an IntegrityError
    because a file was changed while it was copied, into an UnfitError.
    """
    try:
        yield
    except OSError as error:
        if not (error.filename and Path(error.filename).is_relative_to(root)):
            raise
        fix = f"make every file in {root} readable for this user"
        raise UnfitError(
            f"{error.filename} cannot be read", why=error.strerror or "", fix=fix
        ) from error
    except IntegrityError as error:
        if not error.what.startswith(f"{root}/"):
            raise
        fix = "try again when no other program changes the installation"
        what = f"a file in {root} changed while it was copied"
        raise UnfitError(what, why=error.why, fix=fix) from error


def copy_installation(job: FillJob, root: Path) -> tuple[TreeEntry, ...]:
    """Copy the wanted files and links of the installation ``root``, and return their entries."""
    request = job.request
    layout, entries, links = request.layout(), [], {}
    for path in sorted(list_files(root)):
        if not (target := layout.place(path)) or not job.wants(target):
            continue
        if (root / path).is_symlink():
            links[target] = str((root / path).readlink())
        elif not (root / path).is_file():
            raise UnfitError(f"{root / path} is not a file", fix="remove it from the installation")
        else:
            entries.append(copy_file(root / path, job.root, target))
    known = [entry.path for entry in entries]
    left_out = find_dangling(links, known)
    kept = {path: end for path, end in links.items() if path not in left_out}
    entries += make_links(job.root, kept, request.label, known)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def mirror(job: FillJob, directory: Path) -> list[Path]:
    """Write nothing: another machine has its own installation."""
    del job, directory
    return []


def find_release(job: FillJob, version: str) -> Release:
    """Return the job's release: an installation has no pin to update."""
    del version
    return job.request.release


def copy_file(source: Path, root: Path, target: str, mode: int = 0) -> TreeEntry:
    """Copy ``source`` to ``target`` below ``root``, and return its tree entry. If ``mode`` is 0,
    the copy is a read-only file that is executable if ``source`` is. Raises OSError.
    """
    make_parents(root, [target])
    state = source.stat()
    with (
        open_regular(source) as file,
        closing(FileWriter(root, target, str(source), state.st_size)) as writer,
    ):
        while data := file.read(READ_BYTES):
            writer.write(data)
        return writer.finish(mode or (state.st_mode & 0o555) | 0o444)


SDK_YAML = "sdk.yaml"
MAX_BYTES = 1 << 16
VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
STAMP = re.compile(r"(\d{12})(?!\d)")


@dataclass(frozen=True)
class SdkIdentity:
    """The version in an sdk.yaml, such as 2.37.0.250724, and the ``stamp`` at the start of its
    build_id (12 digits). A value that is missing is ''.
    """

    version: str = ""
    stamp: str = ""


def read_sdk_yaml(root: Path) -> SdkIdentity:
    """Read the sdk.yaml of an SDK; both fields are '' if there is no such file.

    Raises UnfitError if it cannot be read or is not YAML.
    """
    path = root / SDK_YAML
    if not path.exists():
        return SdkIdentity()
    try:
        rows = parse_rows(read_user_file(path, "the QNN SDK's", MAX_BYTES))
    except (UsageError, ValueError) as error:
        why = error.why if isinstance(error, UsageError) else str(error)
        raise UnfitError(
            f"{path} cannot be read",
            why=why,
            fix="provision the QNN SDK again, or set QNN_SDK_ROOT to another one",
        ) from error
    version, stamp = VERSION.match(rows.get("version", "")), STAMP.match(rows.get("build_id", ""))
    return SdkIdentity(version[1] if version else "", stamp[1] if stamp else "")


def parse_rows(data: bytes) -> dict[str, str]:
    """Return the scalar values at the top level of a YAML document, as text. Raises ValueError."""
    import yaml  # takes 30 ms, and most verbs do not need it

    try:
        with decoding():
            document: Any = yaml.load(data, Loader=yaml.BaseLoader)  # noqa: S506 - only str
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    rows = document if isinstance(document, dict) else {}
    return {key: value for key, value in rows.items() if isinstance(value, str)}
