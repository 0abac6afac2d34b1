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
    """The kinds of compilers that targets can use. ci.builds.toolchains finds a compiler of each
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
    ``if_present`` are CMake targets that are built only if the configured project defines them.
    ``toolchain`` is None if the stage uses its target's kind of compiler.
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
    """A file that a build must produce, and its requirements.

    ``path`` is a pattern below the build's directory. ``policy`` is the name of a policy in
    manifests/policies/elf.toml, or a placeholder for one. ``needed`` are the libraries that it may
    link to in addition to those in the policy's ``system``. ``size_budget`` is in bytes, 0
    for none. ``accept`` maps ids of findings to the reason why they are accepted for this file.

    With ``optional``, the file may be missing, because some versions of the sources do not build
    it. With ``extra``, it is required only if ``--with`` names that extra. With ``option``, it is
    not required if the user turns that CMake option off with -D. With ``split_symbols``, it is
    stripped if the toolchain has an objcopy, and its symbols are put into a file next to it.
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

    ``components`` are sets of submodules, which manifests/toolchains/executorch.toml lists.
    ``--with`` adds the sets in ``extras``. The Python that the build runs must have ``modules``. It
    must also have the modules in ``option_modules`` of each CMake option that the user does not
    turn off with -D. ``programs`` must be on PATH.
    """

    components: tuple[str, ...] = ()
    extras: dict[str, tuple[str, ...]] = {}
    modules: tuple[str, ...] = ()
    option_modules: dict[str, tuple[str, ...]] = {}
    programs: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A build target: a row of manifests/targets.toml, merged over the recipe that it names.

    ``policy`` is the value of {policy} in artifacts, and may itself contain a placeholder.
    ``profile`` is the set of artifacts that must be provisioned, and ``lpai_profile`` replaces it
    for DSP type 0. The copy of the sources is in a directory called ``tree_name``. ``with_source``
    is the target that replaces this one if the user passes a checkout. With ``per_python``, each
    Python has a separate build, and with ``per_soc`` each SoC. ``parity`` are folders with Buck
    files that must agree with what CMake builds.
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
        """The target's toolchain, then the other ones that its stages need."""
        of_stages = [stage.toolchain for stage in self.stages if stage.toolchain]
        return tuple(dict.fromkeys([self.toolchain, *of_stages]))

    @property
    def extras(self) -> tuple[str, ...]:
        """The names that ``--with`` accepts."""
        rows = [row.extra for row in self.artifacts if row.extra]
        tables = [{**stage.extra_options, **stage.extra_targets} for stage in self.stages]
        return tuple(sorted({*rows, *(name for table in tables for name in table)}))


class TargetsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/targets.toml: recipes, and targets whose rows are merged over one
    of them.

    A table in the row, such as ``needs``, is merged into the recipe's table with the same name.
    """

    recipe: dict[str, dict[str, Any]]
    target: tuple[dict[str, Any], ...]


def read_targets() -> dict[str, Target]:
    """Return all targets. The keys are their names. Raises ManifestError if the file is invalid."""
    file = read_toml(FILE, TargetsFile)
    targets = [_merge(dict(row), file.recipe) for row in file.target]
    return {target.name: target for target in targets}


def _merge(row: dict[str, Any], recipes: Mapping[str, dict[str, Any]]) -> Target:
    recipe = row.pop("recipe", "")
    try:
        merged = {**recipes[recipe], **row}
        for name, value in row.items():
            if isinstance(value, dict):
                merged[name] = {**recipes[recipe].get(name, {}), **value}
        return msgspec.convert(merged, Target)
    except KeyError as error:
        raise ManifestError(
            f"{FILE}: there is no recipe {recipe!r}", fix="use a recipe that the file defines"
        ) from error
    except msgspec.ValidationError as error:
        name = row.get("name", "a target without a name")
        raise ManifestError(f"{FILE}: {name} does not match its schema", why=str(error)) from error


def find_target(name: str) -> Target:
    """Return the target called ``name``. Raises UsageError with the existing targets if there
    is none."""
    return find_row(read_targets(), name, "build target")


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with each {name} replaced. Raises ManifestError if one has no value."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ManifestError(
                f"there is no value for {{{match[1]}}} in {text!r}",
                why="these placeholders have a value: " + ", ".join(sorted(values)),
            )
        return values[match[1]]

    return PLACEHOLDER.sub(replace, text)
