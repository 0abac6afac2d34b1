"""The only reader of manifests/: TOML decoded strictly into frozen values.

An unknown key, a missing key or a value of another type is a ManifestError that names the
file and the place in it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from provisioning.errors import ManifestError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


def manifests_root() -> Path:
    """The manifests/ of the checkout, or the copy inside the installed package."""
    package = Path(__file__).resolve().parent
    packaged = package / "manifests"
    return packaged if packaged.is_dir() else package.parent / "manifests"


def read_toml(relative: str, kind: type[T], root: Path | None = None) -> T:
    """Decode manifests/``relative`` into ``kind``, a msgspec.Struct.

    Raises ManifestError.
    """
    path = (root or manifests_root()) / relative
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(raw, kind, strict=True)
    except OSError as error:
        raise ManifestError(f"cannot read manifest {relative}", why=str(error)) from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ManifestError(
            f"manifest {relative} does not fit its schema",
            why=str(error),
            todo=f"correct {path}; docs/manifests.md describes every key",
        ) from error


def read_policy(name: str, kind: type[T], root: Path | None = None) -> T:
    """Decode manifests/policies/``name``.toml into ``kind``. Raises ManifestError."""
    return read_toml(f"policies/{name}.toml", kind, root)
