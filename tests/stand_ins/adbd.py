"""A phone's adbd, as far as shells need it, over TCP: real adb clients connect to it.

Written from AOSP's packages/modules/adb: docs/dev/protocol.md (messages, CNXN, OPEN, OKAY, WRTE,
CLSE), docs/dev/services.md (``shell,v2``) and shell_protocol.h (packets of a shell). A phone's
tools are this computer's: ``getprop`` and the like are scripts in a directory on PATH.

Run: ``python -m tests.stand_ins.adbd PORT ROOT [FAULT]``; it prints ``ready`` when it listens.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(word, "little")
    for word in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)
VERSION, MAX_DATA = 0x01000001, 1 << 20  # protocol.md: from this version on no checksum
TOKEN, SIGNATURE = 1, 2
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)  # shell_protocol.h
HEADER = struct.Struct("<6I")
BANNER = b"device::ro.product.name=stand_in;ro.product.model=Stand-in"
FEATURES = b";features=shell_v2,cmd"


class Link:
    """One client's connection; messages of several streams take turns on it."""

    def __init__(self, peer: socket.socket, root: Path, fault: str) -> None:
        self.peer, self.root, self.fault = peer, root, fault
        self.sending = threading.Lock()
        self.streams: dict[int, Shell] = {}
        self.received = 0

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        head = HEADER.pack(
            command, first, second, len(data), sum(data) & 0xFFFFFFFF, command ^ 0xFFFFFFFF
        )
        with self.sending:
            self.peer.sendall(head + data)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.peer.recv(count - len(data))
            if not more:
                raise ConnectionError
            data += more
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
            for shell in list(self.streams.values()):
                shell.hang_up()

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
            if shell := self.streams.get(second):
                self.send(OKAY, second, first)
                shell.feed(data)
            else:
                self.send(CLSE, 0, first)
        elif command == OKAY and second in self.streams:
            self.streams[second].ready.release()
        elif command == CLSE and second in self.streams:
            self.streams.pop(second).hang_up()

    def open(self, remote: int, service: str) -> None:
        kind, _, script = service.partition(":")
        if kind.split(",")[:2] != ["shell", "v2"]:  # services.md: CLSE refuses a service
            self.send(CLSE, 0, remote)
            return
        local = len(self.streams) + 1 + self.received % 1000
        while local in self.streams:
            local += 1
        self.streams[local] = Shell(self, local, remote, script)


class Shell:
    """One ``shell,v2`` stream and its process."""

    def __init__(self, link: Link, local: int, remote: int, script: str) -> None:
        self.link, self.local, self.remote = link, local, remote
        self.ready = threading.Semaphore(0)  # a WRTE waits for the OKAY of the one before
        self.writing = threading.Lock()
        self.buffer = b""
        environment = {
            "PATH": f"{link.root}/bin:/usr/bin:/bin",
            "HOME": str(link.root),
            "ROOT": str(link.root),
        }
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=link.root,
            start_new_session=True,
        )
        link.send(OKAY, local, remote)
        self.pumps = [
            threading.Thread(target=self.pump, args=(STDOUT, self.process.stdout), daemon=True),
            threading.Thread(target=self.pump, args=(STDERR, self.process.stderr), daemon=True),
        ]
        for pump in self.pumps:
            pump.start()
        threading.Thread(target=self.finish, daemon=True).start()

    def write(self, kind: int, data: bytes) -> None:
        with self.writing:
            packet = struct.pack("<BI", kind, len(data)) + data
            self.link.send(WRTE, self.local, self.remote, packet)
            self.ready.acquire()

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
        try:
            self.write(EXIT, bytes([code if code >= 0 else 128 - code]))
            self.link.send(CLSE, self.local, self.remote)
        except OSError:
            pass
        self.link.streams.pop(self.local, None)

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
        """As a phone does when the client goes: its shell gets SIGHUP, what it started stays."""
        self.ready.release(1 << 20)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGHUP)


def main() -> None:
    port, root = int(sys.argv[1]), Path(sys.argv[2])
    fault = sys.argv[3] if len(sys.argv) > 3 else ""
    listener = socket.create_server(("127.0.0.1", port))
    sys.stdout.write(f"ready {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=Link(peer, root, fault).serve, daemon=True).start()


if __name__ == "__main__":
    main()
