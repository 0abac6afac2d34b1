"""Warnings of a case that passes: what a known fault costs it, and how near it is to its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ci.cases.facts import CaseFacts
from ci.cases.reasons import Probes, describe_loss
from ci.facts.finding import Figure, Finding
from ci.facts.kinds import PART
from ci.facts.known_fault import KnownFault
from ci.judging.causes import CALIBRATE
from ci.judging.figures import Array
from ci.judging.gate import References, find_drowned
from ci.judging.verdict import keeps_metric
from ci.models.tensors import Loss
from ci.report.schema import Clipped

COSTLY_DB = 10.0  # what a known fault may cost a passed case without a warning
NEAR_DB = 3.0  # a passed case this close to its limit has a warning


@dataclass
class FaultCosts:
    """Measures what known faults cost one case. Without ``probes``, nothing can be measured."""

    facts: CaseFacts
    probes: Probes | None

    @cached_property
    def costs_of_model(self) -> tuple[str, ...]:
        """What known faults cost the quantized model, measured with their remedies; empty if that
        is less than COSTLY_DB."""
        faults = [fault for fault in self.facts.list_faults() if fault.is_scheme]
        reached = self.facts.evidence.figures.sqnr_db_scheme
        if not faults or reached is None or not math.isfinite(reached):
            return ()
        with self.facts.notes.of("the cost of the known faults"):
            cured = self.probes.measure_remedy(faults) if self.probes else None
            if cured is not None and cured - reached >= COSTLY_DB:
                cost = describe_cost(faults, "the quantized model", reached, cured, "measured")
                return (cost,)
        return ()

    def find_drowned(self, references: References, outputs: Sequence[Array]) -> Iterator[Finding]:
        """Yield the channel that loses most to a known fault of the quantized model, if its errors
        are larger than its values, unless a metric judges the model. Without the fault, the scheme
        is known to do better."""
        if self.facts.metric or not self.costs_of_model:
            return
        channels = [
            (db, name, f"output {index}" if len(outputs) > 1 else "")
            for index, pair in enumerate(zip(references.float32, outputs, strict=True))
            for name, db in find_drowned(pair[0].values, pair[1])
        ]
        if channels:
            db, name, subject = min(channels)
            yield PART.find(
                f"SQNR {db:.1f} dB in {name}: zeros would be nearer",
                subject=subject,
                details=list(self.costs_of_model),
                figures=(Figure(name="sqnr_all", value=db, unit="dB", allowed=0.0),),
            )

    def warn_of_faults(self) -> Iterator[str]:
        """Yield what a known fault costs a passed case, if that is COSTLY_DB or more: compared with
        the predicted rounding or, if the quantized model itself is wrong, with the quantized model
        that has the fault's remedy."""
        figures = self.facts.evidence.figures
        faults = self.facts.list_faults()
        of_program = [fault for fault in faults if not fault.is_scheme]
        reached, predicted = figures.sqnr_db_quantized, figures.predicted_sqnr_db
        reached = figures.sqnr_db if reached is None else reached
        lost = predicted - reached if predicted is not None and reached is not None else 0.0
        if of_program and lost >= COSTLY_DB:
            yield describe_cost(
                of_program, "the program", reached or 0.0, predicted or 0.0, "predicted"
            )
        yield from self.costs_of_model


def warn_of_loss(facts: CaseFacts, loss: Loss | None) -> tuple[str, ...]:
    """Return where a quantized model that is just above its limit loses its accuracy, as a
    warning, unless the user's metric judges the model."""
    required_db, db = facts.limits.min_sqnr_db_all, facts.evidence.figures.sqnr_db_scheme
    if (
        not (loss and loss.name)
        or facts.metric
        or required_db is None
        or db is None
        or db > required_db + NEAR_DB
    ):
        return ()
    near = (
        f"the quantized model has only {db - required_db:.1f} dB more than the"
        f" {required_db:g} dB required"
        if db >= required_db
        else f"on one of the samples, the quantized model has only {db:.1f} dB; over all "
        f"samples together, {required_db:g} dB are required"
    )
    return (f"{near}; {describe_loss(loss)}",)


def warn_of_clipping(facts: CaseFacts, clipped: Sequence[Clipped]) -> tuple[str, ...]:
    """Return which tensors leave their calibrated ranges, as a warning, if the quantized model
    is near a limit or below one that does not fail the case, or if the user's metric has
    lost some of its allowed drop. Clipping is then the likely cause, and easily mended."""
    if not clipped:
        return ()
    reached = facts.evidence.figures.sqnr_db_scheme
    near = False
    if reached is not None:
        limits = (facts.limits.min_sqnr_db_all, facts.limits.min_sqnr_db)
        near = any(limit_db is not None and reached <= limit_db + NEAR_DB for limit_db in limits)
    has_dropped = facts.evidence.metric and not keeps_metric(facts.metric, facts.evidence.metric)
    if not near and not has_dropped:
        return ()
    first, *further = clipped
    also = f" (also clipped: {', '.join(tensor.name for tensor in further)})" if further else ""
    return (f"{first}{also}; {CALIBRATE}",)


def describe_cost(
    faults: Sequence[KnownFault], subject: str, reached_db: float, without_db: float, source: str
) -> str:
    """Return what known faults cost, as a warning with both figures."""
    names = ", ".join(dict.fromkeys(fault.label for fault in faults))
    return (
        f"{subject} has {reached_db:.1f} dB of SQNR with the known fault {names}, and"
        f" {without_db:.1f} dB without it ({source})"
    )
