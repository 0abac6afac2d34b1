"""Turn a target into commands: fill in placeholders and choose flags. Nothing is run here.

Each combination of target, sources and variant, such as a Python or an SoC, has its own directory
below QNN_CI_HOME/builds.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ci.builds.targets import CompilerChoice, Stage, Target, fill_placeholders
from ci.builds.toolchains import Compilers, Tools
from provisioning.errors import UnfitError, UsageError
from provisioning.quoting import script_words
from provisioning.store.collect import ORIGIN
from provisioning.store.home import store_home
from provisioning.store.lock import HeldLock
from provisioning.versions import is_same


class Place:
    """The directories and files of one build.

    The copy of the sources is a directory in ``tree``, because its CMake files may require that the
    directory has a certain name. ``origin`` is a file with the path of the sources, which `gc`
    reads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree, self.tree_record = root / "tree", root / "tree.json"
        self.stages, self.prefix = root / "stages", root / "prefix"
        self.artifacts, self.state = root / "artifacts", root / "state.json"
        self.stripped = root / "stripped"
        self.origin, self.proof = root / ORIGIN, root / "proof.json"
        self.log, self.cache_log = root / "build.log", root / "ccache.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this build. Raises UnfitError if another process has locked it."""
        self.root.mkdir(parents=True, exist_ok=True)
        lock = HeldLock(self.root / "lock")
        if not lock.take():
            raise UnfitError(
                f"another build is running in {self.root}",
                why=f"process {lock.read_holder()} holds {lock.path}",
                fix="wait for that build to end, or set another QNN_CI_HOME",
            )
        try:
            yield
        finally:
            lock.release()


def find_place(target: str, source: Path, variant: str) -> Place:
    """Return the place where ``target`` is built from ``source``. Each ``variant`` has a separate
    place.
    """
    # Per path of the sources, since flatcc writes into the tree that is built, so two builds must
    # not share one.
    key = hashlib.sha256(f"{source.resolve()}\0{variant}".encode()).hexdigest()[:10]
    return Place(store_home() / BUILDS / f"{target}-{key}")


BUILDS = "builds"  # the directory of all builds in the store's
EPOCH = "315532800"  # 1980-01-01, the earliest time in zip archives
STAND_INS = Path(__file__).resolve().with_name("cmake")
DIGESTED_VARIABLES = ("CFLAGS", "CXXFLAGS", "SOURCE_DATE_EPOCH")
KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "TERM", "USER")
KEPT_PREFIXES = ("CCACHE_", "SCCACHE_", "QNN_CI_")
LAUNCHERS = ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER")
# The false constants of CMake's if().
CMAKE_FALSE = frozenset({"", "0", "OFF", "NO", "N", "FALSE", "IGNORE", "NOTFOUND"})


@dataclass(frozen=True)
class BuildRequest:
    """The user's choices besides the target.

    ``python`` is the interpreter that the build runs. If ``packages`` is false, the packages
    installed for it are not checked. ``jobs`` is the number of parallel compilers, or 0 for one per
    core. ``release`` selects CMake's build type Release, and ``clean`` removes the earlier build
    first. ``extras`` are the values of --with, and ``defines`` are the -D options, with names that
    may include a type. If ``doctor`` is false, the doctor is not run. ``lays_over`` is whether the
    adaptor is to be laid over the executorch package that is installed for ``python``.
    ``executorch`` is the version that the sources must have, or "" for any.
    """

    source: Path | None = None
    python: Path = Path(sys.executable)
    jobs: int = 0
    release: bool = False
    clean: bool = False
    extras: frozenset[str] = frozenset()
    defines: Mapping[str, str] = field(default_factory=dict)
    soc: str = ""
    dsp_type: int = 3
    doctor: bool = True
    packages: bool = True
    lays_over: bool = False
    executorch: str = ""

    @property
    def named(self) -> dict[str, str]:
        """The user's -D options without their types."""
        return {name.partition(":")[0]: value for name, value in self.defines.items()}

    def turns_off(self, option: str) -> bool:
        """Return whether the user's -D options switch a CMake option off, by CMake's rules."""
        return self.named.get(option, "ON").upper() in CMAKE_FALSE

    def require_version(self, version: str) -> None:
        """Raise UsageError if the sources, which are ExecuTorch ``version``, must be another one.
        It is "" if there are none yet."""
        if version and self.executorch and not is_same(version, self.executorch):
            raise UsageError(
                f"--executorch is {self.executorch}, but the sources to build are ExecuTorch"
                f" {version}",
                fix="omit --executorch, or set --source to a checkout of that version",
            )


@dataclass(frozen=True)
class StagePlan:
    """One CMake project: its sources, build directory, options and targets."""

    name: str
    source: str
    build: Path
    defines: tuple[str, ...]
    targets: tuple[str, ...]
    if_present: tuple[str, ...]
    install: bool


@dataclass(frozen=True)
class BuildPlan:
    """A build that is ready to start: its stages, its environment and everything that identifies
    it.

    ``source`` is the directory of the sources, and ``overlay`` the copy of them that is built.
    ``values`` are the values of placeholders. ``named`` are the names of the CMake options that the
    user set.
    """

    target: Target
    place: Place
    source: Path
    overlay: Path
    stages: tuple[StagePlan, ...]
    tools: Tools
    jobs: int
    environment: Mapping[str, str]
    identity: Mapping[str, str]
    values: Mapping[str, str]
    named: frozenset[str] = frozenset()

    def configure_command(self, stage: StagePlan) -> tuple[str, ...]:
        """Return cmake's configure command. If the user set options, CMake reports those that it
        did not use."""
        places = ("-S", stage.source, "-B", str(stage.build), "-G", "Ninja")
        quiet = () if self.named else ("--no-warn-unused-cli",)
        return (str(self.tools.cmake.path), *places, *quiet, *stage.defines)

    def compile_command(
        self, stage: StagePlan, optional_targets: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Return cmake's build command for the targets of the stage and ``optional_targets``."""
        words = ("--build", str(stage.build), "-j", str(self.jobs))
        return (str(self.tools.cmake.path), *words, "--target", *stage.targets, *optional_targets)

    def install_command(self, stage: StagePlan) -> tuple[str, ...]:
        """Return cmake's install command."""
        return (str(self.tools.cmake.path), "--install", str(stage.build))

    def list_commands(self) -> list[tuple[str, ...]]:
        """Return the commands of all stages, in the order in which a build runs them."""
        commands: list[tuple[str, ...]] = []
        for stage in self.stages:
            commands += [self.configure_command(stage), self.compile_command(stage)]
            if stage.install:
                commands.append(self.install_command(stage))
        return commands

    @property
    def aliases(self) -> dict[str, str]:
        """The names that replace directories in object files, each with the directory that it
        stands for."""
        return {alias: path for path, alias in name_directories(self.place, self.values).items()}

    @property
    def settings_digest(self) -> str:
        """The SHA-256 of the build's options, tools, flags and target, but not of the files that it
        reads. If it changes, everything is rebuilt."""
        rows = [
            [[stage.defines, stage.targets] for stage in self.stages],
            dict(self.identity),
            [self.environment[name] for name in DIGESTED_VARIABLES],
            msgspec.to_builtins(self.target),
        ]
        return hashlib.sha256(msgspec.json.encode(rows, order="sorted")).hexdigest()


@dataclass(frozen=True)
class Kit:
    """The tools of this machine: programs, compilers by toolchain, and values for placeholders.

    A value whose name ends in _version or _arch is part of the build's identity. A value whose name
    ends in _root is a directory whose path must not appear in object files. ``exported`` are
    variables that a project's CMake files read, such as HEXAGON_SDK_ROOT.
    """

    tools: Tools
    compilers: Mapping[CompilerChoice, Compilers]
    values: Mapping[str, str]
    exported: Mapping[str, str] = field(default_factory=dict)


def make_plan(
    target: Target, request: BuildRequest, source: Path, place: Place, kit: Kit
) -> BuildPlan:
    """Return the plan of ``target``. Raises ManifestError for a placeholder without a value."""
    overlay, tools = place.tree / target.tree_name, kit.tools
    values, compilers = dict(kit.values), dict[str, str]()
    for kind, compiler in kit.compilers.items():
        values.update(compiler.values)
        compilers |= {f"{kind.value} {name}": text for name, text in compiler.identity.items()}
    values |= {
        "policy": fill_placeholders(target.policy, values),
        "tree": str(overlay),
        "prefix": str(place.prefix),
        "stages": str(place.stages),
        "stand_ins": str(STAND_INS),
    }
    base = {
        "CMAKE_MAKE_PROGRAM": str(tools.ninja.path),
        # Always set: ExecuTorch's default is Debug.
        "CMAKE_BUILD_TYPE": "Release" if request.release else target.build_type,
        "CMAKE_INSTALL_PREFIX": str(place.prefix),
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        "CMAKE_COLOR_DIAGNOSTICS": "OFF",
        # Absolute paths in RUNPATH would name this machine's directories.
        "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",
        # For nested projects, too, which do not see the cache of this one.
        "CMAKE_PROJECT_INCLUDE": str(STAND_INS / "every_project.cmake"),
    }
    stages = []
    for stage in target.stages:
        chosen = kit.compilers[stage.toolchain or target.toolchain].options
        stages.append(_plan_stage(stage, {**chosen, **base}, request, values))
    versions = {
        name: text for name, text in kit.values.items() if name.endswith(("_version", "_arch"))
    }
    programs = {"cmake": str(tools.cmake.version), "ninja": str(tools.ninja.version)}
    jobs = request.jobs or os.cpu_count() or 1
    environment = _make_environment(kit, place, values)
    return BuildPlan(
        target,
        place,
        source,
        overlay,
        tuple(stages),
        tools,
        jobs,
        {**environment, "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)},
        {**compilers, **programs, **versions},
        values,
        frozenset(request.named),
    )


def name_directories(place: Place, values: Mapping[str, str]) -> dict[str, str]:
    """Map the directories that a build reads to the names that replace them in object files."""
    rows = {str(place.root): "/build"}
    rows.update({values[name]: f"/{name}" for name in sorted(values) if name.endswith("_root")})
    return rows


def _plan_stage(
    stage: Stage, base: Mapping[str, str], request: BuildRequest, values: Mapping[str, str]
) -> StagePlan:
    stage_options, targets = dict(stage.options), stage.targets
    for extra in sorted(request.extras):
        stage_options.update(stage.extra_options.get(extra, {}))
        targets += stage.extra_targets.get(extra, ())
    options = dict(base)
    for name, value in stage_options.items():
        if isinstance(value, bool):
            options[name] = "ON" if value else "OFF"
        else:
            options[name] = fill_placeholders(value, values)
    # Last, so that the user's options take precedence.
    options |= request.defines
    return StagePlan(
        stage.name,
        os.path.normpath(Path(values["tree"]) / stage.source),
        Path(values["stages"]) / stage.name,
        tuple(f"-D{name}={value}" for name, value in options.items()),
        targets,
        stage.if_present,
        stage.install,
    )


def _make_environment(kit: Kit, place: Place, values: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the tools, without the user's CFLAGS or LD_LIBRARY_PATH.

    Flags are passed as environment variables because CMAKE_CXX_FLAGS would replace the flags of a
    toolchain file. (If a toolchain file ignores the variables, every_project.cmake adds the flags.)
    Nested projects that are built for this machine also get these variables.
    """
    rows = name_directories(place, values).items()  # paths to keep out of the objects
    flags = script_words(f"-ffile-prefix-map={path}={alias}" for path, alias in rows)
    tools = kit.tools
    user_variables = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }
    launcher = {"CCACHE_DISABLE": "1"}  # ExecuTorch's CMake would find ccache by itself
    if tools.cache:
        launcher = dict.fromkeys(LAUNCHERS, str(tools.cache.path))
    # Nested projects find these programs by their names.
    parents = dict.fromkeys((str(tools.cmake.path.parent), str(tools.ninja.path.parent)))
    return {
        **user_variables,
        **kit.exported,
        "PATH": os.pathsep.join([*parents, user_variables.get("PATH", os.defpath)]),
        # The errors of compilers are recognized by their English words.
        "LC_ALL": "C.UTF-8",
        **launcher,
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        # A constant, so that equal sources result in equal bytes.
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", EPOCH),
        "NINJA_STATUS": "[%f/%t] ",
        "CCACHE_BASEDIR": "",  # otherwise ccache writes relative paths into objects
        "CCACHE_STATSLOG": str(place.cache_log),
    }


@dataclass(frozen=True)
class BuildJob:
    """A planned build and its context.

    ``inputs`` are directories that the build reads besides the plan's source. ``skip`` are the
    parts of the source that it does not read. ``variables`` are environment variables for programs
    that use the artifacts. ``check`` is called before the build and raises UnfitError if the
    environment is unfit.
    """

    plan: BuildPlan
    request: BuildRequest
    inputs: Mapping[str, Path]
    skip: frozenset[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[], None] = field(default=lambda: None)
