"""The command line that both packages share: a table of verbs, one parser, one way to end.

A verb is a module with ``add_arguments(parser)`` and ``execute(args, progress) -> Outcome``;
it is imported only when it is called, so that a quick verb stays quick.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from provisioning.errors import ExitCode, FailedError, QnnCiError, UnfitError
from provisioning.progress import Progress


@dataclass(frozen=True)
class Outcome:
    """What a verb came to: ``data`` for --json, ``text`` for a person, and the exit code."""

    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: ExitCode = ExitCode.OK


@dataclass(frozen=True)
class Verb:
    """A row of a package's table of verbs."""

    module: str
    help: str


class VerbModule(Protocol):
    """What a verb's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def execute(self, args: argparse.Namespace, progress: Progress) -> Outcome: ...


class Parser(argparse.ArgumentParser):
    """argparse, with its usage error in the tree's exit code."""

    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")


def run_command(program: str, verbs: Mapping[str, Verb], argv: Sequence[str]) -> tuple[int, str]:
    """Run ``program VERB ...`` and return the exit code and what belongs on stdout.

    Every error of the tree becomes its message on stderr and its exit code.
    """
    words = list(argv)
    if not words or words[0] not in verbs:
        return _overview(program, verbs, words)
    name = words[0]
    try:
        module = cast(VerbModule, importlib.import_module(verbs[name].module))
    except ModuleNotFoundError as error:
        return _report_error(program, name, explain_missing(error), as_json="--json" in words)
    parser = Parser(prog=f"{program} {name}", description=verbs[name].help)
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON, nothing else"
    )
    module.add_arguments(parser)
    args = parser.parse_args(words[1:])
    try:
        with sigterm_as_interrupt():
            outcome = module.execute(args, Progress.to_stderr())
    except QnnCiError as error:
        return _report_error(program, name, error, as_json=args.json)
    except KeyboardInterrupt:
        sys.stderr.write(f"{program} {name}: interrupted\n")
        return ExitCode.INTERRUPTED, ""
    except Exception as error:  # noqa: BLE001 - the last line of defence: never a traceback
        return _report_error(program, name, explain_defect(error), as_json=args.json)
    if args.json:
        return outcome.exit_code, json.dumps(outcome.data, indent=1) + "\n"
    return outcome.exit_code, outcome.text


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM what Ctrl-C is: a CI that cancels a job sends it, and children must not stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def explain_missing(error: ModuleNotFoundError) -> UnfitError:
    """A package that a verb needs is not installed in this Python."""
    return UnfitError(
        f"this Python has no package {error.name!r}",
        why=f"{sys.executable} was not set up for this",
        todo="run the nox session, which installs what it needs, or pip install this project",
    )


def explain_defect(error: Exception) -> FailedError:
    """An error that nobody foresaw is a defect of ours; its traceback goes to a file."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="qnn-ci-error-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    return FailedError(
        f"unexpected {type(error).__name__}: {error}",
        why="this is a defect of executorch-qnn-ci",
        todo=f"report it with {file.name}",
    )


def _report_error(program: str, name: str, error: QnnCiError, *, as_json: bool) -> tuple[int, str]:
    sys.stderr.write(f"{program} {name}: {error}\n")
    if not as_json:
        return error.exit_code, ""
    record = {
        "error": type(error).__name__,
        "what": error.what,
        "why": error.why,
        "do": error.todo,
        "exit_code": int(error.exit_code),
    }
    return error.exit_code, json.dumps(record, indent=1) + "\n"


def _overview(program: str, verbs: Mapping[str, Verb], words: list[str]) -> tuple[int, str]:
    width = max(map(len, verbs), default=0)
    rows = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in verbs.items())
    text = f"usage: {program} VERB [--json] ...\n\nverbs:\n{rows}\n"
    if words and words[0] in {"-h", "--help"}:
        return ExitCode.OK, text
    what = f"no verb {words[0]!r}" if words else "a verb is missing"
    sys.stderr.write(f"{program}: {what}\n\n{text}")
    return ExitCode.USAGE, ""


def given_path(text: str) -> Path:
    """A path that the user gave, relative to where ./nox was called (QNN_CI_CALLER_DIR)."""
    return Path(os.environ.get("QNN_CI_CALLER_DIR", ""), text).expanduser()


def write_stdout(text: str) -> int:
    """Write ``text`` to stdout. A reader that has gone away is not an error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
