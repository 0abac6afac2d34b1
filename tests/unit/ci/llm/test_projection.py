"""Sizes by a config, compared with what QNN 2.49.40 kept of the decoders that are lowered here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from ci.__main__ import main
from ci.llm import projection
from ci.llm.config import DecoderConfig
from ci.llm.projection import MOST_BYTES, cut, project, render_projection
from ci.models.schemes import Scheme
from provisioning.errors import ExitCode
from tests.stand_ins.snapshots import check_snapshot

TINY = DecoderConfig(
    dim=32,
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    vocabulary=57,
    most_context=64,
    head_dim=8,
    tied=False,
)
STORIES = DecoderConfig(
    dim=64,
    hidden=172,
    layers=5,
    heads=8,
    kv_heads=4,
    vocabulary=512,
    most_context=512,
    head_dim=8,
)
LLAMA_1B = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("config", "scheme", "lowered"),
    [
        # constant_bytes of kv_forward and prefill_forward in the report of test_llm.
        (TINY, Scheme.A16W8, (73_728, 77_824)),
        (STORIES, Scheme.FP16, (638_976, 643_072)),
        (STORIES, Scheme.A8W8, (413_696, 397_312)),
        (STORIES, Scheme.A16W8, (479_232, 479_232)),
        (STORIES, Scheme.A16W4, (356_352, 356_352)),
    ],
)
def test_projected_sizes_are_within_5_percent_of_lowered_programs(
    config: DecoderConfig, scheme: Scheme, lowered: tuple[int, ...]
) -> None:
    (row,) = project(config, [scheme], 64).rows
    assert all(row.graph_bytes == pytest.approx(size, rel=0.05) for size in lowered)


def test_llama_1b_needs_shards_only_in_float16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_1B))
    words = ["--project", str(path), "--context", "1024", "--json"]
    assert main(["test-llm", *words]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert data["measured"] is False
    assert data["parameters"] == pytest.approx(1.236e9, rel=0.001)
    assert {row["scheme"]: row["shards"] for row in data["rows"]} == {
        "fp16": 2,
        "8a8w": 1,
        "16a8w": 1,
        "16a4w": 1,
    }
    # 16 layers, keys and values, 8 heads of 64 values, 1024 tokens; float32 or 8 bits.
    values = 16 * 2 * 8 * 64 * 1024
    assert [row["cache_bytes"] // values for row in data["rows"]] == [4, 1, 1, 1]
    assert all(row["shard_bytes"] <= MOST_BYTES for row in data["rows"])
    assert main(["test-llm", *words[:-1]]) == ExitCode.OK
    assert "projected, not measured: 1,235," in capsys.readouterr().out


def test_the_first_shard_has_the_embedding_and_the_last_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(projection, "MOST_BYTES", 10)
    assert cut(2, [2, 2, 2], 2) == (1, 10)
    assert cut(5, [2, 2, 2, 2], 4) == (2, 9)
    assert cut(9, [1, 1, 1], 1) == (3, 10)
    assert cut(10, [1, 1], 1) == (None, 11)
    assert cut(1, [2, 2, 2, 2], 7) == (4, 9)
    assert cut(1, [2, 2], 9) == (None, 11)
    assert cut(0, [5, 5], 5) == cut(5, [5, 5], 0) == (2, 10)
    assert cut(0, [5, 5, 5], 10) == (None, 15)


def test_a_projection_of_two_decoders_reads_as_its_snapshot() -> None:
    wide = structs.replace(STORIES, vocabulary=1 << 21, dim=1 << 11, layers=3, hidden=1 << 13)
    schemes = [*projection.RECIPES]
    text = "\n\n".join(
        render_projection(project(config, schemes, context))
        for config, context in ((TINY, 1), (STORIES, 64), (wide, 4096))
    )
    check_snapshot(Path(__file__).parent / "snapshots" / "projection.txt", f"{text}\n")
