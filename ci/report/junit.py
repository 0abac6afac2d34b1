"""Render the report as JUnit XML, with only those elements that Jenkins, GitLab and GitHub all
read.

There is no standard; the elements and attributes are those of the Jenkins JUnit plug-in's
junit-10.xsd. A case is a test case of the suite ``session``, which also names a backend other than
HTP; a control is a test case of the suite ``session.controls``. An unsupported case is skipped, or
an error if this machine lacked something.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree as ET

from ci.report.annotation import repeat_command
from ci.report.columns import COLUMNS
from ci.report.schema import Case, Control, Report, Status
from ci.report.text import show_decibels
from provisioning.console.terminal import clean

TAGS = {Status.FAILED: "failure", Status.UNSUPPORTED: "skipped"}


@dataclass(frozen=True)
class JunitCase:
    """A test case. ``tag`` is failure, error, skipped, or empty if it passed."""

    group: str
    name: str
    seconds: float
    tag: str
    message: str
    output: str


def render_junit(report: Report) -> bytes:
    """Return junit.xml: UTF-8 with an XML declaration, indented."""
    cases = [_case_entry(case, report) for case in report.cases]
    controls = [_control_entry(control) for control in report.controls]
    root = ET.Element("testsuites", name=clean(report.title))
    _count(root, [*cases, *controls], report.summary.wall_s)
    del root.attrib["skipped"]  # allowed by the schema for a suite only
    _add_suite(root, report, report.title, cases)
    _add_suite(root, report, f"{report.title}.controls", controls)
    ET.indent(root, " ")
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case_entry(case: Case, report: Report) -> JunitCase:
    seconds = (case.run_s or 0.0) + (0.0 if case.cached else case.lower_s or 0.0)
    again = [repeat_command(report, case)] if case.status is Status.FAILED else []
    operators = [f"on the CPU: {op.op}: {op.reason}" for op in case.fallback_ops]
    return JunitCase(
        group=case.model,
        name=f"{case.scheme} {case.soc}",
        seconds=seconds,
        tag="error" if case.lacks else TAGS.get(case.status, ""),
        message="\n".join([case.reason or case.status.value, *operators]),
        output="\n".join(
            [_describe(case), *case.warnings, *operators, case.log_tail, *again]
        ).strip(),
    )


def _describe(case: Case) -> str:
    parts = [
        column.told.format(column.show(case)) + (f" ({column.hint(case)})" if column.hint else "")
        for column in COLUMNS
        if column.told and column.is_had(case)
    ]
    return ", ".join(parts)


def _control_entry(control: Control) -> JunitCase:
    figure = f"SQNR {show_decibels(control.sqnr_db)} dB"
    message = f"the gate let wrong outputs pass: {control.kind.value}, {figure}"
    return JunitCase(
        group=control.model,
        name=f"{control.scheme} {control.soc} rejects {control.kind.value}",
        seconds=0.0,
        tag="" if control.rejected else "failure",
        message=message,
        output=figure,
    )


def _add_suite(root: ET.Element, report: Report, name: str, entries: list[JunitCase]) -> None:
    suite = ET.SubElement(root, "testsuite", name=clean(name), timestamp=report.started[:-1])
    _count(suite, entries, sum(entry.seconds for entry in entries))
    properties = ET.SubElement(suite, "properties")
    for tool in report.toolchain:
        value = f"{tool.version} sha256:{tool.sha256}" if tool.sha256 else tool.version
        ET.SubElement(properties, "property", name=clean(tool.name), value=clean(value))
    for entry in entries:
        _add_entry(suite, name, entry)


def _add_entry(suite: ET.Element, name: str, entry: JunitCase) -> None:
    group = clean(entry.group).replace(".", "_")  # readers split a class name at its last dot
    element = ET.SubElement(
        suite,
        "testcase",
        classname=f"{name}.{group}",
        name=clean(entry.name),
        time=f"{entry.seconds:.3f}",
    )
    if entry.tag:
        message = clean(entry.message)
        first = message.splitlines()[0] if message else entry.tag
        ET.SubElement(element, entry.tag, message=first, type=entry.tag).text = message
    ET.SubElement(element, "system-out").text = clean(entry.output)


def _count(element: ET.Element, entries: list[JunitCase], seconds: float) -> None:
    tags = [entry.tag for entry in entries]
    counts = {
        "tests": len(tags),
        "failures": tags.count("failure"),
        "errors": tags.count("error"),
        "skipped": tags.count("skipped"),
    }
    element.attrib.update({name: str(count) for name, count in counts.items()})
    element.set("time", f"{seconds:.3f}")
