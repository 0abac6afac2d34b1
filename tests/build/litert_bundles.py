"""Bundles of LiteRT-LM of the decoder ``tiny``, from tests/artifacts/litert_lm, right or with a
fault."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioning.doctor.survey.litert import parse_model
from provisioning.doctor.survey.programs import Method
from tests.stand_ins.litert import make_bundle, make_partitions
from tests.stand_ins.lowered import make_binary

PLACE = Path(__file__).parents[1] / "artifacts" / "litert_lm"
MODEL = 3  # the type of a section with a model
# packed is a tokenizer of Hugging Face
SECTIONS = {"tokenizer": 4, "metadata": 5, "packed": 6, "weights": 7}
TYPES = {
    "decoder": "tf_lite_prefill_decode",
    "embedder": "tf_lite_embedder",
    "auxiliary": "tf_lite_aux",
}
# LlmMetadata of LiteRT-LM: the start token 1, the stop token 2, and 64 tokens at most.
LLM = b"\x0a\x05\x0a\x03\x0a\x01\x01\x12\x05\x0a\x03\x0a\x01\x02\x28\x40"


def read_part(name: str) -> bytes:
    """The bytes of a part of ``tiny``."""
    return (PLACE / name).read_bytes()


def read_parts(**parts: bytes | None) -> dict[str, bytes | None]:
    """The parts of ``tiny`` by their names; ``parts`` replace some, None leaves one out."""
    usual: dict[str, bytes | None] = {name: read_part(f"{name}.tflite") for name in TYPES}
    return {**usual, "tokenizer": read_part("tokenizer.model"), "metadata": LLM, **parts}


def make_tiny(cut: int | None = None, **parts: bytes | None) -> bytes:
    """A bundle of ``tiny``; ``parts`` are as in read_parts, and ``cut`` shortens the file."""
    sections: list[tuple[int, bytes, Mapping[str, Any]]] = []
    for name, data in read_parts(**parts).items():
        if data is None:
            continue
        if name in TYPES:
            sections.append((MODEL, data, {"model_type": TYPES[name]}))
        else:
            sections.append((SECTIONS[name], data, {}))
    return make_bundle(sections, cut=cut)


def pack_sections(
    sections: Sequence[tuple[str, Mapping[str, Any]]], **parts: bytes | None
) -> bytes:
    """A bundle of these parts in this order, each with items of its section; None leaves one out.
    ``parts`` are as in read_parts."""
    contents, packed = read_parts(**parts), []
    for name, items in sections:
        usual = {"model_type": TYPES[name]} if name in TYPES else {}
        all_items = {key: value for key, value in {**usual, **items}.items() if value is not None}
        packed.append((SECTIONS.get(name, MODEL), contents[name] or b"", all_items))
    return make_bundle(packed)


def make_compiled_decoder(
    change: Callable[[Method], Method] = lambda it: it,
    stamp: bytes = b"",
    part: str = "decoder",
    **how: Any,
) -> bytes:
    """The decoder of ``tiny``, or another ``part``, as a plugin compiles it: one partition per
    signature, each of which ``change`` may change, with a context binary of make_binary(``how``).
    ``stamp`` names another manufacturer."""
    usual_methods = parse_model(memoryview(read_part(f"{part}.tflite")), part).methods
    methods = [change(method) for method in usual_methods]
    graphs = [f"qnn_partition_{number}" for number in range(len(methods))]
    soc = how.get("soc", ("SM8650", 57, 75))
    stamp = stamp or b"Qualcomm\0" + soc[0].encode()
    return make_partitions(methods, make_binary(graphs=graphs, **how), stamp)


def make_other_tokenizer() -> bytes:
    """A tokenizer of Hugging Face with two words, as it is in a bundle."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    data = json.dumps({"version": "1.0", "model": model}).encode()
    return len(data).to_bytes(8, "little") + zlib.compress(data)


def write_tiny(path: Path, **parts: bytes | None) -> Path:
    """Write a bundle of ``tiny``."""
    path.write_bytes(make_tiny(**parts))
    return path


def pack_tiny(path: Path, folder: Path, **parts: bytes | None) -> Path:
    """Write a bundle of ``tiny`` with litert-lm-builder. ``folder`` is for its parts."""
    from litert_lm_builder import litertlm_builder as builders

    builder = builders.LitertLmFileBuilder()
    author = builders.Metadata(key="Authors", value="tests", dtype=builders.DType.STRING)
    builder.add_system_metadata(author)
    files = {}
    for name, data in read_parts(**parts).items():
        files[name] = folder / f"{name}.{'tflite' if name in TYPES else 'pb'}"
        files[name].write_bytes(data or b"")
    builder.add_llm_metadata(str(files["metadata"]))
    builder.add_sentencepiece_tokenizer(str(files["tokenizer"]))
    for name, kind in TYPES.items():
        value = kind.removeprefix("tf_lite_")
        builder.add_tflite_model(
            str(files[name]), builders.TfLiteModelType.get_enum_from_tf_free_value(value)
        )
    with path.open("wb") as stream:
        builder.build(stream)
    return path


def plant_at_zero(auxiliary: bytes) -> bytes:
    """Auxiliary graphs that write each chunk at the start of the caches, so that only the last
    chunk of a prompt is there: the symptom of google-ai-edge/LiteRT-LM 3508."""
    import numpy as np

    from ci.graphs.litert_file import list_entries, name_operator, pack_model, read_model

    model = read_model(auxiliary)
    for entry in list_entries(model):
        if entry.key.startswith("prefill_cache_update"):
            for operator in model.subgraphs[entry.subgraph].operators:
                # It packs the place to write at: zeros, and the first position of the chunk.
                if name_operator(model, operator) == "PACK":
                    zero = operator.inputs[0]
                    operator.inputs = np.full(len(operator.inputs), zero, np.int32)
    return pack_model(model)
