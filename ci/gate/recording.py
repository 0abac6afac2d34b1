"""Run sessions with strace, and record the files of the tree that they and their children open.

strace sees what no reader of source text can: files that are named by computed paths, and those
that other programs open. See https://man7.org/linux/man-pages/man1/strace.1.html.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ci.gate.plan import make_plan
from ci.gate.reading import Repository
from ci.gate.rules import Recorded
from ci.gate.schema import Change, Difference, Kind, RecordedRun
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import UsageError

# -y shows the path of each opened file, also if it was opened relative to a directory.
# -D makes strace the child, so that processes that a session leaves behind do not keep it.
STRACE = ("strace", "-D", "-f", "-y", "-qq", "-z", "--seccomp-bpf", "-e", "trace=open,openat", "-o")
OPENED = re.compile(r"= \d+<(/[^>]*)>$")
COMPILED = re.compile(r"(?:__pycache__/)([^/]+)\.cpython-[^/]*\.pyc$")
FIX = "install strace, for example with apt-get install strace"


def record_sessions(
    repository: Repository, names: Sequence[str], progress: Progress
) -> Iterator[RecordedRun]:
    """Run sessions, by default every one that can be recorded, and yield what each opened. Raises
    UsageError if the rules do not say how to run a session, or for an unknown one."""
    rules = repository.rules
    if not rules.command:
        raise UsageError(
            "the rules do not say how to run a session",
            fix='set command in the rules, for example command = ["make"]',
        )
    tree, facts = repository.read_tree("")
    known = [
        name
        for name in facts.sessions
        if rules.session_rule(name).record is not False and not rules.session_rule(name).whole
    ]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"{unknown[0]} cannot be recorded", fix=f"use {', '.join(known)}")
    for name in names or known:
        rule = rules.session_rule(name)
        words = rule.record or (("--help",) if rule.by_hand and rule.record is None else ())
        progress.step(f"recording {name}")
        with tempfile.TemporaryDirectory(prefix="qnn-ci-") as folder:
            log = Path(folder) / "strace"
            argv = [*STRACE, str(log), *rules.command, name, *(["--", *words] if words else ())]
            code = run_process(argv, cwd=repository.source, check=False, fix=FIX).returncode
            paths = set(list_opened(log, repository.source)) if log.exists() else set()
        files = {path for path in paths & tree.files if not matches(path, rules.split)}
        groups = {match[1] for one in paths if (match := re.match(r"\.nox/([\w-]+)/", one))}
        yield RecordedRun(
            name=name,
            code=code,
            count=len(files),
            opened=Recorded(tuple(sorted(groups)), compress(files, tree.files)),
            unplanned=tuple(sorted(find_unplanned(repository, name, files))),
            failed=bool(code) and not rule.by_hand,
        )


def list_opened(log: Path, root: Path) -> Iterator[str]:
    """Yield the files below ``root`` that strace logged as opened, relative to ``root``. A compiled
    Python file stands for its source."""
    places = {str(root.resolve()): "", str((root / ".nox").resolve()): ".nox/"}
    with log.open(encoding="utf-8", errors="surrogateescape") as lines:
        for path in {match[1] for line in lines if (match := OPENED.search(line.rstrip()))}:
            for place, prefix in places.items():
                if path.startswith(f"{place}/"):
                    yield COMPILED.sub(r"\1.py", prefix + path[len(place) + 1 :])


def find_unplanned(repository: Repository, name: str, files: Iterable[str]) -> Iterator[str]:
    """Yield the files whose change alone would not plan a session."""
    _, facts = repository.read_tree("")
    for path in files:
        difference = Difference(facts, facts, (Change(path, Kind.MODIFIED),))
        plan = make_plan(difference, repository.rules)
        alone = any(rule.alone and matches(path, rule.files) for rule in repository.rules.rule)
        if not alone and not any(one.run for one in plan.sessions if one.name == name):
            yield path


def compress(files: set[str], tree: Iterable[str]) -> tuple[str, ...]:
    """Return files as sorted globs: ``FOLDER/**`` if all files of the tree below it are among them,
    ``FOLDER/*.SUFFIX`` if at least half of those with this suffix directly in it are, otherwise
    their paths. So the record is short, and plans a little more than was opened."""
    below: dict[str, set[str]] = {}
    for path in tree:
        folder = directory_of(path)
        below.setdefault(f"{folder}/*{Path(path).suffix}" if folder else path, set()).add(path)
        while folder:
            below.setdefault(f"{folder}/**", set()).add(path)
            folder = directory_of(folder)
    found, left = [], set(files)
    for pattern in sorted(below, key=lambda one: (not one.endswith("/**"), one.count("/"), one)):
        opened = below[pattern] & files
        share = 1.0 if pattern.endswith("/**") else 0.5
        if len(opened) > 1 and len(opened) >= share * len(below[pattern]) and opened & left:
            found.append(pattern)
            left -= opened
    return tuple(sorted([*found, *left]))


def render_record(recorded: Mapping[str, Recorded]) -> str:
    """Return a record as TOML, sorted by session."""
    parts = ["# What a recorded run of each session opened: qnn-ci plan --record --out FILE\n"]
    for name, one in sorted(recorded.items()):
        rows = "".join(f'    "{path}",\n' for path in one.files)
        groups = ", ".join(f'"{group}"' for group in one.groups)
        parts.append(f'\n["{name}"]\ngroups = [{groups}]\nfiles = [\n{rows}]\n')
    return "".join(parts)
