"""Each fix that names an option or a command is typed in a situation that prints it.

``typed_hints`` of tests/unit/conftest.py does this for each call of ``main`` in a unit test; the
rows of tests/typed_fixes.py are the situations of the fixes that no other test prints.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.device.bundle import BUNDLE, FILES, Target
from ci.gate.schema import Plan
from ci.report.claim import LOCK
from ci.report.schema import CaseName
from ci.report.write import write_report
from provisioning.console import command
from provisioning.console.command import Outcome, Verb
from provisioning.console.user_folder import RECORD, Record
from provisioning.errors import ExitCode, UsageError
from provisioning.store.lock import HeldLock
from tests.build.litert_bundles import make_compiled_decoder, write_tiny
from tests.documented.pages import ROOT
from tests.stand_ins import android_apps
from tests.stand_ins.dsp_toolchains import make_library
from tests.stand_ins.litert import make_compiled
from tests.stand_ins.lowered import make_program
from tests.stand_ins.reports import make_report
from tests.stand_ins.repository import make_checkout
from tests.typed_fixes import ROWS, ROWS_WITH
from tests.typed_hints import Typist

POLICY = 'extends = "default"\n[models.m]\npath = "net.py:factory"\n'
MIXTURE = (
    '[models.m.mixtures.mixed]\nbase = "8a8w"\nparts = [{ type = "Linear", scheme = "16a8w" }]\n'
)


TFLITE = 'extends = "default"\n[models.net]\npath = "net.tflite"\n'


QUANTIZED = 'extends = "default"\n[models.m]\npath = "quantized.onnx"\n'
LOWERING = "[models.m.lowering]\n"
TRACED = f'{LOWERING}profile_level = "detailed"\n'
POLICIES = {
    "traced": POLICY + TRACED,
    "lowered": f'{POLICY}runtimes = ["onnxruntime"]\n{TRACED}',
    "prepared": f"{POLICY}{LOWERING}online_prepare = true\n",
    "eight": f'{POLICY}runtimes = ["litert"]\nschemes = ["8a8w"]\n',
    "inline": 'extends = "default"\nmodels.m = { path = "net.py:factory" }\n',
    "quantized": f'{QUANTIZED}schemes = ["u8"]\n',
    "mixed": QUANTIZED + MIXTURE.replace("16a8w", "u16a8w").replace('"8a8w', '"u8'),
    "lpai": f"{POLICY}[models.m.run]\nlpai_fps = 30\n",
}
PROGRAMS = {
    "broken": "exit 1",
    "waits": "exec sleep 600",
    "elsewhere": 'cp "$1" "${2%/*}"',
    "isolated": f'exec {sys.executable} -I -S "$@"',  # a Python without packages
    # It lists two phones, neither of which is ready.
    "programs/adb": r"test $1 = devices && printf '1\toffline\n2\toffline\n'",
}


def write_quantized(path: Path) -> None:
    """An ONNX model whose input is quantized."""
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1])
    zero = helper.make_tensor("zero", TensorProto.UINT8, [], [128])
    graph = helper.make_graph(nodes, "quantized", [x], [y], [scale, zero])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def refuse(*_: Any) -> None:
    raise ConnectionRefusedError


def write_libraries(place: Path) -> None:
    """Libraries of QNN, and parts of SDKs."""
    name = "libQnnHtpV75Skel.so"
    (place / "skels").mkdir()
    for folder in (".", "skels"):
        (place / folder / name).write_bytes(android_apps.skel(name, 0x75))
    for folder in ("v75", "kept/mlp-fp16-SM8650"):
        (place / folder).mkdir(parents=True)
        for library, data in android_apps.make_set().items():
            (place / folder / library).write_bytes(data)
    (place / "runner.so").write_bytes(android_apps.library("libqnn_executorch_backend.so"))
    make_library(place / "old/lib/lpai-v6/unsigned/libQnnLpaiSkel.so", 0x79)
    (place / "old/sdk.yaml").write_text("product: qairt\nversion: 2.30.0\n")
    (place / "hexagon/tools/elfsigner").mkdir(parents=True)
    (place / "hexagon/tools/elfsigner/elfsigner.py").touch()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory, in which nothing is provisioned, and a Python with all packages."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("DOCKER_HOST", "no engine")
    for module in ("steps", "trials", "upgrade_matrix"):
        monkeypatch.setattr(f"ci.verbs.{module}.require_packages", lambda *_: None)
    (tmp_path / "net.py").write_text("def factory(): ...\n")
    for name in ("net.onnx", "net.tflite", "net.pte", "run.log"):
        (tmp_path / name).touch()
    for name in ("folder", "files"):
        (tmp_path / name).mkdir()
    (tmp_path / "files/net.onnx").touch()
    (tmp_path / "tree/backends/qualcomm").mkdir(parents=True)
    (tmp_path / "tree/CMakeLists.txt").touch()
    (tmp_path / "checkout").symlink_to(ROOT / "tests/stand_ins/tiny_executorch")
    case = CaseName(model="mlp", scheme="fp16", soc="SM8650")
    for name, cases in (("plan", (case,)), ("empty", ())):
        plan = Plan(base="before", head="now", cases=cases)
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(plan))
    (tmp_path / "qnn.toml").write_text(POLICY + MIXTURE)
    (tmp_path / "both.toml").write_text(f'{POLICY}[models.o]\npath = "net.onnx"\n')
    (tmp_path / "program.pte").write_bytes(make_program())
    with zipfile.ZipFile(tmp_path / "app.aab", "w") as bundle:
        bundle.writestr("BundleConfig.pb", b"")
    tiny = ROOT / "ci/llm/tiny"
    (tmp_path / "weights.bin").symlink_to(tiny / "weights.bin")
    pieces = 2 * (b"\0\0\x80\x3f\x01\0\0\0" + b"a")  # two of one text
    (tmp_path / "small.bin").write_bytes(b"\x01\0\0\0" + pieces)
    write_libraries(tmp_path)
    runner = b"#!/bin/sh\n"
    (tmp_path / "bundle" / FILES).mkdir(parents=True)
    (tmp_path / "bundle" / FILES / "runner").write_bytes(runner)
    file = {"name": "runner", "sha256": sha256(runner).hexdigest(), "size_bytes": len(runner)}
    record = {"target": Target.ANDROID.value, "socs": ["SM8650"], "runner": "runner", "qnn": ""}
    (tmp_path / "bundle" / BUNDLE).write_text(json.dumps({**record, "files": [file]}))
    for name, text in PROGRAMS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    write_report(replace(make_report([]), session="fuzz"), tmp_path / "judged")
    (tmp_path / "judged/compiled.pte").write_bytes(make_program())
    (tmp_path / "taken/test_emulator").mkdir(parents=True)
    (tmp_path / "taken/test_emulator" / LOCK).symlink_to("elsewhere")
    for name, text in POLICIES.items():
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "compiled.tflite").write_bytes(make_compiled())
    write_tiny(tmp_path / "compiled.litertlm", decoder=make_compiled_decoder())
    if find_spec("onnx"):
        write_quantized(tmp_path / "quantized.onnx")
    (tmp_path / "users").mkdir()
    (tmp_path / "users/qnn.toml").write_text(POLICY)
    return tmp_path


def list_rows() -> Iterator[Any]:
    for package, rows in {"": ROWS, **ROWS_WITH}.items():
        lacks = bool(package) and find_spec(package) is None
        reason = f"{package} is not installed in this environment"
        for row in rows:
            yield pytest.param(*row, marks=pytest.mark.skipif(lacks, reason=reason))


@pytest.mark.parametrize(("words", "fix"), [*list_rows()])
def test_no_hint_of_a_refusal_ends_in_another_refusal(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str], words: str, fix: str
) -> None:
    assert main(shlex.split(words)) != ExitCode.OK
    message = capsys.readouterr().err
    printed = " ".join(message.replace("python -m ci ", "qnn-ci ").split())
    if fix not in printed:
        pytest.fail(f"{printed} does not contain {fix}", pytrace=False)


def test_a_policy_that_was_found_is_sent_to_the_lane_of_its_files(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "qnn.toml").write_text(TFLITE)
    assert main(["test-onnx"]) == ExitCode.USAGE
    assert "run `python -m ci test-litert --model net`" in " ".join(capsys.readouterr().err.split())


def test_a_policy_that_is_a_directory_is_replaced_by_another(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "qnn.toml").unlink()
    (place / "qnn.toml").mkdir()
    assert main(["test-emulator"]) == ExitCode.USAGE
    message = " ".join(capsys.readouterr().err.split())
    assert "or `--policy default` to test this project's own suite" in message


def make_sparse(place: Path, _: pytest.MonkeyPatch) -> None:
    """A checkout that lacks a file."""
    sparse = make_checkout(place / "sparse", {"backends/qualcomm/a.py": "", "CMakeLists.txt": ""})
    sparse.git("sparse-checkout", "set", "gone")


def make_two_histories(place: Path, _: pytest.MonkeyPatch) -> None:
    """A repository whose branches have no commit in common."""
    both = make_checkout(place / "both", {"a.py": ""})
    both.git("switch", "-q", "--orphan", "other")
    both.commit({"b.py": ""})


def take_reports(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Reports to which another run writes."""
    patch.setattr("ci.report.claim.GRACE_S", 0.0)
    (place / "reports/test_emulator").mkdir(parents=True)
    assert HeldLock(place / "reports/test_emulator" / LOCK).take()


def leave_no_program(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PATH", str(place / "folder"))


def mend_otherwise(place: Path, _: pytest.MonkeyPatch) -> None:
    """A folder with what `mend` wrote without a policy."""
    record = Record({"qnn.toml": ["0"]}, {"policy": "", "command": "mend"})
    (place / "mended").mkdir()
    (place / "mended" / RECORD).write_bytes(msgspec.json.encode(record))


SITUATIONS = {
    "mend --model net.onnx --output mended": (
        mend_otherwise,
        "pass another directory to --output, or --force, which renames the old policy",
    ),
    "parity --source sparse": (
        make_sparse,
        "pass --rev HEAD, or run `git sparse-checkout disable`",
    ),
    "plan --source both --base main": (make_two_histories, "pass --base a revision that shares"),
    "test-emulator --model mlp": (take_reports, "or pass another directory with --reports"),
    "sign libQnnHtpV75Skel.so --testsig adb": (
        leave_no_program,
        "or pass the SoC's serial number with --testsig",
    ),
}


@pytest.mark.parametrize(
    ("words", "situation", "fix"), [(*row[:1], *row[1]) for row in SITUATIONS.items()]
)
def test_no_hint_of_a_refusal_that_needs_more_than_files_ends_in_another_one(
    place: Path,
    typed_hints: Typist,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    situation: Callable[[Path, pytest.MonkeyPatch], None],
    fix: str,
) -> None:
    situation(place, monkeypatch)
    assert main(shlex.split(words)) != ExitCode.OK
    assert fix in " ".join(capsys.readouterr().err.split())


def test_a_version_in_two_parts_is_asked_for_in_three(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a line of an answer, and no error."""
    words = ["inspect", "program.pte", "--soc", "SM8650", "--qnn-runtime"]
    assert main([*words, "2.49"]) == ExitCode.ENVIRONMENT
    printed = " ".join(capsys.readouterr().out.split())
    (version,) = set(re.findall(r"pass all three parts .*?\(--qnn-runtime ([\d.]+)\)", printed))
    main([*words, version])
    assert "pass all three parts" not in capsys.readouterr().out


PLANTED = {
    "pass --scheme fp16": "ends in the same error",
    "leave out --scheme": "is refused: qnn-ci plant: it needs --scheme",
    "add --gone": "plant has no --gone",
    "run `qnn-ci plant --scheme other`": "ends in the same error",
    "pass --scheme right": "",
    "pass --scheme NAME": "",
}


@pytest.mark.parametrize(("fix", "fault"), PLANTED.items())
def test_a_fix_that_ends_in_an_error_again_is_found(
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
