"""Somebody who types the project's commands in a fresh place, and reads what they wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.documented.place import Place, give_downloads, make_place
from tests.documented.runner import (
    LOWERING,
    add_extra,
    choose_folder,
    fetch,
    install,
)
from tests.stand_ins.repository import make_checkout

LIMIT_S = 500  # of which a new environment with torch may take half
# A team's repository may have folders with the names of ours.
THEIRS = {"ci/__init__.py": "raise SystemExit('not this one')\n", "README.md": "Models\n"}


@dataclass(frozen=True)
class Traveller:
    """A user in a place. ``shared`` is where all journeys make downloads and environments once."""

    place: Place
    shared: Path

    @property
    def here(self) -> Path:
        return self.place.directory

    def type(self, line: str, code: int = 0) -> str:
        """Type a line, which has to end with an exit code. Return what it prints."""
        ended = self.place.run(line, LIMIT_S)
        assert ended.code == code, f"{line}\n{ended.text}\n[exit code {ended.code}, not {code}]"
        assert "Traceback" not in ended.text, ended.text
        return ended.text

    def report(self, session: str = "test_emulator") -> dict[str, Any]:
        """The report of a session in ``reports/``, as other programs read it."""
        path = self.here / "reports" / session / "report.json"
        report: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return report

    def statuses(self, session: str = "test_emulator") -> dict[str, str]:
        """The status of each case, by ``MODEL SCHEME``."""
        rows = self.report(session)["cases"]
        return {f"{row['model']} {row['scheme']}": row["judgement"]["status"] for row in rows}

    def read(self, name: str) -> str:
        return (self.here / name).read_text("utf-8")

    def write(self, name: str, text: str) -> None:
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def install(self, extra: str) -> Traveller:
        """The same person with an environment into which the wheel and an extra were installed.
        All extras are in one."""
        if f"[{extra}]" in LOWERING:
            programs = install(LOWERING, self.shared)[0]
        else:
            programs = add_extra(extra, self.shared)
        return replace(self, place=replace(self.place, programs=programs))


def start(shared: Path) -> Traveller:
    """Somebody who has just cloned the project."""
    place = make_place(choose_folder(shared))
    give_downloads(fetch(shared), place.home)
    return Traveller(place, shared)


def join_team(shared: Path) -> Traveller:
    """Somebody in the repository of a team, which knows nothing of this project."""
    traveller = start(shared)
    root = make_checkout(traveller.place.home / "our models", THEIRS).root
    return replace(traveller, place=replace(traveller.place, directory=root))
