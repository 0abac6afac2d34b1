"""DT_NEEDED of a directory's files, resolved within the tree and what the target brings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from provisioning.doctor.checks.finding import Finding
from provisioning.doctor.facts import FileFacts
from provisioning.elf.facts import ElfFacts


def judge_needs(
    files: Iterable[FileFacts], provided: Collection[str], host_brings: Mapping[str, str | None]
) -> Iterator[Finding]:
    """Each library that nobody has, once, with the chain of who needs it.

    ``files`` are those that fit their policy; ``provided`` are names that the loader finds: of
    the directory, of the search path and of the system. ``host_brings`` are names that the
    machine may have installed, with their path or None.
    """
    needs = {file.name: file.elf for file in files if file.elf}
    for name, users in sorted(_users(needs).items()):
        if name in provided or host_brings.get(name):
            continue
        user = needs[users[0]]
        yield _missing(name, users, user.path, _chain(needs, users[0]), name in host_brings)


def _missing(name: str, users: list[str], where: Path, chain: str, is_libcxx: bool) -> Finding:
    others = f" and {len(users) - 1} more" if len(users) > 1 else ""
    what = f"{name} is nowhere; {chain} needs it{others}"
    if is_libcxx:
        why = "an SDK from 2.23 on ships no libc++; the import of the adaptor or of libQnnHtp fails"
        fix = "install LLVM's libc++1, libc++abi1 and libunwind, or provision libcxx"
        return Finding("QNN229", name, what, str(where), why, fix)
    why = f"'{name}: cannot open shared object file' when {users[0]} is loaded"
    fix = f"put {name} beside it, from the same build"
    return Finding("QNN216", name, what, str(where), why, fix)


def _users(needs: Mapping[str, ElfFacts]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {}
    for name in sorted(needs):
        for needed in needs[name].needed:
            users.setdefault(needed, []).append(name)
    return users


def _chain(needs: Mapping[str, ElfFacts], name: str) -> str:
    """``libA.so, which libB.so needs``: one path from ``name`` up to a file nobody needs."""
    users, words, seen = _users(needs), [name], {name}
    while above := [user for user in users.get(words[-1], []) if user not in seen]:
        words.append(above[0])
        seen.add(above[0])
    return words[0] + "".join(f", which {user} needs," for user in words[1:])
