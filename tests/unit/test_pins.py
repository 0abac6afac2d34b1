"""The pins of pyproject.toml install on every Python that the project names."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import nox.project
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ci.packages.locks import GROUPS, LOCKS, WITH_TORCH, Lock
from ci.packages.requirements import list_locks, list_requirements
from ci.verbs.update import digest_inputs

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


def test_a_lock_pins_torch_exactly_if_its_group_needs_it() -> None:
    for group in GROUPS[1:]:
        requirements = list_requirements(Lock(group))
        assert (f"torch=={Lock(group).torch}" in requirements) is (group in WITH_TORCH)
        assert any(row.startswith("torch=") for row in requirements) is (group in WITH_TORCH)


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


# -- locks -----------------------------------------------------------------------------------------

LOCK = re.compile(r"[a-z0-9.-]+==\S+( ; [^;]+?)?( --hash=sha256:[0-9a-f]{64})+")


def find_gaps(lock: Lock, path: Path) -> list[str]:
    """Return how a lock in ``path`` differs from pyproject.toml: requirements that it lacks."""
    lines = path.read_text("utf-8").splitlines()
    locked = {line.partition(" --hash")[0] for line in lines[1:]}
    versions = {canonicalize_name(pin.partition("==")[0]): pin.split()[0] for pin in locked}
    gaps = [] if lines[0].endswith(digest_inputs(list_requirements(lock))) else ["inputs"]
    for need in map(Requirement, list_requirements(lock)):
        name = canonicalize_name(need.name)
        if name != "torch":
            version = versions.get(name, "==").partition("==")[2]
            if not version or not need.specifier.contains(version):
                gaps.append(str(need))
    return gaps


@pytest.mark.parametrize("lock", list_locks(), ids=lambda lock: lock.name)
def test_each_lock_has_what_its_group_requires(lock: Lock) -> None:
    """If this fails: ./nox -s qnn_ci -- update locks --write"""
    assert find_gaps(lock, lock.path) == []
    for path in lock.files():
        for line in path.read_text("utf-8").splitlines()[1:]:
            assert LOCK.fullmatch(line), line


def test_a_lock_that_does_not_follow_pyproject_is_found(tmp_path: Path) -> None:
    lock = Lock("core")
    text = lock.path.read_text("utf-8")
    for old, new, gaps in (
        ("msgspec==0", "msgspec==1", ["msgspec==0.22.0"]),
        ("rich==", "poor==", ["rich==15.0.0"]),
        ("inputs: ", "inputs: 0", []),
        (text[: text.index("\n")], "# inputs: 1", ["inputs"]),
    ):
        (tmp_path / "core.txt").write_text(text.replace(old, new), "utf-8")
        assert find_gaps(lock, tmp_path / "core.txt") == gaps


def test_every_group_of_a_session_or_verb_has_a_lock_and_no_other_lock_is_left() -> None:
    expected = {path for lock in list_locks() for path in lock.files()}
    assert {*LOCKS.glob("*")} == expected
    parts = {"build", "litert-files", "mutants", "onnxruntime", "site", "workflows"}
    assert {*PROJECT["dependency-groups"]} - parts == {*GROUPS}
