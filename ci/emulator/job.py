"""A run as it is asked for: what crosses to the process that has the runtime."""

from __future__ import annotations

from msgspec import Struct

from ci.lowering.artifact import MethodInfo


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
