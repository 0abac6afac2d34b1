"""Mutants of a small function."""

from __future__ import annotations

import subprocess
from io import StringIO
from pathlib import Path

import pytest

from provisioning.console.progress import Progress
from provisioning.errors import FailedError
from tests.mutants.run import Result, Survivor, copy_checkout, find_tests, try_mutants

pytest.importorskip("mutmut", reason="mutmut is not installed in this environment")

CODE = """
def is_loud(decibels):
    return decibels > 40
"""
CHECK = """
from light.limits import is_loud

def test_that_loud_is_loud():
    assert is_loud(41)
    assert not is_loud(0)
"""
BLIND = CHECK.replace("    assert is_loud", "    return\n    assert is_loud")


def judge(folder: Path, check: str) -> Result:
    """Plant mutants in a checkout with this function and this test."""
    root = folder / "root"
    for name, text in {"light/limits.py": CODE, "checks/test_limits.py": check}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (root / "light/__init__.py").touch()
    subprocess.run(["git", "init", "-q", root], check=True)
    copy_checkout(root, folder / "place", "light")
    return try_mutants(
        folder / "place", "light", ["checks"], 2, None, 1, Progress(StringIO(), live=False)
    )


@pytest.mark.nightly
def test_mutants_that_no_test_notices_are_listed_with_what_they_change(tmp_path: Path) -> None:
    result = judge(tmp_path, CHECK)
    assert result.summary == (
        "light: 2 of 2 mutants tried, 1 killed, 1 survived, 0 survived in strings"
    )
    (loud,) = result.survivors
    assert "-    return decibels > 40\n+    return decibels >= 40" in loud.diff


def test_a_mutant_is_a_string_mutant_only_if_only_a_string_differs() -> None:
    head = "--- a\n+++ b\n@@ -1 +1 @@\n def a():\n-    return 'is', 1\n"
    assert Survivor("", f"{head}+    return 'XXisXX', 1").is_in_string
    assert not Survivor("", f"{head}+    return 'is', 2").is_in_string


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("check", "message"),
    [
        (CHECK.replace("(0)", "(41)"), "fail without a mutant(.|\n)*test_that_loud_is_loud"),
        (BLIND, "no test fails if each function of light raises"),
    ],
)
def test_tests_that_fail_without_a_mutant_or_detect_none_are_refused(
    tmp_path: Path, check: str, message: str
) -> None:
    with pytest.raises(FailedError, match=message):
        judge(tmp_path, check)


def test_a_package_is_judged_by_the_unit_tests_of_its_room() -> None:
    packages = ("ci/parity/compare", "ci/judging", "noxfile.py", "ci/cases/spec.py")
    assert [find_tests(package) for package in packages] == [
        "tests/unit/ci/parity",
        "tests/unit/ci/judging",
        "tests/integration/test_noxfile.py",
        "tests/unit/ci/cases",
    ]
