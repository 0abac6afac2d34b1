"""Download a file from the first URL that has it. Interrupted downloads are resumed, and the
content is hashed as it arrives.
"""

from __future__ import annotations

import errno
import glob
import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from provisioning.console.caller import caller_path
from provisioning.console.progress import Bar, Progress
from provisioning.documents import open_regular
from provisioning.errors import DownloadError, IntegrityError, UnfitError
from provisioning.fetch.client import Client
from provisioning.fetch.part_file import PartFile
from provisioning.fetch.transfer import (
    BusyError,
    Head,
    MismatchError,
    PermanentError,
    TransferPolicy,
    TransientError,
    redact_url,
    try_again,
)
from provisioning.files import READ_BYTES, SPARE_BYTES, free_bytes

# A body of up to this size may be an error page.
PAGE_BYTES = 64 << 10
PATIENCE_S = 2.0
FILE_MODE = 0o644  # regardless of the umask: a store may be shared


class NoRoomError(PermanentError):
    """The server states a size, or sent as much, that the disk has no room for. Another URL may
    have the right file.
    """


@dataclass(frozen=True)
class Pin:
    """The size and hash that a file must have; 0 and '' if unknown.

    ``most_bytes`` limits a file of unknown size; 0 means no limit.
    """

    size_bytes: int = 0
    sha256: str = ""
    most_bytes: int = 0


Judge = Callable[[Path], None]


def accept_any(path: Path) -> None:
    """Accept any file. This is the ``judge`` of fetch_file if the file's hash is known."""


def fetch_file(
    urls: Sequence[str],
    target: Path,
    pin: Pin,
    progress: Progress,
    *,
    policy: TransferPolicy | None = None,
    judge: Judge = accept_any,
) -> str:
    """Download ``target`` from the first of ``urls`` that has the pinned content.

    A complete and checked file is renamed to ``target``. After an interruption, the partial file is
    kept, and the next call resumes it. ``file://`` URLs are read from disk. ``judge`` checks a
    complete file and raises IntegrityError if it cannot be the expected one. The URL is then
    retried if the body was small or of unknown length; otherwise, the next URL is tried.

    Returns the file's SHA-256. Raises IntegrityError if the content from a URL did not match the
    pin and no other URL had the right content, DownloadError if no URL could be downloaded and
    accepted by ``judge``, UnfitError for an invalid environment variable, and OSError if the file
    cannot be written.
    """
    chosen = policy or TransferPolicy.from_environment()
    options = _FetchOptions(progress, chosen, target.name, judge)
    target.parent.mkdir(parents=True, exist_ok=True)
    failures: list[tuple[str, PermanentError]] = []
    busy: list[str] = []
    # A server that asks for a long delay gets it only after every other URL was tried.
    impatient = replace(options, policy=replace(options.policy, patience_s=PATIENCE_S))
    attempts = [(url, impatient) for url in urls] + [(url, options) for url in urls]
    for url, attempt_options in attempts:
        if attempt_options is options and url not in busy:
            continue
        try:
            return _fetch_from(url, target, pin, attempt_options)
        except PermanentError as error:
            if isinstance(error, BusyError):
                busy.append(url)
            else:
                failures.append((redact_url(url), error))
            progress.step(f"{target.name}: {redact_url(url)}: {error}")
    raise _summarise(target, failures)


def _summarise(target: Path, failures: Sequence[tuple[str, PermanentError]]) -> Exception:
    reasons = "; ".join(f"{url}: {error}" for url, error in failures) or "there is no URL for it"
    # The gravest reason decides the kind of error: wrong content may be an attack, a missing file
    # is none.
    if any(isinstance(error, MismatchError) for _, error in failures):
        return IntegrityError(
            f"{target.name} does not match its pin",
            why=reasons,
            fix="do not use it; compare it with what its vendor publishes, then correct the pin",
        )
    if any(isinstance(error, NoRoomError) for _, error in failures):
        return OSError(errno.ENOSPC, reasons)
    return DownloadError(f"{target.name} could not be fetched", why=reasons)


def _fetch_from(url: str, target: Path, pin: Pin, options: _FetchOptions) -> str:
    """Download from one URL, and return the file's SHA-256. If a resumed file does not match its
    pin, start over once, since a power cut may have zeroed bytes that an earlier process wrote.
    """
    part = PartFile(target, url)
    with closing(part), options.progress.bar(f"{target.name}:", pin.size_bytes) as bar:
        bar.done = part.size
        try:
            try:
                sha256 = _fill(url, part, pin, bar, options)
            except MismatchError as error:
                if not part.was_resumed:
                    raise
                options.progress.step(
                    f"{target.name}: {error}; starting over, since this download was resumed"
                )
                part.restart()
                sha256 = _fill(url, part, pin, bar, options)
        except PermanentError as error:
            # Wrong bytes must not be resumed, and a partial file must not fill the disk for the
            # next URL.
            if not part.size or isinstance(error, MismatchError | NoRoomError):
                part.discard()
            raise
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                part.discard()
            raise
    # Before it gets its name, so that another process never sees it with other permissions.
    part.path.chmod(FILE_MODE)
    part.path.replace(target)
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.*.*"):
        if leftover.suffix in {".part", ".json"}:
            leftover.unlink(missing_ok=True)
    return sha256


def _fill(url: str, part: PartFile, pin: Pin, bar: Bar, options: _FetchOptions) -> str:
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise PermanentError("it is not a URL") from error
    # requests has no adapter for files.
    if scheme in {"file", ""}:
        _read_local(url, part, pin, bar)
        try:
            _judge(part, options, is_sized=True)
        except TransientError as error:  # retrying a local file does not help
            raise PermanentError(str(error)) from error
    else:
        # One connection per file: several only helped with servers that limit each connection.
        with closing(Client(options.policy, options.progress)) as client:
            try_again(
                lambda: _judge(part, options, is_sized=_attempt(client, url, part, pin, bar)),
                lambda: part.size,
                options.policy,
                options.progress,
                options.label,
                restarts=lambda: part.restarts,
            )
    return check_pin(part.size, part.digest.hexdigest(), pin)


def check_pin(size_bytes: int, sha256: str, pin: Pin) -> str:
    """Return ``sha256`` if the size and the hash match the pin. Otherwise, raises MismatchError."""
    if pin.size_bytes and size_bytes != pin.size_bytes:
        raise MismatchError(f"it is {size_bytes} bytes long, not the pinned {pin.size_bytes}")
    if pin.sha256 and sha256 != pin.sha256:
        raise MismatchError(f"its SHA-256 is {sha256}, the pin is {pin.sha256}")
    return sha256


@dataclass(frozen=True)
class _FetchOptions:
    progress: Progress
    policy: TransferPolicy
    label: str
    judge: Judge


def _read_local(url: str, part: PartFile, pin: Pin, bar: Bar) -> None:
    """Copy a local file. Raises PermanentError for a pipe or a device, which may be endless, and
    MismatchError for a wrong size.
    """
    parts = urlsplit(url)
    path = Path(unquote(parts.path) if parts.scheme else url)
    part.restart()
    try:
        file = open_regular(path)
    except (OSError, ValueError) as error:
        raise PermanentError(getattr(error, "strerror", "") or str(error)) from error
    with file:
        size_bytes = os.fstat(file.fileno()).st_size
        if pin.size_bytes:
            check_pin(size_bytes, pin.sha256, pin)
        elif size_bytes > pin.most_bytes > 0:
            why = f"it is {size_bytes} bytes long, but at most {pin.most_bytes} are expected"
            raise PermanentError(why)
        while data := file.read(READ_BYTES):
            part.append(data)
            bar.advance(len(data))


def _judge(part: PartFile, options: _FetchOptions, *, is_sized: bool) -> None:
    """Check the complete file with the ``judge``. If it is refused, discard it and raise
    TransientError, or PermanentError if it is large and the server stated its size (``is_sized``).
    """
    try:
        options.judge(part.path)
    except IntegrityError as error:
        is_small, start = part.size <= PAGE_BYTES, part.start_of() if part.size else ""
        part.restart()
        why = f"the content is wrong: {error.why}; it starts with {start!r}"
        # Servers send error pages with status 200, which a retry may avoid. A large file with a
        # stated size would only be downloaded again in vain.
        raise (TransientError if is_small or not is_sized else PermanentError)(why) from error


def _attempt(client: Client, url: str, part: PartFile, pin: Pin, bar: Bar) -> bool:
    """Request the missing bytes of the file; return whether its size is known, from the server or
    the pin.

    Raises TransientError or PermanentError if the file is not complete after that.
    """
    if pin.size_bytes and part.size == pin.size_bytes:
        return True
    # The pin was changed since, or the server's file was another one.
    if part.size > pin.size_bytes > 0:
        part.restart()
    headers = {}
    if part.size and part.validator:  # without a validator, the rest could be of another file
        headers = {"Range": f"bytes={part.size}-", "If-Range": part.validator}
    with client.get(url, headers) as (head, body):
        # The file was complete already: no byte is left to send.
        if head.status == 416 and head.total == part.size > 0:
            return True
        position = 0 if head.status == 200 else part.size
        if position or head.status == 416:
            if why := _find_mix(head, part, pin):
                part.restart()
                raise TransientError(f"{why}; starting over")
            part.was_resumed = True
        else:
            _check_start(head, pin)
            part.restart(head.validator)
            bar.done = 0
        size_limit = _check_size(head, part, pin)
        for data in body:
            part.append(data)
            bar.advance(len(data))
            # The free space is only asked for again when the last answer is used up.
            if part.size > size_limit:
                size_limit = _check_size(head, part, pin)
        check_whole(head, position, part, pin)
        return max(head.length, head.total) >= 0


def _check_size(head: Head, part: PartFile, pin: Pin) -> float:
    """Return the size in bytes that the file may reach before this has to be called again.

    Raises PermanentError if the file exceeds its pinned size or its limit, and NoRoomError if the
    disk has too little space for a file without a pinned size.
    """
    if pin.size_bytes:
        if part.size > pin.size_bytes:
            raise MismatchError(f"it is longer than the pinned {pin.size_bytes} bytes")
        return pin.size_bytes
    size = max(part.size + max(head.length, 0), head.total)
    if size > pin.most_bytes > 0:
        part.restart()
        raise PermanentError(
            f"it is at least {size} bytes long, but at most {pin.most_bytes} are expected"
        )
    room = part.size + free_bytes(part.path.parent) - SPARE_BYTES
    if size > room:
        raise NoRoomError(f"the file is at least {size} bytes long, too large for the disk")
    return min(room, pin.most_bytes or math.inf)


def _find_mix(head: Head, part: PartFile, pin: Pin) -> str:
    """Return why a response does not continue the bytes downloaded so far, or '' if it does."""
    if head.status == 416:
        return "HTTP 416: the server's file is shorter than the part downloaded so far"
    if head.range_start != part.size:
        return f"the server resumed at byte {head.range_start}, not at {part.size}"
    # If-Range asks the server for this check; not every server honours it.
    if head.validator and head.validator != part.validator:
        return "the file changed during the download (another ETag or date)"
    if pin.size_bytes and head.total not in {-1, pin.size_bytes}:
        return f"the file changed during the download (now {head.total} bytes)"
    return ""


def _check_start(head: Head, pin: Pin) -> None:
    """Check that a response is the whole file. Raises PermanentError for a part, which was not
    requested, and MismatchError for a wrong size.
    """
    # A range from byte 0 on is accepted; its length is checked at the end.
    if head.status == 206 and head.range_start > 0:
        raise PermanentError("the server sends a part, but the whole file was requested")
    # A short body may be an error page, which is shown in the message and retried: so it is read
    # first.
    if pin.size_bytes and PAGE_BYTES < head.length != pin.size_bytes:
        raise MismatchError(
            f"the server's file is {head.length} bytes long, not the pinned {pin.size_bytes}"
        )


def check_whole(head: Head, position: int, part: PartFile, pin: Pin) -> None:
    """Check that the file is complete, after the response's body has ended.

    Raises TransientError if it is not, or if it is a web page, such as a login page. Raises
    MismatchError if the server's file does not have the pinned size.
    """
    expected = max(position + head.length if head.length >= 0 else -1, head.total)
    # First: a body that was cut says nothing about the file.
    if 0 <= expected != part.size:
        raise TransientError(f"the body ended after {part.size} of {expected} bytes")
    if pin.size_bytes and part.size == pin.size_bytes:
        return
    is_small = pin.size_bytes and part.size <= PAGE_BYTES
    is_page = head.content_type.lower().startswith(("text/html", "application/xhtml"))
    shown = part.start_of()
    # A page may come with any content type, so that its start is looked at, too.
    if is_small or is_page or shown.lower().startswith(("<!doctype html", "<html")):
        sent = f"{part.size} bytes instead of the file, with status {head.status}"
        part.restart()
        raise TransientError(f"the server sent {sent}: {shown!r}")
    if not pin.size_bytes:
        return
    if expected >= 0:
        size = part.size
        raise MismatchError(
            f"the server's file is {size} bytes long, not the pinned {pin.size_bytes}"
        )
    raise TransientError(f"the body ended after {part.size} of {pin.size_bytes} bytes")


FILENAME, SHA256 = "{filename}", "{sha256}"


def find_mirror_fault() -> str:
    """Return that QNN_CI_MIRROR names a directory that is missing, or '' if it does not."""
    base = os.environ.get("QNN_CI_MIRROR", "")
    if not base or "://" in base or FILENAME in base or SHA256 in base:
        return ""
    place = caller_path(Path(base).expanduser())
    return "" if place.is_dir() else f"the directory in QNN_CI_MIRROR, {place}, does not exist"


def mirror_urls(filename: str, sha256: str = "") -> list[str]:
    """Return the URLs of a file below QNN_CI_MIRROR. The list is empty if QNN_CI_MIRROR is not set,
    or if it contains ``{sha256}`` but the file's hash is unknown.

    QNN_CI_MIRROR is a directory, a URL (its query stays at the end), or a template with
    ``{filename}`` or ``{sha256}``. Raises UnfitError for anything else.
    """
    base = os.environ.get("QNN_CI_MIRROR", "")
    if not base:
        return []
    name = quote(filename)
    try:
        if "://" not in base:
            base = caller_path(Path(base).expanduser()).as_uri()
            # as_uri quotes the braces of a template.
            base = base.replace("%7B", "{").replace("%7D", "}")
        if SHA256 in base and not sha256:
            return []
        if FILENAME in base or SHA256 in base:
            return [base.replace(FILENAME, name).replace(SHA256, sha256)]
        parts = urlsplit(base)
    except (RuntimeError, ValueError) as error:
        filled = "a directory such as `qnn-ci fetch emulator --to mirror` fills"
        fix = f"set it to {filled}, or to its URL, or unset it"
        raise UnfitError(
            "QNN_CI_MIRROR is neither a directory nor a URL", why=str(error), fix=fix
        ) from error
    # The query stays at the end, because a signed URL needs it there.
    return [urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))]
