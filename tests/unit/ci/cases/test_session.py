from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ci.cases.pipeline import CaseResult
from ci.cases.session import (
    CaseQueue,
    Phases,
    clear_beside,
    compare_schemes,
    make_report,
    report_unrun,
    run_cases,
)
from ci.cases.spec import CaseSpec
from ci.executorch.toolchain import name_toolchain
from ci.facts.finding import Certainty, advise
from ci.facts.kinds import INCONCLUSIVE, NO_OUTPUTS, NOISE, QUANTIZED_BADLY, FindingId
from ci.judging.causes import NOT_TRIED
from ci.models.schemes import Scheme
from ci.report.schema import Case, JudgementFacts, RunFacts, Status, Tool
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.console.user_folder import UserFolder
from provisioning.errors import ExitCode
from tests.build.setups import make_options
from tests.stand_ins.reports import say

TOOLS = (Tool(name="qnn-runtime", version="2.49.40"),)


def test_another_adaptor_on_pythonpath_changes_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment("emulator", (), {})
    keys = {name_toolchain(TOOLS, environment)}
    adaptor = tmp_path / "executorch/backends/qualcomm/python/PyQnnManagerAdaptor.so"
    adaptor.parent.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    for content in (b"one", b"another"):
        adaptor.write_bytes(content)
        keys.add(name_toolchain(TOOLS, environment))
    assert len(keys) == 3


class StubRun:
    """A case that ends with a result, or as if a signal came while it ran."""

    def __init__(self, spec: CaseSpec, result: CaseResult | None) -> None:
        self.spec, self.result = spec, result

    def run(self) -> CaseResult:
        if self.result is None:
            raise KeyboardInterrupt
        return self.result


class StubPool:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("judged", [0, 2])
def test_an_interrupted_run_keeps_the_cases_that_were_judged(judged: int) -> None:
    done = CaseResult(
        Case(
            model="mlp", scheme="fp16", soc="SM8650", judgement=JudgementFacts(status=Status.PASSED)
        )
    )
    specs = [CaseSpec("lstm", Scheme.FP16, f"S{number}") for number in range(judged)]
    runs: Any = [StubRun(spec, done) for spec in specs]
    runs.append(StubRun(CaseSpec("mlp", Scheme.FP16, "SM8650"), None))
    pool: Any = StubPool()
    if not judged:
        with pytest.raises(KeyboardInterrupt):
            run_cases(runs, pool, 1, Progress(io.StringIO()))
    else:
        assert run_cases(runs, pool, 1, Progress(io.StringIO())) == [done] * judged
    assert pool.closed


def test_a_thread_keeps_its_model_and_then_helps_another_one() -> None:
    class Run:
        def __init__(self, model: str, scheme: Scheme) -> None:
            self.spec = CaseSpec(model, scheme, "SM8650")

    schemes = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8)
    runs: list[Any] = [Run(model, scheme) for model in ("mlp", "lstm") for scheme in schemes]
    queue = CaseQueue(runs)
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        turns = (first, second, first, first, second, first)
        taken = [thread.submit(queue.take).result().spec for thread in turns]
        with pytest.raises(IndexError):
            first.submit(queue.take).result()
    assert [(spec.model, spec.scheme.value) for spec in taken] == [
        ("lstm", "16a8w"),
        ("mlp", "16a8w"),
        ("lstm", "8a8w"),
        ("lstm", "fp16"),
        ("mlp", "8a8w"),
        ("mlp", "fp16"),  # the first thread helps, since no model is left without a thread
    ]


def test_a_session_s_report_counts_the_cases_that_it_did_not_judge() -> None:
    schemes = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8)
    specs = [CaseSpec("mlp", scheme, "SM8650") for scheme in schemes]
    options, phases = make_options(specs=specs), Phases(Progress(io.StringIO()))
    passed = CaseResult(
        Case(
            model="mlp", scheme="fp16", soc="SM8650", judgement=JudgementFacts(status=Status.PASSED)
        )
    )
    cut = make_report(options, TOOLS, [passed], phases)
    assert (cut.unjudged, cut.ok, cut.exit_code) == (2, False, ExitCode.INTERRUPTED)
    assert "2 cases" in cut.verdict
    complete = make_report(options, TOOLS, [passed] * 3, phases)
    assert (complete.unjudged, complete.ok, complete.exit_code) == (0, True, ExitCode.OK)
    assert [threshold.scheme for threshold in complete.thresholds] == [
        scheme.value for scheme in schemes
    ]


def test_a_session_that_cannot_run_here_reports_each_case_as_unsupported(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    specs = [CaseSpec("mlp", Scheme.FP16, soc) for soc in ("SM8650", "SM8750")]
    options, phases = make_options(specs=specs, files_directory=beside), Phases(Progress())
    (finding,) = say("it needs AVX")
    report = report_unrun(options, TOOLS, phases, finding, runner="cpp", library="libc++")
    assert report.cases == tuple(
        Case(
            model="mlp",
            scheme="fp16",
            soc=spec.soc,
            judgement=JudgementFacts(status=Status.UNSUPPORTED, findings=say("it needs AVX")),
            run=RunFacts(lacks="libc++", runner="cpp"),
        )
        for spec in specs
    )
    assert beside.exists()  # it is not this project's
    with UserFolder(beside).stage() as scratch:
        (scratch / "profile.csv").touch()
        UserFolder(beside).publish(scratch)
    (beside / "mine.txt").touch()
    clear_beside(options)
    assert [path.name for path in beside.iterdir()] == ["mine.txt"]
    clear_beside(replace(options, files_directory=None))  # nothing is removed


@pytest.mark.parametrize(
    ("other_schemes", "note"),
    [
        ({"fp16": Status.PASSED}, "fix: lower it in fp16, which passed in this run"),
        ({"fp16": Status.FAILED}, "no scheme of this run passed: 8a8w, fp16"),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("kind", [NO_OUTPUTS, INCONCLUSIVE])
def test_a_failure_names_the_schemes_that_passed(
    kind: FindingId, other_schemes: dict[str, Status], note: str
) -> None:
    cases = [
        Case(
            model="m",
            scheme=scheme,
            soc="S",
            judgement=JudgementFacts(status=status, findings=(kind.find("it died"),)),
        )
        for scheme, status in {"8a8w": Status.FAILED, **other_schemes}.items()
    ]
    first, *_ = compare_schemes([*map(CaseResult, cases)])
    assert note in first.judgement.findings[0].text
    assert ("this run" in first.judgement.findings[0].text) == bool(note)


@pytest.mark.parametrize(
    ("scheme", "peer_status", "kind", "claim"),
    [
        ("16a8w", Status.PASSED, NOISE, "all are wrong; fp16 is right"),
        ("16a8w", Status.FAILED, NOISE, "all are wrong; in this run, fp16 failed, too"),
        ("16a8w", Status.FAILED, QUANTIZED_BADLY, "all are wrong; fp16 is right"),
        ("asis", Status.PASSED, NOISE, "all are wrong; fp16 is right"),
    ],
)
def test_a_known_fault_says_nothing_of_other_schemes_that_the_run_contradicts(
    scheme: str, peer_status: Status, kind: FindingId, claim: str
) -> None:
    advice = advise("all are wrong", name="log-in-16-bits", certainty=Certainty.KNOWN)
    wrong = Case(
        model="m",
        scheme=scheme,
        soc="S",
        judgement=JudgementFacts(
            status=Status.FAILED, findings=(NOISE.find("it is off", advice=advice),)
        ),
    )
    findings = () if peer_status is Status.PASSED else (kind.find("it is off"),)
    peer = Case(
        model="m",
        scheme="fp16",
        soc="S",
        judgement=JudgementFacts(status=peer_status, findings=findings),
    )
    claims = {"log-in-16-bits": ("fp16 is right", ("16a8w", "16a4w"))}
    first, _ = compare_schemes([CaseResult(wrong, claims=claims), CaseResult(peer)])
    assert first.judgement.findings[0].causes[0].text == claim


@pytest.mark.parametrize(
    ("remedy", "shown"),
    [
        ("use u8_channel or fp16", "use u8_channel or fp16 (in this run, u8_channel failed, too)"),
        ("use fp16", "use fp16"),
        ("give the sum more bits than u8 has", "give the sum more bits than u8 has"),
        ('add base = "u8_channel"', 'add base = "u8_channel"'),
        ("type `mend --scheme u8_channel`", "type `mend --scheme u8_channel`"),
    ],
)
def test_a_remedy_says_that_a_scheme_that_it_names_failed_in_this_run(
    remedy: str, shown: str
) -> None:
    cases = [
        Case(
            model="m",
            scheme=scheme,
            soc="S",
            judgement=JudgementFacts(
                status=Status.FAILED,
                findings=(NOISE.find("it is off", advice=advise("why", remedy)),),
            ),
        )
        for scheme in ("u8", "u8_channel")
    ]
    first, _ = compare_schemes([*map(CaseResult, cases)])
    assert [fix.text for fix in first.judgement.findings[0].remedies] == [shown]


@pytest.mark.parametrize(
    ("warning", "shown"),
    [
        ("5 dB in fp16; fix: use fp16", "5 dB in fp16; fix: use fp16 (in this run, fp16 failed)"),
        ("5 dB in fp16; fix: scale it", "5 dB in fp16; fix: scale it"),
    ],
)
def test_the_remedy_of_a_warning_says_so_too(warning: str, shown: str) -> None:
    judgements = [
        JudgementFacts(status=Status.PASSED, warnings=(warning,)),
        JudgementFacts(status=Status.FAILED, findings=(NOISE.find("it is off"),)),
    ]
    cases = [
        Case(model="m", scheme=scheme, soc="S", judgement=judgement)
        for scheme, judgement in zip(("u16a8w", "fp16"), judgements, strict=True)
    ]
    first, _ = compare_schemes([*map(CaseResult, cases)])
    assert first.judgement.warnings == (shown,)


@pytest.mark.parametrize(
    ("scheme", "status", "shown"),
    [
        ("16a8w", Status.FAILED, "use 16 bits (in this run, 16a8w failed)"),
        ("u16a8w", Status.PASSED, "use 16 bits (in this run, u16a8w passed)"),
        ("8a8w", Status.FAILED, "use 16 bits, which was not tried"),
        ("16a8w", Status.UNSUPPORTED, "use 16 bits, which was not tried"),
    ],
)
def test_a_remedy_of_16_bits_says_how_they_ended_in_this_run(
    scheme: str, status: Status, shown: str
) -> None:
    wrong = JudgementFacts(
        status=Status.FAILED,
        findings=(NOISE.find("it is off", advice=advise("why", f"use 16 bits{NOT_TRIED}")),),
    )
    cases = [
        Case(model="m", scheme="fp16", soc="S", judgement=wrong),
        Case(model="m", scheme=scheme, soc="S", judgement=replace_status(wrong, status)),
    ]
    first, _ = compare_schemes([*map(CaseResult, cases)])
    assert [fix.text for fix in first.judgement.findings[0].remedies][-1] == shown


def replace_status(judgement: JudgementFacts, status: Status) -> JudgementFacts:
    return structs.replace(judgement, status=status, findings=())
