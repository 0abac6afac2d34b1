"""Installed from its wheel, in a repository that knows nothing of this project: green, then red."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.emulator
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

FILES = {
    "ci/__init__.py": "",
    "ci/layers.py": "import torch\n\n\ndef finish(x):\n    return torch.relu(x)\n",
    "provisioning/__init__.py": "raise SystemExit('the wrong provisioning')\n",
    "multiprocessing/__init__.py": "raise SystemExit('the wrong multiprocessing')\n",
    "tests/__init__.py": "",
    "manifests/policies/emulator.toml": "[not ours]\n",
    "pip.py": "raise SystemExit('the wrong pip')\n",
    "net.py": """\
import torch
from ci.layers import finish


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        return self.last(finish(self.first(x)))


def draw(seed):
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))


def factory():
    return Net(), (draw(0),)


def inputs():
    return [(draw(seed),) for seed in range(6)]


def labels():
    return torch.stack([Net()(*one) for one in inputs()]).argmax(-1)
""",
    "metrics.py": """\
def top1(outputs, labels):
    return (outputs[0].argmax(-1) == labels).float().mean()
""",
    "qnn.toml": """\
extends = "default"

[models.net]
path = "net.py:factory"
schemes = ["16a8w"]
calibration = "calibration.npy"
inputs = "net.py:inputs"

[models.net.metric]
function = "metrics.py:top1"
labels = "net.py:labels"
max_drop = 0.2
""",
}


@dataclass(frozen=True)
class Repository:
    """A repository of somebody else's, and the program that was installed beside it."""

    root: Path
    program: Path

    def run(
        self, *words: str, below: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "GITHUB_", "QNN_CI_COMMAND", "QNN_CI_CALLER"))
        }
        kept["PATH"] = f"{self.program.parent}:{kept['PATH']}"
        return subprocess.run(
            words,
            cwd=self.root / below,
            env={**kept, **variables},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def read(self, name: str) -> Any:
        return json.loads((self.root / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The wheel in an environment of its own, which borrows torch from this one."""
    folder = tmp_path_factory.mktemp("anybody")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(ROOT)], check=True, timeout=300, cwd=folder)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(paths)]
    (site / "borrowed.pth").write_text("".join(lines))
    root = folder / "a répo of mine"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    repository = Repository(root, python.with_name("qnn-ci"))
    generator = np.random.default_rng(0)
    np.save(root / "calibration.npy", generator.standard_normal((8, 4, 16), np.float32) * 2)
    return repository


@pytest.mark.nightly
def test_a_green_run_and_then_a_red_one_with_file_and_line(repository: Repository) -> None:
    root = repository.root
    words = ("qnn-ci", "test-emulator", "--policy", "../qnn.toml", "--reports", "../reports")
    green = repository.run(*words, "--record", below="tests")
    assert green.returncode == 0, green.stdout + green.stderr
    report = repository.read("reports/test_emulator/report.json")
    (case,) = report["cases"]
    assert (case["model"], case["inputs"], case["metric_name"]) == ("net", 6, "top1")
    assert (case["metric_float"], case["metric"]) == (1.0, pytest.approx(1.0, abs=0.2))
    assert case["metric_quantized"] == pytest.approx(case["metric"], abs=0.2)
    assert report["thresholds"][0]["max_metric_drop"] == 0.2
    assert report["command"] == "qnn-ci test-emulator --policy qnn.toml"
    for name in ("report.json", "junit.xml", "index.html"):
        assert str(root) not in (root / "reports/test_emulator" / name).read_text("utf-8")
    suites = (root / "reports/test_emulator/junit.xml").read_text("utf-8")
    names = set(re.findall('classname="([^"]+)"', suites))
    assert names == {"test_emulator.net", "test_emulator.controls.net"}

    (root / "before.json").write_bytes((root / "reports/test_emulator/report.json").read_bytes())
    layers = FILES["ci/layers.py"].replace("torch.relu(x)", "torch.relu(x @ x)")
    (root / "ci/layers.py").write_text(layers)
    page = root / "page.md"
    words = (*words[:3], "qnn.toml", "--base", "before.json", "--sarif", "qnn.sarif")
    red = repository.run(*words, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(page))
    assert red.returncode == 1, red.stdout + red.stderr
    assert re.search(
        r"(?m)^::error file=ci/layers\.py,line=5,title=test_emulator%3A net::", red.stderr
    )
    (case,) = repository.read("reports/test_emulator/report.json")["cases"]
    assert case["places"] == [{"file": "ci/layers.py", "line": 5}]
    assert str(root) not in str(case["findings"])
    (result,) = repository.read("qnn.sarif")["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 5}
    summary = page.read_text("utf-8")
    assert ":white_check_mark: → :x:" in summary
    (command,) = re.findall("<pre>(qnn-ci .*)</pre>", summary)
    again = repository.run(*shlex.split(command))
    assert again.returncode == 1
    assert "ci/layers.py, line 5, in finish" in again.stdout


@pytest.mark.nightly
def test_a_figure_that_moves_from_what_was_recorded_is_red(repository: Repository) -> None:
    words = ("qnn-ci", "test-emulator", "--policy", "qnn.toml")
    (repository.root / "ci/layers.py").write_text(FILES["ci/layers.py"])
    (file,) = (repository.root / "qnn-baselines").iterdir()
    assert repository.run(*words).returncode == 0
    text = file.read_text("utf-8")
    (figure,) = re.findall(r'"net 16a8w SM8650" = \{ sqnr_db = ([\d.]+)', text)
    file.write_text(text.replace(figure, str(float(figure) + 7)))
    moved = repository.run(*words)
    assert moved.returncode == 1, moved.stdout
    assert "--record" in moved.stdout
    (case,) = repository.read("reports/test_emulator/report.json")["cases"]
    assert case["recorded_sqnr_db"] == pytest.approx(float(figure) + 7)
    unnamed = repository.run("qnn-ci", "test-emulator", "--model", "net.py:factory", "--record")
    assert unnamed.returncode == 2
    assert "--policy" in unnamed.stderr


def test_no_message_names_a_command_that_is_not_there(repository: Repository) -> None:
    wrong = repository.run("qnn-ci", "test-emulator", "--policy", "gone.toml")
    assert (wrong.returncode, "nox" in wrong.stderr) == (2, False)
    assert "gone.toml" in wrong.stderr
    usage = repository.run("qnn-ci", "test-emulator", "--modle", "x")
    assert (usage.returncode, "nox" in usage.stderr) == (2, False)
    assert "`qnn-ci test-emulator --help`" in usage.stderr
