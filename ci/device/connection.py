"""Run scripts on a phone or a board through the adb or ssh client.

Both clients read their usual settings: ~/.ssh/config and known_hosts for ssh, ANDROID_ADB_SERVER_*
for adb.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from provisioning.console.process import fill_script, run_streams
from provisioning.errors import StoreError, ToolError, UnfitError, UsageError

ANSWER_BYTES = 16 << 20
MESSAGE_BYTES = 16 << 10  # of stderr; the middle of a longer one is left out
ANSWER_S = 60.0  # for a script that only reports something
PUSH_S_PER_MIB = 10.0
BEGUN = b"qnn-ci-begun\n"  # printed first, because a login shell may print a greeting
ENDED = re.compile(rb"\nqnn-ci-ended (\d+)\n")
NO_ROOM = re.compile(r"No space left|Disk quota|not enough space")
# The path on a board is relative to the home directory.
PHONE_PLACE, BOARD_PLACE = "/data/local/tmp/qnn-ci", "qnn-ci"
LARGE_BYTES = 8 << 20  # a larger file is sent alone, so that an interruption loses only that file
PART, SUMS, DAMAGED = ".part", ".sums", 92
SCRIPTS = Path(__file__).with_name("scripts")
KEY_FIX = "connect once by hand, and compare the key's fingerprint with the device's: ssh"
# No leading hyphen or dot: an option for the tools of the device, or a hidden file.
NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*")
HOST = re.compile(r"(?P<user>[^@]+@)?(?:\[(?P<v6>[^\]]+)\]|(?P<v4>[^:]+))(?::(?P<port>\d+))?")


class Answer(NamedTuple):
    """The exit code of a script, its stdout, and its stderr as text."""

    code: int
    out: bytes
    message: str


@dataclass(frozen=True)
class Device:
    """A phone or a board. ``name`` is what the user calls it, ``client`` is the command that takes
    a script as its last argument, and ``place`` is this project's directory on the device."""

    name: str
    client: tuple[str, ...]
    place: str

    def call(
        self,
        script: str,
        *,
        data: bytes | Path = b"",
        timeout_s: float = ANSWER_S,
        most_bytes: int = ANSWER_BYTES,
    ) -> Answer:
        """Run a script in the shell of the device's user, with ``data`` as its stdin.

        Raises ToolError if the device cannot be reached, the connection breaks, or the answer is
        longer than ``most_bytes``, and StoreError if the device has too little space.
        """
        # The script's exit code is printed, because that of the client can also be about the
        # connection: adb's is 0 if it lost the connection before any output arrived.
        command = f"echo {BEGUN.decode()}( {script}\n)\nprintf '\\nqnn-ci-ended %s\\n' $? >&2"
        limits: dict[str, Any] = {"timeout_s": timeout_s, "most_bytes": most_bytes}
        limits["most_messages"] = MESSAGE_BYTES
        ended = run_streams([*self.client, command], data=data, **limits)
        if ended.is_good and not (ended.stdout or ended.stderr):
            # adb lost the connection before the first output arrived, for example because its
            # server was killed. The script may have begun, so each can be run twice.
            ended = run_streams([*self.client, command], data=data, **limits)
        # The last one counts: the script itself may print text in this form.
        marks = ENDED.findall(ended.stderr)
        message = ENDED.sub(b"", ended.stderr).decode("utf-8", "replace").strip()
        if not marks:
            how = ended.exceeded or "cannot be reached"
            how = "did not answer in time" if how.startswith("did not end") else how
            raise ToolError(
                f"{self.name} {how}",
                why=message or f"{self.client[0]} {ended.describe()}",
                fix=f"{KEY_FIX} {self.name.replace(':', '://', 1)}"
                if "Host key verification failed" in message
                else f"see whether this works: {' '.join(map(quote, [*self.client, 'true']))}",
            )
        if NO_ROOM.search(message):
            raise StoreError(
                f"{self.name} has no space left",
                why=message.splitlines()[-1],
                fix=f"free space on the device, or remove {self.place} from it",
            )
        return Answer(int(marks[-1]), ended.stdout.partition(BEGUN)[2], message)

    def ask(self, script: str, **options: Any) -> bytes:
        """Return the stdout of a script. ``options`` are further arguments of ``call``. Raises
        ToolError if the script fails, and the same errors as ``call``."""
        # Without it, only the exit code of the last command would count.
        answer = self.call(f"set -e\n{script}", **options)
        if answer.code:
            raise ToolError(
                f"{self.name}: a command on the device exited with code {answer.code}",
                why=answer.message or f"one of these commands failed: {script.strip()}",
            )
        return answer.out

    def push(self, directory: str, files: Mapping[str, Path], digests: Mapping[str, str]) -> int:
        """Send files to a directory on the device, except those that it already has. Return how
        many bytes were sent. ``files`` maps file names to paths, and ``digests`` maps them to
        SHA-256 digests.

        A file gets its name only when it is complete. Raises UsageError for a name with special
        characters, ToolError if a file does not arrive completely, and the same errors as ``ask``.
        """
        for name in files:
            # The name is pasted into scripts and into the list for sha256sum.
            require_plain(name)
        device_digests = self.list_digests(directory)
        # By content: the times of files on a phone depend on how they were sent.
        lacking = [name for name in files if device_digests.get(name) != digests[name]]
        sizes = {name: files[name].stat().st_size for name in lacking}
        marks = {"sums": SUMS, "damaged": DAMAGED}
        large = [[name] for name in lacking if sizes[name] > LARGE_BYTES]
        small = [name for name in lacking if sizes[name] <= LARGE_BYTES]
        # All small files in one call, since each call opens a connection.
        for names in filter(None, [*large, small]):
            with tempfile.NamedTemporaryFile(suffix=".tar") as packed:
                pack([(name, files[name], digests[name]) for name in names], packed.name)
                size = sum(sizes[name] for name in names)
                # Each call has a separate directory, because a killed call may still be sending.
                part = f"{PART}.{secrets.token_hex(4)}"
                answer = self.call(
                    fill_script(SCRIPTS / "receive.sh", directory=directory, part=part, **marks),
                    data=Path(packed.name),
                    timeout_s=ANSWER_S + PUSH_S_PER_MIB * size / 2**20,
                )
            if answer.code:
                differs = "the SHA-256 on the device differs from the one here"
                raise ToolError(
                    f"{self.name}: {', '.join(names)} did not arrive completely",
                    why=differs if answer.code == DAMAGED else answer.message,
                    fix="run the command again: complete files are not sent again",
                )
        return sum(sizes.values())

    def list_digests(self, directory: str) -> dict[str, str]:
        """Return the SHA-256 of each file in a directory on the device, keyed by file name. Create
        the directory if it is missing, and remove what interrupted pushes left there."""
        where = quote(directory)
        return self._read_digests(f"mkdir -p {where}\ncd {where}\nrm -rf {PART}* || true")

    def peek_digests(self, directory: str) -> dict[str, str]:
        """Return the same as ``list_digests``, but change nothing: another computer may be sending
        files there. A directory that is missing has none."""
        return self._read_digests(f"cd {quote(directory)} 2>/dev/null || exit 0")

    def _read_digests(self, go_there: str) -> dict[str, str]:
        script = f'{go_there}\nfor f in *; do if [ -f "$f" ]; then sha256sum "$f"; fi; done'
        text = self.ask(script, timeout_s=10 * ANSWER_S)
        rows = (line.split(None, 1) for line in text.decode("utf-8", "replace").splitlines())
        # sha256sum puts * before the name of a file that it read in binary mode.
        return {name.lstrip("*"): digest for digest, name in rows}


def pack(rows: Sequence[tuple[str, Path, str]], target: str) -> None:
    """Write a tar archive with files and, for ``sha256sum -c``, a list of their SHA-256. Each row
    is a file's name, path and SHA-256."""
    with tarfile.open(target, "w") as tar:
        for name, path, _ in rows:
            tar.add(path, name, filter=forget_owner)
        sums = "".join(f"{digest}  {name}\n" for name, _, digest in rows).encode()
        entry = tarfile.TarInfo(SUMS)
        entry.size = len(sums)
        tar.addfile(entry, io.BytesIO(sums))


def forget_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner of an archive's member, so that the file belongs to the device's user."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def require_plain(name: str) -> None:
    """Raise UsageError for a file name with characters that are special to a shell."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid file name on a device")


ADB_FIX = "install adb (Debian, Ubuntu: the package adb)"


def open_device(word: str, place: str = "") -> Device:
    """Return the device named ``adb:SERIAL``, ``adb:`` or ``ssh:[USER@]HOST[:PORT]``.

    Raises UsageError for any other form, UnfitError if the client is missing or the phone is not
    ready, and ToolError if adb fails. A board is not contacted yet.
    """
    kind, address = split_device(word)
    if kind == "adb":
        client = require_client("adb", ADB_FIX)
        serial = choose_phone(client, address)
        # -T: a terminal on the phone would change line ends, and damage binary output.
        return Device(f"adb:{serial}", (client, "-s", serial, "shell", "-T"), place or PHONE_PLACE)
    host, port = address, ""
    if parts := HOST.fullmatch(address):  # an IPv6 address with a port is written [::1]:22
        host, port = f"{parts['user'] or ''}{parts['v6'] or parts['v4']}", parts["port"] or ""
    client = require_client("ssh", "install OpenSSH's client (Debian, Ubuntu: openssh-client)")
    # BatchMode: nobody can answer a question about a password or an unknown host key.
    # A board that loses power does not close the connection, so the client asks every ten seconds.
    safe = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")
    alive = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=6")
    ports = ("-p", port) if port else ()
    return Device(word, (client, "-T", *safe, *alive, *ports, "--", host), place or BOARD_PLACE)


def split_device(word: str) -> tuple[str, str]:
    """Return the kind of a device, ``adb`` or ``ssh``, and its address. Raises UsageError for any
    other form."""
    kind, _, address = word.partition(":")
    # A host that starts with - would be an option for ssh.
    is_host = bool(address) and not address.startswith("-")
    if not (kind == "adb" or (kind == "ssh" and is_host)):
        raise UsageError(
            f"--device {word} does not name a device",
            fix="pass adb:SERIAL, adb: (the only phone) or ssh:[USER@]HOST[:PORT]",
        )
    return kind, address


def require_client(name: str, fix: str) -> str:
    """Return the client's name. Raises UnfitError if it is not on PATH."""
    if not shutil.which(name):
        raise UnfitError(
            f"{name} is not on PATH", why="it is the client that connects to the device", fix=fix
        )
    return name


def list_phones(client: str = "adb") -> dict[str, str]:
    """Return the state of each phone that adb lists, keyed by serial number. Raises UnfitError if
    adb is missing, and ToolError if it fails."""
    require_client(client, ADB_FIX)
    ended = run_streams([client, "devices"], timeout_s=ANSWER_S)
    if not ended.is_good:
        why = ended.stderr.decode("utf-8", "replace").strip()
        raise ToolError(f"adb devices {ended.describe()}", why=why)
    lines = ended.stdout.decode("utf-8", "replace").splitlines()
    # adb also prints messages, such as that its server starts. Only the rows of devices have a tab.
    return dict(line.split("\t", 1) for line in lines if "\t" in line)


def choose_phone(client: str, requested: str) -> str:
    """Return the serial number of a phone: ``requested`` if it is not empty, else ANDROID_SERIAL,
    else the serial number of the only phone. Raises UnfitError if adb does not list this phone or
    the phone is not ready, and ToolError if adb fails."""
    requested = requested or os.environ.get("ANDROID_SERIAL", "")
    phones = list_phones(client)
    listed = ", ".join(f"{serial} ({state})" for serial, state in phones.items()) or "none"
    if not requested and len(phones) != 1:
        raise UnfitError(
            f"adb lists {'no phone' if not phones else f'{len(phones)} phones'}",
            why=f"listed: {listed}",
            fix=f"pass --device adb:{' or --device adb:'.join(phones)}"
            if phones
            else "connect a phone with USB debugging enabled",
        )
    serial = requested or next(iter(phones))
    # In any other state, adb's shell fails with a message that does not say what to do.
    if phones.get(serial) != "device":
        state = phones.get(serial, "missing")
        fixes = (fix for start, fix in STATES.items() if state.startswith(start))
        fix = next(fixes, "reconnect the phone, or run `adb reconnect`")
        raise UnfitError(f"{serial} is {state}", why=f"adb lists: {listed}", fix=fix)
    return serial


STATES = {
    "unauthorized": "accept this computer's key on the phone's screen",
    "authorizing": "accept this computer's key on the phone's screen",
    "missing": "connect this phone, or select one that adb lists",
    "no permissions": "install udev rules for phones (Debian, Ubuntu: the package"
    " android-sdk-platform-tools-common), and reconnect the phone",
}


@dataclass(frozen=True)
class DeviceFacts:
    """What a device reports. Values that it does not report are empty, or None for a number.
    ``dsp`` lists the device files of FastRPC that the user may open, and ``closed`` those that the
    user may not open."""

    machine: str
    soc: str = ""
    model: str = ""
    android: str = ""
    user: str = ""
    free_bytes: int | None = None
    dsp: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the facts as one line of text."""
        parts = [
            self.model,
            self.soc or self.machine,
            f"Android {self.android}" if self.android else "Linux",
            "" if self.free_bytes is None else f"{self.free_bytes // 2**20} MiB free",
            f"user {self.user}",
            f"{len(self.libraries)} QNN and FastRPC libraries" if self.libraries else "",
        ]
        return ", ".join(filter(None, parts))


def identify(device: Device) -> DeviceFacts:
    """Return the facts of a device. Raises the same errors as ``Device.ask``, and UnfitError if the
    device lacks a required tool."""
    text = device.ask(fill_script(SCRIPTS / "identify.sh", place=device.place)).decode(
        "utf-8", "replace"
    )
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if value.strip():
            values.setdefault(name, []).append(value.strip())
    # Only now, when all missing tools are known.
    if lacks := values.get("lacks"):
        raise UnfitError(
            f"{device.name} has no {' and no '.join(lacks)}",
            why="the device needs these tools to check files and to send them back",
            fix="install toybox or busybox on the device, or coreutils and tar",
        )

    def first(*names: str) -> str:
        return next((values[name][0] for name in names if name in values), "")

    free = first("free_kb")
    return DeviceFacts(
        machine=first("machine"),
        soc=first("soc", "soc0_machine").upper(),
        model=first("model"),
        android=first("android"),
        user=first("user"),
        free_bytes=int(free) * 1024 if free.isdigit() else None,
        dsp=tuple(values.get("dsp", ())),
        closed=tuple(values.get("closed", ())),
        libraries=tuple(values.get("library", ())),
    )
