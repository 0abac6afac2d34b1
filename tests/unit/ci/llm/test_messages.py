"""Everything that a user's decoder, tokenizer or program may be refused for, as it is shown."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.llm import subject as known
from ci.llm.families import HEADER
from ci.llm.foreign import read_interface
from ci.llm.interface import DECODE, PREFILL
from ci.llm.subject import find_files
from ci.llm.tokenizers import read_tokenizer
from ci.llm.weights import read_weights
from ci.models.tensors import TensorInfo
from provisioning.console.progress import Progress
from provisioning.documents import POINTER
from provisioning.errors import QnnCiError
from provisioning.manifest.targets import KnownDecoder, PinnedFile
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.llm.decoders import PLACE, SIZES
from tests.unit.ci.llm.test_foreign import CONSTANTS, DECLARED, list_inputs

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}


def list_programs() -> Iterator[Callable[[], Any]]:
    """Programs that are no static Llama, and some with two layers and a cache of another shape:
    two caches of keys come first, then two of values."""
    prefill, decode = list_inputs(32), list_inputs(1)
    wide, odd = TensorInfo("uint8", (1, 4, 8, 126)), TensorInfo("uint8", (1, 4, 9, 9))
    constants = {**CONSTANTS, "get_n_layers": 2}
    static_inputs = {
        name: (*inputs[:3], inputs[3], inputs[3], inputs[4], inputs[4])
        for name, inputs in ((PREFILL, prefill), (DECODE, decode))
    }
    two_layers = replace(DECLARED, constants=constants, inputs=static_inputs)
    assert read_interface("m.pte", two_layers).layers == 2
    for name, inputs_of_method in static_inputs.items():
        for place in (4, 5, 6):
            inputs = {
                **static_inputs,
                name: (*inputs_of_method[:place], odd, *inputs_of_method[place + 1 :]),
            }
            yield lambda inputs=inputs: read_interface("m.pte", replace(two_layers, inputs=inputs))
    changes: list[dict[str, Any]] = [
        {"inputs": {DECODE: decode}},
        {"inputs": {PREFILL: prefill}},
        {"inputs": {PREFILL: prefill, DECODE: decode[:2]}},
        {"inputs": {PREFILL: prefill, DECODE: (*decode[:3], wide, decode[4])}},
        {"inputs": {PREFILL: (*prefill[:4], wide), DECODE: decode}},
        {"inputs": {PREFILL: prefill, DECODE: (*decode[:4], wide)}},
        {"inputs": {PREFILL: decode, DECODE: decode}},
        {"inputs": {PREFILL: list_inputs(16)[:3] + prefill[3:], DECODE: decode}},
        {"constants": CONSTANTS | {"get_logits_scale": 0.0}},
        {"outputs": {DECODE: (TensorInfo("uint16", (1, 32, 512)),)}},
        {"constants": {}},
        *({"constants": CONSTANTS | {name: 3}} for name in ("get_n_layers", "get_n_kv_heads")),
        *({"constants": CONSTANTS | {name: 3}} for name in ("get_head_dim", "get_vocab_size")),
        {"constants": CONSTANTS | {"get_max_context_len": 127}},
        {"constants": CONSTANTS | {"get_kv_io_bit_width": 16}},
    ]
    for change in changes:
        yield lambda change=change: read_interface("m.pte", replace(DECLARED, **change))


def list_tokenizers(place: Path) -> Iterator[Callable[[], Any]]:
    tokenizer = read_tokenizer(PLACE / "tokenizer.bin")
    yield lambda: tokenizer.require("m.pte", vocabulary=512)
    tokenizer.require("m.pte", vocabulary=57, bos=1, eos=2)
    tokenizer.require("m.pte", vocabulary=None, bos=None, eos=None)
    yield lambda: tokenizer.require("m.pte", vocabulary=57, bos=1, eos=128)
    yield lambda: tokenizer.require("m.pte", vocabulary=57, bos=0)
    yield lambda: replace(tokenizer, bos=-1).prompt("")
    yield lambda: tokenizer.encode("\u4e2d")
    row = struct.pack("<fi", 0.0, 1) + b"a"
    for name, data in (
        ("t.txt", b""),
        ("empty.bin", b""),
        ("cut.bin", struct.pack("<4i", 2, 1, 2, 1) + row),
        ("broken.bin", b"no tokenizer at all"),
        ("pointer.model", POINTER + b"/spec/v1"),
    ):
        (place / name).write_bytes(data)
        yield lambda name=name: read_tokenizer(place / name)
    yield lambda: read_tokenizer(place / "gone.bin")


def list_weights(place: Path) -> Iterator[Callable[[], Any]]:
    yield lambda: read_weights(place / "gone.bin")
    for name, data in (
        ("short.bin", b"12"),
        ("longer.bin", HEADER.pack(8, 16, 1, 2, 2, 4, 16) + bytes(5)),
        ("odd.bin", HEADER.pack(6, 16, 1, 2, 2, 4, 16)),
        ("heads.bin", HEADER.pack(8, 16, 1, 2, 3, 4, 16)),
        ("none.bin", HEADER.pack(8, 16, 0, 2, 2, 4, 16)),
        ("headless.bin", HEADER.pack(8, 16, 1, 0, 2, 4, 16)),
        *((f"part{n}.bin", (PLACE / "weights.bin").read_bytes()[:n]) for n in (0, 8, 100, -1)),
        ("more.bin", (PLACE / "weights.bin").read_bytes() + bytes(4)),
    ):
        (place / name).write_bytes(data)
        yield lambda name=name: read_weights(place / name)
    for number, values in enumerate(
        (
            {"model_type": "gpt2"},
            {"hidden_act": "gelu"},
            {"model_type": "gemma", "hidden_activation": "silu"},
            {"mlp_bias": True},
            {"rope_scaling": {"type": "linear"}},
            {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            {"partial_rotary_factor": 0.0},
            {"partial_rotary_factor": 0.5},
            {"model_type": "phi3", "partial_rotary_factor": 0.001},
            {"model_type": "granite", "logits_scaling": 0},
            {"model_type": "gemma2", "query_pre_attn_scalar": -1},
            {"model_type": "gemma3_text", "layer_types": ["sliding_attention"]},
            {
                "model_type": "gemma3_text",
                "rope_parameters": {"sliding_attention": {"rope_theta": "x"}, "full_attention": 5},
            },
            {"model_type": "gemma3_text", "use_bidirectional_attention": True},
            {"rope_scaling": {"rope_type": "llama3", "factor": "2"}},
            {"rope_scaling": {**LLAMA3, "factor": 0}},
            {"rope_scaling": {**LLAMA3, "high_freq_factor": 1}},
            {"num_hidden_layers": 0},
            {"rms_norm_eps": 0},
            {"rope_theta": -1.0},
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            {"rope_scaling": {"factor": 2.0}},
            {"num_key_value_heads": 3},
            {"vocab_size": "many"},
        )
    ):
        folder = place / f"model{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES, **values}))
        yield lambda folder=folder: read_weights(folder)
    folder = place / "model"
    folder.mkdir()
    yield lambda: read_weights(folder)
    config = {"model_type": "llama", **SIZES}
    (place / "bare").mkdir()
    (place / "bare/config.json").write_text(json.dumps(config))
    yield lambda: read_weights(place / "bare")
    yield lambda: read_weights(place / "bare/config.json")
    headers: list[Any] = [
        b"12345678",
        POINTER + b"/spec/v1",
        struct.pack("<Q", 99) + b"{}",
        *(
            {"a": {"dtype": kind, "shape": [1], "data_offsets": ends}}
            for kind, ends in (("I8", [0, 1]), ("F32", [0, 8]), ("F32", [4, 0]), ("F32", [-4, 0]))
        ),
        {"a": {"dtype": "F32", "shape": [1]}},
        *(
            {"a": {"dtype": kind, "shape": shape, "data_offsets": [0, 4]}}
            for kind, shape in (("F32", [2]), ("F16", [1]), ("F32", [-1]))
        ),
        *(
            len(text).to_bytes(8, "little") + text
            for text in (b"[]", b"5", b'"text"', b"null", b'{"a": 5}', b"\xff", b"[" * 99_999)
        ),
        {"__metadata__": {}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
    ]
    for header in headers:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        data = text if isinstance(header, bytes) else struct.pack("<Q", len(text)) + text

        def read(data: bytes = data) -> Any:
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "model.safetensors").write_bytes(data + bytes(4))
            return read_weights(folder)

        yield read
    maps = (b"", b"\xff", b"5", b"[]", b"{}", b'{"weight_map": 3}', b'{"weight_map": [1]}')
    for index in (*maps, b'{"weight_map": ' + b"[" * 99_999):

        def read_index(index: bytes = index) -> Any:
            (folder / "model.safetensors").unlink(missing_ok=True)
            (folder / "model.safetensors.index.json").write_bytes(index)
            return read_weights(folder)

        yield read_index


def list_known(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    pins = [PinnedFile(f"https://example.org/{name}.bin", 64 * "a", 4) for name in ("w", "t")]
    story = KnownDecoder("a story", "MIT", ("Once",), pins[0], pins[1])
    monkeypatch.setattr(known, "read_decoders", lambda: {"story": story})
    monkeypatch.setenv("QNN_CI_HOME", str(place / "home"))
    user_folder = place / "given"
    user_folder.mkdir()
    (user_folder / "w.bin").write_bytes(b"1234")
    for environ in ({"QNN_CI_STORY": str(user_folder)}, {}):
        yield lambda environ=environ: find_files("story", Progress(), offline=True, environ=environ)


def test_every_llm_error_message_reads_as_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_calls = [
        *list_programs(),
        *list_tokenizers(tmp_path),
        *list_weights(tmp_path),
        *list_known(tmp_path, monkeypatch),
    ]
    lines = []
    for make in wrong_calls:
        with pytest.raises(QnnCiError) as caught:
            make()
        lines.append(str(caught.value).replace(str(tmp_path), "PLACE"))
    check_snapshot(Path(__file__).parent / "snapshots" / "messages.txt", "\n".join(lines) + "\n")
