"""Small things that a reader of a report relies on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ci.report.columns import columns_of
from ci.report.comparison import compare_case, compare_reports
from ci.report.providers import Provider, mask_secrets
from ci.report.sarif import render_artifact, render_message
from ci.report.schema import Report, Tool


def test_figures_of_the_accelerator_are_whole_numbers_of_the_case(report: Report) -> None:
    case = replace(report.cases[0], accelerator_cycles=11600000, accelerator_us=987)
    shown = {column.name: column.show(case) for column in columns_of([case])}
    assert (shown["cycles"], shown["accelerator us"]) == ("11600000", "987")


def test_a_model_s_whole_path_is_the_hint_of_its_short_name(report: Report) -> None:
    case = replace(report.cases[0], model="models/net.py:make")
    model = columns_of([case])[0]
    assert model.hint is not None
    assert model.hint(case) == "models/net.py:make"
    assert model.show(case) != "models/net.py:make"


def test_a_tool_that_came_or_went_has_no_version_on_the_other_side(report: Report) -> None:
    base, now = (replace(report, toolchain=(Tool(name=name, version="1"),)) for name in "ab")
    tools = {one.name: (one.before, one.now) for one in compare_reports(base, now).tools}
    assert tools == {"a": ("1", ""), "b": ("", "1")}


def test_a_metric_is_compared_with_the_same_metric_only(report: Report) -> None:
    before, now = (
        replace(report.cases[0], metric=value, metric_name="top1") for value in (0.9, 0.7)
    )
    assert compare_case(before, now, same_host=True).metric == pytest.approx(-0.2)
    other = replace(now, metric_name="word errors")
    assert compare_case(before, other, same_host=True).metric is None


def test_a_loss_of_sqnr_is_a_difference_as_a_gain_is(report: Report) -> None:
    cases = [replace(report.cases[0], sqnr_db=value) for value in (40.0, 31.0)]
    changes = [compare_case(*pair, same_host=True).sqnr_db for pair in (cases, cases[::-1])]
    assert changes == [-9.0, 9.0]


@pytest.mark.parametrize(("environ", "masks"), [({"GITHUB_ACTIONS": "true"}, True), ({}, False)])
def test_secrets_are_masked_where_github_reads_the_log(
    environ: dict[str, str], masks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    mask_secrets(Provider(environ), {"QNN_CI_BEARER_TOKENS": "a.example=secret"})
    assert ("::add-mask::secret" in capsys.readouterr().err) is masks


def test_sarif_names_files_and_doubles_braces() -> None:
    assert render_artifact("/a b.py") == {"uri": "file:///a%20b.py"}
    assert render_artifact("a.py")["uri"] == "a.py"
    assert render_message("{x}") == {"text": "{{x}}"}
