"""A real Llama in our loop and in upstream's runner: QNN_CI_STORIES260K names a directory with
stories260K.bin, tok512.bin and stories260k_hybrid_llama_qnn.pte, upstream's own program of it
that QNN 2.37 compiled; QNN_CI_LLAMA_RUNNER names a qnn_llama_runner that starts by itself."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from ci.llm import case as module
from ci.llm import tiny
from ci.llm.tokenizers import PIECE, read_tokenizer
from provisioning.errors import ExitCode

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
GIVEN = os.environ.get("QNN_CI_STORIES260K", "")
RUNNER = os.environ.get("QNN_CI_LLAMA_RUNNER", "")
pytestmark = [
    pytest.mark.skipif(not GIVEN, reason="QNN_CI_STORIES260K names no directory"),
    pytest.mark.emulator,
]
PLACE = Path(GIVEN)
UPSTREAMS = PLACE / "stories260k_hybrid_llama_qnn.pte"
TOKENIZER, WEIGHTS = PLACE / "tok512.bin", PLACE / "stories260K.bin"
LILY = "Once upon a time, there was a little girl named Lily."
STORY = (
    f"{LILY} She loved to play outside in the park. One day, she saw a big bird with a big bird."
)
Test = Callable[..., dict[str, Any]]


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Test:
    """Returns the report of test-llm."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> dict[str, Any]:
        assert main(["test-llm", *words, "--json"]) == ExitCode.OK
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return run


def tell_foreign(tell: Test, program: Path, *words: str) -> tuple[str, dict[str, Any]]:
    report = tell("--program", str(program), "--tokenizer", str(TOKENIZER), *words)
    (story_remark,) = [remark for remark in report["remarks"] if "asis" in remark]
    return story_remark, report["cases"][0]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Returns the tokens after the prompt, of each program that is run in our loop."""
    token_lists: list[tuple[int, ...]] = []
    judge = module.judge_program

    def note(spec: Any, foreign: Any, *words: Any) -> Any:
        token_lists.append(foreign.tokens)
        return judge(spec, foreign, *words)

    monkeypatch.setattr(module, "judge_program", note)
    return token_lists


def test_upstreams_story_program_generates_its_expected_text(tell: Test) -> None:
    remark, case = tell_foreign(tell, UPSTREAMS, "--weights", str(WEIGHTS), "--tokens", "64")
    assert STORY in remark
    assert "the first 38 equal those of float32" in remark
    assert case["judgement"]["equal"] == pytest.approx(0.906, abs=0.05)


def test_a_tokenizer_with_another_vocabulary_size_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    other_tokenizer = str(Path(tiny.__file__).parent / "tokenizer.bin")
    assert (
        main(["test-llm", "--program", str(UPSTREAMS), "--tokenizer", other_tokenizer])
        == ExitCode.USAGE
    )
    assert "it has vocabulary = 57" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["fp16", "8a8w", "16a8w", "16a4w", "16a4w_block"])
def test_each_scheme_generates_the_expected_story_and_rejects_every_control(
    tell: Test, tmp_path: Path, generated: list[tuple[int, ...]], scheme: str
) -> None:
    words = ["--model", "stories260k", "--scheme", scheme, "--tokens", "64", "--context", "96"]
    report = tell(*words, "--keep-artifacts", str(tmp_path / "kept"))
    (story_remark,) = [remark for remark in report["remarks"] if scheme in remark]
    assert LILY in story_remark
    assert len(report["controls"]) == 9
    assert all(control["rejected"] for control in report["controls"])
    if scheme == "fp16":
        assert report["cases"][0]["judgement"]["equal"] == 1
        assert "differs from float32" not in story_remark
    (program,) = (tmp_path / "kept").rglob("program.pte")
    story_remark, _ = tell_foreign(tell, program, "--prompt", "Once upon a time", "--tokens", "59")
    assert LILY in story_remark
    if RUNNER:
        assert generated == [run_in_runner(program, "Once upon a time", tmp_path)]


def run_in_runner(program: Path, prompt: str, place: Path) -> tuple[int, ...]:
    """The tokens after a prompt, of 64 in all, by upstream's runner: each piece of the tokenizer
    that it takes is the number of its token, so that the text is a list of them."""
    tokenizer = read_tokenizer(TOKENIZER)
    pieces = [f"<{number}>".encode() for number in range(tokenizer.vocabulary)]
    with (place / "numbers.bin").open("wb") as file:
        file.write(
            struct.pack(
                "<4i", tokenizer.vocabulary, tokenizer.bos, tokenizer.eos, max(map(len, pieces))
            )
        )
        for piece in pieces:
            file.write(PIECE.pack(0.0, len(piece)) + piece)
    ids = tokenizer.prompt(prompt)
    (place / "prompt.bin").write_bytes(struct.pack(f"<{len(ids)}Q", *ids))
    files = {"tokenizer_path": "numbers.bin", "tokenized_prompt": "prompt.bin"}
    files["output_path"] = "story.txt"
    file_words = [part for name, file in files.items() for part in (f"--{name}", str(place / file))]
    words = [RUNNER, "--model_path", str(program), *file_words, "--seq_len", "64"]
    subprocess.run(words, check=True, capture_output=True, timeout=1200)
    tokens = tuple(map(int, re.findall("<([0-9]+)>", (place / "story.txt").read_text())))
    assert len(ids) + len(tokens) == 64
    return tokens
