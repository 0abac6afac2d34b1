"""The verdict on what a partitioner did, remedies, and what is shown; no torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ci.analysis.steps import Operand, Step
from ci.audit.operators import (
    Audit,
    Audited,
    Found,
    OperatorRow,
    Partition,
    judge_case,
    make_annotations,
    make_document,
    measure_extra,
)
from ci.cases.engine import Fallback
from ci.cases.policy import (
    EmulatorPolicy,
    OperatorRule,
    Unsupported,
    find_advice,
    read_emulator_policy,
)
from ci.cases.spec import CaseSpec
from ci.explain import rules
from ci.facts.finding import NOWHERE, Origin, advise
from ci.facts.kinds import INVALID, NO_NODE, NOT_LOWERED, ON_CPU
from ci.facts.known_fault import KnownFault
from ci.models.lowering_options import Choices
from ci.models.schemes import Scheme
from ci.models.user_models import ModelEntry, Source
from ci.report.document import render_markdown, render_text
from ci.report.schema import Status, Tool
from tests.stand_ins.snapshots import check_snapshot

POLICY = read_emulator_policy()
NET = partial(Origin, file="nets/net.py")
WHOLE = Found(
    {("aten.linear.default", NET(line=21)): 2}, (), (Partition("forward", 2, 64, 16),), 80
)
ERF = Fallback("aten.erf.default", "No node visitor, unsupported", origin=NET(line=22))
SPLIT = Found(
    {("aten.linear.default", NOWHERE): 2},
    (ERF,),
    (Partition("forward", 1, 64, 512), Partition("forward", 1, 512, 16)),
    80,
)


def judge(
    partitioned: Found,
    scheme: Scheme = Scheme.FP16,
    soc: str = "SM8650",
    policy: EmulatorPolicy = POLICY,
) -> Audited:
    return judge_case(CaseSpec("net", scheme, soc), policy, partitioned, 0.12345)


def show(audit: Audit) -> str:
    return render_text(make_document(audit), 120)


def permit_fallback(scheme: Scheme) -> EmulatorPolicy:
    limits = msgspec.structs.replace(POLICY.schemes[scheme], full_delegation=False)
    return msgspec.structs.replace(POLICY, schemes={**POLICY.schemes, scheme: limits})


KEPT = NOT_LOWERED.find(
    "RuntimeError: Node aten_linear_default with op <EdgeOpOverload: aten.linear.default>: schema ="
    " aten::linear was not decomposed or delegated. This op was registered by the partitioner"
)
COMPLEX = NOT_LOWERED.find("KeyError: torch.complex64")
SHAPES = INVALID.find("net.py raised RuntimeError: shapes differ", places=NET(line=9).places)
HALF = Fallback("aten.linear.default", "The SocModel doesn't support FP16")
PERMITTING = permit_fallback(Scheme.FP16)
ALL = (Unsupported(pattern="^", reason="the policy knows it"),)
SAVER = (Unsupported(pattern="(?m)^No node visitor", reason="no saver", choices=("*saver*",)),)
TWICE = tuple(
    Fallback("aten.mul.Tensor", f"Value 7{node}; Failed to validate op x{node} with error 0xc26")
    for node in (" in the node 'a'", " in the node 'b'")
)
NODES = tuple(Fallback("Relu", "no Relu", name=name) for name in ("first", "second"))
ASK = (rules.Advice(pattern="complex64|erf", fix="ask Ann", why="a note says so"),)


def with_(policy: EmulatorPolicy = POLICY, **fields: Any) -> EmulatorPolicy:
    return msgspec.structs.replace(policy, **fields)


def test_audit_verdicts_read_as_their_snapshot() -> None:
    """Each row: the result of the partitioner, the policy, the SoC and the lowering options."""
    replace, none = msgspec.structs.replace, Choices()
    rows: dict[str, tuple[Found, EmulatorPolicy, str, Choices]] = {
        "whole": (WHOLE, with_(unsupported=ALL), "SM8650", none),
        "one node on the cpu": (SPLIT, POLICY, "SM8650", none),
        "two nodes of a line": (replace(SPLIT, left=(ERF, ERF)), POLICY, "SM8650", none),
        "two nodes of one reason": (replace(SPLIT, left=TWICE), POLICY, "SM8650", none),
        "two nodes of a file": (replace(SPLIT, left=NODES), POLICY, "SM8650", none),
        "permitted": (SPLIT, PERMITTING, "SM8650", none),
        "asked": (replace(SPLIT, left=(replace(ERF, asked=True),)), POLICY, "SM8650", none),
        "no node": (Found({}, (ERF,), (), 80), PERMITTING, "SM8650", none),
        "nothing to do": (Found(), POLICY, "SM8650", none),
        "the model raises": (Found(failure=SHAPES), PERMITTING, "SM8650", none),
        "quantizing fails": (Found(failure=COMPLEX), POLICY, "SM8650", none),
        "refused and no node": (Found({}, (ERF,), failure=COMPLEX), POLICY, "SM8650", none),
        "refused and a node": (replace(SPLIT, failure=COMPLEX), POLICY, "SM8650", none),
        "kept whole": (replace(SPLIT, failure=KEPT), PERMITTING, "SM8650", none),
        "kept whole, skipped": (
            *(replace(SPLIT, failure=KEPT), PERMITTING, "SM8650"),
            Choices(skip_ops=("aten.linear.default",)),
        ),
        "the policy's advice": (replace(WHOLE, failure=COMPLEX), with_(advice=ASK), "SM8650", none),
        "its advice on a node": (SPLIT, with_(advice=ASK), "SM8650", none),
        "no float16": (Found({}, (HALF,)), POLICY, "QCM6490", none),
        "no float16, a newer SoC": (Found({}, (HALF,)), POLICY, "SM8650", none),
        "known": (SPLIT, with_(unsupported=ALL), "SM8650", none),
        "known with an option": (SPLIT, with_(unsupported=SAVER), "SM8650", Choices(saver=True)),
        "without the option": (SPLIT, with_(unsupported=SAVER), "SM8650", none),
    }
    parts = []
    for name, (partitioned, policy, soc, choices) in rows.items():
        spec = CaseSpec("net", Scheme.FP16, soc, Source(choices=choices))
        case = judge_case(spec, policy, partitioned)
        places = [str(place) for each in case.findings for place in each.places]
        _, _, text = show(Audit(cases=(case,))).partition("\n\n")
        parts.append(f"--- {name}: {case.status.value}, {measure_extra(case)}, {places}\n{text}")
    check_snapshot(Path(__file__).parent / "snapshots" / "operators.txt", "".join(parts))


def test_limits_of_a_model_permit_the_fallback_of_that_model_alone() -> None:
    limits = msgspec.structs.replace(POLICY.schemes[Scheme.FP16], full_delegation=False)
    entry = ModelEntry("net.py:make", limits={Scheme.FP16: limits})
    for name, status in (("net", Status.PASSED), ("other", Status.FAILED)):
        assert judge(SPLIT, policy=with_(models={name: entry})).status is status


BATCH_NORM = "QNN Batchnorm unsupported datatype on HTP."
TF = "tf_half_pixel_for_nn"


@pytest.mark.parametrize(
    ("op", "reason", "scheme", "soc", "has"),
    [
        ("aten.linear.default", "Value 68, expected >= 73.", "16a16w", "SA8295", "use 16a8w"),
        ("aten.matmul.default", "Value 68, expected >= 73.", "16a8w", "SA8295", "use 8a8w"),
        ("aten.linear.default", "Value 75, expected >= 79.", "8a8w", "SM8650", "fewer bits"),
        ("aten.matmul.default", "Value 7, expected equal to -32768.", "16a8w", "SM8650", "8a8w"),
        ("_local_scalar_dense.default", "No node visitor", "fp16", "SM8650", "mask"),
        ("aten._transformer_encoder_layer_fwd", "No node visitor", "8a8w", "SM8650", "fastpath"),
        ("shop.twirl.default", "No node visitor", "fp16", "SM8650", "torch's operators"),
        ("aten.glu.default", "No node visitor, unsupported", "fp16", "SM8650", "operators.md"),
        ("aten.max.dim", "no indices", "fp16", "SM8650", "amax"),
        ("aten.index.Tensor", "a shape depends on the data: TypeError", "fp16", "SM8650", "mask"),
        ("aten.view_copy.default", "has incorrect Rank 6", "8a8w", "SM8650", "reshape to rank 4"),
        ("BatchNormalization", BATCH_NORM, "asis", "SM8650", "in float"),
        ("Resize", f"coordinate_transformation_mode {TF}", "u8", "SM8650", "floor, use onnxr"),
        ("Resize", f"Resize with {TF} only supports mode 'nearest'", "u8", "SM8650", "half_"),
        ("Resize", f"Resize with {TF} does not support nearest_mode", "u8", "SM8650", "asym"),
    ],
)  # fmt: skip
def test_the_remedy_depends_on_operator_reason_scheme_and_soc(
    op: str, reason: str, scheme: str, soc: str, has: str
) -> None:
    assert has in find_advice(Fallback(op, reason), scheme, soc, POLICY).remedies[0].text


def test_an_operator_rule_with_socs_covers_no_other_soc() -> None:
    row = OperatorRule("", "x", socs=("SM8650",))
    assert [row.covers("fp16", soc) for soc in ("SM8650", "SM8750")] == [True, False]
    with pytest.raises(ValueError, match="forever"):
        OperatorRule("(a+)+", "x")


def test_a_cpu_fallback_that_the_policy_permits_is_not_annotated() -> None:
    """A case that passes and one that fails have CPU operators on different lines."""
    pdist = Fallback("aten.pdist", "No node visitor", origin=Origin(file="nets/other.py", line=7))
    split_elsewhere = msgspec.structs.replace(SPLIT, left=(pdist,))
    passed = judge(split_elsewhere, policy=permit_fallback(Scheme.FP16))
    assert passed.status is Status.PASSED
    assert make_annotations(Audit(cases=(passed,))) == []
    (annotation,) = make_annotations(Audit(cases=(passed, judge(SPLIT))))
    assert (annotation.path, annotation.line) == ("nets/net.py", 22)


POSITIONS = (
    Step(
        "add",
        "add",
        (Operand((2, 24, 64)), Operand((24, 64), constant=True)),
        ("", ""),
        (2, 24, 64),
        {"eights": (3.0,)},
        NET(line=31),
    ),
    Step("layer_norm", "layer_norm", (Operand((2, 24, 64)),), ("add",), (2, 24, 64)),
)


def audit_positions(*socs: str) -> Audit:
    partitioned = msgspec.structs.replace(WHOLE, steps=POSITIONS)
    specs = [CaseSpec("net", Scheme.FP16, soc) for soc in socs]
    return Audit(
        cases=tuple(judge_case(spec, POLICY, partitioned, 0.5, "2.49.40") for spec in specs)
    )


def test_a_known_fault_is_named_with_its_line_and_changes_no_verdict() -> None:
    audit = audit_positions("SM8650", "SM8750")
    assert [case.status for case in audit.cases] == [Status.PASSED] * 2
    text = show(audit)
    assert text.count("known fault  net: broadcast-add-before-norm [nets/net.py:31]") == 1
    assert "  | fp16 on SM8650, SM8750\n  | fix: expand the constant" in text
    assert "### Known fault\n\n**net" in render_markdown(make_document(audit))


def test_a_known_fault_is_reported_only_for_qnn_versions_that_have_it() -> None:
    scales = (msgspec.structs.replace(POSITIONS[0], operator="mul"), POSITIONS[1])
    partitioned = msgspec.structs.replace(WHOLE, steps=scales)
    for qnn, faults in (("2.48.40", 0), ("2.49.40", 1), ("", 1)):  # in an unknown one it may be
        spec = CaseSpec("net", Scheme.FP16, "SM8650")
        assert len(judge_case(spec, POLICY, partitioned, qnn=qnn).known_faults) == faults


def make_fault(number: int) -> KnownFault:
    return KnownFault(
        fault=f"fault-{number}",
        title="",
        seen=f"what is seen of {number}",
        fix=f"the fix of {number}",
        calls=f"the calls of {number}",
        nodes=(f"node_{number}",),
        operators=("add",),
        file=f"nets/{number}.py" if number != 2 else "",
        line=0 if number == 2 else 10 + number,
    )


def test_an_audit_report_reads_as_its_snapshot() -> None:
    """Two models, schemes, SoCs, operators, reasons, fixes and known faults; each text differs."""

    def left(op: str, count: int, number: int, line: int, **fields: bool) -> OperatorRow:
        advice = advise(f"why {number}", f"fix {number}")
        return OperatorRow(
            *(op, count, False, f"reason {number}", advice.causes, advice.remedies),
            file="nets/net.py",
            line=line,
            **fields,
        )

    parts = (Partition("forward", 3, 1 << 10, 2 << 10), Partition("encode", 4, 3 << 10, 4 << 10))
    taken = (OperatorRow("aten.relu", 5, True), OperatorRow("aten.mul", 6, True))
    usual: dict[str, Any] = {"partitions": parts, "border_bytes": 10 << 10, "io_bytes": 3 << 10}

    def audited(model: str, scheme: str, soc: str, status: Status, *rows: Any) -> Audited:
        return Audited(
            model=model, scheme=scheme, soc=soc, status=status, operators=(*rows, *taken), **usual
        )

    erf_of_a, erf_of_b, fft = (
        left("aten.erf", 2, 1, 7),
        left("aten.erf", 3, 2, 7),
        left("aten.fft", 1, 3, 8),
    )
    replace = msgspec.structs.replace
    cases = (
        replace(
            audited("nets/a.py:f", "fp16", "SM8650", Status.FAILED, erf_of_a, fft),
            findings=(NOT_LOWERED.find("a fault", advice=advise("why", "how to mend it")),),
            known_faults=(make_fault(1), make_fault(2)),
        ),
        replace(
            audited("nets/a.py:f", "8a8w", "SM8750", Status.FAILED, erf_of_b, fft),
            known_faults=(make_fault(1),),
        ),
        replace(
            audited("nets/b.py:g", "fp16", "SM8750", Status.UNSUPPORTED, erf_of_b),
            findings=(ON_CPU.find("known"),),
            known_faults=(make_fault(3),),
        ),
        audited(
            "nets/b.py:g", "fp16", "SM8550", Status.PASSED, left("aten.erf", 4, 1, 7, asked=True)
        ),
        replace(
            audited("nets/b.py:g", "8a8w", "SM8650", Status.FAILED),
            findings=(NO_NODE.find("no operator"),),
            border_bytes=None,
        ),
    )
    tools = (Tool(name="qnn", version="2.1"), Tool(name="torch", version="2.3"))
    audit = Audit(cases=cases, toolchain=tools, command="qnn-ci audit")
    annotations = "".join(
        f"{annotation.level.value} {annotation.plain()}\n" for annotation in make_annotations(audit)
    )
    check_snapshot(Path(__file__).parent / "snapshots" / "audit.txt", show(audit) + annotations)
