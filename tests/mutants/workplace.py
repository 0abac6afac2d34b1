"""Where mutmut works on a package: build/mutants/PACKAGE, kept so that the next run resumes.

mutmut takes its settings from the directory that it runs in and writes the mutants below it. It
keeps verdicts by function; those of functions that have changed are found again. What it does
not see is a change of the tests: then the mutants that survived, or had no test, run again.
"""

from __future__ import annotations

import ast
import configparser
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copystat, copytree, ignore_patterns

from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.files import digest_sources, remove_tree
from tests.mutants.packages import PACKAGES

ROOT = Path(__file__).parents[2]
CODE = ("ci", "provisioning")
BESIDE = ("docker", "docs", "manifests", "LICENSE", "README.md", "nox", "noxfile.py")
LINKED = (*BESIDE, "pyproject.toml", "tests")
KILLED = 1
TEST_LIMIT_S = "20"  # a mutant that waits for ever costs as much
FIX = "the tests of the package have to pass without a change first: pytest {}"


def place_of(package: str) -> Path:
    """The directory that mutmut runs in for a package."""
    return ROOT / "build" / "mutants" / package.replace("/", ".")


def run_mutmut(package: str, jobs: int, progress: Progress) -> None:
    """Generate and judge the mutants of a package. Raises ToolError."""
    place = place_of(package)
    prepare(place, package)
    tests = PACKAGES[package]
    words = [sys.executable, "-m", "mutmut", "run"]
    words += ["--max-children", str(jobs)] if jobs else []
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_TIMEOUT": TEST_LIMIT_S}
    forget_if_tests_changed(place, package)
    with progress.waiting(f"mutants of {package} ({place / 'mutmut.log'})"):
        run_process(
            words,
            cwd=place,
            env=env,
            log=place / "mutmut.log",
            keep_lines=200,
            fix=FIX.format(" ".join(tests)),
        )


def prepare(place: Path, package: str) -> None:
    """The checkout's code, without decorators in the package, and the settings of mutmut."""
    place.mkdir(parents=True, exist_ok=True)
    for name in CODE:
        discard(place / name)
        copytree(ROOT / name, place / name, ignore=ignore_patterns("__pycache__"))
    for file in (place / package).rglob("*.py"):
        file.write_text(call_decorators(file.read_text("utf-8")), "utf-8")
        copystat(ROOT / file.relative_to(place), file)
    for name in LINKED:
        link = place / name
        if (ROOT / name).exists() and not link.is_symlink():
            link.symlink_to(ROOT / name)
    parser = configparser.ConfigParser()
    parser["mutmut"] = {
        "source_paths": _lines(*CODE),
        "only_mutate": _lines(f"{package}/*.py"),
        "also_copy": _lines(*BESIDE),
        "pytest_add_cli_args": _lines("-p", "no:cacheprovider", "-p", "no:xdist"),
        "pytest_add_cli_args_test_selection": _lines(*PACKAGES[package]),
        "use_git_change_detection": "false",
        "timeout_constant": "4.0",  # on a busy machine a test of 0.1 s may take long
        # No mutant finds what tests without it left in a cache.
        "process_isolation": "forkserver",
    }
    with (place / "setup.cfg").open("w", encoding="utf-8") as settings:
        parser.write(settings)


def discard(path: Path) -> None:
    """Remove a directory, if it is there."""
    if path.exists():
        remove_tree(path)


def call_decorators(source: str) -> str:
    """Code whose functions call their decorators afterwards: mutmut leaves decorated ones out."""
    lines = source.splitlines()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for function in reversed(functions):
        decorators = [ast.unparse(one) for one in function.decorator_list]
        if decorators and function.end_lineno:
            called = "(".join([*decorators, function.name]) + ")" * len(decorators)
            lines.insert(function.end_lineno, f"{function.name} = {called}")
            del lines[function.decorator_list[0].lineno - 1 : function.lineno - 1]
    return "".join(f"{line}\n" for line in lines)


def _lines(*values: str) -> str:
    return "".join(f"\n{value}" for value in values)


def forget_if_tests_changed(place: Path, package: str) -> None:
    """Drop the verdicts that other tests may change: every one but "killed"."""
    digest = digest_sources(*(ROOT / name for name in PACKAGES[package]))
    stamp = place / "tests.sha256"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    (place / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    for meta in (place / "mutants").glob(f"{package}/**/*.meta"):
        keep_verdicts(meta, lambda code: code == KILLED)
    stamp.write_text(digest)


def keep_verdicts(meta: Path, is_kept: Callable[[int | None], bool]) -> None:
    """Reset the other verdicts of a file's mutants to none."""
    data = json.loads(meta.read_text("utf-8"))
    codes = data["exit_code_by_key"]
    data["exit_code_by_key"] = {k: v if is_kept(v) else None for k, v in codes.items()}
    meta.write_text(json.dumps(data), "utf-8")
