"""The key of a lowered program: the same for the same content, whatever the process did before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
ROOT = Path(__file__).resolve().parents[3]
CODE = """
import sys
from ci.lowering.model import hash_model, load_model
for name in sys.argv[1:]:
    model = load_model(name)
    print(name, hash_model(model, ["context"]), *(path.name for path in model.sources))
"""


def hash_models(*names: str) -> dict[str, list[str]]:
    argv = [sys.executable, "-c", CODE, *names]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return {line.split()[0]: line.split()[1:] for line in ended.stdout.splitlines()}


def test_keys_do_not_depend_on_what_was_loaded_before() -> None:
    together = hash_models("mlp", "superres", "lstm")
    assert hash_models("lstm", "superres", "mlp") == together
    assert together["superres"][1:] == ["seeding.py", "superres.py"]
    assert len({row[0] for row in together.values()}) == 3


def test_a_changed_line_of_one_model_changes_its_key_alone(tmp_path: Path) -> None:
    before = hash_models("mlp", "superres")
    suite = tmp_path / "ci"
    for file in (ROOT / "ci").rglob("*.py"):
        target = suite / file.relative_to(ROOT / "ci")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text()
        target.write_text(text + "# changed\n" if file.name == "mlp.py" else text)
    (tmp_path / "provisioning").symlink_to(ROOT / "provisioning")
    argv = [sys.executable, "-c", CODE, "mlp", "superres"]
    ended = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    after = {line.split()[0]: line.split()[1:] for line in ended.stdout.splitlines()}
    assert after["mlp"] != before["mlp"]
    assert after["superres"] == before["superres"]
