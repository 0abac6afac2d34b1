"""The files of the model itself in a folder for Genie, which say otherwise than its configuration:
one fault each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.build.genie import HEAD, VOCABULARY, Change
from tests.build.genie_faults import (
    FITS,
    FOR_PHONE,
    Row,
    both,
    by_positional_encoding,
    make_tests,
    put,
)

LLAMA = {"rope-type": "llama3", "factor": 32.0, "low-freq-factor": 1.0, "high-freq-factor": 4.0}
SCALING = {**LLAMA, "original-max-position-embeddings": 8192}
THETA, LINEAR = 500000, {"rope_type": "linear", "factor": 2.0}
MODEL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "head_dim": HEAD,
    "num_hidden_layers": 2,
    "eos_token_id": [2, 3],
    "rope_theta": THETA,
    "rope_scaling": {key.replace("-", "_"): value for key, value in SCALING.items()},
}


def write(name: str, document: object) -> Change:
    """The folder has a file of the model."""
    return lambda folder, _: (folder / name).write_text(json.dumps(document))


def write_model(**changes: Any) -> Change:
    """The folder has a config.json, some of whose values are other ones; None leaves one out."""
    document = {key: value for key, value in {**MODEL, **changes}.items() if value is not None}
    return write("config.json", document)


def scale_positions(**changes: Any) -> Change:
    """The rotations are those of Llama 3, some of whose numbers are other ones."""
    scaling = {**SCALING, **{key.replace("_", "-"): value for key, value in changes.items()}}
    encoding = by_positional_encoding(HEAD // 2)
    return both(encoding, put("engine model positional-encoding rope-scaling", scaling))


def only_eos(number: int) -> Change:
    """Answers end at one token."""
    return put("context eos-token", number)


LLAMA_MODEL = both(scale_positions(), write_model())
NESTED = {"model_type": "qwen3_vl", "text_config": {**MODEL, "num_hidden_layers": 4}}
FAULTS: dict[str, Row] = {
    "the factor of an older model": Row(
        "ai-hub-models 337",
        both(scale_positions(factor=8.0), write_model()),
        [],
        FITS,
        {"QNN996": "rope-scaling.factor is 8, and config.json says 32"},
    ),
    "the base of another model": Row(
        "ai-hub-models 339",
        both(scale_positions(), write_model(rope_theta=10000.0)),
        [],
        FITS,
        {"QNN996": "positional-encoding.rope-theta is 500000, and config.json says 10000"},
    ),
    "the base where newer releases of transformers write it": Row(
        "ai-hub-models 339",
        both(
            scale_positions(),
            write_model(rope_theta=None, rope_scaling=None, rope_parameters={"rope_theta": 1e6}),
        ),
        [],
        FITS,
        {"QNN996": "positional-encoding.rope-theta is 500000, and config.json says 1e+06"},
    ),
    "no scaling": Row(
        "ai-hub-models 337",
        both(by_positional_encoding(HEAD // 2), write_model()),
        [],
        FITS,
        {"QNN996": "rope-scaling is missing, and config.json says rope_type llama3"},
    ),
    "the layers of a larger model": Row(
        "ai-hub-models 332",
        both(scale_positions(), write_model(num_hidden_layers=3)),
        [],
        FITS,
        {"QNN996": "the number of layers with caches is 2, and config.json says num_hidden_layers"},
    ),
    "the text of a model with several parts": Row(
        "ai-hub-models 335",
        both(scale_positions(), write("config.json", NESTED)),
        [],
        FITS,
        {"QNN996": "the number of layers with caches is 2, and config.json says num_hidden_layers"},
    ),
    "a context that is longer than the model's": Row(
        "ai-hub-apps 52",
        both(scale_positions(), write_model(max_position_embeddings=512)),
        [],
        FITS,
        {"QNN996": "dialog.context.size is 1024, and config.json says max_position_embeddings 512"},
    ),
    "the start of a text of another model": Row(
        "ai-hub-models 337",
        both(scale_positions(), write_model(bos_token_id=2)),
        [],
        FITS,
        {"QNN996": "dialog.context.bos-token is 1, and config.json says bos_token_id 2"},
    ),
    "the embeddings of a larger model": Row(
        "ai-hub-models 337",
        both(scale_positions(), write_model(hidden_size=128)),
        [],
        FITS,
        {"QNN996": "the size of an embedding in the graphs is 64, and config.json says"},
    ),
    "the end of a text beyond the vocabulary": Row(
        "ai-hub-apps 57",
        write("generation_config.json", {"eos_token_id": [128001, 128009]}),
        [],
        FITS,
        {"QNN996": "n-vocab is 512, and generation_config.json says eos_token_id 128009"},
    ),
    "the heads of another model": Row(
        "ai-hub-models 337",
        both(scale_positions(), write_model(num_attention_heads=16, num_key_value_heads=8)),
        [],
        FITS,
        {"QNN996": "the number of heads in the caches is 4, and config.json says num_key_value_"},
    ),
    "the metadata of an export in more parts": Row(
        "GenieX 1257",
        write("metadata.json", {"model_files": {f"part{number}_of_3.bin": {} for number in "123"}}),
        [],
        FITS,
        {"QNN996": "the number of parts is 2, and metadata.json says 3"},
    ),
    "the vocabulary of another model": Row(
        "ai-hub-apps 61",
        both(scale_positions(), write_model(vocab_size=VOCABULARY + 64)),
        [],
        FITS,
        {"QNN996": "dialog.context.n-vocab is 512, and config.json says 576"},
    ),
    "the end of a text in generation_config.json": Row(
        "ai-hub-models 143",
        both(only_eos(1), write("generation_config.json", {"eos_token_id": 2})),
        [],
        FITS,
        {"QNN997": "eos-token lacks 2 (<2>), which ends a text by generation_config.json"},
    ),
    "the end of a text in tokenizer_config.json": Row(
        "ai-hub-models 143",
        both(only_eos(1), write("tokenizer_config.json", {"eos_token": {"content": "<3>"}})),
        [],
        FITS,
        {"QNN997": "eos-token lacks 3 (<3>), which ends a text by tokenizer_config.json"},
    ),
}
SHARED = {"num_hidden_layers": 4, "num_kv_shared_layers": 2}
HYBRID = {"num_hidden_layers": 4, "layer_types": ["full_attention", "linear_attention"] * 2}
RIGHT: dict[str, tuple[Change, Sequence[str]]] = {
    "with the files of its model": (
        both(
            LLAMA_MODEL,
            write("generation_config.json", {"eos_token_id": [2, 3]}),
            write("tokenizer_config.json", {"eos_token": "<3>"}),
            write("metadata.json", {"model_files": {f"part{each}_of_2.bin": {} for each in "12"}}),
        ),
        FOR_PHONE,
    ),
    "with a context that its scaling reaches": (
        both(
            by_positional_encoding(HEAD // 2),
            put(
                "engine model positional-encoding rope-scaling",
                {"rope-type": "linear", "factor": 2.0},
            ),
            write_model(max_position_embeddings=512, rope_scaling=LINEAR),
        ),
        FOR_PHONE,
    ),
    "with a bos token in its prompts": (
        both(scale_positions(), both(put("context bos-token", -1), write_model(bos_token_id=1))),
        FOR_PHONE,
    ),
    "with a key for several heads": (
        both(scale_positions(), write_model(num_attention_heads=8, num_key_value_heads=4)),
        FOR_PHONE,
    ),
    "with layers that share caches": (both(scale_positions(), write_model(**SHARED)), FOR_PHONE),
    "with layers without caches": (both(scale_positions(), write_model(**HYBRID)), FOR_PHONE),
    "with a config.json of a program": (
        write("config.json", {"eos_token_id": 7, "num_hidden_layers": 9}),
        FOR_PHONE,
    ),
    "with damaged files of its model": (
        lambda folder, _: (folder / "config.json").write_text("{"),
        FOR_PHONE,
    ),
}


test_a_folder_is_judged_by_its_fault, test_a_right_folder_is_judged_by_nothing = make_tests(
    FAULTS, RIGHT
)
