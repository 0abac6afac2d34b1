"""How folders for Genie are changed, for one fault each, and how such a folder is judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ci.__main__ import main
from provisioning.elf.facts import EM_X86_64
from provisioning.errors import ExitCode
from tests.build.genie import PARTS, Change, encode_positions, make_genie, make_part, make_tokenizer

FITS, WRONG = ExitCode.OK, ExitCode.FAILED
FOR_PHONE = ["--soc", "SM8650", "--runtime", "2.49.40"]
SKEL = "libQnnHtpV75Skel.so"


class Row(NamedTuple):
    """A fault: the thread in which users met it, how it is made, the options, and the findings with
    what they say."""

    thread: str
    make: Change
    words: Sequence[str]
    code: ExitCode
    findings: Mapping[str, str]


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


def both(*changes: Change) -> Change:
    """Several changes, one after another."""

    def change(folder: Path, config: dict[str, Any]) -> None:
        for each in changes:
            each(folder, config)

    return change


def settings(soc: int, hexagon: str) -> Change:
    """The settings of the HTP name another device."""
    text = json.dumps({"devices": [{"soc_model": soc, "dsp_arch": hexagon}]})
    return lambda folder, _: (folder / "htp_config.json").write_text(text)


def find_place(config: dict[str, Any], keys: str) -> tuple[dict[str, Any], str]:
    """The section of the dialog with a key, and its name."""
    section = config["dialog"]
    *sections, key = keys.split()
    for name in sections:
        section = section[name]
    return section, key


def put(keys: str, value: object) -> Change:
    """A key of the dialog has a value; ``keys`` are those of the sections and its name."""

    def change(_: Path, config: dict[str, Any]) -> None:
        section, key = find_place(config, keys)
        section[key] = value

    return change


def leave_out(keys: str) -> Change:
    """A key of the dialog is missing; ``keys`` are as in put."""

    def change(_: Path, config: dict[str, Any]) -> None:
        section, key = find_place(config, keys)
        del section[key]

    return change


def by_positional_encoding(rope_dim: int) -> Change:
    """The rotations are described by positional-encoding."""

    def change(_: Path, config: dict[str, Any]) -> None:
        encode_positions(config, rope_dim=rope_dim, rope_theta=500000)

    return change


def put_htp(key: str, value: object) -> Change:
    """A key of the HTP's section has a value."""

    def change(_: Path, config: dict[str, Any]) -> None:
        config["dialog"]["engine"]["backend"]["QnnHtp"][key] = value

    return change


def tokenizer(size: int) -> Change:
    """The tokenizer has ``size`` tokens."""
    text = json.dumps(make_tokenizer(size))
    return lambda folder, _: (folder / "tokenizer.json").write_text(text)


def draft_with(name: str) -> Change:
    """A second engine drafts tokens, with a context binary of this name."""

    def change(_: Path, config: dict[str, Any]) -> None:
        target = config["dialog"]["engine"]
        draft = json.loads(json.dumps(target))
        draft["model"]["binary"]["ctx-bins"] = [name]
        engines = [{**target, "role": "target"}, {**draft, "role": "draft"}]
        config["dialog"] |= {
            "engine": engines,
            "type": "spd",
            "spd": {"version": 1, "draft-len": 4},
        }

    return change


def of_another_machine(path: Path, machine: int = EM_X86_64) -> None:
    """A library is for another machine."""
    data = bytearray(path.read_bytes())
    data[18:20] = machine.to_bytes(2, "little")
    path.write_bytes(data)


def adapt(**adapter: object) -> Change:
    """The model has an adapter with these keys, whose hyphens are underscores here."""
    keys = {key.replace("_", "-"): value for key, value in adapter.items()}
    adapters = [{"version": 1, "name": "a", **keys}]
    return put("engine model binary lora", {"version": 1, "adapters": adapters})


def judge_folder(
    capsys: pytest.CaptureFixture[str], path: Path, words: Sequence[str]
) -> tuple[int, dict[str, str]]:
    """The exit code, and the texts of the findings by id, without the note on what is unknown."""
    code = main(["inspect", str(path), *words, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {row["id"]: row["what"] for row in findings if row["id"] != "QNN966"}


def make_tests(
    faults: Mapping[str, Row], right: Mapping[str, tuple[Change, Sequence[str]]]
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two tests of a module: a folder with each of these faults, and each right one."""

    @pytest.mark.parametrize("name", faults)
    def judge_fault(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        require_fault(faults[name], tmp_path, capsys)

    @pytest.mark.parametrize("name", right)
    def judge_right(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        require_silence(*right[name], tmp_path, capsys)

    return judge_fault, judge_right


def require_fault(row: Row, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with the fault of a row is judged by its findings alone."""
    code, findings = judge_folder(capsys, make_genie(place / "bundle", row.make), row.words)
    assert (code, [*findings]) == (row.code, [*row.findings])
    for number, text in row.findings.items():
        assert text in findings[number]


def require_silence(
    change: Change, words: Sequence[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A right folder is judged by nothing."""
    folder = make_genie(place / "bundle", change)
    assert judge_folder(capsys, folder, [*words, "--strict"]) == (ExitCode.OK, {})
