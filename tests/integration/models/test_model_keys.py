"""The key of a lowered program: the same for the same content, whatever the process did before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.stand_ins.torch_forks import TorchForks, start_forks

pytestmark = [
    pytest.mark.nightly,  # by day, test_user_models has keys of models from files
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
ROOT = Path(__file__).resolve().parents[3]
CODE = """
import json, sys
import torch
from ci.models.model import digest_model, load_model
threads, torch.backends.mkldnn.enabled = json.loads(sys.argv[1])
torch.set_num_threads(threads)
for name in sys.argv[2:]:
    print(name, digest_model(load_model(name)))
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[TorchForks]:
    with start_forks() as forks:
        yield forks


def run_code(forks: TorchForks, code: str, *words: str, root: Path = ROOT) -> dict[str, str]:
    printed = forks.run(code, *words, cwd=root, env=os.environ)
    return dict(line.split() for line in printed.splitlines())


@pytest.fixture(scope="module")
def digests(forks: TorchForks) -> dict[str, str]:
    """By name, made in one process in this order."""
    return run_code(forks, CODE, "[1, false]", "mlp", "superres", "mobilenet", "lstm")


def test_model_keys_do_not_depend_on_earlier_models_or_threads_of_the_process(
    forks: TorchForks, digests: dict[str, str]
) -> None:
    thread_settings = json.dumps([2, True])  # threads, and oneDNN
    assert run_code(forks, CODE, thread_settings, "lstm", "mobilenet", "superres", "mlp") == digests
    assert len(set(digests.values())) == 4


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


def test_a_changed_operator_changes_the_key_of_its_model_only(
    tmp_path: Path, forks: TorchForks, digests: dict[str, str]
) -> None:
    changed = copy_sources(tmp_path, "ci/models/suite/mlp.py", "nn.ReLU()", "nn.ReLU6()")
    after = run_code(forks, CODE, "[1, false]", "mlp", "superres", root=changed)
    assert after["mlp"] != digests["mlp"]
    assert after["superres"] == digests["superres"]


KEYS = """
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.models.schemes import Scheme
for scheme in Scheme:
    spec = CaseSpec("mlp", scheme, "SM8650")
    print(scheme.value, ExecutorchEngine(("torch 2",)).digest_key("digest of a model", spec))
"""
ROW = '    A16W8 = "16a8w", Recipe("use_16a8w", 16)\n'
CHANGES = {
    "a scheme more": (
        "ci/models/schemes.py", ROW, ROW + ROW.replace("8w", "3w").replace("W8", "W3"), True,
    ),
    "cases": ("ci/cases/spec.py", "import difflib", "import difflib  # changed", True),
    "a model": ("ci/models/suite/mlp.py", "A multi-layer", "Some multi-layer", True),
    "a reason": ("ci/executorch/delegation.py", "refused without a reason", "refused", False),
    "references": (
        "ci/models/eager.py", "import torch\n", "import torch  # changed\n", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_only_source_changes_that_a_program_depends_on_change_its_cache_key(
    tmp_path: Path, forks: TorchForks, change: str
) -> None:
    changed, text, by, stays_equal = CHANGES[change]
    before = run_code(forks, KEYS)
    after = run_code(forks, KEYS, root=copy_sources(tmp_path, changed, text, by))
    assert before
    assert all((after[name] == before[name]) is stays_equal for name in before)
    assert len(set(after.values())) == len(after)
    assert len(after) == len(before) + (change == "a scheme more")
