"""Find out what is installed for the running interpreter. This module uses only the standard
library, since it is also run as a script by other interpreters.

The script reads its request, {"distributions": [...], "modules": [...]}, as JSON from the first
argument and prints one line of JSON. Only top-level packages are located; nothing is imported.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ADAPTOR = "PyQnnManagerAdaptor"


def probe(distributions: list[str], modules: list[str]) -> dict[str, Any]:
    """Return facts about the running interpreter, in JSON's types."""
    executorch = _locate("executorch")
    return {
        "executable": sys.executable,
        "version": list(sys.version_info[:3]),
        "tag": importlib.machinery.EXTENSION_SUFFIXES[0],
        "distributions": {name: _version(name) for name in distributions},
        "modules": {name: _locate(name) is not None for name in modules},
        "executorch": executorch,
        "installed": _installed("executorch"),
        "pth": _path_files(executorch),
        "shadowed": [shadow for name in ("torch", *modules) for shadow in _find_shadow(name)],
        "adaptors": find_adaptors(executorch),
        "flatc": shutil.which("flatc"),
        "asked": _asked("executorch"),
        "torch_cuda": _find_cuda(_locate("torch")),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _find_cuda(torch: str | None) -> str:
    """Return the version of CUDA for which the torch in the directory ``torch`` was built, or ''.
    Its release need not show it: on the package index, 2.13.0 without a suffix is a CUDA build."""
    try:
        text = (Path(torch or "") / "version.py").read_text("utf-8", "replace")
    except OSError:
        return ""
    cuda = re.search(r"(?m)^cuda\b[^=\n]*= *['\"]([\w.]+)['\"]", text)
    return cuda[1] if cuda else ""


def _installed(name: str) -> str:
    """Return the directory of the package ``name`` in the distribution ``name``, or ''."""
    try:
        place = Path(str(importlib.metadata.distribution(name).locate_file(name)))
    except importlib.metadata.PackageNotFoundError:
        return ""
    return str(place) if place.is_dir() else ""


def _find_shadow(name: str) -> list[list[str]]:
    """Return the name, the place from which it is imported and the directory of the installed
    package, if these two differ."""
    installed, imported = _installed(name), _locate(name)
    if not installed or not imported or Path(imported).resolve() == Path(installed).resolve():
        return []
    return [[name, imported, installed]]


def _path_files(place: str | None) -> list[str]:
    """Return the .pth files that contain the path of the parent directory of ``place``."""
    files = [path for entry in sys.path for path in sorted(Path(entry).glob("*.pth"))]
    parent = str(Path(place).parent) if place else "\0"
    return [str(file) for file in files if parent in file.read_text("utf-8", "replace")]


def _asked(name: str) -> list[list[str]]:
    """Return a distribution's requirements, each with the installed version, or '' if it is not
    installed.
    """
    try:
        requirements = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    names = [re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0] for line in requirements]
    # zip has no argument `strict` before Python 3.10, and any interpreter may run this script.
    return [[line, _version(name) or ""] for line, name in zip(requirements, names)]  # noqa: B905


def _locate(name: str) -> str | None:
    """Return the directory of a top-level package, or the file of a module. A package without
    __init__.py, such as executorch, may consist of several directories; the first that contains
    ``backends`` is returned, else the first. Returns None if nothing is found.
    """
    try:
        # Not imported: torch alone would take seconds.
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [])
    full = [place for place in places if (Path(place) / "backends").is_dir()]
    return (full or places)[0] if places else spec.origin


def find_adaptors(executorch: str | None) -> list[str]:
    """Return the paths of the QNN adaptors, for any version of Python, in the package directory
    ``executorch``, sorted.
    """
    if executorch is None:
        return []
    directory = Path(executorch) / "backends" / "qualcomm" / "python"
    return [str(path) for path in sorted(directory.glob(ADAPTOR + ".*"))]


if __name__ == "__main__":
    # Modules next to this file must not hide requested ones with the same name.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    sys.stdout.write(json.dumps(probe(**json.loads(sys.argv[1]))) + "\n")
