"""The build targets: decode the rows of manifests/targets.toml, and look them up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from provisioning.errors import ManifestError
from provisioning.manifest.reader import find_row, read_toml

FILE = "targets.toml"
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class CompilerChoice(str, Enum):
    """The kinds of compilers that targets can use; ci.builds.toolchains finds a compiler of each
    kind.
    """

    HOST = "host"
    NDK = "ndk"
    LINUX_CROSS = "linux-cross"
    HEXAGON = "hexagon"


class Origin(str, Enum):
    """The origin of a target's sources."""

    CHECKOUT = "checkout"
    RUNNER = "runner"


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One CMake project: configured, built and, with ``install``, installed into {prefix}.

    ``source`` is relative to the tree. Values of ``options`` may contain {placeholders}. If
    ``--with`` names a key of ``extra_options`` or ``extra_targets``, its values are added.
    ``if_present`` are CMake targets that some versions of the tree lack. ``toolchain`` is set if
    the compiler differs from the target's.
    """

    name: str
    source: str = "."
    options: dict[str, str | bool] = {}
    extra_options: dict[str, dict[str, str | bool]] = {}
    targets: tuple[str, ...] = ("all",)
    extra_targets: dict[str, tuple[str, ...]] = {}
    if_present: tuple[str, ...] = ()
    install: bool = False
    toolchain: CompilerChoice | None = None


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a build must produce: a pattern below the build's directory, and requirements.

    ``policy`` is a kind of manifests/policies/elf.toml, or a placeholder for one. ``needed`` are
    the libraries that it may need besides those of the policy's system. ``size_budget`` is in
    bytes, 0 for none. ``accept`` maps ids of findings to the reason why they are accepted here. If
    ``optional``, some versions of the sources do not build it. ``option`` is the CMake option that
    builds it, which the caller may turn off with -D. With ``split_symbols`` it is stripped if the
    toolchain has an objcopy, and its symbols are in a file next to it.
    """

    path: str
    policy: str = ""
    needed: tuple[str, ...] = ()
    size_budget: int = 0
    accept: dict[str, str] = {}
    extra: str = ""
    option: str = ""
    optional: bool = False
    split_symbols: bool = False


class Install(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files to install into a checkout or an overlay.

    ``path`` is a pattern below the build's directory, ``to`` a directory below ExecuTorch's root.
    """

    path: str
    to: str


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is checked before a compiler starts.

    ``components`` are sets of submodules of manifests/toolchains/executorch.toml; ``--with`` adds
    those of ``extras``. ``modules`` are imported by the Python that the build runs, and
    ``option_modules`` too, unless -D turns their CMake option off. ``programs`` must be on PATH.
    """

    components: tuple[str, ...] = ()
    extras: dict[str, tuple[str, ...]] = {}
    modules: tuple[str, ...] = ()
    option_modules: dict[str, tuple[str, ...]] = {}
    programs: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A build target: a row of the file, merged over its recipe.

    ``policy`` is the value of {policy} in artifacts, and may itself be a placeholder. ``profile``
    is the set of artifacts that must be provisioned, ``lpai_profile`` that for DSP type 0.
    ``tree_name`` is the required name of the sources' directory; ``with_source`` the target that
    replaces this one if the user passes a checkout. ``per_python`` means that each Python has a
    separate build, ``soc`` that each SoC has one. ``parity`` are folders with Buck files that must
    agree with what CMake builds.
    """

    name: str
    help: str
    session: str
    platform: str
    toolchain: CompilerChoice
    origin: Origin
    stages: tuple[Stage, ...]
    artifacts: tuple[Artifact, ...]
    installs: tuple[Install, ...] = ()
    policy: str = ""
    build_type: str = "Release"
    profile: str = ""
    lpai_profile: str = ""
    tree_name: str = "source"
    needs: Needs = Needs()
    with_source: str = ""
    parity: tuple[str, ...] = ()
    per_python: bool = False
    per_soc: bool = False

    @property
    def toolchains(self) -> tuple[CompilerChoice, ...]:
        """The target's toolchain, then those of its stages."""
        others = [stage.toolchain for stage in self.stages if stage.toolchain]
        return tuple(dict.fromkeys([self.toolchain, *others]))

    @property
    def extras(self) -> tuple[str, ...]:
        """The names that ``--with`` accepts."""
        rows = [row.extra for row in self.artifacts if row.extra]
        tables = [{**stage.extra_options, **stage.extra_targets} for stage in self.stages]
        return tuple(sorted({*rows, *(name for table in tables for name in table)}))


class TargetsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifests/targets.toml: a target is a row that is merged over its recipe.

    A table in the row, such as needs, is merged into the recipe's table of that name.
    """

    recipe: dict[str, dict[str, Any]]
    target: tuple[dict[str, Any], ...]


def read_targets() -> dict[str, Target]:
    """Return all targets by name. Raises ManifestError."""
    found = read_toml(FILE, TargetsFile)
    targets = [_merge(dict(row), found.recipe) for row in found.target]
    return {target.name: target for target in targets}


def _merge(row: dict[str, Any], recipes: Mapping[str, dict[str, Any]]) -> Target:
    recipe = row.pop("recipe", "")
    try:
        whole = {**recipes[recipe], **row}
        for name, value in row.items():
            if isinstance(value, dict):
                whole[name] = {**recipes[recipe].get(name, {}), **value}
        return msgspec.convert(whole, Target, strict=True)
    except KeyError as error:
        raise ManifestError(
            f"{FILE}: no recipe {recipe!r}", fix="use a recipe of that file"
        ) from error
    except msgspec.ValidationError as error:
        name = row.get("name", "a target without a name")
        raise ManifestError(f"{FILE}: {name} does not fit its schema", why=str(error)) from error


def find_target(name: str) -> Target:
    """Return the target called ``name``. Raises UsageError, which lists the others."""
    return find_row(read_targets(), name, "build target")


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with each {name} replaced. Raises ManifestError if one has no value."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ManifestError(
                f"no value for {{{match[1]}}} in {text!r}",
                why="known here: " + ", ".join(sorted(values)),
            )
        return values[match[1]]

    return PLACEHOLDER.sub(replace, text)
