"""Explain a log: its causes, their consequences, and error lines that match no rule. Nothing here
does I/O."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from ci.explain.rules import Role, Rule

CHUNK_BYTES = 4 << 20
LINE_CHARS = (
    500  # read on each side of a literal, so that no pattern has to search a very long line
)
OWN_FIX = "  fix: "  # as QnnCiError writes it
MOST_UNKNOWN = 1000  # about this many error lines that match no rule are counted
SHOWN_UNKNOWN = 20
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_DIGITS = b"0123456789"
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
# An error line contains at least one of these marks, ignoring case. Only logcat's "E/" has to be at
# the start of a line, because many paths contain it.
_MARKS = (
    *(b"error", b"fatal", b"fail", b"exception", b"abort", b"sigsegv", b"sigabrt", b"cannot"),
    *(b"can't", b"unable to", b"<e>", b"[e:", b" e ", b"\ne/"),
)
_ERROR = re.compile(
    r"(?i)(?<![\w./-])(?:error|fatal|failed|failure|exception|abort(?:ed|ing)?|cannot|can't"
    r"|unable to)\b(?![./-]\w)"  # not part of a file name
    r"|[a-z](?:Error|Exception)\b|SIGSEGV|SIGABRT|<E>|\[E:|\bE/|\bE \w+ *:"
)
# Lines of a traceback that only quote code, counts of zero errors, and deprecation warnings.
_QUOTED = re.compile(
    r"^\s*(?:File \"|raise |return |except|at [\w.$]+\(|[\^~]+$|#|\||\d+ \|)"
    r"|(?i:\b(?:no|0|without) (?:errors?|failures?|failed)\b|\b(?:errors?|failed)\"?[:=] ?0\b)"
    r"|deprecated|above exception"
)


class Finding(Struct, frozen=True):
    """A rule that matches lines of a log. ``line`` is the number of the first of these lines,
    ``text`` its text, and ``count`` how many there are.

    ``consequence_of`` is the id of the rule that is the cause of this one, or empty if there is
    none.
    """

    rule: str
    role: Role
    line: int
    text: str
    cause: str
    fix: str
    source: tuple[str, ...]
    seen: bool
    versions: str = ""
    count: int = 1
    consequence_of: str = ""


class Unknown(Struct, frozen=True):
    """A line that looks like an error but matches no rule."""

    line: int
    text: str


class Explanation(Struct, frozen=True):
    """The explanation of a log. ``causes`` are in the order of their lines. ``notes`` are matched
    hints that do not count as causes.

    ``unknown_count`` is the number of error lines that match no rule (counting stops soon after
    MOST_UNKNOWN), and ``unknown`` lists the first of them.
    """

    file: str
    lines: int
    causes: tuple[Finding, ...] = ()
    consequences: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    harmless: tuple[Finding, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    unknown_count: int = 0


@dataclass
class _Seen:
    line: int
    text: str
    count: int = 1


@dataclass
class _Scan:
    rules: Sequence[Rule]
    seen: dict[str, _Seen] = field(default_factory=dict)
    unknown: list[Unknown] = field(default_factory=list)
    unknown_count: int = 0
    lines: int = 0

    def read(self, chunk: bytes) -> None:
        """Match whole lines of a log with the rules. A line counts only for the first rule that it
        matches."""
        low = chunk.lower()
        # Most lines differ only in numbers, and most literals are in no line.
        shapes = b"\n".join(set(low.translate(None, _DIGITS).split(b"\n")))
        known: set[int] = set()
        for rule in self.rules:
            literals = rule.literals or (b"",)
            literals = tuple(one for one in literals if one.translate(None, _DIGITS) in shapes)
            for start, line in _find_lines(chunk, low, literals):
                if start not in known and rule.fits(line):
                    known.add(start)
                    self._note(rule, chunk, start, line)
        self._find_unknown(chunk, low, known)
        self.lines += chunk.count(b"\n") + (not chunk.endswith(b"\n"))

    def _note(self, rule: Rule, chunk: bytes, start: int, line: str) -> None:
        if had := self.seen.get(rule.id):
            had.count += 1
            return
        self.seen[rule.id] = _Seen(self.lines + chunk.count(b"\n", 0, start) + 1, line.strip())

    def _find_unknown(self, chunk: bytes, low: bytes, known: set[int]) -> None:
        if self.unknown_count >= MOST_UNKNOWN:
            return
        found: dict[int, str] = {}
        for start, line in _find_lines(chunk, low, _MARKS):
            if start not in known and _ERROR.search(line) and not _QUOTED.search(line):
                found[start] = line.strip()
        self.unknown_count += len(found)
        for start in sorted(found)[: SHOWN_UNKNOWN - len(self.unknown)]:
            number = self.lines + chunk.count(b"\n", 0, start) + 1
            self.unknown.append(Unknown(number, found[start]))


def _find_lines(chunk: bytes, low: bytes, literals: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """Yield each line of ``chunk`` that contains one of ``literals``: the offset of its start, and
    its text near the literal. A literal that begins with a line break matches only at the start of
    a line."""
    found: dict[int, int] = {}
    for literal in literals:
        # The first line has no line break before it.
        at = 0 if low.startswith(literal.lstrip(b"\n")) else low.find(literal)
        while 0 <= at < len(low):
            at += low[at] == b"\n"[0]
            start = low.rfind(b"\n", 0, at) + 1
            found.setdefault(start, at)
            end = low.find(b"\n", at)
            at = low.find(literal, end) if end >= 0 else -1
    for start in sorted(found):
        end = chunk.find(b"\n", start)
        at, stop = found[start], len(chunk) if end < 0 else end
        part = chunk[max(start, at - LINE_CHARS) : min(stop, at + LINE_CHARS)]
        yield start, part.decode("utf-8", "replace")


def explain(file: str, log: Iterable[bytes], rules: Sequence[Rule]) -> Explanation:
    """Explain a log.

    ``log`` yields chunks of any size. The text is UTF-8, or UTF-16 if it starts with a byte order
    mark. Its line endings may be of any kind. Invalid bytes are replaced. Only one chunk and one
    line, or CHUNK_BYTES of a longer line, are in memory at a time.
    """
    scan = _Scan(rules)
    for chunk in _split(log):
        scan.read(chunk)
    return _conclude(file, scan)


def explain_text(text: str, rules: Sequence[Rule]) -> Explanation:
    """Explain a log that is a string."""
    return explain("", [text.encode("utf-8", "replace")], rules)


def find_known(text: str, rules: Sequence[Rule]) -> Finding | None:
    """Return the first cause in the text of a failure, otherwise the first hint.

    Returns None if the text matches no rule, or only rules for symptoms or harmless lines, or if it
    ends with an error of this project that names its fix.
    """
    if text.rstrip().rpartition("\n")[2].startswith(OWN_FIX):
        return None
    told = explain_text(text, rules)
    known = (one for one in (*told.causes, *told.notes) if one.role is not Role.SYMPTOM)
    return next(known, None)


def _split(log: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole lines of a log in UTF-8, with ``\\n`` as line ending and without colours. Lines
    longer than CHUNK_BYTES may be split."""
    rest, decoder = b"", None
    for number, part in enumerate(log):
        if not number and part[:2] in _UTF16:
            decoder = codecs.getincrementaldecoder(_UTF16[part[:2]])("replace")
        text = rest + (decoder.decode(part).encode("utf-8", "replace") if decoder else part)
        whole = len(text) if len(text) > CHUNK_BYTES else 0
        cut = text.rfind(b"\n") + 1 or whole
        rest = text[cut:]
        if cut:
            yield _clean(text[:cut])
    if rest:
        yield _clean(rest)


def _clean(part: bytes) -> bytes:
    return _ANSI.sub(b"", part).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _conclude(file: str, scan: _Scan) -> Explanation:
    """Sort the matched rules into causes, consequences, notes and harmless lines."""
    matched = sorted(
        (rule for rule in scan.rules if rule.id in scan.seen),
        key=lambda rule: scan.seen[rule.id].line,
    )
    by_role = {role: [one for one in matched if one.role is role] for role in Role}
    ids = {rule.id for rule in matched}
    follows = {
        rule.id: next((one for one in rule.consequence_of if one in ids), "") for rule in matched
    }
    named = {follows[one.id] for one in by_role[Role.CAUSE]}
    symptoms, hints = by_role[Role.SYMPTOM], by_role[Role.HINT]
    if symptoms and not any(not follows[one.id] for one in by_role[Role.CAUSE]):
        named |= {one.id for one in hints if not follows[one.id]}
    causes = [one for one in matched if one.role is Role.CAUSE and not follows[one.id]]
    causes = [one for one in matched if one in causes or (one in hints and one.id in named)]
    notes = [one for one in hints if one not in causes]
    if not causes:
        causes, symptoms = symptoms[:1], symptoms[1:]
    first = causes[0].id if causes else ""
    consequences = [one for one in by_role[Role.CAUSE] if follows[one.id]] + symptoms
    return Explanation(
        file=file,
        lines=scan.lines,
        causes=tuple(_find(rule, scan) for rule in causes),
        consequences=tuple(
            _find(rule, scan, follows.get(rule.id) or first)
            for rule in sorted(consequences, key=lambda rule: scan.seen[rule.id].line)
        ),
        notes=tuple(_find(rule, scan) for rule in notes),
        harmless=tuple(_find(rule, scan) for rule in by_role[Role.HARMLESS]),
        unknown=tuple(scan.unknown),
        unknown_count=scan.unknown_count,
    )


def _find(rule: Rule, scan: _Scan, consequence_of: str = "") -> Finding:
    seen = scan.seen[rule.id]
    return Finding(
        rule=rule.id,
        role=rule.role,
        line=seen.line,
        text=seen.text,
        cause=rule.cause,
        fix=rule.fix,
        source=rule.source,
        seen=rule.seen,
        versions=rule.versions,
        count=seen.count,
        consequence_of=consequence_of,
    )
