"""Writes mended_net.py, whose factories return the user's models with rewrites applied."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HEAD = '''\
"""Models that `qnn-ci mend` rewrote so that QNN computes them right. Each function calls your own
factory and rewrites the module that it returns, so your weights and your code stay as they are."""

from pathlib import Path

from ci.mend import call_rewritten

HERE = Path(__file__).resolve().parent
'''
FUNCTION = '''

def {name}():
    """{about}"""
    return call_rewritten(f"{{HERE / {file!r}}}:{factory}", {rewrites})
'''


@dataclass(frozen=True)
class Factory:
    """A function of mended_net.py. ``reference`` is the user's ``/absolute/file.py:factory``."""

    name: str
    reference: str
    rewrites: tuple[str, ...]


def write_source(path: Path, factories: Iterable[Factory]) -> None:
    """Write a Python file with a function per factory. The paths in it are relative to it."""
    text = HEAD
    for one in factories:
        file, _, factory = one.reference.rpartition(":")
        text += FUNCTION.format(
            name=one.name,
            about=f"{Path(file).name}:{factory} after {', '.join(one.rewrites)}.",
            file=os.path.relpath(file, path.parent),
            factory=factory,
            rewrites=list(one.rewrites),
        )
    path.write_text(text, encoding="utf-8")
