"""The credentials of earlier releases: a bearer token per host, and the output of a credential
helper. Both are accepted with a warning until 0.3.0, which leaves credentials to ``~/.netrc``. A
secret is sent only to its own host, and only over https (except to loopback).
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from urllib.parse import urlsplit

from msgspec import Struct, field

from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.documents import DocumentError, decode_json
from provisioning.errors import ToolError, UnfitError

TOKENS_VARIABLE = "QNN_CI_BEARER_TOKENS"
HELPER_VARIABLE = "QNN_CI_CREDENTIAL_HELPER"
# A helper may ask a server for a token.
HELPER_TIMEOUT_S = 60.0
MAX_CHARACTERS = 1 << 20
_reported_variables: set[str] = set()
# Requests to these hosts do not leave this machine.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def find_headers(url: str, progress: Progress) -> dict[str, str]:
    """Return the headers with credentials for a URL, empty if there are none. The first use of each
    variable is reported. Raises UnfitError if the variable with tokens is malformed or the helper
    fails.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    # A secret that is sent over http can be read on the way.
    if parts.scheme != "https" and host not in LOOPBACK:
        return {}
    place = parts.netloc.rpartition("@")[2]
    tokens = parse_tokens(os.environ.get(TOKENS_VARIABLE, ""))
    # An entry with the port, HOST:PORT, comes before one for the whole host.
    if token := tokens.get(place, tokens.get(host, "")):
        _warn(TOKENS_VARIABLE, progress)
        return {"Authorization": f"Bearer {token}"}
    helper = os.environ.get(HELPER_VARIABLE, "")
    if not helper:
        return {}
    _warn(HELPER_VARIABLE, progress)
    # Neither login nor query: the helper is another program, which may log its input.
    return _ask_helper(helper, f"{parts.scheme}://{place}{parts.path}")


def _warn(variable: str, progress: Progress) -> None:
    if variable not in _reported_variables:
        _reported_variables.add(variable)
        progress.step(
            f"warning: {variable} will be ignored in 0.3.0; put the host's login and password into"
            " ~/.netrc"
        )


def parse_tokens(text: str) -> dict[str, str]:
    """Parse ``host=token`` pairs separated by blanks or commas. Raises UnfitError."""
    tokens = {}
    for entry in re.split(r"[\s,]+", text.strip()):
        host, equals, token = entry.partition("=")
        if entry and not (host and equals and re.fullmatch(r"[!-~]+", token)):
            why = "an entry is not HOST=TOKEN"
            fix = "set it to HOST=TOKEN entries, separated by blanks or commas"
            raise UnfitError(f"{TOKENS_VARIABLE} is malformed", why=why, fix=fix)
        tokens[host] = token
    return tokens


class HelperAnswer(Struct, frozen=True):
    """What a credential helper prints."""

    headers: dict[str, list[str]] = field(default_factory=dict)


@lru_cache(maxsize=64)
def _ask_helper(helper: str, uri: str) -> dict[str, str]:
    """Return the headers that ``HELPER get`` prints for ``{"uri": ...}`` (Bazel's protocol)."""
    try:
        return _read_helper(helper, uri)
    except ToolError as error:
        fix = f"check what `{helper} get` prints for {uri}, or unset {HELPER_VARIABLE}"
        raise UnfitError("the credential helper failed", why=error.what, fix=fix) from error


def _read_helper(helper: str, uri: str) -> dict[str, str]:
    characters_left = MAX_CHARACTERS

    def count(line: str) -> None:
        nonlocal characters_left
        characters_left -= len(line) + 1
        if characters_left < 0:
            # A helper that prints without end must not fill the memory.
            raise ToolError(f"it printed more than {MAX_CHARACTERS} characters")

    ended = run_process(
        [helper, "get"],
        input_text=json.dumps({"uri": uri}),
        timeout_s=HELPER_TIMEOUT_S,
        on_line=count,
        check=False,  # an error of run_process would contain the output, which may be secret
        merged=False,
    )
    if not ended.is_good:
        raise ToolError(f"{helper} {ended.describe()}")
    try:
        headers = decode_json(ended.output, HelperAnswer).headers
    except DocumentError as error:
        why = 'it printed something other than {"headers": {NAME: [VALUE]}}'
        raise ToolError(why) from error
    joined_headers = {name: ", ".join(values) for name, values in headers.items()}
    if any(re.search(r"[^ -~]", word) for pair in joined_headers.items() for word in pair):
        raise ToolError("one of its headers has characters that HTTP does not allow")
    return joined_headers
