"""Figures that are recorded by toolchain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ci.cases.baselines import (
    Baseline,
    find_changes,
    read_baselines,
    record_baselines,
    users_folder,
)
from ci.cases.policy import read_emulator_policy
from ci.cases.session import Phases, check_data, find_baselines, locate_error, run_session
from ci.cases.spec import CaseSpec
from ci.judging.verdict import CaseFigures
from ci.models.schemes import Scheme
from ci.models.user_models import ModelEntry, Source
from ci.report.schema import (
    Case,
    Footprint,
    JudgementFacts,
    OperatorCount,
    ProgramFacts,
    Status,
    Tool,
)
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.reader import MANIFESTS_VARIABLE
from tests.build.setups import make_options, make_setup
from tests.stand_ins.lanes import FloatEngine, InlinePool
from tests.stand_ins.reports import change_case, make_report

TOOLS = (
    Tool(name="libcxx", version="1"),
    Tool(name="qnn-runtime", version="9.1"),
    Tool(name="torch", version="2.0"),
    Tool(name="executorch", version="9.2"),
)
BASELINE = Baseline(30.0, 35.0)
POLICY = read_emulator_policy()
OWN = msgspec.structs.replace(POLICY, models={"net": ModelEntry("net.py:f")})


@pytest.mark.parametrize(
    ("sqnr_db", "quantized", "words"),
    [
        (27.0, 32.0, []),
        (33.0, 38.0, []),
        (26.9, 35.0, ["26.9 dB against the float32 model is 3.1 dB below the 30.0 dB"]),
        (30.0, 31.5, ["31.5 dB against the quantized model is 3.5 dB below the 35.0 dB"]),
        (60.0, 35.0, ["60.0 dB against the float32 model is 30.0 dB above the 30.0 dB"]),
        (float("-inf"), 35.0, ["inf dB below"]),
        (float("nan"), 35.0, ["nan dB against the float32 model"]),
    ],
)
def test_a_figure_that_moved_by_more_than_3_db_is_a_change(
    sqnr_db: float, quantized: float, words: list[str]
) -> None:
    changes = list(find_changes(CaseFigures(sqnr_db, quantized), BASELINE))
    assert len(changes) == len(words)
    assert all(word in reason for word, reason in zip(words, changes, strict=True))
    assert list(find_changes(CaseFigures(30.0), Baseline(30.0))) == []


def test_recorded_baselines_are_read_back_for_their_toolchain_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path))
    assert read_baselines(TOOLS) == {}
    case = Case(
        model="mlp",
        scheme="8a8w",
        soc="SM8650",
        judgement=JudgementFacts(status=Status.PASSED, sqnr_db=33.46, sqnr_db_quantized=32.44),
        program=ProgramFacts(
            footprint=Footprint(
                program_bytes=64_000,
                spill_bytes=0,
                lowering_memory_bytes=1,
                operators=(OperatorCount(op="add", npu=1),),
            )
        ),
    )
    plain = change_case(case, sqnr_db_quantized=None, footprint=None)
    other_scheme = change_case(plain, scheme="fp16", sqnr_db=64.3)
    failed = change_case(case, scheme="16a8w", status=Status.FAILED)
    users = msgspec.structs.replace(case, model="/home/me/net.py:factory")
    (path,) = record_baselines(make_report([case, failed, users], toolchain=TOOLS))
    assert path == tmp_path / "baselines" / "executorch-9.2-qnn-runtime-9.1.toml"
    record_baselines(make_report([other_scheme], toolchain=TOOLS))
    assert read_baselines(TOOLS) == {
        # Without figures that vary from run to run, and without other fields.
        "mlp 8a8w SM8650": Baseline(33.5, 32.4, Footprint(program_bytes=64_000, spill_bytes=0)),
        "mlp fp16 SM8650": Baseline(64.3),
    }
    (path,) = record_baselines(
        make_report([other_scheme], toolchain=TOOLS), tmp_path / "own", ["mlp"]
    )
    assert path.parent == tmp_path / "own"  # a policy's model of the suite's name
    assert read_baselines(TOOLS, without=["mlp"]) == {}
    record_baselines(make_report([change_case(other_scheme, sqnr_db=61.0)], toolchain=TOOLS))
    assert read_baselines(TOOLS)["mlp fp16 SM8650"] == Baseline(61.0)
    assert read_baselines(TOOLS)["mlp 8a8w SM8650"].sqnr_db == 33.5
    newer = (*TOOLS[:3], Tool(name="executorch", version="9.3"))
    assert read_baselines(newer) == {}


def test_figures_of_a_policy_s_models_and_of_another_backend_are_recorded_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path / "manifests"))
    folder = users_folder(tmp_path / "qnn.toml")
    assert folder == tmp_path / "qnn-baselines"
    for backend, model, sqnr_db in (
        *(("htp", "net", 30.0), ("htp", "other", 30.5), ("gpu", "net", 60.0)),
        *(("htp", "net", None), ("gpu", "mlp", 61.0), ("htp", "mlp", 31.0)),
    ):
        scheme = "8a8w" if sqnr_db else "fp16"
        case = Case(
            model=model,
            scheme=scheme,
            soc="SM8650",
            judgement=JudgementFacts(status=Status.PASSED, sqnr_db=sqnr_db),
        )
        report = msgspec.structs.replace(make_report([case], toolchain=TOOLS), backend=backend)
        record_baselines(report, folder)
    assert read_baselines(TOOLS, folder=folder) == {
        "net 8a8w SM8650": Baseline(30.0),
        "other 8a8w SM8650": Baseline(30.5),
    }
    assert read_baselines(TOOLS) == {"mlp 8a8w SM8650": Baseline(31.0)}
    assert read_baselines(TOOLS, "gpu") == {"mlp 8a8w SM8650": Baseline(61.0)}
    assert read_baselines(TOOLS, "gpu", folder) == {"net 8a8w SM8650": Baseline(60.0)}


def ask(*models: str) -> list[CaseSpec]:
    return [CaseSpec(model, Scheme.A8W8, "SM8650") for model in models]


def test_data_that_does_not_fit_its_model_ends_a_session_before_any_case(tmp_path: Path) -> None:
    class Refusing(FloatEngine):
        def read_data(self, spec: CaseSpec) -> int:
            raise UsageError(f"inputs: {spec.source.inputs} is too short", fix="a longer one")

    specs = ask("net")
    with_inputs = [replace(spec, source=Source("net.py:f", inputs="x.npy")) for spec in specs]
    engine = Refusing(lambda x: x, [])
    pool, phases = InlinePool(), Phases(Progress())
    refused = make_setup(tmp_path, engine, None, pool, specs=with_inputs)
    refused = replace(refused, options=replace(refused.options, policy=OWN))
    with pytest.raises(UsageError, match=r"^models\.net\.inputs: x\.npy is too short") as caught:
        run_session(refused, phases)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "a longer one" in str(caught.value)
    assert not engine.compiled
    check_data(make_setup(tmp_path, engine, None, pool, specs=specs))  # the policy gives none


@pytest.mark.parametrize(
    ("message", "place", "shown"),
    [
        ("inputs: x.npy is short", "models.net", "models.net.inputs: x.npy is short"),
        ("metric.labels: y has rows", "models.net", "models.net.metric.labels: y has rows"),
        ("/dir/net.npz is short", "models.net", "models.net: /dir/net.npz is short"),
        ("net.py: is broken", "models.net", "models.net: net.py: is broken"),
        ("/dir/net.npz is short", "net.onnx", "net.onnx: /dir/net.npz is short"),
        ("calibration: x.npy is short", "net.py:f", "net.py:f.calibration: x.npy is short"),
    ],
)
def test_a_message_about_data_separates_the_key_from_the_path(
    message: str, place: str, shown: str
) -> None:
    located = locate_error(UsageError(message, why="its shape", fix="another one"), place)
    assert (located.what, located.why, located.fix) == (shown, "its shape", "another one")


def test_a_run_is_compared_with_the_figures_of_its_own_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without figures of its toolchain, the run names the toolchain whose figures exist."""
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path / "manifests"))
    folder = tmp_path / "qnn-baselines"

    def find(*models: str, **options: Any) -> tuple[Mapping[str, Baseline], bool]:
        return find_baselines(
            make_options(policy=POLICY, specs=ask(*models), baselines=folder, **options), TOOLS
        )

    assert find("net") == ({}, True)
    assert find("mlp") == ({}, False)
    case = Case(
        model="net",
        scheme="8a8w",
        soc="SM8650",
        judgement=JudgementFacts(status=Status.PASSED, sqnr_db=30.0),
    )
    suite = msgspec.structs.replace(case, model="mlp")
    record_baselines(make_report([case, suite], toolchain=TOOLS), folder)
    of_net = {"net 8a8w SM8650": Baseline(30.0)}
    assert find("net") == (of_net, True)
    assert find("net", "mlp")[1]
    (suite_file,) = (tmp_path / "manifests" / "baselines").iterdir()
    away = suite_file.rename(tmp_path / suite_file.name)
    assert find("net", "mlp") == (of_net, False)
    away.rename(suite_file)
    of_net_and_suite = of_net | {"mlp 8a8w SM8650": Baseline(30.0)}
    assert find("net", "mlp") == (of_net_and_suite, True)
    assert find("net", record=True) == ({}, True)
    (file,) = folder.iterdir()
    file.rename(file.with_name("executorch-9.1-qnn-runtime-9.1.toml"))
    assert find("net") == ({}, False)


@pytest.mark.parametrize(
    ("lane", "name", "version"),
    [("emulator", "executorch", "1.5.1"), ("onnx", "onnxruntime", "1.32.0")],
)
def test_the_committed_figures_cover_the_suite(lane: str, name: str, version: str) -> None:
    tools = (
        Tool(name="qnn-runtime", version="2.49.40"),
        Tool(name="onnxruntime-qnn", version="2.5.0"),
        Tool(name=name, version=version),
    )
    suite = read_emulator_policy(lane=lane).suite
    suite_cases = {
        f"{model} {scheme.value} SM8650" for model, schemes in suite.items() for scheme in schemes
    }
    assert read_baselines(tools).keys() == suite_cases
