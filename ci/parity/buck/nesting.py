"""How deeply a Starlark file nests: its parser recurses, and its stack ends the whole reader."""

from __future__ import annotations

import re

DEEPEST = 200
LONGEST_CHAIN = 1000
WORD = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""'
    r"|'''(?:[^'\\]|\\.|'(?!''))*'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|\#[^\n]*"
    r"|(?P<line>\n[ \t]*)"
    r"|(?P<open>[\[({])"
    r"|(?P<close>[\])}])"
    r"|(?P<next>,)"
    r"|(?P<chain>\b(?:and|or|not|if|elif|lambda)\b|[-+*/%~.|&<>=]+)",
    re.DOTALL,
)


def is_too_deep(text: str) -> bool:
    """Whether brackets, indented blocks or chains of operators go deeper than any author's."""
    chains = [0]
    indents, branches = [0], 0
    for match in WORD.finditer(text):
        kind = match.lastgroup
        if kind == "open":
            chains[-1] += 1
            chains.append(0)
        elif kind == "close" and len(chains) > 1:
            chains.pop()
        elif kind == "next":
            chains[-1] = 0
        elif kind == "chain":
            word = match.group()
            chains[-1] += len(word)
            branches += word == "elif"
        elif kind == "line" and len(chains) == 1:
            chains = [0]
            indent = len(match.group()) - 1
            while indents[-1] > indent:
                indents.pop()
            if indent > indents[-1]:
                indents.append(indent)
        if len(chains) + len(indents) > DEEPEST or max(sum(chains), branches) > LONGEST_CHAIN:
            return True
    return False
