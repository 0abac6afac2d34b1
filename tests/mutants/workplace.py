"""Where mutants are made and judged: build/mutants/PACKAGE, kept so that the next run resumes.

mutmut takes its settings from the directory that it runs in and writes the mutants below it. It
keeps verdicts by function; those of functions that have changed are found again. What it does
not see is a change of the tests: then the mutants that survived, or had no test, run again.
"""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import copy2, copystat, copytree, ignore_patterns

from provisioning.console.process import run_process
from provisioning.console.progress import Bar, Progress
from provisioning.errors import FailedError, ToolError
from provisioning.files import digest_sources, remove_tree, write_whole
from tests.mutants.judge import FAILS, JUDGED
from tests.mutants.packages import PACKAGES, Sample, list_modules
from tests.mutants.verdicts import Verdicts

ROOT = Path(__file__).parents[2]
CODE = ("ci", "provisioning", "noxfile.py")
BESIDE = ("docker", "docs", "manifests", "LICENSE", "README.md", "nox")
LINKED = (*BESIDE, "pyproject.toml", "tests")
KILLED = 1


def place_of(package: str) -> Path:
    """The directory that mutmut runs in for a package."""
    return ROOT / "build" / "mutants" / package.replace("/", ".")


def plant_mutants(package: str, jobs: int, sample: Sample, progress: Progress) -> None:
    """Generate the mutants of a package, and judge those of a sample.

    Raises ToolError, FailedError.
    """
    place = place_of(package)
    prepare(place, package)
    with (
        progress.waiting(f"making mutants of {package}"),
        making(place, list_modules(place / "mutants", package)),
    ):
        run_own(place, "generate", [str(jobs)])
    forget_if_tests_changed(place, package)
    if Verdicts(place / "mutants").list_open(sample):
        with progress.bar(f"mutants of {package}:", unit="mutants") as bar:
            judge(package, place / "mutants", jobs, sample, bar)


@contextmanager
def making(place: Path, made: Sequence[Path]) -> Iterator[None]:
    """Make these files anew if an earlier run was killed while it made them."""
    stamp = place / "making"
    if stamp.exists():
        metas = [Path(f"{file}.meta") for file in made]
        for file in [*made, *(one for one in metas if one.exists() and is_torn(one))]:
            file.unlink()
    stamp.touch()
    yield
    stamp.unlink()


def is_torn(meta: Path) -> bool:
    """Whether writing a file of verdicts did not come to its end."""
    try:
        json.loads(meta.read_text("utf-8"))
    except ValueError:
        return True
    return False


def judge(package: str, place: Path, jobs: int, sample: Sample, bar: Bar) -> None:
    """Judge the mutants of a sample that have no verdict. Raises ToolError, FailedError."""
    failing = []

    def read_line(line: str) -> None:
        if found := re.fullmatch(rf"{JUDGED} (\d+) of (\d+)", line):
            bar.total = int(found[2])
            bar.advance(int(found[1]) - bar.done)
        elif line.startswith(FAILS):
            failing.append(line.removeprefix(FAILS).strip())

    tests = PACKAGES[package]
    words = [str(one) for one in (jobs, sample.size, sample.seed)]
    try:
        run_own(place, "judge", [*words, *tests], read_line)
    except ToolError as error:
        if not failing:
            raise
        raise FailedError(
            f"tests that judge {package} fail without a mutant",
            why="\n".join(failing),
            fix=f"make them pass in any order: pytest {' '.join(tests)}; see {place / 'judge.log'}",
        ) from error


def run_own(
    place: Path, module: str, words: Sequence[str], on_line: Callable[[str], None] | None = None
) -> None:
    """Run a module beside this one, in ``place`` and on the code there."""
    run_process(
        [sys.executable, "-m", f"tests.mutants.{module}", *words],
        cwd=place,
        env={**os.environ, "PYTHONWARNDEFAULTENCODING": "1"},
        log=place / f"{module}.log",
        on_line=on_line,
        fix=f"see {place / module}.log",
    )


def prepare(place: Path, package: str) -> None:
    """The checkout's code, without decorators in the package, and the settings of mutmut."""
    place.mkdir(parents=True, exist_ok=True)
    # mutmut would leave what was removed
    discard(place / "mutants" / "tests")
    known = {
        place / "mutants" / f"{one.relative_to(ROOT)}.meta" for one in list_modules(ROOT, package)
    }
    for meta in {*(place / "mutants").rglob("*.meta")} - known:
        meta.unlink()
    for name in CODE:
        if (ROOT / name).is_dir():
            discard(place / name)
            copytree(ROOT / name, place / name, ignore=ignore_patterns("__pycache__"))
        else:
            (place / name).unlink(missing_ok=True)
            copy2(ROOT / name, place / name)
    for file in list_modules(place, package):
        file.write_text(call_decorators(file.read_text("utf-8")), "utf-8")
        copystat(ROOT / file.relative_to(place), file)
    for name in LINKED:
        link = place / name
        if (ROOT / name).exists() and not link.is_symlink():
            link.symlink_to(ROOT / name)
    parser = configparser.ConfigParser()
    parser["mutmut"] = {
        "source_paths": _lines(*CODE),
        "only_mutate": _lines(*(str(one.relative_to(ROOT)) for one in list_modules(ROOT, package))),
        "also_copy": _lines(*BESIDE),
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
    for meta in (place / "mutants").rglob("*.meta"):
        keep_verdicts(meta, lambda code: code == KILLED)
    stamp.write_text(digest)


def keep_verdicts(meta: Path, is_kept: Callable[[int | None], bool]) -> None:
    """Reset the other verdicts of a file's mutants to none."""
    data = json.loads(meta.read_text("utf-8"))
    codes = data["exit_code_by_key"]
    data["exit_code_by_key"] = {k: v if is_kept(v) else None for k, v in codes.items()}
    write_whole(meta, json.dumps(data))
