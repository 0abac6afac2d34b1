"""Put what systems and tools say in other languages into English: each rule is written once.

One table, manifests/policies/translations.toml, has these messages.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from msgspec import Struct

from provisioning.manifest.reader import read_policy

_WORD = re.compile(rb"[a-z_]+")
_DIGITS = b"0123456789"


class Phrase(Struct, frozen=True, forbid_unknown_fields=True):
    """A message in English and in other languages."""

    english: str
    others: tuple[str, ...]


class TranslatedForm(Struct, frozen=True, forbid_unknown_fields=True):
    """A message that names something. ``english`` has ``\\1`` for the first group of ``pattern``.
    ``matches`` is an example."""

    english: str
    text: tuple[str, ...]
    pattern: str
    matches: str


class Translations(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/translations.toml."""

    phrase: tuple[Phrase, ...]
    form: tuple[TranslatedForm, ...]


class _Replacement(NamedTuple):
    """What becomes ``english``, if a log has ``shape``: a text in lower case and without digits.
    ``word`` is the longest word of that, see ``list_words``."""

    shape: bytes
    word: bytes
    pattern: re.Pattern[bytes]
    english: bytes


@functools.cache
def read_translations() -> Translations:
    """Return manifests/policies/translations.toml. Raises ManifestError if the file is invalid."""
    return read_policy("translations", Translations)


@functools.cache
def _list_replacements() -> tuple[_Replacement, ...]:
    table = read_translations()
    replacements = []
    for phrase in table.phrase:
        english = phrase.english.encode().replace(b"\\", b"\\\\")
        for other in phrase.others:
            pattern = re.compile(re.escape(other.encode()))
            replacements.append(_make_replacement(other, pattern, english))
    for form in table.form:
        pattern = re.compile(form.pattern.encode())
        english = form.english.encode()
        replacements += [_make_replacement(text, pattern, english) for text in form.text]
    return tuple(replacements)


def _make_replacement(text: str, pattern: re.Pattern[bytes], english: bytes) -> _Replacement:
    shape = text.encode().lower().translate(None, _DIGITS)
    return _Replacement(shape, max(_WORD.findall(shape), key=len, default=b""), pattern, english)


def to_english(chunk: bytes, shapes: bytes, words: bytes) -> bytes:
    """Return a part of a log with the known messages in English. ``shapes`` has its lines in lower
    case and without digits, and ``words`` their words."""
    is_ascii = shapes.isascii()
    for replacement in _list_replacements():
        if is_ascii and not replacement.shape.isascii():
            continue
        if replacement.word in words and replacement.shape in shapes:
            chunk = replacement.pattern.sub(replacement.english, chunk)
    return chunk
