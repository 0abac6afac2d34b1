"""Read the TOML files in manifests/, and check them strictly.

An unknown key, a missing key or a value of a wrong type is a ManifestError that names the file, the
key, its line and what was probably meant. (msgspec's own errors name neither line nor table.)
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from provisioning.documents import DECODING, DocumentError, decoding, read_user_file
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.releases import AnyRelease, Release, check_names
from provisioning.versions import is_version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
MANIFESTS_VARIABLE = "QNN_CI_MANIFESTS"
LIMIT_BYTES = 16 << 20
GUIDE = "docs/guides/toolchains.md"


def manifests_root() -> Path:
    """Return ``$QNN_CI_MANIFESTS``, the checkout's manifests/, or the installed package's copy."""
    if named := os.environ.get(MANIFESTS_VARIABLE):
        return Path(named)
    package = Path(__file__).resolve().parents[1]
    # The wheel contains a copy inside of the package; a checkout has the files next to it.
    packaged = package / "manifests"
    return packaged if packaged.is_dir() else package.parent / "manifests"


def read_toml(
    relative: str,
    kind: type[T],
    root: Path | None = None,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> T:
    """Decode the TOML file ``relative`` in manifests/, or in the user's directory ``root``, into
    ``kind``, such as a msgspec.Struct. ``prepare`` may change the tables before they are converted.

    Raises ManifestError.
    """
    path = (root or manifests_root()) / relative
    try:
        data = read_user_file(path, "the manifest", LIMIT_BYTES)
        with decoding():
            # Editors on Windows write a byte order mark, which TOML does not allow.
            text = data.decode("utf-8-sig")
            if prepare:
                return convert_toml(prepare(tomllib.loads(text)), kind, text)
            document: T = parse_toml(text, cast("Any", kind))
            return document
    except UsageError as error:
        is_named = not root and os.environ.get(MANIFESTS_VARIABLE)
        fix = f"correct {MANIFESTS_VARIABLE}" if is_named else error.fix
        raise ManifestError(error.what, why=error.why, fix=fix) from error
    except DocumentError as error:
        page = "reference/policy.md" if root else "reference/provisioning.md"
        raise ManifestError(
            f"manifest {relative} does not match its schema",
            why=str(error),
            fix=f"correct {path}; docs/{page} describes every key",
        ) from error


@lru_cache(maxsize=64)  # some files are read for every artifact, finding or case
def parse_toml(text: str, kind: Any) -> Any:
    """Decode ``text`` into ``kind``. Raises tomllib.TOMLDecodeError, msgspec.ValidationError.

    Results are cached: callers must not change them.
    """
    return convert_toml(tomllib.loads(text), kind, text)


def convert_toml(tables: Any, kind: type[T], text: str) -> T:
    """Convert the tables decoded from ``text`` into ``kind``. Raises msgspec.ValidationError, which
    names the line, the key and what was probably meant.
    """
    try:
        with DECODING:
            return msgspec.convert(tables, kind, strict=True)
    except msgspec.ValidationError as error:
        # msgspec reports only the first fault, without its line.
        for place, why in find_faults(tables, kind):
            line = f"line {number}, " if (number := find_line(text, place)) else ""
            raise msgspec.ValidationError(f"{line}{show_path(place)}: {why}") from error
        raise


def read_policy(name: str, kind: type[T], path: Path | None = None) -> T:
    """Decode manifests/policies/``name``.toml into ``kind``, or ``path``, a user's file, if it is
    not None. Raises ManifestError.
    """
    return read_toml(path.name if path else f"policies/{name}.toml", kind, path and path.parent)


class Licence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact's licence. ``text`` is a URL or a path inside the artifact.

    If ``accept`` is true, the user has to accept it; if ``redistribute`` is true, it allows
    redistribution.
    """

    name: str
    text: str
    accept: bool = False
    redistribute: bool = False


class Adoption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to recognise an existing installation. ``variable`` is '' if there is no way.

    The environment variable ``variable`` contains its root, and every path in ``markers`` must
    exist below the root. ``version_pattern``, a regular expression with one group, finds the
    version in ``version_file``. ``choice`` is an environment variable that overrides the pin if it
    contains a directory or the version of a release. The values in ``choice_words`` do not override
    it.
    """

    variable: str
    markers: tuple[str, ...]
    version_file: str = ""
    version_pattern: str = ""
    choice: str = ""
    choice_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            groups = re.compile(self.version_pattern).groups
        except re.error as error:
            raise ValueError(f"version_pattern is not a regular expression: {error}") from error
        if self.version_file not in {"", "sdk.yaml"} and groups != 1:
            raise ValueError(f"version_pattern has {groups} groups; it must have one")

    def find_choice(self, variables: Mapping[str, str]) -> str:
        """Return the directory in the environment variable ``choice``, or '' if there is none."""
        word = variables.get(self.choice, "")
        return "" if word in self.choice_words or is_version(word) else word

    def find_version(self, variables: Mapping[str, str]) -> str:
        """Return the version in the environment variable ``choice``, or '' if there is none."""
        word = variables.get(self.choice, "")
        return word if is_version(word) else ""

    def find_named(self, variables: Mapping[str, str]) -> tuple[str, str]:
        """Return the variable that points to an installation, and its value; both '' if there is
        none.
        """
        if chosen := self.find_choice(variables):
            return self.choice, chosen
        value = variables.get(self.variable, "")
        return (self.variable, value) if value else ("", "")


class Toolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact: its licence, its releases, its components (globs over its tree), and how an
    existing installation is adopted. ``package_versions`` maps versions of the artifact to versions
    of the wheel that contains it.
    """

    name: str
    summary: str
    default: str
    licence: Licence
    releases: tuple[AnyRelease, ...]
    components: dict[str, tuple[str, ...]] = {}
    adoption: Adoption = Adoption("", ())
    package_versions: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_names(self.name)
        versions = [release.version for release in self.releases]
        if twice := {version for version in versions if versions.count(version) > 1}:
            raise ValueError(f"two releases have version {min(twice)}")

    def release(self, version: str = "") -> Release:
        """Return the release ``version``; '' means the default. Raises UsageError."""
        requested = version or self.default
        for release in self.releases:
            if release.version == requested:
                return release
        versions = " or ".join(release.version for release in self.releases)
        variable = self.adoption.variable
        installed = f"; {variable} selects an installed one" if variable else ""
        raise UsageError(
            f"{self.name} has no version {requested}",
            fix=f"use {versions}; to add a release, see {GUIDE}{installed}",
        )

    def chosen_release(self, variables: Mapping[str, str], version: str = "") -> Release:
        """Return the release whose version the user set in the variable ``choice``, else the
        release ``version`` ('' for the default). Raises UsageError.
        """
        return self.release(self.adoption.find_version(variables) or version)


def find_package_versions(package: str) -> dict[str, str]:
    """Return the known versions of a package, such as {"2.49.40": "2.5.0"} for onnxruntime-qnn. The
    keys are the versions of the artifacts that come from it. Several artifacts can come from one
    package, and the manifest of one of them lists the versions. Raises ManifestError."""
    versions: dict[str, str] = {}
    for name in list_toolchains():
        toolchain = read_toolchain(name)
        packages = {getattr(release, "package", "") for release in toolchain.releases}
        if package in packages:
            versions |= toolchain.package_versions
    return versions


class ProfileArtifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact that a profile needs. If ``components`` is empty, the whole artifact is needed.

    The user's own installation is refused if it is older than ``minimum``; ``minimum_reason`` is
    then shown.

    The fields ``unless_library`` and ``unless_in`` make an artifact optional. It is not needed in
    these cases:

    * The loader finds the library ``unless_library``.
    * The user's own installation of another artifact contains the marker files of this one
      (Adoption.markers). ``unless_in`` maps such artifacts to the directory that is searched.

    If an optional artifact is needed, its lib/ is added to LD_LIBRARY_PATH.
    """

    name: str
    version: str = ""
    components: tuple[str, ...] = ()
    minimum: str = ""
    minimum_reason: str = ""
    unless_library: str = ""
    unless_in: dict[str, str] = {}

    @property
    def is_optional(self) -> bool:
        """Whether a library on the machine, or another installation, can replace it."""
        return bool(self.unless_library or self.unless_in)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named set of artifacts and the variables that point to them (``{name}`` is a root).

    For a variable in ``from_caller``, the caller's value takes precedence. ``like`` is the name of
    another profile, which this one extends with its own artifacts and variables.
    """

    summary: str
    artifacts: tuple[ProfileArtifact, ...]
    variables: dict[str, str] = {}
    from_caller: tuple[str, ...] = ()
    like: str = ""

    def __post_init__(self) -> None:
        for name in (*self.variables, *self.from_caller):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):  # `env` prints it for a shell
                raise ValueError(f"{name!r} is not a valid name of a variable")

    def over(self, base: Profile) -> Profile:
        """Return this profile merged over the one that it extends."""
        names = {artifact.name: artifact for artifact in (*base.artifacts, *self.artifacts)}
        variables = {**base.variables, **self.variables}
        from_caller = (*base.from_caller, *self.from_caller)
        return Profile(self.summary, tuple(names.values()), variables, from_caller, self.like)

    def minimum(self, artifact: str) -> tuple[str, str]:
        """Return the oldest allowed version of an artifact and the reason, both '' if every version
        is allowed.
        """
        for requirement in self.artifacts:
            if requirement.name == artifact:
                return requirement.minimum, requirement.minimum_reason
        return "", ""


def find_row(rows: Mapping[str, T], name: str, noun: str, otherwise: str = "") -> T:
    """Return ``rows[name]``. If it does not exist, raises a UsageError that lists similar names,
    all names, and what else the user can do (``otherwise``). In the message, ``noun`` is the kind
    of thing that ``name`` should be.
    """
    if name not in rows:
        fix = f"{suggest_near(name, rows)}use one of: {', '.join(rows)}{otherwise}"
        raise UsageError(f"there is no {noun} {name!r}", fix=fix)
    return rows[name]


def suggest_near(name: str, names: Iterable[str]) -> str:
    """Return text such as ``did you mean SM8650 or SM8550? ``, or '' if no name is similar."""
    candidates = list(names)
    near: list[str] = []
    if len(name) > 2:  # ndk in android-ndk, which difflib finds too different
        near = [candidate for candidate in candidates if name in candidate.split("-")]
    letters = sorted(name)  # of a name with two letters exchanged, such as SM8560
    near = near or [candidate for candidate in candidates if sorted(candidate) == letters]
    near = near or difflib.get_close_matches(name, candidates, n=3)
    return f"did you mean {' or '.join(near)}? " if near else ""


def read_toolchain(name: str) -> Toolchain:
    """Decode manifests/toolchains/``name``.toml. Raises UsageError and ManifestError."""
    find_row(dict.fromkeys(list_toolchains()), name, "artifact")
    toolchain = read_toml(f"toolchains/{name}.toml", Toolchain)
    if toolchain.name != name:
        raise ManifestError(
            f"manifest toolchains/{name}.toml describes {toolchain.name}",
            why="an artifact is found by the name of its file",
            fix="give the file and the artifact the same name",
        )
    return toolchain


def list_toolchains() -> list[str]:
    """Return the names of all artifacts, sorted."""
    return sorted(path.stem for path in (manifests_root() / "toolchains").glob("*.toml"))


def read_profiles() -> dict[str, Profile]:
    """Return all profiles, each merged over the one that it extends. The keys are their names.
    Raises ManifestError."""
    written = read_toml("profiles.toml", dict[str, Profile])
    profiles = {}
    for name, profile in written.items():
        base = written.get(profile.like)
        if profile.like and (base is None or base.like):
            raise ManifestError(
                f'profile {name} has `like = "{profile.like}"`, but that profile is missing '
                "or also has `like`",
                fix="in manifests/profiles.toml, set `like` to a profile that does not have it",
            )
        profiles[name] = profile.over(base) if base else profile
    return profiles


def read_profile(text: str) -> Profile:
    """Read a profile: ``NAME``, or ``NAME+ARTIFACT@VERSION`` for other versions of artifacts.

    Raises UsageError, which lists the existing profiles or artifacts.
    """
    name, *changes = text.split("+")
    other_fix = f"; or add a profile to manifests/profiles.toml, see {GUIDE}"
    profile = find_row(read_profiles(), name, "profile", other_fix)
    for change in changes:  # ARTIFACT@VERSION
        profile = _change_version(profile, change)
    if changes:  # the changed profile extends the one that it was made from
        profile = msgspec.structs.replace(profile, like=profile.like or name)
    return profile


def _change_version(profile: Profile, change: str) -> Profile:
    artifact, _, version = change.partition("@")
    requirements = {requirement.name: requirement for requirement in profile.artifacts}
    if artifact not in requirements or not version:
        raise UsageError(
            f"{change!r} is not ARTIFACT@VERSION for an artifact of this profile",
            fix="use one of: " + ", ".join(f"{name}@VERSION" for name in requirements),
        )
    requirements[artifact] = msgspec.structs.replace(requirements[artifact], version=version)
    return msgspec.structs.replace(profile, artifacts=tuple(requirements.values()))


Place = tuple[str | int, ...]
_HEAD = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[\w.-]|\"[^\"]*\"|'[^']*')(?:[\w\s.-]|\"[^\"]*\"|'[^']*')*?)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")


def find_faults(value: Any, kind: Any, path: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yield each place below ``value`` that does not match ``kind`` (a Struct or a field's type),
    and why.
    """
    table = _find_table(kind)
    if table and isinstance(value, dict):
        yield from _find_in_table(value, table, path)
    elif get_origin(kind) is dict and isinstance(value, dict):
        keys, values = get_args(kind)
        for key, item in value.items():
            yield from _explain(key, keys, (*path, key))
            yield from find_faults(item, values, (*path, key))
    elif get_origin(kind) is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_faults(item, get_args(kind)[0], (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"{value} is not a finite number"
    else:
        yield from _explain(value, kind, path)


def _find_table(kind: Any) -> Any:
    """Return the Struct that a table of ``kind`` is decoded into, or None if there is none or the
    table's content decides which.
    """
    kinds = get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)
    tables = [
        member
        for member in kinds
        if isinstance(member, type) and issubclass(member, msgspec.Struct)
    ]
    return tables[0] if tables and not tables[0].__struct_config__.tag else None


def _find_in_table(value: dict[str, Any], kind: Any, path: Place) -> Iterator[tuple[Place, str]]:
    hints = get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind)
    types_of_keys = {field.encode_name: hints[field.name] for field in fields}
    has_fault = False
    for key, item in value.items():
        if key in types_of_keys:
            for fault in find_faults(item, types_of_keys[key], (*path, key)):
                has_fault = True
                yield fault
        else:
            has_fault = True
            yield (*path, key), f"unknown key{_suggest(key, types_of_keys)}"
    for field in fields:
        if field.required and field.encode_name not in value:
            has_fault = True
            yield path, f"the key {field.encode_name} is missing"
    if not has_fault:  # what the Struct checks itself, such as whether two keys fit
        yield from _explain(value, kind, path)


def _explain(value: Any, kind: Any, path: Place) -> Iterator[tuple[Place, str]]:
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        choices = list(get_args(kind))  # of a Literal; of another type, these are types
        if isinstance(kind, type(Enum)):
            choices = [member.value for member in kind]
        if (
            isinstance(value, str)
            and choices
            and all(isinstance(choice, str) for choice in choices)
        ):
            yield path, f"{value!r} is not a valid value{_suggest(value, choices)}"
        else:
            yield path, str(error)


def _suggest(word: str, choices: Iterable[str]) -> str:
    candidates = list(choices)
    near = difflib.get_close_matches(word, candidates, n=1)
    return f"; did you mean {near[0]}?" if near else f"; valid: {', '.join(candidates)}"


def show_path(path: Place) -> str:
    """Return a path as text, such as ``models.net.limits`` or ``override[0].scheme``."""
    shown = ""
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}"
    return shown.lstrip(".") or "the file"


def find_line(text: str, path: Place) -> int:
    """Return the number of the line in ``text`` with the key ``path``, or with the innermost table
    that contains it; 0 if neither is found.
    """
    target = [str(part) for part in path]
    # Neither tomllib nor msgspec report the line of a key, so it is searched for with patterns.
    best_depth, best_line, table, counts = 0, 0, [""] * 0, dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            table = _split(head[1])
            # Each [[table]] starts the next row of an array, whose index is a part of the path.
            if line.lstrip().startswith("[["):
                index = counts[head[1]] = counts.get(head[1], -1) + 1
                table = [*table, str(index)]
            line_path = table
        elif key := _KEY.match(line):
            line_path = [*table, *_split(key[1])]
        else:
            continue
        if line_path == target[: len(line_path)] and len(line_path) > best_depth:
            best_depth, best_line = len(line_path), number
    return best_line


def _split(dotted: str) -> list[str]:
    parts = _PART.findall(dotted)
    return [double_quoted or quoted or bare for double_quoted, quoted, bare in parts]
