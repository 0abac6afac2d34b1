"""The key of a lowered program: the same for the same content, whatever the process did before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")
ROOT = Path(__file__).resolve().parents[3]
CODE = """
import json, sys
import torch
from ci.lowering.model import digest_model, load_model
threads, torch.backends.mkldnn.enabled = json.loads(sys.argv[1])
torch.set_num_threads(threads)
for name in sys.argv[2:]:
    print(name, digest_model(load_model(name)))
"""


def digest_models(
    *names: str, root: Path = ROOT, threads: int = 1, one_dnn: bool = False
) -> dict[str, str]:
    """Digests by name, made in one process in the order of the names."""
    return run_code(CODE, json.dumps([threads, one_dnn]), *names, root=root)


def run_code(code: str, *words: str, root: Path = ROOT) -> dict[str, str]:
    argv = [sys.executable, "-c", code, *words]
    ended = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True, timeout=120)
    return dict(line.split() for line in ended.stdout.splitlines())


def test_keys_depend_on_nothing_that_the_process_did_before() -> None:
    together = digest_models("mlp", "superres", "mobilenet", "lstm")
    others = digest_models("lstm", "mobilenet", "superres", "mlp", threads=2, one_dnn=True)
    assert others == together
    assert len(set(together.values())) == 4


def copy_sources(target: Path, changed: str, text: str, by: str) -> Path:
    """The project's packages with one edit, in a repository: lines are named from its root."""
    (target / ".git").mkdir()
    for file in (ROOT / "ci").rglob("*.py"):
        copy = target / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    (target / "provisioning").symlink_to(ROOT / "provisioning")
    path = target / changed
    before = path.read_text()
    assert text in before
    path.write_text(before.replace(text, by))
    return target


def test_a_changed_operator_of_one_model_changes_its_key_alone(tmp_path: Path) -> None:
    before = digest_models("mlp", "superres")
    changed = copy_sources(tmp_path, "ci/lowering/suite/mlp.py", "nn.ReLU()", "nn.ReLU6()")
    after = digest_models("mlp", "superres", root=changed)
    assert after["mlp"] != before["mlp"]
    assert after["superres"] == before["superres"]


KEYS = """
from ci.lowering.job import LowerJob
from ci.lowering.lookup import digest_key
from ci.lowering.schemes import Scheme
for scheme in Scheme:
    job = LowerJob("mlp", scheme, "SM8650", "cache", ("torch 2",), "log")
    print(scheme.value, digest_key("digest of a model", job))
"""
ROW = '    A16W8 = "16a8w", Recipe("use_16a8w", 16)\n'


@pytest.mark.parametrize(
    ("changed", "text", "by", "same"),
    [
        ("ci/lowering/schemes.py", ROW, ROW + ROW.replace("8w", "2w").replace("W8", "W2"), True),
        ("ci/lowering/cases.py", "import difflib", "import difflib  # changed", True),
        ("ci/lowering/suite/mlp.py", "A multi-layer", "Some multi-layer", True),
        ("ci/lowering/references/ties.py", "DRAWS = 16", "DRAWS = 17", False),
        ("ci/lowering/audit.py", "refused without a reason", "refused", False),
        ("ci/lowering/references/eager.py", "import torch\n", "import torch  # changed\n", False),
    ],
)
def test_a_new_scheme_lowers_nothing_again_and_other_reasons_of_refusals_all(
    tmp_path: Path, changed: str, text: str, by: str, *, same: bool
) -> None:
    before = run_code(KEYS)
    after = run_code(KEYS, root=copy_sources(tmp_path, changed, text, by))
    assert all((after[name] == before[name]) is same for name in before)
    assert len(set(after.values())) == len(after)
