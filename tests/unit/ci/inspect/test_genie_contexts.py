"""The context binaries of a folder for Genie: one fault each, as users met them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.inspect.genie import BinaryFile, GenieFolder, read_genie
from ci.inspect.genie_checks import judge_genie
from provisioning.doctor.registry import Severity
from tests.build.genie import (
    CACHE_SCALE,
    HEAD,
    HIDDEN,
    PARTS,
    UFIXED8,
    Change,
    PortChange,
    make_genie,
    make_part,
)
from tests.build.genie_faults import (
    FITS,
    FOR_PHONE,
    WRONG,
    Row,
    both,
    by_positional_encoding,
    draft_with,
    make_tests,
    parts,
    put,
    put_htp,
    second,
    settings,
    write_first,
)
from tests.stand_ins.lowered import GPU, Port, make_binary

QCS6490 = ("QCS6490", 93, 68)
PROMPT, TOKEN = {"prompt": 128}, {"token": 1}
INT64 = 0x0064


def keep(_: Path, __: dict[str, Any]) -> None:
    """Nothing is wrong."""


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


def write_dlc(folder: Path, _: dict[str, Any]) -> None:
    """A DLC, as the converter of QNN writes it."""
    with zipfile.ZipFile(folder / "model.dlc", "w") as archive:
        archive.writestr("model.params", bytes(1000))
        archive.writestr("dlc.metadata", "model-version=1")


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


def alone(folder: Path, config: dict[str, Any]) -> None:
    """The draft model has all parts of the model."""
    config["dialog"]["engine"][1]["model"]["binary"]["ctx-bins"] = [*PARTS]


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    """Replace bytes of a file."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def add_window(tokens: int, takes: dict[str, Any], gives: dict[str, Any]) -> None:
    """The part has a second layer, which sees the last 512 tokens."""
    takes["past_key_2_in"] = Port((4, 1, HEAD, 512 - tokens), UFIXED8, CACHE_SCALE)
    takes["past_value_2_in"] = Port((4, 1, 512 - tokens, HEAD), UFIXED8, CACHE_SCALE)
    takes["swa_attention_mask"] = (1, 1, tokens, 512)
    gives["past_key_2_out"] = Port((4, 1, HEAD, tokens), UFIXED8, CACHE_SCALE)
    gives["past_value_2_out"] = Port((4, 1, tokens, HEAD), UFIXED8, CACHE_SCALE)


def double_batch(tokens: int, takes: dict[str, Any], _: dict[str, Any]) -> None:
    """The graphs take two prompts at once."""
    takes["input_ids"] = takes["input_ids"]._replace(shape=(2, tokens))


def list_changes(shape: Sequence[int]) -> Iterator[Sequence[int] | None]:
    """Other shapes of a port: with one axis doubled, and None, without the port."""
    yield None
    for axis in range(len(shape)):
        sizes = [*shape]
        sizes[axis] *= 2
        yield tuple(sizes)


def list_ports(number: int) -> list[tuple[int, str, Sequence[int]]]:
    """The inputs (0) and outputs (1) of the graph for single tokens, each with its shape."""
    ports: list[tuple[int, str, Sequence[int]]] = []

    def keep_ports(tokens: int, *sides: dict[str, Any]) -> None:
        for side, named in enumerate(sides):
            for name, port in named.items() if tokens == 1 else ():
                ports.append((side, name, port.shape if isinstance(port, Port) else port))

    make_part(number, change=keep_ports)
    return ports


def zero_half(folder: Path, _: dict[str, Any]) -> None:
    """The second half of the second part is zeros."""
    data = (folder / PARTS[1]).read_bytes()
    half = len(data) // 2
    (folder / PARTS[1]).write_bytes(data[:half] + bytes(len(data) - half))


FAULTS: dict[str, Row] = {
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
    "weights that are not shared": Row(
        "ai-hub-apps 31", separate, [], FITS, {"QNN973": "are the same part in separate files"}
    ),
    "weights that are not shared, for a libGenie that orders parts by their names": Row(
        "ai-hub-apps 31",
        separate,
        ["--soc", "SM8650", "--runtime", "2.51.0"],
        FITS,
        {"QNN973": "are the same part in separate files"},
    ),
    "a DLC that is not compiled": Row(
        "ai-hub-models 98",
        both(write_dlc, put("engine model binary ctx-bins", ["model.dlc"])),
        [],
        WRONG,
        {"QNN953": "it contains no context of QNN: a DLC must be compiled"},
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
    "a layer that no part has": Row(
        "ai-hub-models 332",
        second(layer=2),
        [],
        WRONG,
        {"QNN968": "no part has those of layer 1, and there are 3 layers"},
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
    "a draft model of another vocabulary": Row(
        "qai-appbuilder 90",
        both(draft_with("draft.bin"), write_draft),
        [],
        WRONG,
        {"QNN958": "dialog.context.draft-n-vocab is 512, and the graphs return 256 logits"},
    ),
    "ids of 64 bits": Row(
        "ai-hub-models 332",
        lambda folder, _: write_first(folder, id_type=INT64),
        [],
        FITS,
        {"QNN991": "input_ids of prompt_ar128_cl1024_1_of_2 is int64"},
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
    "a part without a mask": Row(
        "aimet 4066",
        second(change=lambda _, takes, __: takes.pop("attention_mask")),
        [],
        FITS,
        {"QNN994": "it takes caches and no mask, and prompt_ar128_cl1024_1_of_2 takes one"},
    ),
    "layers in another order": Row(
        "ai-hub-apps 148",
        both(second(layer=0), lambda folder, _: write_first(folder, layer=1)),
        [],
        FITS,
        {"QNN995": "model_part_2_of_2.bin has layer 0, and model_part_1_of_2.bin before it has"},
    ),
    "a download that broke off in a reserved file": Row(
        "foundry-local 910",
        zero_half,
        [],
        WRONG,
        {"QNN953": "model_part_2_of_2.bin cannot be loaded: it contains only zeros from byte"},
    ),
    "weights that were not downloaded": Row(
        "foundry-local 910",
        lambda folder, _: (folder / PARTS[1]).write_bytes(make_part(2) + bytes(2 << 20)),
        [],
        WRONG,
        {"QNN953": "model_part_2_of_2.bin cannot be loaded: it contains only zeros from byte"},
    ),
    "a part for the GPU": Row(
        "ai-hub-models 98",
        second(backend=GPU),
        [],
        WRONG,
        {"QNN953": "it was compiled for QNN's GPU, and the backend is QnnHtp"},
    ),
    "a part that is not unpacked": Row(
        "ai-hub-apps 63",
        lambda folder, _: (folder / PARTS[1]).write_bytes(b"PK\3\4" + make_part(2)),
        [],
        WRONG,
        {"QNN953": "model_part_2_of_2.bin cannot be loaded: it is a ZIP archive: unpack it"},
    ),
    "no logits for single tokens": Row(
        "ai-hub-models 87",
        second(change=lambda tokens, _, gives: gives.pop("logits") if tokens == 1 else None),
        [],
        FITS,
        {"QNN994": "prompt_ar128_cl1024_2_of_2 returns logits, and token_ar1_cl1024_2_of_2 does"},
    ),
    "graphs of another batch": Row(
        "aimet 4066",
        lambda folder, _: write_first(folder, change=double_batch),
        [],
        FITS,
        {"QNN994": "input_ids is [2, 128], and the graph is for 128 tokens"},
    ),
}
RIGHT: dict[str, tuple[Change, Sequence[str]]] = {
    "with quantized values between parts": (
        both(second(hidden_scale=0.01), lambda folder, _: write_first(folder, hidden_scale=0.01)),
        FOR_PHONE,
    ),
    "with a draft model": (both(draft_with(PARTS[0]), alone), FOR_PHONE),
    "with room in the shared buffer": (
        both(second(spill_bytes=8 << 20), put_htp("spill-fill-bufsize", 8 << 20)),
        ["--soc", "SM8650", "--runtime", "2.49.40"],
    ),
    "with a library that orders graphs by their names": (
        put("engine model binary ctx-bins", [*PARTS[::-1]]),
        ["--soc", "SM8650", "--runtime", "2.51.0"],
    ),
    "with a sliding window": (second(change=add_window), FOR_PHONE),
}


test_a_folder_is_judged_by_its_fault, test_a_right_folder_is_judged_by_nothing = make_tests(
    FAULTS, RIGHT
)


def test_a_context_beyond_the_addresses_of_the_dsp_is_a_warning() -> None:
    """Of a file on the disk, all bytes would be read."""
    binary = BinaryFile("model.bin", (4 << 30) + 1)
    folder = GenieFolder("bundle", "genie_config.json", {}, binaries=(binary,))
    assert [row.id for row in judge_genie(folder)] == ["QNN966", "QNN975"]
    right = replace(folder, binaries=(replace(binary, size_bytes=4 << 30),))
    assert [row.id for row in judge_genie(right)] == ["QNN966"]


def change_port(side: int, name: str, shape: Sequence[int] | None) -> PortChange:
    """A port of the graph for single tokens has another shape, or is left out."""

    def change(tokens: int, *sides: dict[str, Any]) -> None:
        port = sides[side].pop(name)
        if tokens != 1 or shape is not None:
            is_other = tokens == 1
            typed = port if isinstance(port, Port) else Port(port)
            sides[side][name] = typed._replace(shape=shape) if is_other else typed

    return change


@pytest.mark.parametrize("number", [1, 2])
def test_any_other_input_or_output_of_one_graph_is_reported(number: int, tmp_path: Path) -> None:
    """Each one is left out, and each of its axes doubled, in the graph for single tokens."""
    accepted = []
    folder = make_genie(tmp_path / "bundle")
    for side, name, shape in list_ports(number):
        for other_shape in list_changes(shape):
            part = make_part(number, change=change_port(side, name, other_shape))
            (folder / PARTS[number - 1]).write_bytes(part)
            findings = judge_genie(read_genie(folder, folder / "genie_config.json"))
            if not any(finding.severity is not Severity.NOTE for finding in findings):
                accepted.append((name, other_shape))
    assert accepted == []
