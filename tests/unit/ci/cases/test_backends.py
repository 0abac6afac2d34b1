"""--backend without torch: cases, limits, and what a run says that lacks something."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import choose_lane
from ci.models.schemes import EXECUTORCH, Scheme
from ci.report.document import render_markdown, render_text
from ci.report.html import render_html
from ci.report.junit import render_junit
from ci.report.overview import make_document
from ci.report.schema import Case, JudgementFacts, Report, Status, Tool
from ci.report.write import write_report
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.targets import Backend
from tests.stand_ins.reports import change_case, make_report, say

LIBRARY = "libQnnLpai.so"
TOOLS = (Tool(name="executorch", version="9.2"), Tool(name="qnn-runtime", version="9.1"))


def make_case(status: Status = Status.PASSED, **fields: Any) -> Case:
    case = Case(
        model="mlp",
        scheme="8a8w",
        soc="SM8850",
        judgement=JudgementFacts(status=status, sqnr_db=30.0),
    )
    return change_case(case, **fields)


def report_of(*cases: Case, backend: str = "lpai") -> Report:
    return replace(make_report(cases, toolchain=TOOLS), backend=backend)


LACKING = make_case(
    Status.UNSUPPORTED, findings=say(f"QNN909: {LIBRARY} is missing"), lacks=LIBRARY
)


def test_a_lane_offers_only_the_schemes_that_its_backend_supports() -> None:
    judged = read_emulator_policy().backends[Backend.LPAI]
    lane = choose_lane(EXECUTORCH, Backend.LPAI, judged, ["*8w"])
    assert lane.schemes == lane.default == (Scheme.A8W8, Scheme.A16W8)
    assert choose_lane(EXECUTORCH, Backend.HTP, judged, ["fp16"]) is EXECUTORCH
    for word in ("8a8w", "16A8W", "16*"):  # each of its schemes
        assert choose_lane(EXECUTORCH, Backend.LPAI, judged, [word]) == lane
    with pytest.raises(UsageError, match="fp16 cannot be used with --backend lpai"):
        choose_lane(EXECUTORCH, Backend.LPAI, judged, ["8a8w", "fp16"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "lpai", "--soc", "SM8650"], "SM8650 has no LPAI block"),
        (["--backend", "lpai", "--soc", "*"], "has no LPAI block"),
        (
            ["--backend", "lpai", "--scheme", "fp16"],
            "--scheme fp16 cannot be used with --backend lpai",
        ),
        (
            ["--backend", "gpu", "--scheme", "8A8W"],
            "--scheme 8A8W cannot be used with --backend gpu",
        ),
        (["--backend", "gpu", "--scheme", "nothing"], "no scheme 'nothing'"),
        (["--backend", "gpu", "--runner", "cpp"], "the program needs an Adreno GPU"),
        (["--backend", "lpai-arm", "--runner", "cpp"], "the program needs LPAI hardware"),
        (["--backend", "gpu", "--plan", "plan.json"], "--plan cannot be used with --backend gpu"),
    ],
)
def test_options_that_only_htp_supports_are_refused_for_other_backends(
    capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["test-emulator", *words]) == ExitCode.USAGE
    assert message in capfd.readouterr().err


REFUSED = make_case(Status.UNSUPPORTED, findings=say("known"))


@pytest.mark.parametrize(
    ("cases", "verdict", "code"),
    [
        ([LACKING], "NOT RUN", ExitCode.ENVIRONMENT),
        ([LACKING, make_case()], "NOT RUN", ExitCode.ENVIRONMENT),
        ([LACKING, make_case(Status.FAILED)], "FAILED", ExitCode.FAILED),
        ([REFUSED], "FAILED (no case passed, so the run proves nothing)", ExitCode.FAILED),
        ([REFUSED, make_case()], "passed", ExitCode.OK),
    ],
)
def test_a_report_with_cases_that_could_not_run_is_not_ok(
    cases: list[Case], verdict: str, code: ExitCode, tmp_path: Path
) -> None:
    report = report_of(*cases)
    assert (report.verdict, report.exit_code) == (verdict, code)
    junit = ET.fromstring(render_junit(report))  # noqa: S314 - our own
    errors = [element.attrib["message"] for element in junit.iter("error")]
    assert [LIBRARY in error for error in errors] == [True] * (LACKING in cases)
    document = make_document(report)
    assert f"{verdict}: " in html.unescape(render_markdown(document)).splitlines()[0]
    text = render_text(document, 120)
    assert (LIBRARY in text, verdict in text) == (LACKING in cases, True)
    assert f"<title>{verdict}: test_emulator for lpai" in render_html(report)
    write_report(report, tmp_path)
    assert main(["report", str(tmp_path)]) == code
