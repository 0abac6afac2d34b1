"""A phone's adbd, as far as shells and files need it, over TCP: real adb clients connect to it.

Written from AOSP's packages/modules/adb: docs/dev/protocol.md (messages, CNXN, OPEN, OKAY, WRTE,
CLSE), docs/dev/services.md (``shell,v2``, ``sync:``), shell_protocol.h (packets of a shell) and
docs/dev/sync.md, once SYNC.TXT (files). A phone's tools are this computer's: ``getprop`` and the
like are scripts in a directory on PATH. Its paths are this computer's, too, except that /data is
ROOT/data.

Run: ``python -m tests.stand_ins.adbd PORT ROOT [FAULT]``; it prints ``ready`` when it listens.
The link is as slow as the file ROOT/bytes_per_s says, while it is there. SIGUSR1 turns the phone
off: what it runs ends, the links break, new ones end at once, and it prints ``down``. SIGUSR2 turns
it on again, which prints ``ready``.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.stand_ins.waits import pause

CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(word, "little")
    for word in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)
VERSION, MAX_DATA = 0x01000001, 1 << 20  # protocol.md: from this version on no checksum
TOKEN, SIGNATURE = 1, 2
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)  # shell_protocol.h
HEADER = struct.Struct("<6I")
CHUNK, MOST_PATH, COUNTED = 1 << 16, 1024, struct.Struct("<4sI")  # sync.md: DATA, a path, a request
ROOM = 1 << 20  # bytes that a phone with the fault "full" takes
BANNER = b"device::ro.product.name=stand_in;ro.product.model=Stand-in"
FEATURES = b";features=shell_v2,cmd"


class Phone:
    """What outlives a connection: files, and what runs."""

    def __init__(self, root: Path, fault: str) -> None:
        self.root, self.fault = root, fault
        self.links: list[Link] = []
        self.groups: list[int] = []
        self.is_down = False
        # What connects or begins while the phone goes down is either ended by it or refused.
        self.switching = threading.Lock()

    def wait_for(self, count: int) -> None:
        """Take the time that bytes need on the link."""
        with contextlib.suppress(OSError, ValueError):
            pause(count / float((self.root / "bytes_per_s").read_text()))

    def find(self, text: str) -> str:
        """A path, or a script with paths, as they are on this computer."""
        return re.sub(r"(?<![\w./-])/data/", f"{self.root}/data/", text)

    def go_down(self) -> None:
        with self.switching:
            self.is_down = True
        # adb's client cannot tell a script that has not begun from one whose first output is lost:
        # a test must not depend on which of the two it was. What was sent may still be lost, since
        # adb drops a link that it cannot write to, with all that it has not read.
        for link in self.links:
            for stream in list(link.streams.values()):
                if isinstance(stream, Shell):
                    stream.has_begun.wait()
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for link in self.links:
            with contextlib.suppress(OSError):
                link.peer.shutdown(socket.SHUT_RDWR)
        self.groups, self.links = [], []


class Link:
    """One client's connection; messages of several streams take turns on it."""

    def __init__(self, peer: socket.socket, phone: Phone) -> None:
        self.peer, self.phone = peer, phone
        self.root, self.fault = phone.root, phone.fault
        self.sending = threading.Lock()
        self.streams: dict[int, Shell | Sync] = {}
        # A stream that ends late must not take a later one with its number along.
        self.numbers = itertools.count(1)
        self.received = 0

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        head = HEADER.pack(
            command, first, second, len(data), sum(data) & 0xFFFFFFFF, command ^ 0xFFFFFFFF
        )
        with self.sending:
            self.phone.wait_for(len(data))
            self.peer.sendall(head + data)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            received = self.peer.recv(min(count - len(data), CHUNK))
            if not received:
                raise ConnectionError
            self.phone.wait_for(len(received))
            data += received
        return data

    def serve(self) -> None:
        try:
            while True:
                command, first, second, length, _, magic = HEADER.unpack(self.read(HEADER.size))
                if magic != command ^ 0xFFFFFFFF:
                    raise ConnectionError
                self.take(command, first, second, self.read(length))
        except OSError:
            pass
        finally:
            self.peer.close()
            for stream in list(self.streams.values()):
                stream.hang_up()

    def take(self, command: int, first: int, second: int, data: bytes) -> None:
        if command == CNXN:
            if self.fault == "unauthorized":  # a token that nobody at the screen accepts
                self.send(AUTH, TOKEN, 0, b"t" * 20)
                return
            features = b";features=cmd" if self.fault == "old" else FEATURES
            self.send(CNXN, VERSION, MAX_DATA, BANNER + features)
        elif command == AUTH and first == SIGNATURE:
            self.send(AUTH, TOKEN, 0, b"t" * 20)  # no key of the client's is known
        elif command == AUTH:
            return  # the client's public key waits for a finger
        elif command == OPEN:
            self.open(first, data.rstrip(b"\0").decode())
        elif command == WRTE:
            self.received += len(data)
            if self.fault == "breaks" and self.received > MAX_DATA:
                raise ConnectionError
            if stream := self.streams.get(second):
                self.send(OKAY, second, first)
                stream.feed(data)
            else:
                self.send(CLSE, 0, first)
        elif command == OKAY and second in self.streams:
            self.streams[second].ready.release()
        elif command == CLSE and second in self.streams:
            self.streams.pop(second).hang_up()

    def open(self, remote: int, service: str) -> None:
        kind, _, script = service.partition(":")
        local = next(self.numbers)
        if kind == "sync":
            self.streams[local] = Sync(self, local, remote)
        elif kind.split(",")[:2] == ["shell", "v2"]:
            with self.phone.switching:
                if self.phone.is_down:
                    raise ConnectionError
                self.streams[local] = Shell(self, local, remote, script)
        else:  # services.md: CLSE refuses a service
            self.send(CLSE, 0, remote)


class Stream:
    """One stream of a link."""

    def __init__(self, link: Link, local: int, remote: int) -> None:
        self.link, self.local, self.remote = link, local, remote
        self.ready = threading.Semaphore(0)  # a WRTE waits for the OKAY of the one before
        self.writing = threading.Lock()
        self.is_closed = False  # the client has gone: nothing waits for its OKAY any more
        self.has_begun = threading.Event()  # its first output has arrived, or there will be none

    def put(self, data: bytes) -> None:
        with self.writing:
            self.link.send(WRTE, self.local, self.remote, data)
            if not self.is_closed:
                self.ready.acquire()
            self.has_begun.set()

    def close(self) -> None:
        """Let the one write that may be waiting go on."""
        self.is_closed = True
        self.ready.release()
        self.has_begun.set()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.link.send(CLSE, self.local, self.remote)
        self.link.streams.pop(self.local, None)


class Shell(Stream):
    """One ``shell,v2`` stream and its process."""

    def __init__(self, link: Link, local: int, remote: int, script: str) -> None:
        super().__init__(link, local, remote)
        self.buffer = b""
        environment = {
            "PATH": f"{link.root}/bin:/usr/bin:/bin",
            "HOME": str(link.root),
            "ROOT": str(link.root),
        }
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", link.phone.find(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=link.root,
            start_new_session=True,
        )
        link.phone.groups.append(self.process.pid)
        link.send(OKAY, local, remote)
        self.pumps = [
            threading.Thread(target=self.pump, args=(STDOUT, self.process.stdout), daemon=True),
            threading.Thread(target=self.pump, args=(STDERR, self.process.stderr), daemon=True),
        ]
        for pump in self.pumps:
            pump.start()
        threading.Thread(target=self.finish, daemon=True).start()

    def write(self, kind: int, data: bytes) -> None:
        self.put(struct.pack("<BI", kind, len(data)) + data)

    def pump(self, kind: int, stream: object) -> None:
        try:
            while data := os.read(stream.fileno(), 1 << 16):  # type: ignore[attr-defined]
                self.write(kind, data)
        except OSError:
            pass

    def finish(self) -> None:
        for pump in self.pumps:
            pump.join()
        code = self.process.wait()
        with contextlib.suppress(OSError):
            self.write(EXIT, bytes([code if code >= 0 else 128 - code]))
        self.has_begun.set()
        self.end()

    def feed(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 5:
            kind, length = struct.unpack("<BI", self.buffer[:5])
            if len(self.buffer) < 5 + length:
                return
            payload, self.buffer = self.buffer[5 : 5 + length], self.buffer[5 + length :]
            try:
                if kind == STDIN and self.process.stdin:
                    self.process.stdin.write(payload)
                    self.process.stdin.flush()
                elif kind == CLOSE_STDIN and self.process.stdin:
                    self.process.stdin.close()
            except (OSError, ValueError):
                pass

    def hang_up(self) -> None:
        """As a phone does when the client goes: its shell gets SIGHUP and no more input, what it
        started stays."""
        self.close()
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGHUP)


class SyncError(Exception):
    """Why a request fails; ``drain`` if its DATA still comes."""

    def __init__(self, words: str, *, drain: bool = False) -> None:
        super().__init__(words)
        self.drain = drain


class Sync(Stream):
    """One ``sync:`` stream, in version 1: v2 is asked for only if the banner has stat_v2 and the
    like. Requests are a word, a length and a path (sync.md)."""

    def __init__(self, link: Link, local: int, remote: int) -> None:
        super().__init__(link, local, remote)
        self.fed: queue.Queue[bytes] = queue.Queue()
        self.buffer = b""
        link.send(OKAY, local, remote)
        threading.Thread(target=self.serve, daemon=True).start()

    def feed(self, data: bytes) -> None:
        self.fed.put(data)

    def hang_up(self) -> None:
        self.close()
        self.fed.put(b"")

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            received = self.fed.get()
            if not received:
                raise ConnectionError
            self.buffer += received
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def serve(self) -> None:
        answers = {b"STAT": self.stat, b"LIST": self.list, b"SEND": self.take, b"RECV": self.give}
        with contextlib.suppress(OSError):
            while True:
                word, length = COUNTED.unpack(self.read(COUNTED.size))
                if word == b"QUIT":
                    break
                try:
                    if length > MOST_PATH:
                        raise SyncError("path too long")  # noqa: TRY301
                    path = self.link.phone.find(os.fsdecode(self.read(length)))
                    if word not in answers:
                        raise SyncError(f"unknown command {word.hex()}")  # noqa: TRY301
                    answers[word](path)
                except SyncError as error:
                    text = str(error).encode()
                    self.put(COUNTED.pack(b"FAIL", len(text)) + text)
                    self.drain(error)
                    break  # adbd ends the stream after a failure
        self.end()

    def drain(self, error: SyncError) -> None:
        """Old clients read the failure only after all their DATA."""
        while error.drain:
            word, length = COUNTED.unpack(self.read(COUNTED.size))
            if word != b"DATA":
                return
            self.read(length)

    def stat(self, path: str) -> None:
        """Mode, size and time of a file, not followed; zeros if there is none."""
        try:
            status = os.lstat(path)
            row = (status.st_mode, status.st_size & 0xFFFFFFFF, int(status.st_mtime))
        except OSError:
            row = (0, 0, 0)
        self.put(struct.pack("<4s3I", b"STAT", *row))

    def list(self, path: str) -> None:
        """DENT for each entry, then DONE, which is as long. No directory: no entry."""
        with contextlib.suppress(OSError):
            for name in (".", "..", *(entry.name for entry in Path(path).iterdir())):
                status = os.lstat(f"{path}/{name}")
                data = os.fsencode(name)
                row = (status.st_mode, status.st_size & 0xFFFFFFFF, int(status.st_mtime), len(data))
                self.put(struct.pack("<4s4I", b"DENT", *row) + data)
        self.put(struct.pack("<4s4I", b"DONE", 0, 0, 0, 0))

    def give(self, path: str) -> None:
        try:
            with Path(path).open("rb") as file:
                while data := file.read(CHUNK):
                    self.put(COUNTED.pack(b"DATA", len(data)) + data)
        except ConnectionError:
            raise
        except OSError as error:
            raise SyncError(f"open failed: {error.strerror}") from error
        self.put(COUNTED.pack(b"DONE", 0))

    def take(self, path: str) -> None:
        """``path,mode``, DATA until DONE with the time. What does not arrive whole is removed."""
        name, comma, mode = path.rpartition(",")
        if not comma or not mode.isdigit():
            raise SyncError("bad mode" if comma else "missing , in ID_SEND")
        if name.endswith("/"):
            raise SyncError("couldn't create file: Is a directory", drain=True)
        bits = int(mode)
        target = Path(name)
        try:
            target.parent.mkdir(mode=0o775, parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            if stat.S_ISLNK(bits):
                target.symlink_to(os.fsdecode(b"".join(self.chunks())).rstrip("\0"))
            else:
                self.write_file(target, bits & 0o777)
        except ConnectionError:
            target.unlink(missing_ok=True)
            raise
        except OSError as error:
            failure = "write failed" if error.errno == errno.ENOSPC else "couldn't create file"
            raise SyncError(f"{failure}: {error.strerror}", drain=True) from error
        self.put(COUNTED.pack(b"OKAY", 0))

    def write_file(self, target: Path, bits: int) -> None:
        room = ROOM if self.link.fault == "full" else 1 << 62
        try:
            with target.open("xb") as file:
                for data in self.chunks():
                    room -= len(data)
                    if room < 0:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301
                    file.write(data)
        except OSError:
            target.unlink(missing_ok=True)
            raise
        # A user's bits are those of the group and of others, too.
        target.chmod(bits | (bits >> 3) & 0o070 | ((bits | (bits >> 3) & 0o070) >> 3) & 0o007)
        os.utime(target, (self.time, self.time))

    def chunks(self) -> Iterator[bytes]:
        while True:
            word, length = COUNTED.unpack(self.read(COUNTED.size))
            if word == b"DONE":
                self.time = length
                return
            if word != b"DATA" or length > CHUNK:
                raise SyncError("oversize data message" if word == b"DATA" else "invalid data")
            yield self.read(length)


def accept(listener: socket.socket, phone: Phone) -> None:
    """Serve each client. The port stays the phone's while it is down."""
    while True:
        peer = listener.accept()[0]
        with phone.switching:
            if phone.is_down:
                peer.close()
                continue
            link = Link(peer, phone)
            phone.links.append(link)
        threading.Thread(target=link.serve, daemon=True).start()


def main() -> None:
    port, root = int(sys.argv[1]), Path(sys.argv[2])
    phone = Phone(root, sys.argv[3] if len(sys.argv) > 3 else "")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=accept, args=(listener, phone), daemon=True).start()
        while True:
            print("ready", listener.getsockname()[1], flush=True)
            signal.sigwait({signal.SIGUSR1})
            phone.go_down()
            print("down", flush=True)
            signal.sigwait({signal.SIGUSR2})
            phone.is_down = False


if __name__ == "__main__":
    main()
