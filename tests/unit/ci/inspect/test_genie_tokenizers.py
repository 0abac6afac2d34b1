"""The tokenizer of a folder for Genie, and the tokens of its configuration: one fault each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.build.genie import VOCABULARY, Change, make_tokenizer
from tests.build.genie_faults import (
    FITS,
    FOR_PHONE,
    WRONG,
    Row,
    both,
    make_tests,
    put,
    tokenizer,
)
from tests.build.litert_bundles import read_part


def name_specials(*texts: str) -> Change:
    """The special tokens from 1 have these texts."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        document = make_tokenizer()
        for row, text in zip(document["added_tokens"], texts, strict=True):
            row["content"] = text
        (folder / "tokenizer.json").write_text(json.dumps(document))

    return change


def merge(*merges: object) -> Change:
    """The tokenizer has these merges, and the tokens that two right ones make."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        document = make_tokenizer()
        words = document["model"]["vocab"]
        words |= {"t4t5": words.pop("t100"), "t6t7": words.pop("t101")}
        document["model"]["merges"] = merges
        (folder / "tokenizer.json").write_text(json.dumps(document))

    return change


def write_sentencepiece(folder: Path, _: dict[str, Any]) -> None:
    """The folder has the tokenizer of ``tiny``."""
    (folder / "tokenizer.model").write_bytes(read_part("tokenizer.model"))


def repeat_id(folder: Path, _: dict[str, Any]) -> None:
    """An added token has the id of another one."""
    document = make_tokenizer()
    document["added_tokens"].append({"id": 3, "content": "<extra>", "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(document))


FAULTS: dict[str, Row] = {
    "an id of two tokens": Row(
        "ai-hub-models 129",
        repeat_id,
        [],
        FITS,
        {"QNN998": "the id 3 is twice in tokenizer.json: <3> and <extra>"},
    ),
    "the tokenizer of a smaller model": Row(
        "ai-hub-models 129", tokenizer(VOCABULARY // 4), [], FITS, {"QNN974": "ids up to 127 only"}
    ),
    "no end of a turn": Row(
        "ai-hub-models 143",
        both(name_specials("<s>", "</s>", "<|eot_id|>"), put("context eos-token", 2)),
        [],
        FITS,
        {"QNN981": "eos-token lacks 3, which is <|eot_id|> in the tokenizer"},
    ),
    "the prompt of another model": Row(
        "foundry-local 1001",
        lambda folder, _: (folder / "prompt.json").write_text('{"user": "<|im_start|>user"}'),
        [],
        FITS,
        {"QNN985": "prompt.json writes <|im_start|>, which the tokenizer does not have"},
    ),
    "the bos of another model": Row(
        "ai-hub-apps 61",
        put("context bos-token", 128000),
        [],
        FITS,
        {"QNN960": "dialog.context.bos-token is 128000"},
    ),
    "a stop sequence of another model": Row(
        "foundry-local 1001",
        put("stop-sequence", ["<|im_end|>"]),
        [],
        FITS,
        {"QNN985": "genie_config.json writes <|im_end|>, which the tokenizer does not have"},
    ),
    "a prompt that is no JSON": Row(
        "qai-appbuilder 28",
        lambda folder, _: (folder / "prompt.json").write_text('{"user": '),
        [],
        FITS,
        {"QNN948": "prompt.json cannot be read"},
    ),
    "a merge of another vocabulary": Row(
        "ai-hub-models 129",
        merge(["t4", "zz"]),
        [],
        WRONG,
        {"QNN950": "a merge has the token 'zz', which is not in the vocabulary"},
    ),
    "a tokenizer of sentencepiece": Row(
        "ai-hub-apps 61",
        both(put("tokenizer path", "tokenizer.model"), write_sentencepiece),
        [],
        WRONG,
        {"QNN950": "tokenizer.model is not valid: it is of sentencepiece"},
    ),
    "a page for a login": Row(
        "flutter_gemma 85",
        lambda folder, _: (folder / "tokenizer.json").write_text("<!DOCTYPE html>"),
        [],
        WRONG,
        {"QNN950": "tokenizer.json is not valid: it is a web page"},
    ),
    "an end of a turn of another model": Row(
        "qai-appbuilder 90",
        put("context eot-token", VOCABULARY),
        [],
        FITS,
        {"QNN960": "dialog.context.eot-token is 512"},
    ),
}
RIGHT: dict[str, tuple[Change, Sequence[str]]] = {
    "with merges": (merge(["t4", "t5"], "t6 t7"), FOR_PHONE),
    "with prompts and a stop sequence": (
        both(
            put("stop-sequence", ["User:"]),
            lambda folder, _: (folder / "prompt.json").write_text('{"user": "User: "}'),
        ),
        FOR_PHONE,
    ),
    "with an end of a turn": (
        both(name_specials("<s>", "</s>", "<|eot_id|>"), put("context eos-token", [2, 3])),
        FOR_PHONE,
    ),
}


test_a_folder_is_judged_by_its_fault, test_a_right_folder_is_judged_by_nothing = make_tests(
    FAULTS, RIGHT
)
