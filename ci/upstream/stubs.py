"""Stubs of packages that upstream's test files import but most tests never use.

The stubs exist only in the memory of one process. If a test calls an object of such a package, it
fails with a MissingPackageError that names the package.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Packages that upstream's test files or their imports need, but that are not dependencies of the
# wheel.
PACKAGES = (
    "accelerate",
    "datasets",
    "graphviz",
    "lm_eval",
    "pydot",
    "pytest_subtests",
    "pytorch_lightning",
    "scipy",
    "soundfile",
    "timm",
    "torchaudio",
    "torchsr",
    "torchtune",
    "torchvision",
    "transformers",
)


class MissingPackageError(ImportError):
    """Raised if a test calls an object of a package that is not installed."""


class _Stub(type):
    """The type of stubs. A stub is a class that replaces any object of a missing package. Its
    attributes are stubs as well, and calling it raises MissingPackageError."""

    stands_for: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stub(f"{cls.__module__}.{cls.__qualname__}", name)

    def __call__(cls, *_words: Any, **_options: Any) -> Any:
        package = cls.stands_for
        raise MissingPackageError(f"needs the package {package}", name=package)


def make_stub(module: str, name: str) -> Any:
    """Return the stub for the object ``name`` in ``module``."""
    return _Stub(name, (), {"__module__": module, "stands_for": module.partition(".")[0]})


class StubModule(ModuleType):
    """A stub of a module in a missing package. Every attribute is a stub, except those whose names
    start with two underscores."""

    __path__: list[str] = []  # noqa: RUF012 - what makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stub(self.__name__, name)


class StubFinder:
    """An import finder that provides stubs of the packages in ``missing``. It must come after all
    other finders in sys.meta_path."""

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = frozenset(missing)

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.missing:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stub has no code."""


def install_stubs() -> tuple[str, ...]:
    """Make the PACKAGES that are not installed importable as stubs, and return their names."""
    missing = tuple(name for name in PACKAGES if importlib.util.find_spec(name) is None)
    sys.meta_path.append(StubFinder(missing))
    return missing
