"""Commands that pages and messages show are ones that the real parsers take.

Of those on pages, values are checked, too: artifacts, profiles, targets, models, SoCs and files.
What is not run by tests/integration/test_documented_commands_run.py is proven here alone, until
nightly.yml runs every command.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import tests.bench.__main__
import tests.mutants.__main__
from ci.builds.targets import find_target
from ci.images.definition import read_images
from provisioning.artifacts.selection import parse_selection
from provisioning.artifacts.sources import Options
from provisioning.console.caller import Caller
from provisioning.console.command import Verb, load_verb, make_parser, user_path
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError, UnfitError, UsageError
from provisioning.manifest.reader import read_profile, read_toolchain
from provisioning.manifest.targets import find_soc
from tests.bench.run import BENCHES
from tests.documented.pages import ROOT, VERBS, Command, commands_of, list_shown, read_commands
from tests.documented.recipes import NOT_RUN, RECIPES, SAMPLES, fill, find_recipe, require_line
from tests.mutants.packages import PACKAGES
from tests.stand_ins import second_ndk

SOURCES = [
    *(path for top in ("ci", "provisioning") for path in sorted((ROOT / top).rglob("*.py"))),
    *sorted((ROOT / ".github").rglob("*.yml")),
    ROOT / ".ci" / "run",
]
TABLES = {
    **VERBS,
    "tests.bench": tests.bench.__main__.VERBS,
    "tests.mutants": tests.mutants.__main__.VERBS,
}
LANES = {"test-emulator", "test-onnx"}
# What a reader has or gets, of his own or by the command before.
READERS_FILES = {
    "net.py", "net.onnx", "graph.txt", "qnn.toml",
    "model_ctx.onnx", "plan.json", "needs.json", "results",
    "config.json", "Llama-3.2-1B", "Llama-3.2-1B/tokenizer.json", "sample.txt",
    "model.pte", "tokenizer.json", "evidence.intoto.json", "bundle.json", "app.apk", "MyApp",
    "bundle", "qnn_executor_runner", "runtime",
    "kept", "before/report.json", "reports/test_emulator",
    "reports/test_emulator/report.json", "reports/deploy/report.json",
    "shard-1", "shard-2", "signed", "DIR",
    "reports", "signed/libQnnLpaiSkel.so", "../sdk.zip", "../qnn.whl",
    "~/executorch", "executorch", "$EXECUTORCH_ROOT",
}  # fmt: skip
WRITTEN = {"out", "trace", "reproducer", "to", "sarif", "reports", "report", "keep_artifacts"}
SHELL = re.compile(r"\d?>>?|[|&;]+")


@cache
def read_sessions() -> Mapping[str, list[str]]:
    """The program, verb and words that a session of noxfile.py starts, if it starts one of ours."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    found = {}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            words = [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
            runner = getattr(call.func, "id", "")
            if runner == "run_module" and len(words) > 1:
                found[function.name] = words[1:]
            if runner == "run_build" and words:
                found[function.name] = ["ci", "build", *words]
    for name in ("bench", "mutants"):
        found[name].append(name)
    return found


@cache
def list_sessions() -> set[str]:
    """The sessions that nox lists."""
    words = [sys.executable, "-m", "nox", "--noxfile", ROOT / "noxfile.py", "--list"]
    return set(re.findall(r"(?m)^[*-] (\S+)", run_process(words, timeout_s=60).output))


def list_calls(command: Command) -> Iterator[list[str]]:
    """Each program of ours with its verb and words, as a command starts them."""
    if command.verb:
        yield [command.verb[0], *command.verb[1]]
    for name in command.sessions if command.is_nox else []:
        if name not in list_sessions():
            raise UsageError(f"no session {name}")
        if name in read_sessions():
            yield [*read_sessions()[name], *command.passed_on]


def check(command: Command, folder: Path) -> None:
    """Parse what a command starts, and look up its values; ``folder`` is the caller's place.

    Raises UsageError, ManifestError.
    """
    text = re.sub(r'"\$\((.*)\)"', r"\1", fill(command.typed))
    for word in Command(command.place, text).passed_on:
        if word.startswith("tests/") and not (ROOT / word.partition(":")[0]).exists():
            raise UsageError(f"no file {word}")
    for module in re.findall(r"python -m (tests[\w.]*)", text):
        if not any(ROOT.glob(f"{module.replace('.', '/')}*")):
            raise UsageError(f"no module {module}")
    for program, verb, *words in list_calls(Command(command.place, text)):
        if verb.isupper() or verb.startswith("--"):
            continue
        given = list(takewhile(lambda word: not SHELL.fullmatch(word), words))
        parser = find_parser(TABLES[program], verb)
        args = parser.parse_args(given)
        check_files(parser, args)
        check_values(TABLES[program][verb], verb, args, folder)


def find_parser(verbs: Mapping[str, Verb], name: str) -> argparse.ArgumentParser:
    if name not in verbs:
        raise UsageError(f"no verb {name}")
    return make_parser(Caller("qnn-ci"), verbs, name)


def check_files(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Raises UsageError for a file that neither this project nor its reader has."""
    for action in parser._actions:
        value = getattr(args, action.dest, None) if action.type is user_path else None
        if value and str(value) != str(action.default) and action.dest not in WRITTEN:
            for path in value if isinstance(value, list) else [value]:
                readers = {user_path(name) for name in READERS_FILES}
                if path not in readers and not (ROOT / path).exists():
                    raise UsageError(f"no file {path}")


def check_values(verb: Verb, name: str, args: argparse.Namespace, folder: Path) -> None:
    """Look up what is named by the words of a verb."""
    named: dict[str, Callable[[], object]] = {
        "fetch": lambda: parse_selection(args.names, Options()),
        "verify": lambda: parse_selection(args.names, Options()),
        "lock": lambda: parse_selection(args.names, Options()),
        "cache-key": lambda: parse_selection(args.names, Options()),
        "path": lambda: parse_selection([args.name], Options()),
        "update": lambda: [read_toolchain(word.partition("@")[0]) for word in args.names],
        "build": lambda: find_target(args.target),
        "image": lambda: [read_images().images[one] for one in getattr(args, "words", [])[:1]],
        "bench": lambda: BENCHES[args.name],
        "mutants": lambda: [PACKAGES[one] for one in args.packages],
    }
    try:
        named.get(name, list)()
    except KeyError as error:
        raise UsageError(f"{name} knows no {error}") from error
    if name in LANES:
        start_lane(verb, args, folder)
    if getattr(args, "profile", "") not in {None, "", second_ndk.PROFILE} and name not in LANES:
        read_profile(args.profile)
    for soc in [args.soc] if isinstance(getattr(args, "soc", None), str) and args.soc else []:
        find_soc(soc)


def start_lane(verb: Verb, args: argparse.Namespace, folder: Path) -> None:
    """Run a lane's verb up to where it would provision. Raises UsageError."""

    class StartedError(Exception): ...

    def stop(*_: object, **__: object) -> Any:
        raise StartedError

    args.plan = args.compare = None
    args.policy = args.policy and (None if str(args.policy) == "qnn.toml" else ROOT / args.policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "tests").symlink_to(ROOT / "tests")
        Path("net.py").write_text("def factory(): ...\n")
        Path("net.onnx").touch()
        patch.setattr(load_verb(verb), "run", stop)
        patch.setattr("ci.verbs.lanes.upstream.take_steps", stop)
        patch.setattr("ci.verbs.lanes.faults.open_bench", stop)
        try:
            load_verb(verb).execute(args, Progress.to_stderr())
        except (StartedError, UnfitError):
            return
    assert args.list


@pytest.mark.parametrize("command", list_shown(), ids=str)
def test_a_documented_command_is_one(command: Command, tmp_path: Path) -> None:
    check(command, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "qnn-ci gone",
        "qnn-ci report --nonsense",
        "qnn-ci report gone/report.json",
        "qnn-ci fetch gone",
        "qnn-ci path gone",
        "qnn-ci doctor gone",
        "qnn-ci doctor emulator --soc SM1",
        "qnn-ci build gone",
        "qnn-ci image digest gone",
        "python -m ci parity --policy gone.toml",
        "./nox -s gone",
        "./nox -s parity -- --news",
        "./nox -s build_direct -- --soc SM1",
        "./nox -s bench -- gone",
        "./nox -s mutants -- gone",
        "./nox -s unit -- tests/unit/gone",
        "python -m tests.gone",
        "./nox -s test_emulator -- --model gone",
        "./nox -s test_emulator -- --model gone.py:factory",
        "./nox -s test_emulator -- --scheme gone",
        "./nox -s test_emulator -- --backend gone",
        "./nox -s test_onnx -- --model mlp --scheme 8a8w",
        'eval "$(qnn-ci env gone --shell)"',
        "fetch gone --to DIR",
    ],
)
def test_a_command_with_a_mistake_is_found(text: str, tmp_path: Path) -> None:
    with pytest.raises((QnnCiError, SystemExit)):
        check(Command("page", text), tmp_path)


def test_every_documented_command_has_a_recipe() -> None:
    commands = [command for command in list_shown() if command.key not in NOT_RUN]
    assert {find_recipe(command).of for command in commands} == {one.of for one in RECIPES}
    with pytest.raises(LookupError):
        find_recipe(Command("page", "qnn-ci gone"))


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "findings").glob("*.md")), ids=lambda page: page.stem
)
def test_each_finding_shows_a_command_or_says_that_there_is_none(page: Path) -> None:
    head, *sections = re.split(r"(?m)^## ", page.read_text("utf-8"))
    if not commands_of(page.stem, head):
        assert sections
        for section in sections:
            assert "No command" in section or commands_of(page.stem, section), section[:40]


def test_a_command_that_another_file_runs_is_in_it() -> None:
    for command in list_shown():
        if command.key not in NOT_RUN and (file := find_recipe(command).elsewhere):
            require_line(command, file)
    with pytest.raises(AssertionError, match="does not run"):
        require_line(Command("page", "./nox -s gone"), ".ci/run")


def test_the_test_suite_runs_a_command_of_every_verb() -> None:
    samples = [command for command in list_shown() if command.key in SAMPLES]
    assert len(samples) == len(SAMPLES), set(SAMPLES) - {one.key for one in samples}
    run = {verb for command in samples for _, verb, *_ in list_calls(command)}
    assert run >= VERBS["qnn-ci"].keys()


def list_named(table: str) -> set[str]:
    """The names in the first column of a table."""
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}


def test_the_page_of_sessions_has_each_session_and_verb_and_a_command_shows_each_session() -> None:
    page = (ROOT / "docs" / "reference" / "sessions.md").read_text("utf-8")
    sessions, _, verbs = page.partition("## Verbs")
    named = list_named(sessions)
    assert named == list_sessions() - {"environments"}
    assert named <= {name for command in list_shown() for name in command.sessions}
    own = {name.replace("_", "-") for name in named}
    assert VERBS["qnn-ci"].keys() <= list_named(verbs) | own
    assert list_named(verbs) <= VERBS["qnn-ci"].keys()


def test_every_session_that_a_message_or_workflow_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in SOURCES
        for name in re.findall(r"nox -s ([a-z][a-z_]*)", path.read_text(encoding="utf-8"))
    }
    assert (".ci/run", "tests") in named
    assert {pair for pair in named if pair[1] not in list_sessions()} == set()


def test_every_verb_that_a_message_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), *found)
        for path in SOURCES
        for found in re.findall(r"`(qnn-ci) ([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
    }
    assert ("provisioning/verbs/path.py", "qnn-ci", "fetch") in named
    assert {one for one in named if one[2] not in VERBS[one[1]]} == set()


@pytest.mark.parametrize("command", [c for c in read_commands() if c.note and c.verb], ids=str)
def test_options_in_the_comment_on_a_command_are_there(command: Command) -> None:
    ((program, verb, *_),) = list_calls(command)
    named = set(re.findall(r"--[a-z][a-z-]*", command.note))
    assert named <= set(find_parser(VERBS[program], verb)._option_string_actions)


def test_commands_are_read_from_code_only() -> None:
    text = (
        "Run nox -s prose. `./nox -s lint tests -- -k x` or\n\n"
        "```sh\nA=1 ./nox -s provision -- --profile aot  # note\n"
        "python -m ci report \\\n  --nonsense | cat\n```\n"
    )
    commands = commands_of("page", text)
    assert [(c.sessions, c.passed_on) for c in commands if c.is_nox] == [
        (["lint", "tests"], ["-k", "x"]),
        (["provision"], ["--profile", "aot"]),
    ]
    assert [shlex.join(c.verb[1]) for c in commands if c.verb] == ["report --nonsense '|' cat"]


def test_the_list_of_sessions_shows_whole_sentences() -> None:
    """nox shows only the first line of a session's docstring."""
    words = [sys.executable, "-m", "nox", "--noxfile", ROOT / "noxfile.py", "--list"]
    rows = re.findall(r"(?m)^[*-] \S+ -> (.*)", run_process(words, timeout_s=60).output)
    assert len(rows) == len(list_sessions())
    assert [row for row in rows if not row.endswith(".")] == []
