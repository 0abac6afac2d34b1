"""DT_NEEDED of a directory's files, resolved within the tree and what the target brings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from provisioning.doctor.checks.registry import Seen, Subjects, seen
from provisioning.doctor.facts import FileFacts
from provisioning.elf.facts import ElfFacts


class Need(NamedTuple):
    """A library that nobody has: who needs it, and whether the machine could bring it."""

    name: str
    users: list[str]
    where: Path
    chain: str
    is_libcxx: bool

    def seen(self) -> Seen:
        others = f" and {len(self.users) - 1} more" if len(self.users) > 1 else ""
        return seen(self.name, self.where, chain=self.chain, others=others, user=self.users[0])


NEEDS: Subjects[Need] = Subjects()


@NEEDS.check(
    "QNN216",
    "{subject} is nowhere; {chain} needs it{others}",
    "'{subject}: cannot open shared object file' when {user} is loaded",
    "put {subject} beside it, from the same build",
)
def see_unmet_need(need: Need) -> Iterator[Seen]:
    if not need.is_libcxx:
        yield need.seen()


@NEEDS.check(
    "QNN229",
    "{subject} is nowhere; {chain} needs it{others}",
    "an SDK from 2.23 on ships no libc++; the import of the adaptor or of libQnnHtp fails",
    "install LLVM's libc++1, libc++abi1 and libunwind, or provision libcxx",
)
def see_no_libcxx(need: Need) -> Iterator[Seen]:
    if need.is_libcxx:
        yield need.seen()


def find_needs(
    files: Iterable[FileFacts], provided: Collection[str], host_brings: Mapping[str, str | None]
) -> Iterator[Need]:
    """Each library that nobody has, once, with the chain of who needs it.

    ``files`` are those that fit their policy; ``provided`` are names that the loader finds: of
    the directory, of the search path and of the system. ``host_brings`` are names that the
    machine may have installed, with their path or None.
    """
    elves = {file.name: file.elf for file in files if file.elf}
    for name, users in sorted(_users(elves).items()):
        if name not in provided and not host_brings.get(name):
            where = elves[users[0]].path
            yield Need(name, users, where, _chain(elves, users[0]), name in host_brings)


def _users(elves: Mapping[str, ElfFacts]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {}
    for name in sorted(elves):
        for needed in elves[name].needed:
            users.setdefault(needed, []).append(name)
    return users


def _chain(elves: Mapping[str, ElfFacts], name: str) -> str:
    """``libA.so, which libB.so needs``: one path from ``name`` up to a file nobody needs."""
    users, words, seen_names = _users(elves), [name], {name}
    while above := [user for user in users.get(words[-1], []) if user not in seen_names]:
        words.append(above[0])
        seen_names.add(above[0])
    return words[0] + "".join(f", which {user} needs," for user in words[1:])
