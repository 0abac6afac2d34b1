"""Each lane of this project runs for what it is made of: planned on a clone of the project."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.gate.plan import make_plan
from ci.gate.reading import Repository
from ci.gate.rules import read_rules

ROOT = Path(__file__).resolve().parents[3]
LANES = {"test_emulator", "test_onnx"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """What is the same in all plans is parsed once."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    target = tmp_path_factory.mktemp("clone") / "project"
    words = ["git", "clone", "--quiet", "--shared", str(ROOT), str(target)]
    subprocess.run(words, check=True, capture_output=True)
    return Repository(target, read_rules())


@pytest.mark.parametrize(
    ("path", "old", "new", "lanes"),
    [
        ("ci/models/suite/mlp.py", "nn.ReLU()", "nn.ReLU6()", LANES),
        ("manifests/policies/onnx.toml", "min_rms = 0.001", "min_rms = 0.002", {"test_onnx"}),
        (
            "manifests/policies/emulator.toml",
            "min_rms = 0.001",
            "min_rms = 0.002",
            {"test_emulator"},
        ),
        ("manifests/baselines/onnxruntime-*.toml", "= 5", "= 6", {"test_onnx"}),
        ("ci/judging/gate.py", '"""', '"""x', LANES),
        ("ci/onnx/fallback.py", '"""', '"""x', {"test_onnx"}),
    ],
)
def test_a_changed_file_plans_the_lanes_that_depend_on_it(
    clone: Repository, path: str, old: str, new: str, lanes: set[str]
) -> None:
    (file,) = clone.source.glob(path)
    before = file.read_text("utf-8")
    assert old in before
    head = clone.resolve("HEAD")
    try:
        file.write_text(before.replace(old, new, 1), "utf-8")
        difference = clone.compare(head, "")
    finally:
        file.write_text(before, "utf-8")
    plan = make_plan(difference, clone.rules, base=head, head="", event="", everything="")
    planned = {row.name: row.run for row in plan.sessions}
    assert planned.keys() >= LANES
    assert {name for name in LANES if planned[name]} >= lanes
