"""Packages that another environment of this checkout has, as hard links to its files: these take no
space, and a second environment with torch takes a second instead of a minute.

The versions and the conditions of requirements are compared by packaging, which nox depends on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import Distribution, PackagePath, distributions
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def link_packages(
    environment: Path, requirements: Sequence[str], environments: Iterable[Path]
) -> list[str]:
    """Link the wanted packages, and what they depend on, from other environments. Return the names
    of those that none of them has."""
    missing = [Requirement(text).name for text in requirements]
    environments = list(environments)
    for site in environment.glob("lib/python*/site-packages"):
        for source in environments:
            installed = list_installed(site)
            available = list_installed(source / site.relative_to(environment))
            for name, package in resolve(requirements, {**available, **installed}).items():
                if package and name not in installed:
                    link_files(package, site)
        resolved = resolve(requirements, list_installed(site))
        missing = [name for name, package in resolved.items() if package is None]
    return missing


def list_installed(site: Path) -> dict[str, Distribution]:
    """Return the packages in a site-packages by name."""
    return {canonicalize_name(package.name): package for package in distributions(path=[str(site)])}


def resolve(
    requirements: Sequence[str], packages: dict[str, Distribution]
) -> dict[str, Distribution | None]:
    """Return the packages that are wanted, and those that they depend on, by name: None if there is
    none of the required version."""
    resolved: dict[str, Distribution | None] = {}
    waiting = [(Requirement(text), "") for text in requirements]
    visited = set()
    while waiting:
        need, extra = waiting.pop()
        if (str(need), extra) in visited or not applies(need, extra):
            continue
        visited.add((str(need), extra))
        name = canonicalize_name(need.name)
        package = packages.get(name)
        if package is None or not need.specifier.contains(package.version, prereleases=True):
            resolved[name] = None
        elif resolved.setdefault(name, package):
            for text in package.requires or ():
                waiting.append((Requirement(text), ""))
                waiting.extend((Requirement(text), named) for named in need.extras)
    return resolved


def applies(need: Requirement, extra: str) -> bool:
    """Return whether a package that was asked for with ``extra`` has a requirement here."""
    return not need.marker or need.marker.evaluate({"extra": extra})


def link_files(package: Distribution, site: Path) -> None:
    """Link a package's files and what was compiled of them, unless a file was changed, cannot be
    linked or is outside of the environment. Scripts are copied, because they contain the path of
    their environment."""
    old_site = Path(str(package.locate_file("")))
    old, new = old_site.parents[2], site.parents[2]
    files = [str(file) for file in package.files or ()]
    compiled = [cache_from_source(name) for name in files if name.endswith(".py")]
    names = dict.fromkeys([*files, *(name for name in compiled if (old_site / name).exists())])
    targets = [Path(os.path.normpath(site / name)) for name in names]
    with suppress(OSError):
        # A package's RECORD may list files outside of its environment: these are neither linked nor
        # removed.
        if any(new not in target.parents for target in targets):
            return
        records = [old_site / name for name in files if name.endswith(".dist-info/RECORD")]
        installed_at = max((record.stat().st_mtime for record in records), default=0.0)
        # A link to a file that was edited in place would take the edit into this environment.
        if any(is_changed(file, old_site, installed_at) for file in package.files or ()):
            return
        # A package whose dist-info is there counts as installed.
        for name in sorted(names, key=lambda name: ".dist-info" in name):
            source, target = old_site / name, site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            if name.startswith("..") and source.read_bytes()[:2] == b"#!":
                target.write_bytes(
                    source.read_bytes().replace(os.fsencode(old), os.fsencode(new), 1)
                )
                shutil.copymode(source, target)
            else:
                target.hardlink_to(source)


def is_changed(file: PackagePath, site: Path, installed_at: float) -> bool:
    """Return whether a file has another size than when it was installed, or was written after
    ``installed_at`` (s)."""
    if file.parts[0] == ".." or file.suffix == ".pyc":  # written for this environment
        return False
    state = (site / file).stat()
    return file.size not in {None, state.st_size} or state.st_mtime > installed_at
