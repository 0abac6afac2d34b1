"""What can be built: the rows of manifests/targets.toml, decoded and looked up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import read_toml

FILE = "targets.toml"
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class CompilerChoice(str, Enum):
    """Whose compiler builds a target; ci.builds.toolchains resolves each."""

    HOST = "host"
    NDK = "ndk"
    LINUX_CROSS = "linux-cross"
    HEXAGON = "hexagon"


class Origin(str, Enum):
    """Where a target's sources come from."""

    CHECKOUT = "checkout"
    RUNNER = "runner"


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One CMake project: configured, built and, with ``install``, installed into {prefix}.

    ``source`` is relative to the tree. Values of ``options`` may hold {placeholders}; those of
    ``extra_options`` come on top, and ``extra_targets`` beside ``targets``, when ``--with`` names
    their key. ``if_present`` are CMake targets that older or newer trees lack. ``toolchain`` is
    for one that another compiler builds than the target's.
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
    """A file that a build must leave: a pattern below the build's directory, and what it must be.

    ``policy`` is a kind of manifests/policies/elf.toml, or a placeholder for one. ``needed`` are
    the libraries that it may need besides those of the policy's system. ``size_budget`` is in
    bytes, 0 for none. ``accept`` maps ids of findings to the reason why they are right here. One
    that is ``optional`` some versions of the sources do not have; ``option`` is a CMake option
    that the caller may turn off with -D, and that the file comes with. With ``split_symbols`` it
    is stripped where the toolchain has an objcopy, and its symbols are in a file next to it.
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
    """Files to put into a checkout or an overlay: a pattern below the build's directory, and
    the directory below ExecuTorch's root that wants them."""

    path: str
    to: str


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is checked before a compiler starts.

    ``components`` are sets of submodules of manifests/toolchains/executorch.toml, those of
    ``extras`` are wanted by ``--with``; ``modules`` are imported by the Python that the build
    runs, those of ``option_modules`` unless -D turns their CMake option off; ``programs`` are on
    PATH.
    """

    components: tuple[str, ...] = ()
    extras: dict[str, tuple[str, ...]] = {}
    modules: tuple[str, ...] = ()
    option_modules: dict[str, tuple[str, ...]] = {}
    programs: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row with its recipe: a name, a toolchain, sources, stages and artifacts.

    ``policy`` is what {policy} of an artifact stands for, and may be a placeholder itself.
    ``profile`` is the set of artifacts that must be in place, ``lpai_profile`` that for DSP type 0;
    ``tree_name`` the name that the
    sources' directory must have; ``with_source`` the target that stands in when a checkout is
    given; ``per_python`` says that each Python has its own build; ``soc`` that a SoC has.
    ``parity`` are folders whose Buck files have to say what CMake builds.
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
        """The target's own first, then those of stages."""
        others = [stage.toolchain for stage in self.stages if stage.toolchain]
        return tuple(dict.fromkeys([self.toolchain, *others]))

    @property
    def extras(self) -> tuple[str, ...]:
        """What ``--with`` may name."""
        rows = [row.extra for row in self.artifacts if row.extra]
        tables = [{**stage.extra_options, **stage.extra_targets} for stage in self.stages]
        return tuple(sorted({*rows, *(name for table in tables for name in table)}))


class TargetsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifests/targets.toml: a target is a row on top of the recipe that it names.

    A table of the row, such as needs, goes on top of the recipe's table of that name.
    """

    recipe: dict[str, dict[str, Any]]
    target: tuple[dict[str, Any], ...]


def read_targets() -> dict[str, Target]:
    """Every target by its name. Raises ManifestError."""
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
            f"{FILE}: no recipe {recipe!r}", fix="name one that is there"
        ) from error
    except msgspec.ValidationError as error:
        name = row.get("name", "a target without a name")
        raise ManifestError(f"{FILE}: {name} does not fit its schema", why=str(error)) from error


def find_target(name: str) -> Target:
    """The target called ``name``. Raises UsageError that names the others."""
    targets = read_targets()
    if name not in targets:
        raise UsageError(f"no build target {name!r}", fix="one of: " + ", ".join(targets))
    return targets[name]


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """``text`` with each {name} replaced. Raises ManifestError for a name without a value."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ManifestError(
                f"there is no value for {{{match[1]}}} in {text!r}",
                why="known here: " + ", ".join(sorted(values)),
            )
        return values[match[1]]

    return PLACEHOLDER.sub(replace, text)
