"""How often ccache had an object: counted from the log that ccache writes for us."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.build.tools import Program

HITS = frozenset({"direct_cache_hit", "preprocessed_cache_hit"})
MISS = "cache_miss"


@dataclass(frozen=True)
class CacheCounts:
    """Compilations that the cache answered, and those that it did not."""

    name: str
    version: str
    hits: int
    misses: int


def count_cache(program: Program | None, log: Path) -> CacheCounts | None:
    """The counts in ``log`` (CCACHE_STATSLOG: a counter a line), None without a cache."""
    if program is None:
        return None
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    hits = sum(line in HITS for line in lines)
    return CacheCounts(program.path.name, str(program.version), hits, lines.count(MISS))
