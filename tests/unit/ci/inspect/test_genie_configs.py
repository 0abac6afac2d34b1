"""The configuration of a folder for Genie and the files that it names: one fault each."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode
from tests.build.genie import HEAD, HIDDEN, PARTS, VOCABULARY, Change, make_genie, make_part
from tests.build.genie_faults import (
    FITS,
    FOR_PHONE,
    WRONG,
    Row,
    adapt,
    both,
    by_positional_encoding,
    draft_with,
    leave_out,
    make_tests,
    put,
    put_htp,
    second,
    settings,
    write_first,
)
from tests.stand_ins.lowered import Port

TABLE_BYTES = VOCABULARY * HIDDEN * 2
EMBEDDING = {
    "version": 1,
    "type": "lut",
    "size": HIDDEN,
    "lut-path": "embedding.bin",
    "datatype": "ufixed16",
}
EMBEDS = Port((1, 128, HIDDEN))
UFIXED16 = 0x0416
PREFIX, CACHES = "forecast-prefix", "kv-cache.primary.qnn-htp"
POINTER = "version https://git-lfs.github.com/spec/v1\nsize 73400320\n"


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


def embed(table_bytes: int) -> Change:
    """The first part takes embeddings, which Genie looks up in a table."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        (folder / PARTS[0]).write_bytes(make_part(1, first=EMBEDS))
        (folder / "embedding.bin").write_bytes(bytes(table_bytes))
        config["dialog"]["embedding"] = {**EMBEDDING}

    return change


def embed_with_scale(scale: float) -> Change:
    """The embeddings of the table have this scale, and the first part takes others."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        embed(TABLE_BYTES)(folder, config)
        write_first(folder, first=Port(EMBEDS.shape, UFIXED16, 0.01))
        config["dialog"]["embedding"]["quant-param"] = {"scale": scale, "offset": -128}

    return change


def write_settings(**core: object) -> Change:
    """The settings of the HTP have a core with these."""
    device = {"soc_model": 57, "dsp_arch": "v75", "cores": [{"core_id": 0, **core}]}
    text = json.dumps({"devices": [device], "memory": {"mem_type": "shared_buffer"}})
    return lambda folder, _: (folder / "htp_config.json").write_text(text)


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


def write_utf16(folder: Path, config: dict[str, Any]) -> None:
    """The configuration is written as by PowerShell."""
    (folder / "genie_config.json").write_bytes(json.dumps(config).encode("utf-16"))


def on_the_cpu(_: Path, config: dict[str, Any]) -> None:
    """The backend is that for the CPU."""
    backend = config["dialog"]["engine"]["backend"]
    del backend["QnnHtp"], backend["extensions"]
    section = {"version": 1, "n-logits": 1, "n-layer": 2, "n-embd": 64, "n-heads": 4}
    backend |= {"type": "QnnGenAiTransformer", "QnnGenAiTransformer": section}


FAULTS: dict[str, Row] = {
    "settings of another automotive SoC": Row(
        "ai-hub-apps 31", settings(31, "v66"), [], WRONG, {"QNN962": "Hexagon V66"}
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
        adapt(bin_sections=["lora_1.bin", ""]),
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
    "embeddings of another scale": Row(
        "aimet 4066",
        embed_with_scale(0.5),
        [],
        WRONG,
        {"QNN969": "quant-param has the scale 0.5, and inputs_embeds 0.01"},
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
    "more VTCM than the SoC has, in the settings": Row(
        "GenieX 1155",
        lambda folder, _: (folder / "htp_config.json").write_text(
            json.dumps({"graphs": [{"vtcm_mb": 16}], "devices": [{"soc_model": 57}]})
        ),
        [],
        FITS,
        {"QNN990": "vtcm_mb of htp_config.json is 16, and usually up to 8, as SM8650 has"},
    ),
    "a name that is cut": Row(
        "qai-appbuilder 28",
        put("engine model binary ctx-bins", [PARTS[0], PARTS[1].removesuffix("n")]),
        [],
        WRONG,
        {"QNN951": "model_part_2_of_2.bi is missing"},
    ),
    "contexts for the CPU": Row(
        "ai-hub-models 80",
        on_the_cpu,
        [],
        WRONG,
        {"QNN950": "model.type is binary, and the backend QnnGenAiTransformer needs library"},
    ),
    "another case of letters": Row(
        "ai-hub-apps 119",
        lambda folder, _: (folder / PARTS[0]).rename(folder / PARTS[0].upper()),
        [],
        WRONG,
        {"QNN951": "; the folder has MODEL_PART_1_OF_2.BIN"},
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
        adapt(bin_sections=["tokenizer.json"]),
        [],
        WRONG,
        {"QNN950": "has 1 bin-sections of a, and ctx-bins 2 files"},
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
            adapt(bin_sections=["lora.bin", ""]),
        ),
        [],
        WRONG,
        {"QNN987": "lora.bin cannot be used: it is a pointer of Git LFS"},
    ),
    "an eos that is text": Row(
        "ai-hub-models 143",
        put("context eos-token", ["<|eot_id|>"]),
        [],
        WRONG,
        {"QNN950": 'eos-token is ["<|eot_id|>"], not an integer of 32 bits or a list of integers'},
    ),
    "the strength of no adapter": Row(
        "ai-hub-apps 119",
        put(
            "engine model binary lora",
            {
                "version": 1,
                "adapters": [
                    {
                        "version": 1,
                        "name": "a",
                        "alphas": ["x"],
                        "bin-sections": ["tokenizer.json", ""],
                    }
                ],
            },
        ),
        [],
        FITS,
        {"QNN989": "adapters[0].alphas[0] names x, which no graph takes"},
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
        WRONG,
        {"QNN950": "dialog.sampler.top-p is 95, not a number from 0 to 1"},
    ),
    "nothing that ends": Row(
        "ai-hub-models 143",
        put("context eos-token", -1),
        [],
        FITS,
        {"QNN992": "dialog.context.eos-token is -1, which is no token"},
    ),
    "a folder as tokenizer": Row(
        "ai-hub-apps 129",
        both(lambda folder, _: (folder / "tok").mkdir(), put("tokenizer path", "tok")),
        [],
        WRONG,
        {"QNN951": "tok is missing; dialog.tokenizer.path names it; it is a folder"},
    ),
    "a token map that is missing": Row(
        "qai-appbuilder 90",
        put("engine model draft-token-map", "map.json"),
        [],
        WRONG,
        {"QNN951": "map.json is missing; dialog.engine.model.draft-token-map names it"},
    ),
    "a graph that no context has": Row(
        "ai-hub-apps 121",
        put_htp("execute-select-graphs", ["prompt"]),
        [],
        FITS,
        {"QNN989": "execute-select-graphs[0] names prompt, which no context has"},
    ),
    "settings of another graph": Row(
        "qai-appbuilder 90",
        lambda folder, _: (folder / "htp_config.json").write_text(
            json.dumps({"graphs": {"graph_names": ["encoder"], "vtcm_mb": 8}})
        ),
        [],
        FITS,
        {"QNN989": "graph_names of htp_config.json names encoder, which no context has"},
    ),
    "factors of another model": Row(
        "ai-hub-models 289",
        both(
            by_positional_encoding(HEAD // 2),
            put(
                "engine model positional-encoding rope-scaling",
                {
                    "rope-type": "longrope",
                    "factor": 32.0,
                    "original-max-position-embeddings": 4096,
                    "short-factor": [1.0] * 8,
                    "long-factor": [1.0] * 48,
                },
            ),
        ),
        [],
        WRONG,
        {"QNN950": "rope-scaling.long-factor has 48 factors, and rope-dim is 8"},
    ),
    "sections of another model": Row(
        "qai-appbuilder 89",
        both(
            by_positional_encoding(HEAD // 2),
            put(
                "engine model positional-encoding rope-scaling",
                {"rope-type": "qwen2vl-mrope", "mrope-section": [16, 24, 24]},
            ),
        ),
        [],
        FITS,
        {"QNN993": "the sum of dialog.engine.model.positional-encoding.rope-scaling.mrope-section"},
    ),
    "half of the numbers of a scaling": Row(
        "ai-hub-models 337",
        both(
            by_positional_encoding(HEAD // 2),
            put(
                "engine model positional-encoding rope-scaling",
                {"rope-type": "llama3", "factor": 32.0},
            ),
        ),
        [],
        WRONG,
        {"QNN950": "llama3 needs original-max-position-embeddings, low-freq-factor, high-freq"},
    ),
    "no size of the rotations": Row(
        "ai-hub-models 143",
        both(
            by_positional_encoding(HEAD // 2),
            leave_out("engine model positional-encoding rope-dim"),
        ),
        [],
        WRONG,
        {"QNN950": "dialog.engine.model.positional-encoding.rope-dim is missing"},
    ),
    "no description of the rotations": Row(
        "ai-hub-models 143",
        leave_out("engine backend QnnHtp pos-id-dim"),
        [],
        WRONG,
        {"QNN961": "pos-id-dim is 64, because it is missing, and position_ids_cos of"},
    ),
    "no size of a head": Row(
        "ai-hub-models 143",
        leave_out("engine backend QnnHtp kv-dim"),
        [],
        WRONG,
        {"QNN961": "dialog.engine.backend.QnnHtp.kv-dim is missing, and past_key_0_in of"},
    ),
    "two adapters of one name": Row(
        "aimet 4066",
        both(
            put(
                "engine model binary lora",
                {
                    "version": 1,
                    "adapters": [{"version": 1, "name": "a", "bin-sections": ["a.bin"] * 2}] * 2,
                },
            ),
            lambda folder, _: (folder / "a.bin").write_text("weights"),
        ),
        [],
        FITS,
        {"QNN998": "the adapter a is twice in genie_config.json"},
    ),
    "tensors that are written": Row(
        "ai-hub-apps 150",
        put("debug", {"dump-tensors": True}),
        [],
        FITS,
        {"QNN999": "dialog.debug.dump-tensors is switched on"},
    ),
    "the configuration as settings of the HTP": Row(
        "ai-hub-apps 61",
        both(
            lambda folder, config: (folder / "genie_config.json").write_text(json.dumps(config)),
            lambda folder, _: (folder / "htp_config.json").unlink(),
            lambda folder, _: (folder / "htp_config.json").symlink_to("genie_config.json"),
        ),
        [],
        FITS,
        {"QNN976": "htp_config.json: it is the configuration of Genie, and no settings of the HTP"},
    ),
    "settings as qnn-net-run wraps them": Row(
        "ai-hub-models 82",
        lambda folder, _: (folder / "htp_config.json").write_text(
            json.dumps({"backend_extensions": {"config_file_path": "htp.json"}})
        ),
        [],
        FITS,
        {"QNN976": "htp_config.json: it has no settings of the HTP, but backend_extensions"},
    ),
    "a prefix that fills the context": Row(
        "qai-appbuilder 90",
        both(with_prefix(is_there=True), put("ssd-q1 forecast-prefix", 2048)),
        [],
        FITS,
        {"QNN993": "dialog.ssd-q1.forecast-prefix is 2048, and dialog.context.size is 1024"},
    ),
    "no token at all": Row(
        "ai-hub-apps 34",
        put("max-num-tokens", 0),
        [],
        FITS,
        {"QNN990": "dialog.max-num-tokens is 0, and usually 1 to"},
    ),
    "no core": Row(
        "ai-hub-apps 150", put_htp("cpu-mask", "0x0"), [], FITS, {"QNN990": "cpu-mask is 0x0"}
    ),
    "an empty stop sequence": Row(
        "ai-hub-models 143",
        put("stop-sequence", [""]),
        [],
        FITS,
        {"QNN990": "dialog.stop-sequence is"},
    ),
    "the folder of the app in a path": Row(
        "qai-appbuilder 90",
        put("engine model binary ctx-bins", [f"genie/models/{name}" for name in PARTS]),
        [],
        FITS,
        {"QNN952": "ctx-bins is a path outside of the folder: genie/models/model_part_2_of_2.bin"},
    ),
    "a drive in a path": Row(
        "ai-hub-models 168",
        put("tokenizer path", "C:\\LLM\\tokenizer.json"),
        [],
        FITS,
        {"QNN952": "dialog.tokenizer.path is a path outside of the folder: C:"},
    ),
    "a node of a pipeline": Row(
        "aimet 4066",
        lambda folder, config: (folder / "genie_config.json").write_text(
            json.dumps({"text-generator": config["dialog"]})
        ),
        [],
        WRONG,
        {"QNN950": "it has no object `dialog`, but text-generator"},
    ),
}
RIGHT: dict[str, tuple[Change, Sequence[str]]] = {
    "with a byte order mark": (write_config(BOM_UTF8), FOR_PHONE),
    "with parts in a folder": (move_parts("/"), FOR_PHONE),
    "with a prefix": (with_prefix(is_there=True), FOR_PHONE),
    "with a sampler": (
        put("sampler", {"version": 1, "seed": 42, "temp": 0.8, "top-k": 40, "top-p": 0.95}),
        FOR_PHONE,
    ),
    "with stop sequences": (put("stop-sequence", []), FOR_PHONE),
    "with positional-encoding": (by_positional_encoding(HEAD // 2), FOR_PHONE),
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
    "with an adapter for each part": (
        adapt(bin_sections=["tokenizer.json", ""]),
        FOR_PHONE,
    ),
    "with links": (link_all, FOR_PHONE),
    "with spaces around names": (
        put("engine model binary ctx-bins", [f" {name} " for name in PARTS]),
        FOR_PHONE,
    ),
}


test_a_folder_is_judged_by_its_fault, test_a_right_folder_is_judged_by_nothing = make_tests(
    FAULTS, RIGHT
)


def test_a_folder_that_was_unpacked_twice_names_the_inner_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outer").mkdir()
    make_genie(tmp_path / "outer" / "llama_genie")
    assert main(["inspect", str(tmp_path / "outer"), "--soc", "SM8650"]) == ExitCode.USAGE
    assert "the folder llama_genie in it has one" in capsys.readouterr().err
