"""Upstream's static Llama, compiled by QNN 2.37, in our loop: QNN_CI_STORIES260K names a directory
with stories260K.bin, tok512.bin and stories260k_hybrid_llama_qnn.pte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
GIVEN = os.environ.get("QNN_CI_STORIES260K", "")
pytestmark = pytest.mark.skipif(not GIVEN, reason="QNN_CI_STORIES260K names no directory")
PLACE = Path(GIVEN)
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    " One day, she saw a big bird with a big bird."
)


@pytest.mark.emulator
def test_upstreams_program_tells_its_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = str(PLACE / "stories260k_hybrid_llama_qnn.pte")
    words = ["--program", program, "--tokenizer", str(PLACE / "tok512.bin")]
    weights = ["--weights", str(PLACE / "stories260K.bin"), "--tokens", "64"]
    assert main(["test-llm", *words, *weights, "--json"]) == ExitCode.OK
    report = json.loads(capsys.readouterr().out)
    (told,) = [one for one in report["remarks"] if "asis" in one]
    assert STORY in told
    assert "the first 38 as float32" in told
    assert report["cases"][0]["equal"] == pytest.approx(0.906, abs=0.05)
