"""Finds the policy of the user's models as pytest and ruff find their files: upwards from the
directory in which the command was started, to the root of the repository.

The noxfile asks which environment a call needs, so this module needs no third-party package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from provisioning.console.caller import shown_path
from provisioning.console.command import user_path
from provisioning.documents import DocumentError, decoding, read_bytes
from provisioning.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "qnn.toml"
# The value of --policy that selects this project's suite and limits although there is a qnn.toml.
# All other values become absolute paths.
OURS = Path("default")


def policy_path(word: str) -> Path:
    """Return the value of --policy as an absolute path, or OURS."""
    return OURS if word == str(OURS) else user_path(word)


def choose_policy(option: Path | None) -> Path | None:
    """Return the policy that a call uses: the value of --policy or, without it, the qnn.toml that
    find_policy finds. Return None for this project's own policy. Raises UsageError."""
    if option is None:
        return find_policy(user_path(".").resolve())
    return None if option == OURS else option


def find_policy(start: Path) -> Path | None:
    """Return the qnn.toml in ``start`` or in the nearest directory above it, or None if there is
    none up to the root of the git repository. Raises UsageError if it is not a file."""
    for folder in (start, *start.parents):
        path = folder / NAME
        if os.path.isfile(path):  # noqa: PTH113 - false where the directory cannot be read
            return path
        # A pipe, a directory or a link to nothing is refused: without a word, the suite would be
        # tested instead.
        if os.path.lexists(path):
            raise UsageError(
                f"{shown_path(path)} is not a file",
                why="without --policy, it is read as the policy of your models",
                fix="rename it, pass another file to --policy, or `--policy default` to test this"
                " project's own suite",
            )
        if os.path.lexists(folder / ".git"):
            break
    return None


def read_runtimes(policy: Path | None) -> dict[str, list[str]]:
    """Return the runtimes that judge each model of a policy, by name; none if any runtime does that
    can take the model. Empty if there is no policy or it is invalid, which the verb reports."""
    models = _read_tables(policy).get("models")
    runtimes = {}
    for name, entry in models.items() if isinstance(models, dict) else ():
        listed = entry.get("runtimes") if isinstance(entry, dict) else None
        runtimes[name] = [*map(str, listed)] if isinstance(listed, list) else []
    return runtimes


def _read_tables(policy: Path | None) -> dict[str, Any]:
    try:
        with decoding():
            # A policy may start with a byte order mark.
            text = read_bytes(policy).decode("utf-8-sig") if policy else ""
            tables: dict[str, Any] = tomllib.loads(text)
    except DocumentError:
        return {}
    return tables


def read_own_paths(policy: Path | None) -> dict[str, dict[str, str]]:
    """Return the paths of the models that the tables ``by_runtime.RUNTIME`` of a policy name, by
    runtime. Empty if there is no policy or it is invalid, which the verb reports."""
    by_runtime = _read_tables(policy).get("by_runtime")
    paths: dict[str, dict[str, str]] = {}
    for runtime, tables in by_runtime.items() if isinstance(by_runtime, dict) else ():
        models = tables.get("models") if isinstance(tables, dict) else None
        paths_of_models = {}
        for name, entry in models.items() if isinstance(models, dict) else ():
            path = entry.get("path") if isinstance(entry, dict) else None
            if isinstance(path, str):  # another entry changes a model of the rest of the policy
                paths_of_models[name] = path
        paths[runtime] = paths_of_models
    return paths


def read_paths(policy: Path | None) -> dict[str, str]:
    """Return what a policy runs: the path of each of its models, by name. Empty if there is no
    policy or it is invalid, which the verb reports."""
    tables = _read_tables(policy)
    suite, models = (tables.get(key) for key in ("suite", "models"))
    paths = {name: name for name in suite} if isinstance(suite, dict) else {}
    for name, entry in models.items() if isinstance(models, dict) else ():
        if isinstance(entry, dict):
            paths[name] = str(entry.get("path", ""))
    return paths
