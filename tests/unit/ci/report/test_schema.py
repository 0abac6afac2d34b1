"""report.json: its schema, its values, and the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.session import started_now
from ci.report.schema import (
    Case,
    CaseName,
    Change,
    Clipped,
    Control,
    JudgementFacts,
    ProgramFacts,
    Report,
    Status,
    make_json_schema,
)
from ci.report.text import clean_log_line, count_cases
from ci.report.write import PLACES, encode_report, read_report, report_data, write_report
from provisioning.errors import ExitCode, StoreError, UsageError
from tests.stand_ins.reports import change_case, say

SCHEMA = json.loads(
    (Path(__file__).parents[4] / "docs" / "schemas" / "report.schema.json").read_text("utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


class Scalar:
    """A number as numpy and torch wrap it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value

    def __eq__(self, compared: object) -> bool:
        return self.value == compared

    def __hash__(self) -> int:
        return hash(self.value)


def test_the_committed_schema_is_what_the_code_gives() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert make_json_schema() == SCHEMA, (
        "run: python -m ci report --schema > docs/schemas/report.schema.json"
    )


@pytest.mark.parametrize("name", ["report", "troubled", "hostile"])
def test_reports_fit_the_schema_and_come_back_equal(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    report: Report = request.getfixturevalue(name)
    write_report(report, tmp_path / "new" / "directory")
    path = tmp_path / "new" / "directory" / "report.json"
    assert path.read_bytes() == encode_report(report)
    assert path.read_bytes().endswith(b"}\n")
    VALIDATOR.validate(json.loads(path.read_bytes()))
    assert read_report(path) == read_report(path.parent) == report
    assert not list(path.parent.glob(".*"))


EARLIER = Path(__file__).with_name("report-6.json")  # a run as schema 6 wrote it


def test_a_report_of_the_schema_before_is_read_and_no_older_one(tmp_path: Path) -> None:
    """Each field of a case is read into the part that has it now."""
    written = json.loads(EARLIER.read_bytes())
    read = read_report(EARLIER)
    assert len(PLACES) == 57
    for row, case in zip(written["cases"], msgspec.to_builtins(read)["cases"], strict=True):
        for finding in case["judgement"]["findings"]:
            for remedy in finding["remedies"]:
                assert remedy.pop("rewrites") == ()  # which that schema lacks
        flat = {old: case[part][field] for old, (part, field) in PLACES.items()}
        names = {name: case[name] for name in CaseName.__struct_fields__}
        assert json.loads(msgspec.json.encode({**names, **flat})) == row
    path = tmp_path / "report.json"
    write_report(read, tmp_path)
    assert read_report(path) == read
    path.write_text(json.dumps({**written, "schema_version": 5}))
    with pytest.raises(UsageError) as caught:
        read_report(path)
    assert "run the session again" in caught.value.why


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("surprise", 1, "no field 'surprise'"),
        ("judgement", {}, "no field 'judgement'"),
        ("wall_s", 1.0, "no field 'wall_s'"),  # run_s in schema 6
        ("status", "fine", "$.cases[0].judgement.status"),
        ("sqnr_db", "41", "$.cases[0].judgement.sqnr_db"),
        ("device", {"starts": 0, "runs": 1}, "$.cases[0].device.figures"),
    ],
)
def test_a_broken_field_of_the_schema_before_is_refused(
    name: str, value: Any, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = json.loads(EARLIER.read_bytes())
    written["cases"][0][name] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(written))
    assert main(["report", str(path)]) == ExitCode.USAGE
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("judgement.status", "fine"), ("judgement.sqnr_db", "41"), ("judgement.cosine", 1.2)),
        *(("program.pte_bytes", -1), ("asked.inputs", 0.5), ("run.surprise", 1), ("surprise", 1)),
        *(("device.figures", {"starts": 0, "runs": 1}), ("judgement", None), ("asked", [])),
        *(("status", "passed"), ("judgement.findings", [{"id": 1}])),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(
    troubled: Report,
    field: str,
    value: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = report_data(troubled)
    row = data["cases"][0]
    part, _, name = field.rpartition(".")
    (row[part] if part else row)[name] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert not VALIDATOR.is_valid(data)
    assert main(["report", str(path)]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert f"$.cases[0].{field}" in shown or f"unknown field `{name}`" in shown


def test_non_finite_figures_are_null_and_numpy_scalars_plain_in_report_json(report: Report) -> None:
    wide = {"seen_low": float("-inf"), "seen_high": float("inf")}
    case = Case(
        model="a\udc80b",
        judgement=JudgementFacts(
            findings=say("\N{GREEK SMALL LETTER MU}"),
            status=Status.PASSED,
            sqnr_db=float("inf"),
            cosine=Scalar(float("nan")),
        ),
        scheme="fp16",
        soc="SM8650",
        program=ProgramFacts(
            pte_bytes=Scalar(7), clipped=(Clipped(name="x", is_input=True, low=0, high=1, **wide),)
        ),
    )
    (read,) = msgspec.json.decode(encode_report(replace(report, cases=(case,))), type=Report).cases
    assert "from -inf to inf" in str(read.program.clipped[0])
    data = report_data(replace(report, cases=(case,)))["cases"][0]
    assert data["judgement"]["findings"][0]["headline"] == "\N{GREEK SMALL LETTER MU}"
    assert (data["judgement"]["sqnr_db"], data["judgement"]["cosine"]) == (None, None)
    assert data["program"]["pte_bytes"] == 7
    assert data["model"] == "a?b"


def test_an_accepted_control_fails_a_run_that_also_lacks_libraries(
    report: Report, troubled: Report, controls: list[Control]
) -> None:
    counts = troubled.summary
    assert (counts.passed, counts.failed, counts.unsupported) == (1, 2, 1)
    assert (counts.controls, counts.controls_passed) == (8, 1)
    lacks = change_case(report.cases[0], status=Status.UNSUPPORTED, lacks="libQnnHtp.so")
    accepted = (replace(controls[0], rejected=False),)
    for cases in ((lacks, report.cases[1]), report.cases):
        run = replace(report, cases=cases, controls=accepted).recounted
        assert (run.exit_code, run.ok) == (ExitCode.FAILED, False)


FAILED = {"status": Status.FAILED, "made_inputs": "zeros"}
LACKS = {"status": Status.UNSUPPORTED, "lacks": "a phone"}
PROVES = "passed (random inputs, zeros: proves arithmetic, not accuracy)"


@pytest.mark.parametrize(
    ("cases", "unjudged", "verdict", "code"),
    [
        ([{}, {}], 0, "passed", ExitCode.OK),
        ([{"made_inputs": "zeros"}, {}, {"made_inputs": "random inputs"}], 0, PROVES, ExitCode.OK),
        ([{}, FAILED], 0, "FAILED", ExitCode.FAILED),
        ([], 0, "FAILED (no case passed, so the run proves nothing)", ExitCode.FAILED),
        ([{}, {"lacks": "a phone"}], 0, "NOT RUN", ExitCode.ENVIRONMENT),
        ([LACKS], 0, "NOT RUN", ExitCode.ENVIRONMENT),
        ([LACKS, FAILED], 0, "FAILED", ExitCode.FAILED),
        ([FAILED], 1, "CUT SHORT (1 case was not judged)", ExitCode.INTERRUPTED),
        ([LACKS], 2, "CUT SHORT (2 cases were not judged)", ExitCode.INTERRUPTED),
    ],
)
def test_a_verdict_states_why_a_run_did_not_pass_and_what_a_pass_proves(
    report: Report, cases: list[dict[str, Any]], unjudged: int, verdict: str, code: ExitCode
) -> None:
    changed = tuple(change_case(report.cases[0], **case) for case in cases)
    run = replace(report, cases=changed, unjudged=unjudged).recounted
    assert (run.verdict, run.exit_code) == (verdict, code)
    assert run.ok is (code is ExitCode.OK)
    assert (run.summary.wall_s, run.summary.phases) == (94.2, report.summary.phases)


def test_limits_of_a_model_override_those_of_its_scheme(report: Report) -> None:
    case = report.cases[0]
    general = report.threshold_for(case)
    assert general is not None
    limits_of_model = replace(general, model=case.model, min_sqnr_db=12.0, reason="tanh")
    assert (
        replace(report, thresholds=(*report.thresholds, limits_of_model)).threshold_for(case)
        is limits_of_model
    )
    assert replace(report, thresholds=()).threshold_for(case) is None


def test_an_unwritable_or_missing_report_is_an_error(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError):
        write_report(report, tmp_path / "file" / "reports")
    with pytest.raises(UsageError):
        read_report(tmp_path / "report.json")


def test_a_failed_write_leaves_the_earlier_report(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(report, tmp_path)
    before = (tmp_path / "report.json").read_bytes()

    def fill_disk(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_disk)
    with pytest.raises(StoreError, match="No space left"):
        write_report(report, tmp_path)
    assert (tmp_path / "report.json").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


# -- the moment, the machine, and figures as text --------------------------------------------------


def test_source_date_epoch_replaces_the_start_time_of_a_report() -> None:
    assert started_now({"SOURCE_DATE_EPOCH": "1700000000"}) == "2023-11-14T22:13:20Z"
    assert started_now({"SOURCE_DATE_EPOCH": "-62000000000"}) == "0005-04-19T09:46:40Z"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", started_now({}))
    for text in ("yesterday", "1e9", "9" * 30, "-99999999999999"):
        with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
            started_now({"SOURCE_DATE_EPOCH": text})


def test_a_log_line_of_a_report_is_one_line_without_commands() -> None:
    assert clean_log_line(" a\n##[error]b ##vso[task]c ") == "a # #[error]b # #vso[task]c"


@pytest.mark.parametrize(
    ("figures", "direction"),
    [
        ({}, 0),
        ({"pte_bytes": 9, "sources": ("weights",)}, 0),
        ({"sqnr_db": -0.1}, -1),
        ({"sqnr_db": 0.1}, 1),
        ({"metric": -0.1, "sqnr_db": 9.0}, -1),
        ({"metric": 0.1, "sqnr_db": -9.0}, 1),
        ({"fallback_nodes": 1, "metric": 0.1, "sqnr_db": 9.0}, -1),
        ({"fallback_nodes": -1, "metric": -0.1, "sqnr_db": -9.0}, 1),
        ({"now": Status.FAILED, "fallback_nodes": -1, "metric": 0.1}, -1),
        ({"before": Status.FAILED, "fallback_nodes": 1, "metric": -0.1}, 1),
    ],
)
def test_a_changed_case_is_better_or_worse_by_its_most_important_figure(
    figures: dict[str, Any], direction: int
) -> None:
    name = CaseName(model="m", scheme="8a8w", soc="SM8650")
    unchanged = {"before": Status.PASSED, "now": Status.PASSED}
    assert Change(case=name, **{**unchanged, **figures}).direction == direction


@pytest.mark.parametrize(
    ("number", "jobs", "text"),
    [
        (1, 4, "1 case"),
        (3, 4, "3 cases, 3 at a time"),
        (3, 1, "3 cases, 1 at a time"),
        (5, 2, "5 cases, 2 at a time"),
    ],
)
def test_a_run_has_no_more_cases_at_a_time_than_it_has(number: int, jobs: int, text: str) -> None:
    assert count_cases(number, jobs) == text


def test_a_folder_of_reports_is_refused_with_its_reports(report: Report, tmp_path: Path) -> None:
    for name in ("test_emulator", "mend"):
        write_report(report, tmp_path / name)
    with pytest.raises(UsageError) as caught:
        read_report(tmp_path)
    expected = f"pass {tmp_path / 'mend'} or {tmp_path / 'test_emulator'}"
    assert caught.value.fix == expected
