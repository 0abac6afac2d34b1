"""Stand-ins for packages that upstream's test files import, although most tests never use them.

They exist only in the modules of one process. A test that does use one fails with
MissingPackageError, which names the package.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Imported at the top of upstream's test files or of what these import, and no dependency of the
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
NEEDS = "needs the package "
LACKS = "this runner has no "  # our runner's message about an unknown flag starts with this


class MissingPackageError(ImportError):
    """A test used a package that is not installed."""


class _Stub(type):
    """A class for anything in a missing package; a call raises MissingPackageError."""

    stands_for: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stub(f"{cls.__module__}.{cls.__qualname__}", name)

    def __call__(cls, *_words: Any, **_options: Any) -> Any:
        package = cls.stands_for
        raise MissingPackageError(f"{NEEDS}{package}", name=package)


def make_stub(module: str, name: str) -> Any:
    """Return the stub for ``module.name``."""
    return _Stub(name, (), {"__module__": module, "stands_for": module.partition(".")[0]})


class StubModule(ModuleType):
    """A module of a missing package: it has every name."""

    __path__: list[str] = []  # noqa: RUF012 - what makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stub(self.__name__, name)


class StubFinder:
    """Finds the missing packages, after all real ones."""

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
    """Make missing packages importable as stubs, and return their names."""
    missing = tuple(name for name in PACKAGES if importlib.util.find_spec(name) is None)
    sys.meta_path.append(StubFinder(missing))
    return missing
