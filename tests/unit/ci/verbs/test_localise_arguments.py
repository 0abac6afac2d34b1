"""What a call of localise refuses, and what it passes on to the search. Nothing is lowered."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.audit.localise import LitertParts, Localised, OnnxParts, TorchParts
from ci.cases.facts import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import read_emulator_policy
from ci.executorch.engine import ExecutorchEngine
from ci.litert.engine import LitertEngine
from ci.litert.reading import LitertFit
from ci.mend.experiments import Experiments
from ci.models.schemes import Scheme
from ci.onnx.engine import OnnxEngine
from ci.report.schema import Case, JudgementFacts, Status
from ci.verbs import localise as verb
from ci.verbs import steps
from ci.verbs.lanes import litert, onnx
from ci.verbs.lanes.lane import Plan
from provisioning.artifacts.choice import ADAPTOR_VARIABLE, SDK_VARIABLE, QnnChoice
from provisioning.errors import ExitCode
from provisioning.manifest.targets import Backend
from tests.build.setups import make_setup

ONE = ["--model", "mlp", "--scheme", "fp16"]


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Namespace]:
    """The cases that the verb searched. The environment and the search are stand-ins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in (SDK_VARIABLE, ADAPTOR_VARIABLE):
        monkeypatch.setenv(name, "")
    done: list[Namespace] = []

    class Localiser:
        def __init__(self, spec: Any, setup: Any, parts: Any, _: Any) -> None:
            self.own = {"spec": spec, "setup": setup, "parts": parts}

        def run(self, limit: int, reproducer: Path | None, suspected: Any) -> Any:
            searched = {"limit": limit, "reproducer": reproducer, "suspected": suspected}
            done.append(Namespace(**self.own, **searched))
            return Localised(model="net", scheme="fp16", soc="SM8650", wrong=False, programs=1)

    class PassedRun:
        def __init__(self, spec: Any, setup: Any) -> None:
            judged.append(setup.options)

        def run(self) -> Any:
            judgement = JudgementFacts(status=Status.PASSED)
            return Namespace(case=Case("net", "fp16", "SM8650", judgement=judgement))

    @contextmanager
    def enter(plan: Plan, options: Options, _: Any, *, offline: bool) -> Iterator[Setup]:
        entered.append((plan, offline))
        engine = ENGINES[plan.profile.partition("-")[0]]
        yield make_setup(tmp_path, engine, "the runner", "pool", options=options)

    entered.clear()
    judged.clear()
    monkeypatch.setattr(verb, "open_setup", enter)
    monkeypatch.setattr(verb, "CaseRun", PassedRun)
    monkeypatch.setattr(verb, "Localiser", Localiser)
    monkeypatch.setattr(steps, "require_packages", lambda *_: None)
    monkeypatch.setattr(onnx, "fit_shapes", lambda specs, *_, **__: (specs, set()))
    monkeypatch.setattr(litert, "fit_litert", lambda *_: LitertFit(is_quantized=False))
    monkeypatch.setattr(verb, "render_cases", lambda cases: f"{len(cases)} cases")
    monkeypatch.setattr(verb, "data_of", lambda _: {})
    monkeypatch.setattr(verb, "choose_exit", lambda _: ExitCode.FAILED)
    return done


entered: list[tuple[Plan, bool]] = []
judged: list[Options] = []  # of each verdict
ENGINES: dict[str, Any] = {
    "emulator": ExecutorchEngine(()),
    "onnx": OnnxEngine(toolchain=(), sdk=Path()),
    "litert": LitertEngine(toolchain=(), sdk=Path(), timeout_s=300),
}


def test_localise_options_reach_the_search(searched: list[Namespace], tmp_path: Path) -> None:
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk/sdk.yaml").touch()
    options = ["--limit", "1", "--reproducer", "out/one.py", "--no-cache", "--offline"]
    words = ["--timeout-s", "0.5", "--soc", "SM8750", "--sdk", "sdk", "--adaptor", "wheel"]
    (tmp_path / "own.toml").write_text('extends = "default"\n[schemes.fp16]\nmin_cosine = 0.5\n')
    options += ["--policy", "own.toml"]
    assert main(["localise", *ONE, *options, *words]) == ExitCode.FAILED
    (search,) = searched
    policy = read_emulator_policy(tmp_path / "own.toml").for_backend(Backend.HTP)
    # The verdict is that of test-emulator, whose answers are in the store; the search is strict.
    (options,) = judged
    assert options.policy == policy
    assert search.setup.options.policy == replace(policy, strict_noise=True)
    assert isinstance(options.experiments, Experiments)
    assert (options.experiments.case_s, options.experiments.lane) == (300.0, "torch")
    assert (search.spec.soc, search.limit) == ("SM8750", 1)
    assert search.reproducer == tmp_path / "out" / "one.py"
    assert (search.setup.options.timeout_s, search.setup.options.use_cache) == (0.5, False)
    assert (search.setup.pool, search.setup.runner) == ("pool", "the runner")
    assert search.parts == TorchParts(ENGINES["emulator"])
    ((tools, offline),) = entered
    assert offline
    assert tools.choice == QnnChoice(str(tmp_path / "sdk"), "wheel")
    assert tools.profile == tools.choice.profile != "emulator"


def test_localise_divides_an_onnx_file_by_nodes(searched: list[Namespace], tmp_path: Path) -> None:
    (tmp_path / "net.onnx").touch()
    words = ["--model", "net.onnx", "--scheme", "u8", "--shape", "x=1,2"]
    words += ["--reproducer", "one.onnx"]
    assert main(["localise", *words]) == ExitCode.FAILED
    (search,) = searched
    assert (search.spec.scheme, search.spec.source.shapes) == (Scheme.U8, (("x", (1, 2)),))
    assert search.parts == OnnxParts(ENGINES["onnx"], search.setup.work / "model")
    assert entered[0][0].profile == "onnx"


def test_localise_divides_a_tflite_file_as_it_is(
    searched: list[Namespace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.tflite").touch()
    words = ["localise", "--model", "net.tflite"]
    assert main([*words, "--reproducer", "part.tflite"]) == ExitCode.FAILED
    (search,) = searched
    assert (search.spec.scheme, search.parts) == (Scheme.FP16, LitertParts(ENGINES["litert"]))
    assert entered[0][0].profile == "litert"
    for option in (["--sdk", "wheel"], ["--reproducer", "part.onnx"], ["--shape", "x=1"]):
        assert main([*words, *option]) == ExitCode.USAGE
        assert f"{option[0]} " in capsys.readouterr().err
    assert len(searched) == 1


@pytest.mark.parametrize(
    ("runtime", "profile", "suffix"),
    [
        ("executorch", "emulator", "py"),
        ("onnxruntime", "onnx", "onnx"),
        ("litert", "litert", "tflite"),
    ],
)
def test_a_function_is_divided_for_the_runtime_that_was_chosen(
    searched: list[Namespace], tmp_path: Path, runtime: str, profile: str, suffix: str
) -> None:
    (tmp_path / "net.py").write_text("def net(): ...\n")
    words = ["--model", "net.py:net", "--scheme", "fp16", "--reproducer", f"part.{suffix}"]
    assert main(["localise", *words, "--runtime", runtime]) == ExitCode.FAILED
    (search,) = searched
    assert (search.parts.runtime, search.parts.engine) == (runtime, ENGINES[profile])
    assert entered[0][0].profile.partition("-")[0] == profile


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "net.onnx", "--runtime", "litert"], "--runtime litert is not for .onnx files"),
        (["--model", "net.tflite", "--runtime", "executorch"], "ExecuTorch does not"),
        (["--model", "mlp", "--runtime", "litert", "--sdk", "wheel"], "--sdk is not for LiteRT"),
        (["--model", "mlp", "--runtime", "tvm"], "invalid choice"),
    ],
)
def test_a_runtime_that_cannot_take_the_model_is_refused(
    searched: list[Namespace],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    for name in ("net.onnx", "net.tflite"):
        (tmp_path / name).touch()
    for name in ("localise", "mend"):
        try:
            code: int = main([name, *words])
        except SystemExit as error:  # of argparse
            code = int(str(error.code))
        assert code == ExitCode.USAGE
        text = capsys.readouterr().err
        assert message in " ".join(text.split()), text
    assert not searched


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "0"], "--limit 0"),
        (["--timeout-s", "0"], "--timeout-s 0"),
        (["--timeout-s", "nan"], "--timeout-s nan"),
        (["--reproducer", "one.txt"], "one.txt"),
        (["--reproducer", "one.onnx"], "one.onnx"),
        (["--shape", "x=1"], "--shape is for .onnx files"),
        (["--reproducer", "one.py", "--model", "lstm"], "2 are selected"),
        (["--policy", "methods.toml", "--model", "m"], "several methods"),
        (["--policy", "methods.toml", "--model", "mlp", "--model", "m"], "several methods"),
    ],
)
def test_contradictory_localise_options_are_usage_errors_before_any_search(
    searched: list[Namespace],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    (tmp_path / "net.py").write_text("def factory(): ...\ndef other(): ...\n")
    (tmp_path / "methods.toml").write_text(
        'extends = "default"\n[models.m]\npath = "net.py:factory"\n'
        '[models.m.lowering]\nmethods = ["other"]\n'
    )
    named = [] if "--policy" in words else ONE
    assert main(["localise", *named, *words]) == ExitCode.USAGE
    assert (searched, entered) == ([], [])
    assert message in capsys.readouterr().err


def test_a_reproducer_that_cannot_be_written_is_named_before_the_search(
    searched: list[Namespace], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    words = ["--reproducer", "file/one.py"]
    assert main(["localise", *ONE, *words]) == ExitCode.DOWNLOAD
    assert not searched
