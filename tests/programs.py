"""Programs that tests need although the README does not ask for them, such as cmake or adb.

A test that needs such a program is skipped where it is missing (``missing_programs`` as the reason
of a mark, ``require_programs`` in a fixture). ``.ci/run`` runs all tests in a bare system, and then
those that were skipped there for this reason on a machine that has the programs:

* A run with ``--junit-xml`` writes the ids of these tests to skipped-for-programs.json next to it.
* ``--only-skipped-in FILE`` runs the tests in such a file, and no others.
* ``python -m tests.programs BARE_JUNIT MACHINE_JUNIT`` adds up both runs. It fails unless each test
  was run, or was skipped for a reason that no program takes away, in exactly one of them. A third
  file, of ``python -m tests.sessions``, is added to the sum.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

NOT_INSTALLED = "not installed: "
FILE = "skipped-for-programs.json"
# Debian's PATH of a user lacks the directories of daemons such as sshd.
DAEMONS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def find_program(name: str) -> str | None:
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *DAEMONS])
    return shutil.which(name, path=places)


def missing_programs(*names: str) -> str:
    """Return why a test that needs these programs is skipped, '' if all of them are installed."""
    missing = [name for name in names if not find_program(name)]
    return f"{NOT_INSTALLED}{', '.join(missing)}" if missing else ""


def require_programs(*names: str, package: str = "") -> None:
    """Skip the test if a program is missing. ``package`` is Debian's package of the program."""
    if reason := missing_programs(*names):
        pytest.skip(f"{reason} (Debian: {package})" if package else reason)


class SkippedTests:
    """A plugin that writes which tests were skipped for programs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and read_reason(report.longrepr).startswith(NOT_INSTALLED):
            self.tests.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(sorted(self.tests), indent=1), encoding="utf-8")


def read_reason(representation: Any) -> str:
    """Return the reason of a skipped test: of a report's (file, line, reason)."""
    text = representation[2] if isinstance(representation, (tuple, list)) else ""
    return str(text).removeprefix("Skipped: ")


class OnlyTheseTests:
    """A plugin that selects tests by their ids, and does not import files without any of them."""

    def __init__(self, root: Path, tests: list[str]) -> None:
        self.tests = set(tests)
        self.files = {root / test.partition("::")[0] for test in tests}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.is_file() and collection_path not in self.files else None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        deselected = [item for item in items if item.nodeid not in self.tests]
        items[:] = [item for item in items if item.nodeid in self.tests]
        if deselected:
            config.hook.pytest_deselected(items=deselected)


# -- the sum of two runs --------------------------------------------------------------------------

# A test's outcome, and why it was skipped or the first line of what failed.
Results = Mapping[str, tuple[str, str]]
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
WORST_LAST = (SKIPPED, PASSED, FAILED)


def read_results(path: Path) -> Results:
    """Return what a junit.xml of pytest says of each test. A test with a failed teardown has two
    entries there, and has failed."""
    results: dict[str, tuple[str, str]] = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = f"{case.get('classname')}::{case.get('name')}"
        skipped = case.find("skipped")
        failed = next((entry for entry in case if entry.tag in {"failure", "error"}), None)
        if failed is not None:
            result = (FAILED, (failed.get("message") or "").partition("\n")[0])
        elif skipped is not None:
            result = (SKIPPED, skipped.get("message") or "")
        else:
            result = (PASSED, "")
        earlier = results.get(name, result)
        results[name] = max(earlier, result, key=lambda entry: WORST_LAST.index(entry[0]))
    return results


def add_runs(bare: Results, machine: Results) -> tuple[Results, list[str]]:
    """Return the results of both runs together, and what is wrong with how tests were shared."""
    waiting = {name for name, (_, reason) in bare.items() if reason.startswith(NOT_INSTALLED)}
    faults = [
        f"ran in the bare system and on this machine: {name}"
        for name in sorted(machine.keys() - waiting)
    ]
    faults += [
        f"neither ran in the bare system nor on this machine: {name}"
        for name in sorted(waiting - machine.keys())
    ]
    return {**bare, **machine}, faults


def show_counts(results: Results) -> str:
    counts = Counter(outcome for outcome, _ in results.values())
    return ", ".join(f"{counts[name]} {name}" for name in (PASSED, FAILED, SKIPPED))


def main(bare_file: str, machine_file: str, sessions_file: str = "") -> int:
    """Print the counts of both runs and of all tests, and return an exit code."""
    bare, machine = read_results(Path(bare_file)), read_results(Path(machine_file))
    sessions = read_results(Path(sessions_file)) if sessions_file else {}
    results, faults = add_runs(bare, machine)
    results = {**results, **sessions}
    for fault in faults:
        print(fault)
    for name, (outcome, message) in results.items():
        if outcome == FAILED:
            print(f"failed: {name}: {message}")
    print(f"in the bare system: {show_counts(bare)}")
    print(f"on this machine, the tests that need more programs: {show_counts(machine)}")
    if sessions:
        print(f"sessions and verbs: {show_counts(sessions)}")
    print(show_counts(results))
    return int(bool(faults) or any(outcome == FAILED for outcome, _ in results.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
