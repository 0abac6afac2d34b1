"""``update``: show as a diff what would change if another version of an artifact, or other versions
of Python packages (``locks``), were pinned; --write pins them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

from ci.packages.locks import CUDA, LARGE
from ci.packages.pip_settings import SettingsError, read_settings
from ci.packages.requirements import list_locks, list_requirements, read_project
from ci.packages.uv import find_uv, translate
from provisioning.artifacts.pins import Change
from provisioning.console.command import Outcome
from provisioning.console.process import run_streams
from provisioning.console.progress import Progress
from provisioning.documents import decoding, read_text
from provisioning.errors import DownloadError, UnfitError, UsageError
from provisioning.verbs import update
from provisioning.verbs.lock import conclude

LOCKS_WORD = "locks"
OLDEST_PYTHON = "3.10"
# A build of torch has a local version, such as +cpu, only on PyTorch's own index.
CPU_BACKEND = ("--torch-backend", "cpu")


@dataclass(frozen=True)
class Target:
    """A version of Python on a system, for which a lock has packages."""

    python: tuple[int, int]
    system: str
    machine: str

    def applies(self, marker: str) -> bool:
        """Return whether a package with this marker is installed on the target."""
        version = f"{self.python[0]}.{self.python[1]}"
        variables = {
            "extra": "",
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": self.system,
            "python_full_version": f"{version}.1",
            "python_version": version,
            "sys_platform": self.system.lower(),
        }
        return not marker or Marker(marker).evaluate(variables)

    def tags(self) -> Iterator[Tag]:
        """Yield the tags of the wheels that the target can install."""
        if self.system == "Darwin":
            platforms = list(mac_platforms((26, 0), self.machine))
        else:
            platforms = [f"manylinux_2_{glibc}_{self.machine}" for glibc in range(45, 4, -1)]
            platforms += [f"manylinux{year}_{self.machine}" for year in ("2014", "2010", "1")]
            platforms.append(f"linux_{self.machine}")
        yield from cpython_tags(self.python, platforms=platforms)
        yield from compatible_tags(self.python, f"cp3{self.python[1]}", platforms)


def list_targets(*, large: bool) -> list[Target]:
    """Return the targets of a lock. ``large`` groups are only for Linux on x86-64."""
    supported = SpecifierSet(read_project()["project"]["requires-python"])
    pythons = [(3, minor) for minor in range(30) if supported.contains(f"3.{minor}.1")]
    systems = [("Linux", "x86_64")]
    if not large:
        systems += [("Linux", "aarch64"), ("Darwin", "arm64"), ("Darwin", "x86_64")]
    return [Target(python, *system) for python in pythons for system in systems]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``update``."""
    update.add_arguments(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return what would change if other versions were pinned, and pin them with --write. Raises
    UsageError for locks together with artifacts."""
    if LOCKS_WORD not in args.names:
        return update.execute(args, progress)
    if len(args.names) > 1:
        fix = f"run `update {LOCKS_WORD}` by itself"
        raise UsageError(f"{LOCKS_WORD} cannot be updated together with artifacts", fix=fix)
    plans = {
        change.path.name: [change] if change.before != change.after else []
        for change in plan_locks(args.cooldown, progress)
    }
    return conclude(plans, write=args.write)


def plan_locks(cooldown_days: int, progress: Progress) -> Iterator[Change]:
    """Yield how each lock changes if all packages that pyproject.toml does not pin get their newest
    versions that are older than ``cooldown_days``.

    Raises UnfitError outside of a checkout, and DownloadError if uv fails.
    """
    resolver = Resolver(cooldown_days)
    locks = list_locks()
    for lock in locks:
        progress.step(f"resolving {lock.name}")
        targets = list_targets(large=lock.group in LARGE)
        requirements = list_requirements(lock)
        packages = resolver.resolve(requirements)
        pins = [row for row in packages if row["name"] != "torch" and not CUDA.match(row["name"])]
        yield describe(lock.path, requirements, write_pins(pins, targets))
    for lock in {lock.torch: lock for lock in locks if lock.torch}.values():
        progress.step(f"resolving torch {lock.torch}")
        torch, targets = f"torch=={lock.torch}", list_targets(large=True)
        packages = resolver.resolve([torch])
        cuda = [row for row in packages if CUDA.match(row["name"])]
        builds = [row for row in packages if row["name"] == "torch"]
        yield describe(lock.cuda, [torch], write_pins(cuda, targets))
        try:
            builds += resolver.resolve([torch], "--no-deps", *CPU_BACKEND)
            lines = [*write_pins(builds, targets)]
        except DownloadError:
            progress.step("note: PyTorch's index cannot be read; the hashes of its builds are kept")
            lines = [*write_pins(builds, targets), *list_local(lock.builds)]
        yield describe(lock.builds, [torch], lines)


class Resolver:
    """The pinned uv, which resolves packages on the default index of pip's settings."""

    def __init__(self, cooldown_days: int) -> None:
        uv = find_uv()
        if uv is None:
            why = "the pinned uv is neither in the environment of ./nox nor on PATH"
            fix = "run this verb by ./nox in a checkout, or put that version of uv on PATH"
            raise UnfitError("locks cannot be written", why=why, fix=fix)
        # Additional indexes and folders have only some of the files of a package.
        hidden = {"UV_INDEX", "UV_FIND_LINKS"}
        try:
            env = translate(read_settings(os.environ), os.environ)
        except SettingsError as error:
            fix = "correct that file (pip config debug lists all of them)"
            raise UnfitError("locks cannot be written", why=str(error), fix=fix) from error
        self.env = {name: value for name, value in env.items() if name not in hidden}
        self.command = [uv, "pip", "compile", "-", "--quiet", "--universal", "--no-header"]
        self.command += ["--python-version", OLDEST_PYTHON, "--format", "pylock.toml"]
        if cooldown_days:
            newest = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=cooldown_days)
            self.command += ["--exclude-newer", newest.strftime("%Y-%m-%dT%H:%M:%SZ")]

    def resolve(self, requirements: Iterable[str], *options: str) -> list[dict[str, Any]]:
        """Return the packages of uv's pylock.toml for the requirements and what they depend on.
        Raises DownloadError."""
        data = "\n".join(requirements).encode()
        ended = run_streams([*self.command, *options], data=data, env=self.env)
        if not ended.is_good:
            fix = "check pip's index, proxy and certificates (pip config list)"
            raise DownloadError("uv could not resolve packages", why=ended.tail, fix=fix)
        with decoding():
            packages: list[dict[str, Any]] = msgspec.toml.decode(ended.stdout)["packages"]
        return packages


def write_pins(packages: Iterable[Mapping[str, Any]], targets: list[Target]) -> Iterator[str]:
    """Yield the line of each package that a target needs, with the hashes of those of its files
    that a target can install."""
    for package in packages:
        marker = package.get("marker", "")
        needing = [target for target in targets if target.applies(marker)]
        hashes = {*list_hashes(package, needing)}
        if needing:
            condition = f" ; {marker}" if len(needing) < len(targets) else ""
            words = " ".join(f"--hash=sha256:{digest}" for digest in sorted(hashes))
            yield f"{package['name']}=={package['version']}{condition} {words}"


def list_hashes(package: Mapping[str, Any], targets: Iterable[Target]) -> Iterator[str]:
    """Yield the SHA-256 of each wheel for the targets, and of the source archive if a target has no
    wheel."""
    wheels = {}
    for wheel in package.get("wheels", ()):
        name = unquote(Path(urlsplit(wheel["url"]).path).name)
        wheels[wheel["hashes"]["sha256"]] = parse_wheel_filename(name)[3]
    for target in targets:
        supported = {*target.tags()}
        fitting = [digest for digest, tags in wheels.items() if not supported.isdisjoint(tags)]
        yield from fitting
        if not fitting and "sdist" in package:
            yield package["sdist"]["hashes"]["sha256"]


def describe(path: Path, requirements: Iterable[str], lines: Iterable[str]) -> Change:
    """Return the change of a lock to these lines."""
    head = f"# Written by `update locks`. inputs: {digest_inputs(requirements)}"
    before = read_text(path) if path.is_file() else ""
    return Change(path, before, "".join(f"{line}\n" for line in [head, *sorted(lines)]))


def digest_inputs(requirements: Iterable[str]) -> str:
    """Return the digest of the requirements that a lock was resolved from."""
    pythons = read_project()["project"]["requires-python"]
    text = "\n".join([pythons, *sorted({*requirements})])
    return hashlib.sha256(text.encode()).hexdigest()


def list_local(path: Path) -> list[str]:
    """Return the lines of a lock, which need not exist, for builds with a local version."""
    lines = read_text(path).splitlines() if path.is_file() else []
    return [line for line in lines if "+" in line.partition(" ")[0]]
