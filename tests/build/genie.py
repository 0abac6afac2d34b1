"""Folders for Genie, laid out as qai-hub-models exports them: two parts, each with a graph for
prompts and one for single tokens, a tokenizer and the settings of the HTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.stand_ins.lowered import Port, make_binary

VOCABULARY, LENGTH, HIDDEN, HEAD = 512, 1024, 64, 16
INT32, UFIXED8 = 0x0032, 0x0408
KINDS = MappingProxyType({"prompt": 128, "token": 1})
HEADS: Mapping[str, int] = MappingProxyType({})  # nothing that differs from the usual
SCALES: Mapping[str, float] = MappingProxyType({})
NO_PORTS: Mapping[str, Port] = MappingProxyType({})
CACHE_SCALE = 0.5
PARTS = ("model_part_1_of_2.bin", "model_part_2_of_2.bin")
Change = Callable[[Path, dict[str, Any]], object]
PortChange = Callable[
    [int, dict[str, Sequence[int] | Port], dict[str, Sequence[int] | Port]], object
]


def make_config() -> dict[str, Any]:
    """The configuration, with all keys that libGenie requires."""
    htp = {
        "version": 1,
        "spill-fill-bufsize": 0,
        "mmap-budget": 0,
        "use-mmap": True,
        "cpu-mask": "0xe0",
        "poll": True,
        "kv-dim": HEAD,
        "pos-id-dim": HEAD // 2,
    }
    backend = {"version": 1, "type": "QnnHtp", "QnnHtp": htp, "extensions": "htp_config.json"}
    binary = {"version": 1, "ctx-bins": [*PARTS]}
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "context": {
                "version": 1,
                "size": LENGTH,
                "n-vocab": VOCABULARY,
                "bos-token": 1,
                "eos-token": [2, 3],
            },
            "tokenizer": {"version": 1, "path": "tokenizer.json"},
            "engine": {
                "version": 1,
                "n-threads": 3,
                "backend": backend,
                "model": {"version": 1, "type": "binary", "binary": binary},
            },
        }
    }


def make_part(
    number: int,
    *,
    hidden: int = HIDDEN,
    logits: int = VOCABULARY,
    kinds: Mapping[str, int] = KINDS,
    heads: Mapping[str, int] = HEADS,
    room: int = 0,
    contexts: Mapping[str, int] = HEADS,
    first: Port | None = None,
    new_scale: float = CACHE_SCALE,
    extra: Mapping[str, Port] = NO_PORTS,
    scales: Mapping[str, float] = SCALES,
    layer: int | None = None,
    hidden_scale: float = 0,
    has_logits: bool = True,
    new_rows: int = 0,
    id_type: int = INT32,
    change: PortChange = lambda *_: None,
    **how: Any,
) -> bytes:
    """A context binary with the graphs of part ``number`` of two.

    ``kinds`` are its graphs with their numbers of tokens, ``heads`` the heads of their caches, and
    ``contexts`` the lengths of their contexts if they are not LENGTH.
    ``room`` is the room that the caches have beyond what is needed, ``first`` the input of part 1
    that replaces token ids, ``new_scale`` the scale of new keys and values, ``extra`` more
    inputs, and ``scales`` the scales of all caches that differ from the usual. ``layer`` is the
    number of the layer, by default that of the part, and ``hidden_scale`` quantizes what the parts
    pass on. ``new_rows`` is the number of
    new keys and values, if it is not that of the tokens, and ``id_type`` the type of token ids.
    ``change`` gets the number of tokens of each graph, with its inputs and outputs.
    """
    ports = {}
    for kind, tokens in kinds.items():
        context = contexts.get(kind, LENGTH)
        length, count = context - tokens + room, heads.get(kind, 4)
        rows = new_rows or tokens
        layer = number - 1 if layer is None else layer
        scale = scales.get(kind, CACHE_SCALE)
        result_scale = scales.get(kind, new_scale)
        passed = Port((1, tokens, HIDDEN), UFIXED8, hidden_scale) if hidden_scale else None
        takes: dict[str, Sequence[int] | Port] = {
            f"past_key_{layer}_in": Port((count, 1, HEAD, length), UFIXED8, scale),
            f"past_value_{layer}_in": Port((count, 1, length, HEAD), UFIXED8, scale),
            "position_ids_cos": (1, 1, tokens, HEAD // 2),
            "position_ids_sin": (1, 1, tokens, HEAD // 2),
            "attention_mask": (1, 1, tokens, context),
        }
        gives: dict[str, Sequence[int] | Port] = {
            f"past_key_{layer}_out": Port((count, 1, HEAD, rows), UFIXED8, result_scale),
            f"past_value_{layer}_out": Port((count, 1, rows, HEAD), UFIXED8, result_scale),
        }
        ids = {"input_ids": Port((1, tokens), id_type)}
        if first:
            ids = {"inputs_embeds": first._replace(shape=(1, tokens, first.shape[-1]))}
        takes |= ids if number == 1 else {"hidden": passed or (1, tokens, hidden)}
        if number == 1:
            gives["hidden"] = passed or (1, tokens, HIDDEN)
        elif has_logits:
            gives["logits"] = (1, tokens, logits)
        takes |= extra
        change(tokens, takes, gives)
        ports[f"{kind}_ar{tokens}_cl{context}_{number}_of_2"] = (takes, gives)
    return make_binary(graphs=[*ports], ports=ports, **how)


def make_tokenizer(size: int = VOCABULARY) -> dict[str, Any]:
    """A tokenizer.json whose tokens 1, 2 and 3 are special."""
    special = [{"id": number, "content": f"<{number}>", "special": True} for number in (1, 2, 3)]
    vocabulary = {f"t{number}": number for number in range(4, size)}
    return {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": special}


def make_genie(folder: Path, change: Change = lambda *_: None) -> Path:
    """A folder in which all parts fit each other. ``change`` gets it and its configuration, which
    is written afterwards unless ``change`` wrote it."""
    folder.mkdir()
    for number, name in enumerate(PARTS, start=1):
        (folder / name).write_bytes(make_part(number))
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer()))
    devices = {"devices": [{"soc_model": 57, "dsp_arch": "v75"}]}
    (folder / "htp_config.json").write_text(json.dumps(devices))
    config = make_config()
    change(folder, config)
    if not (folder / "genie_config.json").exists():
        (folder / "genie_config.json").write_text(json.dumps(config))
    return folder


def encode_positions(config: dict[str, Any], *, rope_dim: int, rope_theta: int) -> None:
    """Describe a configuration's positions by positional-encoding instead of pos-id-dim."""
    engine = config["dialog"]["engine"]
    del engine["backend"]["QnnHtp"]["pos-id-dim"]
    encoding = {"type": "rope", "rope-dim": rope_dim, "rope-theta": rope_theta}
    engine["model"]["positional-encoding"] = encoding
