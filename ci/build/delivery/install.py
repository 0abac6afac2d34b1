"""Put what was built where ExecuTorch's Python looks for it: a checkout, or a wheel's overlay."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ci.build.plan.place import Place
from ci.build.plan.targets import Target
from ci.build.plan.tools import ask_python
from provisioning.errors import UnfitError
from provisioning.files import explain_writes, staged_directory


def install_files(target: Target, place: Place, root: Path) -> tuple[Path, ...]:
    """Copy the target's files below ``root``, the directory of an ExecuTorch; each by one rename.

    Returns what was written. Raises StoreError when ``root`` cannot be written.
    """
    written: list[Path] = []
    for row in target.installs:
        directory = root / row.to
        for source in sorted(place.root.glob(row.path)):
            with explain_writes(directory):
                directory.mkdir(parents=True, exist_ok=True)
                fresh = directory / f".{source.name}.new"
                shutil.copy2(source, fresh)
                fresh.replace(directory / source.name)
            written.append(directory / source.name)
    return tuple(written)


def make_overlay(target: Target, place: Place, package: Path, parent: Path) -> Path:
    """A directory for PYTHONPATH in which executorch is ``package`` with the target's files.

    Everything but the directories that receive files is a link into ``package``, so the
    installed wheel stays as it is. Returns ``parent``. Raises UnfitError.
    """
    with explain_writes(parent), staged_directory(parent) as fresh:
        opened = {Path(row.to) for row in target.installs}
        _link_tree(package, fresh / "executorch", Path(), opened)
        for row in target.installs:
            for source in sorted(place.root.glob(row.path)):
                written = fresh / "executorch" / row.to / source.name
                written.unlink(missing_ok=True)
                shutil.copy2(source, written)
    return parent


def _link_tree(package: Path, target: Path, below: Path, opened: set[Path]) -> None:
    """Link the entries of ``package``/``below``, but make real the ways to what is opened."""
    (target / below).mkdir(parents=True, exist_ok=True)
    here = package / below
    for entry in sorted(here.iterdir()) if here.is_dir() else []:
        path = below / entry.name
        if any(path == one or path in one.parents for one in opened):
            _link_tree(package, target, path, opened)
        elif not entry.name.startswith("PyQnn"):
            (target / path).symlink_to((package / path).absolute())
    for one in opened:
        (target / one).mkdir(parents=True, exist_ok=True)


def find_package(python: Path, *built: Path) -> Path:
    """The executorch that is installed for ``python``, not one that PYTHONPATH finds below
    ``built``: the checkout, or an overlay made before. Raises UnfitError when there is none."""
    entries = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    kept = [entry for entry in entries if not _is_below(Path(entry, "executorch"), built)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}
    if found := ask_python(python, variables=variables).executorch:
        return Path(found)
    raise UnfitError(
        f"executorch is not installed in {python}",
        why="an overlay is the installed wheel with another adaptor, and a model is lowered in it",
        fix="pip install the executorch of the checkout's version, or add --install none",
    )


def _is_below(path: Path, places: tuple[Path, ...]) -> bool:
    return any(path.resolve().is_relative_to(place.resolve()) for place in places)
