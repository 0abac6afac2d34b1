"""QNN's backends: which accelerator a program is lowered for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import Enum

import msgspec

from provisioning.manifest.reader import read_toml


class Backend(str, Enum):
    """What runs a program. ``lpai`` is LPAI's emulator on this host, ``lpai-arm`` the block of a
    device, which its CPU calls by FastRPC."""

    HTP = "htp"
    GPU = "gpu"
    LPAI = "lpai"
    LPAI_ARM = "lpai-arm"

    @property
    def kind(self) -> str:
        """ExecuTorch's word for it."""
        return self.value.partition("-")[0]

    @property
    def is_lpai(self) -> bool:
        return self.kind == Backend.LPAI.value


class BackendNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backend asks of the host that lowers for it.

    ``library`` is QNN's; ``device`` what runs its programs, empty where this host does. ``why`` and
    ``fix`` are for a host whose library is not there or serves for nothing.
    """

    library: str
    why: str = ""
    fix: str = ""
    device: str = ""


@functools.cache
def read_backends() -> Mapping[Backend, BackendNeeds]:
    """manifests/backends.toml. Raises ManifestError."""
    return read_toml("backends.toml", dict[Backend, BackendNeeds])
