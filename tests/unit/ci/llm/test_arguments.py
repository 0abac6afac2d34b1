"""What ``test-llm`` refuses before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode
from tests.unit.ci.llm.decoders import PLACE

WEIGHTS, TOKENIZER = str(PLACE / "weights.bin"), str(PLACE / "tokenizer.bin")
BOTH = ["--weights", WEIGHTS, "--tokenizer", TOKENIZER]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", WEIGHTS], "belong together"),
        (["--weights", "gone.bin", "--tokenizer", TOKENIZER], "gone.bin has no weights"),
        ([*BOTH[:3], "small.bin"], "it has vocabulary = 2, but "),
        ([*BOTH, "--prompt", "no € here"], "no piece for"),
        (["--scheme", "u8"], "u8"),
        (["--soc", "SM1"], "SM1"),
        (["--prefill", "1"], "--prefill 1"),
        (["--context", "60"], "--context 60"),
        (["--context", "128"], "at most 64"),
        (["--tokens", "0"], "--tokens 0"),
        (
            ["--prompt", "Ben has a blue boat. The boat sails far. Ben has a blue boat."],
            "context of 64",
        ),
        (["--text", "gone.txt"], "gone.txt cannot be read"),
        (["--text", "small.bin"], "small.bin cannot be read"),
        (["--text", "empty.txt"], "empty.txt"),
        (["--max-perplexity", "3"], "--max-perplexity 3 needs --text"),
        (["--text", "empty.txt", "--max-perplexity", "0.5"], "--max-perplexity 0.5"),
        (
            ["--program", TOKENIZER, "--tokenizer", TOKENIZER, "--text", "a"],
            "--text cannot be used",
        ),
        (["--program", "gone.pte", "--tokenizer", TOKENIZER], "no program"),
        (["--program", TOKENIZER], "--program needs --tokenizer"),
        (["--program", TOKENIZER, "--tokenizer", TOKENIZER], "neither an ExecuTorch program"),
        (["--program", "cut.pte", "--tokenizer", TOKENIZER], "cut.pte"),
        (["--program", TOKENIZER, "--tokenizer", TOKENIZER, "--scheme", "fp16"], "already"),
    ],
)
def test_a_mistake_ends_with_its_words(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut.pte").write_bytes(b"\x10\0\0\0ET12")
    Path("empty.txt").write_text("")
    Path("small.bin").write_bytes(b"\x01\0\0\0" + 2 * (b"\0\0\x80\x3f\x01\0\0\0" + b"a"))
    assert main(["test-llm", *words]) == ExitCode.USAGE
    assert said in capsys.readouterr().err
