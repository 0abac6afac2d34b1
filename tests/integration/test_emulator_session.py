"""The main job for real: ExecuTorch lowers, QNN's HTP emulator runs, the gate judges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "stand_ins" / "executor_runner.py"
pytestmark = pytest.mark.emulator
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")


def run_emulator(reports: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    argv = [sys.executable, "-m", "ci", "test-emulator", "--reports", str(reports), *words]
    ended = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    file = reports / "test_emulator" / "report.json"
    return ended, json.loads(file.read_text()) if file.is_file() else None


def test_two_models_pass_and_a_second_run_lowers_nothing(tmp_path: Path) -> None:
    words = ("--model", "mlp", "--model", "superres", "--scheme", "8a8w", "--scheme", "fp16")
    first, report = run_emulator(tmp_path, *words)
    assert first.returncode == 0, first.stderr
    assert report["summary"]["passed"] == 4
    assert {control["kind"] for control in report["controls"]} == {
        "zeros",
        "noise",
        "permuted",
        "other_input",
    }
    assert len(report["controls"]) == 16
    assert all(control["rejected"] for control in report["controls"])
    for case in report["cases"]:
        assert case["fallback_nodes"] == 0
        assert case["delegated_nodes"] >= case["partitions"] == 1
        assert case["inputs"] >= 4
    second, report = run_emulator(tmp_path, *words, "--json")
    assert second.returncode == 0
    assert json.loads(second.stdout) == report
    assert all(case["cached"] for case in report["cases"])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("zeros", "SQNR 0.0 dB against the float32 eager model"),
        ("hang", "did not end within 4 s"),
        ("die", "was ended by SIGSEGV"),
        ("exit", "exited with 134"),
        ("short", "output_0_0.raw has"),
        ("missing", "output_1_0.raw was not written"),
    ],
)
def test_a_runner_that_goes_wrong_fails_its_case_with_the_reason(
    tmp_path: Path, fault: str, words: str
) -> None:
    runner = f"{sys.executable} {STAND_IN} {fault}"
    limit = ("--timeout-s", "4") if fault == "hang" else ()
    warm, _ = run_emulator(tmp_path, "--model", "mlp", "--scheme", "fp16")
    assert warm.returncode == 0, warm.stderr
    ended, report = run_emulator(
        tmp_path, "--model", "mlp", "--scheme", "fp16", "--runner", runner, *limit
    )
    assert ended.returncode == 1
    (case,) = report["cases"]
    assert case["status"] == "failed"
    assert words in case["reason"]
    assert f"stand-in runner: {fault}" in case["log_tail"]
    assert "Traceback" not in ended.stderr


MODEL = """
import torch
from weights import scale

class Net(torch.nn.Module):
    def forward(self, x):
        return {body}

def factory():
    return Net(), (torch.randn(2, 16, generator=torch.Generator().manual_seed(3)),)
"""


@pytest.fixture
def users_model(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "weights.py").write_text("scale = 3.0\n")
    (folder / "my.py").write_text(MODEL.format(body="torch.relu(x * scale) + x"))
    return folder


def test_a_users_model_and_what_makes_it_lowered_again(tmp_path: Path, users_model: Path) -> None:
    words = ("--model", f"{users_model / 'my.py'}:factory", "--soc", "SM8750", "--scheme", "8a8w")
    first, report = run_emulator(tmp_path, *words)
    assert first.returncode == 0, first.stderr
    assert [case["cached"] for case in report["cases"]] == [False]
    _, report = run_emulator(tmp_path, *words)
    assert [case["cached"] for case in report["cases"]] == [True]
    (users_model / "weights.py").write_text("scale = 2.5\n")
    _, report = run_emulator(tmp_path, *words)
    assert [case["cached"] for case in report["cases"]] == [False]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x * 0.0001", "near zero"),
        ("torch.ones_like(x) + 0 * x", "constant"),
        ("undefined_name(x)", "NameError"),
        ("torch.linalg.pinv(x @ x.T + 9 * torch.eye(2)) + 1", "fall back"),
    ],
)
def test_a_model_that_proves_nothing_or_cannot_be_lowered_fails(
    tmp_path: Path, users_model: Path, body: str, words: str
) -> None:
    (users_model / "my.py").write_text(MODEL.format(body=body))
    ended, report = run_emulator(
        tmp_path, "--model", f"{users_model / 'my.py'}:factory", "--scheme", "fp16"
    )
    assert ended.returncode == 1
    (case,) = report["cases"]
    assert case["status"] == "failed"
    assert words in case["reason"] or words == "fall back"
    assert case["reason"]
    assert "Traceback" not in ended.stderr


def test_a_known_refusal_is_unsupported_with_qnns_own_reason(tmp_path: Path) -> None:
    words = ("--model", "mlp", "--scheme", "fp16", "--scheme", "8a8w", "--soc", "SW6100")
    ended, report = run_emulator(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    by_scheme = {case["scheme"]: case for case in report["cases"]}
    assert by_scheme["fp16"]["status"] == "unsupported"
    assert "doesn't support FP16" in by_scheme["fp16"]["reason"]
    assert by_scheme["8a8w"]["status"] == "passed"


def test_a_refusal_that_no_policy_knows_fails(tmp_path: Path) -> None:
    policy = (ROOT / "manifests" / "policies" / "emulator.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(policy.replace('"SW6100", ', ""))
    words = ("--model", "mlp", "--scheme", "fp16", "--soc", "SW6100", "--policy", str(mine))
    ended, report = run_emulator(tmp_path, *words)
    assert ended.returncode == 1
    assert report["cases"][0]["status"] == "failed"


def test_kept_artifacts_are_whole(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    words = ("--model", "mlp", "--scheme", "8a8w", "--keep-artifacts", str(keep))
    assert run_emulator(tmp_path, *words)[0].returncode == 0
    folder = keep / "mlp-8a8w-SM8650"
    wanted = {"artifact/program.pte", "artifact/quantized/3_0.raw", "outputs/output_3_0.raw"}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert wanted <= found


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--soc", "SM865O"), 2),
        (("--jobs", "0"), 2),
        (("--timeout-s", "-1"), 2),
        (("--runner", "no-such-program"), 2),
        (("--model", "nowhere.py:make"), 2),
    ],
)
def test_wrong_arguments_are_usage_errors(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    ended, report = run_emulator(tmp_path, *words)
    assert (ended.returncode, report) == (code, None)
    assert "Traceback" not in ended.stderr


def test_a_damaged_cache_entry_is_lowered_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {**os.environ, "QNN_CI_HOME": str(home)}
    store = Path(os.environ.get("QNN_CI_HOME", "")) if os.environ.get("QNN_CI_HOME") else None
    del store
    argv = [sys.executable, "-m", "ci", "test-emulator", "--reports", str(tmp_path)]
    argv += ["--model", "mlp", "--scheme", "fp16"]
    first = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert first.returncode == 0, first.stderr
    (program,) = (home / "lowered").rglob("program.pte")
    program.write_bytes(program.read_bytes()[:-1] + b"?")
    again = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert again.returncode == 0, again.stderr
    assert "a damaged cache entry was lowered again" in again.stderr
