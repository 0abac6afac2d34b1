"""The locks in manifests/locks/python: each package of an environment with its version and hashes.

A lock is a file of requirements that pip and uv read, for all supported versions of Python. torch
and the CUDA packages that only some of its builds need are in a lock per version of torch. The verb
``update locks`` writes the locks.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "manifests" / "locks" / "python"
BOOTSTRAP = LOCKS / "bootstrap.txt"  # nox and uv, which ./nox installs
WITH_TORCH = ("lowering", "onnx-torch", "litert-torch", "test", "test-litert")
# Groups that are useful only on machines that can run QNN's host libraries.
LARGE = (*WITH_TORCH, "onnx", "litert")
# The groups that environments are made of; the others are parts of these. ./nox runs in bootstrap.
GROUPS = ("bootstrap", "core", "device", "lint", "release", "unit", *LARGE)
LINUX = {"platform_machine": "x86_64", "platform_system": "Linux", "sys_platform": "linux"}
CUDA = re.compile(r"(nvidia|cuda|triton)(-|$)")


@dataclass(frozen=True)
class Lock:
    """The lock of a dependency group, for the default ExecuTorch or, if ``executorch`` is not
    empty, for that version. It need not exist."""

    group: str
    executorch: str = ""

    @property
    def name(self) -> str:
        """Return the name of the lock and of its environment."""
        return f"{self.group}-{self.executorch}" if self.executorch else self.group

    @property
    def path(self) -> Path:
        """Return the file without torch."""
        return LOCKS / f"{self.name}.txt"

    @property
    def torch(self) -> str:
        """Return the version of torch, or "" for a group without torch."""
        versions, default = read_pairs()
        return versions[self.executorch or default] if self.group in WITH_TORCH else ""

    @property
    def builds(self) -> Path:
        """Return the file with the known builds of this version of torch."""
        return LOCKS / f"torch-{self.torch}.txt"

    @property
    def cuda(self) -> Path:
        """Return the file with what only CUDA builds of this version of torch need."""
        return LOCKS / f"torch-{self.torch}-cuda.txt"

    def files(self) -> list[Path]:
        """Return all files of the lock."""
        return [self.path, *([self.builds, self.cuda] if self.torch else [])]

    def digest(self) -> str:
        """Return a digest of the files and of the version of the running Python. Raises OSError if
        a file is missing."""
        parts = [f"python{sys.version_info.major}.{sys.version_info.minor}\n".encode()]
        parts += [path.read_bytes() for path in self.files()]
        return hashlib.sha256(b"".join(parts)).hexdigest()


def list_pins(path: Path, python: str = "") -> Iterator[tuple[Requirement, str]]:
    """Yield the packages of a lock that Linux on x86-64 with this version of Python needs, such as
    3.12, by default those that the running Python needs. With each is its line."""
    target = {"python_version": python, "python_full_version": f"{python}.1", **LINUX}
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line.partition(" --hash")[0])
            if pin.marker is None or pin.marker.evaluate(target if python else None):
                yield pin, line


def read_toml(path: Path) -> Any:
    """Return the content of one of this project's TOML files."""
    return tomllib.loads(path.read_text("utf-8"))


@cache
def read_pairs() -> tuple[dict[str, str], str]:
    """Return the torch version for each supported ExecuTorch, and the default ExecuTorch."""
    pairs = read_toml(ROOT / "manifests" / "pairs.toml")
    # The first row of a version counts.
    torch_versions = {row["executorch"]: row["torch"] for row in reversed(pairs["supported"])}
    return torch_versions, pairs["default"]
