"""Describe a QNN runtime: one in a directory, an APK or an artifact, or one of which only the
version is known."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ci.inspect.compat import Runtime
from ci.inspect.files import unpack_files
from provisioning.artifacts.selection import stored_trees
from provisioning.console.command import user_path
from provisioning.doctor.facts import FileFacts
from provisioning.doctor.survey.tree import FactsCache, survey_tree
from provisioning.documents import open_regular
from provisioning.elf.qnn_build import find_headers_version
from provisioning.errors import UsageError
from provisioning.manifest.reader import list_toolchains, read_toolchain
from provisioning.store.store import Store, store_home
from provisioning.versions import is_version, parse_version

BACKEND = "libQnnHtp.so"
# Libraries that may contain ExecuTorch's backend, its kernels or both.
EXECUTORCH = re.compile(r"PyQnnManagerAdaptor.*\.so|lib(qnn_executorch_backend|executorch\w*)\.so")


def read_runtime(word: str, operators: Iterable[str] = ()) -> Runtime:
    """Return the runtime that ``word`` specifies: a directory, an APK or AAR, ARTIFACT@VERSION, or
    a version. The runtime's libraries are searched for kernels for the CPU operators ``operators``.

    Raises UsageError for any other word, and IntegrityError for a damaged archive. If an artifact
    is not in the store, only its version is known.
    """
    name, _, version = word.partition("@")
    if is_version(word):
        return Runtime(f"QNN {word}", word)
    if name in list_toolchains():
        release = read_toolchain(name).release(version)
        if not name.startswith("qnn-"):
            raise UsageError(f"{name} is not a runtime of QNN", fix="pass qnn-runtime or qnn-sdk")
        for published, tree in stored_trees(Store(store_home())):
            if (tree.artifact, tree.version) == (name, release.version):
                return _survey(published.root, f"{name} {release.version}", operators)
        return Runtime(f"{name} {release.version}", release.version)
    path = user_path(word)
    if path.is_dir():
        return _survey(path, path.name, operators)
    if not path.is_file():
        raise UsageError(
            f"no runtime {word!r}",
            why="it is not a directory, file, version or artifact",
            fix="pass a directory with libQnnHtp.so, an APK, qnn-runtime@2.49.40 or 2.49.40",
        )
    with TemporaryDirectory() as scratch:
        unpack_files(path, Path(scratch))
        return _survey(Path(scratch), path.name, operators)


def _survey(root: Path, name: str, operators: Iterable[str]) -> Runtime:
    with TemporaryDirectory() as scratch:
        files = survey_tree(root, FactsCache(Path(scratch))).files
    return describe_runtime(files, name, operators)


def describe_runtime(files: Sequence[FileFacts], name: str, operators: Iterable[str]) -> Runtime:
    """Return a description of the runtime with the libraries ``files``. They are searched for
    kernels for the CPU operators ``operators``."""
    backends = [one for one in files if one.name == BACKEND]
    builds = [one.build.version for one in backends or files if one.build and one.build.version]
    linked = [one for one in files if EXECUTORCH.fullmatch(one.name)]
    headers = sorted(filter(None, (find_headers_version(one.path) for one in linked)))
    return Runtime(
        name,
        min(builds, key=parse_version, default=""),
        _list_versions(files, "Stub"),
        _list_versions(files, "Skel"),
        headers[0] if headers else "unknown" if linked else "",
        tuple(sorted(_find_names(files, operators))) if linked else None,
    )


def _list_versions(files: Iterable[FileFacts], part: str) -> tuple[int, ...]:
    """Return the Hexagon versions of the HTP stubs or HTP skels in ``files``. ``part`` is ``Stub``
    or ``Skel``."""
    names = filter(None, (one.qnn_name for one in files))
    found = {one.hexagon for one in names if (one.backend, one.part) == ("Htp", part)}
    return tuple(sorted(int(one) for one in found if one.isdecimal()))


def _find_names(files: Iterable[FileFacts], names: Iterable[str]) -> set[str]:
    """Return the names that any of the files contains as text, followed by a zero byte."""
    left, found = set(names), set[str]()
    for file in files:
        with suppress(OSError, ValueError), open_regular(file.path) as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            here = {one for one in left - found if data.find(b"%b\0" % one.encode()) >= 0}
            found |= here
    return found
