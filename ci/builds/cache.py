"""How often a compiler cache had an object: from ccache's log, or sccache's statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.builds.plan import BuildPlan
from ci.builds.toolchains import PROBE_S, Program
from provisioning.console.process import run_process

HITS = frozenset({"direct_cache_hit", "preprocessed_cache_hit"})
MISS = "cache_miss"


@dataclass(frozen=True)
class CacheCounts:
    """Compilations that the cache answered, and those that it did not."""

    name: str
    version: str
    hits: int
    misses: int


@dataclass(frozen=True)
class Meter:
    """Counts from when it was started; sccache counts for its server's whole life."""

    program: Program
    log: Path
    environment: Mapping[str, str]
    before: tuple[int, int] = (0, 0)

    def read(self) -> CacheCounts:
        hits, misses = self._count()
        return CacheCounts(
            self.program.path.name,
            str(self.program.version),
            max(hits - self.before[0], 0),
            max(misses - self.before[1], 0),
        )

    def _count(self) -> tuple[int, int]:
        if self.program.path.name == "sccache":
            return _ask_sccache(self.program.path, self.environment)
        return _read_ccache_log(self.log)


def start_meter(plan: BuildPlan) -> Meter | None:
    """A meter for the plan's cache, None without one."""
    program = plan.tools.cache
    if program is None:
        return None
    plan.place.cache_log.unlink(missing_ok=True)
    meter = Meter(program, plan.place.cache_log, plan.environment)
    return Meter(program, plan.place.cache_log, plan.environment, meter._count())


def _read_ccache_log(log: Path) -> tuple[int, int]:
    """Hits and misses in CCACHE_STATSLOG: a counter a line."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0, 0
    return sum(line in HITS for line in lines), lines.count(MISS)


def _ask_sccache(program: Path, environment: Mapping[str, str]) -> tuple[int, int]:
    """Hits and misses of sccache's server, over all languages; (0, 0) when it does not say."""
    words = [str(program), "--show-stats", "--stats-format", "json"]
    ended = run_process(words, env=environment, timeout_s=PROBE_S, check=False)
    try:
        stats = json.loads(ended.output)["stats"]
        hits, misses = (stats[name]["counts"].values() for name in ("cache_hits", "cache_misses"))
    except (ValueError, KeyError, TypeError):
        return 0, 0
    return sum(hits), sum(misses)
