"""The fixes on cards of test-litert that name a file of --keep-artifacts, typed: the file has the
plugin's messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.litert.plugin import PROGRAM, find_package
from ci.litert.suite import Net, make_model
from ci.report.write import read_report
from provisioning.errors import ExitCode
from tests.build.litert_nets import make_unreached
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

ROOT = Path(__file__).parents[3]
pytestmark = NEEDS_PINNED_QNN
PER_CHANNEL = "FP16 FullyConnected only supports weights per channel."


def make_dense() -> bytes:
    return make_model("dense")


def make_six_axes() -> bytes:
    net, shape = Net(), (1, 2, 2, 2, 2, 4)
    source = net.add_tensor(shape, "x")
    net.end([source], [net.call("ADD", (source, net.draw(4)), shape, "AddOptions")])
    return net.pack()


# The model, a script instead of the plugin's program if the plugin compiles the model, the file
# that the fix names, and what is in it.
SITUATIONS: dict[str, tuple[Callable[[], bytes], str, str, str]] = {
    "QNN takes no operator": (make_six_axes, "", "plugin.stdout.log", "has incorrect Rank"),
    "QNN prepares no graph": (make_unreached, "", "plugin.stdout.log", "prepare failed"),
    "what it took is not translated": (
        make_dense,
        f"echo 'ERROR: [Qnn] {PER_CHANNEL}' >&2; exit 3",
        "plugin.stderr.log",
        PER_CHANNEL,
    ),
    "an end without a reason": (
        make_dense,
        "echo 'ERROR: [a.cc:1] invalid op config' >&2; exit 3",
        "plugin.stderr.log",
        "invalid op config",
    ),
}


def replace_program(folder: Path, script: str) -> None:
    """Write a package to ``folder`` that is ai-edge-litert with another program for its plugin."""
    package = find_package()
    program = folder / package.name / PROGRAM
    program.parent.mkdir(parents=True)
    for part in {package, (package / PROGRAM).parent}:
        for path in part.iterdir():
            copy = folder / package.name / path.relative_to(package)
            if not copy.exists() and path != package / PROGRAM:
                copy.symlink_to(path)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_kept_file_that_a_fix_names_has_the_messages(name: str, tmp_path: Path) -> None:
    make, script, kept_file, message = SITUATIONS[name]
    (tmp_path / "net.tflite").write_bytes(make())
    folders = [str(ROOT), *sys.path]
    if script:
        replace_program(tmp_path / "packages", script)
        folders.insert(0, str(tmp_path / "packages"))
    words = ["--model", "net.tflite", "--reports", "reports", "--diagnose", "0", "--offline"]
    for added_words in ([], ["--keep-artifacts", "kept"]):
        ended = subprocess.run(
            [sys.executable, "-m", "ci", "test-litert", *words, *added_words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == ExitCode.FAILED, ended.stderr
        (case,) = read_report(tmp_path / "reports/test_litert").cases
        fixes = [remedy.text for finding in case.judgement.findings for remedy in finding.remedies]
        (fix,) = [text for text in fixes if "--keep-artifacts keeps" in text]
        assert re.search(r"plugin\.\w+\.log", fix)[0] == kept_file  # type: ignore[index]
    (kept_path,) = (tmp_path / "kept").glob(f"*/{kept_file}")
    assert message in kept_path.read_text()
