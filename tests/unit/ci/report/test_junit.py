from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

from ci.report.junit import render_junit
from ci.report.schema import Report
from ci.report.write import write_report


def read_suites(report: Report, directory: Path) -> dict[str, TestSuite]:
    write_report(report, directory)
    return {str(suite.name): suite for suite in JUnitXml.fromfile(str(directory / "junit.xml"))}


def parse_junit(report: Report) -> ET.Element:
    return ET.fromstring(render_junit(report))  # noqa: S314 - written a moment ago


def test_each_status_is_the_result_that_a_reader_expects(troubled: Report, tmp_path: Path) -> None:
    suite = read_suites(troubled, tmp_path)["test_emulator"]
    cases: list[TestCase] = list(suite)
    passed, failed, unsupported, error = cases
    assert passed.is_passed
    assert isinstance(failed.result[0], Failure)
    assert isinstance(unsupported.result[0], Skipped)
    assert isinstance(error.result[0], Failure)
    assert failed.result[0].message == "SQNR 3.4 dB is below 20.0 dB"
    assert "aten.cdist.default: no builder" in failed.result[0].text
    assert unsupported.result[0].message == "QNN: block quantization needs rank 4"
    assert "QnnBackend: error 14001" in error.system_out
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 2, 0, 1)


def test_controls_are_test_cases_of_their_own(troubled: Report, tmp_path: Path) -> None:
    suite = read_suites(troubled, tmp_path)["test_emulator.controls"]
    zeros, *others = suite
    assert "zeros" in zeros.result[0].message
    assert isinstance(zeros.result[0], Failure)
    assert all(control.is_passed for control in others)
    assert (suite.tests, suite.failures) == (8, 1)


def test_names_are_unique_and_counts_add_up(report: Report) -> None:
    root = parse_junit(report)
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(names) == len(set(names)) == 48
    assert names[0] == ("test_emulator.mlp", "fp16 SM8650")
    assert set(root.attrib) == {"name", "tests", "failures", "errors", "time"}
    for count in ("tests", "failures", "errors"):
        total = sum(int(suite.get(count, "")) for suite in root.iter("testsuite"))
        assert root.get(count) == str(total)


def test_a_cached_case_takes_only_its_run(report: Report) -> None:
    root = parse_junit(report)
    cached, lowered = list(root.iter("testcase"))[:2]
    assert float(cached.get("time", "")) == pytest.approx(0.004)
    assert float(lowered.get("time", "")) == pytest.approx(1.4 + 0.015)


def test_hostile_text_is_data(hostile: Report) -> None:
    root = parse_junit(hostile)
    tags = {element.tag for element in root.iter()}
    assert tags == {
        *("testsuites", "testsuite", "properties", "property", "testcase"),
        *("failure", "system-out"),
    }
    failure = next(root.iter("failure"))
    assert '<script>alert("x")</script> & ]]>' in (failure.text or "")


def test_a_dot_in_a_model_does_not_split_its_class_name(report: Report) -> None:
    case = msgspec.structs.replace(report.cases[0], model="my.py:mlp")
    root = parse_junit(msgspec.structs.replace(report, cases=(case,)))
    assert next(root.iter("testcase")).get("classname") == "test_emulator.my_py:mlp"
