"""What another version changes: cases and known faults, in the order of what counts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.audit import upgrade
from ci.audit.upgrade import (
    Difference,
    Total,
    UpgradeReport,
    add_figures,
    compare,
    compare_faults,
    compare_runs,
    make_document,
)
from ci.faults.expected import Rerun, list_tried
from ci.faults.known import read_faults
from ci.report.document import render_text
from ci.report.html import render_document
from ci.report.schema import (
    Case,
    Footprint,
    JudgementFacts,
    OperatorCount,
    ProgramFacts,
    Report,
    Status,
)
from ci.report.write import write_report
from ci.verbs.sides import check_word
from provisioning.errors import FailedError, UsageError
from tests.stand_ins.reports import change_case, make_report, say
from tests.stand_ins.snapshots import check_snapshot

OPERATORS = (OperatorCount(op="linear", npu=3), OperatorCount(op="erf", npu=1))
TAKEN = Footprint(
    program_bytes=1000,
    spill_bytes=10,
    read_bytes=400,
    segment_align=256,
    lowering_memory_bytes=1000,
    operators=OPERATORS,
)
CASE = Case(
    model="mlp",
    scheme="8a8w",
    soc="SM8650",
    judgement=JudgementFacts(status=Status.PASSED, sqnr_db=30.0, max_abs=0.1),
    program=ProgramFacts(footprint=TAKEN),
)


def see(now: Case) -> list[tuple[str, str]]:
    """What differs of the case, with its verdict."""
    differences = compare_runs(make_report([CASE]), make_report([now]))
    return [(difference.aspect, difference.verdict) for difference in differences]


def take(**figures: Any) -> dict[str, Any]:
    return {"footprint": replace(TAKEN, **figures)}


def give(**figures: Any) -> Case:
    return change_case(CASE, **take(**figures))


@pytest.mark.parametrize(
    ("now", "differences"),
    [
        (CASE, []),
        (change_case(CASE, sqnr_db=None, max_abs=0.0), [("SQNR", "better")]),
        (change_case(CASE, sqnr_db=30.04), []),
        (change_case(CASE, sqnr_db=30.06), [("SQNR", "better")]),
        (change_case(CASE, sqnr_db=None), []),  # not exact: an output differs
        (give(spill_bytes=11), [("spill_bytes", "worse")]),
        (give(lowering_memory_bytes=1099), []),
        (give(lowering_memory_bytes=1101), [("lowering_memory_bytes", "worse")]),
        (
            give(operators=(OPERATORS[0], OperatorCount(op="erf", cpu=1))),
            [("CPU", "worse"), ("NPU", "other")],
        ),
        (give(operators=(*OPERATORS, OperatorCount(op="abs", cpu=1))), [("CPU", "worse")]),
        (change_case(CASE, metric=0.5), []),  # nothing to compare it with
    ],
)
def test_each_difference_of_a_case_has_a_verdict(
    now: Case, differences: list[tuple[str, str]]
) -> None:
    assert see(now) == differences


LOST = ("spill_bytes", "0 bytes", "not known", "other", None)
RED: dict[str, Any] = {"status": Status.FAILED, "findings": say("no op\nmore")}


@pytest.mark.parametrize(
    ("old", "now", "row"),
    [
        ({"metric": 0.9}, {"metric": 0.8}, ("metric", "0.9", "0.8", "worse", None)),
        ({"sqnr_db": None, "max_abs": 0.0}, {}, ("SQNR", "exact", "30.0 dB", "worse", None)),
        ({}, take(spill_bytes=None), ("spill_bytes", "10 bytes", "not known", "other", None)),
        (take(spill_bytes=0), take(spill_bytes=None), LOST),
        ({}, take(segment_align=4096), ("segment_align", "256", "4,096", "better", 15.0)),
        ({"sqnr_db": 0.0}, {"sqnr_db": 0.05}, ("SQNR", "0.0 dB", "0.1 dB", "better", 0.05)),
        ({}, RED, ("status", "passed", "failed no op", "worse", None)),
    ],
)
def test_a_difference_has_both_figures_with_their_unit_and_the_change(
    old: dict[str, Any], now: dict[str, Any], row: tuple[object, ...]
) -> None:
    runs = [make_report([change_case(CASE, **fields)]) for fields in (old, now)]
    (difference,) = compare_runs(*runs)
    assert difference.subject == "mlp 8a8w SM8650"
    assert (
        difference.aspect,
        difference.before,
        difference.now,
        difference.verdict,
        difference.change,
    ) == row


def test_cases_that_are_in_only_one_run_are_listed() -> None:
    other_case = replace(CASE, model="resnet")
    differences = list(compare_runs(make_report([CASE, other_case]), make_report([CASE])))
    assert [(difference.subject, difference.verdict) for difference in differences] == [
        ("resnet 8a8w SM8650", "worse")
    ]
    assert [
        (difference.aspect, difference.before, difference.now) for difference in differences
    ] == [("run", "judged", "missing")]
    differences = list(compare_runs(make_report([CASE]), make_report([CASE, other_case])))
    assert [
        (difference.before, difference.now, difference.verdict) for difference in differences
    ] == [("missing", "judged", "other")]
    with pytest.raises(FailedError, match="no case in common") as caught:
        list(compare_runs(make_report([CASE]), make_report([other_case])))
    title = make_report([CASE]).title
    assert caught.value.why == (f"both are from {title}, but their models, schemes or SoCs differ")
    later = replace(make_report([other_case]), session="test_onnx")
    with pytest.raises(FailedError, match="no case in common") as newer:
        list(compare_runs(make_report([CASE]), later))
    assert newer.value.why == f"the old report is from {title}, the new one from test_onnx"
    check_snapshot(Path(__file__).parent / "snapshots" / "apart.txt", f"{caught.value}\n")


def test_differences_are_sorted_from_worst_to_best() -> None:
    new_cases = [
        give(spill_bytes=11),
        replace(give(read_bytes=4000), model="lstm"),
        change_case(CASE, model="resnet", sqnr_db=35.0),
        change_case(CASE, model="transformer", status=Status.FAILED),
        change_case(CASE, model="mobile", sqnr_db=20.0),
        replace(CASE, model="same"),
    ]
    olds = [replace(CASE, model=case.model) for case in new_cases]
    olds.append(replace(CASE, model="gone"))
    compared = make(make_report(olds), make_report(new_cases))
    assert [difference.subject.split()[0] for difference in compared.differences] == [
        *("gone", "transformer", "mobile", "lstm", "mlp", "resnet")
    ]
    assert (compared.unchanged, compared.is_worse) == (1, True)
    (total,) = [row for row in compared.totals if row.figure == "read_bytes"]
    assert (total.before, total.now, total.moved, total.cases) == (2400, 6000, 1, 6)


def test_a_figure_is_summed_over_the_cases_that_have_it_in_both_runs() -> None:
    def run(**spills: int | None) -> Report:
        cases = [
            change_case(CASE, model=name, footprint=replace(TAKEN, spill_bytes=spill, vtcm_mb=8))
            for name, spill in spills.items()
        ]
        return make_report([*cases, change_case(CASE, model="bare", footprint=None)])

    lost = replace(CASE, model="lost")
    old = make_report([*run(less=10, more=10, same=5, gone=100, unknown=None).cases, lost])
    lost = change_case(lost, footprint=None)
    new = make_report([*run(less=7, more=30, same=5, fresh=100, unknown=1).cases, lost])
    totals = {total.figure: total for total in add_figures(old, new)}
    assert totals["spill_bytes"] == Total(figure="spill_bytes", before=25, now=42, moved=2, cases=3)
    assert totals["program_bytes"].cases == 4
    assert not {"vtcm_mb", "segment_align", "write_bytes"} & totals.keys()  # no sums, or not known


def make(old: Report, new: Report) -> UpgradeReport:
    return compare(("old", "new"), (old, new))


def make_wide() -> UpgradeReport:
    """Differences of each verdict and unit, and totals with and without a share."""
    rows: list[dict[str, Any]] = [
        {"aspect": "status", "before": "passed ", "now": f"failed {'x' * 200}"},
        {"aspect": "SQNR", "before": "30.0 dB", "now": "20.0 dB", "change": -10.0},
        {"aspect": "SQNR q", "before": "43.5 dB", "now": "40.0 dB", "change": -3.5},
        {"aspect": "read_bytes", "before": "400 bytes", "now": "500 bytes", "change": 0.25},
    ]
    mild = {"subject": "libQnnHtp.so", "aspect": "symbols", "before": "-", "now": "QnnHtp_new"}
    better = {"subject": "lstm", "aspect": "metric", "before": "0.8", "now": "0.9"}
    return UpgradeReport(
        old="a==1",
        new="a==2",
        differences=(
            *(Difference(subject="mlp 8a8w SM8650", verdict="worse", **row) for row in rows),
            Difference(verdict="better", **better),
            Difference(verdict="other", **mild),
        ),
        totals=(
            Total(figure="read_bytes", before=1400, now=1500, moved=1, cases=2),
            Total(figure="spill_bytes", before=0, now=10, moved=1, cases=1),
        ),
        unchanged=2,
    )


def test_an_upgrade_comparison_reads_as_its_snapshot() -> None:
    """The snapshot has the text, and the title and tables of the page."""
    report = make_wide()
    page = render_document(make_document(report))
    parts = re.findall(r"<h1.*?</h1>|<h2.*?</h2>|<p class.*?</p>|<tr.*?</tr>", page, re.DOTALL)
    assert max(map(len, render_text(make_document(report), 60).splitlines())) <= 60
    text = "\n".join([render_text(make_document(report), 120), *parts, ""])
    check_snapshot(Path(__file__).parent / "snapshots" / "upgrade.txt", text)


def test_an_upgrade_report_without_a_run_states_what_stopped_it() -> None:
    lost = upgrade.Difference("a==2", "run", "judged", "exited with 2", "worse")
    for runs in ((None, None), (make_report([CASE]), None)):
        report = compare(("a==1", "a==2"), runs, [lost])
        assert report == UpgradeReport(old="a==1", new="a==2", differences=(lost,))


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("nosuch", "is not a file, a directory or a version"),
        ("/dev/null", "is not a file, a directory or a version"),
        ("numpy==2.0", "'numpy==2.0' is not a package"),
        ("executorch==0.1", "executorch==0.1 is not supported"),
        ("onnxruntime-qnn==../x", "is not a package"),
        ("onnxruntime-qnn==2.7.0+numpy==1", "is not a package"),
        ("onnxruntime-qnn==2.7.0+executorch==1.4.1", "combines packages"),
    ],
)
def test_an_argument_that_is_no_version_is_refused_before_any_run(word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_word(word)


def test_an_executorch_that_needs_another_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.verbs.sides.installed_executorch", lambda: "1.5.1")
    check_word("executorch==1.4.1")
    check_word("onnxruntime-qnn==2.3.0+onnxruntime==1.26.0")
    with pytest.raises(UsageError, match=r"needs torch 2\.12\.0") as caught:
        check_word("executorch==1.3.1")
    assert "./nox -s test_emulator -- --executorch 1.3.1" in str(caught.value)


def test_upgrade_report_compares_two_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    old_run = "upgrade/onnxruntime-qnn==2.3.0/test_onnx"  # a report of an earlier call
    write_report(make_report([CASE]), tmp_path / old_run)
    assert main(["upgrade-report", old_run, old_run]) == 0
    assert "0 worse, 0 better, 0 other, 1 case" in capsys.readouterr().out
    write_report(make_report([CASE]), tmp_path / "old")
    write_report(make_report([change_case(CASE, status=Status.FAILED)]), tmp_path / "bad")
    write_report(make_report([give(spill_bytes=900)]), tmp_path / "spills")
    assert main(["upgrade-report", "old", "spills/report.json", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["differences"][0]["what"] == "spill_bytes"
    assert (data["old"], data["new"], data["same"]) == ("old", "spills/report.json", 0)
    assert main(["upgrade-report", "old", "bad"]) == 1
    assert "mlp 8a8w SM8650  status  worse" in capsys.readouterr().out
    assert main(["upgrade-report", "bad", "old"]) == 0


def test_a_version_that_does_not_run_is_worse_and_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each version runs in its own process; the last lines of that process are the reason."""
    pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
    monkeypatch.chdir(tmp_path)
    write_report(make_report([CASE]), tmp_path / "old")
    (tmp_path / "sdk").mkdir()
    assert main(["upgrade-report", "old", "sdk", "--json"]) == 1
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert (difference["what"], difference["verdict"]) == ("run", "worse")
    assert "exited with" in difference["now"]
    assert "sdk" in difference["now"]


def test_known_faults_with_another_outcome_are_differences() -> None:
    def end(qnn: str) -> list[Rerun]:
        return [rerun for rerun in list_tried(read_faults(), "onnx") if rerun.qnn == qnn]

    differing, refused = compare_faults(end("2.48.40"), end("2.49.40"))
    assert differing.subject == "broadcast-mul-before-norm (graph, onnx fp16)"
    assert differing.aspect == refused.aspect == "fault"
    assert (differing.before, differing.now, differing.verdict) == ("right", "wrong", "worse")
    assert (refused.before, refused.now, refused.verdict) == ("refused", "wrong", "worse")
    back = list(compare_faults(end("2.49.40"), end("2.48.40")))
    assert [difference.verdict for difference in back] == ["better", "better"]
    assert not list(compare_faults(end("2.50.40"), end("2.51.0")))
