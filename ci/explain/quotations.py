"""Tell what a program printed from what only quotes it: commands that ran, source code, comments,
diffs, names of tests, checks that passed, counts of zero, and documentation.

What a line is for shows in its form, whatever it quotes. So one table of forms,
manifests/policies/quotations.toml, serves all rules.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from msgspec import Struct

from ci.explain.printed import COMMAND_LINES, LINE_BYTES, LINES_BEFORE, Printed
from provisioning.manifest.reader import read_policy

HEAD_CHARS = 400  # of a line, in which its form has to show
COMMENT_LINES = 100  # of a block comment without an end
OWN_CHARS = 4  # with which a line has to start as the example of its rule does

# What CI systems, loggers and containers write before each line. Of logcat's lines only those that
# are no errors have a prefix here: programs write messages between quotation marks to the others.
_PREFIX = re.compile(
    r"(?:[\w ./()-]{1,80}\t[\w ./()-]{1,80}\t(?=\d{4}-))?"  # `gh run view --log`: job, step
    r"(?:\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z| ?[+-]\d\d:?\d\d)?(?: \d\d[OE]\+?)? ?"
    r"|\[[\d:.,TZ /+-]{5,40}\](?:[EWi]?:\t| ?)|\d\d:\d\d:\d\d[.,\d]* |#\d+ \d+\.\d+ "
    r"|[\w.-]{1,60}[-_]\d+ +\| |##\[debug\]"
    r"|[A-Z][a-z]{2} [ \d]\d (?=\d\d:\d\d:\d\d)"  # syslog, then the time
    r"|[\w.-]{1,60} (?:[\w./@-]{1,60}\[\d+\]|kernel): "  # syslog: host, process
    r"|\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} +\d+ +\d+ [VDI] [^:\n]{1,60}: "  # logcat threadtime
    r"|(?:\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} )?[VDI]/[^(:\n]{1,60}(?:\( *\d+\))?: "  # brief, time
    r"|\d+-\d+ +\S{1,60} +\S{1,80} +[VDI]  "  # Android Studio, behind the time
    r"|(?:- )?(?:INFO|DEBUG)(?: - |:[\w.]{1,60}:)"  # Python's logging
    r"|\{\"(?:[^\n]{0,200}?,? ?\")?(?:msg|message|MESSAGE|log|text|line)\" ?: ?\")*"  # JSON
)
_JSON = re.compile(r"[^\n{]{0,80}\{\"\w")
_MESSAGE = re.compile(
    r"[^\n{]{0,80}\{\"(?:[^\n]{0,200}?,? ?\")?(?:msg|message|MESSAGE|log|text|line)\" ?: ?"
    r"\"(?P<text>[^\"\\\n]*(?:\\.[^\"\\\n]*)*)\"\s*[,}]"
)
_ESCAPED = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\\\": "\\"}
_QUOTE = '\\"'
_ESCAPE = re.compile(r"\\[nt\"\\]")
_ESCAPED_END = re.compile(r"(?<!\\)\\n")
_LETTER, _DIGIT = re.compile(r"[^\W\d_]"), re.compile(r"\d")
_NAME = re.compile(r"@(\w+)@")
# A line that starts with "> " below one with such a word is a reason that Gradle gives.
_GRADLE = re.compile(rb"(?i)task|configur|could not|went wrong|problem|resolv|project|evaluat")
_BLOCKS = (
    *(b"\n> ", b" > ", b"\t> ", b"]> ", b'"> ', b"@@ -"),
    *(b"##[group]run ", b"/*", b", line ", b"commit "),
)
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_FRAME = re.compile(rb"(\s*)File \"[^\"\n]*\", line \d+")
_BLOCK_COMMENT = re.compile(rb"\s*/\*(?:\*|\s|$)")
_COMMIT = re.compile(rb"commit [0-9a-f]{40}(?: \([^\n]*\))?\s*$")
_OF_COMMIT = re.compile(rb"\s*$|    |(?:Author|Merge|Date|AuthorDate|Commit|CommitDate): ")
_JSON_END = re.compile(rb"(?:\\\\n)?\"(?:,[^\n]{0,200})?\}\s*$")  # of the value of a message
_PREFIX_BYTES = re.compile(_PREFIX.pattern.encode())


class Where(Enum):
    """Which part of a line has to have a form: its ``start`` or any part (``anywhere``), so that
    the whole line quotes, or the ``part`` that quotes."""

    START = "start"
    ANYWHERE = "anywhere"
    PART = "part"


class Form(Struct, frozen=True, forbid_unknown_fields=True):
    """A form of lines that quote. ``of`` says what such a line is, ``matches`` is an example. The
    group ``text`` of the pattern of a part is what quotes. ``@NAME@`` in the pattern stands for one
    of the file's names."""

    of: str
    where: Where
    pattern: str
    matches: str


class _Forms(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/quotations.toml."""

    names: dict[str, str]
    form: tuple[Form, ...]


@functools.cache
def read_forms() -> tuple[Form, ...]:
    """Return the forms of manifests/policies/quotations.toml. Raises ManifestError if the file is
    invalid."""
    return read_policy("quotations", _Forms).form


@functools.cache
def _compile(where: Where) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of the forms of one kind; those of whole lines as one pattern."""
    names = read_policy("quotations", _Forms).names
    patterns = []
    for form in read_forms():
        if form.where is where:
            pattern = _NAME.sub(lambda match: names[match[1]], form.pattern)
            patterns.append(_NAME.sub(lambda match: names[match[1]], pattern))
    if where is Where.PART:
        return tuple(map(re.compile, patterns))
    joined = "|".join(f"(?:{pattern})" for pattern in patterns)
    return (re.compile(rf"\s*(?:{joined})" if where is Where.START else joined),)


def unquote(line: str, start: str) -> str:
    """Return ``line`` without what it only quotes: ``""`` if that is all of it. Letters of parts
    that quote become ``x`` and digits ``0``. ``start`` is the start of the line, if ``line`` is a
    part of a long one."""
    if "\\" in line and _JSON.match(start):
        if "\\n" in line:
            return _unquote_json(line)
        if _QUOTE in line:
            return unquote(line.replace(_QUOTE, '"'), start.replace(_QUOTE, '"'))
    head = _PREFIX.sub("", start[:HEAD_CHARS], count=1)
    (of_start,), (of_line,) = _compile(Where.START), _compile(Where.ANYWHERE)
    if of_start.match(head) or of_line.search(line):
        return ""
    prefix = len(start[:HEAD_CHARS]) - len(head) if line.startswith(start[:OWN_CHARS]) else 0
    unquoted = line[prefix:]
    for part in _compile(Where.PART):
        unquoted = part.sub(_blank, unquoted)
    return line[:prefix] + unquoted


def find_message(line: str) -> str:
    """Return the message in a line of JSON, if it is of one line, otherwise ``line``."""
    match = _MESSAGE.match(line) if '{"' in line[:HEAD_CHARS] else None
    text = match["text"].removesuffix("\\n") if match else "\\n"
    return line if "\\n" in text else _ESCAPE.sub(lambda escape: _ESCAPED[escape[0]], text)


def _unquote_json(line: str) -> str:
    """Return a line of JSON, or a part of one, without those of its escaped lines that quote."""
    parts = _ESCAPED_END.split(line)
    texts = [_ESCAPE.sub(lambda match: _ESCAPED[match[0]], part) for part in parts]
    blocks = Blocks()
    text = "\n".join(texts).encode("utf-8", "replace")
    blocks.read(text, text.lower())
    unquoted = []
    start = 0
    for part, part_text in zip(parts, texts, strict=True):
        is_said = start not in blocks.starts and unquote(part_text, part_text) == part_text
        unquoted.append(part if is_said else "")
        start += len(part_text.encode("utf-8", "replace")) + 1
    return "\\n".join(unquoted)


def has_form_of(start: str, example: str) -> bool:
    """Return whether ``example`` is printed in a form that otherwise quotes, as crash reports of
    Java are, which start with ``# A fatal error``, and whether a line starts as it does."""
    example_start = example.lstrip()[:OWN_CHARS]
    return _PREFIX.sub("", start, count=1).lstrip()[:OWN_CHARS] == example_start and _is_quotation(
        example
    )


@functools.lru_cache(maxsize=4096)
def _is_quotation(example: str) -> bool:
    return unquote(example, example) != example


def _blank(match: re.Match[str]) -> str:
    start, end = match.start("text") - match.start(), match.end("text") - match.start()
    text = _LETTER.sub("x", _DIGIT.sub("0", match["text"]))
    return f"{match[0][:start]}{text}{match[0][end:]}"


@dataclass
class Blocks:
    """The blocks of a log that quote: hunks of diffs, commits, scripts that GitHub shows before it
    runs them, block comments, the line of code below a frame of a traceback, what a command prints
    that the log shows, too, and single lines that start with ``> ``. A block may go on in the next
    part of the log."""

    removed: int = 0  # lines of a hunk that are still to come
    added: int = 0
    is_script: bool = False
    is_commit: bool = False
    comment_lines: int = 0
    previous: bytes = b""
    code_indent: int = -1  # of the frame whose line of code comes next
    starts: set[int] = field(default_factory=set)  # of the lines of blocks in this part
    printed: Printed = field(default_factory=Printed)
    places: dict[bytes, int] = field(default_factory=dict)  # of the next marks in this part

    def read(self, chunk: bytes, low: bytes, *, is_last: bool = False) -> None:
        """Find the blocks of the next part of the log, which has whole lines. ``low`` is ``chunk``
        in lower case, and ``is_last`` is true for the last part."""
        self.starts = set()
        self.places = {}
        at = 0
        is_open = self._is_open() or self.printed.is_open
        if not is_open and _PREFIX_BYTES.sub(b"", low[:HEAD_CHARS], count=1)[:2] != b"> ":
            at = self._find_next(low, 0)
        while 0 <= at < len(chunk):
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            line = chunk[at : min(end, at + HEAD_CHARS)]
            prefix = _PREFIX_BYTES.match(line)[0]  # type: ignore[index]
            text = line[len(prefix) :]
            if b'{"' in prefix:
                text = _JSON_END.sub(b"", text)
            is_single = text.startswith(b"> ") and self._is_single(chunk, at, end)
            was_script = self.is_script
            is_quotation = self._takes(text) or self._is_printed(chunk, at, end)
            if is_quotation or is_single:
                self.starts.add(at)
            # People leave the end of such a group out of what they paste: the rest is no script.
            if is_last and self.is_script and not was_script:
                self.is_script = b"##[endgroup]" in low[end:]
            is_open = self._is_open() or self.printed.is_open
            at = end + 1 if is_open else self._find_next(low, end)
        self.previous = chunk[chunk.rfind(b"\n", 0, -1) + 1 :][:HEAD_CHARS]

    def _is_open(self) -> bool:
        lines = self.removed > 0 or self.added > 0 or self.comment_lines > 0
        return lines or self.is_script or self.is_commit or self.code_indent >= 0

    def _find_next(self, low: bytes, start: int) -> int:
        """Return the start of the next line that may begin a block, or -1."""
        marks = (*_BLOCKS, *self.printed.marks)
        for mark in marks:
            if self.places.get(mark, 0) >= 0 and self.places.get(mark, -1) < start:
                self.places[mark] = low.find(mark, start)
        places = [self.places[mark] for mark in marks if self.places[mark] >= start]
        if not places:
            return -1
        place = min(places)
        return low.rfind(b"\n", 0, place + low.startswith(b"\n", place)) + 1

    def _is_single(self, chunk: bytes, start: int, end: int) -> bool:
        """Return whether the line between ``start`` and ``end``, which starts with ``> ``, quotes.
        It is one of several if a whole log is quoted, and follows certain lines if Gradle wrote
        it."""
        before = self.previous
        if start:
            before = chunk[chunk.rfind(b"\n", 0, start - 1) + 1 : start][:HEAD_CHARS]
        after = chunk[end + 1 : end + 1 + HEAD_CHARS]
        neighbours = [_PREFIX_BYTES.sub(b"", line, count=1) for line in (before, after)]
        is_one_of_several = any(line.lstrip().startswith(b">") for line in neighbours)
        return not is_one_of_several and not _GRADLE.search(before)

    def _is_printed(self, chunk: bytes, start: int, end: int) -> bool:
        """Return whether a command that the log shows printed the line between ``start`` and
        ``end``, which is in no other block."""
        text = chunk[start : min(end, start + LINE_BYTES)]
        # A text may itself start as lines of a CI system do.
        if self.printed.is_open and self.printed.takes(text.decode("utf-8", "replace")):
            return True
        line = _decode_line(chunk, start, start + len(text))
        before, after = partial(_list_before, chunk, start), partial(_list_after, chunk, end)
        return self.printed.read(line, before, after)

    def _takes(self, text: bytes) -> bool:
        """Return whether a line is a part of a block, and note what comes next."""
        return self._continues(text) or self._begins(text)

    def _continues(self, text: bytes) -> bool:
        """Return whether a line is the next one of a block."""
        is_next = False
        if self.code_indent >= 0:
            is_next = len(text) - len(text.lstrip()) > self.code_indent
            self.code_indent = -1
        elif self.is_script:
            self.is_script = not text.startswith(b"##[endgroup]")
            self.printed.read_script(text.decode("utf-8", "replace"))
            is_next = True
        elif self.is_commit:
            is_next = self.is_commit = bool(_OF_COMMIT.match(text))
        elif self.comment_lines:
            self.comment_lines = 0 if b"*/" in text else self.comment_lines - 1
            is_next = True
        elif self.removed > 0 or self.added > 0:
            sign = text[:1]
            is_next = sign in (b"", b" ", b"+", b"-", b"\\", b"\r")
            self.removed = self.removed - (sign not in (b"+", b"\\")) if is_next else 0
            self.added = self.added - (sign not in (b"-", b"\\")) if is_next else 0
        return is_next

    def _begins(self, text: bytes) -> bool:
        """Return whether a line is the first one of a block."""
        if hunk := _HUNK.match(text):
            self.removed, self.added = (int((count or b"1")[:6]) for count in hunk.groups())
        elif frame := _FRAME.match(text):
            self.code_indent = len(frame[1])
        elif text.lower().startswith(b"##[group]run "):
            self.is_script = True
            self.printed.begin_step()
        elif _COMMIT.match(text):
            self.is_commit = True
        elif _BLOCK_COMMENT.match(text) and b"*/" not in text:
            self.comment_lines = COMMENT_LINES
        return self._is_open() and self.code_indent < 0


def _decode_line(chunk: bytes, start: int, end: int) -> str:
    """Return a line without what a CI system writes before it."""
    return _PREFIX.sub("", chunk[start:end].decode("utf-8", "replace"), count=1)


def _list_before(chunk: bytes, start: int) -> list[str]:
    """Return the lines before the one at ``start``, the last one first."""
    lines: list[str] = []
    while start and len(lines) < LINES_BEFORE:
        end, start = start - 1, chunk.rfind(b"\n", 0, start - 1) + 1
        lines.append(_decode_line(chunk, start, min(end, start + LINE_BYTES)))
    return lines


def _list_after(chunk: bytes, end: int) -> list[str]:
    """Return the lines behind the one that ends at ``end``."""
    lines: list[str] = []
    while end < len(chunk) and len(lines) < COMMAND_LINES:
        start, end = end + 1, chunk.find(b"\n", end + 1)
        end = len(chunk) if end < 0 else end
        lines.append(_decode_line(chunk, start, min(end, start + LINE_BYTES)))
    return lines
