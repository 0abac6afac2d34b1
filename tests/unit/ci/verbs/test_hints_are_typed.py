"""Each fix that names an option or a command is typed in a situation that prints it.

``typed_hints`` of tests/unit/conftest.py does this for each call of ``main`` in a unit test; the
rows here are the situations of the fixes that no other test prints. A new fix with an option or a
command needs a row, or a reason in UNTYPED.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ci.__main__ import main
from provisioning.console import command
from provisioning.console.command import Outcome, Verb
from provisioning.errors import ExitCode, UsageError
from tests.documented.pages import ROOT
from tests.stand_ins.sources import list_nodes, parse_source
from tests.static.test_hints import show_string
from tests.typed_hints import Typist

TORCH = "net.py:factory"
# A command that is refused, and a part of the fix that it prints.
ROWS = (
    ("audit --model mlp --scheme u8", "pass --scheme 8a8w"),
    ("build direct --source tree", "add --soc, such as SM8750"),
    ("build runner --profile emulator", "omit --profile: this target does not use one"),
    ("doctor staged", "=DIR"),
    ("estimate", "pass --model"),
    ("estimate --model mlp --device S24 --soc SM8350", "pass either --device or --soc"),
    ("estimate --model mlp --device 'Snapdragon 8 Gen 3'", "pass --soc "),
    ("fuzz --graph net.py --soc SM8650 --soc SM8750", "pass --soc once"),
    ("init --workflow-only", "pass --uses OWNER/REPOSITORY@COMMIT, with "),
    ("init --workflow-only --directory folder --uses a/b@" + "c" * 40, "leave out --workflow-only"),
    ("inspect", "pass a file, or --soc alone"),
    (
        "localise --model mlp --model resnet --reproducer r.py",
        "select one --model, --scheme and --soc",
    ),
    ("mend --model net.onnx --standalone", "leave out --standalone"),
    ("mend --apply --policy default --model mlp", "pass --policy, or leave out --apply"),
    ("parity --source tree --base HEAD", "omit --base"),
    ("parity --source tree --rev HEAD", "omit --rev"),
    ("parity --source .", "or --policy with this project's layout"),
    ("path qnn-sdk", "run `qnn-ci fetch "),
    ("report folder --trend folder", "leave out PATH: --trend names"),
    ("sign", "pass --lpai-arch v6"),
    ("sign --lpai-arch v6 --out folder", "pass --force to replace it"),
    ("upgrade-report", "pass OLD and NEW, or --model alone"),
    (
        "upgrade-report 2.49.0 2.50.0 --model mlp --with onnxruntime-qnn==2.7.0",
        "leave out --with, or OLD and NEW",
    ),
    ("stage --soc SM8650 --runner gone --runtime folder --out out", "run `qnn-ci build android`"),
    ("test --policy default", "pass --model file.py:factory"),
    ("test-emulator --policy gone.toml", "`qnn-ci init --policy-only` writes one"),
    ("test-emulator --model net.onnx", "if a policy also has other models, choose these"),
    ("test-emulator --policy both.toml", "if a policy also has other models, choose these"),
    ("test-emulator --model mlp --backend gpu --estimate", "leave out --estimate"),
    ("test-emulator --scheme u8", "pass --scheme 8a8w"),
    ("test-emulator --model mlp --scheme mixed", "add --model "),
    ("test-emulator --policy lpai.toml", "add --backend lpai"),
    ("test-litert --scheme 8a8w", "pass --scheme fp16"),
    ("test-litert --model net.py:factory --scheme asis", "or quantize the model with LiteRT's"),
    ("test-llm --program net.pte --scheme fp16", "leave out --scheme, and pass at most one --soc"),
    ("test-onnx", "to export these models to ONNX, run "),
    ("test-onnx --model net.tflite", "if a policy also has other models, choose these"),
    ("upgrade-report qnn==1 qnn==2 --matrix", "pass a wheel to --with, or an SDK to --sdk"),
)
POLICY = 'extends = "default"\n[models.m]\npath = "net.py:factory"\n'
MIXTURE = (
    '[models.m.mixtures.mixed]\nbase = "8a8w"\nparts = [{ type = "Linear", scheme = "16a8w" }]\n'
)


def refuse(*_: Any) -> None:
    raise ConnectionRefusedError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory, in which nothing is provisioned, and a Python with all packages."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for module in ("steps", "trials", "upgrade_matrix"):
        monkeypatch.setattr(f"ci.verbs.{module}.require_packages", lambda *_: None)
    (tmp_path / "net.py").write_text("def factory(): ...\n")
    for name in ("net.onnx", "net.tflite", "net.pte", "libQnnHtp.so"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "tree/backends/qualcomm").mkdir(parents=True)
    (tmp_path / "tree/CMakeLists.txt").touch()
    (tmp_path / "qnn.toml").write_text(POLICY + MIXTURE)
    (tmp_path / "both.toml").write_text(f'{POLICY}[models.o]\npath = "net.onnx"\n')
    (tmp_path / "lpai.toml").write_text(f"{POLICY}[models.m.run]\nlpai_fps = 30\n")
    return tmp_path


@pytest.mark.parametrize(("words", "fix"), ROWS)
def test_the_hints_of_a_refusal_lead_on(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str], words: str, fix: str
) -> None:
    assert main(shlex.split(words)) in {ExitCode.USAGE, ExitCode.ENVIRONMENT, ExitCode.TOOL}
    message = capsys.readouterr().err
    printed = " ".join(message.replace("python -m ci ", "qnn-ci ").split())
    if fix not in printed:
        pytest.fail(f"{printed} does not contain {fix}", pytrace=False)


# Where fixes are printed that no row prints, and why.
UNTYPED = {
    "ci/builds/": "needs sources of ExecuTorch, an SDK and compilers",
    "ci/cases/limited.py": "needs a model that prints or hangs",
    "ci/cases/pipeline.py": "needs a program that was lowered",
    "ci/cases/qnn_files.py": "needs a QNN of another version",
    "ci/device/": "needs a phone or a board",
    "ci/gate/reading.py": "needs a repository with a shallow history",
    "ci/images/": "needs a Docker engine",
    "ci/inspect/": "needs a program or an app; the tests of inspect print it",
    "ci/latency/calibrate.py": "needs a report with times of a device",
    "ci/litert/": "needs ai-edge-litert",
    "ci/llm/": "needs torch and weights",
    "ci/mend/policy.py": "needs a model that was mended",
    "ci/onnx/": "needs onnx",
    "ci/parity/": "needs a tree of ExecuTorch",
    "ci/report/claim.py": "needs another run that writes to the same directory",
    "ci/signing/": "needs a signer, or a phone",
    "ci/upstream/": "needs ExecuTorch's tests",
    "ci/verbs/build.py": "needs sources of ExecuTorch and an SDK",
    "ci/verbs/deploy.py": "needs a phone or a board",
    "ci/verbs/emulate.py": "needs a plan",
    "ci/verbs/judge.py": "needs the outputs of a device",
    "ci/verbs/lanes/emulator.py": "needs a plan, or a runner",
    "ci/verbs/mend.py": "needs a model that was mended",
    "ci/verbs/onnx.py": "needs onnx",
    "ci/verbs/runtimes.py": "needs the packages of several runtimes",
    "ci/verbs/sides.py": "needs two versions of ExecuTorch",
    "ci/verbs/user_policy.py": "needs a policy called default",
    "provisioning/artifacts/": "needs an artifact that differs from its pin, or a server",
    "provisioning/console/command.py": "argparse prints it, with --help",
    "provisioning/doctor/": "needs an SDK of the user",
    "provisioning/store/": "needs a full disk",
    "provisioning/verbs/": "nobody knows the value",
}
# Single fixes that no row prints, and why.
LEFT = {
    "pass --scheme {counterpart or names[0]}": "rows print it with a scheme",
    "pass --scheme {matching_scheme}, which replaces the schemes of a policy": "needs a quantized file",
    "write {matching_scheme}, or pass --scheme {matching_scheme}": "needs a quantized file",
    "remove {scheme}, or select other schemes with --scheme, such as {able[0]}": "edits a policy",
    "use --soc with one of: {able}": "an option of a lowering that few SoCs have",
    "use --model to choose models without these options": "nobody knows the models",
    "select the cases with --model, --scheme and --soc": "nobody knows the cases",
    "omit --runner, or pass a command that runs the .pte on a device that has it": "a device",
    "test this model with `qnn-ci test-emulator`": "an option of a lowering in a policy",
    "pass --runtime executorch or --runtime onnxruntime": "test_runtimes prints it",
    "leave out --frontend, which is the former name of --runtime": "test_runtimes prints it",
    "leave out --runtime, or pass file.py:factory": "test_runtimes prints it",
    "pass --directory, or another model": "nobody knows the directory",
    "add the model to a policy (`qnn-ci init` writes one), and pass --policy": "needs torch",
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*|`qnn-ci")


def read_fixes() -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each fix that names an option or a command."""
    for top in ("ci", "provisioning"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in list_nodes(parse_source(path.read_text("utf-8"))):
                values = [node.value] if isinstance(node, ast.keyword) and node.arg == "fix" else []
                if values and isinstance(values[0], ast.IfExp):
                    values = [values[0].body, values[0].orelse]
                for value in values:
                    text = show_string(value).replace("{show_command(", "`qnn-ci {")
                    if OPTION.search(text):
                        yield path.relative_to(ROOT).as_posix(), text


def test_each_fix_with_an_option_or_a_command_is_typed_or_has_a_reason() -> None:
    printed = [fix for _, fix in ROWS]
    untyped = {
        (file, text) for file, text in read_fixes() if not any(part in text for part in printed)
    }
    left = {text for file, text in untyped if not file.startswith(tuple(UNTYPED))}
    assert left == {*LEFT}
    used = {place for place in UNTYPED for file, _ in untyped if file.startswith(place)}
    assert used == {*UNTYPED}


PLANTED = {
    "pass --scheme fp16": "ends in the same error",
    "leave out --scheme": "is refused: qnn-ci plant: it needs --scheme",
    "add --gone": "plant has no --gone",
    "run `qnn-ci plant --scheme other`": "ends in the same error",
    "pass --scheme right": "",
    "pass --scheme NAME": "",
}


@pytest.mark.parametrize(("fix", "fault"), PLANTED.items())
def test_a_fix_that_does_not_lead_on_is_found(
    monkeypatch: pytest.MonkeyPatch, typed_hints: Typist, fix: str, fault: str
) -> None:
    plant = ModuleType("tests.planted_verb")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--scheme")

    def execute(args: argparse.Namespace, _: Any) -> Outcome:
        if args.scheme is None:
            raise UsageError("it needs --scheme")
        if args.scheme != "right":
            raise UsageError("this scheme is wrong", fix=fix)
        return Outcome("right", {})

    plant.add_arguments, plant.execute = add_arguments, execute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, plant.__name__, plant)
    verbs = {"plant": Verb(plant.__name__, "a planted verb")}
    assert command.run_command("qnn-ci", verbs, ["plant", "--scheme", "wrong"])[0] == 2
    faults = typed_hints.find_faults()
    typed_hints.refused.clear()
    assert len(faults) == bool(fault)
    assert all(text.endswith(fault) for text in faults)
