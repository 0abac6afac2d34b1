"""Completion of ``qnn-ci`` in real shells."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.__main__ import VERBS, main
from provisioning.console.process import run_process

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
    ended = run_process(["bash", "--norc", "-c", text], timeout_s=20)
    return set(ended.output.split())


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "bash").write_text(capsys.readouterr().out)
    return tmp_path


def test_bash_completes_every_verb(bash: Path) -> None:
    assert complete(bash, "''") >= set(VERBS)
    assert complete(bash, "ver") == {
        "verify",
        "verify-evidence",
        "verify-signature",
        "versions-matrix",
    }


def test_bash_completes_options_and_choices(bash: Path) -> None:
    assert "--trust-first-use" in complete(bash, "fetch", "--t")
    assert complete(bash, "cache", "cl") == {"clean"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "_qnn-ci").write_text(capsys.readouterr().out)
    run_process(["zsh", "-n", tmp_path / "_qnn-ci"], timeout_s=20)


def test_zsh_gets_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef qnn-ci")
    assert all(f"    {name}:'" in script for name in VERBS)
