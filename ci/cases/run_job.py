"""A run and its trace as they are asked for: what crosses to processes that have the runtime."""

from __future__ import annotations

from msgspec import Struct

from ci.cases.artifact import MethodInfo

ETDUMP, DEBUG = "trace.etdump", "trace.debug"
# What intermediate outputs of one input set may take, each padded.
DEBUG_BYTES = 256 << 20


class RunJob(Struct, frozen=True):
    """The three paths of a run; ``outputs`` is a directory that is there. ``methods`` follow each
    other, in a line of the input list and in outputs. A ``trace`` is written into that directory,
    with up to ``debug_bytes`` of intermediate outputs. ``quantizes`` says that the CPU quantizes
    inputs and outputs."""

    model: str
    input_list: str
    outputs: str
    trace: str = ""
    debug_bytes: int = 0
    methods: tuple[MethodInfo, ...] = ()
    quantizes: bool = False


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
