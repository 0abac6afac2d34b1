"""Explain a log: its causes, their consequences, and error lines that match no rule. Nothing here
does I/O."""

from __future__ import annotations

import codecs
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import Struct

from ci.explain.frames import find_below, find_raising_frame
from ci.explain.index import index_rules
from ci.explain.loaders import STEM, find_refusal
from ci.explain.quotations import Blocks, find_message, has_form_of, unquote
from ci.explain.rules import (
    DIGITS,
    Area,
    Place,
    Role,
    Rule,
    Variant,
    compile_once,
    count_places,
    find_place,
    list_words,
    read_families,
    read_namings,
)
from ci.explain.translations import to_english
from ci.facts.finding import FLOAT_LEAD, LEADS, Certainty, Proof, Remedy
from ci.facts.kinds import read_kinds

LINE_BYTES = 4 << 20  # the first and the last half of a longer line are read
LINE_CHARS = (
    500  # read on each side of a literal, so that no pattern has to search a very long line
)
OWN_FIX = "  fix: "  # as QnnCiError writes it
# A finding of a case, as a run of this project prints it: `not faithful: ... [QNN2001]`. The number
# may be in the next line, because lines are broken at the width of the terminal.
CASE_FINDING = re.compile(r"^[\s|]*(?P<headline>.*?)\s*\[(?P<id>QNN2\d{3})\]\s*$")
_LEADS = "|".join(re.escape(lead) for lead in (*LEADS.values(), FLOAT_LEAD))
_BROKEN = re.compile(rf"[\s|]*(?P<start>(?:{_LEADS}).*\S)\s*")  # the first line of such a headline
_CASE_ROW = re.compile(
    r"(?:^|\s{2,})failed\s{2,}"
)  # a failed case in a table, or above its findings
MOST_UNKNOWN = 1000  # about this many error lines that match no rule are counted
SHOWN_UNKNOWN = 20
MOST_OPERATORS = 50  # are kept per rule
MOST_LIBRARIES = 500  # likewise
REASON_LINES = 8  # of QNN for one operator that it refuses, with the empty lines between them
_ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^])"  # and Buildkite's
)
_NO_DIGITS = dict.fromkeys(DIGITS)
# Byte order marks, none of which is a part of another. Windows PowerShell writes UTF-16 with one.
_MARKED = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# Symptoms of these areas can follow from anything.
_GENERAL = (Area.INSTALLING, Area.BUILDING)
_REFUSING = (Area.LOWERING, Area.ONNX)
_OF_OPERATORS = (Area.LOWERING, Area.ONNX, Area.LITERT)
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


# The last line of a traceback of Python, or what C++ prints.
_RAISED = re.compile(r"(?:[A-Za-z_][\w.]*)?(?:Error|Exception)(?::|$)|terminate called ")


class Finding(Struct, frozen=True):
    """A rule that matches lines of a log. ``line`` is the number of the first of these lines,
    ``text`` its text, and ``count`` how many there are.

    ``id`` is the id of the finding, such as QNN1203, and ``rule`` the name of its rule; of a
    finding of a case that the log names, such as QNN2001, both are its id.
    ``headline`` is the cause in one line, and ``detail`` continues it. ``place`` is where the line
    was written. ``raised_in`` is the last frame of a traceback above the line, with its code, or
    the first frame of a crash that is not the system's, or empty. ``consequence_of`` is the name of
    the rule that is the cause of this finding, or empty.
    """

    id: str
    rule: str
    role: Role
    headline: str
    detail: str
    certainty: Certainty
    remedies: tuple[Remedy, ...]
    place: Place
    line: int
    text: str
    source: tuple[str, ...]
    is_seen: bool = msgspec.field(name="seen")
    versions: str = ""
    count: int = 1
    raised_in: str = ""
    consequence_of: str = ""

    @property
    def label(self) -> str:
        """The id and, if there is one, the name of the rule."""
        return self.id if self.rule == self.id else f"{self.id} {self.rule}"

    @property
    def claim(self) -> str:
        """The headline, marked if it is only a guess."""
        guess = self.certainty is Certainty.GUESS
        return f"possibly: {self.headline}" if guess else self.headline

    @property
    def cause(self) -> str:
        """The claim with its detail."""
        return ": ".join(filter(None, (self.claim, self.detail)))

    @property
    def fix(self) -> str:
        """The remedies in one line."""
        return "; ".join(remedy.text for remedy in self.remedies)


class Unknown(Struct, frozen=True):
    """A line that looks like an error but matches no rule."""

    line: int
    text: str


class Operator(Struct, frozen=True):
    """An operator, node or pass that line number ``line`` names. ``rule`` is the name of the rule
    that the line matches, or empty. ``is_last`` is true if the line only says that work on the
    operator began: it is the last such line before that of ``rule``."""

    name: str
    line: int
    rule: str = ""
    is_last: bool = False


class Explanation(Struct, frozen=True):
    """The explanation of a log. ``causes`` are in the order of their lines. ``notes`` are matched
    hints that do not count as causes. ``operators`` are those that matched lines and error lines
    name, wherever these are.

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
    operators: tuple[Operator, ...] = ()

    def operators_of(self, cause: Finding) -> tuple[Operator, ...]:
        """Return the operators that a finding's lines or those of its consequences name, without
        repetitions, in the order of their lines."""
        findings = (*self.causes, *self.consequences, *self.notes)
        rules = {finding.rule for finding in findings if finding.consequence_of == cause.rule} | {
            cause.rule
        }
        named: dict[str, Operator] = {}
        for operator in self.operators:
            if operator.rule in rules:
                named.setdefault(operator.name, operator)
        return tuple(named.values())

    @property
    def other_operators(self) -> tuple[Operator, ...]:
        """The operators in error lines that match no rule."""
        return tuple(operator for operator in self.operators if not operator.rule)


@dataclass
class _Match:
    line: int
    text: str
    values: Mapping[str, str]
    count: int = 1
    raised_in: str = ""
    package: str = ""  # of Python, in which ``raised_in`` is
    # The libraries that its lines name, each with its first line.
    libraries: dict[str, _Match] = field(default_factory=dict)
    own_text: str = ""  # the line as it is in the log, if ``text`` was translated


@dataclass
class _Scan:
    """The state of a scan. ``lines`` is the number of lines, and ``own_lines`` those of this part
    if messages in it were translated."""

    rules: tuple[Rule, ...]
    matches: dict[str, _Match] = field(default_factory=dict)  # rule: its first line
    unknown: list[Unknown] = field(default_factory=list)
    unknown_count: int = 0
    lines: int = 0
    blocks: Blocks = field(default_factory=Blocks)
    places: Counter[Place] = field(default_factory=Counter)
    contained: set[str] = field(default_factory=set)  # those of the rules' ``log`` and ``unless``
    operators: dict[str, dict[str, int]] = field(default_factory=dict)  # rule: name: line
    begun: list[Operator] = field(default_factory=list)  # the last operator before each rule
    last_begun: Operator | None = None
    case_findings: dict[str, _Match] = field(default_factory=dict)  # id: its first line
    case_rows: list[Unknown] = field(default_factory=list)  # first ones, see _CASE_ROW
    case_row_count: int = 0
    own_lines: list[bytes] = field(default_factory=list)

    def read(self, chunk: bytes, *, is_last: bool) -> None:
        """Match whole lines of a log with the rules. A line counts only for the first rule that it
        matches, and not for what it only quotes."""
        # Most lines differ only in numbers, and most literals are in no line: a log of 100 MB takes
        # five seconds of CPU.
        low, kinds, shapes, words = _survey(chunk)
        english = to_english(chunk, shapes, words)
        self.own_lines = []
        if english != chunk:
            self.own_lines, chunk = chunk.split(b"\n"), english
            low, kinds, shapes, words = _survey(chunk)
        starts = b"\n".join(kind[:LINE_CHARS] for kind in kinds)
        self.blocks.read(chunk, low, is_last=is_last)
        self.places += count_places(starts.decode("utf-8", "replace"))
        index = index_rules(self.rules)
        self.contained |= index.find_log_texts(low, shapes)
        rule_by_start: dict[int, str] = {}
        new: list[tuple[int, str]] = []
        narrowed: dict[object, list[tuple[int, str]]] = {}
        for rule, literals in index.select(shapes, words):
            lines = _narrow(rule, _find_lines(chunk, low, literals), narrowed)
            for start, line in lines:
                if start in rule_by_start or start in self.blocks.starts:
                    continue
                if (values := _find_in_line(rule, line, chunk, start)) is None:
                    continue
                if rule.raised_in and not _is_raised_in(rule, line, chunk, start):
                    continue
                if rule.has_reason_below:
                    values = {**values, "below": find_below(chunk, start)}
                rule_by_start[start] = rule.id
                # Every line is matched: when a rule was skipped after 1000 lines, its later ones
                # were reported as errors that no rule matches.
                if match := self.matches.get(rule.id):
                    match.count += 1
                    self._keep_library(match, chunk, start, line, values)
                else:
                    number = self.lines + chunk.count(b"\n", 0, start) + 1
                    match = self.matches[rule.id] = _Match(
                        number, line.strip(), values, 1, *find_raising_frame(chunk, start)
                    )
                    match.own_text = self._find_own(number)
                    self._keep_library(match, chunk, start, line, values)
                    new.append((start, rule.id))
        case_lines = self._find_case_findings(chunk, low)
        unknown = self._find_unknown(chunk, low, {*rule_by_start, *case_lines})
        error_lines = rule_by_start | dict.fromkeys(unknown, "")
        self._find_operators(chunk, low, shapes, error_lines, new)
        self.lines += chunk.count(b"\n") + (not chunk.endswith(b"\n"))

    def _keep_library(
        self, match: _Match, chunk: bytes, start: int, line: str, values: Mapping[str, str]
    ) -> None:
        """Keep the library that a line of a linker names."""
        stem = values.get(STEM, "")
        if stem and stem not in match.libraries and len(match.libraries) < MOST_LIBRARIES:
            number = self.lines + chunk.count(b"\n", 0, start) + 1
            own_text = self._find_own(number)
            match.libraries[stem] = _Match(number, line.strip(), values, own_text=own_text)

    def _find_own(self, number: int) -> str:
        """Return a line of this part as it is in the log, or "" if nothing was translated."""
        if not self.own_lines:
            return ""
        line = self.own_lines[number - self.lines - 1][: 2 * LINE_CHARS]
        return line.decode("utf-8", "replace").strip()

    def _find_case_findings(self, chunk: bytes, low: bytes) -> Iterator[int]:
        """Keep the findings of cases that the lines of a run of this project name, and yield the
        starts of these lines."""
        for start, line in _find_lines(chunk, low, [b"[qnn2"]):
            if match := CASE_FINDING.search(line):
                yield start
                if earlier := self.case_findings.get(match["id"]):
                    earlier.count += 1
                    continue
                number = self.lines + chunk.count(b"\n", 0, start) + 1
                values = {**match.groupdict(), "headline": _join_headline(chunk, start, match)}
                self.case_findings[match["id"]] = _Match(number, line.strip(), values)

    def _find_operators(
        self,
        chunk: bytes,
        low: bytes,
        shapes: bytes,
        rule_by_start: Mapping[int, str],
        new: Sequence[tuple[int, str]],
    ) -> None:
        """Keep the operators that the lines of ``rule_by_start`` name and, for each rule with its
        first line in this chunk (``new``), the last operator on which work began before it."""
        begun: dict[int, str] = {}
        for naming in read_namings():
            literals = [text for text, shape, _ in naming.literals if shape in shapes]
            for start, line in _find_lines(chunk, low, literals):
                if not (match := compile_once(naming.pattern).search(line)):
                    continue
                if naming.is_begin:
                    begun[start] = match["name"]
                elif start in rule_by_start:
                    named = self.operators.setdefault(rule_by_start[start], {})
                    if len(named) < MOST_OPERATORS:
                        number = self.lines + chunk.count(b"\n", 0, start) + 1
                        named.setdefault(match["name"], number)
        for start, rule in sorted([*((start, "") for start in begun), *new]):
            if not rule:
                number = self.lines + chunk.count(b"\n", 0, start) + 1
                self.last_begun = Operator(begun[start], number, is_last=True)
            elif self.last_begun:
                self.begun.append(msgspec.structs.replace(self.last_begun, rule=rule))

    def _find_unknown(self, chunk: bytes, low: bytes, explained: set[int]) -> set[int]:
        """Count the error lines of ``chunk`` whose starts are not ``explained``, and return their
        starts."""
        unknown_lines: dict[int, str] = {}
        if self.unknown_count >= MOST_UNKNOWN:
            return set()
        for start, line in _find_lines(chunk, low, _MARKS):
            if start in explained or start in self.blocks.starts or not _ERROR.search(line):
                continue
            unquoted = unquote(line, _decode_head(chunk, start))
            if _ERROR.search(unquoted) and not _QUOTED.search(line):
                unknown_lines[start] = line.strip()
        for start in sorted(unknown_lines):
            is_row = _CASE_ROW.search(unknown_lines[start]) is not None
            kept_lines = self.case_rows if is_row else self.unknown
            self.case_row_count += is_row
            self.unknown_count += not is_row
            if len(kept_lines) < SHOWN_UNKNOWN:
                number = self.lines + chunk.count(b"\n", 0, start) + 1
                text = self._find_own(number) or unknown_lines[start]
                kept_lines.append(Unknown(number, text))
        return set(unknown_lines)


def _survey(chunk: bytes) -> tuple[bytes, set[bytes], bytes, bytes]:
    """Return a part of a log in lower case, its lines without digits and repetitions, these as one
    text, and the words in them."""
    low = chunk.lower()
    kinds = set(low.translate(None, DIGITS).split(b"\n"))
    shapes = b"\n".join(kinds)
    return low, kinds, shapes, list_words(shapes)


def _narrow(
    rule: Rule, lines: Iterable[tuple[int, str]], narrowed: dict[object, list[tuple[int, str]]]
) -> Iterable[tuple[int, str]]:
    """Return the lines that have a number of the rule's family or the form of a loader, if the rule
    needs that. ``narrowed`` has the lines of earlier rules that need the same."""
    need: object = None
    is_candidate: Callable[[str], object] = bool
    if rule.family:
        need, is_candidate = rule.family, read_families()[rule.family].find
    elif rule.fails and not rule.is_of_text:
        need, is_candidate = rule.fails, find_refusal
    if need is None:
        return lines
    if need not in narrowed:
        narrowed[need] = [line for line in lines if is_candidate(line[1])]
    return narrowed[need]


def _find_lines(chunk: bytes, low: bytes, literals: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """Yield each line of ``chunk`` that contains one of ``literals``: the offset of its start, and
    its text near the literal. A literal that begins with a line break matches only at the start of
    a line."""
    places: dict[int, int] = {}
    for literal in literals:
        # The first line has no line break before it.
        at = 0 if low.startswith(literal.lstrip(b"\n")) else low.find(literal)
        while 0 <= at < len(low):
            at += low[at] == b"\n"[0]
            start = low.rfind(b"\n", 0, at) + 1
            places.setdefault(start, at)
            end = low.find(b"\n", at)
            at = low.find(literal, end) if end >= 0 else -1
    for start in sorted(places):
        end = chunk.find(b"\n", start)
        at, stop = places[start], len(chunk) if end < 0 else end
        part = chunk[max(start, at - LINE_CHARS) : min(stop, at + LINE_CHARS)]
        yield start, part.decode("utf-8", "replace")


def _join_headline(chunk: bytes, start: int, match: re.Match[str]) -> str:
    """Return the headline of a finding whose id is in the line at ``start``, with the line before
    if it was broken there."""
    headline = match["headline"]
    line_before = _decode_head(chunk, chunk.rfind(b"\n", 0, start - 1) + 1) if start else ""
    broken = _BROKEN.fullmatch(line_before)
    if broken and not _BROKEN.match(headline) and not CASE_FINDING.search(line_before):
        return f"{broken['start']} {headline}"
    return headline


def _decode_head(chunk: bytes, start: int) -> str:
    """Return the start of a line."""
    end = chunk.find(b"\n", start, start + LINE_CHARS)
    return chunk[start : end if end >= 0 else start + LINE_CHARS].decode("utf-8", "replace")


def _find_in_line(rule: Rule, line: str, chunk: bytes, start: int) -> Mapping[str, str] | None:
    """Return the values of the rule's braces for a line that is no quotation, or for the message in
    it if it is JSON, or None."""
    for text in dict.fromkeys((line, find_message(line))):
        if rule.find(text) is not None:
            values = find_said(rule, text, _decode_head(chunk, start))
            if values is not None:
                return values
    return None


def _is_raised_in(rule: Rule, line: str, chunk: bytes, start: int) -> bool:
    """Return whether the exception in a line comes from code that the rule is about."""
    frame, _ = find_raising_frame(chunk, start)
    return any(name in frame or name in line for name in rule.raised_in)


def find_said(rule: Rule, line: str, start: str) -> Mapping[str, str] | None:
    """Return the values of the rule's braces for a line that it matches, or None if the line only
    quotes what the rule looks for. ``start`` is the start of the line."""
    unquoted = unquote(line, "" if has_form_of(start, rule.matches) else start)
    if unquoted == line:
        return rule.find(line)
    low = unquoted.lower().encode("utf-8", "replace")
    if rule.literals and not any(text.strip() in low for text, _, _ in rule.literals):
        return None
    values = rule.find(unquoted) if unquoted else None
    if not values or rule.family:
        return values
    # What a message quotes is blank in ``unquoted``, but readable in the line.
    return rule.find(line) or values


def explain(file: str, log: Iterable[bytes], rules: Sequence[Rule]) -> Explanation:
    """Explain a log.

    ``log`` yields chunks of any size. The text is UTF-8, or UTF-16 if it starts with its byte order
    mark. Its line endings may be of any kind. Invalid bytes are replaced. Of a line longer than
    LINE_BYTES, the first and the last half of that are read. Only two chunks and one line are in
    memory at a time.
    """
    scan = _Scan(tuple(rules))
    chunks = _split(log)
    chunk = next(chunks, None)
    while chunk is not None:
        next_chunk = next(chunks, None)
        scan.read(chunk, is_last=next_chunk is None)
        chunk = next_chunk
    return _conclude(file, scan)


def explain_text(text: str, rules: Sequence[Rule]) -> Explanation:
    """Explain a log that is a string."""
    return explain("", [text.encode("utf-8", "replace")], rules)


def find_known(text: str, rules: Sequence[Rule]) -> Finding | None:
    """Return the first cause in the text of a failure, otherwise the first hint.

    Returns None if the text matches no rule, or only rules for symptoms, components, ends or
    harmless lines, or if it ends with an error of this project that names its fix.
    """
    if text.rstrip().rpartition("\n")[2].startswith(OWN_FIX):
        return None
    explanation = explain_text(text, rules)
    causes = (
        cause
        for cause in (*explanation.causes, *explanation.notes)
        if cause.role in (Role.CAUSE, Role.HINT) and cause.rule != cause.id
    )
    return next(causes, None)


def _split(log: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole lines of a log in UTF-8, with ``\\n`` as line ending and without colours. The
    middle of lines longer than LINE_BYTES is left out."""
    remainder = b""
    for part in _decode(log):
        text = remainder + part
        cut = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
        if cut:
            yield _clean(text[:cut])
        remainder = _shorten(text[cut:])
    if remainder:
        yield _clean(remainder)


def _shorten(line: bytes) -> bytes:
    half = LINE_BYTES // 2
    return line if len(line) <= LINE_BYTES else line[:half] + line[-half:]


def _decode(log: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a log in UTF-8 without its byte order mark."""
    parts = iter(log)
    start = b""
    while len(start) < len(codecs.BOM_UTF8) and (part := next(parts, b"")):
        start += part
    mark = next((candidate for candidate in _MARKED if start.startswith(candidate)), b"")
    start = start[len(mark) :]
    if _MARKED.get(mark, "utf-8") == "utf-8":
        yield start
        yield from parts
        return
    decoder = codecs.getincrementaldecoder(_MARKED[mark])("replace")
    for part in itertools.chain([start], parts):
        yield decoder.decode(part).encode("utf-8", "replace")


def _clean(part: bytes) -> bytes:
    # Logs may have a terminal's colours, and the line endings of Windows.
    text = _ANSI.sub(b"", part).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return b"\n".join(map(_shorten, text.split(b"\n"))) if len(text) > LINE_BYTES else text


def is_in_its_log(rule: Rule, scan: _Scan) -> bool:
    """Return whether the log contains what the rule needs, and nothing that excludes the rule."""
    is_needed = not rule.log or not scan.contained.isdisjoint(rule.log)
    return is_needed and scan.contained.isdisjoint(rule.unless)


def find_other(rule: Rule, taken: _Match, scan: _Scan) -> Rule | None:
    """Return the next rule that matches a line, which ``rule`` has taken in a log that is not its
    own, and note the line for it. Whether the log is the rule's own is only known at its end."""
    low = taken.text.lower().encode()
    for candidate in scan.rules:
        if candidate is rule or not is_in_its_log(candidate, scan):
            continue
        literals = candidate.literals
        if literals and not any(text.strip() in low for text, _, _ in literals):
            continue
        if (values := find_said(candidate, taken.text, taken.text)) is not None:
            if candidate.has_reason_below:
                values = {**values, "below": ""}  # these lines are not kept
            lines = [replace(taken, values=values)]
            if earlier := scan.matches.get(candidate.id):
                lines.append(earlier)
            first = min(lines, key=lambda match: match.line)
            count = sum(match.count for match in lines)
            scan.matches[candidate.id] = replace(first, count=count)
            return candidate
    return None


def _list_matched(scan: _Scan) -> list[Rule]:
    """Return the rules that apply to the log, in the order of their first lines. Lines of others
    become errors that match no rule."""
    matched = index_rules(scan.rules).find_by_id(scan.matches)
    # The next rule may match such a line: error 1002 of a context binary had no cause any more when
    # the rule for contexts on QNN's GPU backend took it.
    for rule in [rule for rule in matched if not is_in_its_log(rule, scan)]:
        matched.remove(rule)
        taken = scan.matches.pop(rule.id)
        next_rule = find_other(rule, taken, scan)
        if not next_rule:
            _keep_unknown(taken, scan)
        elif next_rule not in matched:
            matched.append(next_rule)
    if any(rule.role in (Role.CAUSE, Role.SYMPTOM) for rule in matched):
        # A component is no consequence of a cause just because both are in the log. But it may
        # have the reason for a symptom, such as the text of QNN's own error.
        symptoms = [rule for rule in matched if rule.role is Role.SYMPTOM]
        reasons = {name for rule in symptoms for name in rule.consequence_of}
        for rule in [rule for rule in matched if rule.role is Role.COMPONENT]:
            if not rule.is_frame and rule.id not in reasons:
                matched.remove(rule)
                _keep_unknown(scan.matches.pop(rule.id), scan)
    scan.unknown.sort(key=lambda line: line.line)
    matched.sort(key=lambda rule: scan.matches[rule.id].line)
    return matched


def _find_reasons(matched: Sequence[Rule], matches: Mapping[str, _Match]) -> Mapping[str, str]:
    """Return the matched rule of which each is a consequence, or "" for those that are none.
    ``matched`` is in the order of the lines."""
    ids = {rule.id for rule in matched}

    def may_follow(rule: Rule, cause: str) -> bool:
        libraries = matches[rule.id].libraries
        return not (rule.same_library and libraries.keys().isdisjoint(matches[cause].libraries))

    later_ends = {rule.id for rule in matched if rule.role is Role.END}
    follows = {}
    for rule in matched:
        later_ends.discard(rule.id)  # Nothing follows from what ends after it.
        reasons = (cause for cause in rule.consequence_of if cause in ids - later_ends)
        follows[rule.id] = next((cause for cause in reasons if may_follow(rule, cause)), "")
    return follows


def _complete_cause(rule: Rule, consequence: _Match, cause: _Match | None) -> None:
    """Let a crash name the frame of a backtrace, and the rule for a library of the linker show the
    line with the library that ``consequence`` names."""
    if cause and rule.is_frame:
        cause.raised_in = rule.fill(rule.detail, consequence.values)
    if cause and rule.same_library:
        lines = cause.libraries.items()
        first = next(line for stem, line in lines if stem in consequence.libraries)
        cause.line, cause.text, cause.own_text = first.line, first.text, first.own_text
        cause.values = first.values


def _conclude(file: str, scan: _Scan) -> Explanation:
    """Sort the matched rules into causes, consequences, notes and harmless lines."""
    case_findings = _list_case_findings(scan)
    if not case_findings:  # the rows are of another program
        scan.unknown = sorted([*scan.unknown, *scan.case_rows], key=lambda row: row.line)
        scan.unknown = scan.unknown[:SHOWN_UNKNOWN]
        scan.unknown_count += scan.case_row_count
    matched = _list_matched(scan)
    follows = _find_reasons(matched, scan.matches)
    for rule in matched:
        _complete_cause(rule, scan.matches[rule.id], scan.matches.get(follows[rule.id]))

    def pick(role: Role) -> list[Rule]:
        return [rule for rule in matched if rule.role is role]

    first = {rule.id for rule in pick(Role.CAUSE) if not follows[rule.id]}
    followed = {follows[rule.id] for rule in pick(Role.CAUSE)}
    first |= followed & {hint.id for hint in pick(Role.HINT)}
    symptoms, components, ends = pick(Role.SYMPTOM), pick(Role.COMPONENT), pick(Role.END)
    guessed = set[str]()
    if not first:
        hints = [hint for hint in pick(Role.HINT) if not follows[hint.id]]
        first = choose_hints(hints, symptoms + ends)
        if not first and not case_findings:
            first = guessed = guess_hints(hints, symptoms + ends, components, scan)
    causes = [rule for rule in matched if rule.id in first]
    notes = [hint for hint in pick(Role.HINT) if hint not in causes]
    effects = [*pick(Role.CAUSE), *symptoms, *ends]
    if not (causes or case_findings):
        causes = [rule for rule in symptoms if not follows[rule.id]][:1]
    parts = [rule for rule in components if not rule.is_frame]
    if causes or case_findings:
        for rule in parts:
            _keep_unknown(scan.matches[rule.id], scan)
        scan.unknown.sort(key=lambda line: line.line)
    else:
        followed_ends = [rule for rule in ends if rule.id in follows.values()]
        causes = (followed_ends or components or symptoms or ends)[:1]
        effects += parts
    effects += [rule for rule in components if rule.is_frame]
    effects = [rule for rule in effects if rule not in causes]
    consequences = sorted(effects, key=lambda rule: scan.matches[rule.id].line)
    place = find_place(scan.places)
    findings = [_find(rule, scan, place, guess=rule.id in guessed) for rule in causes]
    findings = sorted([*case_findings, *findings], key=lambda finding: finding.line)
    name = findings[0].rule if findings else ""
    return Explanation(
        file=file,
        lines=scan.lines,
        causes=tuple(findings),
        consequences=tuple(
            _find(rule, scan, place, follows[rule.id] or name) for rule in consequences
        ),
        notes=tuple(_find(rule, scan, place, follows[rule.id]) for rule in notes),
        harmless=tuple(_find(rule, scan, place) for rule in pick(Role.HARMLESS)),
        unknown=tuple(scan.unknown),
        unknown_count=scan.unknown_count,
        operators=_list_operators(scan, causes),
    )


def _list_case_findings(scan: _Scan) -> list[Finding]:
    """Return the findings of cases that the log names."""
    kinds = {kind.id: kind for kind in read_kinds()} if scan.case_findings else {}
    findings = []
    for number, match in scan.case_findings.items():
        if kind := kinds.get(number):
            finding = Finding(
                id=number,
                rule=number,
                role=Role.CAUSE,
                headline=match.values["headline"] or kind.example,
                detail=kind.meaning,
                certainty=Certainty.KNOWN,
                remedies=(Remedy(text=kind.help, proof=Proof.SUGGESTED),),
                place=Place.COMPUTER,
                line=match.line,
                text=match.text,
                source=("docs/reference/findings.md",),
                is_seen=True,
                count=match.count,
            )
            findings.append(finding)
    return findings


def choose_hints(hints: Sequence[Rule], symptoms: Sequence[Rule]) -> set[str]:
    """Return the hints that are the causes of the symptoms."""
    areas = {symptom.area for symptom in symptoms}
    if Area.ONNX in areas:  # onnxruntime's symptoms, and QNN's reasons
        areas.add(Area.LOWERING)
    return {hint.id for hint in hints if hint.area in areas}


def guess_hints(
    hints: Sequence[Rule], symptoms: Sequence[Rule], components: Sequence[Rule], scan: _Scan
) -> set[str]:
    """Return the hints that are likely causes in a log without another one."""
    if symptoms:
        is_general = any(symptom.area in _GENERAL for symptom in symptoms)
        return {hint.id for hint in hints} if is_general else set()
    # An error that no rule knows shows, as a symptom does, that the run failed. It says less than
    # what QNN refused before, or right after: QNN prints the reason above the refusal.
    lines = [scan.matches[rule.id].line for rule in components]
    # An exception may quote what QNN printed, as for a job of AI Hub.
    hint_lines = [scan.matches[hint.id] for hint in hints]
    lines += [match.line for match in hint_lines if _RAISED.match(match.text)]
    failed_at = max([*lines, _find_raised(scan)])
    refused = [hint for hint in hints if hint.area in _REFUSING]
    last_line = failed_at + REASON_LINES if failed_at else 0
    return {hint.id for hint in refused if scan.matches[hint.id].line < last_line}


def _find_raised(scan: _Scan) -> int:
    """Return the number of the last line with an exception that ended a program and matches no
    rule, or 0 if there is none."""
    return max((line.line for line in scan.unknown if _RAISED.match(line.text)), default=0)


def _keep_unknown(taken: _Match, scan: _Scan) -> None:
    """Count the lines of a rule that does not apply after all as errors that match no rule."""
    scan.unknown.append(Unknown(taken.line, taken.own_text or taken.text))
    scan.unknown_count += taken.count


def _list_operators(scan: _Scan, causes: Sequence[Rule]) -> tuple[Operator, ...]:
    """Return the operators that lines name, or, if there are none, the one on which work began last
    before a failure to lower."""
    operators = []
    for rule, line_by_operator in scan.operators.items():
        for name, line in line_by_operator.items():
            operators.append(Operator(name, line, rule))
    if not operators and causes and causes[0].area in _OF_OPERATORS:
        operators = [operator for operator in scan.begun if operator.rule == causes[0].id]
    return tuple(sorted(operators, key=lambda operator: operator.line))


def _find(
    rule: Rule, scan: _Scan, place: Place, consequence_of: str = "", *, guess: bool = False
) -> Finding:
    """Return the finding of a matched rule. ``place`` is where the log was made; a line that shows
    its own place overrules it."""
    matched = scan.matches[rule.id]
    own_place = find_place(count_places(matched.text.lower().translate(_NO_DIGITS)))
    # A line that names a library for aarch64 may be from the computer that has it for a board.
    is_certain = own_place not in (Place.UNKNOWN, Place.BOARD)
    place = own_place if is_certain or place is Place.UNKNOWN else place
    near = Place.DEVICE if place is Place.BOARD else place  # a board is a device, too
    variant = rule.places.get(place) or rule.places.get(near, Variant())
    proven = rule.proof and not variant.remedy

    within = f" in the package {matched.package}" if matched.package else ""

    def fill(text: str) -> str:
        return rule.fill(text, matched.values and {**matched.values, "within": within})

    return Finding(
        id=rule.finding_id,
        rule=rule.id,
        role=rule.role,
        headline=fill(variant.headline or rule.headline),
        detail="" if variant.headline else fill(rule.detail),
        certainty=Certainty.GUESS if guess else rule.certainty,
        remedies=(
            Remedy(
                text=fill(variant.remedy or rule.remedy),
                proof=Proof.PROVEN if proven else Proof.SUGGESTED,
            ),
        ),
        place=place,
        line=matched.line,
        text=matched.own_text or matched.text,
        source=rule.source,
        is_seen=rule.is_seen,
        versions=rule.versions,
        count=matched.count,
        raised_in=matched.raised_in,
        consequence_of=consequence_of,
    )
