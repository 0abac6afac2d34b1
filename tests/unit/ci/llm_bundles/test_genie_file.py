"""Folders for Genie that test_llm refuses before anything runs, and what is read of right ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.llm.request import LlmRequest
from ci.verbs.lanes import bundles
from ci.verbs.lanes.bundles import find_bundle_soc, find_pinned_qnn, load_bundle, require_fit
from provisioning.errors import FailedError, UnfitError, UsageError
from tests.build.genie import (
    LENGTH,
    PARTS,
    VOCABULARY,
    Change,
    make_genie,
    make_part,
    make_tokenizer,
)
from tests.stand_ins.lowered import Port

NEWER = "v2.99.0.261010101010"


def both_parts(**how: Any) -> Change:
    """Both parts are compiled otherwise."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        for number, name in enumerate(PARTS, start=1):
            (folder / name).write_bytes(make_part(number, **how))

    return change


def cut(tenth: int) -> Change:
    """The second part broke off."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        second_part = (folder / PARTS[1]).read_bytes()
        (folder / PARTS[1]).write_bytes(second_part[: len(second_part) * tenth // 10])

    return change


def remove(folder: Path, _: dict[str, Any]) -> None:
    """A part is missing."""
    (folder / PARTS[0]).unlink()


def other_tokenizer(folder: Path, _: dict[str, Any]) -> None:
    """The tokenizer has more tokens than the model."""
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer(VOCABULARY + 100)))


YARN = {
    "rope-type": "yarnrope",
    "original-max-position-embeddings": 64,
    "factor": 2,
    "dim": 16,
    "extrapolation-factor": 1.0,
    "attn-factor": 1.0,
    "beta-fast": 32,
    "beta-slow": 1,
}


def encode_positions(**encoding: Any) -> Change:
    """The model has an encoding of positions."""

    def change(_: Path, config: dict[str, Any]) -> None:
        engine = config["dialog"]["engine"]
        half_of_head = engine["backend"]["QnnHtp"].pop("pos-id-dim")
        engine["model"]["positional-encoding"] = {"rope-dim": half_of_head, **encoding}

    return change


REFUSED: dict[str, tuple[Change, type[Exception], str]] = {
    "without a part": (remove, FailedError, f"{PARTS[0]} is missing"),
    "another tokenizer": (other_tokenizer, FailedError, "ids up to"),
    "shared weights": (both_parts(shared_bytes=4096), UnfitError, "share weights"),
    "no graphs for prompts": (both_parts(kinds={"token": 1}), UsageError, "no graphs for prompts"),
    "no graphs for single tokens": (
        both_parts(kinds={"prompt": 128}),
        UsageError,
        "no graphs for single tokens",
    ),
    "embeddings per layer": (
        both_parts(extra={"per_layer_inputs": Port((1, 4))}),
        UsageError,
        "takes per_layer_inputs",
    ),
    "two masks": (
        both_parts(extra={"swa_attention_mask": Port((1, 1, 1, 512))}),
        UsageError,
        "takes swa_attention_mask",
    ),
    "another rotation": (
        encode_positions(type="rope", **{"rope-scaling": YARN}),
        UsageError,
        "rope-scaling of bundle is yarnrope",
    ),
    "a scaling without its numbers": (
        encode_positions(type="rope", **{"rope-scaling": {"rope-type": "llama3"}}),
        FailedError,
        "llama3 needs original-max-position-embeddings, factor, low-freq-factor, high-freq-factor",
    ),
    "a base that is no number": (
        encode_positions(type="rope", **{"rope-theta": 0}),
        UsageError,
        "rope-theta of bundle is 0",
    ),
    "a scaling by 0": (
        encode_positions(type="rope", **{"rope-scaling": {"rope-type": "linear", "factor": 0}}),
        UsageError,
        "factor of bundle is 0",
    ),
    "no rotation": (encode_positions(type="alibi"), UsageError, "positional-encoding of bundle"),
    **{
        f"cut at {tenth} tenths": (cut(tenth), FailedError, f"{PARTS[1]} cannot be loaded")
        for tenth in range(10)
    },
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_folder_is_refused_with_the_cause(tmp_path: Path, fault: str) -> None:
    change, kind, text = REFUSED[fault]
    with pytest.raises(kind) as caught:
        load_bundle(make_genie(tmp_path / "bundle", change))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "soc", "text", "fix"),
    [
        (lambda *_: None, "SM8750", "does not load on SM8750", "pass the --soc that"),
        (both_parts(build=NEWER), "SM8650", "compiled with QNN 2.99.0", "with QNN 2.51.0 or older"),
    ],
)
def test_contexts_for_another_phone_or_of_a_newer_qnn_are_refused(
    tmp_path: Path, change: Callable[[Path, dict[str, Any]], object], soc: str, text: str, fix: str
) -> None:
    folder = make_genie(tmp_path / "bundle", change)
    assert find_bundle_soc(folder) == "SM8650"
    with pytest.raises(UnfitError) as caught:
        require_fit(folder, soc, "2.51.0")
    assert text in f"{caught.value} {caught.value.why}"
    assert fix in caught.value.fix


def test_a_bundle_of_a_newer_qnn_than_the_pinned_one_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles.steps, "require_packages", lambda *_: None)
    monkeypatch.setattr(bundles, "check_bundle", lambda *_: None)
    monkeypatch.setattr(bundles, "run_limited", lambda call, _: call())
    specs: Any = [SimpleNamespace(soc="SM8650")]
    request = LlmRequest(session="test_llm")
    newer = make_genie(tmp_path / "newer", both_parts(build=NEWER))
    with pytest.raises(UnfitError) as caught:
        bundles.plan_bundle(request, newer, specs)
    assert f"with QNN {find_pinned_qnn()} or older" in caught.value.fix
    plan = bundles.plan_bundle(request, make_genie(tmp_path / "bundle"), specs)
    assert (plan.profile, plan.work) == ("litert", "run and judge")


def test_chunks_caches_and_rotations_of_a_folder_are_read(tmp_path: Path) -> None:
    bundle = load_bundle(make_genie(tmp_path / "bundle"))
    assert (bundle.chunks, bundle.context, bundle.vocabulary) == ((128,), LENGTH, VOCABULARY)
    assert [(cache.name, cache.axis, cache.port.dtype) for cache in bundle.caches] == [
        ("kv_cache_k_0", 3, "uint8"),
        ("kv_cache_k_1", 3, "uint8"),
        ("kv_cache_v_0", 2, "uint8"),
        ("kv_cache_v_1", 2, "uint8"),
    ]
    assert bundle.metadata.start == (1,)
    assert bundle.metadata.stops == (2, 3)
    assert (bundle.is_compiled, bundle.is_float, bundle.keeps_last) == (True, False, False)


def test_graphs_with_shared_weights_run_from_their_models(tmp_path: Path) -> None:
    folder = make_genie(tmp_path / "bundle", both_parts(shared_bytes=4096))
    for kind, tokens in (("prompt", 128), ("token", 1)):
        for number in (1, 2):
            (folder / f"{kind}_ar{tokens}_cl{LENGTH}_{number}_of_2.onnx").write_bytes(b"")
    remarks = load_bundle(folder).remarks
    assert [remark.partition(" because")[0] for remark in remarks] == [
        f"{name} ran from the .onnx files of its graphs," for name in PARTS
    ]


def test_a_refusal_of_shared_weights_says_why_a_dlc_does_not_help(tmp_path: Path) -> None:
    folder = make_genie(tmp_path / "bundle", both_parts(shared_bytes=4096))
    for is_there in (False, True):
        if is_there:
            (folder / "model.dlc").touch()
        with pytest.raises(UnfitError) as caught:
            load_bundle(folder)
        assert "Shared weights buffer isn't supported" in caught.value.why
        assert ("crashes on a DLC" in caught.value.why) == is_there
        assert f"prompt_ar128_cl{LENGTH}_1_of_2.onnx" in caught.value.fix
