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

from tests.stand_ins.sources import list_nodes, parse_source

ROOT = Path(__file__).parents[2]
READER = "provisioning/documents.py"
# These run in another Python, without this project.
PROBES = {
    "provisioning/doctor/survey/python_probe.py",
    "ci/device/run_onnx.py",
    *(f"ci/nox_sessions/{name}.py" for name in ("environments", "installers", "runs")),
    *(
        f"ci/packages/{name}.py"
        for name in ("locks", "pip_settings", "requirements", "torch_builds", "uv")
    ),
    "ci/verbs/sessions.py",
}
MAPPED = "it gets a file that the reader has opened"
# What opens files without the reader, by source file, with the cause.
OPENED = {
    (READER, "os.open"): "the reader itself",
    ("ci/cases/outputs.py", "os.open"): "outputs of a program: no link, and of an exact size",
    ("ci/cases/outputs.py", "np.load"): MAPPED,
    ("ci/device/runner.py", "tarfile.open"): "an archive in memory",
    ("ci/images/engine.py", "json.load"): "members of an image that this project saved",
    ("ci/images/engine.py", "tarfile.open"): "images that this project saved",
    ("ci/llm/weights.py", "np.memmap"): MAPPED,
    ("ci/models/tensors.py", "np.fromfile"): MAPPED,
    ("ci/models/user_models.py", "np.load"): MAPPED,
    ("ci/verbs/explain.py", "path.open"): "it reads pipes, too, in parts",
    ("provisioning/archives/tarballs.py", "igzip.IGzipFile"): MAPPED,
    ("provisioning/console/terminal.py", "open"): "/dev/null",
    ("provisioning/console/user_folder.py", "os.open"): "directories",
    ("provisioning/elf/programs.py", "zipfile.ZipFile"): "an archive in memory",
    ("provisioning/fetch/part_file.py", "open"): "descriptors of open_own, which replaces pipes",
    ("provisioning/files.py", "os.open"): "directories",
}
# onnx and ONNX Runtime look for weights next to the model, so they open both themselves.
# ci/onnx/models.py has read the model, and checked the files of its weights, before.
ONNX_OPENS = (
    "ci/onnx/",
    "ci/graphs/onnx_program.py",
    "ci/graphs/onnx_reader.py",
    "ci/graphs/onnx_session.py",
    "ci/audit/localise_onnx.py",
    "ci/mend/onnx_files.py",
    "ci/mend/onnx_mixtures.py",
)
ONNX_OPENERS = {"onnx.load", "onnxruntime.InferenceSession"}
OPENERS = ONNX_OPENERS | {
    *("json.load", "tomllib.load", "pickle.load", "torch.load", "yaml.load_all"),
    *("np.load", "np.fromfile", "np.memmap", "np.loadtxt", "np.genfromtxt"),
    *("numpy.load", "numpy.fromfile", "numpy.memmap"),
    *("gzip.open", "lzma.open", "bz2.open", "igzip.open", "io.open", "codecs.open"),
    *("tarfile.open", "zipfile.ZipFile", "igzip.IGzipFile", "safetensors.safe_open"),
    *("ET.parse", "ElementTree.parse", "linecache.getlines", "fileinput.input", "Image.open"),
}
WRITES = set("wax+")
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
    "ci/upstream/programs.py",
    "ci/images/definition.py",
    "provisioning/artifacts/sources/archive.py",
    "provisioning/doctor/survey/python_probe.py",
    "provisioning/manifest/reader.py",
}


def list_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield each call of a method with the text of its object and the method's name."""
    for node in list_nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, ast.unparse(node.func.value), node.func.attr


def find_mode(call: ast.Call, place: int) -> str:
    """Return the mode of a call of open, whose argument number ``place`` it is, or "?" for one that
    is no text."""
    named = [word.value for word in call.keywords if word.arg == "mode"]
    modes = [*named, *call.args[place : place + 1]]
    mode = modes[0] if modes else ast.Constant("r")
    return mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else "?"


def opens_for_reading(call: ast.Call) -> bool:
    """Return whether a call opens a file for reading, without the reader. A method ``open`` with
    other arguments than a mode belongs to another class, such as a pool of workers."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and not set(find_mode(call, 1)) & WRITES
    name = ast.unparse(call.func)
    if name == "os.open":
        flags = {ast.unparse(node) for arg in call.args[1:2] for node in ast.walk(arg)}
        return not flags & {"os.O_WRONLY", "os.O_RDWR", "flags"}
    if name in OPENERS:
        return not (name == "tarfile.open" and find_mode(call, 1)[0] in WRITES)
    mode = find_mode(call, 0)
    return name.endswith(".open") and mode.startswith("r") and len(mode) < 4


def find_faults(name: str, text: str) -> Iterator[str]:
    tree = parse_source(text)
    guarded: set[ast.AST] = set()
    for node in list_nodes(tree):
        if isinstance(node, ast.With) and any(
            "decoding()" in ast.unparse(item.context_expr) for item in node.items
        ):
            guarded |= set(ast.walk(node))
    is_onnx = name.startswith(ONNX_OPENS)
    for node in list_nodes(tree):
        if isinstance(node, ast.Call) and opens_for_reading(node):
            opener = ast.unparse(node.func)
            if (name, opener) not in OPENED and not (is_onnx and opener in ONNX_OPENERS):
                yield f"{name}:{node.lineno}: {opener}: use open_regular of {READER}"
    for call, owner, method in list_calls(tree):
        if owner.split(".")[0].split("(")[0] in NOT_PATHS:
            continue
        if method in {"read_bytes", "read_text"} and name != READER:
            yield f"{name}:{call.lineno}: use read_bytes or read_text of {READER}"
        if f"{owner}.{method}" in DECODERS and call not in guarded and name not in DECODED:
            yield f"{name}:{call.lineno}: decode within `with decoding()` of {READER}"


SOURCES = [path for room in ("ci", "provisioning") for path in sorted((ROOT / room).rglob("*.py"))]


def test_each_allowed_way_to_open_a_file_is_still_used() -> None:
    for name, opener in OPENED:
        calls = list_nodes(parse_source((ROOT / name).read_text("utf-8")))
        openers = [
            ast.unparse(call.func)
            for call in calls
            if isinstance(call, ast.Call) and opens_for_reading(call)
        ]
        assert opener in openers, f"{name} no longer calls {opener}"


def test_outside_files_are_read_and_decoded_in_one_place() -> None:
    faults: list[str] = []
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        if name not in PROBES:
            faults += find_faults(name, path.read_text("utf-8"))
    assert faults == []


@pytest.mark.parametrize(
    "text",
    [
        "data = (directory / NAME).read_bytes()",
        "text = path.read_text(encoding='utf-8')",
        "with path.open('rb') as file: pass",
        "with path.open() as file: pass",
        "with path.open(encoding='utf-8') as file: pass",
        "with path.open(mode='r') as file: pass",
        "with open(path) as file: pass",
        "with open(path, 'rb') as file: pass",
        "descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)",
        "data = np.load(path)",
        "data = np.memmap(path)",
        "model = onnx.load(path)",
        "made = json.load(file)",
        "made = tarfile.open(path)",
        "made = zipfile.ZipFile(path)",
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
    module, _, field = name.partition(".TransferPolicy.")
    return resolve_name(f"{module}:TransferPolicy.{field}" if field else name)


def test_the_page_of_bounds_has_the_bounds_of_the_code() -> None:
    rows = [*ROW.finditer((ROOT / "docs/reference/bounds.md").read_text("utf-8"))]
    assert len(rows) > 25
    for row in rows:
        value, bound = read_constant(row["name"]), row["bound"]
        sizes = [int(n) * UNITS[unit] for n, unit in re.findall(r"(\d+) (MiB|GiB)", bound)]
        plain = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", bound)]
        assert value in {*sizes, *plain} or row["name"].endswith("RESERVE"), row["name"]
