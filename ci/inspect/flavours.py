"""The product flavours of a module, from the text of its build file.

An app is built once for each combination of flavours, one of each dimension. What a flavour adds
is in its block in productFlavors, in dependencies such as ``npuImplementation``, in blocks for
variants withFlavor, and in its source set, src/npu.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import product

from ci.inspect.gradle_text import drop_blocks, find_blocks, list_children

MAX_VARIANTS = 12  # of an app with more, the flavours are not told apart
FLAVOURS = re.compile(r"\bproductFlavors\s{0,9}\{")
SOURCE_SETS = re.compile(r"\bsourceSets\s{0,9}\{")
DIMENSION = re.compile(r"\bdimension[\s=(]{1,9}[\"'](\w{1,60})[\"']")
CREATED = re.compile(r"\b(?:create|register)\s{0,9}\(\s{0,9}[\"'](\w{1,60})[\"']\s{0,9}\)")
FOR_ALL = frozenset({"all", "configureEach"})
COMPUTED = frozenset({"forEach", "each", "for", "if", "when", "else"})
# missingDimensionStrategy("engine", "npu"): which flavour of a module that it depends on
STRATEGY = re.compile(
    r"\bmissingDimensionStrategy[\s(]{1,9}[\"']\w{1,60}[\"']\s{0,9},\s{0,9}[\"'](\w{1,60})[\"']"
)
WITH_FLAVOUR = re.compile(
    r"\.\s{0,9}withFlavor\s{0,9}\(([^\n{]{0,120}?)[\"'](\w{1,60})[\"'][\s\]]{0,9}\)[\s\])]{0,9}"
)
BRACKET = re.compile(r"[(){}\[\]\n]")
KINDS = r"(?:Implementation|Api|RuntimeOnly|CompileOnly)"


def list_dimensions(text: str) -> list[list[str]]:
    """Return the flavours of each dimension, as a build file without comments names them; none if
    it computes them."""
    dimensions: dict[str, list[str]] = {}
    for start, end in find_blocks(text, FLAVOURS):
        children = [*list_children(text[start:end])]
        if not COMPUTED.isdisjoint(name for name, _ in children):
            return []
        for name, body in children:
            dimension = DIMENSION.search(body)
            if name not in FOR_ALL:
                dimensions.setdefault(dimension[1] if dimension else "", []).append(name)
        with_blocks = {name for name, _ in children}
        plain = [name for name in CREATED.findall(text, start, end) if name not in with_blocks]
        dimensions.setdefault(next(iter(dimensions), ""), []).extend(plain)
    return [list(dict.fromkeys(flavours)) for flavours in dimensions.values() if flavours]


def list_variants(text: str) -> list[tuple[str, ...]]:
    """Return the combinations of flavours for which an app is built: one without a flavour, if it
    has none, or too many."""
    dimensions = list_dimensions(text)
    count = 1
    for flavours in dimensions:
        count *= len(flavours)
    return [()] if count > MAX_VARIANTS else list(product(*dimensions))


def list_source_sets(text: str, chosen: Iterable[str]) -> list[str]:
    """Return the source sets of a module in a released app with these flavours, that which replaces
    the files of the others first. ``main`` is the last one."""
    own_flavours = [name for flavours in list_dimensions(text) for name in flavours]
    flavours = [name for name in own_flavours if name in chosen]
    together = _join(flavours)
    names = [_join([together, "release"]), "release", together, *flavours, "main"]
    return list(dict.fromkeys(filter(None, names)))


def list_other_sets(text: str, chosen: Collection[str]) -> set[str]:
    """Return the source sets of a module's flavours that an app with the flavours ``chosen`` does
    not have."""
    return _list_prefixes(text, chosen) - {*list_source_sets(text, chosen)}


def choose_flavours(text: str, chosen: Collection[str]) -> str:
    """Return a build file without what is only for flavours that are not ``chosen``. Of a dimension
    of which none is chosen, everything is kept."""
    chosen = {*chosen, *STRATEGY.findall(text)}
    dropped = list_other_sets(text, chosen)
    if not dropped:
        return text
    first = []  # a flavour's values count instead of those for all flavours
    for start, end in find_blocks(text, FLAVOURS):
        children = list_children(text[start:end])
        first += [body for name, body in children if name not in dropped]
    for start, end in [*find_blocks(text, SOURCE_SETS)][::-1]:
        children = list_children(text[start:end])
        chosen_sets = "\n".join(body for name, body in children if name not in dropped)
        text = f"{text[:start]}sourceSets {{ {chosen_sets} }}{text[end:]}"
    text = "\n".join([*first, drop_blocks(text, FLAVOURS)])
    for match in [*WITH_FLAVOUR.finditer(text)][::-1]:
        if match[2] in chosen:
            outer = match[0].count(")") - match[0].count("(")  # brackets of what is around it
            text = f"{text[: match.start()]}{')' * outer}{text[match.end() :]}"
    names = "|".join(sorted(dropped))
    of_others = re.compile(
        r"\.\s{0,9}withFlavor\s{0,9}\([^\n{]{0,120}?"
        rf"[\"'](?:{names})[\"'][^\n{{]{{0,40}}\{{"
    )
    text = drop_blocks(text, of_others)
    return drop_statements(text, re.compile(rf"[\"']?\b(?:{names}){KINDS}\b"))


def drop_statements(text: str, start: re.Pattern[str]) -> str:
    """Return the text without the statements at whose beginning a pattern matches. A statement ends
    with its line, unless a bracket is open there."""
    parts, kept_from = [], 0
    while match := start.search(text, kept_from):
        parts.append(text[kept_from : match.start()])
        depth, kept_from = 0, len(text)
        for bracket in BRACKET.finditer(text, match.end()):
            depth += (bracket[0] in "({[") - (bracket[0] in ")}]")
            if depth < 0 or (bracket[0] == "\n" and not depth):
                kept_from = bracket.start()
                break
    return " ".join([*parts, text[kept_from:]])


def _list_prefixes(text: str, chosen: Collection[str]) -> set[str]:
    """Return the names of the flavours, of their combinations and of the variants of a module,
    except those of dimensions of which none is chosen."""
    dimensions = [
        flavours for flavours in list_dimensions(text) if not set(flavours).isdisjoint(chosen)
    ]
    names = {flavour for flavours in dimensions for flavour in flavours}
    count = 1
    for flavours in dimensions:
        count *= len(flavours)
    if count <= MAX_VARIANTS:
        names |= {_join(flavours) for flavours in product(*dimensions) if flavours}
    return names | {_join([name, build]) for name in names for build in ("debug", "release")}


def _join(names: Iterable[str]) -> str:
    """Return names as Gradle joins them: npuFreeRelease."""
    first, *others = [name for name in names if name] or [""]
    return first + "".join(f"{name[0].upper()}{name[1:]}" for name in others)
