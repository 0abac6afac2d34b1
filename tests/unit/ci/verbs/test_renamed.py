"""Verbs of an earlier release run what replaces them, and say so."""

from __future__ import annotations

import pytest

from ci.__main__ import main
from ci.verbs.registry import RENAMED, VERBS, choose_environment
from provisioning.console.caller import Caller
from provisioning.console.command import describe_verbs, replace_renamed


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_verb_runs_its_successor_with_a_warning(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = RENAMED[old].split()
    verb = words[0]
    assert verb in VERBS
    assert old not in VERBS
    with pytest.raises(SystemExit):
        main([old, "--help"])
    texts = capsys.readouterr()
    assert f"warning: {old} will be removed in the next release; use {RENAMED[old]}" in texts.err
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert capsys.readouterr().out == texts.out
    assert choose_environment([old, "net.onnx"]) == choose_environment([*words, "net.onnx"])


def test_options_before_and_after_an_old_verb_are_kept() -> None:
    words = ["verify-signature", "--json", "-q", "signed"]
    assert replace_renamed(words, RENAMED) == ["sign", "--verify", "--json", "-q", "signed"]
    assert replace_renamed(["sign"], RENAMED) == ["sign"]
    assert replace_renamed([], RENAMED) == []
    caller = Caller("qnn-ci", {}, (), "", "")
    assert not any(old in describe_verbs(caller, VERBS) for old in RENAMED if old != "gc")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("inspect a.so b.so --load", "only one file can be judged"),
        ("inspect . --runtime 2.49.40", "--qnn-runtime 2.49.40 is for a program"),
        ("sign --verify", "no library to verify"),
        ("sign --verify x.so --dry-run", "--dry-run cannot be used with --verify"),
        ("sign x.so --at 2026-11-20", "--at has no effect without --verify"),
        ("cache info --github", "--github cannot be used with cache info"),
        ("cache gc store", "cache gc takes no names"),
    ],
)
def test_options_of_another_use_of_a_verb_are_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err
