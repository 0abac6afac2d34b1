"""Output for a CI system: commands and files on GitHub Actions, plain text on all others.

Names, messages and values are escaped, so that they never act as commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ci.report.annotation import Annotation, safe_line
from provisioning.artifacts.environment import github_line
from provisioning.console.progress import Progress
from provisioning.console.streams import user_stderr
from provisioning.console.terminal import write_through
from provisioning.fetch.credentials import TOKENS_VARIABLE, parse_tokens
from provisioning.files import explain_writes

MIRROR_VARIABLE = "QNN_CI_MIRROR"
SHORTEST_SECRET = 4


@dataclass(frozen=True)
class Provider:
    """GitHub Actions or a terminal. For GitHub, output uses workflow commands and the files in the
    GITHUB_* variables. Other CI systems, such as Jenkins or GitLab, count as a terminal.

    https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def is_github(self) -> bool:
        """Whether this process runs in GitHub Actions."""
        return self.environ.get("GITHUB_ACTIONS") == "true"

    def annotate(self, annotations: Sequence[Annotation]) -> str:
        """Return text for the log. On GitHub, it shows the annotations on the lines of
        the change."""
        if self.is_github:
            return "".join(map(_command, annotations))
        return "".join(f"{annotation.plain()}\n" for annotation in annotations)

    def add_summary(self, markdown: str) -> bool:
        """Append Markdown to the run's page. Return whether there is such a page."""
        return self._append("GITHUB_STEP_SUMMARY", markdown)

    def export(
        self, variables: Mapping[str, str], programs: Sequence[Path], outputs: Mapping[str, str]
    ) -> bool:
        """Pass variables, directories for PATH, and outputs to later steps. Return whether the CI
        system supports this."""
        lines = "".join(f"{path}\n" for path in programs)
        done = [
            self._append("GITHUB_ENV", _render(variables)),
            self._append("GITHUB_PATH", lines),
            self._append("GITHUB_OUTPUT", _render(outputs)),
        ]
        return all(done)

    def _append(self, variable: str, text: str) -> bool:
        name = self.environ.get(variable, "")
        if not self.is_github or not name:
            return False
        fix = f"unset {variable}, or set it to a writable file"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        with explain_writes(Path(name), fix):
            # Without O_NONBLOCK, the open of a pipe waits for a reader.
            descriptor = os.open(name, flags, 0o666)
            os.set_blocking(descriptor, True)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(text)
        return True


def _render(values: Mapping[str, str]) -> str:
    return "".join(github_line(name, value) for name, value in values.items())


def _command(annotation: Annotation) -> str:
    place = {"file": annotation.path, "line": str(max(annotation.line, 1))}
    properties = {**(place if annotation.path else {}), "title": annotation.title}
    escaped = {
        key: _escape_data(text).replace(":", "%3A").replace(",", "%2C")
        for key, text in properties.items()
    }
    words = ",".join(f"{key}={text}" for key, text in escaped.items() if text)
    head = f"{annotation.level.value} {words}".rstrip()
    return f"::{head}::{_escape_data(annotation.message)}\n"


def _escape_data(text: str) -> str:
    return safe_line(text).replace("%", "%25")


@contextmanager
def group(provider: Provider, progress: Progress, label: str) -> Iterator[None]:
    """Fold the output of the block in GitHub's log, under ``label``. Elsewhere, do nothing."""

    def write(command: str) -> None:
        if progress.stream and provider.is_github:
            with progress.lock:
                write_through(progress.stream, command)

    write(f"::group::{_escape_data(label)}\n")
    try:
        yield
    finally:
        write("::endgroup::\n")


def mask_secrets(provider: Provider, environ: Mapping[str, str]) -> None:
    """On GitHub, mask the secrets inside the values of QNN_CI_BEARER_TOKENS and QNN_CI_MIRROR, also
    in the output of other programs. (By itself, GitHub masks only the whole value of a secret.)"""
    lines = [
        line for secret in find_secrets(environ) for line in secret.splitlines() if line.strip()
    ]
    masks = (f"::add-mask::{_escape_data(line)}\n" for line in lines)
    write_through(user_stderr(), "".join(masks) if provider.is_github else "")


def find_secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the tokens in QNN_CI_BEARER_TOKENS, and the password and query values in
    QNN_CI_MIRROR.

    Values of fewer than SHORTEST_SECRET characters are left out. Raises UnfitError if
    QNN_CI_BEARER_TOKENS is malformed.
    """
    tokens = list(parse_tokens(environ.get(TOKENS_VARIABLE, "")).values())
    with suppress(ValueError):
        url = urlsplit(environ.get(MIRROR_VARIABLE, ""))
        raw = [value for pair in url.query.split("&") for value in pair.split("=", 1)[1:]]
        raw = [url.password or "", *raw]
        # A log may show a secret as the URL has it, or unquoted.
        tokens = [*tokens, *raw, *map(unquote, raw)]
    return [secret for secret in dict.fromkeys(tokens) if len(secret) >= SHORTEST_SECRET]
