"""Rows of manifests by name: QNN's backends and Qualcomm's SoCs, which are targets of lowering, and
the language models that have a name (manifests/decoders.toml).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from provisioning.errors import UsageError
from provisioning.manifest.reader import read_toml, suggest_near
from provisioning.quoting import show_command


class Backend(str, Enum):
    """The processor that runs a program. ``lpai`` is LPAI's emulator on this host; ``lpai-arm`` is
    the LPAI block of a device, which its CPU calls through FastRPC.
    """

    HTP = "htp"
    GPU = "gpu"
    LPAI = "lpai"
    LPAI_ARM = "lpai-arm"

    @property
    def kind(self) -> str:
        """ExecuTorch's name for the backend."""
        return self.value.partition("-")[0]

    @property
    def is_lpai(self) -> bool:
        """Whether LPAI runs the program: its emulator, or the block of a device."""
        return self.kind == Backend.LPAI.value


class BackendNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backend needs on the host that lowers for it.

    ``library`` is the file name of QNN's library. ``device`` describes the device that runs its
    programs, '' if this host does. ``why`` and ``fix`` are shown if the library is missing or
    unusable on the host.
    """

    library: str
    why: str = ""
    fix: str = ""
    device: str = ""


@functools.cache
def read_backends() -> Mapping[Backend, BackendNeeds]:
    """Read manifests/backends.toml. Raises ManifestError."""
    return read_toml("backends.toml", dict[Backend, BackendNeeds])


class Soc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An SoC. ``id`` is QNN's socModel, ``hexagon`` the version of the HTP (75 for V75),
    ``vtcm_mb`` the size of the HTP's VTCM in MiB, and ``lpai`` the hardware version of the LPAI
    block, None if the SoC has no such block. ``hexagon`` and ``vtcm_mb`` are 0 if QNN knows no HTP
    of the SoC. ``float16`` is whether the HTP computes in float16, ``executorch`` and ``litert``
    whether ExecuTorch and LiteRT's compiler plugin take the name, and ``compiled`` whether QNN then
    compiles anything. ``also_called`` are names of the SoC that no compiler takes.

    ``qnn`` is the oldest QNN that is known to know the SoC, ``not_qnn`` the newest that is known
    not to, and ``executorch_since`` the oldest ExecuTorch that was seen to; "" if that is unknown.
    """

    id: int
    hexagon: int
    vtcm_mb: int
    lpai: int | None = None
    float16: bool = True
    executorch: bool = True
    litert: bool = True
    compiled: bool = True
    also_called: tuple[str, ...] = ()
    qnn: str = ""
    not_qnn: str = ""
    executorch_since: str = ""

    def is_called(self, name: str) -> bool:
        """Return whether ``name`` is another name of the SoC, ignoring case."""
        return any(second_name.lower() == name.lower() for second_name in self.also_called)


@functools.cache
def read_all_socs() -> Mapping[str, Soc]:
    """Return every SoC by name, those of ExecuTorch first. Several names may have the same number,
    because QNN compiles the same program for them. Raises ManifestError."""
    return read_toml("socs.toml", dict[str, Soc])


@functools.cache
def read_socs() -> Mapping[str, Soc]:
    """Return every SoC whose name ExecuTorch takes, such as SM8650. Raises ManifestError."""
    return {name: soc for name, soc in read_all_socs().items() if soc.executorch}


@functools.cache
def read_htp_socs() -> Mapping[str, Soc]:
    """Return every SoC with an HTP that QNN compiles for: onnxruntime-qnn takes its number,
    whatever it is called. Raises ManifestError."""
    return {name: soc for name, soc in read_all_socs().items() if soc.hexagon and soc.compiled}


@functools.cache
def read_litert_socs() -> Mapping[str, Soc]:
    """Return every SoC whose name LiteRT's compiler plugin takes. Raises ManifestError."""
    return {name: soc for name, soc in read_all_socs().items() if soc.litert}


def find_soc(name: str) -> Soc:
    """Return the SoC that ExecuTorch calls ``name``, ignoring case.

    If there is none, raises a UsageError that lists similar names and all known SoCs.
    """
    socs = read_socs()
    return _find_in(socs, name, f"use one of: {', '.join(sorted(socs))}")


def find_any_soc(name: str) -> Soc:
    """Return the SoC ``name``, ignoring case, also if ExecuTorch does not know it. Raises
    UsageError if there is none."""
    return _find_in(read_all_socs(), name, "docs/reference/socs.md lists all names")


# What people write into the name of an SoC or leave out, and no two names differ in: 8 Gen 3,
# Snapdragon(R) 8 Elite, sm_8650. A speed bin, as in SM8650-AB, is the same SoC with another clock.
UNSPOKEN = re.compile(
    r"\((?:R|TM)\)|[®™ _-]|QUALCOMM|SNAPDRAGON|DRAGONWING|MOBILE(?: PLATFORM)?|FOR GALAXY"
)
SPEED_BIN = re.compile(r"\b(SM ?\d{4})[- ](?:\d-)?A[A-F]$")


def _key_of(name: str) -> str:
    """Return the part of a name that tells it from those of other SoCs."""
    return UNSPOKEN.sub("", SPEED_BIN.sub(r"\1", name.upper()))


@functools.cache
def _read_keys() -> Mapping[str, str]:
    """Return the SoCs by the keys of all their names, and by QNN's number. Of several with a
    number, the first counts, as for QNN."""
    keys: dict[str, str] = {}
    for row, soc in read_all_socs().items():
        for name in (row, *soc.also_called, str(soc.id)):
            keys.setdefault(_key_of(name), row)
    return keys


def _find_row(name: str) -> str:
    """Return the SoC with a spelling of one of its names, such as ``Snapdragon 8 Gen 2 (SM8550)``
    or what Windows shows, ``Snapdragon(R) X Elite - X1E78100 - Qualcomm(R) Oryon(TM) CPU``;
    without one, the name in capital letters."""
    spellings = [name, *re.findall(r"\(([\w-]{1,20})\)$", name), *name.split(" - ")]
    keys = [_key_of(spelling) for spelling in spellings]
    # Snapdragon 8 is a family, and no SoC with QNN's number 8.
    numbers = [] if name.strip().isdecimal() else [str(soc.id) for soc in read_all_socs().values()]
    rows = (_read_keys().get(key) for key in keys if key not in numbers)
    return next(filter(None, rows), name.upper())


def name_in(name: str, names: Collection[str]) -> str:
    """Return which of ``names`` stands for the SoC ``name``: itself, the name that it is another
    name or spelling of, the one with this number of QNN's, or one that QNN compiles the same
    programs for. Without such a name, or for a glob, return ``name`` as it is."""
    upper_name = name.upper()
    if upper_name in names:
        return upper_name
    socs = read_all_socs()
    row = upper_name if upper_name in socs else _find_row(name)
    same_number = [
        candidate for candidate in names if row in socs and socs[candidate].id == socs[row].id
    ]
    return row if row in names else same_number[0] if same_number else name


def _find_in(socs: Mapping[str, Soc], name: str, fix: str) -> Soc:
    if soc := socs.get(name_in(name, socs)):
        return soc
    meant = suggest_near(name.upper(), socs)
    raise UsageError(
        f"there is no SoC {name!r}{explain_absence(name)}",
        fix=f"{meant}{fix}{point_to_socs(name)}",
    )


def explain_absence(name: str) -> str:
    """Return why a command does not take an SoC that QNN knows, or ""."""
    is_known = read_all_socs().get(name.upper())
    return " for ExecuTorch, although QNN knows it" if is_known and not is_known.executorch else ""


def point_to_socs(name: str) -> str:
    """Return which command says what takes the SoC, or "" if it knows no more of it."""
    socs = read_all_socs()
    if name_in(name, socs) not in socs:
        return ""
    return f"; {show_command('inspect', '--soc', name)} shows which lanes take it"


def find_htp(name: str) -> Soc:
    """Return the SoC ``name`` as find_any_soc does. Raises UsageError also if QNN knows no HTP of
    it."""
    soc = find_any_soc(name)
    if not soc.hexagon:
        raise UsageError(f"QNN knows no HTP of {name}", fix="pass an SoC with an HTP")
    return soc


@functools.cache
def name_socs() -> Mapping[int, str]:
    """Return the name of each number of QNN's: the first of those that have the number."""
    names: dict[int, str] = {}
    for name, soc in read_all_socs().items():
        names.setdefault(soc.id, name)
    return names


def is_same_soc(name: str, other_name: str) -> bool:
    """Return whether QNN has one number for both names, or they are equal."""
    socs = read_all_socs()
    soc, other_soc = (socs.get(name_in(each, socs)) for each in (name, other_name))
    if soc is None or other_soc is None:
        return name.upper() == other_name.upper()
    return soc.id == other_soc.id


class PinnedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file at a URL."""

    url: Annotated[str, Meta(pattern="^https://")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Meta(ge=1)]

    @property
    def name(self) -> str:
        """Return the file's name."""
        return self.url.rpartition("/")[2]


class KnownDecoder(Struct, frozen=True, forbid_unknown_fields=True):
    """A language model's files, and the prompts for its calibration. The first prompt is also used
    to judge its outputs.
    """

    summary: str
    licence: str
    prompts: Annotated[tuple[str, ...], Meta(min_length=1)]
    weights: PinnedFile
    tokenizer: PinnedFile


def read_decoders() -> Mapping[str, KnownDecoder]:
    """Return all known language models. The keys are their names. Raises ManifestError."""
    return read_toml("decoders.toml", dict[str, KnownDecoder])
