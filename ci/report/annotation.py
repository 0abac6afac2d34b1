"""What is to be said of a line of a change, before a CI system gives it a form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from provisioning.console.terminal import defuse_commands

# Whatever ends a line or leads a terminal, and bytes of a name that are not UTF-8.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Level(Enum):
    """How bad it is; the values are the words of GitHub's workflow commands."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True)
class Annotation:
    """A message of one line on a line of a file; ``path`` '' and ``line`` 0 are nowhere."""

    level: Level
    message: str
    title: str = ""
    path: str = ""
    line: int = 0

    def plain(self) -> str:
        """``FILE:LINE: error: MESSAGE [TITLE]``, as compilers say it."""
        where = f"{self.path}:{max(self.line, 1)}: " if self.path else ""
        title = f" [{self.title}]" if self.title else ""
        return safe_line(f"{where}{self.level.value}: {self.message}{title}")


def one_line(text: str) -> str:
    r"""``text`` with each character that is not for showing as an escape, such as ``\n``."""
    return UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def safe_line(text: str) -> str:
    """One line that no CI system takes for a command."""
    line = defuse_commands(one_line(text))
    return line.replace("::", ": :", 1) if line.lstrip().startswith("::") else line
