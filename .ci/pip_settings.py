"""Merge pip's settings of this machine and user into one file, and print the local directories that
they and pip's variables name, such as an index of files, one a line.

``python3 .ci/pip_settings.py FILE`` needs only the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from configparser import RawConfigParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

INDEXES, OTHER_PLACES = ("index-url", "extra-index-url"), ("find-links",)


def list_files(variables: Mapping[str, str]) -> list[Path]:
    """Return pip's configuration files, those that count more last."""
    home = Path(variables.get("HOME", "/root"))
    own = Path(variables.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    named = variables.get("PIP_CONFIG_FILE", "")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", own]
    if named == os.devnull:  # pip then reads no file
        return []
    return [*files, *([Path(named)] if named else [])]


def read_settings(files: Iterable[Path]) -> RawConfigParser:
    settings = RawConfigParser()
    settings.read([str(file) for file in files], encoding="utf-8")
    return settings


def list_directories(settings: RawConfigParser, variables: Mapping[str, str]) -> list[str]:
    """Return the existing local directories in which pip looks for packages."""
    directories = []
    for option in (*INDEXES, *OTHER_PLACES):
        values = [settings.get(section, option, fallback="") for section in settings.sections()]
        values.append(variables.get(f"PIP_{option.upper().replace('-', '_')}", ""))
        for place in " ".join(values).split():
            address = urlsplit(place)
            if address.scheme not in {"", "file"}:
                continue
            path = Path(unquote(address.path))
            # The pages of an index refer to files next to it.
            path = path.parent if option in INDEXES else path
            if path.is_absolute() and path.is_dir() and path.parent != path:
                directories.append(str(path))
    return list(dict.fromkeys(directories))


def main(target: str) -> None:
    settings = read_settings(list_files(os.environ))
    with Path(target).open("w", encoding="utf-8") as file:
        settings.write(file)
    sys.stdout.writelines(f"{path}\n" for path in list_directories(settings, os.environ))


if __name__ == "__main__":
    main(*sys.argv[1:])
