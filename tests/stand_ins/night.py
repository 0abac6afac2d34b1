"""`.ci/night` in a checkout in which scripts only record how they were called."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Writes its arguments, and fails if they contain the text of the file `red`.
RECORD = """#!/bin/sh
echo "$(basename "$0")${QNN_CI_NIGHTLY:+ by night} $*" >> "$RECORD/calls"
printf '%s\\0' "$(basename "$0")" "$@" > "$(mktemp "$RECORD/words.XXXXXX")"
! echo "$*" | grep -qf "$RECORD/red"
"""
SCRIPTS = ("nox", ".ci/audit", ".ci/packages", ".ci/fresh", ".ci/container", ".ci/newest")


@dataclass
class Night:
    """A checkout in which `.ci/night` calls scripts that only record how they were called."""

    folder: Path

    def run(self, *words: str, red: str = "nothing is red") -> subprocess.CompletedProcess[str]:
        (self.folder / "red").write_text(f"{red}\n")
        (self.folder / "calls").write_text("")
        for path in self.folder.glob("words.*"):
            path.unlink()
        return subprocess.run(
            [self.folder / ".ci/night", *words],
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def variables(self) -> dict[str, str]:
        variables = {**os.environ, "RECORD": str(self.folder), "EXECUTORCH_ROOT": str(self.folder)}
        variables.pop("QNN_CI_NIGHTLY", None)
        return variables

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    @property
    def words(self) -> list[list[str]]:
        """The program and the arguments of each call, in any order."""
        paths = self.folder.glob("words.*")
        return [path.read_text().removesuffix("\0").split("\0") for path in paths]


def make_night(folder: Path, text: str = "") -> Night:
    """A checkout with .ci/night, or with another ``text`` of it."""
    (folder / ".ci").mkdir(parents=True)
    script = folder / ".ci/night"
    script.write_text(text or (ROOT / ".ci/night").read_text())
    script.chmod(0o755)
    python = folder / ".nox/test-litert/bin/python"
    python.parent.mkdir(parents=True)
    for recorder in (*(folder / name for name in SCRIPTS), python):
        recorder.write_text(RECORD)
        recorder.chmod(0o755)
    return Night(folder)
