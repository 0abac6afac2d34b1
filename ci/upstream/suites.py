"""Upstream's three test suites: where their tests are in the installed wheel, and their names.

The wheel of ExecuTorch 1.5.1 contains all three. Their test files import packages that most tests
never use. Stubs of these packages exist only in the memory of one process. If a test calls an
object of such a package, it fails with a MissingPackageError that names the package.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from ci.executorch.toolchain import list_places
from ci.models.schemes import Scheme
from ci.models.suite import DEFAULT_SOC
from provisioning.errors import UnfitError

# The flow of a test of backends/test/suite, in its name.
NAMED = re.compile(r"\[qnn_(\d+a\d+w(?:_block)?)\b")
SUITE = "QNN_CI_SUITE"  # the environment variable that names the suite for the plugin
QUALCOMM = "backends/qualcomm/tests"


@dataclass(frozen=True)
class Suite:
    """A suite. ``places`` are files or directories in the executorch package. ``names`` are globs;
    only tests with a name that matches one of them belong to the suite. The tests run for ``soc``
    unless the user selects another SoC. If ``fixed_soc`` is true, the suite itself sets the SoC,
    and the user cannot select another."""

    name: str
    places: tuple[str, ...]
    names: tuple[str, ...] = ("*",)
    soc: str = DEFAULT_SOC
    fixed_soc: bool = False

    def includes(self, test: str) -> bool:
        """Return whether a test of ``places`` belongs to the suite."""
        return any(fnmatchcase(test, glob) for glob in self.names)


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("upstream", (f"{QUALCOMM}/test_qnn_delegate.py",)),
        # Its tests are for V68. tests/rework/htp/conftest.py sets this SoC.
        Suite("upstream-rework", (f"{QUALCOMM}/rework",), soc="SM8350", fixed_soc=True),
        # QualcommTester's default is this SoC, and no flow changes it.
        Suite(
            "backend-suite",
            ("backends/test/suite/operators",),
            ("*[[]qnn*",),
            soc="SM8650",
            fixed_soc=True,
        ),
    )
}


def find_named_scheme(test: str) -> Scheme | None:
    """Return the scheme in the name of a test of backends/test/suite, such as 16a8w of
    ``test_add_f32_alpha[qnn_16a8w]``, or None if there is none."""
    match = NAMED.search(test)
    return Scheme(match[1]) if match and match[1] in {scheme.value for scheme in Scheme} else None


def count_file(results: Path) -> Path:
    """Return the file next to the file of results in which the plugin writes how many tests were
    chosen."""
    return results.with_suffix(".count")


def step_file(results: Path) -> Path:
    """Return the file next to the file of results in which the plugin writes what it does now."""
    return results.with_suffix(".step")


def find_executorch() -> Path:
    """Return the directory of the installed executorch package. Raises UnfitError if it is not
    installed."""
    places = list_places()
    if not places:
        raise UnfitError("this Python has no executorch", fix="pip install executorch")
    return Path(places[0])


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
        # Python asks for such names itself, and takes an answer for a feature of the object.
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
        """Return a spec for a module of a package in ``missing``, otherwise None."""
        if name.partition(".")[0] not in self.missing:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return a stub, which the import then puts into sys.modules."""
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stub has no code."""


def install_stubs() -> tuple[str, ...]:
    """Make the PACKAGES that are not installed importable as stubs, and return their names."""
    missing = tuple(name for name in PACKAGES if importlib.util.find_spec(name) is None)
    sys.meta_path.append(StubFinder(missing))
    return missing
