"""What a build leaves: found, checked, and published in one step or not at all."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.build.inputs import hash_file
from ci.build.overlay import explain_full_disk
from ci.build.plan import Plan
from ci.build.targets import Artifact
from provisioning.elf import read_elf
from provisioning.elf_facts import ElfFacts
from provisioning.errors import FailedError

ELF_MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class Found:
    """A file that a build left, and the row of the target that asked for it."""

    row: Artifact
    path: Path


def find_artifacts(plan: Plan, extras: frozenset[str]) -> tuple[Found, ...]:
    """Every file that the target promises. Raises FailedError that names what is not there."""
    found: list[Found] = []
    for row in plan.target.artifacts:
        if row.optional and row.optional not in extras:
            continue
        paths = sorted(path for path in plan.place.root.glob(row.path) if path.is_file())
        if not paths:
            raise FailedError(
                f"{plan.target.name}: the build ended well and left no {row.path}",
                todo=f"look at {plan.place.log}, or correct the target in manifests/targets.toml",
            )
        found += [Found(row, path) for path in paths]
    return tuple(found)


def stage_artifacts(plan: Plan, found: tuple[Found, ...]) -> Path:
    """Copy the files into a new directory beside the published one."""
    fresh = plan.place.root / "artifacts.new"
    shutil.rmtree(fresh, ignore_errors=True)
    with explain_full_disk(fresh):
        fresh.mkdir()
        for one in found:
            shutil.copy2(one.path, fresh / one.path.name)
    return fresh


def publish_artifacts(plan: Plan, fresh: Path) -> None:
    """Put the new directory in the place of the old one."""
    old = plan.place.root / "artifacts.old"
    shutil.rmtree(old, ignore_errors=True)
    if plan.place.artifacts.exists():
        plan.place.artifacts.rename(old)
    fresh.rename(plan.place.artifacts)
    shutil.rmtree(old, ignore_errors=True)


def describe_artifact(path: Path) -> dict[str, Any]:
    """A row of artifacts.json: name, size in bytes, SHA-256 and what the ELF file says."""
    with path.open("rb") as stream:
        is_elf = stream.read(len(ELF_MAGIC)) == ELF_MAGIC
    return {
        "name": path.name,
        "path": os.fspath(path),
        "size_bytes": path.stat().st_size,
        "sha256": hash_file(path),
        "elf": describe_elf(read_elf(path)) if is_elf else None,
    }


def describe_elf(facts: ElfFacts) -> dict[str, Any]:
    """The facts of an ELF file that say where it can run."""
    android = facts.android
    floor = facts.highest_need("GLIBC")
    return {
        "machine": facts.machine_name,
        "soname": facts.soname,
        "needed": list(facts.needed),
        "runpath": list(facts.runpath),
        "rpath": list(facts.rpath),
        "build_id": facts.build_id,
        "glibc_floor": ".".join(map(str, floor)) if floor else None,
        "android": android._asdict() if android else None,
        "load_align": facts.load_align,
    }
