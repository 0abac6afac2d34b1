"""Finds or downloads the files of a decoder in manifests/decoders.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, IntegrityError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.files import hash_file
from provisioning.manifest.decoders import PinnedFile, read_decoders
from provisioning.store.store import store_home


def find_files(
    name: str, progress: Progress, *, offline: bool, environ: Mapping[str, str] = os.environ
) -> tuple[Path, Path]:
    """Return the paths of the weights and the tokenizer of the decoder ``name``.

    The files are in the store, to which they are downloaded if necessary. If an environment
    variable such as QNN_CI_STORIES260K is set, they must be in the directory that it names.

    Raises IntegrityError if a file in that directory is missing, or if a file or a download does
    not match its pin. Raises DownloadError if a download fails, or if ``offline`` forbids it.
    """
    known = read_decoders()[name]
    variable = f"QNN_CI_{name.upper()}"
    given = environ.get(variable)
    place = Path(given) if given else store_home() / "decoders" / name
    for pin in (known.weights, known.tokenizer):
        if not is_whole(place / pin.name, pin):
            if given:
                raise IntegrityError(
                    f"{place / pin.name} is missing or not the pinned file",
                    why=f"{variable} names the directory; the pinned file has SHA-256 {pin.sha256}",
                    fix=f"put the published file there, or unset {variable}",
                )
            if offline:
                raise DownloadError(
                    f"{pin.name} is not in the store, and --offline forbids the download",
                    fix=f"omit --offline, or set {variable} to a directory with the file",
                )
            fetch_file([pin.url], place / pin.name, Pin(pin.size_bytes, pin.sha256), progress)
    return place / known.weights.name, place / known.tokenizer.name


def is_whole(path: Path, pin: PinnedFile) -> bool:
    """Return whether a file exists and matches its pin."""
    return path.is_file() and hash_file(path) == pin.sha256
