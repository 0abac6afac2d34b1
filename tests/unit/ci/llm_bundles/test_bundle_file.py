"""Bundles of LiteRT-LM that are refused before anything runs, and what is read of right ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.llm.bundle_file import (
    LlmMetadata,
    decompress,
    list_fields,
    parse_metadata,
    read_bundle,
)
from provisioning.doctor.survey.context_binaries import TensorSpec
from provisioning.doctor.survey.programs import Method
from provisioning.errors import FailedError, UsageError
from tests.build.litert_bundles import (
    LLM,
    make_compiled_decoder,
    make_tiny,
    pack_sections,
    read_part,
    write_tiny,
)
from tests.stand_ins.litert import make_plain


def test_chunks_caches_and_metadata_of_a_bundle_are_read(tmp_path: Path) -> None:
    bundle = read_bundle(write_tiny(tmp_path / "tiny.litertlm"))
    assert bundle.chunks == (8,)
    assert [(cache.name, cache.axis) for cache in bundle.caches] == [
        ("kv_cache_k_0", 2),
        ("kv_cache_k_1", 2),
        ("kv_cache_v_0", 3),
        ("kv_cache_v_1", 3),
    ]
    assert (bundle.context, bundle.vocabulary, bundle.is_compiled) == (64, 57, False)
    assert bundle.metadata == LlmMetadata((1,), (2,), 64, (1, 2))


def rename(part: str, old: bytes, new: bytes) -> bytes:
    data = read_part(part)
    assert old in data
    return data.replace(old, new)


def add_layers(method: Method) -> Method:
    """The decoder takes embeddings per layer."""
    port = TensorSpec("per_layer_embeddings", "float32", (1, 1, 2, 4))
    return replace(method, inputs=(*method.inputs, port))


def name_context(method: Method) -> Method:
    """A signature names the length of its context, of which there are several."""
    return replace(method, name=f"{method.name}_cache_64")


def shorten_caches(method: Method) -> Method:
    """The second layer has a sliding window of 16 tokens."""
    ports = []
    for port in method.inputs:
        is_second = port.name in {"kv_cache_k_1", "kv_cache_v_1"}
        shape = tuple(16 if size == 64 else size for size in port.shape)
        ports.append(replace(port, shape=shape) if is_second else port)
    return replace(method, inputs=tuple(ports))


# What is wrong with a bundle, and what the refusal says.
WRONG: dict[str, tuple[Callable[[], bytes], str]] = {
    "embeddings per layer": (
        lambda: make_tiny(decoder=make_compiled_decoder(add_layers)),
        "takes per_layer_embeddings",
    ),
    "a ring buffer": (
        lambda: make_tiny(decoder=make_compiled_decoder(shorten_caches)),
        "has caches of 16, 64 tokens",
    ),
    "contexts of several lengths": (
        lambda: make_tiny(decoder=make_compiled_decoder(name_context)),
        "has signatures for several lengths of a context: prefill_8_cache_64",
    ),
    "no bundle": (lambda: b"x" * 100, "is not a bundle of LiteRT-LM"),
    "without auxiliary graphs": (lambda: make_tiny(auxiliary=None), "has no auxiliary graphs"),
    "without embedder": (lambda: make_tiny(embedder=None), "has no embedder"),
    "without decoder": (lambda: make_tiny(decoder=None), "has no decoder"),
    "without tokenizer": (lambda: make_tiny(tokenizer=None), "has no tokenizer"),
    "without metadata": (
        lambda: make_tiny(metadata=None),
        "has no metadata of the language model",
    ),
    "weights apart": (lambda: make_tiny(weights=b"w"), "has weights in a section apart"),
    "damaged metadata": (
        lambda: make_tiny(metadata=b"\x0a\xff"),
        "the metadata of the language model cannot be read",
    ),
    "another model as embedder": (
        lambda: make_tiny(embedder=make_plain()),
        "there is no signature prefill_embedder_8 in the embedder",
    ),
    "another model as auxiliary graphs": (
        lambda: make_tiny(auxiliary=read_part("embedder.tflite")),
        "there is no signature prefill_cache_update_8 in the auxiliary graphs",
    ),
    "a decoder without prefill": (
        lambda: make_tiny(decoder=rename("decoder.tflite", b"prefill_8\0", b"prefill_x\0")),
        "has no signature such as prefill_128",
    ),
    "a decoder without slices": (
        lambda: make_tiny(decoder=rename("decoder.tflite", b"kv_slice_v_1", b"kv_slice_w_1")),
        "has no output kv_slice_v_1",
    ),
    "a mask that is not told the position": (
        lambda: make_tiny(auxiliary=rename("auxiliary.tflite", b"time_step", b"time_stop")),
        "prefill_mask_8 has no input time_step",
    ),
    "an input that nobody writes": (
        lambda: make_tiny(auxiliary=rename("auxiliary.tflite", b"valid_mask", b"valid_rows")),
        "prefill_cache_update_8 has an input valid_rows",
    ),
    "an embedder of older names": (
        lambda: make_tiny(embedder=rename("embedder.tflite", b"token_ids", b"token_idx")),
        "prefill_embedder_8 has no input token_ids",
    ),
    "signatures of another chunk": (
        lambda: make_tiny(
            decoder=rename("decoder.tflite", b"prefill_8", b"prefill_4"),
            embedder=rename("embedder.tflite", b"prefill_embedder_8", b"prefill_embedder_4"),
            auxiliary=read_part("auxiliary.tflite").replace(b"_8\0", b"_4\0"),
        ),
        "token_ids of prefill_embedder_4 is [1, 8], and 4 needed",
    ),
    "embeddings of another name": (
        lambda: make_tiny(decoder=rename("decoder.tflite", b"embeddings", b"hidden_row")),
        "prefill_8 of tiny.litertlm has no input embeddings",
    ),
    "keys that are not written": (
        lambda: make_tiny(auxiliary=rename("auxiliary.tflite", b"kv_slice_k_1", b"no_slice_k_1")),
        "prefill_cache_update_8 has an input no_slice_k_1",
    ),
    "two decoders": (
        lambda: pack_sections([("decoder", {}), ("decoder", {})]),
        "has two sections of the kind LiteRT model, tf_lite_prefill_decode",
    ),
    "an embedder without a type": (
        lambda: pack_sections([("decoder", {}), ("embedder", {"model_type": None})]),
        "has two sections of the kind LiteRT model, tf_lite_prefill_decode",
    ),
    "two tokenizers of a kind": (
        lambda: pack_sections([("tokenizer", {}), ("tokenizer", {})]),
        "has two sections of the kind SentencePiece tokenizer",
    ),
    "two sets of metadata": (
        lambda: pack_sections([("metadata", {}), ("metadata", {})]),
        "has two sections of the kind metadata of the language model",
    ),
    "a mask of another name": (
        lambda: make_tiny(auxiliary=rename("auxiliary.tflite", b"mask_global", b"mask_locals")),
        "nothing computes mask_global, which prefill_8 reads",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_bundle_is_refused_with_the_cause(tmp_path: Path, fault: str) -> None:
    make, text = WRONG[fault]
    path = tmp_path / "tiny.litertlm"
    path.write_bytes(make())
    with pytest.raises((FailedError, UsageError)) as caught:
        read_bundle(path)
    assert text in str(caught.value)


@pytest.mark.parametrize("tenth", range(10))
def test_a_bundle_that_is_cut_is_refused(tmp_path: Path, tenth: int) -> None:
    whole_bundle = make_tiny()
    path = tmp_path / "tiny.litertlm"
    path.write_bytes(whole_bundle[: len(whole_bundle) * tenth // 10 + 8])
    with pytest.raises(FailedError, match="is cut short"):
        read_bundle(path)


def test_a_packed_tokenizer_is_unpacked() -> None:
    data = b'{"model": {}}'
    packed = len(data).to_bytes(8, "little") + zlib.compress(data)
    assert decompress("m", packed) == data
    for wrong in (packed[:-6], b"", (1 << 40).to_bytes(8, "little"), packed[:8] + b"no zlib"):
        with pytest.raises(FailedError):
            decompress("m", wrong)


def test_metadata_has_ids_or_texts() -> None:
    start = b"\x0a\x05\x12\x03<s>"
    stops = b"\x12\x06\x12\x04</s>\x12\x06\x0a\x04\x0a\x02\x05\x07"  # the last ids are packed
    assert parse_metadata("m", start + stops) == LlmMetadata(
        "<s>", ("</s>", 7), 0, (5, 7), ((5, 7),)
    )
    # Suppressed and padding tokens; -1 has all 64 bits.
    extra_tokens = b"\x4a\x04\x0a\x02\x09\x0a\x6a\x0d\x0a\x0b\x08" + b"\xff" * 9 + b"\x01"
    assert parse_metadata("m", extra_tokens) == LlmMetadata(ids=(-1, 9, 10), suppressed=(9, 10))


@given(st.binary(max_size=40))
def test_no_metadata_ends_in_anything_but_a_refusal(data: bytes) -> None:
    with suppress(FailedError):
        parse_metadata("m", data)


def test_fields_of_a_protobuf_message_are_numbers_or_bytes() -> None:
    assert [*list_fields(LLM)] == [
        (1, b"\x0a\x03\x0a\x01\x01"),
        (2, b"\x0a\x03\x0a\x01\x02"),
        (5, 64),
    ]
