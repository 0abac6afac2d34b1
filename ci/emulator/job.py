"""A run as it is asked for and answered: what crosses to the process that has the runtime."""

from __future__ import annotations

from msgspec import Struct


class RunJob(Struct, frozen=True):
    """The three paths of a run; ``outputs`` is a directory that is there."""

    model: str
    input_list: str
    outputs: str


class RunResult(Struct, frozen=True):
    """How many executions were done."""

    executions: int
