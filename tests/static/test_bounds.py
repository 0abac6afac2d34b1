"""Files from outside are read in one place, which refuses pipes and devices and has a limit.

Decoders are called with that place's list of exceptions; subprocesses are started by one module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
READER = "provisioning/documents.py"
# These run in another Python, without this project.
PROBES = {"provisioning/doctor/survey/python_probe.py"}
PIPES = {"ci/verbs/explain.py"}  # reads pipes, too, in parts
# Not paths: entries of packages, streams of archives, and modules that open.
NOT_PATHS = {"resources", "metadata", "package", "tarfile", "os", "zipfile", "webbrowser"}
DECODERS = {
    "json.loads",
    "tomllib.loads",
    "msgspec.json.decode",
    "msgspec.toml.decode",
    "yaml.load",
    "yaml.safe_load",
}
# Where what this project itself wrote a moment before is decoded, or the exceptions are its own.
DECODED = {
    "ci/parity/buck/evaluate.py",
    "ci/parity/buck/reader.py",
    "ci/parity/reading.py",
    "ci/report/schema.py",
    "ci/report/write.py",
    "ci/signing/record.py",
    "ci/upstream/worker.py",
    "ci/images/definition.py",
    "provisioning/artifacts/sources/archive.py",
    "provisioning/doctor/survey/python_probe.py",
    "provisioning/manifest/reader.py",
}


def list_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield each call of a method with the text of its object and the method's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, ast.unparse(node.func.value), node.func.attr


def opens_for_reading(call: ast.Call, owner: str) -> bool:
    modes = [arg.value for arg in call.args[:1] if isinstance(arg, ast.Constant)]
    if owner in {"os", "io"} or any(set(str(mode)) & set("wax+") for mode in modes):
        return False
    return bool(modes) and str(modes[0]).startswith("r") and len(str(modes[0])) < 4


def find_faults(name: str, text: str) -> Iterator[str]:
    tree = ast.parse(text)
    guarded: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any(
            "decoding()" in ast.unparse(item.context_expr) for item in node.items
        ):
            guarded |= set(ast.walk(node))
    for call, owner, method in list_calls(tree):
        if owner.split(".")[0].split("(")[0] in NOT_PATHS:
            continue
        if method in {"read_bytes", "read_text"} and name != READER:
            yield f"{name}:{call.lineno}: use read_bytes or read_text of {READER}"
        if method == "open" and opens_for_reading(call, owner) and name not in {READER, *PIPES}:
            yield f"{name}:{call.lineno}: use open_regular of {READER}"
        if f"{owner}.{method}" in DECODERS and call not in guarded and name not in DECODED:
            yield f"{name}:{call.lineno}: decode within `with decoding()` of {READER}"


SOURCES = [path for room in ("ci", "provisioning") for path in sorted((ROOT / room).rglob("*.py"))]


def test_outside_files_are_read_and_decoded_in_one_place() -> None:
    faults = [
        fault
        for path in SOURCES
        if (name := path.relative_to(ROOT).as_posix()) not in PROBES
        for fault in find_faults(name, path.read_text("utf-8"))
    ]
    assert faults == []


@pytest.mark.parametrize(
    "text",
    [
        "data = (directory / NAME).read_bytes()",
        "text = path.read_text(encoding='utf-8')",
        "with path.open('rb') as file: pass",
        "made = json.loads(data)",
        "made = msgspec.json.decode(data, type=Report)",
    ],
)
def test_a_read_or_decode_outside_the_bounded_readers_is_found(text: str) -> None:
    assert len([*find_faults("ci/any.py", text)]) == 1
    assert [*find_faults("ci/any.py", "with decoding():\n    made = json.loads(data)")] == []


UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
ROW = re.compile(r"^\| .+ \| (?P<bound>.+) \| `(?P<name>[\w.]+)` \| .+ \|$", re.MULTILINE)


def read_constant(name: str) -> Any:
    module, _, rest = name.partition(".TransferPolicy.")
    return resolve_name(f"{module}:TransferPolicy.{rest}" if rest else name)


def test_the_page_of_bounds_has_the_bounds_of_the_code() -> None:
    rows = [*ROW.finditer((ROOT / "docs/reference/bounds.md").read_text("utf-8"))]
    assert len(rows) > 25
    for row in rows:
        value, bound = read_constant(row["name"]), row["bound"]
        sizes = [int(n) * UNITS[unit] for n, unit in re.findall(r"(\d+) (MiB|GiB)", bound)]
        plain = [int(one.replace(",", "")) for one in re.findall(r"[\d,]*\d", bound)]
        assert value in {*sizes, *plain} or row["name"].endswith("RESERVE"), row["name"]
