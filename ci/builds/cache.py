"""How often a compiler cache had an object: from ccache's log, or sccache's statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ci.builds.plan import BuildPlan
from ci.builds.toolchains import PROBE_S
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

    def since(self, before: CacheCounts) -> CacheCounts:
        """What was counted after ``before``; sccache counts for its server's whole life."""
        hits, misses = self.hits - before.hits, self.misses - before.misses
        return replace(self, hits=max(hits, 0), misses=max(misses, 0))


def read_counts(plan: BuildPlan) -> CacheCounts | None:
    """What the plan's cache has counted up to now, None without a cache."""
    program = plan.tools.cache
    if program is None:
        return None
    name = program.path.name
    if name == "sccache":
        counts = _ask_sccache(program.path, plan.environment)
    else:
        counts = _read_ccache_log(plan.place.cache_log)
    return CacheCounts(name, str(program.version), *counts)


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
