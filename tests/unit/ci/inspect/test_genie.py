"""A folder for Genie with one fault is judged by that fault, and a right one is silent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode
from tests.build.genie import (
    HEAD,
    LENGTH,
    PARTS,
    VOCABULARY,
    encode_positions,
    make_genie,
    make_part,
    make_tokenizer,
)
from tests.stand_ins.lowered import make_binary

NEWER = "v2.51.0.261010101010"
SM8750 = ("SM8750", 69, 79)
Change = Callable[[Path, dict[str, Any]], object]


def dialog(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A section of the configuration."""
    section: dict[str, Any] = config["dialog"]
    for key in keys:
        section = section[key]
    return section


def put(*keys: str, value: Any) -> Change:
    """A key gets another value."""
    return lambda _, config: dialog(config, *keys[:-1]).update({keys[-1]: value})


def drop(*keys: str) -> Change:
    """A key is missing."""
    return lambda _, config: dialog(config, *keys[:-1]).pop(keys[-1])


def write(name: str, data: bytes | str) -> Change:
    """A file has other content."""
    content = data.encode() if isinstance(data, str) else data
    return lambda folder, _: (folder / name).write_bytes(content)


def remove(name: str) -> Change:
    """A file is missing."""
    return lambda folder, _: (folder / name).unlink()


def cut(folder: Path, _: object) -> None:
    """The second part broke off in the middle."""
    second_part = (folder / PARTS[1]).read_bytes()
    (folder / PARTS[1]).write_bytes(second_part[: len(second_part) // 2])


def encode_by(rope_dim: int) -> Change:
    """The positions are described by positional-encoding."""

    def change(_: Path, config: dict[str, Any]) -> None:
        encode_positions(config, rope_dim=rope_dim, rope_theta=10000)

    return change


def twice(_: Path, config: dict[str, Any]) -> None:
    """Two engines, as for speculative decoding."""
    config["dialog"]["engine"] = [config["dialog"]["engine"]] * 2


HTP = ("engine", "backend", "QnnHtp")
BINS = ("engine", "model", "binary", "ctx-bins")
SETTINGS = json.dumps({"devices": [{"soc_model": 57, "dsp_arch": "v79"}]})
OF_OTHER_SOC = json.dumps({"devices": [{"soc_model": 43, "dsp_arch": "v75"}]})
UNIGRAM = json.dumps({"model": {"vocab": [["a", 0.0]] * (VOCABULARY + 9)}})
FAULTS: dict[str, tuple[Change, str, str]] = {
    "no JSON": (write("genie_config.json", "{"), "QNN950", "genie_config.json"),
    "a key is missing": (drop("context", "n-vocab"), "QNN950", "context.n-vocab is missing"),
    "a section is missing": (drop("tokenizer"), "QNN950", "dialog.tokenizer is missing"),
    "a word for a number": (
        put("context", "size", value="1024"),
        "QNN950",
        '"1024", not an integer',
    ),
    "true for a number": (put(*HTP, "kv-dim", value=True), "QNN950", "true, not an integer"),
    "an unknown key": (put(*HTP, "kvdim", value=16), "QNN950", "kvdim is a key that libGenie"),
    "two positions": (
        put("engine", "model", "positional-encoding", value={"type": "rope"}),
        "QNN950",
        "pos-id-dim and model.positional-encoding exclude",
    ),
    "two lists of parts": (
        put("engine", "model", "binary", "fcb", value=[*PARTS]),
        "QNN950",
        "fcb and ctx-bins exclude each other",
    ),
    "a part that is no text": (put(*BINS, value=[*PARTS, 7]), "QNN950", "not a list of strings"),
    "no parts": (put(*BINS, value=[]), "QNN950", "ctx-bins names no file"),
    "a damaged tokenizer": (write("tokenizer.json", "[1]"), "QNN950", "tokenizer.json"),
    "no vocabulary": (write("tokenizer.json", "{}"), "QNN950", "lists no vocabulary"),
    "a part is missing": (remove(PARTS[1]), "QNN951", PARTS[1]),
    "no tokenizer": (remove("tokenizer.json"), "QNN951", "tokenizer.json"),
    "a part is cut": (cut, "QNN953", PARTS[1]),
    "a pointer": (write(PARTS[0], "version https://git-lfs"), "QNN953", PARTS[0]),
    "two versions": (write(PARTS[1], make_part(2, build=NEWER)), "QNN954", "2.51.0"),
    "two SoCs": (write(PARTS[1], make_part(2, soc=SM8750)), "QNN954", "SM8750"),
    "another order": (put(*BINS, value=[*PARTS[::-1]]), "QNN955", "parts 1 to 2 in order"),
    "a part twice": (put(*BINS, value=[PARTS[0], PARTS[0]]), "QNN955", "parts 1 to 2"),
    "half of the parts": (put(*BINS, value=[*PARTS[:1]]), "QNN955", "parts 1 to 2"),
    "another width": (write(PARTS[1], make_part(2, hidden=32)), "QNN956", "hidden"),
    "another length": (put("context", "size", value=4 * LENGTH), "QNN957", "context of 1024"),
    "another n-vocab": (put("context", "n-vocab", value=VOCABULARY + 8), "QNN958", "512 logits"),
    "another tokenizer": (
        write("tokenizer.json", json.dumps(make_tokenizer(VOCABULARY + 40))),
        "QNN959",
        "ids up to 551",
    ),
    "a unigram tokenizer": (write("tokenizer.json", UNIGRAM), "QNN959", "ids up to 520"),
    "another rope-dim": (encode_by(rope_dim=HEAD), "QNN961", "rope-dim is 16"),
    "another pos-id-dim": (put(*HTP, "pos-id-dim", value=64), "QNN961", "pos-id-dim is 64"),
    "another version": (put("engine", "version", value=2), "QNN950", "version is 2, and libGenie"),
    "no eos": (put("context", "eos-token", value=[]), "QNN950", "eos-token is empty"),
    "two engines": (twice, "QNN950", "dialog.engine is a list of two engines, and dialog.type is"),
    "a role": (put("engine", "role", value="draft"), "QNN950", "role is only for several engines"),
    "a shared engine": (put(*HTP, "shared-engine", value=True), "QNN950", "allow-async-init"),
    "no type of embeddings": (
        put("embedding", value={"version": 1, "size": 64, "lut-path": "tokenizer.json"}),
        "QNN950",
        'lut-path needs type "lut"',
    ),
    "a key of another library": (
        put("sampler", value={"version": 1, "top_k": 40}),
        "QNN950",
        "dialog.sampler.top_k is a key that libGenie does not know",
    ),
    "comments": (write("genie_config.json", "// of Genie\n{}"), "QNN950", "JSON is malformed"),
    "an unknown type": (put("type", value="chat"), "QNN950", '"chat", and libGenie knows basic'),
    "a backend without its section": (
        put("engine", "backend", "type", value="GTE"),
        "QNN950",
        "dialog.engine.backend.type is GTE, and dialog.engine.backend.GTE is missing",
    ),
    "a section of another type": (
        put("engine", "model", "library", value={"version": 1, "model-bin": PARTS[0]}),
        "QNN950",
        "dialog.engine.model.library is there, and dialog.engine.model.type is binary",
    ),
    "settings of another Hexagon": (write("htp_config.json", SETTINGS), "QNN962", "Hexagon V79"),
    "settings of another SoC": (write("htp_config.json", OF_OTHER_SOC), "QNN962", "SM8550"),
}
WARNINGS: dict[str, tuple[Change, str, str]] = {
    "another kv-dim": (put(*HTP, "kv-dim", value=128), "QNN949", "kv-dim is 128"),
    "no settings": (remove("htp_config.json"), "QNN976", "htp_config.json: it is missing"),
    "damaged settings": (write("htp_config.json", "{"), "QNN976", "data was truncated"),
    "settings with a number": (
        write("htp_config.json", json.dumps({"devices": [{"dsp_arch": 75}]})),
        "QNN976",
        "dsp_arch is 75, not a string",
    ),
    "another eos": (put("context", "eos-token", value=[2, 77]), "QNN960", "eos-token is 77"),
    "an absolute path": (
        put("tokenizer", "path", value="/data/local/tmp/tokenizer.json"),
        "QNN952",
        "/data/local/tmp/tokenizer.json",
    ),
    "a path out of the folder": (
        put("tokenizer", "path", value="../tokenizer.json"),
        "QNN952",
        "../tokenizer.json",
    ),
}


def judge(
    capsys: pytest.CaptureFixture[str], folder: Path, *words: str
) -> tuple[int, dict[str, str]]:
    """The exit code, and the texts of the findings by id, without the note on what is unknown."""
    code = main(["inspect", str(folder), *words, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {row["id"]: row["what"] for row in findings if row["id"] != "QNN966"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_folder_with_one_fault_cannot_be_loaded_for_that_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, number, text = FAULTS[name]
    code, findings = judge(capsys, make_genie(tmp_path / "bundle", change))
    assert code == ExitCode.FAILED
    assert [*findings] == [number]
    assert text in findings[number]


@pytest.mark.parametrize("name", WARNINGS)
def test_a_folder_whose_fault_may_be_harmless_gets_a_warning(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, number, text = WARNINGS[name]
    folder = make_genie(tmp_path / "bundle", change)
    code, findings = judge(capsys, folder)
    assert (code, [*findings]) == (ExitCode.OK, [number])
    assert text in findings[number]
    assert judge(capsys, folder, "--strict")[0] == ExitCode.FAILED


@pytest.mark.parametrize(
    ("words", "code", "numbers"),
    [
        ((), ExitCode.OK, []),
        (("--soc", "SM8650"), ExitCode.OK, []),
        (("--soc", "SM8750"), ExitCode.FAILED, ["QNN963"]),
        (("--runtime", "2.49.40"), ExitCode.OK, []),
        (("--runtime", "2.51.0"), ExitCode.OK, []),
        (("--runtime-dir", "2.48.40"), ExitCode.FAILED, ["QNN964"]),
        (("--runtime", "libraries"), ExitCode.FAILED, ["QNN965"]),
    ],
)
def test_a_right_folder_is_judged_for_a_phone_and_its_libraries(
    words: tuple[str, ...],
    code: ExitCode,
    numbers: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "libraries").mkdir()
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    folder = make_genie(tmp_path / "bundle")
    ended, findings = judge(capsys, folder, *words)
    assert (ended, [*findings]) == (code, numbers)


@pytest.mark.parametrize(
    ("words", "fixes"),
    [
        ([], ["pass --qnn-runtime with their directory or version and --soc SOC"]),
        (["--soc", "SM8650"], ["pass --qnn-runtime with their directory or version"]),
        (["--qnn-runtime", "2.49.40"], ["pass --soc SOC"]),
        (["--qnn-runtime", "2.49.40", "--soc", "SM8650"], []),
    ],
)
def test_what_is_not_known_is_asked_for_with_its_own_option(
    words: list[str], fixes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["inspect", str(make_genie(tmp_path / "bundle")), *words, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [row["fix"] for row in findings if row["id"] == "QNN966"] == fixes


@pytest.mark.parametrize(
    ("runtime", "line"),
    [
        ("2.49.40", "libraries: QNN 2.49.40"),
        ("qnn-runtime@2.49.40", "libraries: qnn-runtime 2.49.40, QNN 2.49.40"),
        ("libraries", "libraries: libraries, QNN unknown"),
    ],
)
def test_libraries_are_named_once(
    runtime: str,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "libraries").mkdir()
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    main(["inspect", str(make_genie(tmp_path / "bundle")), "--runtime-dir", runtime])
    assert line in map(str.strip, capsys.readouterr().out.splitlines())


def test_a_configuration_of_another_name_is_found_if_it_is_the_only_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_genie(tmp_path / "bundle")
    (folder / "genie_config.json").rename(folder / "llama.json")
    assert judge(capsys, folder) == (ExitCode.OK, {})
    assert main(["inspect", str(folder)]) == ExitCode.OK
    text = capsys.readouterr().out
    assert "bundle (a folder for Genie, llama.json)" in text
    assert "prompt_ar128_cl1024_1_of_2 and token_ar1_cl1024_1_of_2" in text
    assert "not judged: QNN's libraries and the phone's SoC" in " ".join(text.split())


def test_what_a_hostile_configuration_names_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(make_binary())
    words: list[Any] = ["../secret.bin", str(secret), 7, None, {"a": 1}, ""]
    folder = make_genie(tmp_path / "bundle", put(*BINS, value=words))
    _, findings = judge(capsys, folder)
    assert "secret.bin" in findings["QNN951"]
    nested = "[" * 100_000
    (folder / "genie_config.json").write_text(f'{{"dialog": {nested}')
    assert judge(capsys, folder)[0] == ExitCode.FAILED


def list_places(document: Any) -> Iterator[tuple[Any, Any]]:
    """The objects and lists of a document, each with a key or an index of it."""
    entries: Any = ()
    if isinstance(document, dict):
        entries = [*document.items()]
    elif isinstance(document, list):
        entries = [*enumerate(document)]
    for key, value in entries:
        yield document, key
        yield from list_places(value)


@pytest.mark.parametrize("value", [[], {}, None, 1, "x"])
@pytest.mark.parametrize("name", ["genie_config.json", "tokenizer.json", "htp_config.json"])
def test_a_value_of_another_type_is_judged(
    name: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_genie(tmp_path / "bundle")
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer(8)))
    original = (folder / name).read_text()
    for number in range(len([*list_places(json.loads(original))])):
        document = json.loads(original)
        place, key = [*list_places(document)][number]
        place[key] = value
        (folder / name).write_text(json.dumps(document))
        assert main(["inspect", str(folder), "--soc", "SM8650"]) in {
            ExitCode.OK,
            ExitCode.FAILED,
            ExitCode.USAGE,
        }, (key, capsys.readouterr().err)
