"""An index of rules by what they look for. Most of their texts are in no log, and a comparison of
each text with each part of a log took two thirds of the time of an explanation."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from ci.explain.rules import DIGITS, Literal, Rule

_ANY = (Literal(b"", b"", b""),)  # for rules that look at each line


class RuleIndex:
    """The literals of rules by their longest word, of which there are fewer: a text is only looked
    for in a part of a log that has its word."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._number_by_id = {rule.id: number for number, rule in enumerate(rules)}
        self._texts: list[bytes] = []  # of all rules, in their order
        self._rule_numbers: list[int] = []  # of these texts
        self._numbers: dict[bytes, dict[bytes, list[int]]] = {}  # word: shape: of texts
        for rule_number, rule in enumerate(rules):
            for text, shape, word in rule.literals or _ANY:
                by_shape = self._numbers.setdefault(word, {})
                by_shape.setdefault(shape, []).append(len(self._texts))
                self._texts.append(text)
                self._rule_numbers.append(rule_number)
        log_texts = {text for rule in rules for text in (*rule.log, *rule.unless)}
        # Each with its bytes, and the same without digits.
        self._log_texts = {
            text: (text.encode(), text.encode().translate(None, DIGITS)) for text in log_texts
        }

    def find_by_id(self, ids: Iterable[str]) -> list[Rule]:
        """Return the rules with these ids, in the order of the rules."""
        return [self._rules[number] for number in sorted(self._number_by_id[id_] for id_ in ids)]

    def find_log_texts(self, low: bytes, shapes: bytes) -> set[str]:
        """Return those of the rules' ``log`` and ``unless`` that a part of a log contains. ``low``
        is the part in lower case, and ``shapes`` the same without digits."""
        return {
            text
            for text, (low_text, shape) in self._log_texts.items()
            if shape in shapes and (shape == low_text or low_text in low)
        }

    def select(self, shapes: bytes, words: bytes) -> Iterator[tuple[Rule, list[bytes]]]:
        """Yield the rules that may match a line, in their order, each with those of its texts that
        may be in one. ``shapes`` are the lines in lower case and without digits, and ``words``
        their words."""
        numbers: list[int] = []
        for word, by_shape in self._numbers.items():
            if word in words:
                for shape, of_shape in by_shape.items():
                    if shape in shapes:
                        numbers += of_shape
        texts_by_rule: dict[int, list[bytes]] = {}
        for number in sorted(numbers):
            texts_by_rule.setdefault(self._rule_numbers[number], []).append(self._texts[number])
        for rule_number, texts in texts_by_rule.items():
            yield self._rules[rule_number], texts


@functools.lru_cache(maxsize=16)
def index_rules(rules: tuple[Rule, ...]) -> RuleIndex:
    """Return the index of these rules."""
    return RuleIndex(rules)
