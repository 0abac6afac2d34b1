"""The remedies of errors.toml and operators.toml that their key ``proof`` calls tried: without them
a model is red for the rule's reason, and with them it is green."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.explain.rules import read_rules
from ci.report.schema import Case, Status
from ci.report.write import read_report
from provisioning.errors import ExitCode
from tests.stand_ins.runs import run_to_end

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

MODELS = Path(__file__).with_name("remedies.py")
# Models of remedies.py and the rules that explain them; operators.toml's have no name.
PAIRS = {
    "8a8w": {
        "split_weight": "split-weight-per-channel",
        "fast_path": "transformer-fast-path",
        "rank": "rank-too-high",
        "recurrent": "recurrent-quantized",
        "cell": "half-quantized",
        "repeat": "repeat-interleave",
        "causal": "causal-mask",
        "norm": "layer-norm-axes",
        "pool": "max-pool-stride",
        "branch": "data-dependent",
        "indices": "int32-as-int64",
        "softplus": "softplus",
        "maximum": "",
        "erf": "",
    },
    "fp16": {
        "split_weight": "multihead-attention-fp16",
        "halved": "half-batch-norm",
        "quantized": "quantized-module",
        "modulated": "computed-weight",
        "quotient": "floor-divide-by-number",
        "cosine": "delegate-signature",
    },
}


def lower(scheme: str, folder: Path) -> dict[str, Case]:
    names = [f"{name}_{state}" for name in PAIRS[scheme] for state in ("before", "after")]
    words = [word for name in names for word in ("--model", f"{MODELS}:{name}")]
    argv = [sys.executable, "-m", "ci", "test-emulator", "--scheme", scheme, "--reports"]
    run_to_end([*argv, str(folder), *words], timeout_s=1800, codes=(ExitCode.FAILED,))
    cases = read_report(folder / "test_emulator").cases
    return dict(zip(names, cases, strict=True))


@pytest.mark.parametrize("scheme", PAIRS)
def test_a_remedy_makes_a_red_model_green(scheme: str, tmp_path: Path) -> None:
    cases = lower(scheme, tmp_path)
    ids = {rule.id: rule.finding_id for rule in read_rules()}
    names = {}
    for name in PAIRS[scheme]:
        findings = cases[f"{name}_before"].judgement.findings
        names[name] = {cause.name for finding in findings for cause in finding.causes}
    expected_rules = {name: rule for name, rule in PAIRS[scheme].items() if rule}
    assert [name for name, rule in expected_rules.items() if ids[rule] not in names[name]] == []
    assert {name for name, case in cases.items() if case.judgement.status is Status.PASSED} == {
        f"{name}_after" for name in PAIRS[scheme]
    }


def test_every_rule_with_a_proof_here_has_a_red_and_green_pair() -> None:
    proven = {rule.id for rule in read_rules() if rule.proof.endswith(Path(__file__).name)}
    assert proven == {rule for pairs in PAIRS.values() for rule in pairs.values() if rule}
