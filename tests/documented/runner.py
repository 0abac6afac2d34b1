"""Runs documented commands where their page tells the reader to type them.

``qnn-ci VERB`` is typed in a clone as ``./nox -s qnn_ci -- VERB``, as README.md and docs/README.md
say. The pages in TEAM speak to people with their own repository: they install the project with pip
and type ``qnn-ci VERB`` there. Each command runs from the root of the clone or repository, and a
second time from a directory below it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock

from ci.packages.locks import Lock
from ci.packages.pip_settings import read_settings
from ci.packages.uv import find_uv, translate
from tests.documented.pages import Command, read_commands
from tests.documented.place import Ended, Place, git, give_downloads, make_place
from tests.documented.sessions import ROWS as SESSION_ROWS
from tests.documented.sessions import SessionRow
from tests.documented.table import Row, fill, find_row, read_list
from tests.stand_ins.repository import make_checkout

# The command with which the page's reader installs the project.
LOWERING = (
    'pip install "executorch-qnn-ci[lowering] @ git+https://github.com/OWNER/REPOSITORY@COMMIT"'
)
TEAM = {
    "docs/guides/your-repository.md": LOWERING,
    "docs/guides/ci.md": LOWERING,
    "docs/reference/policy.md": LOWERING,
    "docs/guides/evidence.md": "pip install .",
}
# Names that this project has, too.
THEIRS = {
    "ci/__init__.py": "raise SystemExit('not this one')\n",
    "provisioning/__init__.py": "raise SystemExit('not this one')\n",
    "README.md": "Models\n",
}
JOURNEYS = "./nox -s journeys"
IN_THE_SHELL = ("export ", "eval ")
BY_UV = ("uvx ", "uv ")  # the reader has no clone


@dataclass(frozen=True)
class Run:
    """A command to type in a place. ``install`` is how its reader installed the project, empty in a
    clone."""

    command: Command
    install: str
    below: bool

    def __str__(self) -> str:
        return f"typed_from_{'below' if self.below else 'root'} {self.command}"


def list_runs() -> list[Run]:
    """Each command of the pages once for each kind of reader and, unless it takes many minutes,
    directory; these last. What a changelog names is history; commands in the list of
    docs/reference/commands.md are not run."""
    kinds: dict[tuple[str, str], Run] = {}
    excused = read_list("Not run") | read_list("Run by another job")
    for command in read_commands():
        if command.is_history or command.key in excused:
            continue
        install = TEAM.get(command.place, "") if "./nox" not in command.typed else ""
        kinds.setdefault((command.key, install), Run(command, install, below=False))
    once = sorted(kinds.values(), key=lambda run: find_row(run.command).slow)
    # pip's "." is the root of the clone.
    twice = [
        replace(run, below=True)
        for run in once
        if not find_row(run.command).slow and not run.command.typed.startswith(("pip ", *BY_UV))
    ]
    return [*once, *twice]


def name_typists(
    runs: Sequence[Run], session_rows: Sequence[SessionRow] = SESSION_ROWS
) -> dict[Run, str]:
    """Who types the command of a run daily: ``./nox -s journeys``, or a row of
    tests/documented/sessions.py, which types it in a clone. The night types what has nobody.

    A row that needs a Docker engine is not typed where there is none, and prints something else.
    """
    typists = {}
    in_sessions = {row.command: row for row in session_rows if not (row.run_by or row.engine)}
    in_sample = {(run.command, run.install) for run in choose_sample(runs)}
    for run in runs:
        if (run.command, run.install) in in_sample:
            typists[run] = JOURNEYS
        elif not run.install and run.command.typed in in_sessions:
            typists[run] = name_session_row(in_sessions[run.command.typed])
    return typists


def name_session_row(row: SessionRow) -> str:
    return f"tests/documented/sessions.py: {row.name}"


def choose_sample(runs: Sequence[Run]) -> list[Run]:
    """What ``./nox -s journeys`` types: the first command of each page that takes seconds and is
    tried daily nowhere else, from the root and from below by turns."""
    rows = {run: find_row(run.command) for run in runs}
    quick = [
        run
        for run in runs
        if not rows[run].slow
        and not rows[run].daily_in
        and not run.command.typed.startswith("export ")
    ]
    pages = {run.command.place: run for run in reversed(quick) if not run.below}
    first = [*pages.values()][::-1]
    below = {(run.command, run.install): run for run in quick if run.below}
    return [
        below.get((run.command, run.install), run) if at % 2 else run
        for at, run in enumerate(first)
    ]


def prove(run: Run, shared: Path) -> None:
    """Type a command, and compare its end with its row. Raises AssertionError.

    ``shared`` is a directory in which environments and downloads are made once.
    """
    row = find_row(run.command)
    if run.command.typed.startswith("pip "):
        ended = install(run.command.typed, shared)[1]
    else:
        ended = type_all(run, row, open_place(run, shared))
    judge(run, row, ended)


def type_all(run: Run, row: Row, place: Place) -> Ended:
    """What a row gives the reader, then the command. Variables last until the command ends."""
    shell = []
    for step in row.before:
        if not isinstance(step, str):
            step(place)
        elif step.startswith(IN_THE_SHELL):
            shell.append(spell(step, run, place))
        else:
            ended = place.run("\n".join([*shell, spell(step, run, place)]), row.limit_s)
            assert "Traceback" not in ended.text, f"{step}\n{ended.text}"
    return place.run("\n".join([*shell, spell(run.command.typed, run, place)]), row.limit_s)


def spell(text: str, run: Run, place: Place) -> str:
    """A command as a reader types it in a place."""
    text = fill(text, place)
    if not run.install and not text.startswith(BY_UV):
        text = re.sub(r"\bqnn-ci (?=[a-z-])", "./nox -s qnn_ci -- ", text)
    if not run.below:
        return text
    # Paths of files are relative to the directory in which the reader is.
    words = text.replace("$(./nox", "$(../nox").split(" ")
    return " ".join(
        f"../{word.removeprefix('./')}" if is_above(word, run, place) else word for word in words
    )


def is_above(word: str, run: Run, place: Place) -> bool:
    """Whether a word is the path of a file of the project, such as ./nox or tests/a.py:factory, or
    of a team's own file, such as qnn.toml."""
    name = word.partition(":")[0].removeprefix("./")
    if run.install:
        directory = place.directory
        return (
            bool(name) and not (directory / name).exists() and (directory.parent / name).is_file()
        )
    return "/" in word and bool(name) and (place.clone / name).exists()


def judge(run: Run, row: Row, ended: Ended) -> None:
    """Raises AssertionError if a command ended in another way than its row promises."""
    transcript = f"{run.command.typed}\n{ended.text}\n[exit code {ended.code}]"
    expected = " or ".join(map(str, sorted(row.codes)))
    assert ended.code in row.codes, f"exit code {ended.code} is not {expected}:\n{transcript}"
    # pip installs the rest of a distribution that lacks the extra.
    for word in ("Traceback", "does not provide the extra"):
        assert word not in ended.text, transcript
    assert row.is_kept_by(ended.text), f"it does not print {row.says!r}:\n{transcript}"


def open_place(run: Run, shared: Path) -> Place:
    """A place for a command."""
    place = make_place(choose_folder(shared))
    give_downloads(fetch(shared), place.home)
    if run.install:
        root = make_checkout(place.home / "our models", THEIRS).root
        place = replace(place, directory=root, programs=install(run.install, shared)[0])
    if run.command.typed.startswith(BY_UV):
        uv = find_uv()
        if uv is None:
            pytest.skip("uv's wheel cannot be had here")
        # uv has pip's settings, as a reader would tell it them.
        place = replace(
            place,
            directory=make_checkout(place.home / "our models", {}).root,
            programs=Path(uv).parent,
            set_variables=translate(read_settings(os.environ), {}),
        )
    if run.below:
        place = replace(place, directory=place.directory / "below")
        place.directory.mkdir()
    return place


def choose_folder(shared: Path) -> Path:
    """Where the readers of this process are, one after the other."""
    return shared / f"reader-{os.getpid()}"


def fetch(shared: Path) -> Path:
    """A home with QNN's libraries in its store, which the page's own command fetched."""

    def make(folder: Path) -> None:
        place = make_place(folder / "place")
        ended = place.run("./nox -s provision -- emulator", 600)
        assert ended.code == 0, ended.text
        place.home.rename(folder / "home")

    return make_once(shared / "fetched", make) / "home"


def install(line: str, shared: Path) -> tuple[Path, Ended]:
    """Type a page's ``pip install`` in a clone, in a new environment; its programs, and how pip
    ended."""
    folder = shared / re.sub(r"\W+", "-", line)

    def make(folder: Path) -> None:
        place = make_place(folder / "place")
        place = replace(place, programs=folder / "venv" / "bin")
        created = place.run(f"python3 -m venv {folder}/venv", 900)
        assert created.code == 0, created.text
        if not lets_pip_download():
            forget_history(place.clone)
            give_packages(line, folder / "venv")
        ended = place.run(fill(line, place), 900)
        (folder / "ended.json").write_text(json.dumps([ended.code, ended.text]))
        shutil.rmtree(place.folder / "home", ignore_errors=True)

    install_folder = make_once(folder, make)
    return install_folder / "venv" / "bin", Ended(
        *json.loads((install_folder / "ended.json").read_text())
    )


def add_extra(extra: str, shared: Path) -> Path:
    """Return the programs of the environment of LOWERING, to which ``pip install`` has added an
    extra. This takes seconds; the second wheel and environment of ``install`` take a minute."""
    programs = install(LOWERING, shared)[0]

    def make(folder: Path) -> None:
        place = replace(make_place(folder / "place"), programs=programs)
        line = f'pip install "executorch-qnn-ci[{extra}]"'
        give_packages(line, programs.parent)
        ended = place.run(line, 900)
        assert ended.code == 0, ended.text
        shutil.rmtree(place.folder)

    make_once(shared / f"extra-{extra}", make)
    return programs


def lets_pip_download() -> bool:
    """Whether pip downloads and copies all that a page's ``pip install`` needs, for minutes."""
    return bool(os.environ.get("QNN_CI_TEST_DOWNLOADS"))


def forget_history(clone: Path) -> None:
    """Leave a clone's branch with one commit: to pack the whole history is the work of the host
    from which pip clones."""
    author = ("-c", "user.name=a-host", "-c", "user.email=a-host")
    commit = git(clone, *author, "commit-tree", "HEAD^{tree}", "-m", "now").strip()
    git(clone, "reset", "--quiet", "--soft", commit)


def give_packages(line: str, environment: Path) -> None:
    """Install what a ``pip install`` would download: uv has it in its cache, if it made the
    environment of the tests. Without uv, pip downloads it."""
    locks = [Lock(extra) for extra in re.findall(r"\[(.+?)\]", line)] or [Lock("core")]
    words = ["install", "--quiet", "--offline", "--no-deps", "--python", str(environment)]
    for lock in locks:
        words += ["--requirements", str(lock.path)]
        if lock.torch:
            words.append(f"torch=={version('torch')}")
    if uv := find_uv():
        env = translate(read_settings(os.environ), os.environ)
        subprocess.run([uv, "pip", *words], env=env, check=False)


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Let the first of all worker processes fill a directory, for which the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
