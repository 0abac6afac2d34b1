"""Names source files relative to their repository, so that names are the same on all machines."""

from __future__ import annotations

import functools
import re
import sysconfig
from pathlib import Path

from ci.facts.finding import Place
from ci.models import suite
from provisioning.console.caller import caller_path, shown_path
from provisioning.documents import read_text


def find_repository(path: Path) -> Path | None:
    """Return the root of the git work tree that contains the absolute ``path``, or None."""
    return next((folder for folder in path.parents if (folder / ".git").exists()), None)


def name_file(path: Path) -> str:
    """Return a file's path in its repository, such as ``nets/net.py``, or else its file name."""
    root = find_repository(path)
    return path.relative_to(root).as_posix() if root else path.name


def name_argument(path: Path) -> str:
    """Return a file's path for use in a command. It is relative to the file's repository if the
    caller's directory is in it, else relative to that directory if the file is in it, else
    absolute."""
    repository = find_repository(path)
    is_callers = repository and repository == find_repository(caller_path(Path(path.name)))
    return name_file(path) if is_callers else shown_path(path)


@functools.cache
def is_installed(file: str) -> bool:
    """Return whether a file belongs to the standard library or an installed package."""
    paths = sysconfig.get_paths()
    places = tuple({paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    return file.startswith(places) or not {"site-packages", "dist-packages"}.isdisjoint(
        Path(file).parts
    )


def find_factory(reference: str) -> Place:
    """Return the line that defines a user's ``file.py:factory``, or line 1 if it is not found."""
    file, _, name = reference.rpartition(":")
    path, written = Path(file), re.compile(rf"\s*(?:def|class)\s+{re.escape(name)}\b|{name}\s*[:=]")
    try:
        lines = read_text(path, "replace").splitlines()
    except OSError:
        lines = []
    numbers = (number for number, text in enumerate(lines, 1) if written.match(text))
    return Place(file=name_file(path), line=next(numbers, 1))


def find_suite_model(name: str) -> str:
    """Return ``file.py:function`` for a model of the suite, such as ``mlp`` or ``mlp:make_row``, if
    this project runs from a checkout, or "" otherwise."""
    model, _, function = name.partition(":")
    path = Path(suite.__file__).parent / f"{model}.py"
    is_checkout = path.is_file() and not is_installed(str(path))
    return f"{path}:{function or 'make_case'}" if is_checkout else ""
