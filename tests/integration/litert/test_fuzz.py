"""Small graphs are converted by litert-torch, compiled by LiteRT's plugin, run on the emulator and
judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("litert_converter", reason="litert-torch is not installed in this environment")

from provisioning.errors import ExitCode
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

ROOT = Path(__file__).resolve().parents[3]
pytestmark = NEEDS_PINNED_QNN
WRONG = "x = input(2, 16, 64)\nc = constant(16, 64)\na = add(x, c)\ny = sigmoid(a)\nreturn y\n"
RIGHT = "x = input(2, 16)\ny = tanh(x)\nreturn y\n"


def fuzz(folder: Path, *words: str) -> tuple[int, Any]:
    """The exit code and the JSON of a call."""
    argv = [sys.executable, "-m", "ci", "fuzz", "--runtime", "litert", "--json", "--offline"]
    ended = subprocess.run(
        [*argv, "--reports", str(folder), *words], cwd=ROOT, capture_output=True, check=False
    )
    assert ended.stdout, ended.stderr.decode()
    return ended.returncode, json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("text", "code", "end", "least_db", "most_db"),
    [(WRONG, ExitCode.FAILED, "wrong", 5, 20), (RIGHT, ExitCode.OK, "right", 50, 90)],
)
def test_a_graph_is_tried_in_the_scheme_that_litert_has(
    tmp_path: Path, text: str, code: int, end: str, least_db: float, most_db: float
) -> None:
    graph = tmp_path / "graph.txt"
    graph.write_text(text, "utf-8")
    ended, outcome = fuzz(tmp_path, "--graph", str(graph))
    assert ended == code
    results = outcome["results"]
    assert [(row["scheme"], row["end"]) for row in results] == [("fp16", end)] * 10
    assert all(least_db < row["sqnr_db"] < most_db for row in results)
    pages = [*(tmp_path / "fuzz").glob("*.md")]
    assert len(pages) == (end == "wrong")
    for page in pages:
        script = page.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
        assert (tmp_path / "fault.tflite").stat().st_size > 0


def test_a_search_judges_generated_graphs(tmp_path: Path) -> None:
    _, outcome = fuzz(tmp_path, "--graphs", "4", "--seed", "1", "--jobs", "1")
    (searched,) = outcome["found"]
    assert (searched["frontend"], searched["scheme"], searched["graphs"]) == ("litert", "fp16", 4)
    assert sum(searched["ends"].values()) == 4
    assert searched["ends"]["right"] > 0
