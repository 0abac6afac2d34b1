"""The key of a lowered program: the same for the same content, whatever the process did before."""

from __future__ import annotations

import functools
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
    argv = [sys.executable, "-c", CODE, json.dumps([threads, one_dnn]), *names]
    ended = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True, timeout=120)
    return dict(line.split() for line in ended.stdout.splitlines())


@functools.cache
def digest_unchanged() -> dict[str, str]:
    return digest_models("mlp", "superres", "mobilenet", "lstm")


def test_keys_depend_on_nothing_that_the_process_did_before() -> None:
    together = digest_unchanged()
    others = digest_models("lstm", "mobilenet", "superres", "mlp", threads=2, one_dnn=True)
    assert others == together
    assert len(set(together.values())) == 4


def copy_sources(target: Path, changed: str, text: str, by: str) -> Path:
    """The project's packages with one edit, in a repository: lines are named from its root."""
    (target / ".git").mkdir(parents=True)
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
    before = digest_unchanged()
    changed = copy_sources(tmp_path, "ci/lowering/suite/mlp.py", "nn.ReLU()", "nn.ReLU6()")
    after = digest_models("mlp", "superres", root=changed)
    assert after["mlp"] != before["mlp"]
    assert after["superres"] == before["superres"]


# Each tree in a fork of a process that has imported torch and nothing of the project.
KEYS = """
import os, sys
import torch
for number, root in enumerate(sys.argv[1:]):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    os.chdir(root)
    sys.path[0] = root
    from ci.lowering.job import LowerJob
    from ci.lowering.lookup import digest_key
    from ci.lowering.schemes import Scheme
    for scheme in Scheme:
        job = LowerJob("mlp", scheme, "SM8650", "cache", ("torch 2",), "log")
        print(number, scheme.value, digest_key("digest of a model", job))
    sys.exit()
"""
ROW = '    A16W8 = "16a8w", Recipe("use_16a8w", 16)\n'
CHANGES = {
    "a scheme more": (
        "ci/lowering/schemes.py", ROW, ROW + ROW.replace("8w", "3w").replace("W8", "W3"), True,
    ),
    "cases": ("ci/lowering/cases.py", "import difflib", "import difflib  # changed", True),
    "a model": ("ci/lowering/suite/mlp.py", "A multi-layer", "Some multi-layer", True),
    "draws": ("ci/lowering/references/ties.py", "DRAWS = 16", "DRAWS = 17", False),
    "a reason": ("ci/lowering/audit.py", "refused without a reason", "refused", False),
    "references": (
        "ci/lowering/references/eager.py", "import torch\n", "import torch  # changed\n", False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The keys by scheme, of the project as it is ("") and after each change."""
    trees = tmp_path_factory.mktemp("trees")
    roots = [ROOT]
    for name, (changed, text, by, _) in CHANGES.items():
        roots.append(copy_sources(trees / name, changed, text, by))
    words = [sys.executable, "-c", KEYS, *map(str, roots)]
    ended = subprocess.run(
        words, cwd=trees, capture_output=True, text=True, check=True, timeout=120
    )
    rows = [line.split() for line in ended.stdout.splitlines()]
    return {
        name: {scheme: key for at, scheme, key in rows if at == str(number)}
        for number, name in enumerate(["", *CHANGES])
    }


@pytest.mark.parametrize("change", CHANGES)
def test_a_new_scheme_lowers_nothing_again_and_other_reasons_of_refusals_all(
    keys: dict[str, dict[str, str]], change: str
) -> None:
    before, after, same = keys[""], keys[change], CHANGES[change][-1]
    assert before
    assert all((after[name] == before[name]) is same for name in before)
    assert len(set(after.values())) == len(after)
    assert len(after) == len(before) + (change == "a scheme more")
