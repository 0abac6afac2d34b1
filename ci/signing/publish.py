"""A directory that appears whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.errors import UsageError
from provisioning.files import explain_writes, remove_tree, staged_directory


@dataclass(frozen=True)
class Staging:
    """``scratch`` is for work, ``ready`` becomes the target."""

    scratch: Path
    ready: Path


def check_target(target: Path, *, force: bool, protected: Iterator[Path]) -> None:
    """Refuse a target that is kept or must not be written to. Raises UsageError."""
    resolved = target.resolve()
    for root in protected:
        if resolved.is_relative_to(root.resolve()) or root.resolve().is_relative_to(resolved):
            raise UsageError(
                f"{target} lies in {root}, or holds it",
                why="signed libraries are never written into an SDK: it is shared and verified",
                fix="choose another --out",
            )
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"{target} exists and is not a directory", fix="choose another --out")
    if not force:
        refuse_existing(target)


def refuse_existing(target: Path) -> None:
    """Refuse a target that is there. Raises UsageError."""
    if target.exists():
        raise UsageError(
            f"{target} exists and is kept",
            fix="--force replaces it once everything is signed and verified",
        )


@contextmanager
def stage(target: Path, *, force: bool) -> Iterator[Staging]:
    """A staging area that takes the place of ``target`` when the block ends well.

    Raises StoreError when nothing can be written there, and UsageError when another run has made
    the target meanwhile and ``force`` does not replace it.
    """
    target = target.absolute()  # the signer runs in a directory of its own
    with explain_writes(target), staged_directory(target) as ready:
        scratch = ready / ".scratch"
        scratch.mkdir()
        yield Staging(scratch, ready)
        remove_tree(scratch)
        if not force:
            refuse_existing(target)
