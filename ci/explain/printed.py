"""Find the lines of a log that a command printed which the log shows, too, as a trace of `set -x`
does: what `+ echo 'Error'` prints is a quotation, as the command is.

A line counts only if it is what the command prints, and follows the command: directly, behind other
commands, or, for a script that GitHub shows as a whole, in the same step. A text that a command of
the trace found out, as in ``out=$(make 2>&1); echo "$out"``, is none of the script's.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from provisioning.quoting import script_word

LINE_BYTES = 4000  # of a line that may be a command or printed by one
LINES_BEFORE = 20  # in which the value of a variable that a command prints was found out
COMMAND_LINES = 20  # behind the first one of a command between quotation marks
CAT_LINES = 20  # that are taken for the text of a script if `cat` reads no file
MOST_TEXTS = 100  # of a step of GitHub
MOST_WAITING = 20  # commands, of which the lines may come next
MOST_COMMANDS = 5000  # of a log are read; reading one takes about 0.2 ms
LEAST_CHARS = 8  # of a text with variables, besides these
MARKS = (
    *(b"echo ", b"printf ", b"print(", b"print ", b"console.log(", b"puts ", b"cat <<", b"+ cat\n"),
    *(b"write-host ", b"write-output ", b"write-error ", b"write-warning "),
)
_SHOWN = re.compile(
    r"(?P<head>(?:^|[^\n]{0,200}?[\s(@;|&>:'\"-]))(?:(?P<shell>echo|printf|print(?= [\"'])) "
    r"|(?P<powershell>(?i:Write-(?:Host|Output|Error|Warning))) |puts "
    r"|(?P<call>print|console\.log)(?=\())(?P<arguments>[^\n]*)"
)
_TRACE = re.compile(r"\++")
_CAT = re.compile(r"\+[^'\"]{0,80}\bcat\s*$")
_HEREDOC = re.compile(r"\bcat <<-?\s*['\"\\]?(?P<end>\w+)['\"]?\s*(?P<redirected>>)?")
_ASSIGNMENT = re.compile(r"\++ (?:(?:local|export|declare|readonly)(?: -\w+)* )?\w+=(?P<text>.*)")
_AFTER_RUN = re.compile(r"\s{2}|(?:shell|env|with):|##\[endgroup\]|\s*---> Running in ")
_ANNOTATION = re.compile(r"(?:::|##\[)(?:error|warning|notice|debug)\b[^:\]]*(?:::|\])")
_COLOUR = re.compile("\x1b\\[[\\d;]*m")
_VARIABLE = re.compile(r"\$\w+|\$\{[^{}]*\}|\$\(date\b[^()]*\)|%\w+%|\$[@*#?]")
_ESCAPE = re.compile(r"\\(?:([abefnrtv\\'\"])|0?([0-7]{1,3})|x([0-9a-fA-F]{1,2}))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "", "e": "\x1b", "a": "", "b": "", "f": "", "v": ""}
_ANSI_C = re.compile(r"\$'((?:[^'\\]|\\.)*)'")
_CONVERSION = re.compile(r"%([-+ 0#]*\d*(?:\.\d+)?)([sdiuxXqbcfg%])")
_REDIRECTION = re.compile(r"[&\d]?[<>]+[&|]?")
_PARAMETER = re.compile(r"(?:^| )-[A-Z]\w+(?: \w+)?(?= |$)")  # of PowerShell, outside of texts
_OPTION = re.compile(r"-[neE]+|--")
_WILD = "\0"  # stands for the value of a variable
# Programs whose output is a part of a message, and never an error.
_HARMLESS = {
    *("date", "basename", "dirname", "hostname", "whoami", "pwd", "id", "uname", "nproc", "wc"),
    *("echo", "printf", "tput", "seq", "getconf", "realpath", "readlink"),
}
# Builtins that print nothing: `cat` behind them reads a text of the script, and no pipe.
_SILENT = {
    *("cd", "set", "export", "test", "[", "[[", ":", "true", "false", "local", "mkdir", "case"),
    *("shift", "source", ".", "trap", "unset", "declare", "usage", "return", "shopt", "umask"),
}


@dataclass
class Printed:
    """What the commands print that a log has shown so far."""

    # The lines that may come next, per command
    texts: list[list[re.Pattern[str]]] = field(default_factory=list)
    of_step: dict[bytes, re.Pattern[str]] = field(default_factory=dict)  # by what they contain
    lines_left: int = 0  # of a command with several lines, or of what `cat` prints
    is_run: bool = False  # whether GitHub shows the command, before the step's settings
    heredoc: str = ""  # the last line of a text in a script
    commands: int = 0  # that were read

    @property
    def marks(self) -> tuple[bytes, ...]:
        """What a line contains that may be a command or printed by one, in lower case."""
        return (*(MARKS if self.commands < MOST_COMMANDS else ()), *self.of_step)

    @property
    def is_open(self) -> bool:
        """Whether the next line may be printed by a command."""
        return any(self.texts) or bool(self.lines_left)

    def read(self, line: str, find_before: FindLines, find_after: FindLines) -> bool:
        """Return whether a command printed the next line of a log, or whether it belongs to a
        command. ``find_before`` returns the lines before, the last one first, and ``find_after``
        those behind it."""
        if self.lines_left and not line.startswith("+"):
            self.lines_left -= 1
            return True
        self.lines_left = 0
        if self.takes(line):
            return True
        if self.commands >= MOST_COMMANDS:
            self.texts = []
            return False
        if _CAT.match(line):
            self.commands += 1
            self.lines_left = CAT_LINES * _reads_script(find_before())
        if shown := _SHOWN.match(line):
            self.commands += 1
            self._add(shown, line, find_before, find_after)
        elif not line.startswith("+") and not (self.is_run and _AFTER_RUN.match(line)):
            self.texts = []
        return False

    def takes(self, line: str) -> bool:
        """Return whether a command printed a line; each command prints its lines once."""
        text = _clean(line)
        for patterns in self.texts:
            other_lines = [pattern for pattern in patterns if not pattern.fullmatch(text)]
            if len(other_lines) < len(patterns):
                patterns[:] = other_lines
                return True
        return any(pattern.fullmatch(text) for pattern in self.of_step.values())

    def read_script(self, line: str) -> None:
        """Note what a line of a script prints that GitHub shows before it runs it."""
        texts: Iterator[re.Pattern[str]] = iter(())
        if self.heredoc:
            is_end = line.strip() == self.heredoc
            self.heredoc = "" if is_end else self.heredoc
            texts = iter(()) if is_end else _make_patterns([line])
        elif heredoc := _HEREDOC.search(line):
            self.heredoc = "" if heredoc["redirected"] else heredoc["end"]
        elif self.commands < MOST_COMMANDS and (shown := _SHOWN.match(line)):
            self.commands += 1
            texts = _make_patterns(_list_texts(shown))
        for pattern in texts:
            parts = re.sub(r"\\(.)", r"\1", pattern.pattern).split(_GAP)
            if len(self.of_step) < MOST_TEXTS:
                self.of_step[max(parts, key=len).lower().encode("utf-8", "replace")] = pattern

    def begin_step(self) -> None:
        """Forget what the step before prints."""
        self.of_step, self.heredoc = {}, ""

    def _add(
        self, shown: re.Match[str], line: str, find_before: FindLines, find_after: FindLines
    ) -> None:
        """Note what a command prints that a line shows."""
        is_setting = self.is_run and _AFTER_RUN.match(line)
        self.is_run = line.startswith(("Run ", "Step ", "RUN ")) or bool(is_setting)
        texts = _list_texts(shown)
        if line.startswith("+"):
            arguments = _find_arguments(shown)
            if shown["shell"] and _is_open(arguments):
                further_lines = _close(arguments, find_after())
                self.lines_left = len(further_lines)
                texts = _list_shell_texts("\n".join((arguments, *further_lines)))
            before = find_before()
            texts = [text for text in texts if not _is_found_out(text, line, before)]
        patterns = [*_make_patterns(texts, is_expanded=line.startswith("+"))]
        self.texts = [*self.texts[1 - MOST_WAITING :], patterns]


FindLines = Callable[[], Sequence[str]]
_GAP = "[^\n]{0,200}?"


def _clean(line: str) -> str:
    """Return a line without colours and without the mark of an annotation of GitHub."""
    return _ANNOTATION.sub("", _COLOUR.sub("", line).strip(), count=1).strip()


def _make_patterns(texts: Sequence[str], *, is_expanded: bool = False) -> Iterator[re.Pattern[str]]:
    """Yield a pattern for each line of texts, in which a variable is any text. A trace shows texts
    that are expanded already."""
    for line in "\n".join(texts).split("\n"):
        text = _clean(line)
        if not is_expanded:
            text = _VARIABLE.sub(_WILD, text)
            if "$(" in text or "`" in text:
                continue  # what a command prints is no text of the script
        parts = text.split(_WILD)
        if text and (len(parts) == 1 or sum(map(len, parts)) >= LEAST_CHARS):
            yield re.compile(_GAP.join(map(re.escape, parts)))


def _find_arguments(shown: re.Match[str]) -> str:
    """Return the arguments of a command, without the end of a quotation that it is in itself."""
    arguments, mark = shown["arguments"], shown["head"][-1:]
    if mark in ("'", '"') and mark in arguments:
        return arguments[: arguments.rindex(mark)]
    return arguments


def _list_texts(shown: re.Match[str]) -> list[str]:
    """Return what a command may print. It may itself be the argument of another one, as in
    ``bash -c "echo 'Error'"``."""
    arguments = _find_arguments(shown)
    if shown["call"]:
        return _list_call_texts(arguments)
    if shown["shell"] == "printf":
        return _list_printf_texts(arguments)
    if shown["powershell"]:
        return _list_shell_texts(_PARAMETER.sub("", arguments))
    return _list_shell_texts(arguments)


def _list_shell_texts(arguments: str) -> list[str]:
    """Return what `echo` may print: its words, with escapes or without them, and what stands
    behind it, which `echo` of Windows prints."""
    words = _split(arguments)
    while words and _OPTION.fullmatch(words[0]):
        words = words[1:]
    text = " ".join(words)
    return [*dict.fromkeys(filter(None, (text, _unescape(text), arguments)))]


def _list_printf_texts(arguments: str) -> list[str]:
    """Return what `printf` prints."""
    words = [word for word in _split(arguments) if word != "--"]
    if not words:
        return []
    pattern, values = _unescape(words[0]), words[1:]
    needed = sum(match[2] != "%" for match in _CONVERSION.finditer(pattern))
    texts = []
    while needed and values:
        texts.append(_fill(pattern, values[:needed]))
        values = values[needed:]
    return ["".join(texts) or _fill(pattern, [])]


def _fill(pattern: str, values: Sequence[str]) -> str:
    remaining = iter(values)

    def fill(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        width = match[1].partition(".")[0].lstrip("+ 0#")
        return f"%{width[:4]}s" % _unescape(next(remaining, ""))

    return _CONVERSION.sub(fill, pattern)


def _list_call_texts(arguments: str) -> list[str]:
    """Return what a call with constants, such as ``("no space", 3)``, prints."""
    call = f"f{arguments[: arguments.rfind(')') + 1]}"
    try:
        expression = ast.parse(call, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    if not isinstance(expression, ast.Call):
        return []
    texts = []
    for argument in expression.args:
        parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
        shown = (str(part.value) if isinstance(part, ast.Constant) else _WILD for part in parts)
        texts.append("".join(shown))
    return [" ".join(texts)]


def _split(arguments: str) -> list[str]:
    """Return the words of a command of a shell, up to the next command and without redirections."""
    lexer = shlex.shlex(_write_plainly(arguments), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    is_target = False
    try:
        for word in lexer:
            if is_target:
                is_target = False
            elif _REDIRECTION.fullmatch(word):
                is_target = True
                if words and words[-1] in ("1", "2"):
                    words.pop()
            elif word in (";", "|", "||", "&&", "&", ")", ";;", "|&"):
                break
            else:
                words.append(word)
    except ValueError:  # a quotation mark without its second one
        return []
    return words


def _write_plainly(arguments: str) -> str:
    """Return a command without escapes between $' and ', which only some shells know."""
    return _ANSI_C.sub(lambda match: script_word(_unescape(match[1])), arguments)


def _close(arguments: str, lines: Sequence[str]) -> Sequence[str]:
    """Return those of the lines behind a command of a trace that end its quotation; none if no line
    before the next command does, as where a shell shows an apostrophe as it is."""
    for number, line in enumerate(lines):
        if line.startswith("+"):
            break
        arguments = f"{arguments}\n{line}"
        if not _is_open(arguments):
            return lines[: number + 1]
    return ()


def _is_open(arguments: str) -> bool:
    """Return whether a quotation mark of a command is not closed."""
    lexer = shlex.shlex(_write_plainly(arguments), posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        list(lexer)
    except ValueError as error:
        return "quotation" in str(error)
    return False


def _unescape(text: str) -> str:
    def decode(match: re.Match[str]) -> str:
        letter, octal, digits = match.groups()
        if letter:
            return _ESCAPES.get(letter, letter)
        return chr(int(octal, 8) if octal else int(digits, 16))

    return _ESCAPE.sub(decode, text)


def _is_found_out(text: str, line: str, before: Sequence[str]) -> bool:
    """Return whether a trace shows that a text is what a command printed, as an argument or as the
    value of a variable. ``before`` are the lines before, the last one first."""
    depth = _depth(line)
    if before and _is_program_of(before[0], depth):
        return True
    for number, earlier in enumerate(before[:-1]):
        assignment = _ASSIGNMENT.fullmatch(earlier)
        if assignment and _is_program_of(before[number + 1], _depth(earlier)):
            value = " ".join(_split(assignment["text"]))
            if value and value in text:
                return True
    return False


def _is_program_of(line: str, depth: int) -> bool:
    """Return whether a line of a trace is a command whose output a command of this depth reads."""
    return _depth(line) > depth and _name_program(line) not in _HARMLESS


def _reads_script(before: Sequence[str]) -> bool:
    """Return whether `cat`, without a file, reads a text of the script, and no pipe."""
    if not before or not _depth(before[0]):
        return True
    name = _name_program(before[0])
    return name in _SILENT or "=" in name


def _depth(line: str) -> int:
    trace = _TRACE.match(line)
    return len(trace[0]) if trace else 0


def _name_program(line: str) -> str:
    words = line.lstrip("+").split()
    return words[0].strip("'\"") if words else ""
