"""The registry of checks, and the findings that they return. The function or condition that detects
a check's fault is in the module of its family; its texts are in manifests/policies/checks.toml.

The texts are templates, which are filled with the values that the function returns. Findings and
docs/reference/checks.md show the same texts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from provisioning.doctor.facts import HOST_DIRECTORY, HOST_KIND, EnvironmentFacts, FileFacts
from provisioning.doctor.fitness import DoctorPolicy, ElfPolicy, Fitness
from provisioning.manifest.pairs import ExecutorchPairs, Pairs
from provisioning.manifest.reader import read_policy
from provisioning.quoting import shell_word

S = TypeVar("S")
COMMAND, FIELD = re.compile(r"`[^`]*`"), re.compile(r"\{[^{}]+\}")
NO_PAIRS = Pairs("", ())


class Severity(str, Enum):
    """An error makes an environment unfit; a warning does so only with --strict; a note never
    does.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True)
class Finding:
    """One fault. ``id`` is stable; docs/reference/checks.md lists it.

    ``subject`` is the thing at fault, ``where`` the place where it was found, ``why`` the
    consequence, and ``fix`` the next step. Findings are sorted by id, so that causes come before
    effects.
    """

    id: str
    subject: str
    what: str
    where: str
    why: str
    fix: str
    severity: Severity = Severity.ERROR

    def printable(self) -> Finding:
        """Return the finding without lone surrogates, which stand for bytes in file names that are
        not UTF-8.
        """
        names = ("subject", "what", "where", "why", "fix")
        # JSON and a terminal in UTF-8 cannot contain lone surrogates.
        clean = {name: getattr(self, name).encode("utf-8", "backslashreplace") for name in names}
        return replace(self, **{name: text.decode() for name, text in clean.items()})

    def __str__(self) -> str:
        return f"{self.id} {self.severity.value}: {self.what}"


@dataclass(frozen=True)
class Case:
    """An environment and its requirements.

    ``soc`` is the requested SoC's name and its Hexagon version. ``minimum`` is the oldest version
    of the SDK that the profile can use, and the reason. ``pairs`` are versions that work together.
    """

    facts: EnvironmentFacts
    policy: DoctorPolicy
    fitness: Fitness
    kinds: Mapping[str, ElfPolicy]
    soc: tuple[str, int] | None = None
    minimum: tuple[str, str] = ("", "")
    pairs: Pairs = NO_PAIRS

    @property
    def host_policy(self) -> ElfPolicy | None:
        """The requirements of libraries for this machine, if the profile has any."""
        return self.kinds.get(HOST_KIND)

    @property
    def runs_on_host(self) -> bool:
        """Whether the profile loads QNN on this machine."""
        return HOST_KIND in self.fitness.kinds

    @property
    def android_api(self) -> int:
        """The API level that libraries for Android are checked against."""
        return self.kinds["aarch64-android"].android_api or 0

    @property
    def pin(self) -> str | None:
        """The pinned version of the SDK; None if the user chose a directory."""
        return self.facts.pins.get(self.facts.sdk_name)

    @property
    def sdk_files(self) -> tuple[FileFacts, ...]:
        """The libraries and programs of the SDK; empty if there is no SDK."""
        tree = self.facts.trees.get(self.facts.sdk_name)
        return tree.files if tree else ()

    @property
    def executorch(self) -> str:
        """The version of the checkout, else the version of the installed executorch; '' if there is
        neither.
        """
        checkout, python = self.facts.checkout, self.facts.python
        installed = python.distributions.get("executorch") if python else None
        return (checkout.version if checkout else "") or installed or ""

    @property
    def sdk_version(self) -> str:
        """The version of the SDK, '' if it is unknown."""
        return (self.facts.sdk.version if self.facts.sdk else None) or ""

    @property
    def row(self) -> ExecutorchPairs | None:
        """The versions that work with this environment's ExecuTorch; None if they, or the SDK's
        version, are unknown.
        """
        return self.pairs.find(self.executorch) if self.sdk_version else None

    @property
    def values(self) -> Mapping[str, str]:
        """The variables that concern QNN."""
        return self.facts.variables.values if self.facts.variables else {}


# A detected fault: the values that fill the check's texts, among them its subject and its place.
Seen: TypeAlias = Mapping[str, Any]
Finder: TypeAlias = Callable[[S], Iterable[Seen]]


def seen(subject: str, where: object, **values: object) -> Seen:
    """Return a fault of ``subject`` at ``where``. The check's texts can refer to both, and to
    ``values``.
    """
    return {"subject": subject, "where": str(where), **values}


class CheckRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A check's row in manifests/policies/checks.toml: its texts, which are templates, and how
    serious its fault is. A check is skipped if a check in ``after`` found a fault or was skipped
    itself. With ``after_libraries``, its fault is a consequence of any error in the SDK's libraries
    for this machine, and is dropped if there is one.
    """

    what: str
    why: str
    fix: str
    subject: str = "{subject}"
    where: str = "{where}"
    severity: Severity = Severity.ERROR
    after: tuple[str, ...] = ()
    after_libraries: bool = False


@functools.cache
def read_rows() -> Mapping[str, CheckRow]:
    """Return the rows of all checks by id. Raises ManifestError."""
    return read_policy("checks", dict[str, CheckRow])


@dataclass(frozen=True)
class Check(Generic[S]):
    """A check: its id and the function that finds its faults."""

    id: str
    find: Finder[S]

    @property
    def row(self) -> CheckRow:
        """The row in manifests/policies/checks.toml with the check's texts."""
        return read_rows()[self.id]

    def see(self, item: S) -> Iterator[Seen]:
        """Yield the faults of an item, each with the subject and the place that the row states."""
        for values in self.find(item):
            subject, where = (
                text.format_map(values) for text in (self.row.subject, self.row.where)
            )
            yield {**values, "subject": subject, "where": where}

    def judge(self, item: S) -> Iterator[Finding]:
        """Yield a finding for each fault of an item."""
        row = self.row
        for values in self.see(item):
            problem, why, fix = (
                fill_text(text, values).rstrip() for text in (row.what, row.why, row.fix)
            )
            subject, where = values["subject"], values["where"]
            yield Finding(self.id, subject, problem, where, why, fix, row.severity)


def fill_text(text: str, values: Seen) -> str:
    """Return a text with the values of its braces, which are quoted as in a shell if they are part
    of a command in backticks."""

    def quote(field: re.Match[str]) -> str:
        word = shell_word(field[0].format_map(values))
        return word.replace("{", "{{").replace("}", "}}")  # format_map below unescapes them

    partly_filled = COMMAND.sub(lambda command: FIELD.sub(quote, command[0]), text)
    return partly_filled.format_map(values)


class Subjects(Generic[S]):
    """All things of one kind in an environment, and the checks to run on each of them.

    ``tell`` returns the values for the texts of checks that consist only of a condition; without
    it, all checks describe their faults themselves.
    """

    def __init__(
        self,
        find: Callable[[Case], Iterable[S]] = lambda _: (),
        tell: Callable[[S], Seen] = lambda _: seen("", ""),
    ) -> None:
        self.find, self.tell = find, tell
        self._added: dict[str, Check[S]] = {}

    def when(self, **conditions: Callable[[S], object]) -> None:
        """Add checks that find a fault if their condition is true; ``tell`` fills their texts."""

        def find(condition: Callable[[S], object], item: S) -> Iterable[Seen]:
            return [self.tell(item)] if condition(item) else []

        finders = {}
        for code, predicate in conditions.items():
            finders[code] = functools.partial(find, predicate)
        self.each(**finders)

    def each(self, **finders: Finder[S]) -> None:
        """Add checks that describe their faults themselves."""
        self._added |= {code: Check(code, find) for code, find in finders.items()}

    def check(self, code: str) -> Callable[[Finder[S]], Finder[S]]:
        """Add the decorated function as the check with the id ``code``."""

        def add(find: Finder[S]) -> Finder[S]:
            self.each(**{code: find})
            return find

        return add

    @functools.cached_property
    def checks(self) -> list[Check[S]]:
        """The checks by id, each one behind those that its row waits for."""
        placed: dict[str, Check[S]] = {}

        def place(code: str) -> None:
            if code not in placed:
                for earlier in read_rows()[code].after:
                    place(earlier)
                placed[code] = self._added[code]

        for code in sorted(self._added):
            place(code)
        return [*placed.values()]

    def judge(self, subject: S) -> Iterator[Finding]:
        """Yield the findings on a subject. A check is skipped if one that its row waits for found a
        fault, or was skipped itself.
        """
        silent: set[str] = set()
        for check in self.checks:
            is_skipped = not silent.isdisjoint(check.row.after)
            findings = [] if is_skipped else list(check.judge(subject))
            if findings or is_skipped:
                silent.add(check.id)
            yield from findings

    def judge_all(self, case: Case) -> Iterator[Finding]:
        """Yield the findings on all subjects of an environment."""
        for subject in self.find(case):
            yield from self.judge(subject)


def tell_case(case: Case) -> Seen:
    """Return the values for the texts of checks that judge the machine."""
    facts, fitness = case.facts, case.fitness
    return seen(
        "",
        "this machine",
        case=case,
        host=facts.host,
        wanted=f"Linux {' or '.join(fitness.machines)}",
        found=f"glibc {facts.host.glibc}" if facts.host.glibc else "no glibc",
        glibc=fitness.glibc,
        disk_needed_gb=fitness.disk_gb,
        memory_advised_gb=fitness.memory_gb,
        address_space_needed_gb=fitness.address_space_gb,
        cores_advised=fitness.cores,
        backend=facts.backend,
        libraries=facts.sdk.root / HOST_DIRECTORY if facts.sdk else "",
        version=case.sdk_version or "an unknown version",
    )


ENVIRONMENT: Subjects[Case] = Subjects(lambda case: [case], tell_case)
