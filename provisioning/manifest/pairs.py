"""Versions that work together, from manifests/pairs.toml."""

from __future__ import annotations

import functools
from itertools import zip_longest

import msgspec

from provisioning.manifest.reader import read_toml
from provisioning.versions import is_same, parse_version


class Supported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions of ExecuTorch, torch and QNN (from a wheel) with which models were lowered and run;
    ``seen`` states which models.
    """

    executorch: str
    torch: str
    qnn: str
    seen: str

    @property
    def versions(self) -> tuple[str, str, str]:
        """The versions of ExecuTorch, torch and QNN."""
        return self.executorch, self.torch, self.qnn


class QnnRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of QNN SDKs: the oldest and the newest that are known to work, and the one that
    ExecuTorch pins.
    """

    oldest: str
    newest: str
    pinned: str


class NdkRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of Android NDKs: the oldest major version that works, and the version that this
    project pins.
    """

    oldest: str
    pinned: str


class ExecutorchPairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The versions that work with one version of ExecuTorch, and the source of this information.

    ``lpai`` is the first QNN SDK that lowers for LPAI. ``wheel_adaptor`` is the QNN SDK that the
    wheel's adaptor was compiled with. Either is '' if it is unknown.
    """

    version: str
    qnn: QnnRange
    ndk: NdkRange
    source: str
    lpai: str = ""
    hexagon: str = ""
    wheel_adaptor: str = ""


class HexagonPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first Hexagon tools and SDK that support an architecture; '' means unknown."""

    arch: str
    tools: str
    sdk: str = ""


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of pairs.toml; ``default`` is the ExecuTorch that is used if none is
    specified.
    """

    default: str
    executorch: tuple[ExecutorchPairs, ...]
    hexagon: tuple[HexagonPair, ...] = ()
    supported: tuple[Supported, ...] = ()

    def find(self, version: str) -> ExecutorchPairs | None:
        """Return the pairs of an ExecuTorch version, else the first in the file with the same major
        and minor version, else None.
        """
        # A patch release that is not listed probably needs what its minor version needs.
        exact = [row for row in self.executorch if is_same(row.version, version)]
        minor_release = parse_version(version).release[:2]
        near = [
            row
            for row in self.executorch
            if parse_version(row.version).release[:2] == minor_release
        ]
        return next(iter([*exact, *near]), None)

    def find_torch(self) -> str:
        """Return the version of torch that is installed with the default ExecuTorch, or '' if
        ``supported`` does not list this ExecuTorch.
        """
        rows = (row.torch for row in self.supported if is_same(row.executorch, self.default))
        return next(rows, "")

    def is_supported(self, executorch: str, torch: str, qnn: str) -> bool:
        """Return whether these versions are listed as working together. A version that is empty is
        not compared.
        """
        requested = (executorch, torch, qnn)
        for row in self.supported:
            pairs = zip(requested, row.versions, strict=True)
            if all(is_same(version, listed) for version, listed in pairs if version):
                return True
        return False

    def find_nearest(self, executorch: str, torch: str, qnn: str) -> Supported | None:
        """Return the supported versions with the closest ExecuTorch, among these the closest torch,
        and among these the closest QNN; None if no versions are listed.
        """
        requested = (executorch, torch, qnn)

        def measure(row: Supported) -> list[list[int]]:
            """Return, for each version, the distance of each of its numbers (major, minor, ...)."""
            distances = []
            for version, listed in zip(requested, row.versions, strict=True):
                numbers = zip_longest(
                    parse_version(version).release, parse_version(listed).release, fillvalue=0
                )
                distances.append([abs(number - number_listed) for number, number_listed in numbers])
            return distances

        return min(self.supported, key=measure, default=None)

    def find_hexagon(self, arch: str) -> HexagonPair:
        """Return the first Hexagon SDK and tools for an architecture such as v79; '' means
        unknown."""
        return next((row for row in self.hexagon if row.arch == arch), HexagonPair(arch, ""))


@functools.cache
def read_pairs() -> Pairs:
    """Read manifests/pairs.toml. Raises ManifestError."""
    return read_toml("pairs.toml", Pairs)
