"""A user's regular expression finds what Python's engine finds, and never takes long."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.cases.policy import Unsupported, is_match
from ci.explain.linear import compile_linear
from ci.explain.rules import Advice, make_rules
from ci.facts.finding import Finding, Question

ATOMS = (
    *("a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", r"\W", r"\b", r"\B", "^", "$", r"\A"),
    *(r"\Z", "(?:ab|c)", "(a|b)*", "(?P<x>a)?", "b+", "c{1,3}", "(?i:A)", "[a-c0-9]", "(?s:.)"),
    *("(?m:^)", "(?m:$)", "|", "(b{2}|)", "a*?", "(?:a|)+", r"\n", "(?a:\\w)", "[^\\d\\n]", ""),
)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.sampled_from(ATOMS), max_size=6).map("".join),
    st.text("abcABC1 \n_\u00e9\u0130", max_size=8),
)
def test_a_linear_expression_matches_what_pythons_engine_matches(pattern: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = bool(re.search(pattern, text))
        except re.error:
            with pytest.raises(ValueError, match="is not a regular expression"):
                compile_linear(pattern)
            return
        assert compile_linear(pattern).search(text) is expected


# With Python's engine, each of them takes hours on the text of 40,000 letters.
ENDLESS = (
    *("(.*)(.*)(.*)b$", "(a+)+b", "(a|ab)*c", "((a)*)+b", ".*a.*a.*a.*b", "(a|aa)+$b"),
    *("a?" * 40 + "b", "(a?){60}b", "(?:a+|b+|c+)*d", "(a{2,})+b", r"(\w+\s?)*;"),
)


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_would_take_for_ever_ends(pattern: str) -> None:
    text = "error: " + "a" * 40_000
    finding = Finding(id="QNN1", question=Question.RUN, headline="a", evidence=text)
    assert not is_match("", pattern, [finding], text)
    row = Advice(pattern=pattern, fix="a fix")
    (rule,) = make_rules([row])
    assert rule.find(text) is None


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "a reference to a group"),
        ("(?=a)b", "a condition on what follows"),
        ("(?<!a)b", "a condition on what follows or precedes"),
        ("(a", "is not a regular expression"),
        ("((a{1000}){1000}){1000}", "it repeats too much"),
        ("(" * 9000 + "a" + ")" * 9000, "is not a regular expression"),
    ],
)
def test_what_it_cannot_search_for_is_refused_when_a_policy_is_read(
    pattern: str, reason: str
) -> None:
    for make in (
        lambda: Advice(pattern=pattern, fix="a fix"),
        lambda: Unsupported(pattern=pattern, reason="a reason"),
    ):
        with pytest.raises(ValueError, match=reason):
            make()
