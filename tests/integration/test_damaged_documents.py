"""Damaged documents of every schema end a command with a documented exit code, in bounded time."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ci.__main__
import provisioning.__main__
from ci.device.bundle import Bundle
from ci.gate.schema import Plan
from ci.report.evidence import Statement
from ci.report.schema import Report
from provisioning.manifest.reader import manifests_root
from tests.stand_ins.documents import encode_sample

ELF = Path(__file__).parents[1] / "artifacts" / "elf" / "libhexagon.so"
MAINS = ci.__main__.main, provisioning.__main__.main
DAMAGES = 6  # per document
CODES = {0, 1, 2, 3, 4, 130}  # 130: a report of a run that was cut short
# What takes the place of a value, in JSON and in TOML.
ODD = (
    *("1" * 5000, "-1", "0", "1e999", "nan", "null", "true", "{}", "[]", '""', "[[[]]]", "1.5"),
    *("[" * 100_000, '{"a":' * 20_000, '"\\ud800"', '"\\u0000"', f'"{"x" * 100_000}"'),
    *('"::error::x"', '"../../x"', '"\\u202ex\\n##vso[x]"', "9223372036854775808"),
)
VALUE = re.compile(r'"(?:[^"\\\n]|\\.)*"|-?\d[\d_.eE+-]*|\btrue\b|\bfalse\b|\bnull\b')


def read_manifest(name: str) -> Callable[[], str]:
    return lambda: (manifests_root() / name).read_text("utf-8")


@dataclass(frozen=True)
class Row:
    """A kind of document: a good one, and the command that reads the file ``{}``. If ``manifest``
    is set, the document is that file of the manifests."""

    name: str
    sample: Callable[[], str]
    command: str
    manifest: str = ""


def of_manifest(name: str, command: str) -> Row:
    return Row(name, read_manifest(name), command, name)


ROWS = (
    Row("report", lambda: encode_sample(Report), "report {}"),
    Row("report summary", lambda: encode_sample(Report), "report {} --summary"),
    Row("base", lambda: encode_sample(Report), "report {} --base {}"),
    Row("plan", lambda: encode_sample(Plan), "matrix {}"),
    Row("gate", lambda: encode_sample(Plan), "gate {} --needs {} --results {dir}"),
    Row("statement", lambda: encode_sample(Statement), f"verify-evidence {ELF} --evidence {{}}"),
    Row("bundle", lambda: encode_sample(Bundle), "deploy --bundle {dir} --device ssh:none"),
    Row("policy", read_manifest("policies/emulator.toml"), "test-emulator --policy {} --list"),
    Row("rules", read_manifest("policies/emulator.toml"), f"explain --policy {{}} {__file__}"),
    of_manifest("profiles.toml", "list"),
    of_manifest("toolchains/qnn-runtime.toml", "fetch qnn-runtime --offline"),
    of_manifest("toolchains/executorch.toml", "fetch executorch --offline"),
    of_manifest("locks/qnn-runtime-2.49.40.json", "fetch qnn-runtime --offline"),
    of_manifest("socs.toml", "test-emulator --soc SM8650 --list"),
    of_manifest("pairs.toml", "doctor emulator"),
    of_manifest("policies/skels.toml", f"lock-skels {ELF}"),
    of_manifest("policies/errors.toml", f"explain {__file__}"),
    of_manifest("policies/doctor.toml", "doctor emulator"),
)


@st.composite
def damages(draw: st.DrawFn, text: str) -> bytes:
    """A document in which a value is odd, a line is missing or repeated, or bytes are lost."""
    lines, values = text.splitlines(keepends=True), [*VALUE.finditer(text)]
    place = draw(st.integers(0, max(len(lines) - 1, 0)))
    how = draw(st.sampled_from(["value"] * 5 + ["repeat", "lose", "cut", "bytes"]))
    if how == "value" and values:
        match = values[draw(st.integers(0, len(values) - 1))]
        odd = draw(st.sampled_from(ODD))
        return (text[: match.start()] + odd + text[match.end() :]).encode()
    if how == "repeat":
        return "".join([*lines[: place + 1], *lines[place:]]).encode()
    if how == "lose":
        return "".join([*lines[:place], *lines[place + 1 :]]).encode()
    raw = text.encode()
    start = draw(st.integers(0, len(raw)))
    return raw[:start] + (draw(st.binary(max_size=9)) + raw[start + 3 :]) * (how == "bytes")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_damaged_document_has_a_documented_exit_code(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    file, directory = tmp_path / "bundle" / "bundle.json", tmp_path / "bundle"
    directory.mkdir()
    if row.manifest:
        shutil.copytree(manifests_root(), tmp_path / "manifests")
        file = tmp_path / "manifests" / row.manifest
        monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    argv = row.command.replace("{dir}", str(directory)).replace("{}", str(file)).split()
    text = row.sample()

    @settings(
        max_examples=DAMAGES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(damages(text))
    def try_damage(data: bytes) -> None:
        file.write_bytes(data)
        code, output = call(argv)
        assert code in CODES, output

    file.write_text(text, "utf-8")
    code, undamaged_output = call(argv)
    assert code in CODES, undamaged_output
    try_damage()


def call(argv: list[str]) -> tuple[int, str]:
    project_modules = [
        module for name, module in sys.modules.items() if name.startswith(("ci.", "provisioning."))
    ]
    for member in {
        id(member): member for module in project_modules for member in vars(module).values()
    }.values():
        if hasattr(member, "cache_clear"):  # of what was read from files
            member.cache_clear()
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        main = MAINS[argv[0] == "lock-skels"]
        code = main(argv)
    return code, out.getvalue()[-2000:]


def test_each_undamaged_sample_document_is_valid() -> None:
    """Otherwise, only its first mistake would be tested."""
    for kind in (Report, Plan, Statement, Bundle):
        msgspec.json.decode(encode_sample(kind), type=kind)
