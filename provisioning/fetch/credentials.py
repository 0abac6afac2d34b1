"""Find headers with credentials: a bearer token per host, or the output of a credential helper.

requests itself handles ``~/.netrc``. A secret is sent only to its own host, and only over https
(except to loopback).
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from urllib.parse import urlsplit

from msgspec import Struct, field

from provisioning.console.process import run_process
from provisioning.documents import DocumentError, decode_json
from provisioning.errors import ToolError, UnfitError

TOKENS_VARIABLE = "QNN_CI_BEARER_TOKENS"
HELPER_VARIABLE = "QNN_CI_CREDENTIAL_HELPER"
HELPER_TIMEOUT_S = 60.0
MAX_CHARACTERS = 1 << 20
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def find_headers(url: str) -> dict[str, str]:
    """Return the headers with credentials for a URL, empty if there are none. Raises UnfitError if
    the variable with tokens is malformed or the helper fails.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and host not in LOOPBACK:
        return {}
    tokens = parse_tokens(os.environ.get(TOKENS_VARIABLE, ""))
    if token := tokens.get(parts.netloc.rpartition("@")[2], tokens.get(host, "")):
        return {"Authorization": f"Bearer {token}"}
    helper = os.environ.get(HELPER_VARIABLE, "")
    return (
        _ask_helper(helper, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
        if helper
        else {}
    )


def parse_tokens(text: str) -> dict[str, str]:
    """Parse ``host=token`` pairs separated by blanks or commas. Raises UnfitError."""
    tokens = {}
    for word in re.split(r"[\s,]+", text.strip()):
        host, equals, token = word.partition("=")
        if word and not (host and equals and re.fullmatch(r"[!-~]+", token)):
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
    fix = f"check what `{helper} get` prints for {uri}, or unset {HELPER_VARIABLE}"
    left = MAX_CHARACTERS

    def count(line: str) -> None:
        nonlocal left
        left -= len(line) + 1
        if left < 0:
            raise ToolError(f"it printed more than {MAX_CHARACTERS} characters")

    try:
        ended = run_process(
            [helper, "get"],
            input_text=json.dumps({"uri": uri}),
            timeout_s=HELPER_TIMEOUT_S,
            on_line=count,
            check=False,  # an error of run_process would contain the output, which may be secret
            merged=False,
        )
    except ToolError as error:
        raise UnfitError("the credential helper failed", why=error.what, fix=fix) from error
    if not ended.is_good:
        why = f"{helper} {ended.describe()}"
        raise UnfitError("the credential helper failed", why=why, fix=fix)
    try:
        headers = decode_json(ended.output, HelperAnswer).headers
    except DocumentError as error:
        why = 'it printed something other than {"headers": {NAME: [VALUE]}}'
        raise UnfitError("the credential helper failed", why=why, fix=fix) from error
    found = {name: ", ".join(values) for name, values in headers.items()}
    if any(re.search(r"[^ -~]", word) for pair in found.items() for word in pair):
        why = "one of its headers has characters that HTTP does not allow"
        raise UnfitError("the credential helper failed", why=why, fix=fix)
    return found
