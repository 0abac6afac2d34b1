"""``mutants [PACKAGE ...]``: plant small faults one at a time, and report which no test notices.

mutmut writes the mutants of a package to build/mutants/PACKAGE/mutants, a copy of the checkout. A
variable says which of them is active. A mutant is killed if a test fails, crashes or takes too
long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.report.claim import claim_reports
from provisioning.console.command import Outcome, user_path
from provisioning.console.git import ask_git
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import FailedError
from provisioning.files import write_whole

ROOT = Path(__file__).parents[2]
GENERATE = (
    "import sys; from mutmut.__main__ import create_mutants; create_mutants(int(sys.argv[1]))"
)
OPTIONS = ("-x", "-q", "--tb=native", "-pno:cacheprovider", "-pno:xdist")
LEAST_S, FACTOR = 30.0, 5  # how long the tests may take with a mutant, of what they take without
NOT_A_MUTANT, ALL_RAISE = "none", "fail"
STRING = r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\""


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test noticed, as a unified diff."""

    name: str
    diff: str

    @property
    def is_in_string(self) -> bool:
        """Whether only a string differs, such as a message."""
        changed: dict[str, list[str]] = {"-": [], "+": []}
        for line in self.diff.splitlines()[2:]:
            if line[0] in changed:
                changed[line[0]].append(re.sub(STRING, "''", line[1:]))
        return changed["-"] == changed["+"]


@dataclass(frozen=True)
class Result:
    """How many mutants a package has, how many were tried, and which survived."""

    package: str
    generated: int
    tried: int
    survivors: Sequence[Survivor]
    in_strings: Sequence[Survivor]

    @property
    def summary(self) -> str:
        """One line: ``ci/judging: 20 of 1308 mutants tried, 18 killed, 1 survived, ...``."""
        killed = self.tried - len(self.survivors) - len(self.in_strings)
        return (
            f"{self.package}: {self.tried} of {self.generated} mutants tried, {killed} killed,"
            f" {len(self.survivors)} survived, {len(self.in_strings)} survived in strings"
        )


def find_package(word: str) -> str:
    """Return the path of a package from the root. Raises ArgumentTypeError if there is none."""
    name = word.strip("/")
    if not (ROOT / name).exists():
        raise argparse.ArgumentTypeError(f"there is no {name}; name a package such as ci/judging")
    return name


def read_count(word: str) -> int:
    """Return a number that is at least 1. Raises ArgumentTypeError for any other word."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError("must be at least 1; leave it out for all")
    return int(word)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "packages", nargs="+", type=find_package, help="such as ci/judging or provisioning/store"
    )
    parser.add_argument("--tests", nargs="+", help="what judges (default: the unit tests)")
    parser.add_argument("--jobs", type=read_count, help="mutants at a time (default: CPUs)")
    parser.add_argument("--sample", type=read_count, metavar="N", help="try N mutants per package")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--reports", type=user_path, default=Path("reports"), help="where to write")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    claim_reports(args.reports / "mutants")
    results, pages = [], []
    for name in args.packages:
        tests = args.tests or [find_tests(name)]
        place = ROOT / "build" / "mutants" / name.replace("/", ".")
        copy_checkout(ROOT, place, name)
        jobs = args.jobs or os.cpu_count() or 1
        results.append(try_mutants(place, name, tests, jobs, args.sample, args.seed, progress))
        stem = args.reports / "mutants" / name.replace("/", ".")
        write_whole(Path(f"{stem}.json"), json.dumps(asdict(results[-1]), indent=1) + "\n")
        pages.append(Path(f"{stem}.md"))
        write_whole(pages[-1], render_page(results[-1]))
    lines = [result.summary for result in results]
    lines.append(f"survivors: {', '.join(str(page) for page in pages)}")
    return Outcome("\n".join(lines) + "\n", [asdict(result) for result in results])


def find_tests(package: str) -> str:
    """Return the unit tests of a package: those of its room. A script has a file of its own."""
    if package.endswith(".py") and "/" not in package:
        return f"tests/integration/test_{package}"
    return "tests/unit/" + "/".join(package.split("/")[:2]).removesuffix(".py")


def copy_checkout(root: Path, place: Path, package: str) -> None:
    """Copy the files of ``root`` to place/mutants, and the package to where mutmut reads it."""
    shutil.rmtree(place, ignore_errors=True)
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in os.fsdecode(ask_git(root, *words)).split("\0"):
        if not name or not (root / name).is_file():
            continue
        targets = [
            place / "mutants" / name,
            *([place / name] if Path(name).is_relative_to(package) else []),
        ]
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)
    (place / "setup.cfg").write_text(f"[mutmut]\nsource_paths = {package}\n", encoding="utf-8")


def try_mutants(
    place: Path,
    package: str,
    tests: Sequence[str],
    jobs: int,
    size: int | None,
    seed: int,
    progress: Progress,
) -> Result:
    """Make mutants of a package, and run the tests with each of ``size`` of them.

    Raises FailedError if the tests fail without a mutant, or do not fail if all functions raise.
    """
    with progress.waiting(f"making mutants of {package}"):
        words = [sys.executable, "-c", GENERATE, str(jobs)]
        run_process(words, cwd=place, log=place / "generate.log")
    names = list_mutants(place)
    chosen = random.Random(seed).sample(sorted(names), min(size or len(names), len(names)))
    began = time.monotonic()
    with progress.waiting("running the tests without a mutant"):
        if failure := run_tests(place, NOT_A_MUTANT, tests, None):
            raise FailedError(f"tests of {package} fail without a mutant", why=failure)
    limit_s = LEAST_S + FACTOR * (time.monotonic() - began)
    if not run_tests(place, ALL_RAISE, tests, limit_s):
        raise FailedError(f"no test fails if each function of {package} raises", fix="use --tests")
    survivors = []
    with (
        progress.bar(f"mutants of {package}:", len(chosen), "mutants") as bar,
        ThreadPoolExecutor(jobs) as pool,
    ):
        runs = {name: pool.submit(run_tests, place, name, tests, limit_s) for name in chosen}
        for name, run in runs.items():
            if not run.result():
                survivors.append(Survivor(name, describe(place, name, names[name])))
            bar.advance(1)
    split: dict[bool, list[Survivor]] = {True: [], False: []}
    for survivor in survivors:
        split[survivor.is_in_string].append(survivor)
    return Result(package, len(names), len(chosen), split[False], split[True])


def list_mutants(place: Path) -> dict[str, str]:
    """Return the module of each mutant, from mutmut's files."""
    return {
        name: str(meta.relative_to(place / "mutants")).removesuffix(".meta")
        for meta in (place / "mutants").rglob("*.py.meta")
        for name in json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
    }


def run_tests(place: Path, mutant: str, tests: Sequence[str], limit_s: float | None) -> str:
    """Return what pytest printed if a test failed or did not end, else ""."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        ended = run_process(
            [sys.executable, "-m", "pytest", *OPTIONS, *tests],
            env={**os.environ, "MUTANT_UNDER_TEST": mutant, "TMPDIR": scratch},
            cwd=place / "mutants",
            timeout_s=limit_s,
            check=False,
        )
    return "" if ended.is_good else ended.output or "no output"


def describe(place: Path, mutant: str, module: str) -> str:
    """Return the difference that a mutant makes."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.utils.file_utils import change_cwd

    with change_cwd(place):
        return str(get_diff_for_mutant(mutant, path=module))


def render_page(result: Result) -> str:
    """Return Markdown: the counts, and the diff of each survivor."""
    return "".join(
        [
            f"# {result.summary}\n",
            *list_sections("Survivors", result.survivors),
            *list_sections("Survivors in strings", result.in_strings),
        ]
    )


def list_sections(title: str, survivors: Sequence[Survivor]) -> Iterator[str]:
    yield f"\n## {title}\n"
    for survivor in survivors:
        yield f"\n### {survivor.name}\n\n```diff\n{survivor.diff}\n```\n"
