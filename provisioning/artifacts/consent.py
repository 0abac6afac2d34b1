"""Ask the user to accept a licence, and whether to trust an archive for which the vendor publishes
no hash. The user is asked once, before the first fetch, and the answer is recorded.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.caller import is_ci, read_date
from provisioning.console.progress import Progress
from provisioning.documents import DocumentError, decode_json, read_user_file
from provisioning.errors import IntegrityError, UnfitError, UsageError
from provisioning.store.store import Store
from provisioning.store.tree import encode_record


def require_trust(request: ArtifactRequest) -> None:
    """Raise IntegrityError if a release that is a single file has no hash, unless the user agreed
    to trust the first download. In CI, this agreement is ignored.
    """
    if request.release.pin or not request.release.can_lock:
        return
    # In a CI job, no user reads what is trusted.
    if is_ci():
        why = "its vendor publishes no hash, and CI never trusts a first download"
    elif not request.options.trust_first_use:
        why = "its vendor publishes no hash, so you have to trust the first download"
    else:
        return
    variable = request.toolchain.adoption.variable
    installed = f"; or set {variable} to an existing installation" if variable else ""
    raise IntegrityError(
        f"{request.label} has no known SHA-256 to check it against",
        why=why,
        fix=(
            "add --trust-first-use on a machine that you trust; to pin the hash for other machines "
            f"and CI, run `qnn-ci lock {request.name} --write` there and commit manifests/locks/"
            f"{installed}"
        ),
    )


ACCEPT_VARIABLE = "QNN_CI_ACCEPT_LICENCE"


def require_acceptance(request: ArtifactRequest, store: Store, progress: Progress) -> None:
    """Ask the user to accept the artifact's licence, and record the answer. A licence that need not
    be accepted is only printed, and one that was accepted before is not shown again.

    Raises UnfitError if the user does not accept it; the error shows the licence, its text and how
    to accept it.
    """
    licence = request.toolchain.licence
    if not licence.accept:
        progress.step(f"{request.label}: {licence.name}, {licence.text}")
        return
    key = f"{request.name} {request.release.version}: {licence.name}"
    path, accepted = store.home / "licences.json", dict[str, dict[str, str]]()
    with suppress(UsageError, DocumentError):  # a record that is damaged is written again
        accepted = decode_json(read_user_file(path, "the record"), dict[str, dict[str, str]])
    if key in accepted:
        return
    accepted[key] = {
        "licence": licence.name,
        "text": licence.text,
        "how": _ask(request, progress),  # by an option, a variable or an answer
        "accepted": read_date(),
    }
    store.write_record(path, encode_record(accepted))


def _ask(request: ArtifactRequest, progress: Progress) -> str:
    licence = request.toolchain.licence
    if request.options.accept_licence:
        return "--accept-licence"
    named = os.environ.get(ACCEPT_VARIABLE, "").replace(",", " ").split()
    if request.name in named or "all" in named:
        return f"{ACCEPT_VARIABLE}={' '.join(named)}"
    # Some CI services give a job a terminal, although no user can answer there.
    if sys.stdin.isatty() and not is_ci():
        progress.step(f"{request.label} is licensed under: {licence.name}\n  text: {licence.text}")
        progress.step("Do you accept it? [y/N]")
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return "answered yes"
    raise UnfitError(
        f"{request.label} has a licence that you have not accepted",
        why=f"{licence.name}: {licence.text}",
        fix=f"read it, then use --accept-licence or set {ACCEPT_VARIABLE}={request.name}",
    )
