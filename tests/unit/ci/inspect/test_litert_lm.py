"""Bundles of LiteRT-LM with one fault, as users met them, are judged by that fault alone, and right
ones by none."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from provisioning.doctor.survey.context_binaries import TensorSpec
from provisioning.doctor.survey.litert import parse_bundle
from provisioning.doctor.survey.programs import Method
from provisioning.errors import ExitCode
from tests.build.genie_faults import SKEL, of_another_machine
from tests.build.litert_bundles import (
    LLM,
    make_compiled_decoder,
    make_other_tokenizer,
    make_tiny,
    pack_sections,
    read_part,
)
from tests.stand_ins.android_apps import library, make_set, skel
from tests.stand_ins.litert import make_plain

OLDER = "v2.42.0.251225135753"
NEWER = "v2.51.0.261010101010"
EM_ARM = 40


def compiled(**sections: Any) -> Callable[[], bytes]:
    """A bundle whose decoder is compiled for SM8650; ``sections`` are as in make_tiny."""
    return lambda: make_tiny(**{"decoder": make_compiled_decoder(), **sections})


def rename(part: str, old: bytes, new: bytes) -> bytes:
    data = read_part(f"{part}.tflite")
    assert old in data
    return data.replace(old, new)


def sections(**items: Mapping[str, Any]) -> bytes:
    """A compiled bundle whose sections have these items. Further names are plain models."""
    names = ["decoder", "embedder", "auxiliary", "tokenizer", "metadata"]
    names += [name for name in items if name not in names]
    ordered = [(name, items.get(name, {})) for name in names]
    others = dict.fromkeys(names[5:], make_plain())
    return pack_sections(ordered, decoder=make_compiled_decoder(), **others)


def cut_table(rows: int) -> bytes:
    """An embedder of this many tokens, whose table is its first constant."""
    shape = struct.pack("<II", 57, 32)
    return rename("embedder", shape, struct.pack("<II", rows, 32))


def write_alone(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new folder."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def add_layers(method: Method) -> Method:
    """The decoder takes embeddings per layer."""
    port = TensorSpec("per_layer_embeddings", "float32", (1, 1, 2, 4))
    return replace(method, inputs=(*method.inputs, port))


def encode_slices(method: Method) -> Method:
    """Decode returns new keys in another encoding than that of the caches."""
    if method.name != "decode":
        return method
    ports = [
        replace(port, scale=0.25, zero_point=-3) if port.name == "kv_slice_k_0" else port
        for port in method.outputs
    ]
    return replace(method, outputs=tuple(ports))


def change_ports(
    side: str, name: str, part: str = "decoder", signature: str = "", **how: Any
) -> bytes:
    """A part one of whose ports is another one, in all signatures or in one."""

    def change(method: Method) -> Method:
        if signature not in {"", method.name}:
            return method
        ports = [
            replace(port, **how) if port.name == name else port for port in getattr(method, side)
        ]
        return replace(method, **{side: tuple(ports)})

    return make_compiled_decoder(change, part=part)


def leave_out(name: str, signature: str) -> bytes:
    """A decoder one of whose signatures lacks an input."""

    def change(method: Method) -> Method:
        inputs = tuple(port for port in method.inputs if port.name != name)
        return replace(method, inputs=inputs) if method.name == signature else method

    return make_compiled_decoder(change)


def pack_specials(*texts: str, merges: Sequence[str] = (), extra: str = "") -> bytes:
    """A tokenizer of Hugging Face for the decoder, as it is in a bundle, whose first tokens are
    special. ``extra`` is one more, with the id of the first one."""
    special = [
        {"id": number, "content": text, "special": True} for number, text in enumerate(texts)
    ]
    special += [{"id": 0, "content": extra, "special": True}] if extra else []
    vocabulary = {f"t{number}": number for number in range(len(texts), 57)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    data = json.dumps({"added_tokens": special, "model": model}).encode()
    return len(data).to_bytes(8, "little") + zlib.compress(data)


def with_template(text: bytes) -> Callable[[], bytes]:
    """A bundle with a template of Jinja of less than 128 bytes."""
    return compiled(metadata=LLM + b"\x3a" + bytes([len(text)]) + text)


def zero_end() -> bytes:
    """A download that broke off in a file whose size was reserved."""
    data = compiled()()
    start = len(data) * 6 // 10
    return data[:start] + bytes(len(data) - start)


def leave_out_result(name: str, signature: str) -> bytes:
    """A decoder one of whose signatures lacks an output."""

    def change(method: Method) -> Method:
        outputs = tuple(port for port in method.outputs if port.name != name)
        return replace(method, outputs=outputs) if method.name == signature else method

    return make_compiled_decoder(change)


NEW_LINE = LLM.replace(b"\x0a\x01\x01", b"\x0a\x01\x00")  # it starts with 0, and stops at 2
# Each: the thread, what is made, the options, and what is printed.
LITERT: dict[str, tuple[str, Callable[[], bytes], Sequence[str], str]] = {
    "another phone": ("LiteRT-LM 2079", compiled(), ["--soc", "SM8550"], "for SM8550: no"),
    "older libraries": ("LiteRT-LM 2226", compiled(), ["--runtime", "2.42.0"], "no (build)"),
    "no embedder": (
        "LiteRT-LM 1121",
        compiled(embedder=None),
        ["--soc", "SM8650"],
        "it has no tf_lite_embedder",
    ),
    "no auxiliary graphs": (
        "LiteRT-LM 1377",
        compiled(auxiliary=None),
        ["--soc", "SM8650"],
        "it has no tf_lite_aux",
    ),
    "no tokenizer": ("LiteRT-LM 1377", compiled(tokenizer=None), ["--soc", "SM8650"], "no token"),
    "another tokenizer": (
        "LiteRT-LM 3508",
        compiled(tokenizer=None, packed=make_other_tokenizer()),
        ["--soc", "SM8650"],
        "the tokenizer has 2 tokens, and the decoder 57 logits",
    ),
    "stop tokens of another model": (
        "LiteRT-LM 3508",
        compiled(metadata=LLM.replace(b"\x0a\x01\x02", b"\x0a\x01\x7f")),
        ["--soc", "SM8650"],
        "the metadata names the token 127",
    ),
    "auxiliary graphs of another chunk": (
        "LiteRT-LM 3508",
        compiled(auxiliary=rename("auxiliary", b"prefill_mask_8", b"prefill_mask_4")),
        ["--soc", "SM8650"],
        "there is no signature prefill_mask_8 in the auxiliary graphs",
    ),
    "a decoder for another manufacturer": (
        "LiteRT-LM 3109",
        lambda: make_tiny(decoder=make_compiled_decoder(stamp=b"MediaTek\0MT6989")),
        ["--soc", "SM8650"],
        "tf_lite_prefill_decode is compiled for MediaTek MT6989",
    ),
    "no stop tokens": (
        "LiteRT-LM 1466",
        compiled(metadata=LLM[:7] + LLM[14:]),
        ["--soc", "SM8650"],
        "the metadata names no stop token",
    ),
    "a damaged tokenizer": (
        "litert-torch 960",
        compiled(tokenizer=bytes(700)),
        ["--soc", "SM8650"],
        "the tokenizer is damaged",
    ),
    "a newer format": (
        "LiteRT-LM 2226",
        lambda: b"LITERTLM\2" + compiled()()[9:],
        ["--soc", "SM8650"],
        "it has version 2.7.0 of the format, and LiteRT-LM reads 1",
    ),
    "stop tokens that the tokenizer lacks": (
        "LiteRT-LM 3508",
        compiled(metadata=LLM[:7] + b"\x12\x08\x12\x06<turn>" + LLM[14:]),
        ["--soc", "SM8650"],
        "the metadata names the stop token <turn>, which the tokenizer does not have",
    ),
    "a suppressed token of another model": (
        "LiteRT-LM 3508",
        compiled(metadata=LLM + b"\x4a\x03\x0a\x01\x7f"),
        ["--soc", "SM8650"],
        "the metadata names the token 127",
    ),
    "a decoder for the GPU": (
        "LiteRT-LM 1121",
        lambda: sections(decoder={"backend_constraint": "gpu"}),
        ["--soc", "SM8650"],
        "the decoder's section has the backend_constraint gpu",
    ),
    "a type that LiteRT-LM does not know": (
        "LiteRT-LM 1472",
        lambda: sections(auxiliary={"model_type": "aux"}),
        ["--soc", "SM8650"],
        "a model has the type aux",
    ),
    "the embedder of another model": (
        "LiteRT-LM 1472",
        compiled(embedder=cut_table(20)),
        ["--soc", "SM8650"],
        "the embedder has 20 embeddings, and the decoder 57 logits",
    ),
    "a bundle for the CPU": (
        "LiteRT-LM 774",
        lambda: make_tiny(auxiliary=None),
        ["--soc", "SM8650"],
        "it has no tf_lite_aux",
    ),
    "a tokenizer that is not packed": (
        "litert-torch 960",
        compiled(tokenizer=None, packed=b'{"model": {}}'),
        ["--soc", "SM8650"],
        "the tokenizer is not compressed",
    ),
    "libraries of two SDKs": (
        "LiteRT-LM 2226",
        compiled(),
        ["--runtime-dir", "mixed"],
        "libQnnSystem.so in mixed is of QNN 2.42.0, and libQnnHtp.so of",
    ),
    "a library for the host": (
        "LiteRT-LM 1377",
        compiled(),
        ["--runtime-dir", "host"],
        "libQnnSystem.so in host is for x86-64, and the other libraries are for aarch64",
    ),
    "no libraries for the DSP": (
        "LiteRT-LM 1377",
        compiled(),
        ["--runtime-dir", "no_dsp"],
        "no_dsp has no libQnnHtpV75Stub.so",
    ),
    "a decoder that is not compiled": (
        "LiteRT-LM 1472",
        lambda: make_tiny(auxiliary=make_compiled_decoder()),
        ["--soc", "SM8650"],
        "the decoder is not compiled for the NPU, and tf_lite_aux is",
    ),
    "an embedder of another release": (
        "LiteRT-LM 1472",
        compiled(embedder=rename("embedder", b"embeddings", b"embeds_old")),
        ["--soc", "SM8650"],
        "prefill_embedder_8 has no output embeddings",
    ),
    "libraries for 32 bits": (
        "LiteRT-LM 1377",
        compiled(),
        ["--runtime-dir", "narrow"],
        "in narrow cannot be loaded: it is for arm, for which there is no QNN",
    ),
    "no library of QNN": (
        "flutter_gemma 293",
        compiled(),
        ["--runtime-dir", "only_litert"],
        "only_litert has no libQnnHtp.so",
    ),
    "a stripped skel": (
        "GenieX 1143",
        compiled(),
        ["--runtime-dir", "stripped"],
        "libQnnHtpV75Skel.so in stripped cannot be loaded: it was stripped",
    ),
    "embeddings per layer without their embedder": (
        "LiteRT-LM 2226",
        lambda: make_tiny(decoder=make_compiled_decoder(add_layers)),
        ["--soc", "SM8650"],
        "the decoder takes embeddings per layer, and there is no tf_lite_per_layer_embedder",
    ),
    "no dispatch library": (
        "LiteRT-LM 1466",
        compiled(),
        ["--runtime-dir", "libraries"],
        "libraries has no libLiteRtDispatch_Qualcomm.so",
    ),
    "a mask that only prefill takes": (
        "LiteRT-LM 3508",
        lambda: make_tiny(decoder=leave_out("mask_global", "decode")),
        ["--soc", "SM8650"],
        "does not read mask_global, and another signature does",
    ),
    "a cache that prefill does not take": (
        "LiteRT-LM 3342",
        lambda: make_tiny(decoder=leave_out("kv_cache_k_0", "prefill_8")),
        ["--soc", "SM8650"],
        "does not read kv_cache_k_0, and another signature does",
    ),
    "logits of two tokens": (
        "litert-torch 960",
        lambda: make_tiny(decoder=change_ports("outputs", "logits", shape=(1, 2, 57))),
        ["--soc", "SM8650"],
        "logits of decode are [1, 2, 57]",
    ),
    "tokens of another type": (
        "litert-torch 960",
        compiled(embedder=change_ports("inputs", "token_ids", "embedder", dtype="int64")),
        ["--soc", "SM8650"],
        "has the type int64",
    ),
    "metadata in the form of text": (
        "LiteRT-LM 1466",
        compiled(metadata=b"start_token { token_ids { ids: 1 } }"),
        ["--soc", "SM8650"],
        "it is in the text form of protobuf, and LiteRT-LM reads the binary one",
    ),
    "a merge of another vocabulary": (
        "litert-torch 960",
        compiled(tokenizer=None, packed=pack_specials("<s>", "</s>", "<x>", merges=["t4 zz"])),
        ["--soc", "SM8650"],
        "the tokenizer cannot be loaded: a merge has the token 'zz'",
    ),
    "no new values": (
        "LiteRT-LM 3342",
        lambda: make_tiny(decoder=leave_out_result("kv_slice_v_1", "decode")),
        ["--soc", "SM8650"],
        "has no output kv_slice_v_1",
    ),
    "the rotations of another model": (
        "litert-torch 960",
        compiled(
            auxiliary=change_ports(
                "outputs", "pos_emb_cos", "auxiliary", "decode_rope", shape=(1, 1, 1, 4)
            )
        ),
        ["--soc", "SM8650"],
        "pos_emb_cos is [1, 1, 1, 4], but decode reads [1, 1, 1, 8]",
    ),
    "a newer QNN for the embedder alone": (
        "LiteRT-LM 2226",
        compiled(embedder=make_compiled_decoder(part="embedder", build=NEWER)),
        ["--runtime", "2.49.40"],
        "tf_lite_embedder for QNN 2.49.40: no (build)",
    ),
    "a dispatch library of Git LFS": (
        "LiteRT-LM 1377",
        compiled(),
        ["--runtime-dir", "pointer"],
        "libLiteRtDispatch_Qualcomm.so in pointer cannot be loaded: an LFS pointer",
    ),
    "caches that are written in another shape": (
        "LiteRT-LM 3508",
        compiled(
            auxiliary=change_ports(
                "outputs", "kv_cache_k_0", "auxiliary", "decode_cache_update", shape=(1, 2, 32, 8)
            )
        ),
        ["--soc", "SM8650"],
        "but decode_cache_update returns",
    ),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the libraries of apps: of a ``whole`` one, and of others with a fault."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    of_litert = {name: library(name) for name in ("libLiteRt.so", "libLiteRtDispatch_Qualcomm.so")}
    whole, older = {**make_set(), **of_litert}, library("libQnnSystem.so", OLDER)
    write_alone(tmp_path / "libraries", {**make_set(), "libLiteRt.so": of_litert["libLiteRt.so"]})
    write_alone(tmp_path / "whole", whole)
    write_alone(tmp_path / "mixed", {**whole, "libQnnSystem.so": older})
    write_alone(tmp_path / "host", whole)
    of_another_machine(tmp_path / "host" / "libQnnSystem.so")
    no_dsp = {name: data for name, data in whole.items() if "V75" not in name}
    write_alone(tmp_path / "no_dsp", no_dsp)
    write_alone(tmp_path / "only_litert", of_litert)
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    write_alone(tmp_path / "pointer", {**whole, "libLiteRtDispatch_Qualcomm.so": pointer})
    write_alone(tmp_path / "narrow", whole)
    for name in whole:
        if "Skel" not in name:
            of_another_machine(tmp_path / "narrow" / name, EM_ARM)
    write_alone(tmp_path / "stripped", {**whole, SKEL: skel(SKEL, 0x75, stripped=True)})
    return tmp_path


@pytest.mark.parametrize("name", LITERT)
def test_a_bundle_of_litert_lm_is_judged_by_its_fault(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, make, words, text = LITERT[name]
    path = place / "model.litertlm"
    path.write_bytes(make())
    assert main(["inspect", str(path), "--load", *words]) == ExitCode.FAILED
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--soc", "SM8650"], ["--runtime", "2.51.0"], ["--runtime-dir", "whole"]]
)
def test_a_right_bundle_of_litert_lm_can_be_loaded(
    words: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "model.litertlm"
    path.write_bytes(compiled()())
    assert main(["inspect", str(path), "--load", *words, "--json"]) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    keys = ("verdict", "lacking", "faults", "warnings")
    assert [answer[key] for key in keys] == ["yes", [], [], []]


# What is printed for a bundle that loads, and is not right.
WARNINGS: dict[str, tuple[Callable[[], bytes], str]] = {
    "more tokens than the caches hold": (
        compiled(metadata=LLM[:-1] + b"\x80\x20"),
        "the metadata allows 4096 tokens, and the caches have room for 64",
    ),
    "two tokenizers": (
        compiled(packed=make_other_tokenizer()),
        "it has two tokenizers: SentencePiece tokenizer and Hugging Face tokenizer, compressed",
    ),
    "fewer tokens than a chunk": (
        compiled(metadata=LLM[:-1] + b"\x04"),
        "the metadata allows 4 tokens, and prefill takes 8 at once",
    ),
    "no largest number of tokens": (
        compiled(metadata=LLM[:-2]),
        (
            "the metadata does not limit, so that LiteRT-LM allows 4096 tokens, and the caches"
            " have room for 64"
        ),
    ),
    "a stop that is suppressed": (
        compiled(metadata=LLM + b"\x4a\x03\x0a\x01\x02"),
        "the stop token 2 ('</s>') is among the suppressed tokens",
    ),
    "a template that does not end": (
        compiled(metadata=LLM + b"\x3a\x12{% for m in ms %}m"),
        "the chat template has 1 of for, and 0 of endfor",
    ),
    "keys of two calibrations": (
        lambda: make_tiny(decoder=make_compiled_decoder(encode_slices)),
        (
            "kv_slice_k_0 of decode is float32 with the scale 0.25 and zero point -3, and"
            " kv_cache_k_0 float32"
        ),
    ),
    "pictures without their adapter": (
        lambda: sections(vision={"model_type": "tf_lite_vision_encoder"}),
        "it has tf_lite_vision_encoder, and no tf_lite_vision_adapter",
    ),
    "two start tokens": (
        compiled(metadata=LLM + b"\x3a\x0a<s>{{ m }}"),
        "the chat template writes the start token <s>, and LiteRT-LM adds it, too",
    ),
    "a drafter without its graphs": (
        lambda: sections(drafter={"model_type": "tf_lite_mtp_drafter"}),
        "it has tf_lite_mtp_drafter, and no tf_lite_mtp_aux",
    ),
    "a start of two tokens": (
        compiled(metadata=b"\x0a\x06\x0a\x04\x0a\x02\x01\x00" + LLM[7:]),
        "the start token is 2 ids: 1, 0",
    ),
    "no start of Gemma": (
        compiled(
            tokenizer=None,
            packed=pack_specials("<pad>", "<end_of_turn>", "<start_of_turn>", "<bos>"),
            metadata=b"\x12\x05\x0a\x03\x0a\x01\x01" + LLM[14:] + b"\x32\x02\x22\x00",
        ),
        "the metadata names no start token, and texts of Gemma start with <bos>",
    ),
    "a start that stands for no text": (
        compiled(metadata=NEW_LINE),
        "the start token is 0 ('<unk>')",
    ),
    "an id of two tokens": (
        compiled(
            tokenizer=None,
            packed=pack_specials("<a>", "<s>", "</s>", extra="<tool>"),
        ),
        "two tokens of the tokenizer have the id 0: <a> and <tool>",
    ),
    "a template in JSON": (
        with_template(b'{"chat_template": "{{ m }}"}'),
        "the chat template is JSON, and no template of Jinja",
    ),
    "a template that writes nothing": (
        with_template(b"chat_template.jinja"),
        "the chat template has neither {{ nor {%, and no template of Jinja",
    ),
    "an expression that does not end": (
        with_template(b"{% for m in messages %}{{ m.role {% endfor %}"),
        "the chat template has 1 of {{, and 0 of }}",
    ),
    "a template in two files": (
        with_template(b"{% include 'header.jinja' %}{{ m }}"),
        "the chat template has the statement include, which names another file",
    ),
    "a filter with an argument": (
        with_template(b"{{ tools | tojson(indent=4) }}"),
        "the chat template calls tojson with an argument",
    ),
    "a start that ends": (
        compiled(metadata=LLM.replace(b"\x0a\x01\x01", b"\x0a\x01\x02")),
        "the start token 2 ('</s>') is also a stop token",
    ),
    "a letter that stops": (
        compiled(metadata=LLM.replace(b"\x0a\x01\x02", b"\x0a\x01\x23")),
        "the stop token 35 ('e') is ordinary text",
    ),
    "a letter that starts": (
        compiled(metadata=LLM.replace(b"\x0a\x01\x01", b"\x0a\x01\x23")),
        "the start token 35 ('e') is ordinary text",
    ),
    "stop tokens in a row": (
        compiled(metadata=LLM[:7] + b"\x12\x06\x0a\x04\x0a\x02\x01\x02" + LLM[14:]),
        "the stop tokens 1, 2 are one sequence",
    ),
    "the template of another model": (
        with_template(b"<start_of_turn>{{ m }}"),
        "the chat template writes <start_of_turn>, which the tokenizer does not have",
    ),
    "a template with a statement of transformers": (
        with_template(b"{%- generation %}{{ m }}{% endgeneration %}"),
        "the chat template has the statement generation",
    ),
    "a template with a method": (
        compiled(metadata=LLM + b"\x3a\x11{{m.get('role')}}"),
        "the chat template calls .get",
    ),
    "a start token that the tokenizer lacks": (
        compiled(metadata=b"\x0a\x08\x12\x06<turn>" + LLM[7:]),
        "the metadata names the start token <turn>, which the tokenizer does not have",
    ),
    "the type of another model": (
        compiled(metadata=LLM + b"\x32\x02\x22\x00"),
        "llm_model_type is gemma3, and the tokenizer has no <start_of_turn>",
    ),
    "percents": (
        compiled(metadata=LLM + b"\x22\x05\x1d" + struct.pack("<f", 95)),
        "sampler_params has the p 95, and usually 0 to 1",
    ),
    "an empty cache": (
        lambda: make_tiny(
            decoder=change_ports("inputs", "kv_cache_k_0", signature="decode", dtype="int32")
        ),
        "kv_cache_k_0 has another shape or type in decode than in prefill",
    ),
    "a channel of another model": (
        compiled(metadata=LLM + b"\x42\x0b\x12\x09<|think|>"),
        "the metadata names <|think|>, which the tokenizer does not have",
    ),
    "a model for pictures without their encoder": (
        compiled(metadata=LLM + b"\x32\x02\x6a\x00"),
        "llm_model_type is minicpmv4, and there is no tf_lite_vision_encoder",
    ),
    "a new line that stops": (
        compiled(tokenizer=None, packed=pack_specials("<s>", "</s>", "\n"), metadata=NEW_LINE),
        "the stop token 2 ('\\n') is ordinary text",
    ),
    "a runtime that is no version": (
        compiled(metadata=LLM + b"\x72\x06latest"),
        "min_runtime_version is 'latest', which is no version",
    ),
    "fewer tokens than none": (
        compiled(metadata=LLM[:-2] + b"\x28" + b"\xff" * 9 + b"\x01"),
        "the metadata allows -1 tokens, and the caches have room for 64",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_a_bundle_that_loads_and_is_not_right_is_warned_of(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, text = WARNINGS[name]
    path = place / "model.litertlm"
    path.write_bytes(make())
    assert main(["inspect", str(path), "--soc", "SM8650", "--json"]) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], [row["what"] for row in answer["warnings"]]) == ("yes", [text])


@pytest.mark.parametrize(
    "text",
    [
        b"{{ strftime_now('%Y') }}{% if not messages %}{{ raise_exception('none') }}{% endif %}",
        b"{% for k, v in messages[0].items() %}{{ v | tojson }}{% endfor %}",
        b"{% generation %}{{ m.content.strip() }}{% endgeneration %}",
        b"{{ '{\"a\": {\"b\": 1}}' if m.content.startswith('a') }}",
    ],
)
def test_a_template_with_what_litert_lm_has_or_replaces_is_right(
    text: bytes, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "model.litertlm"
    path.write_bytes(with_template(text)())
    assert main(["inspect", str(path), "--soc", "SM8650", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_a_download_that_broke_off_in_a_reserved_file_is_named(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "model.litertlm"
    for data in (zero_end(), compiled()() + bytes(2 << 20)):
        path.write_bytes(data)
        assert main(["inspect", str(path), "--soc", "SM8650"]) == ExitCode.FAILED
        assert "it contains only zeros from byte" in capsys.readouterr().err


def test_sections_that_overlap_are_a_damaged_header(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = place / "model.litertlm", compiled()()
    decoder, embedder, *_ = parse_bundle(memoryview(data)).sections
    places = [struct.pack("<Q", section.offset) for section in (embedder, decoder)]
    path.write_bytes(data.replace(*places))
    assert main(["inspect", str(path), "--soc", "SM8650"]) == ExitCode.FAILED
    assert "it has a damaged header: LiteRT model and LiteRT" in capsys.readouterr().err


def test_an_archive_is_no_bundle(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "model.litertlm"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("TF_LITE_PREFILL_DECODE", bytes(100))
    assert main(["inspect", str(path), "--soc", "SM8650"]) == ExitCode.FAILED
    assert "is a ZIP archive, and not a bundle of LiteRT-LM" in capsys.readouterr().err


def test_a_decoder_without_a_type_is_the_decoder(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "model.litertlm"
    path.write_bytes(sections(decoder={"model_type": None}))
    assert main(["inspect", str(path), "--soc", "SM8650", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["lacking"] == []


def test_a_kind_of_bundle_that_is_not_read_is_not_called_wrong(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "model.litertlm"
    path.write_bytes(compiled(weights=b"w")())
    assert main(["inspect", str(path), "--soc", "SM8650"]) == ExitCode.ENVIRONMENT
    assert "whether its parts fit is not judged" in capsys.readouterr().out
