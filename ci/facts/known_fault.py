"""A known fault of QNN, ExecuTorch or a quantizer that was found in a user's model."""

from __future__ import annotations

import itertools
from dataclasses import replace

from msgspec import Struct

from ci.facts.finding import Advice, Certainty, Origin, Proof, advise
from provisioning.manifest.reader import read_policy


class KnownFault(Struct, frozen=True, kw_only=True):
    """A known fault at a place in a model. ``calls`` describes the calls of the pattern's
    operators, with the operands of the first call. ``nodes`` are the names of these calls in the
    exported graph, and ``operators`` are torch's names of their operators. ``file``,
    ``line`` and ``module`` say where the first of them comes from. ``is_scheme`` is true if the
    quantized model itself is wrong, not the program. ``only_stops`` is true if it only keeps QNN
    from compiling or running the model. ``least_db`` is the lowest SQNR with which it was seen, or
    None if it is unknown. ``schemes`` are those with the fault, and ``elsewhere`` says that others
    are right, which a run may contradict. ``repeated`` are the nodes of the pattern's other calls
    from the same line, as in a loop. ``mended`` is the newer QNN that computes it rightly, if one
    is known."""

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
    only_stops: bool = False
    least_db: float | None = None
    elsewhere: str = ""
    schemes: tuple[str, ...] = ()
    repeated: tuple[tuple[str, ...], ...] = ()
    mended: str = ""

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
    def marks(self) -> frozenset[str]:
        """Return what a rewrite may name its places by: the line, and the names of nodes."""
        lines = [str(self.origin)] if self.line else []
        return frozenset([*lines, *itertools.chain(self.nodes, *self.repeated)])

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


class FaultNames(Struct, frozen=True):
    """The names of a fault in manifests/policies/faults.toml (see ci.faults.known.Fault), without
    its graphs, which need numpy."""

    name: str
    same_as: tuple[str, ...] = ()


class AllFaultNames(Struct, frozen=True):
    """Of manifests/policies/faults.toml, the names of the faults."""

    fault: tuple[FaultNames, ...]


def read_fault_names() -> dict[str, tuple[str, ...]]:
    """Map the name of each known fault to all names under which front ends have it: its own, and
    those that it is the same as."""
    faults = read_policy("faults", AllFaultNames).fault
    return {fault.name: (fault.name, *fault.same_as) for fault in faults}
