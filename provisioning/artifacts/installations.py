"""Use existing installations. The version of a QNN SDK is read from its sdk.yaml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.caller import caller_path
from provisioning.documents import DocumentError, decoding, read_user_file
from provisioning.errors import UnfitError, UsageError
from provisioning.files import explain_path
from provisioning.manifest.reader import Adoption
from provisioning.versions import is_older

# Variables that an option has set, with the option and the value: messages name what was typed.
_options: dict[str, tuple[str, str]] = {}


def set_by_option(variable: str, value: str, option: str) -> None:
    """Set a variable that points to an installation to what the user passed with an option, so that
    both have the same effect, here and in child processes."""
    os.environ[variable] = value
    _options[variable] = (option, value)


def find_option(variable: str, value: str) -> str:
    """Return the option that set ``variable`` to ``value``; '' if it was no option."""
    option, passed = _options.get(variable, ("", ""))
    return option if passed == value else ""


def find_installation(
    request: ArtifactRequest, variables: Mapping[str, str]
) -> tuple[Path, str] | None:
    """Check the installation that a variable points to, and return its root and version; None if
    the variable is not set.

    Raises UnfitError if a marker file or a component is missing, or if the version is too old.
    """
    adoption = request.toolchain.adoption
    variable, directory = adoption.find_named(variables)
    if not directory:
        return None
    root = caller_path(Path(directory).expanduser())
    # Of a component's glob, the path without a wildcard must exist, or the directory DIR of DIR/*.
    expected = dict.fromkeys(adoption.markers)
    for pattern in request.patterns:
        head, *wildcard_parts = re.split(r"[*?]", pattern, maxsplit=1)
        if not wildcard_parts or head.endswith("/"):
            expected[head.rstrip("/")] = None
    if missing := [path for path in expected if not (root / path).exists()]:
        if option := find_option(variable, directory):
            setting, way = f"{option} {directory}", f"correct {option}, or leave it out"
        else:
            also = " (or --sdk)" if variable == adoption.choice else ""
            setting, way = f"{variable}={directory}", f"correct {variable}{also}, or unset it"
        raise UnfitError(
            f"{setting} is not a usable {request.name}",
            why=explain_path(root) or f"it has no {' and no '.join(missing)}",
            fix=f"{way} and run `qnn-ci fetch {request.name}`",
        )
    version = read_version(root, adoption)
    check_minimum(request, variable, version)
    return root.resolve(), version


def read_version(root: Path, adoption: Adoption) -> str:
    """Return the version that an installation states, or ``unknown``."""
    if not adoption.version_file:
        return "unknown"
    if adoption.version_file == SDK_YAML:
        return read_sdk_yaml(root).version or "unknown"
    try:
        raw = read_user_file(root / adoption.version_file, "the version", MAX_BYTES)
    # An installation without a readable version is used nevertheless: its markers were found.
    except UsageError:
        return "unknown"
    match = re.search(adoption.version_pattern, raw.decode("utf-8", "replace"))
    return match.group(1) if match else "unknown"


def check_minimum(request: ArtifactRequest, variable: str, version: str) -> None:
    """Raise UnfitError if the version is older than the profile's minimum."""
    if request.minimum and version != "unknown" and is_older(version, request.minimum):
        option = find_option(variable, os.environ.get(variable, ""))
        fix = f"set {variable} to version {request.minimum} or later, or unset it"
        if option:
            fix = f"pass version {request.minimum} or later to {option}, or leave it out"
        raise UnfitError(
            f"{request.name} {version} in {option or variable} is too old",
            why=request.minimum_reason or f"{request.minimum} or later is needed",
            fix=fix,
        )


SDK_YAML = "sdk.yaml"
# The variable of an installation may point anywhere, so the file may be of any size.
MAX_BYTES = 1 << 16
VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
STAMP = re.compile(r"(\d{12})(?!\d)")


@dataclass(frozen=True)
class SdkIdentity:
    """The version in an sdk.yaml, such as 2.37.0.250724, and the ``stamp`` at the start of its
    build_id (12 digits). A value that is missing is ''.
    """

    version: str = ""
    stamp: str = ""


def read_sdk_yaml(root: Path) -> SdkIdentity:
    """Read the sdk.yaml of an SDK; both fields are '' if there is no such file.

    Raises UnfitError if it cannot be read or is not YAML.
    """
    path = root / SDK_YAML
    if not path.exists():
        return SdkIdentity()
    import yaml  # takes 30 ms, and most verbs do not need it

    try:
        data = read_user_file(path, "the QNN SDK's", MAX_BYTES)
        with decoding():
            document: Any = yaml.load(data, Loader=yaml.BaseLoader)  # noqa: S506 - only str
    except (UsageError, DocumentError, yaml.YAMLError) as error:
        why = error.why if isinstance(error, UsageError) else " ".join(str(error).split())
        raise UnfitError(
            f"{path} cannot be read",
            why=why,
            fix="provision the QNN SDK again, or set QNN_SDK_ROOT to another one",
        ) from error
    rows = document if isinstance(document, dict) else {}

    def find(key: str, pattern: re.Pattern[str]) -> str:
        value = rows.get(key)  # a damaged file may have a list or a table here
        match = pattern.match(value) if isinstance(value, str) else None
        return match[1] if match else ""

    return SdkIdentity(find("version", VERSION), find("build_id", STAMP))
