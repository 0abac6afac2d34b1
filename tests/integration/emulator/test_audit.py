"""The audit of models: red models have the right words and line, and it agrees with programs.

By default four models; with QNN_CI_NIGHTLY set, the suite, the realistic models and the table's
rows are lowered, and what their programs hold is compared with what the audit says of them; and the
table of docs/findings/operators.md is made again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioning.errors import ExitCode
from tests.integration.conftest import MakeOnce
from tests.integration.emulator.test_liars import run_suite
from tests.integration.emulator.test_realistic_models import run_models
from tests.operators.agreement import GROUPS, compare_group, lower_group
from tests.stand_ins.runs import run_to_end

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.emulator, pytest.mark.timeout(7200)]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

NETS = """
import torch
from torch import nn


@torch.library.custom_op("shop::twirl", mutates_args=())
def twirl(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@twirl.register_fake
def _(x):
    return torch.empty_like(x)


class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle = nn.Linear(16, 32), middle

    def forward(self, x):
        y = self.first(x)
        return self.middle(y) + y


def make(middle):
    torch.manual_seed(0)
    return Net(middle), (torch.randn(4, 16),)


def erf():
    return make(lambda y: torch.erf(y))  # line: erf


def varying():
    return make(lambda y: y[y > 0].mean())  # line: varying


def unknown():
    return make(lambda y: twirl(y))  # line: unknown


def right():
    return make(torch.nn.GELU())
"""
NAMES = ("erf", "varying", "unknown", "right")


def run_audit(*words: str, code: int) -> tuple[dict[str, Any], str]:
    """What the verb prints as JSON, and on stderr."""
    argv = [sys.executable, "-m", "ci", "audit", "--json", *words]
    ended = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=7000, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return json.loads(ended.stdout), ended.stderr


def audit_nets(folder: Path) -> None:
    (folder / "nets.py").write_text(NETS)
    words = [word for name in NAMES for word in ("--model", f"{folder}/nets.py:{name}")]
    # With one worker, which imports ExecuTorch once for all of them.
    words += ["--scheme", "fp16", "--reports", str(folder), "--jobs", "1"]
    run_audit(*words, code=ExitCode.FAILED)


@pytest.fixture(scope="module")
def nets(make_once: MakeOnce) -> dict[str, Any]:
    data = json.loads((make_once("audit", audit_nets) / "audit" / "audit.json").read_text())
    return {case["model"].rpartition(":")[2]: case for case in data["cases"]}


@pytest.mark.parametrize(
    ("name", "op", "reason", "fix"),
    [
        ("erf", "aten.erf.default", "No node visitor", "nn.GELU"),
        ("varying", "aten.index.Tensor", "a shape depends on the data", "mask"),
        ("unknown", "shop.twirl.default", "No node visitor", "torch's operators"),
    ],
)
def test_a_model_that_qnn_does_not_take_is_red_with_its_line_and_remedy(
    nets: dict[str, Any], name: str, op: str, reason: str, fix: str
) -> None:
    case = nets[name]
    assert case["status"] == "failed"
    left = next(operator for operator in case["operators"] if operator["op"] == op)
    assert not left["taken"]
    assert reason in left["reason"]
    assert fix in left["remedies"][0]["text"]
    lines = NETS.splitlines()
    assert left["file"] == "nets.py"
    assert f"# line: {name}" in lines[left["line"] - 1]
    assert len(case["partitions"]) == 2
    assert case["border_bytes"] > case["io_bytes"] > 0


def test_a_model_that_qnn_takes_whole_is_green_and_one_partition(nets: dict[str, Any]) -> None:
    case = nets["right"]
    assert case["status"] == "passed"
    assert case["border_bytes"] == case["io_bytes"] == 4 * 4 * (16 + 32)
    assert len(case["partitions"]) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("group", GROUPS)
def test_audit_predicts_the_delegation_of_the_lowered_programs(
    make_once: MakeOnce, tmp_path: Path, group: str
) -> None:
    if group == "rows":
        kept_folder = lower_group(group, tmp_path)
    else:  # their programs are compared with those of plain scripts, too
        run_cases_of_group = {"suite": run_suite, "realistic": run_models}[group]
        kept_folder = make_once(group, run_cases_of_group) / "kept"
    compared = list(compare_group(group, tmp_path, kept_folder))
    assert compared
    assert [str(comparison) for comparison in compared if comparison.differences] == []


@pytest.mark.nightly
def test_the_operator_table_agrees_with_qnns_partitioner() -> None:
    run_to_end([sys.executable, "-m", "tests.operators.survey", "--check"], timeout_s=7000)
