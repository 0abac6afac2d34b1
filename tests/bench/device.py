"""A program on a phone, by ExecuTorch's SimpleADB and by this toolkit: bytes and seconds.

It needs adb. Each runs twice. The phone is tests/stand_ins/adbd.py. It gets QNN's libraries for
aarch64 Linux as they are, and 1 MiB instead of libqnn_executorch_backend.so; the runner there is a
script that starts this computer's with QNN's emulator.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ci.builds.runner import ensure_wheel_runner
from ci.cases.engine import Compiled, Delegation, Program
from ci.device.bundle import Bundle, Target
from ci.device.connection import ADB_FIX, identify, open_device, require_client
from ci.device.runner import DeviceRunner, lease_first
from ci.models.suite.mlp import make_case
from ci.models.tensors import TensorInfo
from ci.verbs.stage import find_runtime
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import ToolError
from tests.stand_ins.lanes import SPEC

SETS, SOC, ARCH, TARGET = 4, "SM8650", 75, "aarch64-oe-linux-gcc11.2"
RUNNER = "examples/qualcomm/executor_runner/qnn_executor_runner"
BACKEND = "backends/qualcomm/libqnn_executorch_backend.so"


def make_program(folder: Path) -> Path:
    words = ["--model", "mlp", "--scheme", "fp16", "--reports", str(folder / "reports")]
    kept = folder / "kept"
    subprocess.run(
        [sys.executable, "-m", "ci", "test-emulator", *words, "--keep-artifacts", str(kept)],
        check=True,
        stdout=sys.stderr,
    )
    (program,) = kept.rglob("*.pte")
    return program


def run_ours(
    serial: str, folder: Path, files: dict[str, Path], program: Path
) -> tuple[dict[str, Any], list[bytes]]:
    """One call: identify, lease, push, run, read what came back."""
    began = time.monotonic()
    device = open_device(f"adb:{serial}", str(folder / "phone/ours"))
    identify(device)
    bundle = Bundle(target=Target.EMULATOR, socs=(SOC,), runner=Path(RUNNER).name, qnn="", files=())
    directory = f"{device.place}/bundle"
    runner = DeviceRunner(device, bundle, directory, Progress())
    compiled = Compiled(
        program=program.name,
        binary=program.name,
        size_bytes=program.stat().st_size,
        sets=SETS,
        inputs=(TensorInfo("float32", (4, 64)),),
        outputs=(TensorInfo("float32", (4, 16)),),
        delegation=Delegation(1, 0, 1),
    )
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    place = folder / "ours"
    place.mkdir(exist_ok=True)
    with lease_first([runner]):
        runner.sent = device.push(directory, files, digests)
        one = Program(SPEC, program, compiled, place, place / "log")
        with runner.open(one, 60) as opened:
            outputs = opened.run(make_sets())
    row = make_row("deploy", runner.sent, began)
    return row, [tensors[0].tobytes() for tensors in outputs]


def make_sets() -> list[list[np.ndarray]]:
    _, example, calibration = make_case()
    return [[inputs[0].numpy()] for inputs in (example, *calibration)][:SETS]


def run_upstream(serial: str, folder: Path, program: Path) -> tuple[dict[str, Any], list[bytes]]:
    """What ExecuTorch's examples call: push, execute, pull."""
    sys.modules.setdefault("pydot", ModuleType("pydot"))  # for pictures of graphs; not needed here
    import torch
    from executorch.backends.qualcomm.export_utils import QnnConfig, SimpleADB

    workspace, back = folder / "phone/upstream", folder / "upstream"
    began = time.monotonic()
    config = QnnConfig(
        soc_model=SOC, build_folder=str(folder / "build"), device=serial, target=TARGET
    )
    adb = SimpleADB(config, str(program), str(workspace), error_only=True)
    adb.push(inputs=[[torch.from_numpy(one) for one in row] for row in make_sets()])
    sent = sum(path.stat().st_size for path in workspace.rglob("*") if path.is_file())
    adb.execute()
    adb.pull(str(back))
    row = make_row("SimpleADB", sent, began)
    found = back / "outputs" if (back / "outputs").is_dir() else back
    return row, [(found / f"output_{index}_0.raw").read_bytes() for index in range(SETS)]


def make_row(who: str, sent: int, began: float) -> dict[str, Any]:
    return {"by": who, "bytes": sent, "seconds": round(time.monotonic() - began, 2)}


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Each pushes and runs the program twice. Raises UnfitError without adb, ToolError if the
    outputs differ."""
    require_client("adb", ADB_FIX)
    rows: list[dict[str, Any]] = []
    emulator = provision_profile("emulator", progress).artifacts[0].root
    sdk = find_runtime("qnn-runtime-aarch64", progress)
    lib = sdk / "lib"
    os.environ["QNN_SDK_ROOT"] = str(sdk)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = make_program(folder)
        runner, backend = folder / "build" / RUNNER, folder / "build" / BACKEND
        for path in (runner, backend):
            path.parent.mkdir(parents=True)
        x86 = emulator / "lib/x86_64-linux-clang"
        runner.write_text(
            f'#!/bin/sh\nLD_LIBRARY_PATH={x86} exec {ensure_wheel_runner(progress)} "$@"\n'
        )
        backend.write_bytes(os.urandom(1 << 20))
        there = [lib / TARGET / f"libQnn{one}.so" for one in ("Htp", "System", f"HtpV{ARCH}Stub")]
        skel = lib / f"hexagon-v{ARCH}/unsigned/libQnnHtpV{ARCH}Skel.so"
        files = {path.name: path for path in (runner, backend, *there, skel)}
        root = folder / "phone"
        (root / "bin").mkdir(parents=True)
        phone = subprocess.Popen(
            [sys.executable, "-m", "tests.stand_ins.adbd", "0", str(root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert phone.stdout
            serial = f"127.0.0.1:{phone.stdout.readline().split()[1]}"
            subprocess.run(["adb", "connect", serial], check=True, stdout=sys.stderr)
            for _ in range(2):
                ours, wanted = run_ours(serial, folder, files, program)
                theirs, outputs = run_upstream(serial, folder, program)
                if outputs != wanted:
                    raise ToolError("SimpleADB's outputs are not those of deploy")
                rows += [ours, theirs]
        finally:
            with contextlib.suppress(OSError):
                subprocess.run(["adb", "disconnect", serial], check=False, stdout=sys.stderr)
            phone.terminate()
    return {"runs": rows}


def render_bench(figures: Mapping[str, Any]) -> str:
    """A line per run."""
    rows = figures["runs"]
    return "".join(
        f"{one['by']:<10} {one['bytes'] / 1e6:7.1f} MB sent {one['seconds']:6.1f} s\n"
        for one in rows
    )
