"""The small decoder of this project, from its weights to its judged tokens, in float and quantized,
and its program as one that was lowered elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
TINY = Path(__file__).resolve().parents[3] / "ci" / "llm" / "tiny"
TOLD = "'Ben has a blue boat. The boat sails far.' (32 of 32 tokens equal the model's; top-1 100%"
CONTROLS = {
    "token_zero": None,
    "top_two": None,
    "previous_logits": -2,
    "endless": None,
    "caches_shifted": 26,
    "mask_inverted": 13,
    "mask_infinite": 13,
    "position_off": 30,
    "other_prompt": 16,
    "prefill_ignored": 11,
}


@pytest.mark.emulator
@pytest.mark.nightly  # a journey of each run judges this decoder in one scheme
@pytest.mark.timeout(900)
def test_the_tiny_decoder_passes_and_its_controls_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def tell(*words: str) -> dict[str, Any]:
        assert main(["test-llm", *words, "--json"]) == ExitCode.OK
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    report = tell("--scheme", "fp16", "--scheme", "16a8w", "--keep-artifacts", "kept")
    assert [one.partition(" and KL")[0] for one in report["remarks"]] == [
        f"tiny {scheme} SM8750: {TOLD}" for scheme in ("fp16", "16a8w")
    ]
    plain, quantized = report["cases"]
    assert [plain["status"], quantized["status"]] == ["passed", "passed"]
    for case, nodes in ((plain, 386), (quantized, 466)):
        places = {name: case[name] for name in ("delegated_nodes", "fallback_nodes", "partitions")}
        assert places == {"delegated_nodes": nodes, "fallback_nodes": 0, "partitions": 2}
        assert [one["name"] for one in case["footprint"]["graphs"]] == [
            "prefill_forward",
            "kv_forward",
        ]
        assert (case["equal"], case["metric"], case["metric_float"]) == (1, 1, 1)
    figures = ("sqnr_db", "sqnr_db_quantized", "sqnr_db_scheme", "predicted_sqnr_db")
    near = [pytest.approx(one, abs=2) if one else None for one in (46.8, None, None, 46.6)]
    assert [plain[name] for name in figures] == near
    near = [pytest.approx(one, abs=2) for one in (33.9, 52.1, 33.9, 41.3)]
    assert [quantized[name] for name in figures] == near

    controls = [(one["scheme"], one["kind"]) for one in report["controls"]]
    assert controls == [(scheme, kind) for scheme in ("fp16", "16a8w") for kind in CONTROLS]
    assert all(one["rejected"] for one in report["controls"])
    for one in report["controls"][: len(CONTROLS)]:
        wanted = CONTROLS[one["kind"]] or plain["sqnr_db"]
        assert one["sqnr_db"] == pytest.approx(wanted, abs=2), one["kind"]

    (program,) = (tmp_path / "kept").glob("*16a8w*/artifact/program.pte")
    given = ["--program", str(program), "--tokenizer", str(TINY / "tokenizer.bin")]
    words = ["--weights", str(TINY / "weights.bin"), "--prompt", "Ann has a", "--tokens", "20"]
    (told,) = tell(*given, *words)["remarks"]
    assert "'Ann has a red kite. The kite ' (20 tokens; the first 20 equal those of float32" in told
