"""The kinds of places where logs are made, recognized by their lines."""

from __future__ import annotations

import re
from collections import Counter
from enum import Enum


class Place(Enum):
    """Where a log was made, as far as it matters for what to do: in an Android ``app`` (or by
    logcat), in a shell on a ``device``, on ``windows``, or on a Linux ``computer``."""

    APP = "app"
    DEVICE = "device"
    WINDOWS = "windows"
    COMPUTER = "computer"
    UNKNOWN = ""


# Expressions for lines in lower case and without digits, such as "- ::.    e tag : text".
_LINES = {
    Place.APP: re.compile(
        r"^(?:--t::\.z )?(?:- ::\. |-- ::\. +-)|^[vdiwef]/[^(\n]{1,40}\( *\):|androidruntime"
        r"|/data/(?:app|user|data)/|unsatisfiedlinkerror|dlopen failed|jnilibs|\bclns-",
        re.MULTILINE,
    ),
    Place.DEVICE: re.compile(r"/data/local/tmp|/vendor/lib|cdsprpcd\b"),
    Place.WINDOWS: re.compile(r"\b[a-z]:[\\/]|\w\.(?:dll|exe)\b|loadlibrary"),
    Place.COMPUTER: re.compile(
        r"x_[-.]|site-packages|traceback \(most recent|/usr/bin/ld|/home/|\bcmake\b|collect:"
    ),
}


def count_places(lines: str) -> Counter[Place]:
    """Return how often lines show each kind of place. ``lines`` are in lower case and without
    digits."""
    return Counter({place: len(found.findall(lines)) for place, found in _LINES.items()})


def find_place(counted: Counter[Place]) -> Place:
    """Return the place that was counted most often."""
    place, count = counted.most_common(1)[0] if counted else (Place.UNKNOWN, 0)
    return place if count else Place.UNKNOWN
