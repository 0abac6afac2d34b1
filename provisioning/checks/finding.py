"""What a check says: one fault, with the next step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """An error makes an environment unfit; a warning does so only when asked (--strict)."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, order=True)
class Finding:
    """One fault. ``id`` is stable and has a section in docs/checks.md.

    ``subject`` is the thing at fault, ``where`` the place it was seen, ``why`` what a user
    would meet later, ``todo`` the next step. Findings sort by id: causes before effects.
    """

    id: str
    subject: str
    what: str
    where: str
    why: str
    todo: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.id} {self.severity.value}: {self.what}"
