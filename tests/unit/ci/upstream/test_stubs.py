"""Packages that are not installed can be imported, and name themselves when they are used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from ci.upstream import suites as stubs


@pytest.fixture(autouse=True)
def _stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stubs, "PACKAGES", ("missing_one", "json", "missing_three"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = {*sys.modules}
    assert stubs.install_stubs() == ("missing_one", "missing_three")
    yield
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_every_module_and_name_of_a_missing_package_is_stubbed() -> None:
    module = importlib.import_module("missing_one.deep.er")
    assert issubclass(type("Own", (module.Model,), {}), object)
    assert not isinstance(3, module.Model)
    for stub in (module, module.Model):  # Python probes such names
        assert not hasattr(stub, "__wrapped__")
        assert not hasattr(stub, "__version__")


def test_calling_a_stub_names_the_missing_package() -> None:
    module = importlib.import_module("missing_one.models")
    for call in (module.make, module.weights.Best.DEFAULT, type("Own", (module.Model,), {})):
        with pytest.raises(stubs.MissingPackageError, match="needs the package missing_one"):
            call()


def test_stubs_of_missing_packages_leave_other_packages_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("missing_two")
    assert importlib.import_module("json").loads("1") == 1
    assert importlib.import_module("json.tool").__file__, "not a stub, though it is imported later"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("json.missing")
