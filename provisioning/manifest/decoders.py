"""Read manifests/decoders.toml, the language models that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from provisioning.manifest.reader import read_toml


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
