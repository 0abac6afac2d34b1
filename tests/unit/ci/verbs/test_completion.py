"""Completion of ``qnn-ci`` in real shells, and the options of its verbs."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.verbs.registry import VERBS
from provisioning.console.caller import Caller
from provisioning.console.command import make_parser
from provisioning.console.process import run_process
from tests.stand_ins.snapshots import check_snapshot

ASK = """
source {script}
COMP_WORDS=(qnn-ci {words})
COMP_CWORD={last}
COMP_LINE="${{COMP_WORDS[*]}}"
$(complete -p qnn-ci | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def complete(tmp_path: Path, *words: str) -> set[str]:
    """What bash offers for the last of ``words``."""
    text = ASK.format(script=tmp_path / "bash", words=" ".join(words) or "''", last=len(words))
    ended = run_process(["bash", "--norc", "-c", text], timeout_s=1200)
    return set(ended.output.split())


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "bash").write_text(capsys.readouterr().out)
    return tmp_path


def test_bash_completes_verbs_options_and_choices(bash: Path) -> None:
    assert complete(bash, "''") >= set(VERBS)
    assert complete(bash, "veri") == {"verify", "verify-evidence"}
    assert "--trust-first-use" in complete(bash, "fetch", "--t")
    assert complete(bash, "cache", "cl") == {"clean"}


def list_options(parser: argparse.ArgumentParser, indent: str) -> Iterator[str]:
    """Yield a line for each argument: its names, what it takes, and its default."""
    for action in parser._actions[1:]:
        parts = [" ".join(action.option_strings) or action.dest]
        parts.append(type(action).__name__.strip("_").removesuffix("Action").lower())
        parts += [action.type.__name__] if isinstance(action.type, Callable) else []
        parts += [f"nargs {action.nargs}"] if action.nargs not in {None, 0} else []
        parts += ["required"] if action.required and action.option_strings else []
        parts += [f"into {action.dest}", f"default {action.default!r}"]
        if isinstance(action.choices, dict):
            yield f"{indent}{', '.join(parts)}"
            for name, verb_parser in action.choices.items():
                yield f"{indent}  {name}"
                yield from list_options(verb_parser, indent + "    ")
        else:
            parts += [f"one of {' '.join(action.choices)}"] if action.choices else []
            yield f"{indent}{', '.join(parts)}"


def test_the_options_of_every_verb_read_as_their_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot shows what each option takes and its default, so that no change goes
    unnoticed."""
    for name in [*filter(lambda name: name.startswith("QNN_CI_"), os.environ), "EXECUTORCH_ROOT"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    lines = []
    for name, verb in VERBS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(verb.module).add_arguments(parser)
        lines += [name, *list_options(parser, "  ")]
    text = "\n".join(lines).replace(f"{Path.cwd()}/", "") + "\n"
    check_snapshot(Path(__file__).parent / "snapshots" / "options.txt", text)


def test_the_help_of_a_verb_with_many_options_has_groups_and_examples() -> None:
    caller = Caller("qnn-ci", dict.fromkeys(VERBS, ""))
    for name, verb in VERBS.items():
        parser = make_parser(caller, VERBS, name)
        for example in verb.examples:
            parser.parse_args(shlex.split(example))
            assert f"  qnn-ci {name} {example}\n" in parser.format_help()
        titles = [group.title for group in parser._action_groups if group._group_actions]
        many = len(parser._actions) > 24
        assert not many or (len(titles) > 4 and len(verb.examples) > 1), name
