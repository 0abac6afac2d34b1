"""Reads the rewrites, which are data in manifests/policies/rewrites.toml. Each row names a function
in ci.mend.graph_rewrites, ci.mend.torch_rewrites or ci.mend.onnx_rewrites."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field, structs

from ci.facts.finding import Finding
from ci.faults.known import Frontend
from ci.models.schemes import Scheme
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_policy

POLICY = "rewrites"
RewriteLane = Literal["torch", "onnx", "litert"]
# Whose reasons are read for a lane's rewrites, if nothing else is asked for.
USUAL: Mapping[RewriteLane, Frontend] = {
    "torch": "executorch",
    "onnx": "onnx",
    "litert": "litert",
}
UNKNOWN_REASON = "QNN computes these operators wrongly, or refuses them, as they are written"


class Rewrite(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row. ``title`` says what the rewrite replaces by what, and ``titles`` for front ends of
    which it takes other models. ``schemes`` are those in which it helps, or () for all. ``cures``
    lists ids of findings, names of known faults, and regular expressions that match the message of
    a finding. An ``approximate`` rewrite changes the
    function. ``bound`` is the largest difference from the original outputs, relative to their
    range. ``proof`` states how it was measured that the rewrite helps. ``reason`` is why it does,
    and ``reasons`` for front ends in which it does for another one. ``needless`` is empty if the
    rewrite works in both lanes, and otherwise says what the other lane was seen to do instead, so
    that it needs none."""

    name: str
    title: str
    titles: Mapping[Frontend, str] = field(default_factory=dict)
    lanes: tuple[RewriteLane, ...]
    cures: tuple[str, ...]
    proof: str
    reason: str = UNKNOWN_REASON
    reasons: Mapping[Frontend, str] = field(default_factory=dict)
    needless: str = ""
    schemes: tuple[Scheme, ...] = ()
    approximate: bool = False
    bound: float = 1e-5

    def helps_in(self, scheme: str) -> bool:
        """Return whether the rewrite is known to help in a scheme."""
        return not self.schemes or scheme in self.schemes

    def cures_any(self, findings: Sequence[Finding], faults: Sequence[str] = ()) -> bool:
        """Return whether the rewrite is known to cure one of a case's findings, or one of the
        known faults that its graph contains."""
        names = set(faults)
        for finding in findings:
            names.add(finding.id)
            names.update(cause.name for cause in finding.causes)
        for cure in self.cures:
            if cure in names or any(re.search(cure, finding.words) for finding in findings):
                return True
        return False


class Rewrites(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/rewrites.toml."""

    rewrite: tuple[Rewrite, ...] = ()


def read_rewrites(
    lane: RewriteLane, path: Path | None = None, *, front_end: Frontend | None = None
) -> tuple[Rewrite, ...]:
    """Return the rewrites of a lane from the file ``path``, by default this project's, with the
    titles and reasons for models that ``front_end`` compiles: LiteRT takes PyTorch models, too.
    Raises ManifestError for a row that does not match the schema, an invalid pattern, or two rows
    with one name."""
    rows = read_policy(POLICY, Rewrites, path).rewrite
    names = [row.name for row in rows]
    for row in rows:
        try:
            for cure in row.cures:
                re.compile(cure)
        except re.error as error:
            problem = f"the rewrite {row.name!r} has an invalid pattern: {error}"
            raise ManifestError(problem) from None
        if names.count(row.name) > 1:
            raise ManifestError(f"there are two rewrites with the name {row.name!r}")
    front_end = front_end or USUAL[lane]
    return tuple(
        structs.replace(
            row,
            title=row.titles.get(front_end, row.title),
            titles={},
            reason=row.reasons.get(front_end, row.reason),
            reasons={},
        )
        for row in rows
        if lane in row.lanes
    )
