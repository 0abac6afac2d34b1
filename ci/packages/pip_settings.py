"""The settings of pip on this machine, as uv and a bare system need them.

``python3 ci/packages/pip_settings.py FILE`` merges pip's files and variables into one file, and
prints the local directories that they name, such as an index of files, one a line. It needs only
the standard library, and no pip: ``pip config list`` prints nothing if pip is set to be quiet, and
pip 26 sorts the values of several files by the names of these files, not by which of them counts.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping
from configparser import Error, RawConfigParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

INDEXES, OTHER_PLACES = ("index-url", "extra-index-url"), ("find-links",)
NOT_OPTIONS = {"config-file", "version", "help"}  # variables that pip does not read as options


class SettingsError(Exception):
    """A file of pip's settings cannot be understood. pip does not run then, either."""


def list_files(variables: Mapping[str, str]) -> list[Path]:
    """Return pip's configuration files, those that count more last."""
    home = Path(variables.get("HOME") or "/root")
    support = "Library/Application Support/pip/pip.conf"  # on macOS
    shared = [Path("/", support)]
    folders = (variables.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    shared += [Path(folder, "pip/pip.conf") for folder in folders]
    shared.append(Path("/etc/pip.conf"))
    configuration = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
    of_user = [home / ".pip/pip.conf", configuration / "pip/pip.conf", home / support]
    named = variables.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:  # pip then reads no file
        return []
    if named and Path(named).exists():  # pip then does not read those of the user
        return [*shared, Path(named)]
    return [*shared, *of_user]


def read_files(files: Iterable[Path]) -> RawConfigParser:
    """Return the settings of the files by section. Those of the last file count most. Raises
    SettingsError."""
    settings = RawConfigParser()
    try:
        for file in files:
            settings.read([str(file)], encoding="utf-8")
    except (Error, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split())
        raise SettingsError(f"{file}, pip's settings, cannot be read: {cause}") from error
    return settings


def read_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for ``pip install`` in pip's files and ``variables``, by the names of its
    options. Empty ones count as not set, as for pip. Raises SettingsError."""
    files = read_files(list_files(variables))
    rows: list[tuple[str, str]] = []
    for section in ("global", "install"):
        rows += files.items(section) if files.has_section(section) else []
    rows += [(name[4:], text) for name, text in variables.items() if name.startswith("PIP_")]
    settings = {}
    for name, text in rows:
        option = name.lower().removeprefix("--").replace("_", "-")
        if text.strip() and option not in NOT_OPTIONS:
            settings[option] = text.strip()
    return settings


def list_directories(settings: Mapping[str, str]) -> list[str]:
    """Return the existing local directories in which pip looks for packages."""
    directories = []
    for option in (*INDEXES, *OTHER_PLACES):
        for place in settings.get(option, "").split():
            address = urlsplit(place)
            if address.scheme not in {"", "file"}:
                continue
            path = Path(unquote(address.path))
            # The pages of an index refer to files next to it.
            path = path.parent if option in INDEXES else path
            if path.is_absolute() and path.is_dir() and path.parent != path:
                directories.append(str(path))
    return list(dict.fromkeys(directories))


def format_settings(settings: Mapping[str, str]) -> str:
    """Return the text of a file for pip with these settings."""
    file, text = RawConfigParser(), io.StringIO()
    file.read_dict({"global": settings})
    file.write(text)
    return text.getvalue()


def main(target: str) -> None:
    """Write the settings of this machine and user to the file ``target``."""
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
    Path(target).write_text(format_settings(settings), encoding="utf-8")
    sys.stdout.writelines(f"{path}\n" for path in list_directories(settings))


if __name__ == "__main__":
    main(*sys.argv[1:])
