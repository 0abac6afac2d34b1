"""A trace as it is asked for and answered: what crosses to the process that has the Inspector."""

from __future__ import annotations

from msgspec import Struct

ETDUMP, DEBUG = "trace.etdump", "trace.debug"
# What intermediate outputs of one input set may take, each padded.
DEBUG_BYTES = 256 << 20


class TraceJob(Struct, frozen=True):
    """ETDUMP and DEBUG are in ``directory``, and what they say comes to lie there. ``debug`` is
    whether intermediate outputs were dumped, in place of times."""

    directory: str
    runs: int
    partitions: int
    debug: bool = False


class TraceResult(Struct, frozen=True):
    """``figures`` are those of a report's case, ``files`` what was written."""

    figures: dict[str, int]
    files: tuple[str, ...]
