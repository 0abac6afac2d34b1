"""The choices of docs/reference/choices.md are lowered, run and judged for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.__main__ import main
from ci.report.schema import Status
from provisioning.errors import ExitCode
from provisioning.manifest.reader import manifests_root
from tests.integration.conftest import MakeOnce

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
SET = manifests_root() / "policies" / "choices.toml"
REFUSED = {
    "mlp-online": "on the DLC",
    "mlp-shared-weights": "loads no context with shared weights",
    "mlp-skip-linear": "keeps this operator whole",
}


def run_choices(directory: Path) -> None:
    argv = ["test-emulator", "--policy", str(SET), "--jobs", "1", "--reports", str(directory)]
    assert main(argv) == ExitCode.OK


@pytest.fixture(scope="module")
def reports(make_once: MakeOnce) -> Path:
    """The reports of one run of the set."""
    return make_once("choices", run_choices) / "test_emulator"


@pytest.fixture(scope="module")
def cases(reports: Path) -> dict[str, Any]:
    case_rows = json.loads((reports / "report.json").read_text())["cases"]
    return {f"{case['model']} {case['scheme']}": case for case in case_rows}


def test_each_lowering_option_passes_or_is_unsupported_with_its_reason(
    cases: dict[str, Any],
) -> None:
    assert len(cases) >= 20
    for case in cases.values():
        refused = REFUSED.get(case["model"], "")
        assert (
            case["judgement"]["status"] == (Status.UNSUPPORTED if refused else Status.PASSED).value
        ), case
        assert refused in str(case["judgement"]["findings"])


def test_a_skipped_operator_stays_on_the_cpu_and_the_report_names_the_option(
    cases: dict[str, Any],
) -> None:
    case = cases["mlp-skip-op 8a8w"]
    assert case["asked"]["choices"] == "skip_ops aten.relu.default"
    left = {row["op"] for row in case["program"]["fallback_ops"]}
    assert "aten.relu.default" in left
    assert case["program"]["partitions"] == 3
    assert all(name.startswith("quantized_decomposed.") for name in left - {"aten.relu.default"})


def test_a_profile_is_written_next_to_the_report_which_has_its_totals(
    reports: Path, cases: dict[str, Any]
) -> None:
    case = cases["mlp-profile 8a8w"]
    assert case["run"]["accelerator_cycles"] > case["run"]["accelerator_us"] > 0
    (written,) = (reports / "qnn").glob("mlp-profile-*-8a8w-SM8650/profile.csv")
    lines = written.read_text().splitlines()
    assert sum(line.startswith("Accelerator (execute) time,CYCLES") for line in lines) == 4
    assert any("aten_linear_default" in line for line in lines)


def test_a_program_of_two_methods_is_judged_as_a_whole(cases: dict[str, Any]) -> None:
    """It is larger than a program that has only one of the methods."""
    case = cases["mlp-methods 8a8w"]
    assert case["asked"]["choices"] == "methods make_row"
    assert (case["program"]["partitions"], case["program"]["fallback_nodes"]) == (2, 0)
    assert case["program"]["pte_bytes"] > 1.5 * cases["mlp-profile 8a8w"]["program"]["pte_bytes"]


def test_shared_weights_saver_and_dump_options_write_their_results(
    reports: Path, cases: dict[str, Any]
) -> None:
    shared = cases["mlp-shared-weights 8a8w"]["asked"]["choices"]
    small, large = (int(word) for word in shared.replace("(", "").split() if word.isdecimal())
    assert small < large
    assert {row["op"] for row in cases["mlp-saver 8a8w"]["program"]["qnn_ops"]} >= {
        "FullyConnected"
    }
    saved = {path.name for path in (reports / "qnn").glob("mlp-saver-*/*")}
    assert saved == {"saver_output.c", "params.bin"}
    dumped = [*(reports / "qnn").glob("mlp-dump-*/*.npy")]
    assert len(dumped) >= 5
    assert all(np.load(path).size for path in dumped)
