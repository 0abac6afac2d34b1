"""No text from outside acts as a command, as markup or on a terminal, in any format."""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from ci.__main__ import main
from ci.device.bundle import Bundle
from ci.gate.schema import Plan
from ci.report.evidence import Statement
from ci.report.schema import Report
from tests.stand_ins import lowered
from tests.stand_ins.documents import encode_sample
from tests.stand_ins.repository import make_checkout

ELF = Path(__file__).parents[1] / "artifacts" / "elf" / "libhexagon.so"
POISON = (
    "::error::x\n::stop-commands::y\r ::error::z\n ##[error]a ##vso[task.setvariable variable=PATH]"
    "/evil \x1b[31m\x1b]0;t\x07\x9b \u202e\u2066 \0 <script>alert(1)</script> '\" onx=\"1 '>"
    f" ](http://e) `c` @all ]]> <!-- {'x' * 10_000} (signed by a/b)"
)
# No terminal may get these, except that a report has colours.
CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
COMMAND = r"##(?:\[|vso\[)|(?m:^\s*::(?:error::|stop-commands))"
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}
AZURE = {"TF_BUILD": "True"}
SUFFIXES = {".onnx", ".pte", ".bin", ".apk"}
STATUSES = ("passed", "failed", "unsupported")  # of the cases of a report
NOWHERE: dict[str, str] = {}
ROWS = (
    (Report, "report {}", NOWHERE),
    (Report, "report {}", GITHUB),
    (Report, "report {} --json", AZURE),
    (Report, "report {} --summary", AZURE),
    (Report, "report {} --summary", GITHUB),
    (Report, "report {} --annotate", GITHUB),
    (Report, "report {} --annotate", AZURE),
    (Report, "report {} --base {}", NOWHERE),
    (Report, "report {} --to out --sarif out.sarif", NOWHERE),
    (Report, "report --trend . --to out", NOWHERE),
    (Plan, "matrix {}", GITHUB),
    (Plan, "matrix {} --json", AZURE),
    (Plan, "gate {} --needs needs.json --results .", NOWHERE),
    (Plan, "gate {} --needs needs.json --results . --markdown", NOWHERE),
    (Plan, "gate {} --needs needs.json --results . --json", AZURE),
    (Statement, f"verify-evidence {ELF} --evidence {{}}", NOWHERE),
    (Statement, f"verify-evidence {ELF} --evidence {{}} --json", AZURE),
    (str, "explain {}", NOWHERE),
    (str, "explain {} --json", AZURE),
    (str, "explain {} --github", GITHUB),
    (str, "report {}", GITHUB),
    (Bundle, "deploy --bundle . --device ssh:none", NOWHERE),
)


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each string in a document."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in pairs:
            yield from list_places(item, (*place, key))


def put(document: Any, place: tuple[Any, ...], text: str) -> str:
    """Replace a string of a document, and return the one that was there."""
    for key in place[:-1]:
        document = document[key]
    before: str = document[place[-1]]
    document[place[-1]] = text
    return before


@cache
def poison(kind: Any) -> str:
    """Return a document with POISON in all strings whose values are free, or a log. A report has a
    case of each status."""
    if kind is str:
        return f"{POISON}\n[ERROR] Failed to create device, error 14001 {POISON}\n"
    document = json.loads(encode_sample(kind))
    free = []
    for place in list_places(document):
        before = put(document, place, POISON)
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.json.decode(json.dumps(document), type=kind)
            free.append(place)
        put(document, place, before)
    for place in free:
        put(document, place, POISON)
    if kind is Report:
        (case,) = document["cases"]
        document["cases"] = [
            {**case, "judgement": {**case["judgement"], "status": status}} for status in STATUSES
        ]
    return json.dumps(document)


def find(expression: str, text: str) -> str:
    """Return the first match with what is around it, or ""."""
    match = re.search(expression, text)
    return text[max(match.start() - 60, 0) : match.end() + 60] if match else ""


def check_log(text: str) -> None:
    assert find(CONTROL, text) == ""
    assert find(COMMAND, text) == ""


def check_markdown(text: str) -> None:
    check_log(text)
    without_blocks = re.sub(r"(?s)<pre>.*?</pre>", "", text)
    assert find(r"<script|\]\(http|`c`|<!--|@all", without_blocks) == ""
    assert find("<script", text) == ""


def check_html(text: str) -> None:
    assert find(CONTROL, text) == ""

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not [name for name, _ in attrs if "onx" in name]
            assert tag != "script" or self.get_starttag_text() == "<script>"

    Parser().feed(text)
    assert find(r"alert\(1\)</script>", text) == ""


CHECKS: dict[str, Callable[[str], Any]] = {
    ".md": check_markdown,
    ".html": check_html,
    ".xml": ET.fromstring,
    ".json": json.loads,
    ".sarif": json.loads,
}


@pytest.mark.parametrize(("kind", "command", "environ"), ROWS)
def test_hostile_text_in_every_string_of_a_document_is_only_shown_as_text(
    kind: Any,
    command: str,
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "bundle.json"
    file.write_text(poison(kind))
    (tmp_path / "needs.json").write_text("{}")
    is_markdown = "--markdown" in command or ("--summary" in command and environ is not GITHUB)
    check_command(command.replace("{}", str(file)).split(), is_markdown=is_markdown)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != file:
            CHECKS[path.suffix](path.read_text("utf-8"))


def check_command(words: list[str], *, is_markdown: bool = False) -> str:
    """Run a verb, check what it prints, and return all of it."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        main(words)
    check_log(errors.getvalue())
    if "--json" in words:
        json.loads(out.getvalue())
    (check_markdown if is_markdown else check_log)(out.getvalue())
    return out.getvalue() + errors.getvalue()


def put_poison(message: Any) -> None:
    """Put POISON into all strings of a protobuf message, except the types of its nodes."""
    for field, value in message.ListFields():
        if field.name in {"op_type", "attribute"}:
            continue
        if field.type == field.TYPE_MESSAGE:
            for part in [value] if hasattr(value, "ListFields") else value:
                put_poison(part)
        elif isinstance(value, str):
            setattr(message, field.name, POISON)


def write_onnx(path: Path) -> None:
    """Write an ONNX model with POISON in its metadata, names and domains, or a context model."""
    onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")
    from tests.qnn_provider.contexts import make_blob, write_embedded

    source = POISON if path.stem == "foreign" else "QNN"
    model = onnx.load_model(write_embedded(path.parent, make_blob(), source=source))
    model.producer_name = model.producer_version = model.doc_string = model.domain = "x"
    model.graph.node[0].name = model.graph.node[0].doc_string = model.graph.doc_string = "x"
    model.graph.node.add(op_type="Relu", input="x", output="z", domain="x", name="x")
    model.metadata_props.add(key="x", value="x")
    put_poison(model)
    model.opset_import[0].domain, model.graph.node[0].domain = "", "com.microsoft"
    if path.stem == "model":
        model.graph.node[0].op_type = POISON
    path.write_bytes(model.SerializeToString())


def write_program(path: Path) -> None:
    """Write a program or a context binary with POISON in its strings, or a package whose files
    have such names."""
    if path.suffix == ".apk":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"assets/{POISON[:300]}.pte", b"no program")
            archive.writestr("lib/arm64-v8a/libone.so", ELF.read_bytes())
            archive.writestr("AndroidManifest.xml", f"<manifest package='{POISON}'/>")
        return
    unchanged = {"qnn_compile_spec", "QnnBackend", lowered.BUILD}
    put_string = lowered._put

    def put_poisoned(data: bytearray, value: Any) -> int:
        return put_string(
            data, POISON if isinstance(value, str) and value not in unchanged else value
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowered, "_put", put_poisoned)
        path.write_bytes(lowered.make_binary() if path.suffix == ".bin" else lowered.make_program())


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("inspect one.pte", NOWHERE),
        ("inspect one.pte", GITHUB),
        ("inspect one.pte", AZURE),
        ("inspect one.bin", NOWHERE),
        ("inspect one.apk", NOWHERE),
        ("inspect one.apk", GITHUB),
        ("inspect one.apk", AZURE),
        # Each reads its file in another process.
        ("inspect context.onnx", GITHUB),
        ("inspect model.onnx", AZURE),
        ("inspect foreign.onnx", NOWHERE),
        ("inspect one.pte --json", AZURE),
        ("inspect one.pte --runtime 2.49.40 --soc SM8750", GITHUB),
        ("inspect context.onnx --runtime 2.49.40 --soc SM8750 --json", NOWHERE),
        ("inspect --load one.apk", GITHUB),
        ("inspect --load one.apk --json", AZURE),
        ("test-onnx --model model.onnx", GITHUB),
        ("estimate --model model.onnx --scheme fp16", AZURE),
        ("init --model model.onnx", GITHUB),
    ],
)
def test_hostile_names_in_a_program_are_only_shown_as_text(
    command: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / next(word for word in command.split() if Path(word).suffix in SUFFIXES)
    (write_onnx if path.suffix == ".onnx" else write_program)(path)
    shown = check_command(command.split())
    assert find(r"(?m)^\s*: :stop", shown) == ""  # no name begins a line


NAME = POISON.replace("\0", "")[:200].replace("/", "|")
REF = re.sub(r"[\x00-\x20~^:?*\[\\\x7f]|\.\.|@{|//", "", POISON[:300])


@pytest.fixture(scope="module", params=[NAME, NAME.replace("\n", "")], ids=["newline", "covered"])
def poisoned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with hostile names, and rules for it. No glob covers a file with a newline."""
    folder = tmp_path_factory.mktemp("poisoned")
    (folder / "rules.toml").write_text(
        'branch = "main"\n[sessions.build]\n'
        "[[rule]]\nfiles = ['**']\nsessions = ['*']\nreason = 'every job uses it'\n"
    )
    checkout = make_checkout(folder / "small", {"a.py": ""})
    checkout.commit({"a.py": ""})
    checkout.commit({request.param: ""})
    checkout.git("branch", REF)
    checkout.git("tag", REF)
    return folder


@pytest.mark.parametrize(
    ("options", "environ"),
    [("-q", NOWHERE), ("-q", GITHUB), ("-q", AZURE), ("--json", AZURE), ("--markdown", GITHUB)],
)
def test_hostile_names_of_files_branches_and_tags_are_only_shown_as_text(
    poisoned: Path, options: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    where = ["--source", str(poisoned / "small"), "--rules", str(poisoned / "rules.toml")]
    planned = ["plan", *where, options, "--base", f"{REF}~1"]
    shown = check_command(planned, is_markdown=options == "--markdown")
    assert "error" in shown
    for unknown in (f"{REF}~9", POISON.replace("\0", "")):
        check_command(["plan", *where, "--base", unknown])
