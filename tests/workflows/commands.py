"""What a step says to its runner: workflow commands on stdout, and the GITHUB_* files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = re.compile(r"^\s*::(?P<name>[\w-]+)(?: (?P<properties>.*?))?::(?P<data>.*)$")
FILES = ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_STATE")
UNESCAPE = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}


class CommandError(Exception):
    """A file that GitHub's runner refuses, which fails the step."""


@dataclass(frozen=True)
class Annotation:
    """``level`` is error, warning or notice; ``properties`` such as file, line and title."""

    level: str
    text: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Heard:
    """All that a job said."""

    annotations: list[Annotation] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    depth: int = 0

    def hear(self, text: str) -> None:
        """Take what a step printed, line by line."""
        for line in text.splitlines():
            if match := COMMAND.match(line):
                self._obey(match)
            self.log.append(self.mask(line))

    def mask(self, line: str) -> str:
        """A line as the log shows it."""
        for secret in self.masks:
            line = line.replace(secret, "***")
        return line

    def _obey(self, match: re.Match[str]) -> None:
        name, data = match["name"], unescape(match["data"])
        if name in {"error", "warning", "notice"}:
            pairs = (pair.partition("=") for pair in (match["properties"] or "").split(",") if pair)
            properties = {key.strip(): unescape(value) for key, _, value in pairs}
            self.annotations.append(Annotation(name, data, properties))
        elif name == "group":
            self.groups.append(data)
            self.depth += 1
        elif name == "endgroup":
            self.depth -= 1
        elif name == "add-mask" and data.strip():
            self.masks.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.log)


def unescape(text: str) -> str:
    """The data of a workflow command as it was meant."""
    return re.sub("%(?:0D|0A|3A|2C|25)", lambda match: UNESCAPE[match[0]], text)


def read_pairs(path: Path) -> dict[str, str]:
    """``NAME=VALUE`` lines and ``NAME<<END`` blocks. Raises CommandError."""
    lines, values = iter(path.read_text(encoding="utf-8").splitlines()), {}
    for line in lines:
        if not line.strip():
            continue
        equals, heredoc = line.find("="), line.find("<<")
        if heredoc >= 0 and (equals < 0 or heredoc < equals):
            name, end = line[:heredoc], line[heredoc + 2 :]
            value: list[str] = []
            for text in lines:
                if text == end:
                    break
                value.append(text)
            else:
                raise CommandError(f"{name}: its end {end!r} is missing")
            values[name] = "\n".join(value)
        elif equals > 0:
            values[line[:equals]] = line[equals + 1 :]
        else:
            raise CommandError(f"{path.name}: {line!r} is not NAME=VALUE")
    return values
