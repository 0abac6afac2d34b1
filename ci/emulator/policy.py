"""manifests/policies/emulator.toml as values: the suite, the limits, the known refusals."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ci.lowering.references.degenerate import ReferencePolicy
from ci.lowering.schemes import Scheme
from ci.lowering.suite import SUITE
from ci.report.schema import ANY_MODEL, Threshold, find_threshold
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_policy, read_toml


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked of a scheme; the fields are those of the report's Threshold."""

    min_sqnr_db: float
    min_cosine: float
    min_sqnr_db_quantized: float | None = None
    min_cosine_quantized: float | None = None
    min_sqnr_db_channel: float | None = None
    min_equal: float | None = None
    min_equal_quantized: float | None = None
    max_gain_error: float | None = None
    max_offset: float | None = None
    max_nearer_db: float | None = None
    max_abs: float | None = None
    full_delegation: bool = True


class Override(Struct, frozen=True, forbid_unknown_fields=True):
    """Other limits for one model and scheme, and the reason."""

    model: str
    scheme: Scheme
    limits: Limits
    reason: str


class Unsupported(Struct, frozen=True, forbid_unknown_fields=True):
    """Combinations that QNN is known to refuse, with a reason that ``pattern`` finds.

    ``models``, ``schemes`` and ``socs`` are globs; a combination has to fit one of each.
    """

    pattern: str
    reason: str
    models: tuple[str, ...] = ("*",)
    schemes: tuple[str, ...] = ("*",)
    socs: tuple[str, ...] = ("*",)

    def covers(self, model: str, scheme: str, soc: str) -> bool:
        """Whether the combination is one of these."""
        pairs = ((model, self.models), (scheme, self.schemes), (soc, self.socs))
        return all(any(fnmatchcase(name, glob) for glob in globs) for name, globs in pairs)


class Advice(Struct, frozen=True, forbid_unknown_fields=True):
    """What to do about a failure whose reason ``pattern`` finds."""

    pattern: str
    fix: str


class EmulatorPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    reference: ReferencePolicy
    schemes: dict[Scheme, Limits]
    suite: dict[str, tuple[Scheme, ...]]
    override: tuple[Override, ...] = field(default_factory=tuple)
    unsupported: tuple[Unsupported, ...] = field(default_factory=tuple)
    advice: tuple[Advice, ...] = field(default_factory=tuple)

    def limits_of(self, model: str, scheme: Scheme) -> Threshold:
        """The limits of a case. Raises ManifestError: a case without a policy is not judged."""
        rules = [_threshold(name, limits) for name, limits in self.schemes.items()]
        rules += [
            _threshold(entry.scheme, entry.limits, entry.model, entry.reason)
            for entry in self.override
        ]
        found = find_threshold(rules, model, scheme.value)
        if found is None:
            raise ManifestError(
                f"no limits for scheme {scheme.value}",
                why="a case without a policy proves nothing",
                fix=f"add [schemes.{scheme.value}] to the emulator policy",
            )
        return found

    def expects_refusal(self, model: str, scheme: Scheme, soc: str, reason: str) -> str:
        """The recorded explanation of a refusal that is known; empty for any other."""
        for entry in self.unsupported:
            if entry.covers(model, scheme.value, soc) and re.search(entry.pattern, reason):
                return entry.reason
        return ""

    def advise(self, reason: str) -> str:
        """The first advice that fits; empty for a failure that is not known."""
        fitting = (entry.fix for entry in self.advice if re.search(entry.pattern, reason))
        return next(fitting, "")


def _threshold(
    scheme: Scheme, limits: Limits, model: str = ANY_MODEL, reason: str = ""
) -> Threshold:
    return Threshold(
        scheme=scheme.value, model=model, reason=reason, **msgspec.structs.asdict(limits)
    )


def read_emulator_policy(path: Path | None = None) -> EmulatorPolicy:
    """The policy in the repository, or in a user's file. Raises ManifestError."""
    policy = (
        read_toml(path.name, EmulatorPolicy, path.parent)
        if path
        else read_policy("emulator", EmulatorPolicy)
    )
    unknown = policy.suite.keys() - SUITE.keys()
    if unknown:
        raise ManifestError(f"the emulator policy names models that are not there: {unknown}")
    return policy
