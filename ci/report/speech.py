"""What a provider says, on the streams of a verb."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from ci.report.providers import Provider
from provisioning.console.progress import Progress
from provisioning.console.terminal import write_through
from provisioning.fetch.credentials import TOKENS_VARIABLE, parse_tokens

MIRROR_VARIABLE = "QNN_CI_MIRROR"
SHORTEST_SECRET = 4


@contextmanager
def group(provider: Provider, progress: Progress, label: str) -> Iterator[None]:
    """Fold what is said while the block lasts, where the provider can."""
    _say(progress, provider.open_group(label))
    try:
        yield
    finally:
        _say(progress, provider.close_group(label))


def _say(progress: Progress, text: str) -> None:
    if progress.stream and text:
        with progress.lock:
            write_through(progress.stream, text)


def mask_secrets(provider: Provider, environ: Mapping[str, str]) -> None:
    """Tell the provider the parts of our variables that are secrets, which it knows whole."""
    if text := provider.mask(find_secrets(environ)):
        write_through(sys.stderr, text)


def find_secrets(environ: Mapping[str, str]) -> list[str]:
    """The tokens of QNN_CI_BEARER_TOKENS, the password and the query's values of QNN_CI_MIRROR.

    Raises UnfitError when the former is malformed.
    """
    tokens = list(parse_tokens(environ.get(TOKENS_VARIABLE, "")).values())
    with suppress(ValueError):
        url = urlsplit(environ.get(MIRROR_VARIABLE, ""))
        raw = [value for pair in url.query.split("&") for value in pair.split("=", 1)[1:]]
        values = [*raw, *map(unquote, raw)]
        tokens = [*tokens, url.password or "", *values]
    return [one for one in dict.fromkeys(tokens) if len(one) >= SHORTEST_SECRET]
