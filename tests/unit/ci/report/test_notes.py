"""With which QNN programs were compiled, and whose device runs an older one."""

from __future__ import annotations

import html

from msgspec.structs import replace

from ci.report.github import render_summary
from ci.report.html import render_html
from ci.report.schema import Report, Tool
from ci.report.table import render_table
from provisioning.artifacts.choice import list_device_runtimes

BUILD = "v2.49.40.260810104044"


def test_every_view_names_the_compiler_and_warns_of_an_older_device(report: Report) -> None:
    cases = tuple(replace(case, compiler=BUILD) for case in report.cases)
    runtimes = (Tool(name="qnn-android", version="2.37.1"), Tool(name="mine", version="2.49.40"))
    report = replace(report, cases=cases, runtimes=runtimes)
    compiled, warning = report.notes
    assert compiled == f"compiled by QNN {BUILD}: 2.49.40 is the oldest that loads it"
    assert warning == "warning: older QNN does not load these programs: qnn-android 2.37.1"
    for text in (
        render_table(report, colour=False, width=120),
        html.unescape(render_summary(report)),
        render_html(report),
    ):
        assert "load these programs: qnn-android 2.37.1" in text.replace("\u2060", "")


def test_programs_that_name_no_build_get_no_note(report: Report) -> None:
    assert report.notes == ()


def test_devices_get_what_maven_has_and_what_profiles_push() -> None:
    found = dict(list_device_runtimes())
    assert found["qnn-android"] == "2.37.1"
    assert found["qnn-sdk of profile android"] == "2.37.0.250724"
