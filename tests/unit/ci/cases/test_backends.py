"""--backend without torch: cases, limits, and what a run says that lacks something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.baselines import name_figures, read_baselines, record_baselines
from ci.cases.cache import programs_home
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import (
    CaseSpec,
    choose_lane,
    default_soc,
    require_backend,
    require_options,
    select_cases,
)
from ci.models.lowering_options import Choices
from ci.models.schemes import EXECUTORCH, Scheme
from ci.models.user_models import ModelEntry, Source
from ci.report.github import render_summary
from ci.report.html import render_html
from ci.report.junit import render_junit
from ci.report.merge import find_faults
from ci.report.publishing import compare_base
from ci.report.schema import Case, Report, Status, Tool
from ci.report.table import render_table
from ci.report.write import write_report
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.reader import MANIFESTS_VARIABLE
from provisioning.manifest.targets import Backend, read_backends, read_socs
from provisioning.store.collect import HOME_PARTS
from provisioning.store.store import store_home
from tests.stand_ins.reports import make_report, say
from tests.stand_ins.shards import make_cases, make_shards

OTHERS = [backend for backend in Backend if backend is not Backend.HTP]
LIBRARY = "libQnnLpai.so"
TOOLS = (Tool(name="executorch", version="9.2"), Tool(name="qnn-runtime", version="9.1"))


def make_case(status: Status = Status.PASSED, **fields: Any) -> Case:
    return Case(model="mlp", scheme="8a8w", soc="SM8850", status=status, sqnr_db=30.0, **fields)


def report_of(*cases: Case, backend: str = "lpai") -> Report:
    return replace(make_report(cases, toolchain=TOOLS), backend=backend)


LACKING = make_case(
    Status.UNSUPPORTED, findings=say(f"QNN909: {LIBRARY} is missing"), lacks=LIBRARY
)


def test_every_backend_is_described_and_judged() -> None:
    assert set(read_backends()) == set(Backend)
    policy = read_emulator_policy()
    for backend in OTHERS:
        own = policy.for_backend(backend)
        assert own.schemes == policy.backends[backend]
        assert own.limits_of("mlp", next(iter(own.schemes))).min_sqnr_db_all
    assert read_socs()[default_soc(Backend.LPAI_ARM)].lpai == 6


def test_a_lane_has_the_schemes_that_the_backend_is_judged_in() -> None:
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
def test_what_goes_with_htp_alone_is_refused(
    capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["test-emulator", *words]) == ExitCode.USAGE
    assert message in capfd.readouterr().err


def test_choices_that_ask_something_of_qnn_are_refused() -> None:
    source = Source("net.py:make", choices=Choices(saver=True, skip_ops=("aten.add",)))
    spec = CaseSpec("net", Scheme.A8W8, "SM8850", source)
    require_backend([spec], Backend.HTP)
    with pytest.raises(UsageError, match=r"models\.net\.lowering .*--backend lpai") as seen:
        require_backend([spec], Backend.LPAI)
    assert "saver" in seen.value.what
    assert "skip_ops" not in str(seen.value)
    assert seen.value.why
    plain = Source("net.py:make", choices=Choices(skip_ops=("aten.add",)))
    require_backend([CaseSpec("net", Scheme.A8W8, "SM8850", plain)], Backend.LPAI)


@pytest.mark.parametrize(
    "chosen",
    [
        {"online_prepare": True},
        {"shared_buffer": True},
        {"dump_intermediate_outputs": True},
        {"profile_level": "detailed"},
        {"saver": True},
        {"methods": ("other",)},
        {"methods": ("other",), "weight_sharing": True},
    ],
    ids=lambda chosen: [*chosen][-1],
)
def test_each_choice_that_qnn_carries_out_is_for_htp_alone(chosen: dict[str, Any]) -> None:
    source = Source("net.py:make", choices=Choices(**chosen))
    spec = CaseSpec("net", Scheme.A8W8, "SM8850", source)
    for backend in (Backend.GPU, Backend.LPAI, Backend.LPAI_ARM):
        with pytest.raises(UsageError, match=", ".join(chosen)):
            require_backend([spec], backend)


def test_the_first_soc_without_the_hardware_is_named_with_those_that_have_it() -> None:
    able = [name for name, soc in read_socs().items() if soc.lpai is not None]
    without = [name for name in read_socs() if name not in able]
    assert len(without) > 1
    specs = [CaseSpec("net", Scheme.A8W8, soc) for soc in (able[0], *without)]
    require_backend(specs, Backend.GPU)
    with pytest.raises(UsageError, match=f"{without[0]} has no LPAI block") as seen:
        require_backend(specs, Backend.LPAI)
    assert {*re.findall(r"\w+", seen.value.fix)} & {*able, *without} == {*able}


def test_htp_takes_all_of_it() -> None:
    require_options(Backend.HTP, runner="cpp", plan=True)
    require_options(Backend.GPU, runner="./on-device", plan=False)
    require_options(Backend.LPAI, runner="cpp", plan=False)


@pytest.mark.parametrize(
    ("backend", "runner", "plan", "shown"),
    [
        (Backend.LPAI, "", True, ("--plan cannot be used with --backend lpai", "HTP", "--model")),
        (
            Backend.GPU,
            "cpp",
            False,
            ("--runner cpp cannot be used with --backend gpu", "Adreno GPU", "--runner"),
        ),
    ],
)
def test_an_option_that_only_htp_has_is_refused_with_another_way(
    backend: Backend, runner: str, plan: bool, shown: tuple[str, str, str]
) -> None:
    with pytest.raises(UsageError) as caught:
        require_options(backend, runner=runner, plan=plan)
    what, why, fix = shown
    assert caught.value.what == what
    assert why in caught.value.why
    assert fix in caught.value.fix


@pytest.mark.parametrize("names", [("net",), ("other", "net", "third")])
def test_an_onnx_model_is_for_the_other_session(names: tuple[str, ...]) -> None:
    paths = {"net": "/a/net.onnx", "other": "/a/net.py:f", "third": "/a/third.onnx"}
    entries = {name: ModelEntry(paths[name]) for name in names}
    with pytest.raises(UsageError, match=r"^net is an .onnx file") as caught:
        select_cases({}, ["SM8650"], entries=entries)
    assert "test-onnx" in caught.value.fix


def test_programs_are_where_the_cache_verb_looks_for_them() -> None:
    assert programs_home().parent == store_home()
    assert programs_home().name in HOME_PARTS


def test_the_list_shows_what_the_backend_takes(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["test-emulator", "--backend", "lpai", "--list"]) == ExitCode.OK
    told = capfd.readouterr().out
    assert "schemes\n  8a8w 16a8w\n" in told
    assert "(8a8w, 16a8w)" in told
    assert "fp16" not in told


def test_a_baseline_is_of_one_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path))
    names = {name_figures(TOOLS, backend.value) for backend in Backend}
    assert len(names) == len(Backend)
    record_baselines(report_of(make_case(), backend="htp"))
    assert read_baselines(TOOLS, "lpai") == {}
    record_baselines(report_of(make_case()))
    assert list(read_baselines(TOOLS, "lpai")) == ["mlp 8a8w SM8850"]
    assert read_baselines(TOOLS, "lpai-arm") == {}


@pytest.mark.parametrize(
    ("others", "verdict", "code"),
    [
        ([], "NOT RUN", ExitCode.ENVIRONMENT),
        ([make_case()], "NOT RUN", ExitCode.ENVIRONMENT),
        ([make_case(Status.FAILED)], "FAILED", ExitCode.FAILED),
    ],
)
def test_what_could_not_run_is_never_green(
    others: list[Case], verdict: str, code: ExitCode, tmp_path: Path
) -> None:
    report = report_of(LACKING, *others)
    assert (report.ok, report.verdict, report.exit_code) == (False, verdict, code)
    junit = ET.fromstring(render_junit(report))  # noqa: S314 - our own
    assert junit.attrib["errors"] == "1"
    (error,) = junit.iter("error")
    assert LIBRARY in error.attrib["message"]
    assert f"## test_emulator for lpai: {verdict}" in render_summary(report).replace("&#95;", "_")
    text = render_table(report, colour=False, width=120)
    assert LIBRARY in text
    assert verdict in text
    assert f"<title>{verdict}: test_emulator for lpai" in render_html(report)
    write_report(report, tmp_path)
    assert main(["report", str(tmp_path)]) == code


def test_a_run_that_lacked_nothing_is_judged_as_ever() -> None:
    refused = make_case(Status.UNSUPPORTED, findings=say("known"))
    assert report_of(make_case(), refused).exit_code is ExitCode.OK
    assert report_of(refused).exit_code is ExitCode.FAILED


def test_reports_of_two_backends_are_not_put_together(tmp_path: Path) -> None:
    first, second = make_shards(make_cases("mlp fp16 SM8650", "lstm fp16 SM8650"), 2)
    faults = find_faults([first, replace(second, backend="gpu")])
    assert faults == ["they have different backends"]
    write_report(report_of(make_case(), backend="htp"), tmp_path)
    now = compare_base(report_of(make_case()), tmp_path)
    assert now.comparison is None
    assert {"htp", "lpai"} <= set(re.findall(r"\w+", now.uncompared))
