"""How this program was called: what hints tell people to type, and where shown paths start.

Messages name a verb in backticks, as ``qnn-ci VERB ARGUMENTS``. A user who called ``./nox`` or
``python -m ci`` reads that command instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DIRECTORY_VARIABLE = "QNN_CI_CALLER_DIR"
NOX_VARIABLE = "QNN_CI_COMMAND"  # how nox was called: nox, ./nox, ../nox
CAUSE_VARIABLE = "QNN_CI_CAUSE_FILE"
# One that is set, and not to 0 or false, says that this is a CI job.
CI_VARIABLES = (
    *("CI", "GITHUB_ACTIONS", "GITLAB_CI", "TF_BUILD", "JENKINS_URL"),
    *("BUILDKITE", "CIRCLECI", "TEAMCITY_VERSION"),
)
_HINT = re.compile(r"`qnn-ci ([a-z][a-z-]*)((?: [^`]*)?)`")


@dataclass(frozen=True)
class Caller:
    """``program`` was called with ``words``; ``sessions`` maps its verbs to what nox runs them in.

    A session that ends in ``_`` takes the first word after the verb into its name.
    """

    program: str
    sessions: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    nox: str = ""

    def label(self, verb: str = "", *, passing: bool = False) -> str:
        """What was typed, without its options; ``passing`` keeps room for them."""
        if verb and self.nox and self.sessions[verb]:
            command = self.command(verb, self.words[1:2] if self.sessions[verb][-1] == "_" else ())
            return f"{command} --" if passing else command
        base = f"{self.nox} -s qnn_ci --" if self.nox else self.program
        return f"{base} {verb}".strip()

    def command(self, verb: str, words: Sequence[str]) -> str:
        """What to type for a verb and its words."""
        rest = list(words)
        if not self.nox:
            known = verb in self.sessions or self.program == "qnn-ci"
            return " ".join([self.program if known else "python -m ci", verb, *rest])
        session = self.sessions.get(verb, "")
        if not session:
            return " ".join([f"{self.nox} -s qnn_ci --", verb, *rest])
        if session.endswith("_") and rest:
            session += rest.pop(0)
        return " ".join([f"{self.nox} -s {session}", *(["--", *rest] if rest else [])])

    def translate(self, text: str) -> str:
        """``text`` with its hints as this caller would type them."""
        return _HINT.sub(lambda hint: f"`{self.command(hint[1], hint[2].split())}`", text)


def is_ci() -> bool:
    """Return whether this is a CI job: it is asked nothing, and trusts no first use."""
    values = (os.environ.get(name, "").lower() for name in CI_VARIABLES)
    return any(value not in {"", "0", "false"} for value in values)


def keep_cause(text: str) -> None:
    """Leave what ended this program for a noxfile that repeats it after other sessions."""
    if path := os.environ.get(CAUSE_VARIABLE):
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


def caller_path(path: Path) -> Path:
    """``path`` as the caller means it: a relative one begins where ./nox was called."""
    return Path(os.environ.get(DIRECTORY_VARIABLE, ""), path)


def shown_path(path: Path) -> str:
    """``path`` as it holds where the caller stands: relative if below that directory."""
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - links stay as the user knows them
    try:
        return str(whole.relative_to(os.environ.get(DIRECTORY_VARIABLE) or Path.cwd()))
    except ValueError:
        return str(whole)
