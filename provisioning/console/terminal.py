"""Make text of unknown origin safe to print, and handle standard streams that are closed or full.

Names of files, branches, models and manifest entries, and the output of tools, are printed on
terminals and in CI logs. Neither a terminal nor a CI runner may interpret them as commands.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from contextlib import suppress
from typing import TextIO

from provisioning.console.streams import user_stderr, user_stdout
from provisioning.errors import StoreError, mask_credentials

# For encodings without them: the line below the head of a table, and the heights of bars
PLAIN_DRAWINGS = str.maketrans("─▁▂▃▄▅▆▇█", "-12345678")
# Control characters except tab and newline, and the bidirectional overrides that reorder what a
# reader sees.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
# The same, and characters that XML 1.0 does not allow.
_UNSAFE = re.compile(f"[{_CONTROLS}\ud800-\udfff\ufffe\uffff]")
# ECMA-48: CSI with its parameters, OSC up to BEL or ST, and sequences of two characters.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROL = re.compile(f"[{_CONTROLS}]")
# GitHub and Azure runners execute these anywhere in a line of a log.
_RUNNER_COMMAND = re.compile(r"##(?=\[|vso\[)")
LEAST_COLUMNS = 40  # on narrower terminals, lines are wrapped to this width
_RUNNER_LINE = re.compile(r"(?m)^([^\S\n]*):(?=:)")


def clean(text: str) -> str:
    """Return ``text`` without escape sequences and unsafe characters; keep newlines and tabs."""
    return _UNSAFE.sub("", _ANSI.sub("", _whole_lines(text)))


def clean_output(text: str) -> str:
    """Return ``text`` without commands for terminals and CI runners. Undecodable bytes are kept."""
    return _defuse(_CONTROL.sub("", _ANSI.sub("", _whole_lines(text))))


def clean_message(text: str) -> str:
    """Return ``text`` without commands for terminals and CI runners, and without passwords.

    Bytes that are not UTF-8 are shown as ``\\udcff``.
    """
    shown = mask_credentials(text.encode("utf-8", "backslashreplace").decode("utf-8"))
    return _defuse(clean(shown))


def defuse_commands(text: str) -> str:
    """Return ``text`` with a space inserted into each command that CI runners would execute in the
    middle of a line. They then ignore it.
    """
    return _RUNNER_COMMAND.sub("# #", text)


def _defuse(text: str) -> str:
    return defuse_commands(_RUNNER_LINE.sub(r"\1: ", text))


def _whole_lines(text: str) -> str:
    # A carriage return would let text overwrite the start of its line.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def open_missing_streams() -> None:
    """Open the null device for every standard stream that the caller closed.

    Otherwise, the next file or pipe that is opened would get the stream's number, and output would
    go there. Processes that are started later inherit the null device.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # noqa: PERF203 - three rounds
            # The lowest free number, hence this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123


def count_columns(stream: TextIO) -> int | None:
    """Return the width of a terminal (COLUMNS takes precedence), or None if it is not a
    terminal."""
    with suppress(OSError, ValueError):
        if not stream.isatty():
            return None
        variable = os.environ.get("COLUMNS", "")
        if variable.isdigit():
            return int(variable)
        # Some terminals, such as a serial line, report 0.
        return os.get_terminal_size(stream.fileno()).columns or None
    return None


_COMMAND = re.compile(r"`[^`\n]+`")
_GLUE = "\ue000"  # private use: no text contains it, and nothing wraps at it


def join_commands(text: str) -> str:
    """Return ``text`` with its commands, which are between backquotes, as single words, so that
    wrapped lines contain whole commands, which can be copied. split_commands undoes this."""
    return _COMMAND.sub(lambda command: command[0].replace(" ", _GLUE), text)


def split_commands(text: str) -> str:
    """Return ``text`` with the spaces in its commands, which join_commands replaced."""
    return text.replace(_GLUE, " ")


def fit_lines(text: str, columns: int | None) -> str:
    """Wrap ``text`` between words to lines of at most ``columns`` characters, but at least
    LEAST_COLUMNS. Commands, and words that are longer, stay whole. None means no limit.
    """
    if columns is None:
        return text
    return "".join(_fit_line(line, max(columns, LEAST_COLUMNS)) for line in text.splitlines(True))


def _fit_line(line: str, columns: int) -> str:
    bare = line.rstrip("\n")
    if len(bare) <= columns:
        return line
    indent = bare[: len(bare) - len(bare.lstrip())]
    fitted = textwrap.fill(
        join_commands(bare),
        columns,
        subsequent_indent=f"{indent}    ",
        replace_whitespace=False,
        # Options and paths contain hyphens, and are copied from the output.
        break_on_hyphens=False,
        break_long_words=False,
    )
    return split_commands(fitted) + line[len(bare) :]


def write_message(text: str) -> None:
    """Write ``text`` to stderr, cleaned with clean_message and wrapped to the terminal."""
    stream = user_stderr()
    write_through(stream, fit_lines(clean_message(text), count_columns(stream)))


def write_through(stream: TextIO, text: str) -> None:
    """Write ``text`` unchanged and flush. If ``stream`` cannot be written, silence it."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        silence(stream)


def write_output(text: str) -> None:
    """Write ``text`` to stdout. A closed pipe is not an error.

    A path that is not UTF-8 is written as its raw bytes. Raises StoreError if stdout cannot be
    written, for example because it is a file on a full disk.
    """
    stream = user_stdout()
    try:
        stream.write(_encodable(text, stream))
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError as error:
        silence(stream)
        raise StoreError(
            "the result cannot be written to stdout",
            why=str(error),
            fix="check where stdout is redirected to",
        ) from error


def _encodable(text: str, stream: TextIO) -> str:
    """Return ``text`` in a form that ``stream`` can write. If its encoding lacks a character of the
    text, lines and bars become dashes and digits, and others backslash escapes. Otherwise, the text
    is unchanged, and the stream is made to accept raw bytes in it.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        # A path in bytes that are not UTF-8 has to be printed as it is, so that another program can
        # open it.
        text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        plain = text.translate(PLAIN_DRAWINGS)
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    with suppress(AttributeError):
        stream.reconfigure(errors="surrogateescape")  # type: ignore[attr-defined]
    return text


def silence(stream: TextIO) -> None:
    """Redirect ``stream`` to the null device, so that the interpreter's final flush succeeds."""
    with suppress(OSError, ValueError):
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # The descriptor itself, since the interpreter flushes the stream once more when it exits,
        # and would print an error.
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
