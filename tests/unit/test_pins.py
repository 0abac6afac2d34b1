"""The pins of pyproject.toml install on every Python that the project names."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import nox.project
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PINS = {
    requirement.name: requirement
    for group in PROJECT["dependency-groups"]
    for requirement in map(Requirement, nox.project.dependency_groups(PROJECT, group))
}


def refused_pythons(pin: Requirement, needed: str) -> list[str]:
    """The Pythons for which ``pin`` holds and that its own Requires-Python leaves out."""
    environments = [
        python
        for python in PYTHONS
        if not pin.marker
        or pin.marker.evaluate({"python_version": python, "python_full_version": f"{python}.0"})
    ]
    return [python for python in environments if not SpecifierSet(needed).contains(f"{python}.99")]


@pytest.mark.parametrize("name", sorted(PINS))
def test_a_pin_installs_on_every_python(name: str) -> None:
    try:
        installed = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        pytest.skip("another session installs it")
    if not PINS[name].specifier.contains(installed["Version"]):
        pytest.skip(f"{installed['Version']} is installed here")
    assert refused_pythons(PINS[name], installed.get("Requires-Python", "")) == []


def test_a_pin_that_leaves_a_python_out_is_found() -> None:
    assert refused_pythons(Requirement("filelock==4.2.11"), ">=3.11") == ["3.10"]
    assert refused_pythons(Requirement("a==1; python_version < '3.11'"), "<3.12") == []


def test_the_tested_pythons_are_those_that_the_project_supports() -> None:
    supported = SpecifierSet(PROJECT["project"]["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if supported.contains(f"3.{minor}.1")] == [*PYTHONS]


@pytest.mark.parametrize("name", ["torch", "executorch"])
def test_the_doctor_asks_for_the_pair_that_is_installed(name: str) -> None:
    pairs = nox.project.load_toml(ROOT / "manifests" / "pairs.toml")
    row = next(pair for pair in pairs["supported"] if pair["executorch"] == pairs["default"])
    assert str(PINS[name].specifier) == f"=={row[name]}"


def test_every_requirement_has_a_pin_that_fits_it() -> None:
    for requirement in map(Requirement, PROJECT["project"]["dependencies"]):
        (pin,) = PINS[requirement.name].specifier
        assert requirement.specifier.contains(pin.version)


@pytest.mark.parametrize("name", PROJECT["project"]["optional-dependencies"])
def test_each_extra_has_the_requirements_of_its_dependency_group(name: str) -> None:
    """Where a group includes core, which is in the dependencies, its extra includes the extra
    ``build``."""
    extra = PROJECT["project"]["optional-dependencies"][name]
    group = [
        requirement
        for requirement in PROJECT["dependency-groups"][name]
        if isinstance(requirement, str)
    ]
    assert [
        requirement for requirement in extra if not requirement.startswith("executorch-qnn-ci[")
    ] == group
    included = [
        included_group
        for included_group in PROJECT["dependency-groups"][name]
        if isinstance(included_group, dict)
    ]
    groups = [
        included_group["include-group"].replace("core", "build") for included_group in included
    ]
    extras = [requirement for requirement in extra if requirement.startswith("executorch-qnn-ci[")]
    assert extras == [f"executorch-qnn-ci[{group}]" for group in groups]


def test_the_pinned_nox_is_that_of_the_nox_script() -> None:
    script = (ROOT / "nox").read_text(encoding="utf-8")
    (version,) = re.findall(r"(?m)^NOX_VERSION=(\S+)$", script)
    assert str(PINS["nox"].specifier) == f"=={version}"
