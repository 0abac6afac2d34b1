"""Rules: what a line of a log means, what to do about it, and the source of this knowledge. Also
the places where logs are made, and families of numbers: the errors of ExecuTorch and FastRPC, and
the data types of QNN."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ci.explain.frames import find_frame
from ci.explain.linear import compile_linear
from ci.explain.loaders import NOTHING, Failure, Refusal, find_refusal, list_texts, read_loaders
from ci.facts.finding import Certainty
from ci.facts.kinds import read_kinds
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_policy

HEADLINE_CHARS = 100
DIGITS = b"0123456789"
DSP_OFFSET = 0x80000400  # errors of the CPU's side of FastRPC are without it


class Place(Enum):
    """Where a log was made, as far as it matters for what to do: in an Android ``app`` (or by
    logcat), in a shell on a ``device``, on a Linux ``board`` with an aarch64 processor, on
    ``windows``, or on a Linux ``computer``."""

    APP = "app"
    DEVICE = "device"
    BOARD = "board"
    WINDOWS = "windows"
    COMPUTER = "computer"
    UNKNOWN = ""


# Expressions for lines in lower case and without digits, such as "- ::.    e tag : text".
_LINES = {
    Place.APP: re.compile(
        r"^(?:--t::\.z )?(?:- ::\. |-- ::\. +-)|^[vdiwef]/[^(\n]{1,40}\( *\):|androidruntime"
        r"|/data/(?:app|user|data)/(?!com\.termux/)|unsatisfiedlinkerror|dlopen failed|jnilibs"
        r"|\bclns-",
        re.MULTILINE,
    ),
    # Termux is an app in which people use a shell.
    # Only Android's loader of programs, which an app is not, "cannot link" one.
    Place.DEVICE: re.compile(
        r"/data/local/tmp|/vendor/lib|cdsprpcd\b|/com\.termux/|\bcannot link executable\b"
    ),
    # The SDK's directories, triplets, wheels and `uname -m`.
    Place.BOARD: re.compile(r"aarch(?!(?:-\w+)*-windows|linux\b)"),
    Place.WINDOWS: re.compile(
        r"\b[a-z]:[\\/]|\w\.(?:dll|exe)\b|loadlibrary|\bdll load failed|\bwinerror"
    ),
    Place.COMPUTER: re.compile(
        r"x_[-.]|site-packages|traceback \(most recent|/usr/bin/ld|/home/|\bcmake\b|collect:"
    ),
}


# Lines of logcat by a program that somebody started in a shell. QNN and FastRPC write them in its
# name.
_TOOL = re.compile(
    r"^- ::\. +[vdiwef] (?:qnn[-_][-\w]+|genie-tt-run|llama-[-\w]+|\w+_runner|benchmark_model) *:",
    re.MULTILINE,
)
_X86 = re.compile(r"x_[-_./]|amd\b")  # also without digits


def count_places(lines: str) -> Counter[Place]:
    """Return how often lines show each kind of place. ``lines`` are in lower case and without
    digits."""
    counts = Counter({place: len(pattern.findall(lines)) for place, pattern in _LINES.items()})
    of_tools = len(_TOOL.findall(lines))
    counts[Place.APP] -= of_tools
    counts[Place.DEVICE] += of_tools
    # Android's loader writes the same words in a shell as in an app, but an app does not use this
    # directory.
    if counts[Place.APP] == 1 and "/data/local/tmp/" in lines:
        counts[Place.DEVICE] += 1
    if _X86.search(lines):  # a computer that has libraries for a board
        del counts[Place.BOARD]
    return counts


def find_place(counted: Counter[Place]) -> Place:
    """Return the place that was counted most often. A computer whose log names aarch64 is a
    board."""
    place, count = counted.most_common(1)[0] if counted else (Place.UNKNOWN, 0)
    if place is Place.COMPUTER and counted[Place.BOARD]:
        return Place.BOARD
    return place if count else Place.UNKNOWN


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers with their names and meanings.

    ``pattern`` finds them in a line, as the groups ``code`` and ``other``: in hexadecimal with 0x,
    otherwise in decimal, or by name. Numbers of 32 bits may be negative. The group ``low`` is a
    hexadecimal number to which DSP_OFFSET has to be added. Each line with a number contains one of
    ``text`` (ignoring case). The keys of ``numbers`` are hexadecimal, such as 0x4. ``like`` is the
    family that has them, if it is another one. Findings show a number as the keys do or, if
    ``is_decimal``, in decimal.
    """

    source: str
    text: tuple[str, ...]
    pattern: str
    numbers: dict[str, tuple[str, str]] = {}
    like: str = ""
    is_decimal: bool = False

    def find(self, line: str, codes: Collection[int] = ()) -> Mapping[str, str] | None:
        """Return the texts of the first known number in ``line``: ``code`` and ``other``, each a
        number with its name, and ``meaning``, that of ``code``. Returns None if there is none, or
        none of ``codes``."""
        for match in compile_once(self.pattern).finditer(line):
            texts = {group: text for group, text in match.groupdict().items() if text}
            low = texts.pop("low", "")
            values = {group: self._parse(text) for group, text in texts.items()}
            code = values.setdefault("code", hex(int(low or "0", 16) + DSP_OFFSET))
            is_known = self.numbers.keys() >= set(values.values())
            if is_known and (not codes or int(code, 16) in codes):
                named = {
                    group: f"{self._show(key)} ({self.numbers[key][0]})"
                    for group, key in values.items()
                }
                return {**named, "meaning": self.numbers[code][1]}
        return None

    def _show(self, key: str) -> str:
        """Return a number as logs spell it."""
        number = int(key, 16)
        signed = number - (1 << 32) if number >> 31 else number
        return str(signed) if self.is_decimal else key

    def _parse(self, text: str) -> str:
        """Return the key of the number that ``text`` spells or names, or ""."""
        plain = text.replace(":", "").lower()
        if plain.startswith("0x"):
            return hex(int(plain, 16))
        if plain.removeprefix("-").isdecimal():
            return hex(int(plain) % (1 << 32))
        return next((key for key, (name, _) in self.numbers.items() if name == text), "")


@functools.cache
def read_families() -> dict[str, Family]:
    """Return the families of manifests/policies/codes.toml by name. Raises ManifestError if the
    file is invalid."""
    tables = read_policy("codes", dict[str, Family])
    families = {}
    for name, family in tables.items():
        rows = tables[family.like or name].numbers
        numbers = {hex(int(key, 16)): named for key, named in rows.items()}
        families[name] = replace(family, numbers=numbers)
    return families


OF_POLICY = ("policy",)  # the source of a rule from a team's policy


class Role(Enum):
    """What a line means for the run that logged it.

    A ``cause`` explains a failure. A ``symptom`` can follow from any cause; the first one counts as
    the cause if the log has no other. A ``hint`` is not a failure by itself: it counts as a cause
    only if there is no other and there is a symptom of the same area, or if a matched cause is its
    consequence. A rule for a ``component`` only knows which part of a program wrote an error line:
    it counts as the cause if there is neither a cause nor a symptom, otherwise its lines are errors
    that match no rule. An ``end`` only says that a program or a step ended, as a crash does: it
    counts if there is no component either. A ``harmless`` line appears in logs of successful runs.
    """

    CAUSE = "cause"
    HINT = "hint"
    SYMPTOM = "symptom"
    COMPONENT = "component"
    END = "end"
    HARMLESS = "harmless"


class Area(Enum):
    """The section of docs/reference/troubleshooting.md that lists a rule."""

    INSTALLING = "installing"
    BUILDING = "building"
    LOADING = "loading"
    LOWERING = "lowering"
    JUDGING = "judging"
    RUNNING = "running"
    DEVICE = "device"
    ONNX = "onnx"
    LITERT = "litert"


# Lines of layers that report their errors with the text of an errno: FastRPC and its drivers,
# binder, dlopen, inotify and QNN. A refused connection of FastRPC is one to the DSP.
_LAYERS = re.compile(
    r"(?i)fastrpc|adsprpc|cdsprpc|\bapps_\w+|\bremote_(?:handle|session|init|mmap|mem|register)"
    r"|rpcmem|dspqueue|dma_heap|\bioctl\b|binder\b|servicemanager|qnndsp|dsptransport|\bhtp_iface"
    r"|dlopen|cannot open shared object|map segment|inotify|/dev/(?:kgsl|adsprpc|ion|kfd|dri)"
)
# Lines of LiteRT whose numbers are its own statuses. Those of its QNN manager and of Qualcomm's
# dispatch library are QNN's.
_STATUSES = re.compile(
    r"(?:\blitert\b|tflite|(?:INFO|WARNING|ERROR):? ?|^)\W*"
    r"\[(?:[\w./-]*/)?(?!qnn_|dispatch_api\.|context_binary|\w*_backend\.)\w+\.(?:cc|h):\d+\]"
    r"|kLiteRtStatus"
)


# The source file that a logger of LiteRT, Abseil, ExecuTorch or onnxruntime names, and the message.
_SOURCE_LINE = re.compile(
    r"(?<![\w.-])(?P<file>[\w-]+\.(?:cc|cpp|h|c)):\d+(?: [^\]\n]{1,120}\])?[\]: ]*"
    r"(?=(?P<reason>[^\n]{0,200}))"  # may name another file
)
# What stands before it in an error line.
_ERROR_LEVEL = re.compile(
    r"\bERROR:|(?:^|\s)[EF](?:[/ ]|\d{4} )|\[[EF]:onnxruntime|\[ONNXRuntimeError\]|\[ERROR\]"
)


class Variant(Struct, frozen=True, forbid_unknown_fields=True):
    """What is different about a rule if the log was made at one kind of place. Empty texts are
    those of the rule."""

    headline: str = ""
    remedy: str = ""


_WORD = re.compile(rb"[a-z_]+")
WORD_BYTES = 128  # more than in any word of a rule


class Literal(NamedTuple):
    """A text in lower case, the same without its digits, and the longest word of that, which may be
    a part of a word of the log."""

    text: bytes
    without_digits: bytes
    word: bytes


def list_words(text: bytes) -> bytes:
    """Return the words of a text without repetitions, for a search of words of fewer than
    WORD_BYTES bytes: a log repeats few words, so that this is much shorter than the log."""
    words = set(_WORD.findall(text))
    for word in [word for word in words if len(word) > 2 * WORD_BYTES]:
        words.remove(word)
        starts = range(0, len(word), WORD_BYTES)
        words.update(word[start : start + 2 * WORD_BYTES] for start in starts)
    return b" ".join(words)


# Python itself keeps 512 expressions. With more rules than that, a log in which many of them look
# at lines had them compiled again and again, which took half of the time.
compile_once = functools.lru_cache(maxsize=4096)(re.compile)


def _list_literals(
    text: tuple[str, ...], code: int = 0, names: tuple[str, ...] = (), family: str = ""
) -> tuple[Literal, ...]:
    spelled = [number.removeprefix("0x") for number in spell_code(code)] if code else ()
    of_family = read_families()[family].text if family else ()
    named = (*text, *spelled, *names, *of_family)
    literals = []
    for part in dict.fromkeys(part.lower().encode() for part in named):
        shape = part.translate(None, DIGITS)
        literals.append(Literal(part, shape, max(_WORD.findall(shape), key=len, default=b"")))
    return tuple(literals)


# Rules are only equal to themselves, so that an index of them is made once (``index_rules``). The
# dictionary has what is cached.
class Rule(Struct, frozen=True, forbid_unknown_fields=True, eq=False, dict=True):
    """A rule about log lines.

    A line matches if it contains the error number ``code`` or one of ``text`` (ignoring case) and
    if ``pattern`` is found in it. Conditions that a rule does not set do not apply. ``code``
    matches in decimal, in hexadecimal (see ``spell_code``) and as one of ``names``. A rule with a
    ``family`` matches lines with a number of that family: one of ``codes``, or any number if there
    are none. ``{code}``, ``{other}`` and ``{meaning}`` in its texts stand for what the family says
    about the line, and other names for the groups of ``pattern`` with these names. If ``log`` is
    set, lines only count in a log that contains one of these texts, which are in lower case, and
    none of those in ``unless``. A rule with ``raised_in`` matches exceptions of Python whose last
    frame, or the line itself, contains one of these texts. The
    texts of a rule with ``errno`` are those of errno, which do not count in lines of FastRPC,
    binder, dlopen or QNN: there they are a detail of that layer's own error. A rule with ``files``
    matches error lines that name one of these source files of the program that wrote them; a ``*``
    in a name stands for any text, and ``{reason}`` for the message. A rule with ``is_frame``
    matches lines of a backtrace that name a function or a library which is not the system's:
    ``{function}`` and ``{library}``. The lines below one that a rule with ``has_reason_below``
    matches have the reason: ``{below}`` stands for a colon and their text.

    A rule with ``fails`` also matches lines in which a loader, a linker or another tool reports one
    of these failures, in any of the forms of manifests/policies/loaders.toml and tools.toml: of the
    libraries ``whose``, by the ``loader``, and if ``symbol`` is found at the start of the missing
    symbol's name, each if it is set. ``{file}``, ``{named}`` and the form's groups stand for what
    the line names. A rule that is ``same_library`` is a consequence of another one only if a line
    of each names one library.

    ``number`` is that of its id, such as QNN1203, and never changes. ``headline`` has at most
    HEADLINE_CHARS characters; ``detail`` continues it. ``proof`` is the file with the tried remedy,
    or empty if the remedy is a suggestion. ``places`` has what is different at one kind of place.
    ``source`` lists links, or the word ``experiment``. The key ``seen`` is true if this project saw
    such a line itself. ``consequence_of`` lists ids of rules, or groups of failures, such as
    ``download-*``. If one of these rules also matches a line of the log, this rule's line is its
    consequence. ``GROUP-*`` there stands for all rules with this ``group``. ``matches`` is an
    example of a line that the rule matches, and ``rejects`` is an example of one that it does not
    match.
    """

    id: str
    area: Area
    headline: str
    remedy: str
    matches: str
    rejects: str
    source: tuple[str, ...]
    number: int = 0
    detail: str = ""
    proof: str = ""
    certainty: Certainty = Certainty.KNOWN
    places: dict[Place, Variant] = {}
    is_seen: bool = msgspec.field(default=False, name="seen")
    text: tuple[str, ...] = ()
    pattern: str = ""
    code: int = 0
    names: tuple[str, ...] = ()
    family: str = ""
    codes: tuple[int, ...] = ()
    log: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    raised_in: tuple[str, ...] = ()
    errno: bool = False
    files: tuple[str, ...] = ()
    is_frame: bool = msgspec.field(default=False, name="frame")
    has_reason_below: bool = msgspec.field(default=False, name="reason_below")
    fails: tuple[Failure, ...] = ()
    whose: tuple[str, ...] = ()
    loader: tuple[str, ...] = ()
    symbol: str = ""
    same_library: bool = False
    versions: str = ""
    role: Role = Role.CAUSE
    group: str = ""
    consequence_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.is_of_text or self.pattern or self.fails):
            raise ValueError(f"{self.id}: the rule has no text, pattern, code, family or files")
        if not self.fails and (self.whose or self.loader or self.symbol):
            raise ValueError(f"{self.id}: whose, loader and symbol need fails")
        if not self.is_frame and any(len(text.strip()) < 3 for text in self.text):
            raise ValueError(
                f"{self.id}: a text of fewer than three characters matches nearly every log"
            )
        if self.by_user:
            compile_linear(self.pattern)
        else:
            check_pattern(self.pattern)

    @property
    def by_user(self) -> bool:
        """Whether the rule is a row of a team's policy."""
        return self.source == OF_POLICY

    @property
    def is_of_text(self) -> bool:
        """Whether the rule matches lines that are not of a loader's form."""
        return bool(self.text or self.code or self.family or self.files)

    @property
    def finding_id(self) -> str:
        """The id of the rule's findings, or the name of a rule without a number."""
        return f"QNN{self.number}" if self.number else self.id

    @functools.cached_property
    def literals(self) -> tuple[Literal, ...]:
        """Each line that the rule matches contains at least one of these texts. A rule that has
        only a pattern has no literals."""
        of_files = (max(name.split("*"), key=len) for name in self.files)
        text = (*self.text, *of_files, *list_texts(self.fails))
        return _list_literals(text, self.code, self.names, self.family)

    def find(self, line: str) -> Mapping[str, str] | None:
        """Return the values of the texts' braces for a line that contains one of ``literals``, or
        None if the rule does not match the line."""
        if not self.fails:
            return self._find(line)
        refusal = find_refusal(line)
        if refusal and self._has_cause_of(refusal):
            return refusal.values
        low = line.lower()
        if not self.is_of_text or (
            self.text and not any(text.lower() in low for text in self.text)
        ):
            return None
        groups = self._find(line)
        return None if groups is None else {**NOTHING, **groups}

    def _has_cause_of(self, refusal: Refusal) -> bool:
        """Return whether the rule is about what a loader refused."""
        return (
            refusal.fails in self.fails
            and (not self.whose or refusal.whose in self.whose)
            and (not self.loader or refusal.loader in self.loader)
            and compile_once(self.symbol).match(refusal.values["symbol"]) is not None
        )

    def _find(self, line: str) -> Mapping[str, str] | None:
        """Return the values for a line that is not of a loader's form, or None."""
        if self.errno and _LAYERS.search(line):
            return None
        if self.code and not self._has_code(line):
            low = line.lower()
            if not any(text.lower() in low for text in self.text):
                return None
        if (groups := self._find_groups(line)) is None:
            return None
        if self.files or self.is_frame:
            more_groups = find_frame(line) if self.is_frame else self._find_reason(line)
            if not more_groups:
                return None
            groups = {**groups, **more_groups}
        if not self.family:
            return groups
        values = read_families()[self.family].find(line, self.codes)
        return None if values is None else {**groups, **values}

    def _find_groups(self, line: str) -> Mapping[str, str] | None:
        """Return the named groups of ``pattern``, or None if it is not found."""
        if self.by_user:
            return {} if compile_linear(self.pattern).search(line) else None
        matched = compile_once(self.pattern).search(line)
        return matched and {name: text or "" for name, text in matched.groupdict().items()}

    def _find_reason(self, line: str) -> Mapping[str, str]:
        """Return the message of an error line that names one of ``files``, or nothing."""
        low = line.lower()
        is_named = not self.text or any(text.lower() in low for text in self.text)
        for source in _SOURCE_LINE.finditer(line) if is_named else ():
            is_ours = any(fnmatchcase(source["file"], name) for name in self.files)
            reason = source["reason"].strip()
            # A trace of LiteRT is paths without messages. A name alone heads lines of a message.
            is_said = reason or line[: source.start()].endswith("/")
            if is_ours and is_said and _ERROR_LEVEL.search(line, 0, source.start()):
                return {"reason": reason}
        return {}

    def _has_code(self, line: str) -> bool:
        """Return whether ``line`` contains the rule's error number, or its name."""
        match = _code_expression(self.code, self.names).search(line)
        if not match:
            return False
        return match[0] in self.names or not _STATUSES.search(line)

    def fill(self, text: str, values: Mapping[str, str]) -> str:
        """Return one of the rule's texts with ``values`` for its braces. ``{within}``, the package
        that raised an exception of Python, may be missing in them."""
        return text.format_map({"within": "", **values}) if values else text


class Naming(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A kind of line that names an operator, a node or a pass.

    Such a line contains one of ``text`` (ignoring case), and ``pattern`` finds the name as the
    group ``name``. ``is_begin`` is true for lines that appear for each operator when work on it
    begins. ``matches``, ``name`` and ``rejects`` are an example of a line, the name in it, and a
    line without one.
    """

    text: tuple[str, ...]
    pattern: str
    matches: str
    name: str
    rejects: str
    is_begin: bool = False

    def __post_init__(self) -> None:
        check_pattern(self.pattern)

    @functools.cached_property
    def literals(self) -> tuple[Literal, ...]:
        """Each line that names an operator contains one of these texts."""
        return _list_literals(self.text)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/errors.toml."""

    rule: tuple[Rule, ...]
    naming: tuple[Naming, ...] = ()


@functools.cache
def read_namings() -> tuple[Naming, ...]:
    """Return the kinds of lines that name operators. Raises ManifestError if the file is
    invalid."""
    return read_policy("errors", _File).naming


@functools.cache
def read_rules() -> tuple[Rule, ...]:
    """Return the rules of manifests/policies/errors.toml, symptoms after causes, and components
    last. Raises ManifestError if the file is invalid."""
    rules = read_policy("errors", _File).rule
    ids = {rule.id for rule in rules}
    named = {name for rule in rules for name in rule.consequence_of}
    groups = {_name_group(failure) for failure in Failure}
    groups |= {f"{rule.group}-*" for rule in rules if rule.group}
    unknown = ", ".join(sorted(named - ids - groups))
    if min(len(ids), len({rule.finding_id for rule in rules})) < len(rules) or unknown:
        raise ManifestError(
            "manifests/policies/errors.toml is not consistent",
            why=f"consequence_of names unknown ids: {unknown}" if unknown else "an id occurs twice",
            fix="give each rule a unique id, and use only existing ids in consequence_of",
        )
    families = read_families()
    loaders = read_loaders()
    for rule in rules:
        unknown = ", ".join(
            sorted(
                {*rule.whose} - {*loaders.libraries}
                | {*rule.loader} - {form.of for form in loaders.form}
            )
        )
        if unknown:
            raise ManifestError(
                "manifests/policies/errors.toml is not consistent",
                why=f"{rule.id} names {unknown}, which manifests/policies/loaders.toml lacks",
                fix="name a row of its libraries in whose, and an `of` of its forms in loader",
            )
        if rule.family and rule.family not in families:
            raise ManifestError(
                "manifests/policies/errors.toml is not consistent",
                why=f"{rule.id} names {rule.family!r}, which is no family of numbers",
                fix=f"name one of {', '.join(families)}, as in manifests/policies/codes.toml",
            )
    rules = tuple(_name_all_refusals(rule, rules) for rule in rules)
    late = (Role.SYMPTOM, Role.END, Role.COMPONENT)
    return tuple(sorted(rules, key=lambda rule: rule.role in late and late.index(rule.role) + 1))


def _name_group(failure: Failure) -> str:
    """Return the name of a failure and others of its kind in ``consequence_of``."""
    kind, _, _ = failure.value.partition("-")
    return f"{kind}-*"


def _name_all_refusals(rule: Rule, rules: Sequence[Rule]) -> Rule:
    """Return ``rule`` with more ids in ``consequence_of``: that of a rule for all libraries, such
    as library-missing, stands for those of single libraries, too, and ``download-*`` for those of
    all failures of downloads, and ``GROUP-*`` for those of a group."""
    groups = [name for name in rule.consequence_of if name.endswith("-*")]
    names = [name for name in rule.consequence_of if name not in groups]
    for cause in rules if groups else ():
        kinds = {_name_group(failure) for failure in cause.fails} | {f"{cause.group}-*"}
        if not kinds.isdisjoint(groups) and cause.id not in (rule.id, *names):
            names.append(cause.id)
    if rule.fails:
        return replace(rule, consequence_of=tuple(names))
    for cause in rules:
        if cause.id in rule.consequence_of and cause.fails and not (cause.whose or cause.symbol):
            for other in rules:
                if not {*other.fails}.isdisjoint(cause.fails) and other.id not in names:
                    names.append(other.id)
    return replace(rule, consequence_of=tuple(names))


def spell_code(code: int) -> tuple[str, ...]:
    """Return the spellings of an error number in logs, such as 5005 and 0x138d. If bit 31 is set,
    as in FastRPC's error numbers, the third spelling is a negative number."""
    signed = (str(code - (1 << 32)),) if code >> 31 == 1 else ()
    return (str(code), f"{code:#x}", *signed)


# A number is a size, a count or a time, unless such a word is shortly before it, or it is all that
# a line says about a failure: "Transport layer setup failed: 14001", "Failed to create QNN context:
# 1002".
_CONTEXT = (
    r"(?i)(?:\b(?:err(?:or)?|errno|code|status|handle)\b[^\n\d]{0,32}?"
    r"|\b(?:fail(?:ed|ure)|returned|exits with|symbols)[ :=,(]{1,3}"
    r"|\b(?:failed|unable|could not) (?:to )?[^\n\d:,]{1,80}[:,=] ?(?=\w+\W*$))"
)


@functools.cache
def _code_expression(code: int, names: tuple[str, ...]) -> re.Pattern[str]:
    decimal, _, *signed = spell_code(code)
    number = "|".join([decimal, f"0x0*{code:x}", *signed])
    exact = "".join(rf"|\b{re.escape(name)}\b" for name in names)
    return re.compile(rf"{_CONTEXT}(?<![\w.-])(?:{number})(?!\w|\.\d){exact}")


_ESCAPED = re.compile(r"\\.")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_GROUP = re.compile(r"\((?:\?[:=!]|\?<[=!]|\?[aimsx]+\))?([^()]*)\)([*+]|\{\d*,\d*\})?")
_ENDLESS = re.compile(r"[*+]|\{\d+,\}")
MOST_ENDLESS = 3


def check_pattern(pattern: str) -> None:
    """Raise ValueError for a regular expression of this project that is invalid or could take
    forever. Those of users are searched for in another way, see ``linear``.

    It could take forever if it repeats a group that contains an unbounded repetition or an
    alternative, or if it has more than MOST_ENDLESS unbounded repetitions.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    plain = _CLASS.sub("x", _ESCAPED.sub("x", pattern))
    if len(_ENDLESS.findall(plain)) > MOST_ENDLESS:
        raise ValueError(f"{pattern!r} may take forever: it has too many * and +")
    while group := _GROUP.search(plain):
        inner, repeats = group[1], group[2] or ""
        if repeats and (_ENDLESS.search(inner) or "|" in inner):
            raise ValueError(f"{pattern!r} may take forever: it repeats ({inner})")
        plain = f"{plain[: group.start()]}{inner}{repeats}{plain[group.end() :]}"


class Advice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ``[[advice]]`` row of a team's policy: the fix for each failure with a finding that has
    this ``id`` and whose text ``pattern`` matches. At least one of both is given."""

    fix: str
    pattern: str = ""
    id: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        require_match(self.id, self.pattern)


def require_match(name: str, pattern: str) -> None:
    """Raise ValueError if a policy's row names neither a finding nor a pattern, or if one of them
    is invalid."""
    if not (name or pattern):
        raise ValueError("a row needs an id of docs/reference/findings.md or a pattern")
    if name and name not in {kind.id for kind in read_kinds()}:
        raise ValueError(f"{name} is no id of docs/reference/findings.md")
    compile_linear(pattern)


def make_rules(rows: Iterable[Advice]) -> tuple[Rule, ...]:
    """Return those ``[[advice]]`` rows of a team's policy that have a pattern as rules."""
    return tuple(
        Rule(
            id=f"policy-{number}",
            area=Area.JUDGING,
            headline=row.why or "an [[advice]] row of your policy matches this failure",
            remedy=row.fix,
            proof="your policy",
            pattern=row.pattern,
            matches="",
            rejects="",
            source=OF_POLICY,
            is_seen=True,
        )
        for number, row in enumerate(rows, 1)
        if row.pattern
    )
