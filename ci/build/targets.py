"""What can be built: the rows of manifests/targets.toml, decoded and looked up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

import msgspec

from provisioning.errors import ManifestError, UsageError
from provisioning.manifest import read_toml

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class Toolchain(str, Enum):
    """Whose compiler builds a target; ci.build.toolchains resolves each."""

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

    ``source`` is relative to the tree. Values of ``options`` may hold {placeholders}.
    ``optional`` names the stage for ``--with``; empty means always.
    """

    name: str
    source: str = "."
    options: dict[str, str | bool] = msgspec.field(default_factory=dict)
    targets: tuple[str, ...] = ("all",)
    install: bool = False
    optional: str = ""


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a build must leave: a pattern below the build's directory, and what it must be.

    ``policy`` is a row of manifests/policies/build.toml. ``to`` are the places below a
    checkout, or an overlay of one, that want a copy.
    """

    path: str
    policy: str = ""
    size_budget: int = 0
    to: tuple[str, ...] = ()
    optional: str = ""


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is checked before a compiler starts."""

    submodules: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: a name, a toolchain, sources, stages and artifacts.

    ``inputs`` are directories besides the sources that the build reads, with {placeholders}.
    ``with_source`` names the target that stands in when a checkout is given.
    """

    name: str
    help: str
    platform: str
    toolchain: Toolchain
    origin: Origin
    stages: tuple[Stage, ...]
    artifacts: tuple[Artifact, ...]
    session: str = ""
    build_type: str = "Release"
    profile: str = ""
    tree_name: str = "source"
    inputs: tuple[str, ...] = ()
    needs: Needs = Needs()
    with_source: str = ""


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifests/targets.toml."""

    target: tuple[Target, ...]


def read_targets() -> dict[str, Target]:
    """Every target by its name. Raises ManifestError."""
    return {target.name: target for target in read_toml("targets.toml", Targets).target}


def find_target(name: str) -> Target:
    """The target called ``name``. Raises UsageError that names the others."""
    targets = read_targets()
    if name not in targets:
        raise UsageError(f"no build target {name!r}", todo="one of: " + ", ".join(targets))
    return targets[name]


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """``text`` with each {name} replaced. Raises ManifestError for a name without a value."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ManifestError(
                f"nothing stands for {{{match[1]}}} in {text!r}",
                why="known here: " + ", ".join(sorted(values)),
            )
        return values[match[1]]

    return PLACEHOLDER.sub(replace, text)
