"""The registry of checks, and the findings that they return. A check is registered next to the
function that detects its fault.

A check's texts are templates, which are filled with the values that the function returns. Findings
and docs/reference/checks.md show the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from provisioning.doctor.facts import HOST_DIRECTORY, HOST_KIND, EnvironmentFacts, FileFacts
from provisioning.doctor.fitness import DoctorPolicy, ElfPolicy, Fitness
from provisioning.manifest.pairs import ExecutorchPairs, Pairs

S = TypeVar("S")
NO_PAIRS = Pairs("", ())
PLACES = {"subject", "where"}


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
        texts = {name: getattr(self, name) for name in names}
        clean = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
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


@dataclass(frozen=True)
class Seen:
    """A detected fault; ``values`` fill the check's texts."""

    subject: str
    where: str
    values: Mapping[str, Any]


def seen(subject: str, where: object, **values: object) -> Seen:
    """Return a fault of ``subject`` at ``where``. The check's texts can refer to both, and to
    ``values``.
    """
    return Seen(subject, str(where), {"subject": subject, "where": where, **values})


@dataclass(frozen=True)
class Check(Generic[S]):
    """A check. It is skipped if a check in ``after`` found a fault or was skipped itself."""

    id: str
    what: str
    why: str
    fix: str
    see: Callable[[S], Iterable[Seen]]
    after: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR

    def judge(self, subject: S) -> Iterator[Finding]:
        for one in self.see(subject):
            rows = (self.what, self.why, self.fix)
            what, why, fix = (text.format_map(one.values).rstrip() for text in rows)
            yield Finding(self.id, one.subject, what, one.where, why, fix, self.severity)


class Subjects(Generic[S]):
    """All things of one kind in an environment, and the checks to run on each of them, in order.

    ``tell`` returns the values for the texts of checks that consist only of a condition; without
    it, all checks describe their faults themselves.
    """

    def __init__(
        self,
        find: Callable[[Case], Iterable[S]] = lambda _: (),
        tell: Callable[[S], Seen] = lambda _: seen("", ""),
        severity: Severity = Severity.ERROR,
    ) -> None:
        self.find, self.tell, self.severity = find, tell, severity
        self.checks: list[Check[S]] = []

    def add(
        self,
        id: str,  # noqa: A002
        what: str,
        why: str,
        fix: str,
        when: Callable[[S], object],
        *,
        subject: str = "{subject}",
        where: str = "{where}",
        after: tuple[str, ...] = (),
        severity: Severity | None = None,
    ) -> None:
        """Add a check that finds a fault if the condition ``when`` is true; ``tell`` fills its
        texts.
        """

        def see(one: S) -> Iterator[Seen]:
            if when(one):
                values = self.tell(one).values
                places = (text.format_map(values) for text in (subject, where))
                yield seen(*places, **{name: values[name] for name in values.keys() - PLACES})

        self.checks.append(Check(id, what, why, fix, see, after, severity or self.severity))

    def check(
        self,
        id: str,  # noqa: A002
        what: str,
        why: str,
        fix: str,
        *,
        after: tuple[str, ...] = (),
        severity: Severity | None = None,
    ) -> Callable[[Callable[[S], Iterable[Seen]]], Callable[[S], Iterable[Seen]]]:
        """Register the decorated function as the check for this fault."""

        def register(see: Callable[[S], Iterable[Seen]]) -> Callable[[S], Iterable[Seen]]:
            self.checks.append(Check(id, what, why, fix, see, after, severity or self.severity))
            return see

        return register

    def judge(self, subject: S) -> Iterator[Finding]:
        silent: set[str] = set()
        for check in self.checks:
            found = [] if silent.intersection(check.after) else list(check.judge(subject))
            if found or silent.intersection(check.after):
                silent.add(check.id)
            yield from found

    def judge_all(self, case: Case) -> Iterator[Finding]:
        for subject in self.find(case):
            yield from self.judge(subject)


def tell_case(case: Case) -> Seen:
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
        cores_advised=fitness.cores,
        backend=facts.backend,
        libraries=facts.sdk.root / HOST_DIRECTORY if facts.sdk else "",
        version=case.sdk_version or "an unknown version",
    )


ENVIRONMENT: Subjects[Case] = Subjects(lambda case: [case], tell_case)
