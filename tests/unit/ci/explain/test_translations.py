"""A message in another language has the cause of the English one, and is shown as it is in the
log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.explain.explain import explain, explain_text
from ci.explain.rules import DIGITS, list_words, read_rules
from ci.explain.translations import TranslatedForm, read_translations, to_english
from provisioning.manifest.reader import read_toml

RULES = read_rules()
TABLE: dict[str, dict[str, list[str]]] = read_toml(
    "translations.toml", dict[str, dict[str, list[str]]], Path(__file__).parent
)
LINES = [(rule, line) for rule, group in TABLE.items() for line in group["lines"]]


def translate(text: str) -> str:
    shapes = text.encode().lower().translate(None, DIGITS)
    return to_english(text.encode(), shapes, list_words(shapes)).decode()


@pytest.mark.parametrize(("rule", "line"), LINES)
def test_a_message_in_another_language_has_the_cause_of_the_english_one(
    rule: str, line: str
) -> None:
    (cause,) = explain_text(f"x\n{line}\nx\n", RULES).causes
    assert (cause.rule, cause.line, cause.text) == (rule, 2, line)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_lines_are_shown_as_they_are_in_chunks_of_any_size(size: int) -> None:
    log = "x\nError: frob: 设备或资源忙\ncp: 'a': 设备上没有空间\n".encode()
    chunks = [log[at : at + size] for at in range(0, len(log), size)]
    explanation = explain("", chunks, RULES)
    lines = log.decode().splitlines()
    assert [(cause.line, cause.text) for cause in explanation.causes] == [(3, lines[2])]
    assert [(line.line, line.text) for line in explanation.unknown] == [(2, lines[1])]


@pytest.mark.parametrize("form", read_translations().form, ids=lambda form: form.english)
def test_each_form_translates_its_example(form: TranslatedForm) -> None:
    constant, _, _ = form.english.partition("\\")
    translated = translate(form.matches)
    assert constant in translated
    assert translated != form.matches


def test_each_phrase_is_translated_and_english_stays() -> None:
    for phrase in read_translations().phrase:
        assert {translate(other) for other in phrase.others} == {phrase.english}
        assert translate(phrase.english) == phrase.english
