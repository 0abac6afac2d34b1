"""Words of a command line -> requests: a profile, or ARTIFACT[@VERSION][:COMPONENT,...]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provisioning.environment import profile_requests
from provisioning.errors import UsageError
from provisioning.manifest import list_toolchains, read_profiles, read_toolchain
from provisioning.sources import Options, Request


def parse_selection(words: Sequence[str], options: Options) -> list[Request]:
    """The requests that ``words`` name, each once. Raises UsageError for an unknown word."""
    return unique_requests(
        request for word in words or ["emulator"] for request in _parse_word(word, options)
    )


def all_requests(options: Options) -> list[Request]:
    """What all profiles together ask for."""
    profiles = read_profiles().values()
    return unique_requests(r for profile in profiles for r in profile_requests(profile, options))


def _parse_word(word: str, options: Options) -> list[Request]:
    profiles = read_profiles()
    if word in profiles:
        return profile_requests(profiles[word], options)
    head, _, components = word.partition(":")
    name, _, version = head.partition("@")
    if name not in (known := list_toolchains()):
        raise UsageError(
            f"no profile or artifact {name!r}",
            todo=f"profiles: {', '.join(profiles)}; artifacts: {', '.join(known)}",
        )
    toolchain = read_toolchain(name)
    wanted = tuple(filter(None, components.split(",")))
    return [Request(toolchain, toolchain.release(version), wanted, options)]


def unique_requests(requests: Iterable[Request]) -> list[Request]:
    """The same requests without those that name one directory twice."""
    return list({request.key().directory: request for request in requests}.values())
