"""Folders for Genie and bundles of LiteRT-LM with one fault, as users met them, are judged by that
fault alone, and right ones by none."""

from __future__ import annotations

import json
import struct
import zipfile
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ci.__main__ import main
from ci.inspect.genie import BinaryFile, GenieFolder
from ci.inspect.genie_checks import judge_genie
from provisioning.doctor.survey.context_binaries import TensorSpec
from provisioning.doctor.survey.programs import Method
from provisioning.elf.facts import EM_X86_64
from provisioning.errors import ExitCode
from tests.build.genie import (
    HEAD,
    HIDDEN,
    PARTS,
    VOCABULARY,
    encode_positions,
    make_config,
    make_genie,
    make_part,
    make_tokenizer,
)
from tests.build.litert_bundles import (
    LLM,
    make_compiled_decoder,
    make_other_tokenizer,
    make_tiny,
    pack_sections,
    read_part,
)
from tests.stand_ins.android_apps import ARTIFACTS, library, make_set, skel
from tests.stand_ins.litert import make_plain
from tests.stand_ins.lowered import Port, make_binary

Change = Callable[[Path, dict[str, Any]], object]
OLDER, NEWER = "v2.42.0.251225135753", "v2.51.0.261010101010"
QCS9075, QCS6490 = ("QCS9075", 77, 73), ("QCS6490", 93, 68)
# The numbers of tokens of the graphs of a model that was linked without shared weights.
PROMPT, TOKEN = {"prompt": 128}, {"token": 1}
TABLE_BYTES = VOCABULARY * HIDDEN * 2
EMBEDDING = {
    "version": 1,
    "type": "lut",
    "size": HIDDEN,
    "lut-path": "embedding.bin",
    "datatype": "ufixed16",
}
EMBEDS = Port((1, 128, HIDDEN))
UFIXED16, INT64 = 0x0416, 0x0064
EM_ARM = 40
PREFIX, CACHES, SKEL = "forecast-prefix", "kv-cache.primary.qnn-htp", "libQnnHtpV75Skel.so"
POINTER = "version https://git-lfs.github.com/spec/v1\nsize 73400320\n"


class Row(NamedTuple):
    """A fault: the thread in which users met it, how it is made, the options, and the findings with
    what they say."""

    thread: str
    make: Change
    words: Sequence[str]
    code: ExitCode
    findings: Mapping[str, str]


def keep(_: Path, __: dict[str, Any]) -> None:
    """Nothing is wrong."""


def parts(**how: Any) -> Change:
    """Both parts are compiled otherwise."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        for number, name in enumerate(PARTS, start=1):
            (folder / name).write_bytes(make_part(number, **how))

    return change


def second(**how: Any) -> Change:
    """The second part is compiled otherwise."""
    return lambda folder, _: (folder / PARTS[1]).write_bytes(make_part(2, **how))


def write_first(folder: Path, **how: Any) -> None:
    """The first part is compiled otherwise."""
    (folder / PARTS[0]).write_bytes(make_part(1, **how))


def list_words(value: object) -> Iterator[str]:
    """The keys of all objects in a JSON value."""
    if isinstance(value, dict):
        for key, content in value.items():
            yield key
            yield from list_words(content)


def libraries(*, genie: bytes = b"", **how: Any) -> Change:
    """QNN's libraries are in the folder, too. ``genie`` are the texts of libGenie.so."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        files = make_set(**how)
        files |= {name: library(name) for name in ("libQnnHtpNetRunExtensions.so",)}
        files["libGenie.so"] = library("libGenie.so") + genie
        for name, data in files.items():
            (folder / name).write_bytes(data)

    return change


def both(*changes: Change) -> Change:
    """Several changes, one after another."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        for each in changes:
            each(folder, config)

    return change


def of_another_libqnn(folder: Path, _: dict[str, Any]) -> None:
    """The skel is of another SDK than the other libraries."""
    name = "libQnnHtpV75Skel.so"
    (folder / name).write_bytes(make_set(build=NEWER)[name])


def settings(soc: int, hexagon: str) -> Change:
    """The settings of the HTP name another device."""
    text = json.dumps({"devices": [{"soc_model": soc, "dsp_arch": hexagon}]})
    return lambda folder, _: (folder / "htp_config.json").write_text(text)


def put(keys: str, value: object) -> Change:
    """A key of the dialog has a value; ``keys`` are those of the sections and its name."""

    def change(_: Path, config: dict[str, Any]) -> None:
        section = config["dialog"]
        *sections, key = keys.split()
        for name in sections:
            section = section[name]
        section[key] = value

    return change


def by_positional_encoding(rope_dim: int) -> Change:
    """The rotations are described by positional-encoding."""

    def change(_: Path, config: dict[str, Any]) -> None:
        encode_positions(config, rope_dim=rope_dim, rope_theta=500000)

    return change


def move_parts(separator: str) -> Change:
    """The parts are in a folder, whose name the configuration separates by ``separator``."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        (folder / "models").mkdir()
        for name in PARTS:
            (folder / name).rename(folder / "models" / name)
        names = [f"models{separator}{name}" for name in PARTS]
        config["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = names

    return change


def with_prefix(*, is_there: bool) -> Change:
    """Genie drafts tokens with a prefix, a folder with caches."""
    section = {"version": 1, "ssd-version": 1, "forecast-token-count": 4, "branches": [3, 2]}
    section |= {"forecast-prefix": 16, "forecast-prefix-name": "forecast-prefix"}

    def change(folder: Path, config: dict[str, Any]) -> None:
        config["dialog"] |= {"type": "ssd-q1", "ssd-q1": section}
        if is_there:
            (folder / PREFIX).mkdir()
            (folder / PREFIX / CACHES).write_bytes(bytes(64))

    return change


def write_config(start: bytes) -> Change:
    """The configuration starts with these bytes."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        (folder / "genie_config.json").write_bytes(start + json.dumps(config).encode())

    return change


def put_htp(key: str, value: object) -> Change:
    """A key of the HTP's section has a value."""

    def change(_: Path, config: dict[str, Any]) -> None:
        config["dialog"]["engine"]["backend"]["QnnHtp"][key] = value

    return change


def embed(table_bytes: int) -> Change:
    """The first part takes embeddings, which Genie looks up in a table."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        (folder / PARTS[0]).write_bytes(make_part(1, first=EMBEDS))
        (folder / "embedding.bin").write_bytes(bytes(table_bytes))
        config["dialog"]["embedding"] = {**EMBEDDING}

    return change


def separate(folder: Path, config: dict[str, Any]) -> None:
    """Graphs for prompts and for single tokens are in separate files."""
    names = []
    for kinds in (PROMPT, TOKEN):
        for number in (1, 2):
            names.append(f"{next(iter(kinds))}_{number}_of_2.bin")
            (folder / names[-1]).write_bytes(make_part(number, kinds=kinds))
    for name in PARTS:
        (folder / name).unlink()
    config["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = names


def tokenizer(size: int) -> Change:
    """The tokenizer has ``size`` tokens."""
    text = json.dumps(make_tokenizer(size))
    return lambda folder, _: (folder / "tokenizer.json").write_text(text)


def embed_with_scale(scale: float) -> Change:
    """The embeddings of the table have this scale, and the first part takes others."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        embed(TABLE_BYTES)(folder, config)
        write_first(folder, first=Port(EMBEDS.shape, UFIXED16, 0.01))
        config["dialog"]["embedding"]["quant-param"] = {"scale": scale, "offset": -128}

    return change


def name_specials(*texts: str) -> Change:
    """The special tokens from 1 have these texts."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        document = make_tokenizer()
        for row, text in zip(document["added_tokens"], texts, strict=True):
            row["content"] = text
        (folder / "tokenizer.json").write_text(json.dumps(document))

    return change


def write_settings(**core: object) -> Change:
    """The settings of the HTP have a core with these."""
    device = {"soc_model": 57, "dsp_arch": "v75", "cores": [{"core_id": 0, **core}]}
    text = json.dumps({"devices": [device], "memory": {"mem_type": "shared_buffer"}})
    return lambda folder, _: (folder / "htp_config.json").write_text(text)


def draft_with(name: str) -> Change:
    """A second engine drafts tokens, with a context binary of this name."""

    def change(_: Path, config: dict[str, Any]) -> None:
        target = config["dialog"]["engine"]
        draft = json.loads(json.dumps(target))
        draft["model"]["binary"]["ctx-bins"] = [name]
        engines = [{**target, "role": "target"}, {**draft, "role": "draft"}]
        config["dialog"] |= {"engine": engines, "type": "spd", "spd": {"version": 1}}

    return change


def write_dlc(folder: Path, _: dict[str, Any]) -> None:
    """A DLC, as the converter of QNN writes it."""
    with zipfile.ZipFile(folder / "model.dlc", "w") as archive:
        archive.writestr("model.params", bytes(1000))
        archive.writestr("dlc.metadata", "model-version=1")


def of_the_host(folder: Path, _: dict[str, Any]) -> None:
    """libGenie.so is the one for x86-64."""
    of_another_machine(folder / "libGenie.so")


def of_another_machine(path: Path, machine: int = EM_X86_64) -> None:
    """A library is for another machine."""
    data = bytearray(path.read_bytes())
    data[18:20] = machine.to_bytes(2, "little")
    path.write_bytes(data)


def add_encoder(folder: Path, config: dict[str, Any]) -> None:
    """An encoder of pictures is the first of the parts."""
    ports = {"encoder": ({"pixel_values": (1, 3, 8, 8)}, {"image_features": (1, 4, HIDDEN)})}
    (folder / "vision.bin").write_bytes(make_binary(graphs=["encoder"], ports=ports))
    config["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = ["vision.bin", *PARTS]


def write_draft(folder: Path, config: dict[str, Any]) -> None:
    """The draft model has 256 logits, in its second part."""
    for number in (1, 2):
        (folder / f"draft_{number}_of_2.bin").write_bytes(make_part(number, logits=256))
    names = [f"draft_{number}_of_2.bin" for number in (1, 2)]
    config["dialog"]["engine"][1]["model"]["binary"]["ctx-bins"] = names


def link_to_nowhere(folder: Path, _: dict[str, Any]) -> None:
    """A part is a link, as in a copied cache of Hugging Face."""
    (folder / PARTS[1]).unlink()
    (folder / PARTS[1]).symlink_to("../blobs/1")


def link_all(folder: Path, config: dict[str, Any]) -> None:
    """All files are links, as in a cache of Hugging Face."""
    write_config(b"")(folder, config)
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for path in sorted(folder.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(f"../blobs/{path.name}")


def name_needed(path: Path) -> None:
    """A library needs libQnnCpu.so."""
    data = (ARTIFACTS / "elf" / "libandroid.so").read_bytes()
    path.write_bytes(data.replace(b"libneeded.so", b"libQnnCpu.so"))


def alone(folder: Path, config: dict[str, Any]) -> None:
    """The draft model has all parts of the model."""
    config["dialog"]["engine"][1]["model"]["binary"]["ctx-bins"] = [*PARTS]


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    """Replace bytes of a file."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def write_utf16(folder: Path, config: dict[str, Any]) -> None:
    """The configuration is written as by PowerShell."""
    (folder / "genie_config.json").write_bytes(json.dumps(config).encode("utf-16"))


# What libGenie.so contains: the keys that it knows.
GENIE_KEYS = b"\0".join(sorted({key.encode() for key in list_words(make_config())}))
FITS, WRONG = ExitCode.OK, ExitCode.FAILED
GENIE: dict[str, Row] = {
    "contexts of a newer QNN than the libraries": Row(
        "ai-hub-apps 148", libraries(build=OLDER), [], WRONG, {"QNN964": "2.42.0"}
    ),
    "no libraries for the Hexagon version": Row(
        "ai-hub-apps 148", libraries(hexagon=0x79), [], WRONG, {"QNN965": "libQnnHtpV75"}
    ),
    "libraries of two SDKs": Row(
        "ai-hub-models 192",
        both(libraries(), of_another_libqnn),
        [],
        WRONG,
        {"QNN972": "libQnnHtpV75Skel.so is of QNN 2.51.0"},
    ),
    "settings of another automotive SoC": Row(
        "ai-hub-apps 31", settings(31, "v66"), [], WRONG, {"QNN962": "Hexagon V66"}
    ),
    "contexts for a phone on a QCS6490": Row(
        "ai-hub-models 192",
        keep,
        ["--soc", "QCS6490"],
        WRONG,
        {"QNN963": "compiled for V75, but QCM6490 has V68"},
    ),
    "more VTCM than the SoC has": Row(
        "ai-hub-apps 16",
        both(parts(soc=QCS6490, vtcm_mb=8), settings(93, "v68")),
        ["--soc", "QCS6490"],
        WRONG,
        {"QNN963": "8 MiB of VTCM"},
    ),
    "new values of another scale": Row(
        "ai-hub-models 332", second(new_scale=0.25), [], WRONG, {"QNN968": "the scale 0.25"}
    ),
    "caches of another context length": Row(
        "ai-hub-models 332", second(room=1024), [], WRONG, {"QNN968": "room for 1920 tokens"}
    ),
    "single tokens in another context length": Row(
        "ai-hub-apps 111",
        parts(contexts={"token": 2048}),
        [],
        WRONG,
        {"QNN957": "a context of 2048"},
    ),
    "other heads for single tokens": Row(
        "ai-hub-models 332", second(heads={"token": 8}), [], WRONG, {"QNN968": "of other heads"}
    ),
    "a part without a graph for single tokens": Row(
        "ai-hub-apps 121", second(kinds=PROMPT), [], WRONG, {"QNN967": "no graph for 1 tokens"}
    ),
    "a key that the shipped libGenie does not know": Row(
        "ai-hub-models 82",
        both(libraries(genie=GENIE_KEYS), put_htp("allow-async-init", value=True)),
        [],
        WRONG,
        {"QNN971": "allow-async-init"},
    ),
    "the embeddings of another model": Row(
        "aimet 4066", embed(TABLE_BYTES // 2), [], WRONG, {"QNN969": "embedding.bin has"}
    ),
    "no embeddings": Row(
        "aimet 4066",
        lambda folder, _: (folder / PARTS[0]).write_bytes(make_part(1, first=EMBEDS)),
        [],
        WRONG,
        {"QNN969": "dialog.embedding does not fit the first part: it is missing"},
    ),
    "a buffer that is too small": Row(
        "ai-hub-apps 63",
        both(second(spill_bytes=8 << 20), put_htp("spill-fill-bufsize", 1 << 20)),
        [],
        WRONG,
        {"QNN970": "spills 8388608 bytes"},
    ),
    "parts of two calibrations": Row(
        "ai-hub-models 332",
        both(second(hidden_scale=0.02), lambda folder, _: write_first(folder, hidden_scale=0.01)),
        [],
        WRONG,
        {"QNN956": "takes hidden as ufixed8 with the scale 0.02 and zero point 128, and"},
    ),
    "caches of two calibrations": Row(
        "ai-hub-models 332",
        second(scales={"prompt": 0.25}),
        [],
        WRONG,
        {"QNN968": "past_key_1_in is ufixed8 with the scale 0.5"},
    ),
    "the same layer twice": Row(
        "ai-hub-models 332",
        second(layer=0),
        [],
        WRONG,
        {"QNN968": "it returns past_key_0_out, as prompt_ar128_cl1024_1_of_2 of another part"},
    ),
    "no head": Row(
        "ai-hub-apps 121", second(has_logits=False), [], WRONG, {"QNN978": "returns logits"}
    ),
    "rotations of another model": Row(
        "ai-hub-models 332",
        by_positional_encoding(HEAD),
        [],
        WRONG,
        {"QNN961": "positional-encoding.rope-dim is 16, and position_ids_cos"},
    ),
    "the scaling of Hugging Face": Row(
        "ai-hub-models 289",
        both(
            by_positional_encoding(HEAD // 2),
            put("engine model positional-encoding rope-scaling", {"rope-type": "yarn"}),
        ),
        [],
        WRONG,
        {"QNN950": 'rope-type is "yarn", and libGenie knows llama3, default'},
    ),
    "no prefix for drafts": Row(
        "qai-appbuilder 90",
        with_prefix(is_there=False),
        [],
        WRONG,
        {"QNN951": "forecast-prefix is missing; dialog.ssd-q1.forecast-prefix-name names it"},
    ),
    "no adapter": Row(
        "ai-hub-apps 119",
        put(
            "engine model binary lora",
            {"version": 1, "adapters": [{"name": "a", "bin-sections": ["lora_1.bin", ""]}]},
        ),
        [],
        WRONG,
        {"QNN951": "lora_1.bin is missing; dialog.engine.model.binary.lora.adapters"},
    ),
    "the settings of another phone": Row(
        "ai-hub-models 289",
        lambda folder, _: (folder / "htp_config.json").write_text(
            json.dumps({"devices": [{"soc_id": 69, "dsp_arch": "V79"}]})
        ),
        [],
        WRONG,
        {"QNN962": "is for Hexagon V79"},
    ),
    "settings that QNN does not read": Row(
        "ai-hub-apps 57",
        lambda folder, _: (folder / "htp_config.json").unlink(),
        [],
        FITS,
        {"QNN976": "QNN does not read htp_config.json: it is missing"},
    ),
    "paths of Windows": Row(
        "ai-hub-models 168", move_parts("\\"), [], FITS, {"QNN977": "models\\model_part_2_of_2"}
    ),
    "a type of embeddings that is QNN's": Row(
        "aimet 4066",
        both(embed(TABLE_BYTES), put("embedding datatype", "QNN_DATATYPE_UFIXED_POINT_16")),
        [],
        WRONG,
        {"QNN950": '"QNN_DATATYPE_UFIXED_POINT_16", and libGenie knows float32, native'},
    ),
    "a configuration with comments": Row(
        "ai-hub-apps 119", write_config(b"// of Genie\n"), [], WRONG, {"QNN950": "is malformed"}
    ),
    "weights that are not shared": Row(
        "ai-hub-apps 31", separate, [], FITS, {"QNN973": "are the same part in separate files"}
    ),
    "the tokenizer of a smaller model": Row(
        "ai-hub-models 129", tokenizer(VOCABULARY // 4), [], FITS, {"QNN974": "ids up to 127 only"}
    ),
}
GENIE |= {
    "embeddings of another scale": Row(
        "aimet 4066",
        embed_with_scale(0.5),
        [],
        WRONG,
        {"QNN969": "quant-param has the scale 0.5, and inputs_embeds 0.01"},
    ),
    "no end of a turn": Row(
        "ai-hub-models 143",
        both(name_specials("<s>", "</s>", "<|eot_id|>"), put("context eos-token", 2)),
        [],
        FITS,
        {"QNN981": "eos-token lacks 3, which is <|eot_id|> in the tokenizer"},
    ),
    "a misspelt performance": Row(
        "ai-hub-apps 57",
        write_settings(perf_profile="brust"),
        [],
        FITS,
        {"QNN976": 'perf_profile is "brust", and QNN knows default, burst'},
    ),
    "a misspelt setting": Row(
        "ai-hub-apps 57",
        write_settings(rpc_control_latncy=100),
        [],
        FITS,
        {"QNN976": "rpc_control_latncy is a key that QNN does not know, but rpc_control_latency"},
    ),
    "no draft model": Row(
        "qai-appbuilder 90",
        draft_with("draft_1_of_1.bin"),
        [],
        WRONG,
        {"QNN951": "draft_1_of_1.bin is missing"},
    ),
    "a DLC that is not compiled": Row(
        "ai-hub-models 98",
        both(write_dlc, put("engine model binary ctx-bins", ["model.dlc"])),
        [],
        WRONG,
        {"QNN953": "it contains no context of QNN: a DLC must be compiled"},
    ),
    "another case of letters": Row(
        "ai-hub-apps 119",
        lambda folder, _: (folder / PARTS[0]).rename(folder / PARTS[0].upper()),
        [],
        WRONG,
        {"QNN951": "; the folder has MODEL_PART_1_OF_2.BIN"},
    ),
    "a library for the host": Row(
        "ai-hub-apps 26",
        both(libraries(), of_the_host),
        [],
        WRONG,
        {"QNN979": "libGenie.so is for x86-64, and the other libraries are for aarch64"},
    ),
    "parts of two exports": Row(
        "ai-hub-models 289",
        lambda folder, _: replace_bytes(folder / PARTS[1], b"hidden\0", b"hiddes\0"),
        [],
        WRONG,
        {"QNN980": "takes hiddes, and model_part_1_of_2.bin returns hidden"},
    ),
    "embeddings of another size": Row(
        "ai-hub-apps 111",
        put("context n-embd", 2 * HIDDEN),
        [],
        WRONG,
        {"QNN961": "dialog.context.n-embd is 128, and hidden of"},
    ),
    "a configuration of PowerShell": Row(
        "ai-hub-apps 24", write_utf16, [], WRONG, {"QNN950": "it is UTF-16"}
    ),
    "a mask that is no number": Row(
        "ai-hub-apps 150",
        put_htp("cpu-mask", "big cores"),
        [],
        WRONG,
        {"QNN950": 'cpu-mask is "big cores", not a hexadecimal number'},
    ),
    "an adapter for one part": Row(
        "ai-hub-apps 119",
        put(
            "engine model binary lora",
            {"version": 1, "adapters": [{"name": "a", "bin-sections": ["tokenizer.json"]}]},
        ),
        [],
        WRONG,
        {"QNN950": "has 1 bin-sections of a, and ctx-bins 2 files"},
    ),
    "a layer that no part has": Row(
        "ai-hub-models 332",
        second(layer=2),
        [],
        WRONG,
        {"QNN968": "no part has those of layer 1, and there are 3 layers"},
    ),
    "the prompt of another model": Row(
        "foundry-local 1001",
        lambda folder, _: (folder / "prompt.json").write_text('{"user": "<|im_start|>user"}'),
        [],
        FITS,
        {"QNN985": "prompt.json writes <|im_start|>, which the tokenizer does not have"},
    ),
    "parts that were renamed": Row(
        "ai-hub-apps 148",
        lambda folder, _: [
            (folder / name).write_bytes(make_part(number))
            for name, number in zip(PARTS, (2, 1), strict=True)
        ],
        [],
        WRONG,
        {"QNN986": "is part 2 of 2 by its name, and part 1 by its graphs"},
    ),
    "a prefix without caches": Row(
        "qai-appbuilder 90",
        both(with_prefix(is_there=True), lambda folder, _: (folder / PREFIX / CACHES).unlink()),
        [],
        WRONG,
        {"QNN987": "forecast-prefix cannot be used: the folder has no file"},
    ),
    "an adapter of Git LFS": Row(
        "ai-hub-apps 119",
        both(
            lambda folder, _: (folder / "lora.bin").write_text(POINTER),
            put(
                "engine model binary lora",
                {"version": 1, "adapters": [{"name": "a", "bin-sections": ["lora.bin", ""]}]},
            ),
        ),
        [],
        WRONG,
        {"QNN987": "lora.bin cannot be used: it is a pointer of Git LFS"},
    ),
    "a stripped skel": Row(
        "GenieX 1143",
        both(
            libraries(),
            lambda folder, _: (folder / SKEL).write_bytes(skel(SKEL, 0x75, stripped=True)),
        ),
        [],
        WRONG,
        {"QNN983": "libQnnHtpV75Skel.so cannot be loaded: it was stripped"},
    ),
    "a library that needs a missing one": Row(
        "ai-hub-apps 57",
        both(libraries(), lambda folder, _: name_needed(folder / "libGenie.so")),
        [],
        WRONG,
        {"QNN984": "libGenie.so needs libQnnCpu.so, which is missing"},
    ),
    "the bos of another model": Row(
        "ai-hub-apps 61",
        put("context bos-token", 128000),
        [],
        FITS,
        {"QNN960": "dialog.context.bos-token is 128000"},
    ),
    "more new rows than tokens": Row(
        "ai-hub-models 332",
        second(new_rows=64),
        [],
        WRONG,
        {"QNN968": "past_key_1_out is [4, 1, 16, 64], and the graph is for 128 new tokens"},
    ),
    "an encoder of pictures among the parts": Row(
        "ai-hub-models 335",
        add_encoder,
        [],
        WRONG,
        {"QNN988": "vision.bin is in ctx-bins, and is no part of the language model"},
    ),
    "an eos that is text": Row(
        "ai-hub-models 143",
        put("context eos-token", ["<|eot_id|>"]),
        [],
        WRONG,
        {"QNN950": 'eos-token is ["<|eot_id|>"], not a number or a list of numbers'},
    ),
    "a draft model of another vocabulary": Row(
        "qai-appbuilder 90",
        both(draft_with("draft.bin"), write_draft),
        [],
        WRONG,
        {"QNN958": "dialog.context.draft-n-vocab is 512, and the graphs return 256 logits"},
    ),
    "the strength of no adapter": Row(
        "ai-hub-apps 119",
        put(
            "engine model binary lora",
            {
                "version": 1,
                "adapters": [
                    {"name": "a", "alphas": ["x"], "bin-sections": ["tokenizer.json", ""]}
                ],
            },
        ),
        [],
        FITS,
        {"QNN989": "alphas of a names x, which no graph takes"},
    ),
    "a link to nowhere": Row(
        "ai-hub-models 98",
        link_to_nowhere,
        [],
        WRONG,
        {"QNN951": "; it is a link to ../blobs/1, which is missing"},
    ),
    "percents": Row(
        "ai-hub-apps 34",
        put("sampler", {"version": 1, "top-p": 95}),
        [],
        FITS,
        {"QNN990": "dialog.sampler.top-p is 95, and usually 0 to 1"},
    ),
    "nothing that ends": Row(
        "ai-hub-models 143",
        put("context eos-token", -1),
        [],
        FITS,
        {"QNN992": "dialog.context.eos-token is -1, which is no token"},
    ),
    "ids of 64 bits": Row(
        "ai-hub-models 332",
        lambda folder, _: write_first(folder, id_type=INT64),
        [],
        FITS,
        {"QNN991": "input_ids of prompt_ar128_cl1024_1_of_2 is int64"},
    ),
    "a renamed skel": Row(
        "ai-hub-apps 148",
        both(libraries(), lambda folder, _: (folder / SKEL).write_bytes(skel(SKEL, 0x79))),
        [],
        WRONG,
        {"QNN983": "it is for Hexagon V79, and its name says V75"},
    ),
    "an empty library": Row(
        "ai-hub-apps 148",
        both(libraries(), lambda folder, _: (folder / SKEL).write_bytes(b"")),
        [],
        WRONG,
        {"QNN983": "libQnnHtpV75Skel.so cannot be loaded: empty"},
    ),
    "a folder as tokenizer": Row(
        "ai-hub-apps 129",
        both(lambda folder, _: (folder / "tok").mkdir(), put("tokenizer path", "tok")),
        [],
        WRONG,
        {"QNN951": "tok is missing; dialog.tokenizer.path names it; it is a folder"},
    ),
    "the first part twice": Row(
        "ai-hub-apps 148",
        lambda folder, _: (folder / PARTS[1]).write_bytes(make_part(1)),
        [],
        WRONG,
        {"QNN986": "model_part_2_of_2.bin is part 2 of 2 by its name, and part 1 by its graphs"},
    ),
    "graphs for prompts only": Row(
        "ai-hub-apps 150",
        parts(kinds=PROMPT),
        [],
        FITS,
        {"QNN982": "the smallest graphs are for 128 tokens"},
    ),
}
FOR_PHONE = ["--soc", "SM8650", "--runtime", "2.49.40"]
RIGHT: dict[str, tuple[Change, Sequence[str]]] = {
    "with its libraries": (
        libraries(genie=GENIE_KEYS),
        ["--soc", "SM8650"],
    ),
    "with a byte order mark": (write_config(BOM_UTF8), FOR_PHONE),
    "with parts in a folder": (move_parts("/"), FOR_PHONE),
    "with a prefix": (with_prefix(is_there=True), FOR_PHONE),
    "with a sampler": (
        put("sampler", {"version": 1, "seed": 42, "temp": 0.8, "top-k": 40, "top-p": 0.95}),
        FOR_PHONE,
    ),
    "with stop sequences": (put("stop-sequence", []), FOR_PHONE),
    "with positional-encoding": (by_positional_encoding(HEAD // 2), FOR_PHONE),
    "with quantized values between parts": (
        both(second(hidden_scale=0.01), lambda folder, _: write_first(folder, hidden_scale=0.01)),
        FOR_PHONE,
    ),
    "with two files of settings": (
        put("engine backend extensions", ["htp_config.json", "htp_config.json"]),
        FOR_PHONE,
    ),
    "with an embedding table": (embed(TABLE_BYTES), ["--soc", "SM8650", "--runtime", "2.51.0"]),
    "with embeddings of the right scale": (embed_with_scale(0.01), FOR_PHONE),
    "with all settings": (
        write_settings(perf_profile="burst", rpc_control_latency=100, rpc_polling_time=9999),
        FOR_PHONE,
    ),
    "with an end of a turn": (
        both(name_specials("<s>", "</s>", "<|eot_id|>"), put("context eos-token", [2, 3])),
        FOR_PHONE,
    ),
    "with an adapter for each part": (
        put(
            "engine model binary lora",
            {"version": 1, "adapters": [{"name": "a", "bin-sections": ["tokenizer.json", ""]}]},
        ),
        FOR_PHONE,
    ),
    "with links": (link_all, FOR_PHONE),
    "with a draft model": (both(draft_with(PARTS[0]), alone), FOR_PHONE),
    "with room in the shared buffer": (
        both(second(spill_bytes=8 << 20), put_htp("spill-fill-bufsize", 8 << 20)),
        ["--soc", "SM8650", "--runtime", "2.49.40"],
    ),
}


def judge(
    capsys: pytest.CaptureFixture[str], path: Path, words: Sequence[str]
) -> tuple[int, dict[str, str]]:
    """The exit code, and the texts of the findings by id, without the note on what is unknown."""
    code = main(["inspect", str(path), *words, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {row["id"]: row["what"] for row in findings if row["id"] != "QNN966"}


@pytest.mark.parametrize("name", GENIE)
def test_a_folder_is_judged_by_its_fault(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = GENIE[name]
    code, findings = judge(capsys, make_genie(tmp_path / "bundle", row.make), row.words)
    assert (code, [*findings]) == (row.code, [*row.findings])
    for number, text in row.findings.items():
        assert text in findings[number]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_folder_is_judged_by_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = RIGHT[name]
    folder = make_genie(tmp_path / "bundle", change)
    assert judge(capsys, folder, [*words, "--strict"]) == (ExitCode.OK, {})


def test_a_context_beyond_the_addresses_of_the_dsp_is_a_warning() -> None:
    """Of a file on the disk, all bytes would be read."""
    binary = BinaryFile("model.bin", (4 << 30) + 1)
    folder = GenieFolder("bundle", "genie_config.json", {}, binaries=(binary,))
    assert [row.id for row in judge_genie(folder)] == ["QNN966", "QNN975"]
    right = replace(folder, binaries=(replace(binary, size_bytes=4 << 30),))
    assert [row.id for row in judge_genie(right)] == ["QNN966"]


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
        compiled(metadata=LLM + b"\x3a\x0f<start_of_turn>"),
        "the chat template writes <start_of_turn>, which the tokenizer does not have",
    ),
    "a template with a method": (
        compiled(metadata=LLM + b"\x3a\x11{{m.get('role')}}"),
        "the chat template calls .get",
    ),
    "a start token that the tokenizer lacks": (
        compiled(metadata=b"\x0a\x08\x12\x06<turn>" + LLM[7:]),
        "the metadata names the start token <turn>, which the tokenizer does not have",
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


def test_a_folder_that_was_unpacked_twice_names_the_inner_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outer").mkdir()
    make_genie(tmp_path / "outer" / "llama_genie")
    assert main(["inspect", str(tmp_path / "outer"), "--soc", "SM8650"]) == ExitCode.USAGE
    assert "the folder llama_genie in it has one" in capsys.readouterr().err


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
