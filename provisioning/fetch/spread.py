"""The rest of a large pinned file over several connections, for servers that limit each one.

Pieces come out of order and wait in memory, a bounded window of them; the part file grows from
its beginning only, so that a killed process leaves what can be resumed.
"""

from __future__ import annotations

import time
from contextlib import closing
from threading import Condition, Thread

from provisioning.console.progress import Bar
from provisioning.fetch.client import Client
from provisioning.fetch.part_file import PartFile
from provisioning.fetch.transfer import PermanentError, TransferPolicy, TransientError

PIECE_BYTES = 1 << 20
WINDOW_PIECES = 48
FIRST_CONNECTIONS, STEP_CONNECTIONS, MOST_CONNECTIONS = 4, 2, 8
ROUND_S = 0.4
MIN_FILE_BYTES = 16 << 20
PROBE_S = 0.25
FAST_BYTES_S = 32 << 20
GAIN = 1.15
ABORT_S = 0.02


def is_worth_it(left_bytes: int, came_bytes: int, seconds: float) -> bool:
    """Whether more connections may help, after ``seconds`` of waiting for ``came_bytes``."""
    is_slow = came_bytes < FAST_BYTES_S * seconds
    return seconds >= PROBE_S and is_slow and left_bytes > 8 * PIECE_BYTES


class Spread:
    """Brings ``url`` from ``part.size`` to ``size_bytes``; connections follow what they give."""

    def __init__(
        self, url: str, part: PartFile, size_bytes: int, policy: TransferPolicy, bar: Bar
    ) -> None:
        self.url, self.part, self.size_bytes = url, part, size_bytes
        self.policy, self.bar = policy, bar
        self.changed = Condition()
        self.next = part.size
        self.returned: list[int] = []
        self.pieces: dict[int, bytes] = {}
        self.clients: dict[Thread, Client] = {}
        self.wanted, self.most, self.refusals = FIRST_CONNECTIONS, MOST_CONNECTIONS, 0
        self.came_bytes = 0
        self.failure: TransientError | PermanentError | None = None
        self.is_over = False

    def run(self) -> None:
        """Return when the file is whole, or when one connection must do.

        Raises TransientError when every connection failed, OSError.
        """
        try:
            self._connect(FIRST_CONNECTIONS)
            self._gather()
        finally:
            with self.changed:
                self.is_over = True
                self.changed.notify_all()
            for thread, client in self.clients.items():
                while thread.is_alive():
                    client.abort()  # again and again: it may have been connecting
                    thread.join(ABORT_S)
        if isinstance(self.failure, TransientError) and self.part.size < self.size_bytes:
            raise self.failure

    def _connect(self, count: int) -> None:
        for _ in range(count):
            client = Client(self.policy)
            thread = Thread(target=self._work, args=(client,), daemon=True)
            self.clients[thread] = client
            thread.start()

    def _count(self) -> int:
        """How many connections are at work."""
        return sum(thread.is_alive() for thread in self.clients)

    def _gather(self) -> None:
        """Append pieces in order; each ROUND_S, see whether more connections give more."""
        best, since, before = 0.0, time.monotonic(), 0
        while self.part.size < self.size_bytes:
            with self.changed:
                self.changed.wait_for(lambda: self.part.size in self.pieces, 0.05)
                data = self.pieces.pop(self.part.size, b"")
                self.changed.notify_all()
            if data:
                self.part.append(data)
                self.bar.advance(len(data))
            elif not self._count():
                return
            if (elapsed_s := time.monotonic() - since) >= ROUND_S:
                rate = (self.came_bytes - before) / elapsed_s
                if rate > GAIN * best:
                    self.wanted += STEP_CONNECTIONS
                if self.refusals < MOST_CONNECTIONS and self.next < self.size_bytes:
                    self._connect(min(self.most, self.wanted) - self._count())
                best, since, before = max(best, rate), time.monotonic(), self.came_bytes

    def _work(self, client: Client) -> None:
        with closing(client):
            while (start := self._claim()) >= 0:
                try:
                    data = self._fetch(client, start, min(start + PIECE_BYTES, self.size_bytes))
                except (TransientError, PermanentError) as error:
                    self._give_back(start, error)
                    return
                with self.changed:
                    self.pieces[start] = data
                    self.changed.notify_all()

    def _claim(self) -> int:
        """Where the next piece begins; negative when there is none to bring."""
        with self.changed:
            while not self.is_over:
                if self.returned:
                    return self.returned.pop(self.returned.index(min(self.returned)))
                if self.next >= self.size_bytes:
                    return -1
                if self.next < self.part.size + WINDOW_PIECES * PIECE_BYTES:
                    start = self.next
                    self.next = min(start + PIECE_BYTES, self.size_bytes)
                    return start
                self.changed.wait(0.5)
        return -1

    def _give_back(self, start: int, error: TransientError | PermanentError) -> None:
        """A connection less: the server does not like as many, or not at this rate."""
        with self.changed:
            self.returned.append(start)
            self.refusals += 1
            self.most = max(2, min(self.most, self._count() - 1))
            self.failure = error
            self.changed.notify_all()

    def _fetch(self, client: Client, start: int, end: int) -> bytes:
        data = bytearray()
        total, validator = self.size_bytes, self.part.validator
        with closing(
            client.get_range(self.url, start, end, total=total, validator=validator)
        ) as body:
            for piece in body:
                data += piece
                self.came_bytes += len(piece)
                if self.is_over:
                    raise PermanentError("it is not wanted any more")
        return bytes(data)
