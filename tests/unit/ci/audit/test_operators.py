"""The verdict on what a partitioner did, remedies, and what is shown; no torch."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.audit.operators import (
    Audit,
    Audited,
    Found,
    OperatorRow,
    Partition,
    Remedy,
    find_remedy,
    judge_case,
    read_remedies,
    sum_bytes,
)
from ci.audit.operators_render import (
    make_annotations,
    make_rows,
    make_sheets,
    measure_extra,
    render_html,
    render_summary,
    render_text,
)
from ci.cases.engine import Staging
from ci.cases.policy import EmulatorPolicy, Unsupported, read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.explain.rules import Advice
from ci.faults.match import KnownFault
from ci.models.graph_steps import Operand, Step
from ci.models.lowering_options import Choices
from ci.models.schemes import Scheme
from ci.models.user_models import ModelEntry, Source
from ci.report.annotation import Level
from ci.report.schema import Status, Tool
from ci.verbs.audit import AuditJob
from tests.stand_ins.snapshots import check_snapshot

POLICY = read_emulator_policy()
WHOLE = Found(
    {"aten.linear.default [nets/net.py:21]": 2}, (), (Partition("forward", 2, 64, 16),), 80
)
ERF = ("aten.erf.default", "No node visitor, unsupported [nets/net.py:22]", False)
SPLIT = Found(
    {"aten.linear.default": 2},
    (ERF,),
    (Partition("forward", 1, 64, 512), Partition("forward", 1, 512, 16)),
    80,
)


def judge(
    found: Found, scheme: Scheme = Scheme.FP16, soc: str = "SM8650", policy: EmulatorPolicy = POLICY
) -> Audited:
    return judge_case(CaseSpec("net", scheme, soc), policy, found, 0.12345)


def permit_fallback(scheme: Scheme) -> EmulatorPolicy:
    limits = msgspec.structs.replace(POLICY.schemes[scheme], full_delegation=False)
    return msgspec.structs.replace(POLICY, schemes={**POLICY.schemes, scheme: limits})


def test_a_model_that_qnn_takes_whole_passes_and_costs_no_border() -> None:
    case = judge(WHOLE)
    assert case.status is Status.PASSED
    assert (case.full_delegation, case.seconds) == (True, 0.123)
    assert (case.count(taken=True), case.count(taken=False)) == (2, 0)
    assert (case.border_bytes, measure_extra(case)) == (80, 0)
    (taken,) = case.operators
    assert (taken.op, taken.file, taken.line) == ("aten.linear.default", "nets/net.py", 21)


def test_an_operator_on_the_cpu_fails_with_reason_line_remedy_and_its_cost() -> None:
    case = judge(SPLIT)
    assert case.status is Status.FAILED
    assert case.reason == "1 node stays on the CPU"
    (left,) = case.left
    assert (left.op, left.reason) == ("aten.erf.default", "No node visitor, unsupported")
    assert (left.file, left.line) == ("nets/net.py", 22)
    assert "nn.GELU()" in left.fix
    assert (len(case.partitions), case.border_bytes, measure_extra(case)) == (2, 1104, 1024)
    (taken,) = [one for one in case.operators if one.taken]
    assert (taken.op, taken.file, taken.line) == ("aten.linear.default", "", 0)


def test_a_policy_that_permits_the_fallback_is_green_and_still_shows_it() -> None:
    case = judge(SPLIT, policy=permit_fallback(Scheme.FP16))
    assert case.status is Status.PASSED
    assert len(case.left) == 1
    assert not case.full_delegation


def test_limits_of_a_model_permit_the_fallback_of_that_model_alone() -> None:
    limits = msgspec.structs.replace(POLICY.schemes[Scheme.FP16], full_delegation=False)
    entry = ModelEntry("net.py:make", limits={Scheme.FP16: limits})
    for name, status in (("net", Status.PASSED), ("other", Status.FAILED)):
        policy = msgspec.structs.replace(POLICY, models={name: entry})
        assert judge(SPLIT, policy=policy).status is status


def test_what_the_entry_leaves_to_the_cpu_fails_nothing() -> None:
    asked = msgspec.structs.replace(SPLIT, left=((*ERF[:2], True),))
    assert judge(asked).status is Status.PASSED


def test_a_model_of_which_qnn_takes_nothing_fails_whatever_the_policy_permits() -> None:
    nothing = Found({}, (ERF,), (), 80)
    case = judge(nothing, policy=permit_fallback(Scheme.FP16))
    assert case.status is Status.FAILED
    assert case.reason == "QNN accepts no operator"
    assert measure_extra(case) is None
    assert make_rows(Audit(cases=(case,)))[0][-4:] == ("0/1", "0", "-", "-")
    empty = judge(Found())  # a model without operators
    assert (empty.status, empty.reason) == (Status.FAILED, "QNN accepts no operator")


def test_a_failure_before_qnn_was_asked_does_not_blame_qnn() -> None:
    raised = "net.py raised RuntimeError: shapes differ (in eager mode, before lowering)"
    case = judge(Found(failure=raised, ended_early=True), policy=permit_fallback(Scheme.FP16))
    assert (case.status, case.reason) == (Status.FAILED, raised)
    quantizing = judge(Found(failure="KeyError: 'x'"))
    assert quantizing.status is Status.FAILED
    assert "KeyError: 'x'" in quantizing.reason
    assert "QNN accepts" not in quantizing.reason
    refused = judge(Found({}, (ERF,), (), 80, failure="KeyError: 'x'"))
    assert "; QNN accepts no operator" in refused.reason


def test_a_failed_lowering_fails_whatever_the_policy_permits_and_names_the_operator() -> None:
    raised = (
        "[QNN]: x (RuntimeError: Node aten_linear_default with op <EdgeOpOverload: aten.linear>"
        " was not decomposed or delegated. This op was registered by the partitioner)"
    )
    failed = msgspec.structs.replace(SPLIT, failure=raised)
    case = judge(failed, policy=permit_fallback(Scheme.FP16))
    assert case.status is Status.FAILED
    assert "at aten_linear_default: " in case.reason
    other = judge(msgspec.structs.replace(WHOLE, failure="KeyError: 'x'"))
    assert other.status is Status.FAILED
    assert other.reason.endswith(": KeyError: 'x'")
    for passes in ("[<FoldQDQ>, <Tag>...", "[<FoldQDQ>, <Tag>]"):
        late = f"RuntimeError: no luck after the following passes: {passes}"
        listed = judge(msgspec.structs.replace(WHOLE, failure=late))
        assert listed.reason.endswith(": RuntimeError: no luck")  # without the passes
    reasons = "".join(f"{one.reason}\n" for one in (case, other, listed))
    check_snapshot(Path(__file__).parent / "snapshots" / "operators.txt", reasons)


@pytest.mark.parametrize(
    ("choices", "is_skipped"),
    [
        (Choices(), False),
        (Choices(skip_ops=("aten.linear.default",)), True),
        (Choices(skip_nodes=("aten_linear_default",)), True),
        (Choices(skip_ops=("aten.relu.default",), skip_nodes=("aten_relu_default",)), False),
    ],
)
def test_an_operator_that_the_entry_skips_is_not_blamed_on_qnn(
    choices: Choices, *, is_skipped: bool
) -> None:
    raised = (
        "RuntimeError: Node aten_linear_default with op <EdgeOpOverload: aten.linear.default>:"
        " schema = aten::linear was not decomposed or delegated."
    )
    failed = msgspec.structs.replace(SPLIT, failure=raised)
    spec = CaseSpec("net", Scheme.FP16, "SM8650", Source(choices=choices))
    reason = judge_case(spec, permit_fallback(Scheme.FP16), failed).reason
    assert ("QNN refuses it" in reason) is not is_skipped
    assert ("the model's entry" in reason) is is_skipped


def test_advice_on_a_failure_is_the_policys_unless_operators_have_their_own() -> None:
    raised = "KeyError: torch.complex64"
    case = judge(msgspec.structs.replace(WHOLE, failure=raised))
    assert "matrix product" in case.fix
    assert "fix:" not in case.fix
    assert "why:" not in case.fix
    own = Advice(pattern="complex64", fix="ask Ann", why="a note says\n  fix: nothing")
    policy = msgspec.structs.replace(POLICY, advice=(own,))
    failed = msgspec.structs.replace(WHOLE, failure=raised)
    assert judge(failed, policy=policy).fix == own.fix
    any_text = msgspec.structs.replace(POLICY, advice=(Advice(pattern="^", fix="read it"),))
    assert [judge(one, policy=any_text).fix for one in (failed, WHOLE)] == ["read it", ""]
    split = judge(msgspec.structs.replace(SPLIT, failure=raised))
    assert split.fix == ""
    assert split.reason.endswith("; 1 node stays on the CPU")
    twice = judge(msgspec.structs.replace(SPLIT, left=(ERF, ERF)))
    assert twice.reason == "2 nodes stay on the CPU"
    assert all(one.taken is False for one in twice.left)


def test_a_refusal_that_the_policy_knows_is_unsupported() -> None:
    reason = "The SocModel doesn't support FP16; Failed to validate op x [net.py:1]"
    refused = Found({}, (("aten.linear.default", reason, False),), (), None)
    case = judge(refused, soc="QCM6490")
    assert case.status is Status.UNSUPPORTED
    assert "no float16" in case.reason
    assert "quantized scheme" in case.left[0].fix
    assert judge(refused, soc="SM8650").status is Status.FAILED


def test_a_refusal_is_known_for_the_lowering_options_of_its_row_alone() -> None:
    row = Unsupported(pattern="(?m)^No node visitor", reason="no", choices=("*saver*",))
    policy = msgspec.structs.replace(POLICY, unsupported=(row,))
    for choices, status in ((Choices(saver=True), Status.UNSUPPORTED), (Choices(), Status.FAILED)):
        spec = CaseSpec("net", Scheme.FP16, "SM8650", Source(choices=choices))
        case = judge_case(spec, policy, SPLIT)
        assert (case.status, case.seconds) == (status, 0.0)
    failed = msgspec.structs.replace(WHOLE, failure="RuntimeError: no luck")
    for pattern, status in (("no luck", Status.UNSUPPORTED), ("No node", Status.FAILED)):
        rows = (Unsupported(pattern=pattern, reason="known"),)
        policy = msgspec.structs.replace(POLICY, unsupported=rows)
        assert judge(failed, policy=policy).status is status
    policy = msgspec.structs.replace(POLICY, unsupported=(Unsupported(pattern="^", reason="all"),))
    for found, status in ((WHOLE, Status.PASSED), (SPLIT, Status.UNSUPPORTED)):
        assert judge(found, policy=policy).status is status


@pytest.mark.parametrize(
    ("op", "reason", "scheme", "soc", "has"),
    [
        ("aten.linear.default", "Value 68, expected >= 73.", "16a16w", "SA8295", "use 16a8w"),
        ("aten.matmul.default", "Value 68, expected >= 73.", "16a8w", "SA8295", "use 8a8w"),
        ("aten.linear.default", "Value 75, expected >= 79.", "8a8w", "SM8650", "fewer bits"),
        ("aten.matmul.default", "Value 7, expected equal to -32768.", "16a8w", "SM8650", "8a8w"),
        ("_local_scalar_dense.default", "No node visitor", "fp16", "SM8650", "mask"),
        ("shop.twirl.default", "No node visitor", "fp16", "SM8650", "torch's operators"),
        ("aten.glu.default", "No node visitor, unsupported", "fp16", "SM8650", "operators.md"),
        ("aten.max.dim", "no indices", "fp16", "SM8650", "amax"),
        ("aten.index.Tensor", "a shape depends on the data: TypeError", "fp16", "SM8650", "mask"),
        ("aten.view_copy.default", "has incorrect Rank 6", "8a8w", "SM8650", "five dimensions"),
    ],
)  # fmt: skip
def test_remedies_by_operator_reason_scheme_and_hardware(
    op: str, reason: str, scheme: str, soc: str, has: str
) -> None:
    assert has in find_remedy(op, reason, scheme, soc, POLICY)[1]


def test_an_operator_that_nothing_is_known_of_has_no_remedy() -> None:
    assert find_remedy("aten.nothing", "no such words", "fp16", "SM8650", POLICY) == ("", "")


def test_the_policys_own_advice_comes_first() -> None:
    own = Advice(pattern="aten.erf", fix="ask Ann", why="a custom of ours")
    other = Advice(pattern="aten.exp", fix="ask Bob")
    policy = msgspec.structs.replace(POLICY, advice=(other, own))
    assert find_remedy("aten.erf.default", "x", "fp16", "SM8650", policy) == (own.why, own.fix)
    (left,) = judge(SPLIT, policy=policy).left
    assert (left.why, left.fix) == (own.why, own.fix)


def test_limits_of_hardware_name_only_known_socs_and_schemes() -> None:
    from provisioning.manifest.targets import read_socs

    rows = read_remedies()
    assert all(soc in read_socs() for row in rows for soc in row.socs)
    old = next(row for row in rows if row.before_hexagon == 73)
    assert old.covers("16a16w", "SA8295")
    assert not old.covers("16a16w", "SM8550")  # a V73
    assert not old.covers("16a16w", "SM8650")
    assert not old.covers("8a8w", "SA8295")


def test_a_row_is_for_a_part_of_an_operator_and_of_a_reason() -> None:
    row = Remedy("erf", "x", reason="visitor")
    for op, reason, fits in (
        ("aten.erf.default", "No node visitor", True),
        ("aten.exp.default", "No node visitor", False),
        ("aten.erf.default", "Value 68", False),
    ):
        assert row.fits(op, reason) is fits


def test_a_row_for_named_socs_is_about_no_other() -> None:
    row = Remedy("", "x", socs=("SM8650",))
    assert [row.covers("fp16", soc) for soc in ("SM8650", "SM8750")] == [True, False]
    with pytest.raises(ValueError, match="forever"):
        Remedy("(a+)+", "x")


def test_a_size_that_is_not_known_makes_the_sum_unknown() -> None:
    assert sum_bytes([1, None]) is None
    assert (sum_bytes([]), sum_bytes([0, 3, 0])) == (0, 3)


def test_a_line_of_a_model_is_shown_once_for_all_schemes_and_socs() -> None:
    schemes, socs = (Scheme.FP16, Scheme.A8W8), ("SM8650", "SM8750")
    cases = [judge(SPLIT, scheme, soc) for scheme in schemes for soc in socs]
    audit = Audit(cases=(*cases, judge(WHOLE, soc="SM8550")))
    text = render_text(audit)
    assert text.count("on the CPU net: aten.erf.default x1 [nets/net.py:22]") == 1
    assert "fp16 on SM8650, SM8750; 8a8w on SM8650, SM8750: No node visitor" in text
    assert text.count("fix: write GELU") == 1
    assert "failed  5 cases: 1 passed, 4 failed, 0 unsupported" in text
    summary = render_summary(audit)
    assert summary.startswith("## operator audit: failed")
    assert "nets&#47;net&#46;py&#58;22" in summary
    (annotation,) = make_annotations(audit)
    assert (annotation.path, annotation.line) == ("nets/net.py", 22)


def test_an_operator_is_annotated_with_the_fixes_that_are_known() -> None:
    left = msgspec.structs.replace(SPLIT, left=(("aten.x", "a reason", False),))
    case = judge(left)
    fixes = ("", "first", "", "second", "first")
    cases = [
        msgspec.structs.replace(
            case, soc=f"SM{number}", operators=(msgspec.structs.replace(case.left[0], fix=fix),)
        )
        for number, fix in enumerate(fixes)
    ]
    (one,) = make_annotations(Audit(cases=tuple(cases)))
    assert one.message.endswith(": a reason. first; second")
    assert (one.path, one.line) == ("", 0)
    (none,) = make_annotations(Audit(cases=(cases[0],)))
    assert none.message.endswith(": a reason")
    assert "aten.x x1 [line not known]" in render_text(Audit(cases=(cases[0],)))


def test_nodes_that_are_refused_for_one_reason_on_one_line_are_one_row() -> None:
    reasons = [
        f"Value 7 in the node 'aten_{node}'; Failed to validate op aten_{node} with error 0xc26"
        for node in ("mul", "mul_1")
    ]
    left = tuple(("aten.mul.Tensor", f"{one} [nets/net.py:3]", False) for one in reasons)
    (row,) = judge(msgspec.structs.replace(SPLIT, left=left)).left
    assert (row.count, row.line) == (2, 3)
    assert row.reason == "Value 7; Failed to validate with error 0xc26"


def test_the_table_has_nodes_partitions_and_bytes() -> None:
    (row,) = make_rows(Audit(cases=(judge(SPLIT),)))
    assert row == ("net", "fp16", "SM8650", "failed", "2/3", "2", "1.08 KiB", "1.00 KiB")


def test_a_failure_without_an_operator_is_annotated_too() -> None:
    case = judge(Found(failure="partitioning: the process was killed by SIGSEGV"))
    (annotation,) = make_annotations(Audit(cases=(case,)))
    assert "SIGSEGV" in annotation.message
    assert annotation.path == ""


def test_what_the_policy_permits_on_the_cpu_is_no_error_in_the_source() -> None:
    """Of a case that passes and one that fails, with operators on other lines."""
    other = msgspec.structs.replace(
        SPLIT, left=(("aten.pdist", "No node visitor [nets/other.py:7]", False),)
    )
    passed = judge(other, policy=permit_fallback(Scheme.FP16))
    assert passed.status is Status.PASSED
    assert make_annotations(Audit(cases=(passed,))) == []
    (annotation,) = make_annotations(Audit(cases=(passed, judge(SPLIT))))
    assert (annotation.path, annotation.line) == ("nets/net.py", 22)


def test_words_of_a_model_are_no_command_of_a_ci_system() -> None:
    evil = Found({"a": 1}, (("aten.x", "::error::\x1b[31mred [net.py:1]", False),), (), 1)
    text = render_text(Audit(cases=(judge(evil),)))
    assert "\x1b" not in text
    assert not any(line.startswith("::") for line in text.splitlines())


def test_the_page_has_each_case_and_each_line_once() -> None:
    cases = [judge(SPLIT, scheme) for scheme in (Scheme.FP16, Scheme.A8W8)]
    page = render_html(Audit(cases=(*cases, judge(WHOLE)), command="qnn-ci audit"))
    assert page.count('<span class="chip failed">failed</span>') == 2
    assert page.count('<span class="chip passed">passed</span>') == 1
    assert page.count("<td>nets/net.py:22</td>") == 1
    assert "fp16 on SM8650; 8a8w on SM8650: No node visitor" in page
    assert "On the CPU" not in render_html(Audit(cases=(judge(WHOLE),)))


def test_buffers_that_the_cpu_copies_are_counted() -> None:
    assert judge(msgspec.structs.replace(WHOLE, written_back=2)).written_back == 2


POSITIONS = (
    Step(
        "add",
        "add",
        (Operand((2, 24, 64)), Operand((24, 64), constant=True)),
        ("", ""),
        (2, 24, 64),
        place="nets/net.py:31",
    ),
    Step("layer_norm", "layer_norm", (Operand((2, 24, 64)),), ("add",), (2, 24, 64)),
)


def audit_positions(*socs: str, qnn: str = "2.49.40") -> Audit:
    found = msgspec.structs.replace(WHOLE, steps=POSITIONS)
    specs = [CaseSpec("net", Scheme.FP16, soc) for soc in socs]
    return Audit(cases=tuple(judge_case(one, POLICY, found, 0.5, qnn) for one in specs))


def test_a_known_fault_is_named_with_its_line_and_changes_no_verdict() -> None:
    audit = audit_positions("SM8650", "SM8750")
    assert [one.status for one in audit.cases] == [Status.PASSED] * 2
    text = render_text(audit)
    assert text.count("known fault net: broadcast-add-before-norm [nets/net.py:31]") == 1
    assert "add of [2, 24, 64] and a constant [24, 64], then layer_norm" in text
    assert "| fp16 on SM8650, SM8750" in text
    assert "  fix: expand the constant" in text
    assert "broadcast" in render_html(audit)
    assert "### Known faults\n\n| fault |" in render_summary(audit)
    (annotation,) = make_annotations(audit)
    assert (annotation.level, annotation.path, annotation.line) == (
        Level.WARNING,
        "nets/net.py",
        31,
    )


def test_a_known_fault_is_of_the_versions_of_qnn_that_have_it() -> None:
    scales = (msgspec.structs.replace(POSITIONS[0], operator="mul"), POSITIONS[1])
    found = msgspec.structs.replace(WHOLE, steps=scales)
    for qnn, faults in (("2.48.40", 0), ("2.49.40", 1), ("", 1)):  # in an unknown one it may be
        spec = CaseSpec("net", Scheme.FP16, "SM8650")
        assert len(judge_case(spec, POLICY, found, qnn=qnn).known_faults) == faults
    assert len(judge_case(spec, POLICY, found).known_faults) == 1


def test_a_model_without_a_pattern_has_no_known_fault() -> None:
    audit = Audit(cases=(judge(WHOLE),))
    for text in (render_text(audit), render_summary(audit), render_html(audit)):
        assert "known fault" not in text.lower()


class Jobs:
    """What an audit's job does, in its order. It is also the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.job = AuditJob(
            self,  # type: ignore[arg-type]
            CaseSpec("net", Scheme.A8W8, "SM8650", Source("/nets/net.py:make")),
            Path("work"),
            Path("log"),
        )
        clock = itertools.count(100.0, 2.5)
        monkeypatch.setattr("ci.verbs.audit.time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr("ci.verbs.audit.run_forked", self.fork)
        for module, name in (
            ("ci.models.model", "load_digested"),
            ("ci.audit.operators_partitions", "partition_model"),
        ):
            stand_in = SimpleNamespace(**{name: getattr(self, name)})
            monkeypatch.setitem(sys.modules, module, stand_in)

    def preload(self, spec: CaseSpec) -> None:
        self.did.append(("preload", spec))

    def warm_up(self, spec: CaseSpec) -> None:
        self.did.append(("warm up", spec))

    def fork(self, function: Callable[[], Any], doing: str) -> Any:
        self.did.append(("fork", doing))
        return function()

    def load_digested(self, reference: str, source: Source) -> tuple[str, str]:
        self.did.append(("load", reference, source))
        return "the model", "its digest"

    def partition_model(self, model: Any, spec: CaseSpec, staging: Staging) -> Found:
        self.did.append(("partition", model, spec, staging))
        return WHOLE


def test_a_job_loads_before_its_fork_and_partitions_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's model is loaded by its reference with its source, and all output goes to the
    job's directory and log. The time is that of all steps."""
    jobs = Jobs(monkeypatch)
    spec = jobs.job.spec
    assert jobs.job() == (WHOLE, 2.5)
    assert jobs.did == [
        ("preload", spec),
        ("warm up", spec),
        ("fork", "partitioning"),
        ("load", "/nets/net.py:make", spec.source),
        ("partition", "the model", spec, Staging(Path("work"), Path("log"), Path("work"))),
    ]


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


def test_an_audit_with_two_of_everything_reads_as_its_snapshot() -> None:
    """Two models, schemes, SoCs, operators, reasons, fixes and known faults; each text differs."""

    def left(op: str, count: int, number: int, line: int, **fields: bool) -> OperatorRow:
        told = (f"reason {number}", f"why {number}", f"fix {number}")
        return OperatorRow(op, count, False, *told, file="nets/net.py", line=line, **fields)

    parts = (Partition("forward", 3, 1 << 10, 2 << 10), Partition("encode", 4, 3 << 10, 4 << 10))
    taken = (OperatorRow("aten.relu", 5, True), OperatorRow("aten.mul", 6, True))
    usual: dict[str, Any] = {"partitions": parts, "border_bytes": 10 << 10, "io_bytes": 3 << 10}

    def audited(model: str, scheme: str, soc: str, status: Status, *rows: Any) -> Audited:
        return Audited(
            model=model, scheme=scheme, soc=soc, status=status, operators=(*rows, *taken), **usual
        )

    one, two, three = (
        left("aten.erf", 2, 1, 7),
        left("aten.erf", 3, 2, 7),
        left("aten.fft", 1, 3, 8),
    )
    replace = msgspec.structs.replace
    cases = (
        replace(
            audited("nets/a.py:f", "fp16", "SM8650", Status.FAILED, one, three),
            reason="why it failed",
            fix="how to mend it",
            known_faults=(make_fault(1), make_fault(2)),
        ),
        replace(
            audited("nets/a.py:f", "8a8w", "SM8750", Status.FAILED, two, three),
            known_faults=(make_fault(1),),
        ),
        replace(
            audited("nets/b.py:g", "fp16", "SM8750", Status.UNSUPPORTED, two),
            reason="known",
            known_faults=(make_fault(3),),
        ),
        audited(
            "nets/b.py:g", "fp16", "SM8550", Status.PASSED, left("aten.erf", 4, 1, 7, asked=True)
        ),
        replace(
            audited("nets/b.py:g", "8a8w", "SM8650", Status.FAILED),
            reason="no operator",
            border_bytes=None,
        ),
    )
    tools = (Tool(name="qnn", version="2.1"), Tool(name="torch", version="2.3"))
    audit = Audit(cases=cases, toolchain=tools, command="qnn-ci audit")
    text = [
        render_text(audit),
        *(f"{one.level.value} {one.plain()}\n" for one in make_annotations(audit)),
    ]
    for sheet in make_sheets(audit):
        text.append(f"== {sheet.title} {sheet.verdict} {sorted(sheet.numbers)}\n")
        text += [f"{' | '.join(row.cells)} {row.tone}\n" for row in sheet.rows]
        assert {len(row.cells) for row in sheet.rows} == {len(sheet.head)}
    check_snapshot(Path(__file__).parent / "snapshots" / "audit.txt", "".join(text))
    page = render_html(audit)
    for told in ("qnn 2.1, torch 2.3", "qnn-ci audit", "may refuse more operators"):
        assert told in page


def test_a_remedy_is_for_each_of_its_schemes_and_socs() -> None:
    remedy = Remedy("erf", "fix", schemes=("fp16", "8a*"), socs=("SM8650", "SM8750"))
    covered = [
        (scheme, soc)
        for scheme in ("fp16", "8a8w", "16a8w")
        for soc in ("SM8650", "SM8750", "SM8550")
        if remedy.covers(scheme, soc)
    ]
    assert covered == [(scheme, soc) for scheme in ("fp16", "8a8w") for soc in ("SM8650", "SM8750")]


def test_each_row_of_operators_on_the_cpu_counts_and_may_be_what_the_policy_knows() -> None:
    left = (
        ("aten.erf", "first [net.py:1]", False),
        ("aten.erf", "first [net.py:1]", False),
        ("aten.fft", "second [net.py:2]", False),
        ("aten.skip", "third [net.py:3]", True),
    )
    found = msgspec.structs.replace(SPLIT, left=left)
    case = judge(found)
    assert case.reason == "3 nodes stay on the CPU"
    assert [(one.op, one.count, one.asked) for one in case.left] == [
        ("aten.erf", 2, False),
        ("aten.fft", 1, False),
        ("aten.skip", 1, True),
    ]
    assert (case.count(taken=False), case.count(taken=True)) == (4, 2)
    both = msgspec.structs.replace(WHOLE, taken={"aten.b [net.py:9]": 2, "aten.a [net.py:8]": 3})
    assert [(one.op, one.count, one.line) for one in judge(both).operators] == [
        ("aten.a", 3, 8),
        ("aten.b", 2, 9),
    ]
    for unknown in ({"border_bytes": None}, {"io_bytes": None}, {"partitions": ()}):
        assert measure_extra(msgspec.structs.replace(judge(SPLIT), **unknown)) is None
    # Inputs that only the CPU reads cross no border.
    assert measure_extra(msgspec.structs.replace(judge(SPLIT), io_bytes=9999)) == 0
    for pattern, status in (("second", Status.UNSUPPORTED), ("third", Status.FAILED)):
        rows = (Unsupported(pattern=pattern, reason="known"),)
        policy = msgspec.structs.replace(POLICY, unsupported=rows)
        assert judge(found, policy=policy).status is status
