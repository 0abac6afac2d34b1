"""Generator expressions in source and link lists, as far as a static reading can go."""

from __future__ import annotations

from collections.abc import Iterator

from ci.parity.facts import Configuration

TRANSPARENT = {"BUILD_INTERFACE", "LINK_ONLY", "BUILD_LOCAL_INTERFACE", "1"}
DROPPED = {"INSTALL_INTERFACE", "0"}
SYSTEMS = {Configuration.HOST: "Linux", Configuration.ANDROID: "Android"}


def resolve_genex(text: str, configuration: Configuration) -> Iterator[str]:
    """The words that ``text`` may come to; a condition that cannot be told counts as true."""
    start = text.find("$<")
    if start < 0:
        if text:
            yield text
        return
    end = matching_end(text, start)
    if end < 0:
        return
    before, after = text[:start], text[end + 1 :]
    for inner in _evaluate(text[start + 2 : end], configuration):
        for rest in resolve_genex(after, configuration) if after else [""]:
            yield before + inner + rest


def matching_end(text: str, start: int) -> int:
    """Where the expression that begins at ``start`` ends; -1 when it does not."""
    depth = 0
    at = start
    while at < len(text):
        if text.startswith("$<", at):
            depth += 1
            at += 2
            continue
        if text[at] == ">":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return -1


def _evaluate(body: str, configuration: Configuration) -> Iterator[str]:
    head, payload = _split_head(body)
    if head in TRANSPARENT:
        yield from _items(payload, configuration)
    elif head in DROPPED:
        return
    elif head in {"LINK_LIBRARY", "LINK_GROUP"}:
        yield from _items(payload.partition(",")[2], configuration)
    elif head == "TARGET_OBJECTS":
        yield f"TARGET_OBJECTS:{payload}"
    elif head.startswith("$<") and _holds(head[2:-1], configuration):
        yield from _items(payload, configuration)


def _items(payload: str, configuration: Configuration) -> Iterator[str]:
    for item in payload.replace(",", ";").split(";") if "$<" not in payload else [payload]:
        yield from resolve_genex(item, configuration)


def _split_head(body: str) -> tuple[str, str]:
    if body.startswith("$<"):
        end = matching_end(body, 0)
        return body[: end + 1], body[end + 2 :]
    head, _, payload = body.partition(":")
    return head, payload


def _holds(condition: str, configuration: Configuration) -> bool:
    head, _, payload = condition.partition(":")
    if head == "PLATFORM_ID" and configuration in SYSTEMS:
        return SYSTEMS[configuration] in payload.split(",")
    if head == "NOT" and payload.startswith("$<PLATFORM_ID:") and configuration in SYSTEMS:
        return not _holds(payload[2:-1], configuration)
    return True
