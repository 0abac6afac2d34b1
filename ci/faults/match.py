"""Finds known faults in a user's model: the patterns that its graph contains, their places, and the
fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from msgspec import Struct, structs

from ci.facts.finding import NOWHERE, Advice, Certainty, Origin, Proof, advise
from ci.faults.graph import ONLY_IN_PATTERNS, OPERATORS
from ci.faults.known import Fault, find_pattern, read_faults
from ci.models.graph_steps import Operand, Step


class KnownFault(Struct, frozen=True, kw_only=True):
    """A known fault at a place in a model. ``calls`` describes the calls of the pattern's
    operators, with the operands of the first call. ``nodes`` are the names of these calls in the
    exported graph, and ``operators`` are torch's names of their operators. ``file``,
    ``line`` and ``module`` say where the first of them comes from. ``is_scheme`` is true if the
    quantized model itself is wrong, not the program."""

    fault: str
    title: str
    seen: str
    fix: str
    calls: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    file: str = ""
    line: int = 0
    module: str = ""
    is_scheme: bool = False

    @property
    def origin(self) -> Origin:
        """Return where the first of the operators comes from."""
        return Origin(file=self.file, line=self.line, module=self.module)

    @property
    def place(self) -> str:
        """Return the source line, such as ``nets/net.py:41``, or else the module, or else the first
        node of the pattern in the exported graph."""
        return str(self.origin) or f"node {self.nodes[0]}"

    @property
    def label(self) -> str:
        """Return the name of the fault and its place."""
        return f"{self.fault} [{self.place}]"

    @property
    def advice(self) -> Advice:
        """Return the fault with its place, and its fix."""
        advice = advise(
            f"known fault: {self}",
            self.fix,
            name=self.fault,
            certainty=Certainty.KNOWN,
            proof=Proof.PROVEN,
        )
        return replace(advice, places=self.origin.places)

    def __str__(self) -> str:
        return f"{self.label} ({self.calls}): {self.seen}"


@cache
def name_operators() -> dict[str, str]:
    """Map the operator names of torch and ONNX to those in ci.faults.graph."""
    rows = [(name, (*one.aten, one.onnx)) for name, one in OPERATORS.items()]
    rows += [(name, (onnx,)) for name, onnx in ONLY_IN_PATTERNS.items()]
    return {given: name for name, every in rows for given in every if given}


def match_faults(
    steps: Sequence[Step], scheme: str, qnn: str, *, compiled: bool = False
) -> tuple[KnownFault, ...]:
    """Return the known faults in a graph that apply to a scheme and a version of QNN, each at most
    once per source line. If QNN ``compiled`` the graph, faults that only keep it from doing so are
    left out. Raises ManifestError if the file of known faults is invalid."""
    names = name_operators()
    renamed = [
        structs.replace(step, operator=names.get(step.operator, step.operator)) for step in steps
    ]
    by_name = {step.name: step.operator for step in steps}
    found = {
        (known_fault.fault, known_fault.place): known_fault
        for fault in read_faults()
        if fault.applies(scheme, qnn, compiled=compiled)
        for place in find_pattern(fault.pattern, renamed)
        for known_fault in [make_known(fault, place, by_name)]
    }
    return tuple(found.values())


def make_known(fault: Fault, chain: Sequence[Step], operators: dict[str, str]) -> KnownFault:
    """Return the known fault for a chain of steps that matches its pattern. ``operators`` maps the
    name of each step to torch's name of its operator."""
    origin = next((step.origin for step in chain if step.origin != NOWHERE), NOWHERE)
    return KnownFault(
        fault=fault.name,
        title=fault.title,
        seen=fault.seen,
        fix=fault.remedy,
        calls=", then ".join(_describe_calls(chain)),
        nodes=tuple(step.name for step in chain),
        operators=tuple(operators[step.name] for step in chain),
        file=origin.file,
        line=origin.line,
        module=origin.module,
        is_scheme=fault.owner == "quantization",
    )


def _describe_calls(steps: Sequence[Step]) -> Iterator[str]:
    first, *others = steps
    yield f"{first.operator} of {' and '.join(map(_describe_operand, first.operands[:2]))}"
    yield from (other.operator for other in others)


def _describe_operand(one: Operand) -> str:
    kind = "a constant " if one.constant else ""
    largest = f" up to {one.magnitude:.4g}" if one.magnitude >= 1000 else ""
    return f"{kind}{list(one.shape)}{largest}"
