"""Several artifacts put in place side by side, after one outline of what will come.

One downloads while another is unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

from provisioning.artifacts.consent import require_acceptance, require_trust
from provisioning.artifacts.provision import Provisioned, adopt_artifact, provision_pinned
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.caller import is_ci
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import IntegrityError, UnfitError
from provisioning.fetch.client import end_transfers
from provisioning.files import free_bytes, mib
from provisioning.manifest.releases import FileRelease, ZigRelease
from provisioning.store.store import Store

AT_ONCE = 4


def provision_artifacts(
    requests: Sequence[ArtifactRequest], store: Store, progress: Progress, *, verify: bool = False
) -> list[Provisioned]:
    """Every artifact of ``requests``, in their order: the user's own installation if a variable
    names one, else from the store, fetched if it is missing.

    What is to come is shown, and consent asked for, before anything is fetched. With ``verify``
    every byte is hashed again and what differs is restored, or reported of an installation. If
    one artifact fails, the others are finished first, and the first failure is raised. A library
    that is compiled comes before all others, which are of no use without it.

    Raises UnfitError, DownloadError, IntegrityError, StoreError, ToolError, ManifestError.
    """
    store.say_who_writes(progress)
    found: dict[int, Provisioned] = {}
    wanted: dict[int, ArtifactRequest] = {}
    for number, request in enumerate(requests):
        if adopted := adopt_artifact(request, store, progress, verify=verify):
            found[number] = adopted
        else:
            wanted[number] = request.pinned(store)
    missing = [request for request in wanted.values() if store.find(request.key()) is None]
    if missing:
        show_outline(missing, store, progress)
        for request in (one for one in missing if isinstance(one.release, ZigRelease)):
            provision_pinned(request, store, progress)
    several = len({request.name for request in missing}) > 1
    # Several live bars would share one line.
    shown = Progress(progress.stream) if several else progress

    def bring(numbers: Sequence[int]) -> list[tuple[int, Provisioned]] | Exception:
        try:
            return [
                (number, provision_pinned(wanted[number], store, shown, verify=verify))
                for number in numbers
            ]
        except Exception as error:  # noqa: BLE001 - raised when the others have finished
            return error

    groups: dict[str, list[int]] = {}
    for number, request in wanted.items():
        groups.setdefault(request.name, []).append(number)
    tasks = [partial(bring, numbers) for numbers in groups.values()]
    with ExitStack() as ending:
        abort = partial(ending.enter_context, end_transfers())
        outcomes = run_tasks(tasks, AT_ONCE, abort=abort)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        found.update(outcome)
    return [found[number] for number in range(len(requests))]


def show_outline(requests: Sequence[ArtifactRequest], store: Store, progress: Progress) -> None:
    """Say what comes from where, how large it is, what it is checked against and its licence.

    One artifact that needs no consent goes without. Raises UnfitError or IntegrityError, which
    name every licence and first use that has no consent yet, and the one command that gives it.
    """
    if len(requests) == 1 and not requests[0].toolchain.licence.accept:
        return
    for line in describe_fetch(requests, store):
        progress.step(line)
    _require_yes(requests, store, progress)


def describe_fetch(requests: Sequence[ArtifactRequest], store: Store) -> list[str]:
    """The outline as lines: a head with the room that there is, then each artifact."""
    releases = [each.release for each in requests if isinstance(each.release, FileRelease)]
    most = sum(release.unpacked_bytes for release in releases)
    room = f"{mib(free_bytes(store.home))} are free in {store.home}"
    unpacked = f"refused above {mib(most)} unpacked; " if most else ""
    lines = [f"to fetch: {len(requests)} artifacts; {unpacked}{room}"]
    for request in requests:
        licence, place = request.toolchain.licence, request.release.place
        host = urlsplit(place).hostname or place or request.installation
        lines += [
            f"{request.label}: {_describe_size(request)} from {host}",
            f"  checked: {_describe_check(request)}",
            f"  licence: {licence.name}",
            f"  to read: {licence.text}",
        ]
    return lines


def _describe_size(request: ArtifactRequest) -> str:
    release = request.release
    if not isinstance(release, FileRelease):
        return "a git checkout"
    return mib(release.size_bytes) if release.size_bytes else "an archive of unknown size"


def _describe_check(request: ArtifactRequest) -> str:
    if request.lock and request.lock.files:
        return f"SHA-256 of every one of its {len(request.lock.files)} files, locked"
    if request.release.pin:
        return f"pinned, {request.release.pin[:16]}"
    return "no hash is published, so that its first use is a matter of trust"


def _require_yes(requests: Sequence[ArtifactRequest], store: Store, progress: Progress) -> None:
    """Raise one refusal for all: the command that it names needs no further consent."""
    problems: list[UnfitError | IntegrityError] = []
    for request in requests:
        if request.toolchain.licence.accept:
            try:
                require_acceptance(request, store, progress)
            except UnfitError as error:
                problems.append(error)
        try:
            require_trust(request)
        except IntegrityError as error:
            problems.append(error)
    if len(problems) < 2:
        for problem in problems:
            raise problem
        return
    licences = [error for error in problems if isinstance(error, UnfitError)]
    first_uses = [error for error in problems if isinstance(error, IntegrityError)]
    words = [_name(request) for request in requests]
    words += ["--accept-licence"] if licences else []
    words += ["--trust-first-use"] if first_uses and not is_ci() else []
    fix = f"read what is above, then run `qnn-ci fetch {' '.join(dict.fromkeys(words))}`"
    if first_uses and is_ci():
        fix = f"{fix}; {first_uses[0].fix}"
    kind = UnfitError if licences else IntegrityError
    raise kind(
        f"{len(problems)} questions are open before this fetch",
        why="; ".join(f"{error.what}" for error in problems),
        fix=fix,
    )


def _name(request: ArtifactRequest) -> str:
    """The request as a word of the command line."""
    release, components = request.release.version, ",".join(request.components)
    version = "" if release == request.toolchain.default else f"@{release}"
    return f"{request.name}{version}{':' if components else ''}{components}"
