"""A source tree of ExecuTorch: commit, submodules (nested ones too), leftovers of flatcc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from provisioning.console.git import ask_git, read_commit
from provisioning.doctor.facts import CheckoutFacts, SubmoduleFacts
from provisioning.doctor.survey.host import read_text
from provisioning.doctor.survey.python_probe import find_adaptors
from provisioning.elf.facts import MACHINE_NAMES
from provisioning.errors import ToolError

STATES = {"-": "missing", "+": "moved", "U": "moved", " ": "ok"}
FLATCC_OUTPUTS = ("bin/flatcc", "bin/flatcc_d", "lib/libflatccrt.a", "lib/libflatccrt_d.a")
ARCHIVE = b"!<arch>\n"
MAX_BYTES = 64 << 20
MAX_VERSION = 40


def survey_checkout(root: Path) -> CheckoutFacts:
    """What is there of a checkout; git is asked twice, nothing is written."""
    if not root.is_dir():
        return CheckoutFacts(root, is_directory=False)
    commit, status = None, ""
    with suppress(ToolError):
        commit = read_commit(root)
        status = ask_git(root, "submodule", "status", "--recursive").decode("utf-8", "replace")
    return CheckoutFacts(
        root,
        is_directory=True,
        is_git=commit is not None,
        commit=commit,
        submodules=tuple(_parse_status(status)),
        leftovers=tuple(_leftovers(root / "third-party" / "flatcc")),
        has_adaptor=bool(find_adaptors(str(root))),
        version=read_text(root / "version.txt").strip()[:MAX_VERSION],
    )


def _parse_status(output: str) -> Iterator[SubmoduleFacts]:
    """Lines such as ``-896db5... third-party/flatcc`` or `` 896db5... path (v0.6)``."""
    for line in output.splitlines():
        state = STATES.get(line[:1])
        commit, _, rest = line[1:].partition(" ")
        if state and len(commit) in (40, 64):
            path = rest.rsplit(" (", 1)[0] if rest.endswith(")") else rest
            yield SubmoduleFacts(path, state, commit)


def _leftovers(flatcc: Path) -> Iterator[tuple[str, str]]:
    for relative in FLATCC_OUTPUTS:
        path = flatcc / relative
        if path.is_file():
            yield str(path), _machine_of(path)


def _machine_of(path: Path) -> str:
    """The machine of an ELF file, or of the first ELF member of an archive (.a)."""
    from provisioning.elf.reader import parse_headers

    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
        at = data.find(b"\x7fELF") if data.startswith(ARCHIVE) else 0
        return MACHINE_NAMES.get(parse_headers(data[at:]).machine, "unknown")
    except (OSError, ValueError):
        return "unknown"
