"""Applies rewrites to .tflite files. The names, shapes and types of inputs and outputs stay, and so
do signatures and metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.graphs.litert_file import Entry, list_entries, read_model
from ci.graphs.litert_states import has_states
from ci.litert.source import is_quantized, read_litert
from ci.mend.rewrite import LITERT, SAMPLES, Change, find_rewrite, require_changes
from provisioning.documents import read_user_file
from provisioning.errors import UsageError
from provisioning.files import write_whole


@dataclass
class EditedFile:
    """A .tflite file while rewrites edit it."""

    data: bytes

    @property
    def entry(self) -> Entry:
        """The subgraph that is rewritten."""
        (entry,) = list_entries(read_model(self.data))
        return entry


@dataclass(frozen=True)
class LitertFile:
    """A user's .tflite file of a float model with one signature."""

    path: Path
    data: bytes

    def rewrite(self, names: Sequence[str]) -> tuple[bytes, list[tuple[Change, ...]]]:
        """Return the rewritten file, and what each rewrite changed. Raises ValueError if there is
        no rewrite with one of the names."""
        file = EditedFile(self.data)
        changes = [find_rewrite(LITERT, name)(file) for name in names]
        return file.data, changes

    def write(self, names: Sequence[str], target: Path) -> None:
        """Write the rewritten file to ``target``, and the samples that are next to the user's.
        Raises ValueError if a rewrite changes nothing or does not exist."""
        rewritten, changes = self.rewrite(names)
        require_changes(names, changes, self.path.name)
        write_whole(target, rewritten)
        copy_samples(self.path, target)


def open_file(path: Path) -> LitertFile:
    """Return a file that rewrites can be applied to. Raises UsageError for any other one."""
    data = read_litert(path)
    model = read_model(data)
    if is_quantized(model):
        raise UsageError(
            f"{path.name} is quantized, and rewrites are for float models",
            why="a rewrite's new values have no scales, which only calibration gives",
            fix="mend the float model, and quantize the result",
        )
    require_single_entry(path.name, model)
    return LitertFile(path, data)


def require_single_entry(name: str, model: Any) -> None:
    """Raise UsageError for a model that keeps values between its runs or has several
    signatures."""
    if has_states(model) or any(entry.states for entry in list_entries(model)):
        raise UsageError(
            f"{name} keeps values between its runs, and mend changes no such models",
            why="a changed call could be moved before or behind the one that changes a value",
            fix="return the values as outputs, and pass them as inputs to the next run",
        )
    count = len(list_entries(model))
    if count > 1:
        raise UsageError(
            f"{name} has {count} signatures, and mend changes models with one",
            fix="write a file for each signature",
        )


def copy_samples(path: Path, target: Path) -> None:
    """Copy the samples that are next to a file, if there are any, next to a new one."""
    samples = path.with_suffix(SAMPLES)
    if samples.exists():
        write_whole(target.with_suffix(SAMPLES), read_user_file(samples, "the samples"))
