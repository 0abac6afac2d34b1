"""Each rule says what it must, matches its own line and not its counterexample; codes match in
every spelling; expressions that may take for ever are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.explain.explain import explain_text
from ci.explain.rules import (
    Advice,
    Area,
    Role,
    Rule,
    check_pattern,
    make_rules,
    read_rules,
    spell_code,
)
from provisioning.errors import ManifestError

RULES = read_rules()


def make_rule(**changes: object) -> Rule:
    fields = {"id": "x", "area": Area.DEVICE, "cause": "c", "fix": "f", "source": ("experiment",)}
    return Rule(**{**fields, "matches": "", "rejects": "", **changes})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_matches_its_line_and_not_its_counterexample(rule: Rule) -> None:
    assert rule.matches_line(rule.matches)
    assert not rule.matches_line(rule.rejects)
    found = explain_text(rule.matches, RULES)
    every = (*found.causes, *found.consequences, *found.notes, *found.harmless)
    assert rule.id in {one.rule for one in every}, "another rule has its line"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_names_cause_fix_and_where_it_is_known_from(rule: Rule) -> None:
    assert rule.cause
    assert rule.fix
    assert rule.source
    assert all(one == "experiment" or one.startswith("https://") for one in rule.source)
    assert rule.seen or "experiment" not in rule.source or rule.role is not Role.CAUSE


def test_there_are_as_many_as_promised() -> None:
    assert len(RULES) >= 80
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (5005, "Failed to create context from binary. Error code: 5005"),
        (5005, "Context create failed, err 0x138d"),
        (5005, "error 0x0000138D."),
        (5005, "Error: QNN_CONTEXT_ERROR_CREATE_FROM_BINARY: Failure"),
        (14001, "QnnDsp <E> Transport layer setup failed: 14001"),
        (14001, "deviceCreate returned 0x36b1"),
        (0x80000406, "qnn_open failed, 0x80000406"),
        (0x80000406, "remote_handle64_open failed, error -2147482618"),
        (0x80000406, "open failed with status 2147484678"),
        (0x80000406, "error AEE_EUNABLETOLOAD"),
    ],
)
def test_a_code_matches_in_every_spelling(code: int, line: str) -> None:
    rule = next(one for one in RULES if one.code == code)
    assert rule.matches_line(line)


@pytest.mark.parametrize(
    ("code", "spellings"),
    [
        (5005, ("5005", "0x138d")),
        (0x7FFFFFFF, ("2147483647", "0x7fffffff")),
        (0x80000000, ("2147483648", "0x80000000", "-2147483648")),
        (0xFFFFFFFF, ("4294967295", "0xffffffff", "-1")),
        (0x100000000, ("4294967296", "0x100000000")),
    ],
)
def test_an_error_number_of_32_bits_may_be_negative(code: int, spellings: tuple[str, ...]) -> None:
    assert spell_code(code) == spellings


def test_a_rule_with_a_code_matches_its_text_in_any_case_too() -> None:
    rule = make_rule(code=5005, text=("Some Text",))
    for line in ("error 5005", "there is SOME text", "some text and 17"):
        assert rule.matches_line(line), line
    assert not rule.matches_line("5005 bytes")


def test_a_code_alone_matches_with_leading_zeros_and_in_each_case() -> None:
    rule = make_rule(code=0x80001A0B)
    for line in (
        *("error 0x80001a0b", "error 0x0080001A0B", "error 2147490315", "error -2147476981"),
        "returned (0x80001A0B)",
    ):
        assert rule.matches_line(line), line
    for line in ("error 80001a0b", "0x80001a0b", "error 0x80001a0b1", "error 0x180001a0b"):
        assert not rule.matches_line(line), line


@pytest.mark.parametrize(
    "line",
    ["Error code: 50051", "error 15005", "err 5005.7 ms", "error 0x138d7", "listening on 5005"],
)
def test_another_number_is_not_the_code(line: str) -> None:
    assert not next(one for one in RULES if one.code == 5005).matches_line(line)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|ab)*c", "((x)*)+", "(.*,)*z", ".*a.*b.*c.*d", "(a{2,})+", "(a"]
)
def test_an_expression_that_may_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        check_pattern(pattern)
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        make_rule(pattern=pattern)
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        Advice(pattern, "a fix")


@pytest.mark.parametrize(
    "pattern",
    ["", "a.*b", "(ab)+c", "op(_[0-9]+)?:", r"\(a\+\)\+", "[(*+]+x", "(falls?|fell) back"],
)
def test_usual_expressions_are_taken(pattern: str) -> None:
    check_pattern(pattern)


def test_a_rule_that_matches_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        make_rule()
    with pytest.raises(ValueError, match="every log"):
        make_rule(text=("e ",))
    with pytest.raises(ValueError, match="every log"):
        make_rule(text=("a whole sentence", "e "))
    with pytest.raises(ValueError, match="every log"):
        make_rule(text=(" ab ",))
    assert make_rule(text=("abc",)).matches_line("x ABC x")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('id = "no-space"', 'id = "zip-broken"'),
        lambda text: text.replace('"op-preparation", "constants-only"]', '"nothing-like-it"]'),
    ],
)
def test_rules_that_contradict_each_other_are_refused(
    change: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path("manifests") / "policies" / "errors.toml").read_text("utf-8")
    assert callable(change)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "errors.toml").write_text(change(text), "utf-8")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path))
    with pytest.raises(ManifestError, match=r"errors\.toml") as caught:
        read_rules.__wrapped__()
    assert "consequence_of" in caught.value.fix


def test_symptoms_come_after_all_other_rules_and_each_id_occurs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = """[[rule]]
id = "{0}"
role = "{1}"
area = "device"
cause = "c"
fix = "f"
matches = ""
rejects = ""
source = ["experiment"]
text = ["a line"]
"""
    (tmp_path / "policies").mkdir()
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path))

    def read(*rows: tuple[str, str]) -> list[str]:
        text = "".join(row.format(*one) for one in rows)
        (tmp_path / "policies" / "errors.toml").write_text(text, "utf-8")
        return [one.id for one in read_rules.__wrapped__()]

    rows = (("d", "symptom"), ("c", "cause"), ("b", "symptom"), ("a", "harmless"))
    assert read(*rows) == ["c", "a", "d", "b"]
    with pytest.raises(ManifestError) as caught:
        read(*rows, ("b", "cause"))
    assert caught.value.why == "an id occurs twice"


def test_a_team_s_reason_is_the_cause_and_every_row_a_rule() -> None:
    one, other = make_rules([Advice("a+", "first fix", "first why"), Advice("b", "second fix")])
    assert one == Rule(
        id="policy-1",
        area=Area.JUDGING,
        cause="first why",
        fix="first fix",
        pattern="a+",
        matches="",
        rejects="",
        source=("policy",),
        seen=True,
    )
    assert (other.id, other.fix, other.pattern) == ("policy-2", "second fix", "b")
    assert "your policy" in other.cause


def test_a_pattern_may_have_three_endless_repetitions() -> None:
    check_pattern("a*b+c{2,}")
    with pytest.raises(ValueError, match="many"):
        check_pattern("a*b+c{2,}d+")


def test_a_teams_rows_are_rules_and_come_first() -> None:
    rows = make_rules([Advice("stub lib", "call us", "our stub"), Advice("magic.*word", "say it")])
    told = explain_text("a magic, magic word\n", (*rows, *RULES))
    assert [(one.rule, one.fix) for one in told.causes] == [("policy-2", "say it")]


def test_a_row_reads_a_log_that_is_one_line_without_an_end() -> None:
    (row,) = make_rules([Advice("magic.*word", "say it")])
    assert [one.text for one in explain_text("a magic word", [row]).causes] == ["a magic word"]
