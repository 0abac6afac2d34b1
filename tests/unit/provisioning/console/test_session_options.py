"""Sessions of one call of nox share what stands after --; none is ignored in silence."""

from __future__ import annotations

import argparse

import pytest

from ci.__main__ import main
from ci.verbs.registry import VERBS
from provisioning.console.command import keep_own, list_together

SESSIONS = {name: verb.session for name, verb in VERBS.items()}


def make_parser(*options: tuple[str, dict[str, object]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for name, settings in options:
        parser.add_argument(name, **settings)  # type: ignore[arg-type]
    return parser


BUILD = make_parser(
    ("target", {}), ("--no-doctor", {"action": "store_true"}), ("-D", {}), ("--both", {})
)
EMULATE = make_parser(
    ("--model", {}),
    ("-m", {}),
    ("--pair", {"nargs": 2}),
    ("--some", {"nargs": "*"}),
    ("--maybe", {"nargs": "?"}),
    ("--more", {"nargs": "+"}),
    ("--both", {"action": "store_true"}),
    ("--quick", {"action": "store_true"}),
)


@pytest.mark.parametrize(
    ("words", "own_words", "other_words"),
    [
        ("aot --model mlp --no-doctor", "aot --no-doctor", "--model mlp"),
        ("aot --pair a b -DX=1", "aot -DX=1", "--pair a b"),
        ("aot --nonsense mlp", "aot --nonsense mlp", ""),
        ("-DA=1 --model m -m n aot", "-DA=1 aot", "--model m -m n"),
        ("-mn aot", "aot", "-mn"),
        ("--maybe x aot", "aot", "--maybe x"),
        ("--maybe --no-doctor aot", "--no-doctor aot", "--maybe"),
        ("--more a b --no-doctor", "--no-doctor", "--more a b"),
        ("--both own aot --pair a b c", "--both own aot c", "--pair a b"),
        ("--quick aot", "aot", "--quick"),
    ],
)
def test_a_session_keeps_its_own_options_and_ignores_those_of_others(
    words: str, own_words: str, other_words: str
) -> None:
    assert keep_own(words.split(), BUILD, [EMULATE]) == (own_words.split(), other_words.split())


def test_the_other_verbs_of_a_nox_call_are_derived_from_its_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QNN_CI_SESSIONS", "build_aot build_android test_emulator lint")
    assert list_together(SESSIONS, "build") == ["test-emulator"]
    assert list_together(SESSIONS, "test-emulator") == ["build"]
    monkeypatch.setenv("QNN_CI_SESSIONS", "lint_all")
    assert list_together({"one": "lint", "two": "lint_", "three": "lint_all"}, "") == [
        *("two", "three")
    ]
    monkeypatch.delenv("QNN_CI_SESSIONS")
    assert list_together(SESSIONS, "build") == []


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--list", "--no-doctor", "--with", "llama"], 0), (["--list", "--no-doctors"], 2)],
)
def test_options_of_other_sessions_are_reported_as_ignored_and_unknown_ones_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.setenv("QNN_CI_SESSIONS", "build_aot test_emulator")
    assert main(["test-emulator", *words]) == code
    errors = capfd.readouterr().err
    note = (
        "ignored, because only other sessions of this command accept them: --no-doctor --with llama"
    )
    assert (note in errors) is (code == 0)
