"""Options of the last release that no longer have an effect. They are accepted with a warning for
one more release, so that users' scripts keep working."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from provisioning.console.progress import Progress


@dataclass(frozen=True)
class Dropped:
    """An option that ``command`` no longer needs. A command is a verb, or a verb and its action.

    ``instead`` says what replaced it, or how to get the same result.
    """

    command: str
    option: str
    instead: str
    takes_value: bool = False


DROPPED = (
    Dropped(
        "image build",
        "--no-cache",
        "an image depends only on its pins; `image digest --check` builds it without a cache",
    ),
    Dropped("parity", "--build-buck", "Buck and CMake files are both read without a build"),
    Dropped(
        "plan",
        "--outcomes",
        "--verify compares what the sessions of each commit depend on",
        takes_value=True,
    ),
)


class _Warn(argparse.Action):
    """Print a warning, and ignore the option and its value."""

    def __init__(self, row: Dropped, **settings: Any) -> None:
        super().__init__(nargs=None if row.takes_value else 0, help=argparse.SUPPRESS, **settings)
        self.row = row

    def __call__(self, *_: object, **__: object) -> None:
        Progress.to_stderr().step(
            f"warning: {self.row.option} has no effect any more: {self.row.instead}"
        )


def accept_dropped(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the dropped options of ``command`` to its parser. Each prints a warning if it is used,
    and the help does not list them."""
    for row in DROPPED:
        if row.command == command:
            parser.add_argument(
                row.option, action=_Warn, row=row, dest="dropped", default=argparse.SUPPRESS
            )
