"""The LiteRT lane for real: compiled by LiteRT's plugin, run on the emulator, judged. The programs
are right, or wrong on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np

from ci.cases.pipeline import CaseResult, CaseRun
from ci.cases.policy import read_emulator_policy
from ci.cases.pool import Pool
from ci.cases.spec import CaseSpec
from ci.facts.finding import Question
from ci.faults.match import match_faults
from ci.litert.engine import LitertEngine, make_runner
from ci.litert.suite import Net, make_model, quantize
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.report.schema import Status
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from tests.build.pinned_qnn import NEEDS_PINNED_QNN
from tests.build.setups import make_setup
from tests.stand_ins.exchanged_litert import ExchangingEngine

ROOT = Path(__file__).parents[3]
pytestmark = NEEDS_PINNED_QNN
IMPORTS = ("ci.litert.compile", "ci.litert.execution")
RunCase = Callable[..., CaseResult]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, Path]]:
    """A pool of workers, and QNN's libraries."""
    place = tmp_path_factory.mktemp("lane")
    environment = provision_profile("litert", Progress())
    with closing(Pool(environment.apply(os.environ), place, IMPORTS)) as pool:
        yield pool, environment.root("qnn-runtime")


@pytest.fixture
def run_case(shared: tuple[Pool, Path], tmp_path: Path) -> RunCase:
    pool, sdk = shared

    def run(data: bytes, scheme: Scheme = Scheme.FP16, exchanged: bytes = b"") -> CaseResult:
        path, exchanged_path = tmp_path / "net.tflite", tmp_path / "exchanged.tflite"
        path.write_bytes(data)
        exchanged_path.write_bytes(exchanged)
        settings: dict[str, Any] = {"toolchain": ("test",), "sdk": sdk, "timeout_s": 200}
        engine = (
            ExchangingEngine(**settings, exchanged=exchanged_path)
            if exchanged
            else LitertEngine(**settings)
        )
        setup = make_setup(
            tmp_path,
            engine,
            make_runner(engine, pool),
            pool,
            policy=read_emulator_policy(lane="litert"),
            timeout_s=200,
            find_faults=match_faults,
        )
        spec = CaseSpec(path.name, scheme, "SM8650", Source(str(path)))
        return CaseRun(spec, setup).run()

    return run


def make_net(seed: int = 1) -> Net:
    """A perceptron whose weights depend on ``seed``, and nothing else."""
    net = Net()
    net.random = np.random.default_rng(seed)
    source = net.add_tensor((4, 32), "x")
    hidden = net.call("TANH", (net.add_linear(source, (4, 32), 32),), (4, 32))
    net.end([source], [net.add_linear(hidden, (4, 32), 8)])
    return net


def make_product_and_sum() -> Net:
    """relu(x * 0.5) + 0.3 in front of a layer: QNN computes it wrongly in 8 bits."""
    net, shape = Net(), (1, 8, 8, 16)
    source = net.add_tensor(shape, "x")
    product = net.call("MUL", (source, net.add_number(0.5)), shape, "MulOptions")
    activated = net.call("RELU", (product,), shape)
    added = net.call("ADD", (activated, net.add_number(0.3)), shape, "AddOptions")
    net.end([source], [net.add_linear(added, shape, 8)])
    return net


def describe(result: CaseResult) -> str:
    return f"{result.case.judgement.findings}\n{result.case.run.log_tail}"


def test_the_program_of_another_model_is_red_by_its_numbers(run_case: RunCase) -> None:
    """It has the same names and shapes, so that nothing else shows it."""
    right_data, exchanged_data = make_net().pack(), make_net(seed=2).pack()
    passed = run_case(right_data)
    assert passed.case.judgement.status is Status.PASSED, describe(passed)
    exchanged = run_case(right_data, exchanged=exchanged_data)
    assert exchanged.case.judgement.status is Status.FAILED, describe(exchanged)
    assert exchanged.case.judgement.findings[0].question is Question.FAITHFUL


def test_a_known_fault_of_a_quantized_file_is_its_cause(run_case: RunCase) -> None:
    result = run_case(quantize(make_product_and_sum(), 8), Scheme.ASIS)
    assert result.case.judgement.status is Status.FAILED, describe(result)
    assert "known fault: relu-between-product-and-sum" in f"{result.case.judgement.findings[0]}"


def make_whole_constant() -> bytes:
    """A sum with a constant of its own shape, before a sigmoid."""
    net, shape = Net(), (2, 16, 64)
    source = net.add_tensor(shape, "x")
    total = net.call("ADD", (source, net.draw(*shape, scale=1.0)), shape, "AddOptions")
    net.end([source], [net.call("LOGISTIC", (total,), shape)])
    return net.pack()


@pytest.mark.parametrize(
    "data",
    [
        make_model("cpu_middle"),  # 42.4 dB, and 37.1 if float16 rounded what the CPU computes
        make_whole_constant(),  # 48.1 dB, and 69.9 if HTP did not fuse the sum
    ],
    ids=["an operator on the CPU", "a whole constant"],
)
def test_the_predicted_noise_is_that_of_the_program(data: bytes, run_case: RunCase) -> None:
    result = run_case(data)
    judgement = result.case.judgement
    assert judgement.sqnr_db == pytest.approx(judgement.predicted_sqnr_db, abs=3), describe(result)


def test_evidence_does_not_fit_a_program_with_a_changed_byte(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(make_net().pack())

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ci", *words],
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            capture_output=True,
            text=True,
        )

    words = ("--model", "net.tflite", "--reports", "reports", "--keep-artifacts", "kept")
    ended = call("test-litert", *words, "--jobs", "1")
    assert ended.returncode == 0, ended.stderr
    (statement,) = (tmp_path / "reports").rglob("*.intoto.json")
    (program,) = (tmp_path / "kept").rglob("compiled.tflite")
    (subject, *_) = json.loads(statement.read_text())["subject"]
    verify = ("verify-evidence", str(program), "--evidence", str(statement))
    assert call(*verify).returncode == 0
    data = bytearray(program.read_bytes())
    data[-100] ^= 1  # in a context binary: the emulator runs it, with the same results
    program.write_bytes(data)
    refused = call(*verify)
    assert refused.returncode == 1
    assert subject["digest"]["sha256"][:16] in refused.stdout
