"""The command line of both packages: a table of verbs, their parsers, and error handling.

A verb is a module with ``add_arguments(parser)`` and ``execute(args, progress) -> Outcome``. It is
imported only when it is called, so that fast verbs start fast.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, cast

from provisioning.console.caller import (
    CALLER,
    NOX_VARIABLE,
    SESSION_VARIABLE,
    Caller,
    caller_path,
    install_command,
    keep_cause,
    shown_path,
)
from provisioning.console.interrupts import catch_signals, ignore_signals
from provisioning.console.memory import guard_imports
from provisioning.console.progress import Progress
from provisioning.console.streams import PackageLog, packages_logged, user_stdout
from provisioning.console.terminal import (
    clean_message,
    clean_output,
    count_columns,
    fit_lines,
    open_missing_streams,
    write_message,
    write_output,
)
from provisioning.documents import read_text
from provisioning.errors import (
    DefectError,
    ExitCode,
    InterruptedRunError,
    QnnCiError,
    StoreError,
    UnfitError,
    UsageError,
)
from provisioning.files import NO_LEAVE, NO_ROOM, explain_write
from provisioning.quoting import shell_words

# Errors for an invalid path.
NAMES = frozenset({errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR})
OWN_PACKAGES = frozenset({"ci", "provisioning"})
# The extras with packages that the extra `lowering` does not include.
EXTRAS = {
    "cyclonedx": "device",
    **dict.fromkeys(("onnx", "onnxruntime", "onnxruntime_qnn"), "onnx"),
}
# Constants, because order_words and _show_traceback look for these options before argparse runs.
QUIET, VERBOSE = ("-q", "--quiet"), ("-v", "--verbose")
# Titles of groups in the help of verbs with many options.
WHAT, HOW, RESULTS, TOOLS = "what to run", "how to run it", "results", "QNN and ExecuTorch"
ONLY_PARSE = "QNN_CI_ONLY_PARSE"  # the noxfile checks arguments before it installs packages
GLOBAL = frozenset({*QUIET, *VERBOSE, "--json"})  # options that may precede the verb
NO_THREAD = "can't start new thread"  # a RuntimeError
NO_MAPPING = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")
# --chekc is like --check, but --sdk and --source, options of other verbs, are not like --soc.
ALIKE = 0.8
# Options that choose how a verb prints its result for people or a CI system
TEXT_FORMS = frozenset({"--annotate", "--github", "--markdown"})
# Errors that may occur anywhere, and their fixes.
REFUSALS = {
    errno.EACCES: "run the command as a user with this permission, or choose another path",
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "give the command more memory, or run fewer jobs at a time",
    errno.EPERM: "run the command as a user with this permission, or choose another path",
}


NOTHING_RENAMED: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Outcome:
    """The result of a verb: ``data`` for --json, ``text`` for people, and the exit code.

    Escape sequences for terminals and commands to CI runners are removed from ``text``. If
    ``exact`` is true, the lines of ``text`` are printed unchanged, because another program reads
    them or because they are already clean.
    """

    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = ExitCode.OK
    exact: bool = False

    def render(self, *, as_json: bool) -> str:
        """Return the text for stdout: ``data`` as JSON if ``as_json`` is true, else ``text``. Text
        that is not ``exact`` is cleaned and wrapped to the width of the terminal. Either ends with
        a newline.
        """
        if as_json:
            return render_json(self.data)
        text = self.text
        if not self.exact:
            text = fit_lines(clean_output(text), count_columns(user_stdout()))
        return f"{text}\n" if text and not text.endswith("\n") else text


def render_json(data: Mapping[str, Any]) -> str:
    """Return data as JSON that no CI runner interprets as a command."""
    # GitHub and Azure runners execute ## commands anywhere in a line of a log. The escape is the
    # same text for a JSON parser.
    return json.dumps(data, indent=1).replace("##", "#\\u0023") + "\n"


@dataclass(frozen=True)
class Verb:
    """One verb in a package's table of verbs; ``session`` is the nox session that runs it.

    If ``session`` ends in ``_``, the first argument after the verb completes its name.
    ``environment`` is the dependency group in pyproject.toml with the packages that the verb needs,
    or a function that returns it for the verb's arguments. ``core`` is enough for every --help,
    which shows ``examples`` of the arguments. ``find_successor`` returns the verb that arguments of
    earlier releases belong to now, or '' for all other arguments.
    """

    module: str
    help: str
    session: str = ""
    environment: str | Callable[[Sequence[str]], str] = "core"
    examples: tuple[str, ...] = ()
    find_successor: Callable[[Sequence[str]], str] = lambda _: ""

    def choose_environment(self, words: Sequence[str]) -> str:
        """Return the dependency group for a call with the arguments ``words``."""
        # So that --help does not wait until torch is installed.
        if {"-h", "--help"} & {*words}:
            return "core"
        return self.environment if isinstance(self.environment, str) else self.environment(words)


@dataclass(frozen=True)
class VerbGroup:
    """Verbs for one purpose: ``help NAME`` prints them. ``lines`` maps each verb to its line in the
    list of all verbs."""

    name: str
    title: str
    lines: Mapping[str, str]


Begin = Callable[[str, Sequence[str]], AbstractContextManager[None]]


class VerbModule(Protocol):
    """The functions of a verb's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def execute(self, args: argparse.Namespace, progress: Progress) -> Outcome: ...


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError."""

    def error(self, message: str) -> Any:
        """Raise UsageError, with a similar option or --model as a hint."""
        word = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        options = self._option_string_actions
        near = difflib.get_close_matches(word.partition("=")[0], options, 1, ALIKE)
        # It looks like a model (FILE.py:FUNCTION or a file) without --model in front of it.
        if ("." in word or ":" in word) and not word.startswith("-") and "--model" in options:
            near = [f"--model {word}"]
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(message, fix=f"{hint}see `{self.prog} --help`")

    def print_help(self, file: Any = None) -> None:
        """Print the help. A closed pipe is not an error."""
        del file  # argparse passes none
        write_output(self.format_help())


def run_program(
    program: str,
    verbs: Mapping[str, Verb],
    argv: Sequence[str],
    advise: Callable[[str], str] | None = None,
    begin: Begin | None = None,
    *,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
    groups: Sequence[VerbGroup] = (),
) -> int:
    """Run ``program VERB ...``, write its output to stdout, and return the exit code.

    For an error without a fix, ``advise`` is called with its text, such as the output of a failed
    tool, and returns a fix or ''. ``begin`` is called with the verb and its arguments before the
    verb's module is imported; the verb runs in its context. ``renamed`` maps verbs of an earlier
    release to the arguments that replace them. ``groups`` are the verbs by purpose, for the help.
    """
    # First, since a file that is opened before this could get the number of a closed stream.
    open_missing_streams()
    catch_signals()
    guard_imports()
    code, text = run_command(program, verbs, argv, advise, begin, renamed=renamed, groups=groups)
    # A signal that arrives while Python shuts down still belongs to the same interrupt.
    if code == ExitCode.INTERRUPTED:
        ignore_signals()
    try:
        write_output(text)
    except StoreError as error:
        write_message(f"{program}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code


def run_command(
    program: str,
    verbs: Mapping[str, Verb],
    argv: Sequence[str],
    advise: Callable[[str], str] | None = None,
    begin: Begin | None = None,
    *,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
    groups: Sequence[VerbGroup] = (),
) -> tuple[int, str]:
    """Run ``program VERB ...`` and return the exit code and the text for stdout.

    An error becomes a message on stderr and an exit code, and with ``--json`` also a record on
    stdout.
    """
    words = order_words(argv)
    if words and words[0] in renamed:
        text = f"warning: {words[0]} will be removed in the next release; use {renamed[words[0]]}"
        write_message(f"{program}: {text}\n")
        words = replace_renamed(words, renamed)
    sessions = {name: verb.session for name, verb in verbs.items()}
    nox, session = (os.environ.get(name, "") for name in (NOX_VARIABLE, SESSION_VARIABLE))
    caller = Caller(program, sessions, tuple(words), nox, session)
    as_json = "--json" in words
    if words and words[0] in {"-h", "--help", "help"}:
        return ExitCode.OK, describe_verbs(caller, verbs, groups)
    for group in groups:
        if words == [group.name, "--help"]:
            return ExitCode.OK, describe_group(caller, verbs, group)
    if words and words[0] in {"-V", "--version"}:
        return ExitCode.OK, f"executorch-qnn-ci {read_version()}\n"
    # A user who knows a verb only from ./nox types the name of its session.
    name = find_verb(verbs, words[0]) if words else ""
    before = CALLER.set(caller)
    try:
        early = begin(name, words[1:]) if begin and name else nullcontext()
        with packages_apart(words), early:
            outcome = _run_verb(caller, verbs, name, words, groups)
    except KeyboardInterrupt:
        return _report_error(caller, name, InterruptedRunError("interrupted"), as_json=as_json)
    except Exception as raised:  # noqa: BLE001 - without -v, a user never sees a traceback
        error = raised if isinstance(raised, QnnCiError) else explain_exception(raised)
        # An error with its own fix knows more than the rules for the output of tools.
        if advise and not error.fix:
            error.fix = advise(f"{error.what}\n{error.why}")
        _show_traceback(words)
        return _report_error(caller, name, error, as_json=as_json)
    finally:
        CALLER.reset(before)
    if outcome.exit_code:
        keep_cause("\n".join(clean_output(outcome.text).strip().splitlines()[-1:]))
    return outcome.exit_code, caller.translate(outcome.render(as_json=as_json))


@contextmanager
def packages_apart(words: Sequence[str]) -> Iterator[None]:
    """Let what other packages print in the block go to a log (see packages_logged). Then print
    where it is or, after an error that is not the caller's mistake, its last lines."""
    with packages_logged() as log:
        try:
            yield
        except (KeyboardInterrupt, UsageError):
            raise
        except Exception as error:
            if log:
                show_tail(log, error)
            raise
        if log:
            log.end()
            if log.path and not {*QUIET} & {*words}:
                write_message(f"what other packages printed: {shown_path(log.path)}\n")


def show_tail(log: PackageLog, error: Exception) -> None:
    """Print the last lines of a log that the error does not contain, and the log's path."""
    log.end()
    shown = f"{error.what}\n{error.why}" if isinstance(error, QnnCiError) else str(error)
    if lines := [line for line in log.tail() if line not in shown]:
        text = "".join(f"  | {line}\n" for line in lines)
        write_message(f"the last lines that other packages printed:\n{text}")
    if log.path:
        write_message(f"all of them: {shown_path(log.path)}\n")


def replace_renamed(words: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    """Return the arguments of a call with a verb of an earlier release replaced. ``words`` are
    ordered as order_words returns them."""
    if not words or words[0] not in renamed:
        return list(words)
    verb, *arguments = renamed[words[0]].split()
    return order_words([verb, *arguments, *words[1:]])


def order_words(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the verb first: ``help VERB`` becomes ``VERB --help``, and global
    options before the verb follow it."""
    global_words = list(takewhile(lambda word: word in GLOBAL, argv))
    words = list(argv[len(global_words) :])
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    return [*words[:1], *global_words, *words[1:]]


def _show_traceback(words: Sequence[str]) -> None:
    """With --verbose, print the traceback of the exception that is handled now."""
    if {*VERBOSE} & {*takewhile(lambda word: word != "--", words)}:
        write_message(traceback.format_exc())


def find_verb(verbs: Mapping[str, Verb], word: str) -> str:
    """Return the verb with the name or the nox session ``word``, or '' if there is none."""
    runs = (name for name, verb in verbs.items() if verb.session == word)
    return word if word in verbs else next(runs, "")


def read_version() -> str:
    """Return the version of the installed distribution, else the version in the checkout's
    pyproject.toml.
    """
    # Imported here, because few commands need it and it takes 20 ms.
    from importlib import metadata

    try:
        return metadata.version("executorch-qnn-ci")
    except metadata.PackageNotFoundError:
        text = read_text(Path(__file__).parents[2] / "pyproject.toml")
        match = re.search(r'(?m)^version = "(.+)"$', text)
        return match[1] if match else "of an unknown version"


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments. Names may stand before and behind options, as in
    `cache key --json emulator`, which argparse refuses by default."""
    unread = parser.parse_known_args(words)[1]
    if unread and not any(word.startswith("-") for word in unread):
        with suppress(TypeError):  # of a parser whose words another one reads, such as image's
            return parser.parse_intermixed_args(words)
    return parser.parse_args(words)


def list_flags(words: Sequence[str]) -> frozenset[str]:
    """Return the options among the words of a call, as typed, without their values. A parsed value
    does not tell whether it was typed: `--jobs 2` is the default on a machine with two cores."""
    options = takewhile(lambda word: word != "--", words)
    return frozenset(word.partition("=")[0] for word in options if word.startswith("--"))


def require_one_value(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Raise UsageError for an option that takes a single choice and is typed with several:
    argparse uses the last, so that the others would have no effect. Other values, such as a folder,
    may follow those of a script that calls this command."""
    values_of_flags: dict[str, list[str]] = {}
    options = list(takewhile(lambda word: word != "--", words))
    for word, following in zip_longest(options, options[1:], fillvalue=""):
        flag, is_joined, value = word.partition("=")
        action = parser._option_string_actions.get(flag)
        if isinstance(action, argparse._StoreAction) and action.nargs is None and action.choices:
            values_of_flags.setdefault(flag, []).append(value if is_joined else following)
    for flag, values in values_of_flags.items():
        if len({*values}) > 1:
            raise UsageError(
                f"{flag} is typed several times, with {' and '.join(dict.fromkeys(values))}",
                why=f"it takes one value, so that {values[0]} would have no effect",
                fix="pass it once",
            )


def _refuse_word(
    caller: Caller, verbs: Mapping[str, Verb], groups: Sequence[VerbGroup], words: Sequence[str]
) -> NoReturn:
    """Raise UsageError for a call whose first word is not a verb: ``help JOB`` needs a job, too."""
    commands = {name: name for name in [*verbs, "help"]}
    commands |= {group.name: f"help {group.name}" for group in groups if group.name not in commands}
    near = difflib.get_close_matches(words[0], commands)
    hint = f"did you mean {commands[near[0]]}? " if near else ""
    is_help = bool(groups) and words[1:2] == ["--help"]
    kind, kinds = ("verb or job", "verbs and jobs") if is_help else ("verb", "verbs")
    raise UsageError(
        f"unknown {kind} {words[0]!r}", fix=f"{hint}`{caller.label()} --help` lists the {kinds}"
    )


def _run_verb(
    caller: Caller,
    verbs: Mapping[str, Verb],
    name: str,
    words: list[str],
    groups: Sequence[VerbGroup] = (),
) -> Outcome:
    if not words or words[0] in GLOBAL:
        write_message(describe_verbs(caller, verbs, groups))
        raise UsageError("a verb is missing", fix="use one of the verbs above")
    if not name:
        _refuse_word(caller, verbs, groups, words)
    together = list_together(caller.sessions, name)
    for called in (name, *together):
        require_current(
            caller, verbs, called, words[2 if verbs[name].session.endswith("_") else 1 :]
        )
    parser = make_parser(caller, verbs, name)
    # nox passes the arguments after -- to every session of a call, so that each verb also gets the
    # options that were meant for the others.
    other_parsers = [make_parser(caller, verbs, called) for called in together]
    own_words, left = (
        keep_own(words[1:], parser, other_parsers) if other_parsers else (words[1:], [])
    )
    args = _parse(parser, own_words)
    args.typed_flags = list_flags(own_words)
    require_one_value(parser, own_words)
    if args.json and (lost := sorted(TEXT_FORMS & args.typed_flags)):
        raise UsageError(
            f"{lost[0]} cannot be used with --json",
            why="--json prints only the result, as JSON, so that the option would have no effect",
            fix=f"leave out --json, or {lost[0]}",
        )
    # A misspelled option is reported before the noxfile installs packages for the session.
    if os.environ.get(ONLY_PARSE):
        return Outcome()
    progress = Progress() if args.quiet else Progress.to_stderr()
    if left:
        progress.step(
            f"ignored, because only other sessions of this command accept them: {' '.join(left)}"
        )
    return load_verb(verbs[name]).execute(args, progress)


def require_current(
    caller: Caller, verbs: Mapping[str, Verb], name: str, words: Sequence[str]
) -> None:
    """Raise UsageError if another verb does now what the arguments of a verb ask for. The fix is
    the command of all sessions of this call, with that verb's session."""
    if successor := verbs[name].find_successor(words):
        renamed = {verbs[name].session: verbs[successor].session}
        names = [
            renamed.get(session_name, session_name)
            for session_name in os.environ.get(SESSIONS_VARIABLE, "").split()
        ]
        command = f"{caller.nox} -s {' '.join(names)} --" if names else f"qnn-ci {successor}"
        raise UsageError(
            f"{successor} runs this now, not {name}", fix=f"run `{command} {shell_words(words)}`"
        )


def load_verb(verb: Verb) -> VerbModule:
    """Import and return the module of a verb."""
    return cast(VerbModule, importlib.import_module(verb.module))


def make_parser(caller: Caller, verbs: Mapping[str, Verb], name: str) -> Parser:
    """Return the parser of a verb; its help shows the command as the caller typed it."""
    example_lines = (
        f"  {caller.command(name, example.split())}\n" for example in verbs[name].examples
    )
    parser = Parser(
        prog=caller.label(name, passing=True),
        description=verbs[name].help,
        epilog=f"examples:\n{''.join(example_lines)}" if verbs[name].examples else "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # keep_own recognizes options by their whole names; an abbreviation would be refused for one
        # verb and taken for another.
        allow_abbrev=False,
    )
    add_global_arguments(parser)
    # Imports the verb's module, so a verb must not import heavy packages before execute.
    load_verb(verbs[name]).add_arguments(parser)
    return parser


def add_global_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every verb."""
    add = parser.add_argument
    add("--json", action="store_true", help="print only the result, as JSON")
    add(*QUIET, action="store_true", help="print no progress, only the result and errors")
    add(*VERBOSE, action="store_true", help="print the traceback of an error, too")


def between(lowest: float, highest: float, kind: type[float] = float) -> Callable[[str], float]:
    """Return the ``type`` of an argument that is a number from ``lowest`` to ``highest``, which nan
    and inf are not. ``kind`` is int for an integer."""

    def parse(text: str) -> float:
        value = kind(text)
        # nan fails every comparison, so that this refuses it, too.
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(
                f"{text[:20]} is not between {lowest:g} and {highest:g}"
            )
        return value

    parse.__name__ = kind.__name__  # argparse names it for a text that is not a number
    return parse


def group_options(
    parser: argparse.ArgumentParser, title: str = ""
) -> Callable[..., argparse.Action]:
    """Return a function that adds an argument to the parser's group with this title, which is
    created if it does not exist, or to no group. The function is called with a flag or a name and,
    after a space, its metavar; with the help; and with settings of ArgumentParser.add_argument."""
    groups = (group for group in parser._action_groups if group.title == title)
    group = (next(groups, None) or parser.add_argument_group(title)) if title else parser

    def add(usage: str, text: str, **settings: Any) -> argparse.Action:
        flag, _, metavar = usage.partition(" ")
        settings |= {"metavar": metavar} if metavar else {}
        return group.add_argument(flag, help=text, **settings)

    return add


def explain_no_directory(error: OSError) -> UnfitError:
    """Return the error for a directory without a name that does not exist: the current one, or that
    of temporary files."""
    try:
        Path.cwd()
    except FileNotFoundError:
        where = os.environ.get("PWD", "")
        return UnfitError(
            f"the current directory{f' {where}' if where else ''} does not exist any more",
            fix="change to another directory, such as with `cd ~`, and type the command again",
        )
    return UnfitError(error.strerror or str(error), fix="set TMPDIR to a writable directory")


def explain_limit(error: BaseException) -> UnfitError | None:
    """Return the error for an exception that a limit of memory or threads caused, else None. The
    dynamic linker reports such a limit as an ImportError of the library that it cannot map."""
    # Otherwise, a library that does not fit into the limit would be reported as one that is not
    # installed.
    is_import = isinstance(error, ImportError) and any(text in str(error) for text in NO_MAPPING)
    if not (is_import or isinstance(error, MemoryError) or str(error) == NO_THREAD):
        return None
    return UnfitError(
        str(error) if str(error) == NO_THREAD else "out of memory",
        why=f"an allocation failed (see `ulimit -v`, `ulimit -u` and the container's limits)"
        f"{f': {error}' * is_import}",
        fix="raise the limit, or run fewer jobs at a time",
    )


def explain_exception(error: Exception) -> QnnCiError:
    """Return the QnnCiError for an exception that is not a QnnCiError itself."""
    if limit := explain_limit(error):
        return limit
    # A missing module of this project is a defect, not a package to install.
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] not in OWN_PACKAGES:
        return explain_missing(error)
    if isinstance(error, OSError) and error.filename and error.errno in NAMES:
        return UsageError(f"{error.filename}: {error.strerror}", fix="choose another path")
    if str(error).startswith(("Symlink loop", "embedded null ")):  # Path.resolve before Python 3.13
        return UsageError(str(error), fix="choose another path or name")
    if isinstance(error, OSError) and error.errno == errno.ENOENT and not error.filename:
        return explain_no_directory(error)
    if isinstance(error, OSError) and is_refused_write(error):
        return explain_write(Path(error.filename or "a file"), error, "choose another path")
    if isinstance(error, OSError) and error.errno in REFUSALS:
        where = f"{error.filename}: " if error.filename else ""
        return UnfitError(
            f"{where}{error.strerror}",
            why="the system refused a necessary operation",
            fix=REFUSALS[error.errno],
        )
    return DefectError(
        f"unexpected {type(error).__name__}: {error}",
        why="this is a bug in executorch-qnn-ci",
        fix=f"report it, and attach {keep_traceback(error)}",
    )


def is_refused_write(error: OSError) -> bool:
    """Return whether ``error`` comes from writing: the disk is full or read-only, or permission to
    write was refused.

    A permission error counts as a refused write if the process may read the file. If the file does
    not exist, it counts if the process may enter its directory.
    """
    if error.errno in NO_ROOM or error.errno == errno.EROFS:
        return True
    if error.errno not in NO_LEAVE or not error.filename:
        return False
    # EACCES is also what reading reports, and a file that may not be read is no refused write.
    path = Path(os.fsdecode(error.filename))
    exists = os.access(
        path, os.F_OK
    )  # path.exists() fails if the process may not enter a directory
    return os.access(path, os.R_OK) if exists else os.access(path.parent, os.X_OK)


def explain_missing(error: ImportError) -> UnfitError:
    """Return the error for a package that is not installed in this Python or cannot be imported."""
    missing = isinstance(error, ModuleNotFoundError)
    package = (error.name or "").partition(".")[0]
    return UnfitError(
        f"this Python has no package {error.name!r}" if missing else f"import failed: {error}",
        why=f"{sys.executable} lacks a package that this command needs, or cannot import it",
        fix=install_command(EXTRAS.get(package, "lowering")),
    )


def keep_traceback(error: Exception) -> str:
    """Write the traceback to a file for a bug report, and return the file's path. If it cannot be
    written, return text that says how to get it.
    """
    try:
        # delete=False: the user attaches the file to a report after this process has ended.
        with tempfile.NamedTemporaryFile(
            "w", prefix="qnn-ci-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return "the traceback; to get it, set TMPDIR to a writable directory and try again"
    return file.name


def _report_error(
    caller: Caller, name: str, error: QnnCiError, *, as_json: bool
) -> tuple[int, str]:
    message = f"{caller.label(name)}: {caller.translate(str(error))}"
    write_message(f"{message}\n")
    # The noxfile prints the cause again after all sessions, whose output has scrolled it away.
    keep_cause(clean_message(message))
    if not as_json:
        return error.exit_code, ""
    record = {
        "error": type(error).__name__,
        "what": caller.translate(error.what),
        "why": caller.translate(error.why),
        "fix": caller.translate(error.fix),
        "exit_code": int(error.exit_code),
    }
    return error.exit_code, render_json(record)


def describe_verbs(
    caller: Caller, verbs: Mapping[str, Verb], groups: Sequence[VerbGroup] = ()
) -> str:
    """Return the usage of a program, with one verb per line, in groups if there are any."""
    command = caller.label()
    usage = [f"usage: {command} VERB [--json] [-q] [-v] ...", f"       {command} help VERB"]
    usage += [f"       {command} help JOB"] if groups else []
    usage.append(f"       {command} -V")
    width = max(map(len, verbs), default=0)
    blocks = ["\n".join(usage)]
    for group in groups or [
        VerbGroup("", "verbs:", {name: verb.help for name, verb in verbs.items()})
    ]:
        title = f"{group.title} (help {group.name})" if group.name else group.title
        rows = (f"  {name:<{width}}  {text}" for name, text in group.lines.items())
        blocks.append("\n".join([title, *rows]))
    return "\n\n".join(blocks) + "\n"


def describe_group(caller: Caller, verbs: Mapping[str, Verb], group: VerbGroup) -> str:
    """Return the verbs of a group, each with what it does and examples."""
    blocks = []
    for name, text in group.lines.items():
        examples = verbs[name].examples
        lines = [f"    {caller.command(name, example.split())}" for example in examples]
        blocks.append("\n".join([f"  {name}: {text}", *lines]))
    return "\n\n".join([group.title, *blocks]) + "\n"


def nonempty_word(text: str) -> str:
    """Return ``text``, an option's value. Raises UsageError if it is empty, for example because a
    shell variable in it is not set.
    """
    if not text:
        fix = "if it comes from a shell variable, check that the variable is set"
        raise UsageError("an option's value is empty", fix=fix)
    return text


def user_path(text: str) -> Path:
    """Return the path that a user gave, resolved against the directory where ./nox was called
    (QNN_CI_CALLER_DIR).

    Raises UsageError for an empty path, which would be that directory itself.
    """
    path = Path(nonempty_word(text))
    try:
        return caller_path(path.expanduser())
    except RuntimeError as error:  # no home directory
        raise UsageError(f"{text} is not a valid path", why=str(error)) from error


# Settings of arguments, for ArgumentParser.add_argument.
Settings = Mapping[str, Any]
FLAG: Settings = {"action": "store_true"}
MANY: Settings = {"action": "append", "default": []}
FILE: Settings = {"type": user_path, "metavar": "FILE"}
DIR: Settings = {"type": user_path, "metavar": "DIR"}


def user_program(text: str) -> str:
    """Return the program that a user specified: an absolute path if ``text`` contains a slash, else
    ``text`` itself, a name to find on PATH. Raises UsageError if it is empty.
    """
    return os.path.abspath(user_path(text)) if "/" in text or not text else text  # noqa: PTH100


def user_command(words: Sequence[str]) -> list[str]:
    """Return a user's command in a form that works in any directory: the paths of its program and
    of existing files in its arguments become absolute.

    Links are not resolved, since the Python of a virtual environment is a link.
    """
    # The command may run in a directory other than the one where the user typed it.
    program = user_program(words[0])
    files = [str(user_path(word)) if word else word for word in words[1:]]
    # PATH may contain relative directories, too.
    paths = [shutil.which(program) or program, *files]
    return [
        os.path.abspath(path) if os.path.isfile(path) else word  # noqa: PTH100, PTH113
        for path, word in zip(paths, [program, *words[1:]], strict=True)
    ]


SESSIONS_VARIABLE = "QNN_CI_SESSIONS"  # the sessions of one call, if several


def list_together(sessions: Mapping[str, str], excluded: str) -> list[str]:
    """Return the verbs, except ``excluded``, whose sessions run in the same call of nox.
    ``sessions`` maps verbs to nox sessions; a name that ends in ``_`` is the prefix of several
    sessions.
    """
    names = os.environ.get(SESSIONS_VARIABLE, "").split()
    called = {*names, *(name[: name.find("_") + 1] for name in names)}  # build_ of build_android
    return [
        verb
        for verb, session in sessions.items()
        if verb != excluded and session and session in called
    ]


def keep_own(
    words: Sequence[str],
    parser: argparse.ArgumentParser,
    other_parsers: Iterable[argparse.ArgumentParser],
) -> tuple[list[str], list[str]]:
    """Split ``words`` into this verb's arguments and the options that only ``other_parsers`` know.
    These options keep their values.

    An option that no parser knows counts as this verb's, so that ``parser`` refuses it.
    """
    mine = parser._option_string_actions
    theirs = {
        name: action
        for other_parser in other_parsers
        for name, action in other_parser._option_string_actions.items()
    }
    own_words: list[str] = []
    other_words: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name = word.partition("=")[0]  # --model for --model=mlp
        if name not in {*mine, *theirs}:
            name = word[:2]  # -D for -DA=1
        action = mine.get(name) or theirs.get(name)
        count = _count_values(action, word == name, remaining) if action else 0
        target = other_words if action and name not in mine else own_words
        target += [word, *remaining[:count]]
        del remaining[:count]
    return own_words, other_words


def _count_values(action: argparse.Action, is_bare: bool, remaining: Sequence[str]) -> int:
    """Return how many of the arguments ``remaining`` after an option are its values. ``is_bare`` is
    false for an option such as ``--model=mlp``, which contains its value.
    """
    if not is_bare:
        return 0
    following = len(list(takewhile(lambda word: not word.startswith("-"), remaining)))
    if isinstance(action.nargs, int):
        return action.nargs
    return {None: 1, "?": min(1, following)}.get(action.nargs, following)
