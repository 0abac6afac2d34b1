"""Which models, schemes and SoCs a run covers: selection by name and glob, without torch."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ci.lowering.schemes import Scheme
from ci.lowering.suite import SUITE
from provisioning.console.command import given_path
from provisioning.errors import UsageError

DEFAULT_SOC = "SM8650"
# For a model of the user's, when no scheme is asked for.
DEFAULT_SCHEMES = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8)


@dataclass(frozen=True, order=True)
class CaseSpec:
    """One case: a model's name or reference, a scheme, a SoC's name."""

    model: str
    scheme: Scheme
    soc: str

    @property
    def slug(self) -> str:
        """A file name of its own for the case."""
        name = self.model
        if name not in SUITE:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            name = f"{Path(name).name.replace('.py:', '-')}-{digest}"
        return f"{name}-{self.scheme.value}-{self.soc}"


def select_cases(
    suite: Mapping[str, Sequence[Scheme]],
    socs: Sequence[str],
    *,
    models: Sequence[str] = (),
    schemes: Sequence[str] = (),
    soc_names: Sequence[str] = (),
) -> list[CaseSpec]:
    """The cases asked for, in the suite's order, each once.

    Without ``schemes`` a model of the suite has the suite's schemes. Raises UsageError for a
    name or glob that matches nothing.
    """
    chosen_models = [name for word in models for name in match_model(word)] or list(suite)
    chosen_socs = [name for word in soc_names for name in match_names("SoC", word, socs)]
    every = [scheme.value for scheme in Scheme]
    chosen_schemes = [
        Scheme(name) for word in schemes for name in match_names("scheme", word, every)
    ]
    cases = [
        CaseSpec(model, scheme, soc)
        for model in chosen_models
        for scheme in chosen_schemes or suite.get(model, DEFAULT_SCHEMES)
        for soc in chosen_socs or [DEFAULT_SOC]
    ]
    return list(dict.fromkeys(cases))


def match_model(word: str) -> list[str]:
    """Models of the suite that a name or glob means, or a user's ``file.py:factory`` as it is."""
    if ":" in word:
        file = given_path(word.rpartition(":")[0])
        if not file.is_file():
            raise UsageError(f"no model {word!r}", why=f"{file} is not a file")
        reference = f"{file.resolve()}:{word.rpartition(':')[2]}"
        if not reference.isprintable():  # it stands in reports, which are UTF-8 text
            raise UsageError(
                f"no model {word!r}",
                why="its path has bytes that are not UTF-8, or control characters",
                fix="rename or copy it",
            )
        return [reference]
    if word.endswith(".py"):
        raise UsageError(f"{word!r} names no function", fix=f"write {word}:factory")
    return match_names("model", word, SUITE)


def match_names(kind: str, word: str, names: Iterable[str]) -> list[str]:
    """The ``names`` that a glob matches, whatever its case. Raises UsageError when none does."""
    every = list(names)
    found = [name for name in every if fnmatchcase(name.lower(), word.lower())]
    if found:
        return found
    near = difflib.get_close_matches(word.upper(), [name.upper() for name in every], n=1)
    nearest = next((name for name in every if near and name.upper() == near[0]), "")
    raise UsageError(
        f"no {kind} {word!r}",
        why=f"the nearest is {nearest}" if nearest else "",
        fix=f"one of: {', '.join(every)}",
    )
