"""How this process was called and installed, and the time that its caller sets.

In the source, messages contain commands as ``qnn-ci VERB ARGUMENTS`` in backticks. For a user who
started ``./nox`` or ``python -m ci``, they are translated into commands of that program, and paths
are shown as the user would type them.

pip records where a distribution came from in ``direct_url.json`` (PEP 610), unless it came from a
package index. So messages can say how to install more of this copy of the project.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from provisioning.documents import DocumentError, decode_json
from provisioning.errors import UsageError
from provisioning.quoting import shell_word, show_command

DIRECTORY_VARIABLE = "QNN_CI_CALLER_DIR"
NOX_VARIABLE = "QNN_CI_COMMAND"  # how nox was called: nox, ./nox, ../nox
SESSION_VARIABLE = "QNN_CI_SESSION"  # the session that runs a verb
CAUSE_VARIABLE = "QNN_CI_CAUSE_FILE"
# In a CI job, at least one of these is set to a value other than 0 or false.
CI_VARIABLES = (
    *("CI", "GITHUB_ACTIONS", "GITLAB_CI", "TF_BUILD", "JENKINS_URL"),
    *("BUILDKITE", "CIRCLECI", "TEAMCITY_VERSION"),
)
_HINT = re.compile(r"`qnn-ci ([a-z][a-z-]*)((?: [^`]*)?)`")


@dataclass(frozen=True)
class Caller:
    """How the program was called: its command ``program``, its arguments ``words`` and, if nox
    started it, the command ``nox`` and the ``session``. ``sessions`` maps verbs to nox sessions.

    If a session's name ends in ``_``, the first argument after the verb completes it.
    """

    program: str
    sessions: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    nox: str = ""
    session: str = ""

    def label(self, verb: str = "", *, passing: bool = False) -> str:
        """Return the command that the user typed, without options. If ``passing`` is true, it
        includes the ``--`` that nox needs before options.
        """
        if self.nox and self.session not in {"", "qnn_ci"}:
            return f"{self.nox} -s {self.session}{' --' if passing else ''}"
        if verb and self.nox and not self.session and self.sessions[verb]:
            command = self.command(verb, self.words[1:2] if self.sessions[verb][-1] == "_" else ())
            return f"{command} --" if passing else command
        base = f"{self.nox} -s qnn_ci --" if self.nox else self.program
        return f"{base} {verb}".strip()

    def command(self, verb: str, words: Sequence[str]) -> str:
        """Return the command that this caller has to type for a verb and its arguments."""
        arguments = list(words)
        if not self.nox:
            is_verb = verb in self.sessions or self.program == "qnn-ci"
            return " ".join([self.program if is_verb else "python -m ci", verb, *arguments])
        session = self.sessions.get(verb, "")
        if not session:
            return " ".join([f"{self.nox} -s qnn_ci --", verb, *arguments])
        if session.endswith("_") and arguments:
            session += arguments.pop(0)
        return " ".join([f"{self.nox} -s {session}", *(["--", *arguments] if arguments else [])])

    def translate(self, text: str) -> str:
        """Return ``text`` with its commands as this caller would type them."""
        if self.nox:  # such as ../nox
            text = text.replace("`./nox -s ", f"`{self.nox} -s ")
        return _HINT.sub(lambda hint: f"`{self.command(hint[1], split_shown(hint[2]))}`", text)


def split_shown(text: str) -> list[str]:
    """Return the first argument of a command and everything after it, as they are shown: spaces
    between quotes stay."""
    first, _, following = text.lstrip().partition(" ")
    return [word for word in (first, following) if word]


CALLER: ContextVar[Caller] = ContextVar("CALLER")  # set while a verb runs


def translate_commands(text: str) -> str:
    """Return ``text`` with its commands as the user of this process would type them."""
    caller = CALLER.get(None)
    return caller.translate(text) if caller else text


def own_command(verb: str, *words: str) -> str:
    """Return ``qnn-ci VERB WORDS`` as the user of this process would type it."""
    return translate_commands(show_command(verb, *words)).strip("`")


def is_ci() -> bool:
    """Return whether this is a CI job. CI jobs are never prompted, and never trust a first
    download.
    """
    values = (os.environ.get(name, "").lower() for name in CI_VARIABLES)
    # CI=false and CI=0 are usual ways to say that this is no CI job.
    return any(value not in {"", "0", "false"} for value in values)


def keep_cause(text: str) -> None:
    """Write ``text``, this program's final error, to the file in QNN_CI_CAUSE_FILE, so that the
    noxfile can repeat it after all sessions. Does nothing if the variable is not set, or if the
    file cannot be written: nox may have ended, or the disk may be full.
    """
    if path := os.environ.get(CAUSE_VARIABLE):
        with suppress(OSError):
            Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


def caller_path(path: Path) -> Path:
    """Return an absolute path: a relative one is resolved against the directory where ./nox was
    called (QNN_CI_CALLER_DIR), or else against the working directory. Processes with another
    working directory can use it. Links are not resolved.
    """
    # nox changes to the directory of the noxfile, so the working directory is not where the user
    # typed the command.
    return Path(os.environ.get(DIRECTORY_VARIABLE, ""), path).absolute()


def shown_path(path: Path) -> str:
    """Return ``path`` relative to the caller's directory if it is inside that directory, else
    absolute.
    """
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolves no links
    try:
        return str(absolute.relative_to(os.environ.get(DIRECTORY_VARIABLE) or Path.cwd()))
    except ValueError:
        return str(absolute)


DISTRIBUTION = "executorch-qnn-ci"
CHECKOUT = Path(__file__).resolve().parents[2]
_ON_GITHUB = re.compile(r".*github\.com[/:](.+?)(?:\.git)?/?")


@dataclass(frozen=True)
class DirectUrl:
    """The content of direct_url.json: the URL that pip installed this copy from, '' if that was a
    package index, and what it knows of a checkout or a directory.
    """

    url: str = ""
    vcs_info: Mapping[str, str] = field(default_factory=dict)
    dir_info: Any = None


def read_direct_url() -> DirectUrl:
    """Return where this copy came from. Of a damaged record, nothing is known."""
    from importlib import metadata  # takes 20 ms, and only hints for installations need it

    with suppress(metadata.PackageNotFoundError, OSError, DocumentError):
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}"
        return decode_json(text, DirectUrl)
    return DirectUrl()


def find_origin() -> str:
    """Return ``OWNER/REPOSITORY@COMMIT`` if pip installed this package from GitHub, otherwise
    ""."""
    origin = read_direct_url()
    repository, commit = parse_github(origin.url), origin.vcs_info.get("commit_id")
    return f"{repository}@{commit}" if repository and commit else ""


def parse_github(url: str) -> str:
    """Return ``OWNER/REPOSITORY`` of a URL on GitHub, otherwise ""."""
    owner = _ON_GITHUB.fullmatch(url)
    return owner[1] if owner else ""


def install_command(extra: str, python: str = "") -> str:
    """Return the command that installs this project with an extra from where this copy came (a
    repository, a directory, a wheel or a package index) in the way in which it was installed: by
    pip, by ``uv tool`` or by pipx. For uvx, return this command with the extra. With another
    ``python``, pip installs it there."""
    origin, has_checkout = read_direct_url(), (CHECKOUT / "pyproject.toml").is_file()
    path = Path(unquote(urlsplit(origin.url).path)) if origin.url.startswith("file:") else None
    commit = origin.vcs_info.get("commit_id")
    if repository := find_origin():
        target = f"{DISTRIBUTION}[{extra}] @ git+https://github.com/{repository}"
    elif commit:
        target = f"{DISTRIBUTION}[{extra}] @ git+{origin.url}@{commit}"
    elif path and origin.dir_info is None:
        target = f"{DISTRIBUTION}[{extra}] @ {path.as_uri()}"
    else:
        target = f"{path or (CHECKOUT if has_checkout else DISTRIBUTION)}[{extra}]"
    quoted = shell_word(target) if set(target) & set('"$`\\') else f'"{target}"'
    if python:
        return f"{shell_word(python)} -m pip install {quoted}"
    before, after = _choose_installer(Path(sys.prefix))
    return f"{before} {quoted}{after}"


def _choose_installer(prefix: Path) -> tuple[str, str]:
    """Return what stands before and after the requirement in a command that installs into an
    environment."""
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool install --force", ""
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx install --force", ""
    if prefix.parent.name.startswith(("archive-v", "environments-v")):  # uvx: in uv's cache
        return "uvx --from", " ".join([" qnn-ci", *map(shell_word, sys.argv[1:])])
    # Another pip is first on PATH in an environment of the noxfile or one that is not activated.
    is_own = Path(shutil.which("pip") or "") == Path(sys.executable).parent / "pip"
    return f"{'pip' if is_own else f'{shell_word(sys.executable)} -m pip'} install", ""


EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"


def read_clock(environ: Mapping[str, str] = os.environ) -> tuple[datetime, str]:
    """Return the time (UTC, whole seconds) and its source: ``clock`` or SOURCE_DATE_EPOCH.

    Raises UsageError if that variable is not a number of seconds since 1970.
    """
    text = environ.get(EPOCH_VARIABLE, "")
    if not text:
        return datetime.now(timezone.utc).replace(microsecond=0), "clock"
    try:
        return datetime.fromtimestamp(int(text), timezone.utc), EPOCH_VARIABLE
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{EPOCH_VARIABLE} is {text!r}, which is not a valid time",
            why=str(error),
            fix="set it to seconds since 1970, or unset it",
        ) from error


def read_date() -> str:
    """Return the date that read_clock finds, such as 2026-11-21. Raises UsageError."""
    return read_clock()[0].date().isoformat()
