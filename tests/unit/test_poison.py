"""No text from outside acts as a command, as markup or on a terminal, in any format."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
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
from tests.stand_ins.documents import encode_sample

ELF = Path(__file__).parents[1] / "artifacts" / "elf" / "libhexagon.so"
POISON = (
    "::error::x\n::stop-commands::y\r ::error::z\n ##[error]a ##vso[task.setvariable variable=PATH]"
    "/evil \x1b[31m\x1b]0;t\x07\x9b \u202e\u2066 \0 <script>alert(1)</script> '\" onx=\"1 '>"
    f" ](http://e) `c` @all ]]> <!-- {'x' * 100_000} (signed by a/b)"
)
# No terminal may get these, except that a report has colours.
CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
COMMAND = r"##(?:\[|vso\[)|(?m:^\s*::(?:error::|stop-commands))"
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}
AZURE = {"TF_BUILD": "True"}
STATUSES = ("passed", "failed", "unsupported")
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
        for key, one in pairs:
            yield from list_places(one, (*place, key))


def put(document: Any, place: tuple[Any, ...], text: str) -> str:
    """Replace a string of a document, and return the one that was there."""
    for key in place[:-1]:
        document = document[key]
    before: str = document[place[-1]]
    document[place[-1]] = text
    return before


def poison(kind: Any, status: str) -> str:
    """Return a document with POISON in all strings whose values are free, or a log."""
    if kind is str:
        return f"{POISON}\n[ERROR] Failed to create device, error 14001 {POISON}\n"
    document = json.loads(encode_sample(kind))
    if kind is Report:
        document["cases"][0]["status"] = status
    free = []
    for place in list_places(document):
        before = put(document, place, POISON)
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.json.decode(json.dumps(document), type=kind)
            free.append(place)
        put(document, place, before)
    for place in free:
        put(document, place, POISON)
    return json.dumps(document)


def find(expression: str, text: str) -> str:
    """Return the first match with what is around it, or ""."""
    found = re.search(expression, text)
    return text[max(found.start() - 60, 0) : found.end() + 60] if found else ""


def check_log(text: str) -> None:
    assert find(CONTROL, text) == ""
    assert find(COMMAND, text) == ""


def check_markdown(text: str) -> None:
    check_log(text)
    rest = re.sub(r"(?s)<pre>.*?</pre>", "", text)
    assert find(r"<script|\]\(http|`c`|<!--|@all", rest) == ""
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


@pytest.mark.parametrize(
    ("kind", "command", "environ", "status"),
    [(*row, one) for row in ROWS for one in STATUSES if row[0] is Report or one == STATUSES[0]],
)
def test_poison_in_every_string_of_a_document_is_only_text(
    kind: Any,
    command: str,
    environ: dict[str, str],
    status: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "bundle.json"
    file.write_text(poison(kind, status))
    (tmp_path / "needs.json").write_text("{}")
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        main(command.replace("{}", str(file)).split())
    check_log(said.getvalue())
    if "--json" in command:
        json.loads(out.getvalue())
    is_markdown = "--markdown" in command or ("--summary" in command and environ is not GITHUB)
    (check_markdown if is_markdown else check_log)(out.getvalue())
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != file:
            CHECKS[path.suffix](path.read_text("utf-8"))
