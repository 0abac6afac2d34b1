"""A program of a few bytes, the report of its case, and the statement of it."""

from __future__ import annotations

import hashlib
from typing import Any

from ci.cases.policy import read_emulator_policy
from ci.report.evidence import POLICY, describe_result
from ci.report.schema import (
    AskedFacts,
    Case,
    Control,
    ControlKind,
    JudgementFacts,
    ProgramFacts,
    ProgramFile,
    Report,
    RunFacts,
    Status,
    Tool,
)
from tests.stand_ins.lanes import SPEC
from tests.stand_ins.reports import change_case, make_report

BUILD = "v2.49.40.260810104044"
PROGRAM = f"a program of {BUILD}.".encode()
SHA256 = hashlib.sha256(PROGRAM).hexdigest()
SOLD = ("mlp", "8a8w", "SM8650")


def make(**changes: Any) -> Report:
    """A report of one case."""
    model, scheme, soc = SOLD
    case = Case(
        model=model,
        scheme=scheme,
        soc=soc,
        judgement=JudgementFacts(status=Status.PASSED, max_abs=0.1),
        asked=AskedFacts(inputs=4),
        program=ProgramFacts(
            compiler=BUILD, files=(ProgramFile(name="program.pte", sha256=SHA256),)
        ),
        run=RunFacts(runner="python"),
    )
    controls = [
        Control(model=model, scheme=scheme, soc=soc, kind=kind, rejected=True)
        for kind in (ControlKind.ZEROS, ControlKind.GAIN)
    ]
    limits = read_emulator_policy().describe_limits([SPEC])
    tools = (Tool(name="qnn-runtime", version="2.49.40", sha256="a" * 64),)
    cases = [change_case(case, **changes)]
    return make_report(cases, controls, thresholds=limits, toolchain=tools)


def state(report: Report) -> dict[str, Any]:
    """The statement of the report's case, as JSON."""
    (case,) = report.cases
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "program.pte", "digest": {"sha256": SHA256}}],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": describe_result(report, case, "0.1.0", {POLICY: "b" * 64}),
    }
