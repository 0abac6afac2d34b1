"""Findings on how a model was lowered: nodes that stay on the CPU, and types that the program does
not have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import structs

from ci.cases.engine import QUANTIZING, Compiled, Fallback, Garbled, list_places
from ci.cases.spec import CaseSpec
from ci.facts.finding import (
    HEADLINE_CHARS,
    NO_ADVICE,
    Advice,
    Certainty,
    Finding,
    Proof,
    Question,
    advise,
    shorten,
)
from ci.facts.kinds import INDICES, NO_NODE, ON_CPU, RETYPED
from ci.models.schemes import Scheme
from ci.models.tensors import FLOAT_BITS, WEIGHTS, Retyped, name_type

SHOWN_OPS = 4
GUIDE = "docs/guides/precision.md"
# Measured with ExecuTorch 1.5.1 and QNN 2.49.40, see GUIDE.
ISLAND = advise(  # without an error number, for which manifests/policies/errors.toml has a cause
    "ExecuTorch 1.5.1 makes no float16 islands in a quantized model: most operators before a"
    " quantized one are quantized anyway, and of 18 operators at the end of a model, QNN 2.49.40"
    " takes only softmax in float",
    f"remove it from discard_nodes, and give it 16 bits as a part of a mixture ({GUIDE})",
)
# To nodes on the CPU that read indices of QNN
CAST = advise(
    fix="cast the indices first: as they are, these nodes read garbled indices on the CPU"
)
CPU = (
    "use operators that QNN supports, leave them out of the model, or allow the CPU:"
    " full_delegation = false in [models.NAME.limits.SCHEME]"
)
# The first words of a headline on nodes on the CPU, if all of them have such a reason.
REASONS = (
    (re.compile(r"has incorrect Rank (\d+)"), "QNN does not take rank {}"),
    (re.compile(r"(?:input/output|mismatching) datatypes"), "QNN does not take these types"),
    # Its validation failed, for any reason: a repeat that adds axes has this number, too.
    (re.compile(r"failed 3110|error 3110"), "QNN does not take these types, shapes or attributes"),
    (re.compile(r"No node visitor"), "ExecuTorch has no QNN builder"),
)  # fmt: skip
MOST_FLOAT = 0.5  # the share of a quantized program's operators that may be float


def find_floats(compiled: Compiled, spec: CaseSpec) -> Iterator[str]:
    """Yield a warning if most operators of a quantized program have floating-point results."""
    total = sum(share.operators for share in compiled.types)
    floats = sum(share.operators for share in compiled.types if share.type == name_type(FLOAT_BITS))
    # A file that is run as it is has the types that its author chose.
    is_quantized = spec.scheme.quantized and spec.scheme is not Scheme.ASIS
    if is_quantized and total and floats / total > MOST_FLOAT:
        yield (
            f"{floats / total:.0%} of the operators are computed in float16, although the scheme"
            f" is {spec.scheme}: the quantizer left them out"
        )


def is_quantizing(node: Fallback) -> bool:
    """Return whether a node only converts the format of numbers."""
    return node.op.rpartition(":")[2] in QUANTIZING


def find_fallbacks(left: Sequence[Fallback]) -> Finding:
    """Return the finding that nodes stay on the CPU, although the policy requires the NPU."""
    # What computes comes first: quantizers only follow it.
    computing = [node for node in left if not is_quantizing(node)]
    left = [*computing, *(node for node in left if is_quantizing(node))]
    alike = {(node.label, str(node.origin) or node.reason): node for node in left[::-1]}
    lines = [f"{node.label}: {node.text}" for node in alike.values()][::-1]  # each line once
    and_more = [f"and {len(lines) - SHOWN_OPS} more"] if len(lines) > SHOWN_OPS else []
    many = "1 node falls" if len(left) == 1 else f"{len(left)} nodes fall"
    names = ", ".join(dict.fromkeys(fallback.label for fallback in left))
    reason, named = name_fallbacks(left)
    return ON_CPU.find(
        f"{reason or f'{many} back to the CPU'}: {named}",
        details=[f"{many} back to the CPU ({names})"] if reason else [],
        evidence="\n".join([*lines[:SHOWN_OPS], *and_more]),
        places=list_places(left),
    )


def find_lost_types(retyped: Sequence[Retyped]) -> list[Finding]:
    """Return the finding that tensors have fewer bits than requested, or [] if there are none."""
    if not retyped:
        return []
    first = retyped[0]
    and_more = f", and {len(retyped) - 1} more" if len(retyped) > 1 else ""
    compiled = f"{first.kind} {'are' if first.kind == WEIGHTS else 'is'} {first.compiled}"
    finding = RETYPED.find(
        f"{first.node} was requested in {first.asked}, but its {compiled}{and_more}",
        evidence="\n".join(map(str, retyped[:SHOWN_OPS])),
        places=first.origin.places,
        advice=ISLAND
        if first.asked == name_type(FLOAT_BITS)
        else advise(
            "a quantizer, a pass of the tool that lowers the model or an annotation function"
            " dropped the type",
            "request the type for the operators next to it, too, or leave this operator out of the"
            " part, recipe or annotation",
        ),
    )
    return [finding]


def find_garbled(garbled: Sequence[Garbled]) -> Finding:
    """Return the finding that nodes on the CPU read indices that QNN wrote as another type."""
    first = garbled[0]
    reader = f"{first.reader}{first.reader_origin.mark}"
    return INDICES.find(
        f"the indices of {first.operator}{first.origin.mark} reach {reader} on the CPU as int32",
        places=[*dict.fromkeys((*first.origin.places, *first.reader_origin.places))],
        advice=advise(
            "QNN writes indices as int32, and the program reads them as int64 on the CPU, in every"
            " scheme: the rows that they select are garbled, and letting the CPU compute them is"
            " what makes them wrong",
            "cast the indices directly behind the operator: indices.to(torch.int32), and back to"
            " int64 for the node on the CPU; the rewrite narrow-indices of `mend` adds the casts",
            certainty=Certainty.KNOWN,
            proof=Proof.PROVEN,
            name=INDICES.id,
        ),
    )


def find_no_node(left: Sequence[Fallback]) -> Finding:
    """Return the finding that QNN took no node of a model."""
    if not left:
        return NO_NODE.find("the model computes nothing: its graph has no operators")
    names = ", ".join(dict.fromkeys(fallback.label for fallback in left))
    reasons = dict.fromkeys(fallback.text for fallback in left)
    text = f"QNN accepted no node: {names}"
    return NO_NODE.find(text, evidence="\n".join(reasons), places=list_places(left))


def name_fallbacks(left: Sequence[Fallback]) -> tuple[str, str]:
    """Return the common reason of nodes that stay on the CPU, such as ``QNN does not take rank 6``,
    with their operators and places, such as ``view, permute in zoo.py:40``. The reason is empty if
    they have none. Quantizers are left out if there are other operators."""
    names = [*dict.fromkeys(name_operator(fallback.op) for fallback in left)]
    operators = ", ".join([name for name in names if name not in QUANTIZING] or names)
    lines: dict[str, list[str]] = {}
    for origin in dict.fromkeys(fallback.origin for fallback in left):
        if origin.line:
            lines.setdefault(f"{Path(origin.file).name}:", []).append(str(origin.line))
        elif origin.module:
            lines.setdefault("module ", []).append(origin.module)
    spots = [f"{start}{', '.join(names)}" for start, names in lines.items()]
    where = f" in {', '.join(spots)}" if spots else ""
    for pattern, words in REASONS:
        matches = [pattern.search(fallback.reason) for fallback in left]
        numbers = {match.groups() for match in matches if match}
        if all(matches) and len(numbers) == 1:
            return words.format(*min(numbers)), f"{operators}{where}"
    return "", f"{operators}{where}"


def name_operator(op: str) -> str:
    """Return the short name of an operator: ``view`` for ``aten.view_copy.default``, or ``Inverse``
    for ``com.microsoft:Inverse``."""
    kind = op.rpartition(":")[2]
    return kind.split(".")[1].removesuffix("_copy") if kind.count(".") > 1 else kind


# The headline of an error that Python code raised, which names no cause.
EXCEPTION = re.compile(r"refused: \w+(Error|Exception): ")


def explain(finding: Finding, advice: Advice) -> Finding:
    """Return a finding with advice. A known cause becomes the headline of a failed run, and that of
    a refusal if its remedy is proven, if QNN took no node, or if the message is that of an
    exception or was too long."""
    if finding.id == ON_CPU.id:  # what is known of its operators says more than a rule for messages
        is_rule = any(cause.name for cause in advice.causes)
        own_advice = NO_ADVICE if is_rule else advice
        return finding.explained(
            own_advice if own_advice != NO_ADVICE or finding.remedies else advise(fix=CPU)
        )
    vague = finding.is_cut or finding.id == NO_NODE.id or bool(EXCEPTION.match(finding.headline))
    vague = vague or any(remedy.proof is Proof.PROVEN for remedy in advice.remedies)
    refused = finding.question is Question.LOWERED and vague
    if advice.title and (refused or finding.question is Question.RUN):
        spots = [f" [{Path(place.file).name}:{place.line}]" for place in finding.places[:1]]
        finding = finding.renamed(*(f"{advice.title}{spot}" for spot in (*spots, "")))
    return finding.explained(advice)


def expect(finding: Finding, reason: str) -> Finding:
    """Return a refusal that the policy expects. The policy's explanation becomes its headline."""
    details = (
        finding.headline,
        *finding.details,
        *([reason] if len(reason) > HEADLINE_CHARS else []),
    )
    return structs.replace(finding, headline=shorten(reason, HEADLINE_CHARS), details=details)
