"""An index of rules selects what a comparison of each text with a log finds, and is made once."""

from __future__ import annotations

from ci.explain.index import index_rules
from ci.explain.rules import Area, Rule, list_words, read_rules

LOGS = (
    "",
    "\n",
    *(rule.matches for rule in read_rules()[::40]),
    "\n".join(rule.matches for rule in read_rules()[::9]),
)


def make_rule(name: str, *text: str) -> Rule:
    fields = {"id": name, "area": Area.DEVICE, "headline": "h", "remedy": "r"}
    return Rule(**fields, source=("a link",), matches="", rejects="", text=text, pattern="x")


def test_the_index_selects_the_same_texts_as_a_comparison_of_each_text() -> None:
    rules = (*read_rules(), make_rule("any"))
    selected_count = 0
    for log in LOGS:
        shapes = log.lower().translate(dict.fromkeys(map(ord, "0123456789"))).encode()
        expected = []
        for rule in rules:
            texts = [text for text, shape, _ in rule.literals if shape in shapes]
            if texts or not rule.literals:
                expected.append((rule.id, texts or [b""]))
        selected = [(rule.id, texts) for rule, texts in select(rules, shapes)]
        assert selected == expected
        selected_count += len(selected)
    assert selected_count > 10 * len(LOGS)


def select(rules: tuple[Rule, ...], shapes: bytes) -> list[tuple[Rule, list[bytes]]]:
    return list(index_rules(rules).select(shapes, list_words(shapes)))


def test_rules_come_in_their_order_with_their_texts_in_theirs() -> None:
    first, second = make_rule("first", "zebra", "ant"), make_rule("second", "ant", "bee")
    assert [(rule.id, texts) for rule, texts in select((first, second), b"the ant zebra")] == [
        ("first", [b"zebra", b"ant"]),
        ("second", [b"ant"]),
    ]
    names = [rule.id for rule in index_rules((first, second)).find_by_id(["second", "first"])]
    assert names == ["first", "second"]


def test_one_set_of_rules_has_one_index() -> None:
    rules = read_rules()
    assert index_rules((*rules,)) is index_rules(rules)
    assert rules[0].literals is rules[0].literals
