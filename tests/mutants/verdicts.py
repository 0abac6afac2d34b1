"""What mutmut found, from the .meta files that it keeps: mutants by package, and their diffs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import change_cwd
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

from provisioning.files import write_whole
from tests.mutants.packages import Sample, list_modules

# A mutant that never ends, crashes, or lets no test be collected has been noticed.
NOTICED = {"killed", "timeout", "segfault", "check was interrupted by user"}
UNJUDGED = {"not checked", "skipped"}
STRING = r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\""


class Verdicts:
    """The exit codes by mutant in mutmut's .meta files below a directory."""

    def __init__(self, place: Path) -> None:
        self.files: dict[Path, Any] = {
            path: json.loads(path.read_text("utf-8")) for path in place.rglob("*.meta")
        }
        self.paths = {name: path for path in self.files for name in self.codes(path)}

    def codes(self, path: Path) -> dict[str, int | None]:
        """By mutant; None is one without a verdict."""
        codes: dict[str, int | None] = self.files[path]["exit_code_by_key"]
        return codes

    def list_open(self, sample: Sample) -> list[str]:
        """The mutants of a sample without a verdict."""
        return [one for one in sample.draw(self.paths) if self.codes(self.paths[one])[one] is None]

    def keep(self, name: str, code: int) -> None:
        """Note a verdict, on disk too."""
        path = self.paths[name]
        self.codes(path)[name] = code
        write_whole(path, json.dumps(self.files[path]))


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test noticed. ``status`` is ``survived``, ``no tests`` or ``suspicious``."""

    name: str
    path: str
    function: str
    status: str
    diff: str
    removed: str
    added: str

    @property
    def is_in_string(self) -> bool:
        """Whether only a string differs: words that tests do not aim at."""
        removed, added = (re.sub(STRING, "''", one) for one in (self.removed, self.added))
        return removed == added


@dataclass(frozen=True)
class Result:
    """The mutants of a package: how many were generated and noticed, and those that were not."""

    package: str
    generated: int
    killed: int
    unjudged: int
    unnoticed: Sequence[Survivor]

    @property
    def survivors(self) -> list[Survivor]:
        return [one for one in self.unnoticed if not one.is_in_string]

    @property
    def in_strings(self) -> list[Survivor]:
        return [one for one in self.unnoticed if one.is_in_string]

    @property
    def share(self) -> float | None:
        """Killed of those judged, without survivors in strings, in percent."""
        judged = self.killed + len(self.survivors)
        return 100 * self.killed / judged if judged else None

    @property
    def counts(self) -> Mapping[str, float | None]:
        return {
            "generated": self.generated,
            "killed": self.killed,
            "survived": len(self.survivors),
            "without_tests": sum(one.status == "no tests" for one in self.survivors),
            "in_strings": len(self.in_strings),
            "unjudged": self.unjudged,
            "killed_percent": None if self.share is None else round(self.share, 1),
        }


def read_result(root: Path, package: str, place: Path, sample: Sample) -> Result:
    """The verdicts on a package's mutants below ``place``, of files that ``root`` still has.

    Those that are not of the sample count as not judged.
    """
    found = list(_read_verdicts(root, package, place))
    drawn = set(sample.draw(name for _, name, _ in found))
    verdicts = [
        (path, name, status if name in drawn else "not checked") for path, name, status in found
    ]
    counts = Counter(status for _, _, status in verdicts)
    left = NOTICED | UNJUDGED
    with change_cwd(place):
        unnoticed = [
            _describe(name, path, status) for path, name, status in verdicts if status not in left
        ]
    return Result(
        package,
        len(verdicts),
        sum(counts[status] for status in NOTICED),
        sum(counts[status] for status in UNJUDGED),
        unnoticed,
    )


def _read_verdicts(root: Path, package: str, place: Path) -> Iterator[tuple[str, str, str]]:
    """Path, name and status of each mutant."""
    for file in list_modules(root, package):
        path = str(file.relative_to(root))
        meta = place / "mutants" / f"{path}.meta"
        if meta.is_file():
            codes = json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
            for name, code in codes.items():
                yield path, name, status_by_exit_code[code]


def _describe(name: str, path: str, status: str) -> Survivor:
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # a parser, which judges do without

    function, owner = orig_function_and_class_names_from_key(name)
    function = f"{owner}.{function}" if owner else function
    diff = get_diff_for_mutant(name, path=path)
    removed, added = _changed(diff, "-"), _changed(diff, "+")
    return Survivor(name, path, function, status, diff, removed, added)


def _changed(diff: str, sign: str) -> str:
    """The lines of a unified diff that have ``sign``, without it and their indentation."""
    lines = diff.splitlines()[2:]
    return "\n".join(line[1:].strip() for line in lines if line.startswith(sign))
