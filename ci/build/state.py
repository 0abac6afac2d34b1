"""What a build remembers of itself, to know that there is nothing to do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ci.build.inputs import Snapshot
from provisioning.files import hash_file, write_whole


class Built(msgspec.Struct, frozen=True):
    """One artifact as it was published."""

    path: str
    sha256: str


class State(msgspec.Struct, frozen=True):
    """The inputs and results of the last good build; ``inputs``: a snapshot a directory."""

    settings: str = ""
    inputs: dict[str, Snapshot] = msgspec.field(default_factory=dict)
    digest: str = ""
    artifacts: tuple[Built, ...] = ()


def read_state(path: Path) -> State:
    """The state of a build, empty when there is none or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return State()


def write_state(path: Path, state: State) -> None:
    write_whole(path, msgspec.json.encode(state))


def has_artifacts(directory: Path, state: State) -> bool:
    """Whether every published artifact is still there with the same bytes."""
    return bool(state.artifacts) and all(
        (directory / row.path).is_file() and hash_file(directory / row.path) == row.sha256
        for row in state.artifacts
    )
