"""docs/reference/troubleshooting.md has the rules of manifests/policies/errors.toml, and
codes.md the numbers of manifests/policies/codes.toml.

The schema of ``explain --json`` is that of the code.

``python -m tests.static.test_troubleshooting_page`` writes the tables and the schema.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from ci.explain.explain import Explanation
from ci.explain.rules import Area, Place, Role, Rule, read_families, read_rules, spell_code
from ci.facts.kinds import Kind
from ci.inspect.bundle_log import BundleExplanation

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "troubleshooting.md"
SCHEMA = DOCS / "schemas" / "explain.schema.json"
HEAD = "| id | what a line says | why | what to do | known from |\n|---|---|---|---|---|\n"
TABLE = re.compile(r"(<!-- rules: (\w+) -->\n\n)(?:\|.*\n)*")
HINT = "run `python -m tests.static.test_troubleshooting_page`"
SHOWN_TEXTS = 3
UPSTREAM = "pytorch/executorch"
PLACES = {
    Place.APP: "in an app",
    Place.DEVICE: "on a device",
    Place.BOARD: "on an aarch64 board",
    Place.WINDOWS: "on Windows",
    Place.COMPUTER: "on a Linux computer",
}
FAMILIES = {
    "executorch": "## Errors of ExecuTorch",
    "fastrpc": "## Errors of FastRPC (AEE)",
    "qnn": "## Errors of QNN",
    "datatype": "## Data types of QNN",
    "litert": "## Statuses of LiteRT",
    "windows": "## Exit codes of Windows",
    "genie": "## Statuses of Genie",
    "pack": "## Errors of Google Play's asset packs and AI packs",
}
CODES = DOCS / "reference" / "codes.md"


def render_page(page: str) -> str:
    """``page`` with the rows of each of its tables as the rules have them."""
    return TABLE.sub(lambda match: match[1] + HEAD + "".join(list_rows(Area(match[2]))), page)


def render_codes() -> str:
    """The page of the numbers in manifests/policies/codes.toml."""
    page = CODES.read_text("utf-8").partition("\n## ")[0].rstrip("\n")
    for name, title in FAMILIES.items():
        family = read_families()[name]
        page += f"\n\n{title}\n\nSource: {family.source}\n\n"
        page += "| number | decimal | name | meaning |\n|---|---|---|---|\n"
        rows = []
        for key in sorted(family.numbers, key=lambda digits: int(digits, 16)):
            number, (text, meaning) = int(key, 16), family.numbers[key]
            rows.append(f"| {number:#x} | {_spell(number)} | {_quote(text)} | {meaning} |")
        page += "\n".join(rows)
    return f"{page}\n"


def _spell(number: int) -> str:
    """A number in decimal as logs show it: negative, if it is one of 32 bits."""
    decimal, _, *signed = spell_code(number)
    return [decimal, *signed][-1]


def _fill(rule: Rule, text: str) -> str:
    """The text of a rule for its example."""
    return text.format_map(rule.find(rule.matches) or {}) if rule.family else text


def list_rows(area: Area) -> list[str]:
    rules = [rule for rule in read_rules() if rule.area is area]
    return [_row(rule) for rule in sorted(rules, key=lambda row: row.role is Role.HARMLESS)]


def _row(rule: Rule) -> str:
    cells = (
        rule.finding_id,
        _describe_line(rule),
        _escape(_fill(rule, ": ".join(filter(None, (rule.headline, rule.detail))))),
        _describe_remedies(rule),
        _describe_sources(rule),
    )
    return f"| {' | '.join(cells)} |\n"


def _describe_remedies(rule: Rule) -> str:
    """The remedy of a rule, and what differs at each kind of place."""
    remedies = [
        f"{PLACES[place]}: {at_place.remedy}"
        for place, at_place in rule.places.items()
        if at_place.remedy
    ]
    return "; ".join(map(_escape, (rule.remedy, *remedies)))


def _describe_line(rule: Rule) -> str:
    decimal, *other_spellings = spell_code(rule.code) if rule.code else ("",)
    code = (
        [f"error {decimal}, {other_spellings[0]}"]
        if other_spellings and rule.code < 1 << 31
        else other_spellings[:1]
    )
    names = read_families()[rule.family].numbers if rule.family else {}
    named = [
        text
        for code_of_rule in rule.codes
        for text in (f"{code_of_rule:#x}", names[f"{code_of_rule:#x}"][0])
    ]
    texts = [*code, *named, *rule.names[:1], *rule.text[:SHOWN_TEXTS]]
    texts = texts or [rule.pattern or rule.matches]
    # A pattern matches only some of the lines with these texts. A symptom may be any line.
    is_any_line = rule.role in (Role.SYMPTOM, Role.END) or rule.matches.strip() in texts
    narrow = rule.pattern and not is_any_line
    example = [f"for example {_quote(rule.matches)}"] if narrow and not rule.code else []
    notes = {Role.HARMLESS: " (not an error)", Role.HINT: " (not an error by itself)"}
    return ", ".join([*map(_quote, texts), *example]) + notes.get(rule.role, "")


def _quote(text: str) -> str:
    """``text`` as code in a cell of a table."""
    marks = "``" if "`" in text else "`"
    return f"{marks}{text.strip().replace('|', chr(92) + '|')}{marks}"


def _describe_sources(rule: Rule) -> str:
    links = []
    for source in rule.source:
        match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", source)
        name = source if match is None else f"{match[1].removeprefix(UPSTREAM)}#{match[2]}"
        links.append(
            "our experiment" if source == "experiment" else f"[{_shorten(name)}]({source})"
        )
    marks = [] if rule.is_seen else ["read only"]
    return ", ".join([*links, *filter(None, [_escape(rule.versions)]), *marks])


def _shorten(name: str) -> str:
    return name.split("/")[2] if name.startswith("https://") else name


def _escape(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text.replace("|", r"\|"))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>$\[\]])", r"\\\1", part) for part in parts
    )


def make_schema() -> dict[str, Any]:
    """The schema of what ``explain --json`` prints."""
    (logs, findings, kinds, bundle), defs = msgspec.json.schema_components(
        (Explanation, Rule, Kind, BundleExplanation), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "explain.schema.json",
        "title": "What logs say: qnn-ci explain --json",
        "type": "object",
        "additionalProperties": False,
        "required": ["logs"],
        "properties": {
            "logs": {"type": "array", "items": logs},
            "findings": {"type": "array", "items": findings},
            "kinds": {"type": "array", "items": kinds},
            "bundle": bundle,
        },
        "$defs": defs,
    }


def test_the_troubleshooting_page_is_generated_from_the_rules() -> None:
    page = PAGE.read_text("utf-8")
    assert render_page(page) == page, HINT
    assert {match[2] for match in TABLE.finditer(page)} == {area.value for area in Area}


def test_the_page_of_error_codes_is_generated_from_the_families() -> None:
    assert render_codes() == CODES.read_text("utf-8"), HINT


def test_the_committed_rules_schema_is_generated_from_the_code() -> None:
    assert json.loads(SCHEMA.read_text("utf-8")) == json.loads(json.dumps(make_schema())), HINT


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text("utf-8")), "utf-8")
    CODES.write_text(render_codes(), "utf-8")
    SCHEMA.write_text(json.dumps(make_schema(), indent=1) + "\n", "utf-8")
