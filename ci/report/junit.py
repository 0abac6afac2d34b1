"""Render the report as JUnit XML, with only those elements that Jenkins, GitLab and GitHub all
read.

There is no standard. The elements and attributes are from junit-10.xsd of the Jenkins JUnit
plug-in. Each case is a test case in a suite. The suite is named after the session, and after the
backend unless that is HTP. Each control is a test case of a second suite, whose name ends with
``.controls``.
An unsupported case is skipped, or an error if this machine lacks something that the case needs. A
case is also an error if this project itself failed.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from ci.report.columns import KEYS, columns_of, name_report
from ci.report.schema import Case, Report, Status
from ci.report.text import Names, describe_note, show_decibels
from provisioning.console.caller import translate_commands
from provisioning.console.terminal import clean

TAGS = {Status.FAILED: "failure", Status.UNSUPPORTED: "skipped"}


def render_junit(report: Report) -> bytes:
    """Return the content of junit.xml: UTF-8 with an XML declaration, indented."""
    root = ET.Element("testsuites", name=clean(report.title))
    suite = _add_suite(root, report, report.title)
    names = name_report(report)
    for case in report.cases:
        _add_case(suite, case, report, names)
    controls = _add_suite(root, report, f"{report.title}.controls")
    for control in report.controls:
        figure = f"SQNR {show_decibels(control.sqnr_db)} dB"
        _add_test(
            controls,
            names.get(control.model, control.model),
            f"{control.scheme} {control.soc} rejects {control.kind.value}",
            tag="" if control.rejected else "failure",
            message=f"the gate let wrong outputs pass: {control.kind.value}, {figure}",
            output=figure,
        )
    for element in (root, suite, controls):
        _count(element)
    root.set("time", f"{report.summary.wall_s:.3f}")
    del root.attrib["skipped"]  # the schema allows it only for a suite
    ET.indent(root, " ")
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _add_suite(root: ET.Element, report: Report, name: str) -> ET.Element:
    suite = ET.SubElement(root, "testsuite", name=clean(name), timestamp=report.started[:-1])
    properties = ET.SubElement(suite, "properties")
    for tool in report.toolchain:
        value = f"{tool.version} sha256:{tool.sha256}" if tool.sha256 else tool.version
        ET.SubElement(properties, "property", name=clean(tool.name), value=clean(value))
    return suite


def _add_case(suite: ET.Element, case: Case, report: Report, names: Names) -> None:
    figures = []
    for column in columns_of([case], names)[len(KEYS) :]:
        if column.is_had(case):
            hint = column.hint(case) if column.hint else ""
            hint = f" ({hint})" if hint else ""
            figures.append(f"{column.title or column.name}: {column.show(case)}{hint}")
    commands = [report.again(case)] if case.judgement.status is Status.FAILED else []
    operators = [f"on the CPU: {op.op}: {op.reason}" for op in case.unlisted_ops]
    _add_test(
        suite,
        names[case.model],
        f"{case.scheme} {case.soc}",
        tag="error"
        if case.run.lacks or case.judgement.is_defect
        else TAGS.get(case.judgement.status, ""),
        message="\n".join(
            [translate_commands(case.reason or case.judgement.status.value), *operators]
        ),
        output="\n".join(
            [
                "\n".join(figures),
                *map(translate_commands, case.judgement.warnings),
                *map(describe_note, case.judgement.noise_notes),
                *operators,
                case.run.log_tail,
                *commands,
            ]
        ).strip(),
        seconds=(case.run.wall_s or 0.0)
        + (0.0 if case.program.cached else case.program.lower_s or 0.0),
    )


def _add_test(
    suite: ET.Element,
    model: str,
    name: str,
    *,
    tag: str,
    message: str,
    output: str,
    seconds: float = 0.0,
) -> None:
    """Add a test case. ``tag`` is failure, error or skipped, or empty if the test passed."""
    group = clean(model).replace(".", "_")  # readers split a class name at its last dot
    element = ET.SubElement(
        suite,
        "testcase",
        classname=f"{suite.get('name')}.{group}",
        name=clean(name),
        time=f"{seconds:.3f}",
    )
    if tag:
        text = clean(message)
        first = text.splitlines()[0] if text else tag
        ET.SubElement(element, tag, message=first, type=tag).text = text
    ET.SubElement(element, "system-out").text = clean(output)


def _count(element: ET.Element) -> None:
    tests = [*element.iter("testcase")]
    element.set("tests", str(len(tests)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(test.find(tag) is not None for test in tests)))
    element.set("time", f"{sum(float(test.get('time', 0)) for test in tests):.3f}")
