"""Names of files and words of build files as text of one line."""

from __future__ import annotations

import re

# Whatever ends a line or leads a terminal, and bytes of a name that are not UTF-8.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""``text`` with each character that is not for showing as an escape, such as ``\n``."""
    return UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
