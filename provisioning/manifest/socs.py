"""Qualcomm SoCs by name: manifests/socs.toml."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping

import msgspec

from provisioning.errors import UsageError
from provisioning.manifest.reader import read_toml


class Soc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``id`` is QNN's socModel; ``hexagon`` the HTP's version (75 for V75), ``vtcm_mb`` its VTCM
    in MiB, ``lpai`` the hardware version of the LPAI block, None without one.
    """

    id: int
    hexagon: int
    vtcm_mb: int
    lpai: int | None = None


@functools.cache
def read_socs() -> Mapping[str, Soc]:
    """Every SoC by its name in ExecuTorch, such as SM8650. Raises ManifestError."""
    return read_toml("socs.toml", dict[str, Soc])


def find_soc(name: str) -> Soc:
    """The SoC ``name``, in any case. Raises UsageError with the nearest names and the list."""
    socs = read_socs()
    if found := socs.get(name.upper()):
        return found
    near = difflib.get_close_matches(name.upper(), socs, n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"no SoC {name!r}", fix=f"{meant}known: {', '.join(sorted(socs))}")
