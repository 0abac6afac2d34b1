"""What a check says: one fault, with the next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Severity(str, Enum):
    """An error makes an environment unfit; a warning does so only when asked (--strict)."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, order=True)
class Finding:
    """One fault. ``id`` is stable and has a section in docs/checks.md.

    ``subject`` is the thing at fault, ``where`` the place it was seen, ``why`` what a user
    would meet later, ``fix`` the next step. Findings sort by id: causes before effects.
    """

    id: str
    subject: str
    what: str
    where: str
    why: str
    fix: str
    severity: Severity = Severity.ERROR

    def printable(self) -> Finding:
        """The same without lone surrogates, which names of files that are not UTF-8 hold."""
        names = ("subject", "what", "where", "why", "fix")
        texts = {name: getattr(self, name) for name in names}
        clean = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
        return replace(self, **{name: text.decode() for name, text in clean.items()})

    def __str__(self) -> str:
        return f"{self.id} {self.severity.value}: {self.what}"
