from __future__ import annotations

import io
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.cases import session
from ci.cases.baselines import Baseline
from ci.cases.pipeline import CaseResult, RunSetup, SessionOptions
from ci.cases.policy import read_emulator_policy
from ci.cases.pool import Ended
from ci.cases.session import (
    NUMERICS,
    UNRECORDED,
    Phases,
    Session,
    check_data_of,
    clear_beside,
    compare_schemes,
    describe_progress,
    list_parts,
    read_source,
    run_cases,
)
from ci.cases.spec import CaseSpec
from ci.executorch.toolchain import name_toolchain
from ci.facts.kinds import NO_OUTPUTS
from ci.models.schemes import Scheme
from ci.models.suite import expect_s
from ci.models.user_models import Metric, ModelEntry
from ci.report.schema import Case, Control, ControlKind, Host, Status, Tool
from provisioning.artifacts.choice import list_device_runtimes
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, FailedError, UsageError
from provisioning.manifest.releases import Origin
from provisioning.manifest.targets import Backend
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


def test_the_cases_that_take_longest_come_first() -> None:
    specs = [
        CaseSpec("mlp", Scheme.FP16, "SM8650"),
        CaseSpec("lstm", Scheme.FP16, "SM8650"),
        CaseSpec("lstm", Scheme.A8W8, "SM8650"),
        CaseSpec("/net.py:factory", Scheme.FP16, "SM8650"),
    ]
    spans = [expect_s(one.model, one.scheme.value) for one in specs]
    assert spans == sorted(spans)


class StubRun:
    """A case that ends with a result, or as if a signal came while it ran."""

    def __init__(self, spec: CaseSpec, result: CaseResult | None) -> None:
        self.spec, self.result = spec, result

    def run(self) -> CaseResult:
        if self.result is None:
            time.sleep(0.3)  # until the others have been noted
            raise KeyboardInterrupt
        return self.result


class StubPool:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("judged", [0, 2])
def test_an_interrupted_run_keeps_the_cases_that_were_judged(judged: int) -> None:
    done = CaseResult(Case(model="mlp", scheme="fp16", soc="SM8650", status=Status.PASSED))
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


def test_the_longest_case_runs_first_and_rows_keep_the_order_of_the_cases() -> None:
    names = ("mlp", "lstm", "resnet")
    began: list[str] = []

    class Noting(StubRun):
        def run(self) -> CaseResult:
            began.append(self.spec.model)
            return super().run()

    runs: Any = [
        Noting(
            CaseSpec(name, Scheme.A8W8, "SM8650"),
            CaseResult(Case(model=name, scheme="8a8w", soc="SM8650", status=Status.PASSED)),
        )
        for name in sorted(names, key=lambda one: expect_s(one, "8a8w"))
    ]
    pool: Any = StubPool()
    shown = io.StringIO()
    results = run_cases(runs, pool, 1, Progress(shown))
    told = re.findall(r"^  \[(\d)/3\] (\w+) ", shown.getvalue(), re.MULTILINE)
    assert [number for number, _ in told] == ["1", "2", "3"]
    assert {name for _, name in told} == {*names}
    assert [one.case.model for one in results] == [one.spec.model for one in runs]
    assert began == [one.spec.model for one in runs[::-1]]


def test_data_and_metric_of_each_model_are_checked_once_before_anything_runs(
    tmp_path: Path,
) -> None:
    metrics = {
        name: Metric(function=f"{name}.py:score", labels=f"{name}.npy", max_drop=0.1)
        for name in ("first", "twin", "second")
    }
    entries = {
        name: ModelEntry(
            "mlp",
            inputs="first.npy" if name == "twin" else f"{name}.npy",  # with another metric
            metric=metrics.get(name),
        )
        for name in ("bare", *metrics)
    }
    checked: list[tuple[str, Metric | None]] = []

    class Checking(StubPool):
        def run(self, job: Any, log: Path, timeout_s: float, **given: Any) -> Ended:
            _, spec, metric = job.args
            checked.append((spec.model, metric))
            if len(checked) == 1:  # a model whose cases fail later
                return Ended(None, "ValueError: no", "", error=FailedError("ValueError: no"))
            bad = "metric.labels: three rows" if len(checked) == 4 and given["fresh"] else ""
            return Ended(bad, "", "")

    policy = msgspec.structs.replace(read_emulator_policy(), models=entries)
    nothing: Any = None
    pool: Any = Checking()
    session = Session(
        name="test_emulator",
        specs=[
            CaseSpec("mlp", Scheme.FP16, "SM8650"),  # of the suite: it has no data
            *(
                CaseSpec(name, scheme, "SM8650", entry.make_source())
                for scheme in (Scheme.FP16, Scheme.A8W8)
                for name, entry in entries.items()
            ),
        ],
        engine=nothing,
        runner=nothing,
        parts=TOOLS,
        options=SessionOptions(policy=policy, timeout_s=9.0),
    )
    with pytest.raises(UsageError, match=r"models\.second\.metric\.labels: three rows"):
        session.check_data(pool, tmp_path)
    assert checked == [("bare", None), *metrics.items()]


def test_data_are_counted_and_a_metric_is_checked_against_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[Any] = []
    bad: list[str] = []

    def read_data(spec: CaseSpec) -> int:
        if bad:
            raise UsageError(bad[0])
        return len(spec.model)

    stand_in = SimpleNamespace(check_metric=lambda *given: checked.append(given))
    monkeypatch.setitem(sys.modules, "ci.models.user_data", stand_in)
    engine: Any = SimpleNamespace(read_data=read_data)
    metric = Metric(function="m.py:score", labels="m.npy", max_drop=0.1)
    spec = CaseSpec("net", Scheme.FP16, "SM8650")
    assert check_data_of(engine, spec, None) == ""
    assert checked == []
    assert check_data_of(engine, spec, metric) == ""
    assert checked == [(metric, 3)]
    bad.append("inputs: three rows")
    assert check_data_of(engine, spec, metric) == "inputs: three rows"


def test_a_session_s_report_counts_the_cases_that_it_did_not_judge() -> None:
    schemes = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8)
    specs = [CaseSpec("mlp", scheme, "SM8650") for scheme in schemes]
    options = SessionOptions(policy=read_emulator_policy(), timeout_s=9.0)
    nothing: Any = None
    session = Session(
        name="test_emulator",
        specs=specs,
        engine=nothing,
        runner=nothing,
        parts=TOOLS,
        options=options,
    )
    passed = CaseResult(Case(model="mlp", scheme="fp16", soc="SM8650", status=Status.PASSED))
    cut = session.make_report([passed], Phases(Progress(io.StringIO())))
    assert (cut.unjudged, cut.ok, cut.exit_code) == (2, False, ExitCode.INTERRUPTED)
    assert "2 cases" in cut.verdict
    whole = session.make_report([passed] * 3, Phases(Progress(io.StringIO())))
    assert (whole.unjudged, whole.ok, whole.exit_code) == (0, True, ExitCode.OK)
    assert [one.scheme for one in whole.thresholds] == [one.value for one in schemes]


def test_a_session_gives_each_case_its_setup_and_reports_what_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of an earlier run are removed first. A phase is measured."""
    baselines = {"mlp fp16 SM8650": Baseline(30.0)}
    monkeypatch.setattr(Session, "find_baselines", lambda _: (baselines, False))
    beside = tmp_path / "beside"
    (beside / "old").mkdir(parents=True)
    engine, runner, emulator, pool = (SimpleNamespace(name=name) for name in "ereo")
    made: list[Any] = []

    def make_run(spec: CaseSpec, setup: RunSetup) -> Any:
        made.append((spec, setup))
        row = Case(model=spec.model, scheme="fp16", soc=spec.soc, status=Status.PASSED)
        return StubRun(spec, CaseResult(row))

    options = SessionOptions(
        policy=read_emulator_policy(), timeout_s=9.0, files_directory=beside, jobs=1
    )
    given: Any = {"engine": engine, "runner": runner, "emulator": emulator, "make_run": make_run}
    specs = [CaseSpec("mlp", Scheme.FP16, soc) for soc in ("SM8650", "SM8750")]
    made_session = Session(
        name="test_emulator", specs=specs, parts=TOOLS, options=options, device="a DSP", **given
    )
    phases = Phases(Progress(io.StringIO()))
    work: Any = tmp_path / "work"
    report = made_session.run(pool, work, phases)  # type: ignore[arg-type]
    assert [spec for spec, _ in made] == specs
    assert {id(setup) for _, setup in made} == {id(made[0][1])}
    assert made[0][1] == RunSetup(
        options=options,
        engine=engine,  # type: ignore[arg-type]
        runner=runner,  # type: ignore[arg-type]
        pool=pool,  # type: ignore[arg-type]
        work=work,
        baselines=baselines,
        device="a DSP",
        emulator=emulator,  # type: ignore[arg-type]
    )
    assert not beside.exists()
    assert [one.soc for one in report.cases] == ["SM8650", "SM8750"]
    assert report.remarks == (UNRECORDED,)
    assert [one.name for one in report.summary.phases] == ["cases"]
    monkeypatch.undo()
    recorded = replace(made_session, options=replace(options, record=True))
    assert recorded.run(pool, work, phases).remarks == ()  # type: ignore[arg-type]


def test_a_session_that_cannot_run_here_reports_each_case_as_unsupported(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    options = SessionOptions(
        policy=read_emulator_policy(), timeout_s=9.0, files_directory=beside, keep=None
    )
    nothing: Any = SimpleNamespace(name="cpp")
    specs = [CaseSpec("mlp", Scheme.FP16, soc) for soc in ("SM8650", "SM8750")]
    made = Session(
        name="test_emulator",
        specs=specs,
        engine=nothing,
        runner=nothing,
        parts=TOOLS,
        options=options,
    )
    report = made.report_unrun(Phases(Progress(io.StringIO())), *say("it needs AVX"), "libc++")
    assert report.cases == tuple(
        Case(
            model="mlp",
            scheme="fp16",
            soc=one.soc,
            status=Status.UNSUPPORTED,
            findings=say("it needs AVX"),
            lacks="libc++",
            runner="cpp",
        )
        for one in specs
    )
    assert not beside.exists()
    clear_beside(replace(options, files_directory=None))  # nothing is removed


def test_phases_are_measured_even_if_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((10.0, 11.0, 12.25, 20.0004, 30.5))
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    phases = Phases(Progress(io.StringIO()), started=next(clock))
    with phases.measure("first"):
        pass
    with suppress(LookupError), phases.measure("second"):
        raise LookupError
    assert [(one.name, one.seconds) for one in phases.rows] == [("first", 1.25), ("second", 10.5)]


def test_size_and_date_of_an_adopted_library_and_every_field_of_a_tool_are_in_the_keys(
    tmp_path: Path,
) -> None:
    library = tmp_path / "lib/x86_64-linux-clang/libQnnHtp.so"
    library.parent.mkdir(parents=True)
    environment = Environment("emulator", (Provisioned("qnn", "2", tmp_path, adopted=True),), {})
    keys = set()
    for content, date in ((b"one", 1), (b"two", 2), (b"three", 2)):
        library.write_bytes(content)
        os.utime(library, ns=(date, date))
        before = name_toolchain(TOOLS, environment)
        assert name_toolchain(TOOLS, environment) == before
        keys.add(before)
    for name in ("libQnnSystem.so", "libc++.so.1"):
        (library.parent / name).write_bytes(b"")
    assert len(name_toolchain(TOOLS, environment)) == len(before) + 2
    both = tuple(Provisioned(name, "2", tmp_path, adopted=True) for name in ("qnn", "other"))
    named = name_toolchain(TOOLS, Environment("emulator", both, {}))
    assert len(named) == len(before) + 5
    (tool,) = TOOLS
    for fields in ({"name": "qnn"}, {"version": "2.50.0"}, {"sha256": "0" * 64}):
        keys.add(name_toolchain((msgspec.structs.replace(tool, **fields),), environment))
    assert len(keys) == 6


def test_a_report_names_where_it_was_made_and_each_artifact_and_runtime() -> None:
    options = SessionOptions(
        policy=msgspec.structs.replace(read_emulator_policy(), runtimes=("android", "linux")),
        timeout_s=9.0,
        command="qnn-ci test-emulator",
        backend=Backend.GPU,
    )
    nothing: Any = None
    artifacts = tuple(
        Provisioned(name, version, Path()) for name, version in (("a", "1"), ("b", "2"))
    )
    session = Session(
        name="test_other",
        specs=(),
        engine=nothing,
        runner=nothing,
        parts=list_parts(Environment("emulator", artifacts, {})),
        options=options,
        started="2026-11-20T08:00:00Z",
    )
    results = [
        CaseResult(
            Case(model=name, scheme="fp16", soc="SM8650", status=Status.PASSED),
            controls=tuple(
                Control(model=name, scheme="fp16", soc="SM8650", kind=kind, rejected=True)
                for kind in (ControlKind.ZEROS, ControlKind.NOISE)
            ),
            noted=f"note of {name}",
        )
        for name in ("first", "second")
    ]
    report = session.make_report(results, Phases(Progress(io.StringIO())), ("a remark",))
    assert (report.session, report.started) == ("test_other", "2026-11-20T08:00:00Z")
    assert (report.command, report.backend) == ("qnn-ci test-emulator", "gpu")
    assert report.host.machine
    assert report.source == read_source()
    named = [(one.name, one.version) for one in report.toolchain]
    assert named == [("a", "1"), ("b", "2"), ("numerics", NUMERICS)]
    assert [(one.name, one.version) for one in report.runtimes] == [
        (name, version) for name, version in list_device_runtimes(options.policy.runtimes)
    ]
    assert len(report.runtimes) == 2
    assert [(one.model, one.kind.value) for one in report.controls] == [
        (name, kind) for name in ("first", "second") for kind in ("zeros", "noise")
    ]
    assert report.remarks == (
        "a remark",
        "first fp16 SM8650: note of first",
        "second fp16 SM8650: note of second",
    )


def test_an_artifact_is_listed_with_the_hash_that_was_pinned() -> None:
    pinned, local = (
        Provisioned(name, "2", Path(), Origin(sha256=digest))
        for name, digest in (("a", "0" * 64), ("b", ""))
    )
    assert list_parts(Environment("emulator", (pinned, local), {})) == (
        Tool(name="a", version="2", sha256="0" * 64),
        Tool(name="b", version="2"),
    )


@pytest.mark.parametrize("status", [Status.PASSED, Status.FAILED, Status.UNSUPPORTED])
def test_a_line_of_progress_tells_all_of_a_case(status: Status) -> None:
    case = Case(
        model="nets/a.py:f",
        scheme="8a8w",
        soc="SM8650",
        status=status,
        sqnr_db=41.26,
        cached=True,
        made_inputs="random inputs",
        findings=say("first line\nsecond line"),
    )
    line = describe_progress(2, 7, "a.py:f 8a8w SM8650", CaseResult(case, remark="a remark"))
    told = f"{status.value} 41.3 dB cached random inputs a remark"
    told += "" if status is Status.PASSED else " first line"
    assert line.split() == f"[2/7] a.py:f 8a8w SM8650 {told}".split()
    assert not line.endswith(" ")
    plain = msgspec.structs.replace(
        case, sqnr_db=None, cached=False, made_inputs="", findings=say("")
    )
    line = describe_progress(1, 1, "a.py:f 8a8w SM8650", CaseResult(plain))
    assert line.split() == ["[1/1]", "a.py:f", "8a8w", "SM8650", status.value]
    assert not line.endswith(" ")


@pytest.mark.parametrize(
    ("cpuinfo", "processor", "libc"),
    [
        (
            "a: 1\nmodel name\t: The Model \nmodel name: Other\n",
            "The Model",
            ("glibc", "2.36"),
        ),
        ("", "by Python", ("", "")),
    ],
)
def test_each_fact_about_the_host_has_its_field(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, processor: str, libc: tuple[str, str]
) -> None:
    names = {"system": "Linux", "release": "6.1", "machine": "x86_64", "processor": "by Python"}
    names["python_version"] = "3.11.9"
    for name, value in names.items():
        monkeypatch.setattr(session.platform, name, lambda value=value: value)
    monkeypatch.setattr(session.platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(session, "read_window", lambda _: cpuinfo)
    monkeypatch.setattr(session, "usable_cores", lambda: 7)
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(session.os, "sysconf", sizes.__getitem__)
    assert session.read_host() == Host(
        system="Linux 6.1",
        machine="x86_64",
        processor=processor,
        cpus=7,
        memory_bytes=4_096_000,
        libc=" ".join(filter(None, libc)),
        python="3.11.9",
    )


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"fp16": Status.PASSED}, "fix: lower it in fp16, which passed in this run"),
        ({"fp16": Status.FAILED}, "no scheme of this run passed: 8a8w, fp16"),
        ({}, ""),
    ],
)
def test_a_failure_names_the_schemes_that_passed(others: dict[str, Status], told: str) -> None:
    cases = [
        Case(
            model="m", scheme=scheme, soc="S", status=status, findings=(NO_OUTPUTS.find("it died"),)
        )
        for scheme, status in {"8a8w": Status.FAILED, **others}.items()
    ]
    first, *_ = compare_schemes(cases)
    assert told in first.findings[0].text
    assert ("this run" in first.findings[0].text) == bool(told)
