"""Small things that a reader of a report relies on."""

from __future__ import annotations

import io
import json
from dataclasses import replace as change
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ci.facts.finding import (
    Advice,
    Cause,
    Certainty,
    Place,
    Proof,
    Remedy,
    advise,
    show_finding,
)
from ci.facts.kinds import FEW, NOISE, NOT_LOWERED
from ci.report.annotation import (
    Annotation,
    Level,
    fingerprint,
    make_annotations,
    render_annotations,
    render_log,
)
from ci.report.comparison import compare_reports
from ci.report.document import list_findings
from ci.report.publishing import compare_base, publish_run
from ci.report.schema import Case, CaseName, Digests, JudgementFacts, ProgramFacts, Report, Status
from ci.report.write import read_report, write_report
from provisioning.console.progress import Progress
from tests.stand_ins.reports import change_case
from tests.stand_ins.snapshots import check_snapshot


@pytest.mark.parametrize(
    ("figures", "differs"),
    [
        ({"status": Status.FAILED}, True),
        ({"sqnr_db": 40.0}, True),
        ({"metric": 0.5}, True),
        ({"metric": 0.5, "metric_name": "word errors"}, False),
        ({"pte_bytes": 2047}, True),
        ({"fallback_nodes": 3}, True),
        ({"digests": Digests(inputs="b" * 64)}, True),
        ({"digests": Digests(weights="b" * 64)}, False),  # a field that the base lacks
        ({"lower_s": 9.0, "cached": True, "delegated_nodes": 4}, False),
    ],
)
def test_a_case_differs_from_the_base_by_any_figure(
    report: Report, figures: dict[str, Any], differs: bool
) -> None:
    before = change_case(CASE, metric=0.7, metric_name="top1", digests=Digests(inputs="a" * 64))
    now = change_case(before, **figures)
    compared = compare_reports(replace(report, cases=(before,)), replace(report, cases=(now,)))
    assert (len(compared.changed), compared.same) == (differs, not differs)


@pytest.mark.parametrize(
    ("certainty", "word"),
    [
        (Certainty.PROVEN, "why"),
        (Certainty.KNOWN, "why"),
        (Certainty.MEASURED, "why"),
        (Certainty.LIKELY, "likely"),
        (Certainty.UNKNOWN, "unknown"),
    ],
)
def test_how_certain_a_cause_is_stands_in_text_json_and_sarif(
    report: Report, certainty: Certainty, word: str
) -> None:
    fix = Remedy(text="do it", proof=Proof.PROVEN)
    finding = NOISE.find("it is wrong", places=[Place(file="n.py", line=3)]).explained(
        Advice(causes=(Cause(text="a norm", certainty=certainty),), remedies=(fix,))
    )
    lines = [*show_finding(finding)]
    assert lines[1:] == [f"  {word}: a norm", "  fix: do it"]
    case = change_case(CASE, status=Status.FAILED, findings=(finding,))
    (row,) = json.loads(msgspec.json.encode(case))["judgement"]["findings"]
    assert row["causes"][0]["certainty"] == certainty.value
    (annotation,) = make_annotations(replace(report, cases=(case,)))
    assert f"{word}: a norm; fix: do it" in annotation.message
    (result,) = render_annotations([finding.id], [annotation])
    causes = [{"text": "a norm", "certainty": certainty.value}]
    assert result["properties"] == {"certainty": certainty.value, "causes": causes}


def test_an_annotation_has_all_causes_of_a_finding(report: Report) -> None:
    causes = (
        Cause(text="a norm", certainty=Certainty.KNOWN),
        Cause(text="the part has 3.0 dB", certainty=Certainty.UNKNOWN),
    )
    finding = NOISE.find("it is wrong", places=[Place(file="n.py", line=3)]).explained(
        Advice(causes=causes)
    )
    case = change_case(CASE, status=Status.FAILED, findings=(finding,))
    (annotation,) = make_annotations(replace(report, cases=(case,)))
    message = (
        "not faithful: it is wrong [QNN2001]; why: a norm; open: the part has 3.0 dB (8a8w SM8650)"
    )
    assert annotation.message == message
    (result,) = render_annotations([finding.id], [annotation])
    assert result["properties"] == {
        "certainty": "known",
        "causes": [
            {"text": "a norm", "certainty": "known"},
            {"text": "the part has 3.0 dB", "certainty": "unknown"},
        ],
    }


def test_a_sarif_log_reads_as_its_snapshot() -> None:
    """The report has each level, rule and kind of place."""
    annotations = [
        Annotation(
            *(level, f"it is {level.value}", f"title {number}", f"p/{number}.py", number, "one")
        )
        for number, level in enumerate(Level)
    ]
    results = render_annotations(["one"], annotations)
    log = render_log("a tool", "1.2", "the tree", {"one": "a rule", "two": "another"}, results)
    text = json.dumps(log, indent=1) + "\n"
    check_snapshot(Path(__file__).with_name("snapshots") / "sarif.json", text)


CASE = Case(
    model="mlp",
    scheme="8a8w",
    soc="SM8650",
    judgement=JudgementFacts(status=Status.PASSED, sqnr_db=41.0),
    program=ProgramFacts(delegated_nodes=5, fallback_nodes=2, pte_bytes=2048),
)


def test_a_fingerprint_is_that_of_the_path_title_and_message_and_of_no_line() -> None:
    wrong = Annotation(Level.ERROR, "wrong", "mlp", "a.py", 3, "rule")
    fingerprints = [
        render_annotations(["rule"], [annotation])[0]["partialFingerprints"]["rule/v1"]
        for annotation in (
            wrong,
            change(wrong, line=9),
            change(wrong, path="b.py"),
            change(wrong, title="lstm"),
            change(wrong, message="right"),
        )
    ]
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 4
    assert fingerprint("a\udcff") == fingerprint("a?")  # a path that is not UTF-8
    # GitHub takes a result with another fingerprint for a new one.
    assert fingerprint("a.py", "mlp", "wrong") == "9bcc8503e9611e50a4db866d4abc9bd6"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("./nox -s test_emulator --", "--model 'a b' --scheme fp16 --soc S"),
        (
            "./nox -s test_emulator -- --policy my--suite.toml",
            "--model 'a b' --scheme fp16 --soc S",
        ),
        ("./nox -s test_upstream -- --suite ops --soc S", "--filter 'a b'"),
    ],
)
def test_a_command_for_one_case_selects_it(command: str, options: str) -> None:
    assert CaseName("a b", "fp16", "S").choose(command) == f"{command} {options}"


@pytest.mark.parametrize("github", [False, True])
@pytest.mark.parametrize("requested", [False, True])
def test_a_report_writes_sarif_and_summary_only_where_requested_or_on_github(
    troubled: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    github: bool,
    requested: bool,
) -> None:
    page, sarif = tmp_path / "page.md", tmp_path / "a.sarif"
    monkeypatch.setenv("GITHUB_ACTIONS", str(github).lower())
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    options = {"base": tmp_path / "gone.json", "sarif": sarif} if requested else {}
    stream = io.StringIO()
    published = publish_run(troubled, tmp_path / "reports", Progress(stream), **options)
    assert read_report(tmp_path / "reports") == published
    printed = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in printed] == ["report", *["note"] * requested]
    assert printed[0].endswith("index.html")
    assert (published.uncompared != "", sarif.is_file()) == (requested, requested)
    assert page.is_file() is github
    assert ("::error file=nets/a b.py,line=7" in capsys.readouterr().err) is github


def test_a_report_is_compared_with_a_base_of_its_backend(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    assert compare_base(report, None) is report
    first, *other_cases = report.cases
    sources = [change_case(first, digests=Digests(weights=letter * 64)) for letter in "ab"]
    now, base = (replace(report, cases=(source, *other_cases)) for source in sources[::-1])
    base = replace(base, cases=base.cases[:-1])
    write_report(base, tmp_path)
    weights_differ = "warning: the weights differ from the base: mlp fp16 SM8650"
    for remarks in ((), ("note: x",), ("note: x", weights_differ)):
        compared = compare_base(replace(now, remarks=remarks, uncompared="no base"), tmp_path)
        assert compared.remarks == tuple(dict.fromkeys([*remarks, weights_differ]))
        assert compared.uncompared == ""
        assert compared.comparison == compare_reports(base, now)
        assert [compared.comparison.new, compared.comparison.missing] == [
            (other_cases[-1].name,),
            (),
        ]
        assert compared.comparison.tools == ()
    other_backend = compare_base(replace(now, backend="lpai"), tmp_path)
    assert (other_backend.comparison, other_backend.uncompared) == (
        None,
        f"the base ran on backend {report.backend}, this run on lpai",
    )
    (tmp_path / "report.json").write_text("{")
    broken = compare_base(now, tmp_path)
    assert broken.comparison is None
    assert "does not have the format of the report: " in broken.uncompared


KNOWN = "neither ExecuTorch nor QNN supports complex numbers"
LONG = "66.67% of the elements equal those of the float32 model, 90.00% required, in all"
REPEATS = {
    "a headline that was cut": (
        FEW.find(LONG, subject="output 1"),
        [f"not quantized well: output 1: {LONG} [QNN2105]"],
    ),
    "a headline that is the cause": (
        NOT_LOWERED.find("KeyError: 'x'", places=[Place(file="net.py", line=3)])
        .renamed(f"{KNOWN} [net.py:3]")
        .explained(advise(KNOWN, "write an FFT otherwise", certainty=Certainty.KNOWN)),
        [
            f"refused: {KNOWN} [net.py:3] [QNN2402]",
            "  refused: KeyError: 'x'",
            "  try: write an FFT otherwise",
        ],
    ),
    "a headline that is the start of the cause": (
        NOT_LOWERED.find(KNOWN, advice=advise(f"{KNOWN}: torch.fft has them")),
        [f"refused: {KNOWN} [QNN2402]", "  why: torch.fft has them"],
    ),
    "a cause that is not certain": (
        NOT_LOWERED.find(KNOWN, advice=advise(KNOWN, certainty=Certainty.GUESS)),
        [f"refused: {KNOWN} [QNN2402]", f"  possibly: {KNOWN}"],
    ),
    "an error of several lines": (
        NOT_LOWERED.find("Error:\nno rank 6", evidence="Error:\nno rank 6"),
        ["refused: Error: [QNN2402]", "  no rank 6"],
    ),
}


@pytest.mark.parametrize("name", REPEATS)
def test_no_line_of_a_finding_repeats_its_headline(name: str) -> None:
    finding, lines = REPEATS[name]
    assert [*show_finding(finding)] == lines
    shown = [f"  {word}: {line}" if word else line for word, line in list_findings([finding])]
    assert [line.strip() for line in shown] == [line.strip() for line in lines]
