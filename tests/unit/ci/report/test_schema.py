from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from ci.report.schema import Case, Control, Phase, Report, Status, make_json_schema, summarize
from ci.report.write import encode_report, read_report, report_data, write_report
from provisioning.errors import StoreError, UsageError

SCHEMA = Path(__file__).parents[4] / "docs" / "schemas" / "report.schema.json"


class Scalar:
    """A number as numpy and torch wrap it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


def committed_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return schema


def test_the_committed_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(committed_schema())


def test_the_committed_schema_is_what_the_code_gives() -> None:
    assert committed_schema() == make_json_schema(), (
        "run: python -m ci report --schema > docs/schemas/report.schema.json"
    )


@pytest.mark.parametrize("name", ["report", "troubled", "hostile"])
def test_reports_fit_the_schema_and_come_back_equal(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    report: Report = request.getfixturevalue(name)
    write_report(report, tmp_path / "new" / "directory")
    path = tmp_path / "new" / "directory" / "report.json"
    jsonschema.Draft202012Validator(committed_schema()).validate(json.loads(path.read_bytes()))
    assert read_report(path) == read_report(path.parent) == report
    assert not list(path.parent.glob(".*"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("status", "fine"), ("sqnr_db", "41"), ("pte_bytes", -1), ("cosine", 1.2), ("surprise", 1)],
)
def test_the_schema_refuses_what_the_reader_refuses(
    report: Report, field: str, value: Any, tmp_path: Path
) -> None:
    data = report_data(report)
    data["cases"][0][field] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, committed_schema())
    with pytest.raises(UsageError, match="the format of the report"):
        read_report(path)


def test_what_is_not_finite_is_null_and_scalars_are_plain(report: Report) -> None:
    case = Case(
        model="a\udc80b",
        scheme="fp16",
        soc="SM8650",
        status=Status.PASSED,
        sqnr_db=float("inf"),
        cosine=float("nan"),
        max_abs=Scalar(0.25),  # type: ignore[arg-type]
        cosine_quantized=Scalar(float("nan")),  # type: ignore[arg-type]
        pte_bytes=Scalar(7),  # type: ignore[arg-type]
    )
    data = report_data(msgspec.structs.replace(report, cases=(case,)))["cases"][0]
    assert (data["sqnr_db"], data["cosine"], data["cosine_quantized"]) == (None, None, None)
    assert (data["max_abs"], data["pte_bytes"], data["model"]) == (0.25, 7, "a?b")
    assert case.status is Status.PASSED


def test_a_report_has_the_same_bytes_every_time(report: Report) -> None:
    assert encode_report(report) == encode_report(report)
    assert encode_report(report).endswith(b"}\n")


def test_counts_and_verdict(report: Report, troubled: Report) -> None:
    counts = troubled.summary
    assert (counts.passed, counts.failed, counts.unsupported) == (1, 2, 1)
    assert (counts.controls, counts.controls_passed) == (8, 1)
    assert report.ok
    assert not troubled.ok


def test_nothing_passed_a_failure_or_a_control_spoils_the_verdict(
    report: Report, controls: list[Control]
) -> None:
    for cases, gate in [
        ((), controls),
        (change(report, status=Status.FAILED), controls),
        (report.cases, [msgspec.structs.replace(controls[0], rejected=False)]),
    ]:
        summary = summarize(cases, gate, 1.0, [Phase(name="lower", seconds=1.0)])
        assert not msgspec.structs.replace(report, summary=summary).ok


def change(report: Report, **fields: Any) -> tuple[Case, ...]:
    first, *rest = report.cases
    return (msgspec.structs.replace(first, **fields), *rest)


def test_the_rule_of_a_model_comes_before_that_of_its_scheme(report: Report) -> None:
    case = report.cases[0]
    general = report.threshold_for(case)
    assert general is not None
    own = msgspec.structs.replace(general, model=case.model, min_sqnr_db=12.0, reason="tanh")
    ruled = msgspec.structs.replace(report, thresholds=(*report.thresholds, own))
    assert ruled.threshold_for(case) is own
    assert msgspec.structs.replace(report, thresholds=()).threshold_for(case) is None


def test_a_directory_that_cannot_be_written_is_an_error_of_the_tree(
    report: Report, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        write_report(report, tmp_path / "file" / "reports")


def test_a_missing_report_is_an_error_of_the_tree(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the report"):
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
