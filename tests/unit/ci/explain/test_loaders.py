"""Whichever loader, linker or other tool writes a line, one failure has one cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.explain.explain import explain_text
from ci.explain.loaders import Failure, LoaderForm, find_refusal, read_loaders
from ci.explain.rules import check_pattern, read_rules
from provisioning.manifest.reader import read_toml

RULES = read_rules()
TABLE: dict[str, dict[str, list[str]]] = read_toml(
    "loaders.toml", dict[str, dict[str, list[str]]], Path(__file__).parent
)
LINES = [(rule, line) for rule, group in TABLE.items() for line in group["lines"]]


@pytest.mark.parametrize(("rule", "line"), LINES)
def test_a_line_of_a_loader_or_linker_has_its_cause(rule: str, line: str) -> None:
    causes = explain_text(line, RULES).causes
    assert [cause.rule for cause in causes] == [rule] * bool(rule)
    # A line may name no library: what a cause says about it is nothing then, and not a part.
    assert not [cause.detail for cause in causes if cause.detail.strip(" ,;:") != cause.detail]


SKIPPED = "/usr/bin/ld: skipping incompatible /opt/x86/lib{0}.so when searching for -l{0}"
NOT_FOUND = "/usr/bin/ld: cannot find -lfrob: No such file or directory"
UNDEFINED = "a.cpp:(.text+0x5): undefined reference to `frob'"


@pytest.mark.parametrize(
    ("lines", "causes"),
    [
        ([SKIPPED.format("frob")], []),
        ([SKIPPED.format("z"), NOT_FOUND], [("library-not-found", 2)]),
        ([SKIPPED.format("z"), SKIPPED.format("frob"), NOT_FOUND], [("link-skipped", 2)]),
        ([SKIPPED.format("z"), UNDEFINED], [("undefined-reference", 2)]),
    ],
)
def test_a_library_that_the_linker_skips_is_a_cause_only_if_it_finds_no_other(
    lines: list[str], causes: list[tuple[str, int]]
) -> None:
    explanation = explain_text("\n".join(lines), RULES)
    assert [(cause.rule, cause.line) for cause in explanation.causes] == causes


@pytest.mark.parametrize("form", read_loaders().form, ids=lambda form: form.matches[:60])
def test_each_form_finds_its_example_and_takes_bounded_time(form: LoaderForm) -> None:
    refusal = find_refusal(form.matches)
    assert refusal is not None
    assert (refusal.fails, refusal.loader) == (form.fails, form.of)
    check_pattern(form.pattern.replace("@L@", "x"))


def test_each_failure_has_a_form_and_a_rule_for_every_library() -> None:
    assert {form.fails for form in read_loaders().form} == {*Failure}
    general = {
        failure for rule in RULES if not (rule.whose or rule.symbol) for failure in rule.fails
    }
    assert general == {*Failure}


@pytest.mark.parametrize(
    ("line", "whose", "named"),
    [
        (
            'dlopen failed: library "libQnnHtpV79Stub.so" not found: needed by /data/p/libx.so',
            "qnn-stub",
            "libQnnHtpV79Stub.so, needed by /data/p/libx.so",
        ),
        ("/opt/Frob V2/libfrob.so: file too short", "", "libfrob.so"),
        (
            '"/data/libfrob.so" is for EM_X86_64 (62) instead of EM_AARCH64 (183)',
            "",
            "libfrob.so, for EM_X86_64 instead of EM_AARCH64",
        ),
        (
            "/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /opt/frob.so)",
            "libstdcxx",
            "GLIBCXX_3.4.32, libstdc++.so.6, needed by /opt/frob.so",
        ),
        ("mold: fatal: library not found: frob", "", "frob"),
    ],
)
def test_a_line_names_the_library_and_what_is_wrong(line: str, whose: str, named: str) -> None:
    refusal = find_refusal(line)
    assert refusal is not None
    assert (refusal.whose, refusal.values["named"]) == (whose, named)
