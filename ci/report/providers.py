"""The CI systems: each says in its own way what all of them can say.

What is text comes back as text; the caller decides on which stream it belongs. Names, messages
and values are never a command of their own in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.report.annotation import Annotation, Level, one_line, safe_line
from provisioning.artifacts.environment import github_line
from provisioning.console.process import run_process
from provisioning.errors import ToolError
from provisioning.files import explain_writes, write_json

AGENT = "buildkite-agent"
AGENT_LIMIT_S = 30
QUALITY_FILE = "gl-code-quality-report.json"
SEVERITIES = {Level.ERROR: "major", Level.WARNING: "minor", Level.NOTICE: "info"}


class Provider:
    """A terminal, or a CI system without ways of its own, such as Jenkins; others build on it."""

    name = "terminal"
    folds = False  # whether a group hides what is in it, so that it may be long

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def open_group(self, _label: str) -> str:
        """The line that begins a part of the log that folds."""
        return ""

    def close_group(self, _label: str) -> str:
        """The line that ends it."""
        return ""

    def annotate(self, annotations: Sequence[Annotation]) -> str:
        """Say something of lines of the change; the text is for the log."""
        return "".join(f"{one.plain()}\n" for one in annotations)

    def mask(self, _secrets: Iterable[str]) -> str:
        """Have secrets left out of the log, of what other programs print too."""
        return ""

    def add_summary(self, _markdown: str, _context: str) -> bool:
        """Show Markdown on the page of the run; whether that can be done here."""
        return False

    def export(
        self, _variables: Mapping[str, str], _programs: Sequence[Path], _outputs: Mapping[str, str]
    ) -> bool:
        """Give variables, directories of PATH and outputs to the steps that follow; whether that
        can be done here."""
        return False


class GitHub(Provider):
    """GitHub Actions: workflow commands, and the files that GITHUB_* variables name.

    https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
    """

    name = "github"
    folds = True

    def open_group(self, label: str) -> str:
        return f"::group::{_escape_data(label)}\n"

    def close_group(self, _label: str) -> str:
        return "::endgroup::\n"

    def annotate(self, annotations: Sequence[Annotation]) -> str:
        return "".join(map(_command, annotations))

    def mask(self, secrets: Iterable[str]) -> str:
        lines = (line for one in secrets for line in one.splitlines() if line.strip())
        return "".join(f"::add-mask::{_escape_data(line)}\n" for line in lines)

    def add_summary(self, markdown: str, _context: str) -> bool:
        return self._append("GITHUB_STEP_SUMMARY", markdown)

    def export(
        self, variables: Mapping[str, str], programs: Sequence[Path], outputs: Mapping[str, str]
    ) -> bool:
        lines = "".join(f"{path}\n" for path in programs)
        done = [
            self._append("GITHUB_ENV", _render(variables)),
            self._append("GITHUB_PATH", lines),
            self._append("GITHUB_OUTPUT", _render(outputs)),
        ]
        return all(done)

    def _append(self, variable: str, text: str) -> bool:
        name = self.environ.get(variable, "")
        if not name:
            return False
        fix = f"unset {variable}, or let it name a file that can be written"
        with explain_writes(Path(name), fix), Path(name).open("a", encoding="utf-8") as file:
            file.write(text)
        return True


def _render(values: Mapping[str, str]) -> str:
    return "".join(github_line(name, value) for name, value in values.items())


def _command(annotation: Annotation) -> str:
    place = {"file": annotation.path, "line": str(max(annotation.line, 1))}
    properties = {**(place if annotation.path else {}), "title": annotation.title}
    words = ",".join(f"{key}={_escape_property(text)}" for key, text in properties.items() if text)
    head = f"{annotation.level.value} {words}".rstrip()
    return f"::{head}::{_escape_data(annotation.message)}\n"


def _escape_data(text: str) -> str:
    return safe_line(text).replace("%", "%25")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


class GitLab(Provider):
    """GitLab CI: sections, and a code quality report, which a job keeps as an artifact.

    https://docs.gitlab.com/ci/jobs/job_logs/ and https://docs.gitlab.com/ci/testing/code_quality/
    """

    name = "gitlab"
    folds = True

    def open_group(self, label: str) -> str:
        head = f"section_start:{int(time.time())}:{_name_section(label)}[collapsed=true]"
        return f"\x1b[0K{head}\r\x1b[0K{safe_line(label)}\n"

    def close_group(self, label: str) -> str:
        return f"\x1b[0Ksection_end:{int(time.time())}:{_name_section(label)}\r\x1b[0K\n"

    def annotate(self, annotations: Sequence[Annotation]) -> str:
        path = Path(self.environ.get("CI_PROJECT_DIR") or ".") / QUALITY_FILE
        placed = [one for one in annotations if one.path]
        if not placed:
            return super().annotate(annotations)
        rows = {row["fingerprint"]: row for row in [*_read_rows(path), *map(_rate, placed)]}
        fix = "let CI_PROJECT_DIR name a directory that can be written"
        write_json(path, list(rows.values()), fix)
        return super().annotate(annotations)


def _name_section(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", label).strip("_")[:80] or "section"


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [row for row in found if isinstance(row["fingerprint"], str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _rate(annotation: Annotation) -> dict[str, Any]:
    words = (annotation.title, annotation.path, str(annotation.line), annotation.message)
    return {
        "description": one_line(annotation.message),
        "check_name": annotation.title or "qnn-ci",
        "fingerprint": hashlib.sha256("\0".join(words).encode("utf-8", "replace")).hexdigest(),
        "severity": SEVERITIES[annotation.level],
        "location": {
            "path": one_line(annotation.path),
            "lines": {"begin": max(annotation.line, 1)},
        },
    }


class Buildkite(Provider):
    """Buildkite: headings in the log; annotations and masks through its agent.

    https://buildkite.com/docs/pipelines/configure/managing-log-output and
    https://buildkite.com/docs/agent/cli/reference/annotate
    """

    name = "buildkite"
    folds = True

    def open_group(self, label: str) -> str:
        return f"--- {safe_line(label)}\n"

    def annotate(self, annotations: Sequence[Annotation]) -> str:
        said = super().annotate(annotations)
        for level in dict.fromkeys(one.level for one in annotations):
            rows = [one.plain() for one in annotations if one.level is level]
            style = "info" if level is Level.NOTICE else level.value
            text = "".join(f"    {row}\n" for row in rows)  # an indented block has no markup
            said += self._try(
                "annotate", "--append", "--style", style, "--context", style, given=text
            )
        return said

    def mask(self, secrets: Iterable[str]) -> str:
        for secret in secrets:
            self._ask("redactor", "add", given=secret)
        return ""

    def add_summary(self, markdown: str, context: str) -> bool:
        return not self._try("annotate", "--style", "info", "--context", context, given=markdown)

    def _try(self, *words: str, given: str) -> str:
        """Ask for what the log has too, so that no verdict depends on it; '' or why not."""
        try:
            self._ask(*words, given=given)
        except ToolError as error:
            return f"{error.what}\n"
        return ""

    def _ask(self, *words: str, given: str) -> None:
        run_process(
            [AGENT, *words],
            input_text=given,
            timeout_s=AGENT_LIMIT_S,
            fix=f"put {AGENT} on PATH, or unset BUILDKITE",
        )


MARKS: Mapping[str, type[Provider]] = {
    "GITHUB_ACTIONS": GitHub,
    "GITLAB_CI": GitLab,
    "BUILDKITE": Buildkite,
}


def detect_provider(environ: Mapping[str, str] = os.environ) -> Provider:
    """The CI system whose variable is set, else a terminal."""
    found = (kind for variable, kind in MARKS.items() if environ.get(variable) == "true")
    return next(found, Provider)(environ)
