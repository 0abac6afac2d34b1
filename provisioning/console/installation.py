"""How this copy of the project was installed, and so how to install more of it.

pip records where a distribution came from in ``direct_url.json`` (PEP 610), unless it came from a
package index.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from provisioning.documents import DocumentError, decode_json

DISTRIBUTION = "executorch-qnn-ci"
CHECKOUT = Path(__file__).resolve().parents[2]
_ON_GITHUB = re.compile(r".*github\.com[/:](.+?)(?:\.git)?/?")


def find_origin() -> str:
    """Return ``OWNER/REPOSITORY@COMMIT`` if pip installed this package from GitHub, otherwise
    ""."""
    with suppress(ValueError, KeyError, TypeError):
        origin = _read_origin()
        owner = _ON_GITHUB.fullmatch(origin["url"])
        return f"{owner[1]}@{origin['vcs_info']['commit_id']}" if owner else ""
    return ""


def install_command(extra: str) -> str:
    """Return the command that installs this project with an extra from where this copy came: a
    commit on GitHub, a directory, a wheel or a package index."""
    repository, _, commit = find_origin().partition("@")
    folder, file = _find_local()
    if repository:
        target = f"{DISTRIBUTION}[{extra}] @ git+https://github.com/{repository}@{commit}"
    elif file:
        target = f"{DISTRIBUTION}[{extra}] @ {file.as_uri()}"
    else:
        target = f"{folder or DISTRIBUTION}[{extra}]"
    quoted = shlex.quote(target) if set(target) & set('"$`\\') else f'"{target}"'
    return f"{_find_pip()} install {quoted}"


def _find_pip() -> str:
    """Return the command of this Python's pip: ``pip`` if that is the one on PATH, which it is not
    for an environment of the noxfile or one that is not activated."""
    own, found = Path(sys.executable).parent / "pip", shutil.which("pip")
    return "pip" if found and Path(found) == own else f"{shlex.quote(sys.executable)} -m pip"


def _find_local() -> tuple[Path | None, Path | None]:
    """Return the directory that this copy was installed or runs from, and the wheel that it was
    installed from."""
    with suppress(ValueError, KeyError, TypeError):
        origin = _read_origin()
        url = urlsplit(origin["url"])
        if url.scheme == "file":
            path = Path(unquote(url.path))
            return (path, None) if "dir_info" in origin else (None, path)
    return (CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else None), None


def _read_origin() -> Any:
    with suppress(metadata.PackageNotFoundError, OSError, DocumentError):
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}"
        return decode_json(text, dict[str, Any])
    return {}
