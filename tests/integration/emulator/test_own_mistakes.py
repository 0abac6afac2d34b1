"""A mistake of this project during the compilation of a case is never a refusal of the model."""

from __future__ import annotations

import ast
import builtins
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.report.schema import Case, Status
from ci.report.write import read_report
from provisioning.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.emulator
LANES = {
    "emulator": ("ci.executorch.lower", "executorch", "8a8w"),
    "onnx": ("ci.onnx.compile", "onnxruntime_qnn", "u8"),
}
MODEL = """
import torch

class Label(torch.nn.Module):
    def forward(self, x):
        return x, x.argmax(-1)

def make():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten()
    net = torch.nn.Sequential(*layers, torch.nn.Linear(288, 10), Label()).eval()
    return net, (torch.randn(1, 3, 8, 8),)
"""
# ExecuTorch's lane calls them in no other scheme.
ONLY_IN_FLOAT16 = {"is_poor", "find_float16_loss", "measure_low"}
# Replaces the function that the name of a case's factory says, in the fork that lowers the case.
SITE = """
import importlib
import ci.cases.cache

def throw(*given, **named):
    return {}["a key that is not there"]

def compile_with_mistake(job, found):
    name = job.spec.reference.rpartition(":")[2]
    setattr(importlib.import_module("MODULE"), name, throw)
    return compile_case(job, found)

compile_case = ci.cases.cache.CompileJob._compile
ci.cases.cache.CompileJob._compile = compile_with_mistake
"""


def list_guarded(path: Path, guard: str) -> Iterator[str]:
    """Yield the functions that are called in `with` blocks of a kind."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.With) and guard in ast.unparse(node.items[-1].context_expr):
            for call in (inner_node for part in node.body for inner_node in ast.walk(part)):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                    yield from {call.func.id} - {*dir(builtins)}


@pytest.mark.nightly
@pytest.mark.parametrize("lane", LANES)
def test_an_analysis_that_throws_is_a_warning_unless_the_verdict_needs_it(
    lane: str, tmp_path: Path
) -> None:
    module, package, scheme = LANES[lane]
    pytest.importorskip(package)
    source = ROOT / f"{module.replace('.', '/')}.py"
    explain = {*list_guarded(source, "notes.of(")}
    verdict = {*list_guarded(source, "needed(")}
    assert {"find_loss", "find_clipped"} <= explain
    assert "predict_noise" in verdict
    functions = sorted(explain | verdict)
    (tmp_path / "net.py").write_text(
        MODEL + "".join(f"{function} = make\n" for function in functions)
    )
    policy = ['extends = "default"']
    for function in functions:
        scheme_of_function = "fp16" if function in ONLY_IN_FLOAT16 else scheme
        policy += [f"[models.{function}]", f'path = "net.py:{function}"']
        policy += [f'schemes = ["{scheme_of_function}"]']
    (tmp_path / "policy.toml").write_text("\n".join(policy))
    words = ["--policy", "policy.toml"]
    case_rows = run_lane(lane, SITE.replace("MODULE", module), tmp_path, *words)
    cases = {case.model: case for case in case_rows}
    assert {name: check(case, name in explain) for name, case in cases.items()} == dict.fromkeys(
        functions, ""
    )


def run_lane(lane: str, site: str, work: Path, *words: str) -> tuple[Case, ...]:
    """Return the cases of a run in which our code makes mistakes; it ends with 70."""
    (work / "site").mkdir()
    (work / "site" / "sitecustomize.py").write_text(site)
    variables = {**os.environ, "PYTHONPATH": f"{work / 'site'}:{ROOT}"}
    ended = subprocess.run(
        [sys.executable, "-m", "ci", f"test-{lane}", "--no-cache", *words],
        cwd=work,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == ExitCode.DEFECT, ended.stdout + ended.stderr
    return read_report(work / "reports" / f"test_{lane}").cases


def check(case: Case, explains: bool) -> str:
    """Return how a case differs from what it should be, or ""."""
    if explains:
        named = [warning for warning in case.judgement.warnings if "KeyError" in warning]
        return (
            ""
            if case.judgement.status is Status.PASSED and named
            else f"{case.reason} {case.judgement.warnings}"
        )
    is_right = (
        case.judgement.status is Status.FAILED
        and case.judgement.is_defect
        and "refused" not in case.reason
    )
    return "" if is_right else f"{case.judgement.status} {case.reason}"


@pytest.mark.nightly
def test_a_model_that_torch_cannot_export_is_not_reported_as_our_defect(tmp_path: Path) -> None:
    code = """
import os
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        os.listdir("/")
        return x * 2

def make():
    return Net().eval(), (torch.ones(3),)
"""
    (tmp_path / "net.py").write_text(code)
    argv = [sys.executable, "-m", "ci", "test-emulator", "--no-cache", "--model", "net.py:make"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        argv, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.FAILED
    for case in read_report(tmp_path / "reports" / "test_emulator").cases:
        assert "bug" not in case.reason
        assert not case.judgement.is_defect
