"""What a build prints: counted for a bar, grouped in CI, and the first error found again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from provisioning.console.progress import Bar, Progress

NINJA_COUNT = re.compile(r"^\[(\d+)/(\d+)\] ")
ERROR = re.compile(r"(?:\b(?:fatal )?error:|CMake Error|undefined reference|^FAILED: )")
FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large")
EXCERPT_LINES = 8


@dataclass
class Output:
    """Reads lines as they come: advances ``bar``, keeps what explains a failure."""

    bar: Bar
    progress: Progress
    echo: bool
    _excerpt: list[str] = field(default_factory=list)
    _done: int = 0
    disk_is_full: bool = False

    def read_line(self, line: str) -> None:
        count = NINJA_COUNT.match(line)
        if count:
            words = line[count.end() :].split()
            self._count(int(count[1]), int(count[2]), words[-1].rpartition("/")[2] if words else "")
        if self.echo:
            self.progress.step(line)
        self.disk_is_full = self.disk_is_full or bool(FULL_DISK.search(line))
        if self._excerpt or (ERROR.search(line) and not line.startswith("FAILED: ")):
            self._keep(line)

    def _keep(self, line: str) -> None:
        if len(self._excerpt) < EXCERPT_LINES:
            self._excerpt.append(line)

    def _count(self, done: int, total: int, what: str) -> None:
        self.bar.total = total
        self.bar.advance(max(done - self._done, 0), what)
        self._done = done

    @property
    def first_error(self) -> str:
        """The first line that is an error, or nothing."""
        return self._excerpt[0].strip() if self._excerpt else ""

    @property
    def excerpt(self) -> str:
        return "\n".join(self._excerpt).rstrip()
