"""Finds known faults in a user's model: the patterns that its graph contains, their places, and the
fixes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ci.analysis.steps import Operand, Step
from ci.facts.finding import NOWHERE
from ci.facts.known_fault import KnownFault
from ci.faults.known import Fault, find_pattern, read_faults, rename_steps
from ci.graphs.operators import CONVERTS
from ci.models.schemes import Scheme
from provisioning.manifest.reader import find_package_versions

PACKAGE = "onnxruntime-qnn"


def match_faults(
    steps: Sequence[Step],
    scheme: str,
    qnn: str,
    *,
    compiled: bool = False,
    refused: bool = False,
    is_file: bool = True,
) -> tuple[KnownFault, ...]:
    """Return the known faults in a graph that apply to a scheme and a version of QNN, each at most
    once per source line. If QNN ``compiled`` the graph, faults that only keep it from doing so are
    left out, and if it was ``refused``, those that only make values wrong. In a file that contains
    its quantization (``asis``), the integers of a fault's operators decide which schemes have the
    fault. The remedies are for the user of a file or, unless ``is_file``, of a PyTorch model.
    Raises ManifestError if the file of known faults is invalid."""
    renamed = rename_steps(steps)
    front_end = next((step.front_end for step in steps), "")
    by_name = {step.name: step.operator for step in steps}
    # The schemes in which parts of the graph are.
    schemes = {find_scheme(scheme, [step]) for step in renamed}
    ends = {"compiled": compiled, "refused": refused}
    places: dict[tuple[str, str], list[KnownFault]] = {}
    for fault in read_faults():
        affected = {name for name in schemes if fault.applies(name, qnn, front_end, **ends)}
        for chain in find_pattern(fault.pattern, renamed) if affected else ():
            if (name := find_scheme(scheme, chain)) in affected:
                mended = fault.find_mended(name, qnn, front_end) if qnn else ""
                known_fault = make_known(fault, chain, by_name, mended, is_file=is_file)
                places.setdefault((fault.name, known_fault.place), []).append(known_fault)
    matches = []
    for *earlier, last in places.values():
        repeated = tuple(known_fault.nodes for known_fault in earlier)
        matches.append(structs.replace(last, repeated=repeated))
    return tuple(matches)


def find_scheme(scheme: str, chain: Sequence[Step]) -> str:
    """Return the scheme of a chain of steps: that of the case or, in a file that contains its
    quantization, ``int8``, ``int16`` or ``fp16``, by the first step with integers. It is empty if
    some of the steps compute in float, because no fault is known for such a chain."""
    if scheme != Scheme.ASIS:
        return scheme
    bits = next((step.numbers["bits"][0] for step in chain if "bits" in step.numbers), 0)
    if bits and any(CONVERTS in step.numbers for step in chain):
        return ""
    return f"int{bits:.0f}" if bits else Scheme.FP16.value


def make_known(
    fault: Fault,
    chain: Sequence[Step],
    operators: dict[str, str],
    mended: str = "",
    *,
    is_file: bool = True,
) -> KnownFault:
    """Return the known fault for a chain of steps that matches its pattern. ``operators`` maps the
    name of each step to torch's name of its operator. ``mended`` is the version of QNN that mends
    it, if there is one. The remedy is for the user of a file or, unless ``is_file``, of a PyTorch
    model."""
    origin = next((step.origin for step in chain if step.origin != NOWHERE), NOWHERE)
    first, *later_steps = chain
    call = f"{first.operator} of {' and '.join(map(_describe_operand, first.operands[:2]))}"
    wording = fault.describe(first.front_end, is_file=is_file)
    return KnownFault(
        fault=fault.name,
        title=fault.title,
        seen=wording.seen,
        fix=f"{wording.remedy}; or use {name_package(mended)}" if mended else wording.remedy,
        mended=name_package(mended) if mended else "",
        calls=", then ".join([call, *(step.operator for step in later_steps)]),
        nodes=tuple(step.name for step in chain),
        operators=tuple(operators[step.name] for step in chain),
        file=origin.file,
        line=origin.line,
        module=origin.module,
        is_scheme=fault.owner == "quantization",
        only_stops=fault.only_stops(first.front_end),
        least_db=fault.least_db,
        elsewhere=wording.elsewhere,
        schemes=fault.pattern.schemes,
    )


def name_package(qnn: str) -> str:
    """Return a version of QNN with that of the package that brings it, if one does."""
    wheel = find_package_versions(PACKAGE).get(qnn, "")
    return f"QNN {qnn}, which {PACKAGE} {wheel} brings" if wheel else f"QNN {qnn}"


def _describe_operand(operand: Operand) -> str:
    kind = "a constant " if operand.constant else ""
    largest = f" up to {operand.magnitude:.4g}" if operand.magnitude >= 1000 else ""
    return f"{kind}{list(operand.shape)}{largest}"
