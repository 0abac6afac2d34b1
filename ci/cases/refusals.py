"""Why QNN refuses operators, and what to write instead, from manifests/policies/operators.toml."""

from __future__ import annotations

import functools
import re
from fnmatch import fnmatchcase

from msgspec import Struct

from ci.cases.engine import Fallback
from ci.cases.policy import EmulatorPolicy, is_match
from ci.explain.rules import check_pattern
from ci.facts.finding import Advice, Certainty, Proof, advise
from ci.facts.kinds import NOT_LOWERED
from provisioning.manifest.reader import read_policy
from provisioning.manifest.targets import read_socs


class OperatorRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of manifests/policies/operators.toml: why QNN refuses an operator, and what to write
    instead. ``proof`` is the file with the tried remedy, or empty. ``operator`` and ``reason`` are
    patterns for the operator's name and QNN's reason. The row applies to ``schemes`` (globs) and to
    ``socs``. If ``socs`` is empty, it applies to SoCs whose Hexagon version is lower than
    ``before_hexagon``, or to all SoCs if that is 0."""

    operator: str
    fix: str
    why: str = ""
    proof: str = ""
    reason: str = ""
    schemes: tuple[str, ...] = ("*",)
    socs: tuple[str, ...] = ()
    before_hexagon: int = 0

    def __post_init__(self) -> None:
        check_pattern(self.operator)
        check_pattern(self.reason)

    @property
    def advice(self) -> Advice:
        """Return the cause and the remedy."""
        proof = Proof.PROVEN if self.proof else Proof.SUGGESTED
        return advise(self.why, self.fix, certainty=Certainty.KNOWN, proof=proof)

    def covers(self, scheme: str, soc: str) -> bool:
        """Return whether the row applies to a scheme and an SoC."""
        if not any(fnmatchcase(scheme, glob) for glob in self.schemes):
            return False
        if self.socs:
            return soc in self.socs
        return not self.before_hexagon or read_socs()[soc].hexagon < self.before_hexagon

    def fits(self, operator: str, reason: str) -> bool:
        """Return whether the row matches an operator and QNN's reason for refusing it."""
        return bool(re.search(self.operator, operator) and re.search(self.reason, reason))


class _OperatorRules(Struct, frozen=True, forbid_unknown_fields=True):
    remedy: tuple[OperatorRule, ...]


@functools.cache
def read_remedies() -> tuple[OperatorRule, ...]:
    """Return the rows of manifests/policies/operators.toml. Raises ManifestError if the file is
    invalid."""
    return read_policy("operators", _OperatorRules).remedy


def find_advice(one: Fallback, scheme: str, soc: str, policy: EmulatorPolicy) -> Advice:
    """Return why an operator is refused, and what to do about it: a proven remedy of the policy's
    advice or of errors.toml, else a row of manifests/policies/operators.toml, else the rest."""
    found = [NOT_LOWERED.find("", evidence=f"{one.op}: {one.reason}")]
    known = policy.advise(found)
    if any(remedy.proof is Proof.PROVEN for remedy in known.remedies):
        return known
    if not any(is_match(own.id, own.pattern, found) for own in policy.advice):
        for row in read_remedies():
            if row.covers(scheme, soc) and row.fits(one.op, one.reason):
                return row.advice
    return known
