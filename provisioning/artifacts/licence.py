"""A licence is asked for once, before the first fetch, and the answer is recorded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.clock import read_date
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from provisioning.store.store import Store
from provisioning.store.tree import encode_record

ACCEPT_VARIABLE = "QNN_CI_ACCEPT_LICENCE"


class Acceptance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who said yes to what: ``how`` is the option, the variable or the answer at a prompt."""

    licence: str
    text: str
    how: str
    accepted: str


def record_path(store: Store) -> Path:
    return store.home / "licences.json"


def require_acceptance(request: ArtifactRequest, store: Store, progress: Progress) -> None:
    """Return when the artifact's licence needs no acceptance or has it; else ask for it.

    Raises UnfitError, naming the licence, its text and the ways to accept it.
    """
    licence = request.toolchain.licence
    if not licence.accept:
        progress.step(f"{request.label}: {licence.name}, {licence.text}")
        return
    key = f"{request.name} {request.release.version}: {licence.name}"
    accepted = _read(store)
    if key in accepted:
        return
    how = _ask(request, progress)
    accepted[key] = Acceptance(licence.name, licence.text, how, read_date())
    store.write_record(record_path(store), encode_record(accepted))


def _read(store: Store) -> dict[str, Acceptance]:
    try:
        return msgspec.json.decode(record_path(store).read_bytes(), type=dict[str, Acceptance])
    except (OSError, msgspec.DecodeError):
        return {}


def _ask(request: ArtifactRequest, progress: Progress) -> str:
    licence = request.toolchain.licence
    if request.options.accept_licence:
        return "--accept-licence"
    named = os.environ.get(ACCEPT_VARIABLE, "").replace(",", " ").split()
    if request.name in named or "all" in named:
        return f"{ACCEPT_VARIABLE}={' '.join(named)}"
    if sys.stdin.isatty() and not os.environ.get("CI"):
        progress.step(f"{request.label} comes under: {licence.name}\n  text: {licence.text}")
        progress.step("Do you accept it? [y/N]")
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return "answered yes"
    raise UnfitError(
        f"{request.label} comes under a licence that has not been accepted",
        why=f"{licence.name}: {licence.text}",
        fix=f"read it, then give --accept-licence or set {ACCEPT_VARIABLE}={request.name}",
    )
