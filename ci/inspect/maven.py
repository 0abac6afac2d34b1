"""What is known of the QNN that Maven packages bring, from manifests/policies/maven.toml."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from provisioning.manifest.reader import read_policy
from provisioning.versions import is_older, is_version, parse_version

QNN_RUNTIME = "com.qualcomm.qti:qnn-runtime"
LITERT_PACKAGE = "com.google.ai.edge.litert:litert"
# Libraries that contain LiteRT, or TensorFlow Lite as LiteRT was called before.
RUNTIMES = frozenset(
    f"lib{name}.so"
    for name in (
        *("LiteRt", "LiteRtRuntimeCApi", "litert_jni"),
        *("litertlm_jni", "tensorflowlite_jni"),
    )
)


class Contents(Struct, frozen=True, forbid_unknown_fields=True):
    """What a package brings from a version on: native libraries, and the device's libraries that
    its manifest declares."""

    since: str
    libraries: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()


class Package(Struct, frozen=True, forbid_unknown_fields=True):
    """A package without its version; maven.toml describes the fields."""

    source: str
    brings_qnn: bool = False
    needs_qnn: bool = False
    with_qnn: str = ""
    is_qnn: bool = False
    same_version: bool = False
    same_litert: bool = False
    releases: dict[str, str] = {}
    contents: tuple[Contents, ...] = ()  # the oldest first

    def find_contents(self, version: str) -> Contents | None:
        """Return what a version brings; None if that is not known."""
        if not is_version(version):
            return None
        known = [each for each in self.contents if not is_older(version, each.since)]
        return known[-1] if known else None


class Dependency(NamedTuple):
    """A package with a version, as a build file names it, and what is known of the package. ``qnn``
    is the version of QNN that it brings, "" if that is not known or there is none. Then
    ``newest_qnn`` is the QNN of the next release that is known, which is not older, or "".
    ``contents`` is None if they are not known."""

    text: str
    version: str
    package: Package
    qnn: str
    newest_qnn: str = ""
    contents: Contents | None = None

    @property
    def libraries(self) -> tuple[str, ...]:
        """The native libraries that it is known to bring, besides QNN's."""
        return self.contents.libraries if self.contents else ()

    @property
    def runs_models(self) -> bool:
        """Whether it is known to bring a library with LiteRT or TensorFlow Lite."""
        return not RUNTIMES.isdisjoint(self.libraries)


@functools.cache
def read_packages() -> Mapping[str, Package]:
    """Return the known packages by group and name. Raises ManifestError."""
    return read_policy("maven", dict[str, Package])


def find_dependencies(texts: Iterable[str]) -> list[Dependency]:
    """Return the known packages among those of a build file, such as
    ``com.qualcomm.qti:qnn-runtime:2.37.1``."""
    dependencies = []
    for text in texts:
        group, _, name_and_version = text.partition(":")
        name, _, version = name_and_version.partition(":")
        package = read_packages().get(f"{group}:{name}")
        version = version.partition("@")[0]
        # Of a strict range, Gradle takes the version that it prefers: [2.40,2.50[!!2.48.0
        version = version.rpartition("!!")[2] or version.partition("!!")[0]
        if package:
            qnn = version if package.is_qnn else package.releases.get(version, "")
            qnn = qnn if package.brings_qnn and is_version(qnn) else ""
            newest = "" if qnn else _find_next_qnn(package, version)
            contents = package.find_contents(version)
            dependencies.append(Dependency(text, version, package, qnn, newest, contents))
    return dependencies


def _find_next_qnn(package: Package, version: str) -> str:
    """Return the QNN of the first known release that is newer than a version, or ""."""
    if not is_version(version):
        return ""
    newer = [
        release for release in package.releases if parse_version(release) > parse_version(version)
    ]
    return package.releases[min(newer, key=parse_version)] if newer else ""


def choose_qnn(
    dependencies: Iterable[Dependency], forced: Collection[str] = ()
) -> Dependency | None:
    """Return the dependency whose QNN the app gets. Of several versions of qnn-runtime, Gradle
    takes the newest, unless the build file forces one of them. The other packages that bring QNN
    depend on qnn-runtime, too, so there are never two of them. None if nothing brings QNN, or if
    its version is not known, such as that of a range."""
    dependencies = list(dependencies)
    with_qnn = [dependency for dependency in dependencies if dependency.qnn]
    for dependency in with_qnn:
        if dependency.package.is_qnn and dependency.text in forced:
            return dependency
    if any(dependency.package.is_qnn and not dependency.qnn for dependency in dependencies):
        return None
    return max(with_qnn, key=lambda dependency: parse_version(dependency.qnn), default=None)
