"""Which versions belong together: manifests/pairs.toml as values."""

from __future__ import annotations

import functools

import msgspec

from provisioning.manifest.reader import read_toml
from provisioning.versions import is_same, parse_version


class QnnRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """QNN SDKs: the oldest and the newest that are known to do, and upstream's own pin."""

    oldest: str
    newest: str
    pinned: str


class NdkRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Android NDKs: the oldest major that does, and the one that upstream verifies with."""

    oldest: str
    pinned: str


class ExecutorchPairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes with one version of ExecuTorch, and where that is known from.

    ``torch`` are those seen to work or upstream's own, ``lpai`` the first QNN SDK that lowers for
    LPAI, ``wheel_adaptor`` the QNN SDK whose headers the wheel's adaptor was built with; "" is not
    known.
    """

    version: str
    torch: tuple[str, ...]
    qnn: QnnRange
    ndk: NdkRange
    source: str
    lpai: str = ""
    hexagon: str = ""
    wheel_adaptor: str = ""


class HexagonPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first Hexagon tools and SDK that go with an architecture; "" is not known."""

    arch: str
    tools: str
    sdk: str = ""


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of pairs.toml; ``default`` is the ExecuTorch that is used where nobody names one."""

    default: str
    executorch: tuple[ExecutorchPairs, ...]
    hexagon: tuple[HexagonPair, ...] = ()

    def find(self, version: str) -> ExecutorchPairs | None:
        """The row of a version of ExecuTorch, else the newest row of its minor version."""
        exact = [row for row in self.executorch if is_same(row.version, version)]
        wanted = parse_version(version).release[:2]
        near = [row for row in self.executorch if parse_version(row.version).release[:2] == wanted]
        return next(iter([*exact, *near]), None)

    def find_hexagon(self, arch: str) -> HexagonPair:
        """The first Hexagon SDK and tools for an architecture such as v79; "" is not known."""
        return next((row for row in self.hexagon if row.arch == arch), HexagonPair(arch, ""))


@functools.cache
def read_pairs() -> Pairs:
    """manifests/pairs.toml. Raises ManifestError."""
    return read_toml("pairs.toml", Pairs)
