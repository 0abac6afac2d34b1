"""The real thing: adaptor and runner of an ExecuTorch checkout, and a program on the emulator.

Set EXECUTORCH_ROOT to a checkout of v1.4.1 or later with its submodules, and
QNN_CI_TEST_QNN_HEADERS to a directory that holds QnnInterface.h. Minutes of compiling; with
QNN_CI_HOME on a disk that stays, a second run builds nothing.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.store.home import store_home

ROOT = Path(__file__).resolve().parents[3]
CHECKOUT = os.environ.get("EXECUTORCH_ROOT", "")
HEADERS = os.environ.get("QNN_CI_TEST_QNN_HEADERS", "")
LIMIT_S = 5400

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.timeout(LIMIT_S),
    pytest.mark.skipif(
        not CHECKOUT or not HEADERS,
        reason="EXECUTORCH_ROOT and QNN_CI_TEST_QNN_HEADERS are not set",
    ),
]
LOWER = """
import sys, numpy, torch
import executorch.backends.qualcomm.python.PyQnnManagerAdaptor as adaptor
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(),
                            torch.nn.Conv2d(8, 4, 3, padding=1)).eval()
x = torch.randn(1, 3, 16, 16)
options = utils.generate_qnn_executorch_compiler_spec(
    soc_model=QcomChipset.SM8650, backend_options=utils.generate_htp_compiler_spec(use_fp16=True)
)
lowered = utils.to_edge_transform_and_lower_to_qnn(model, (x,), options)
open("model.pte", "wb").write(lowered.to_executorch().buffer)
x.numpy().tofile("input.raw")
model(x).detach().numpy().tofile("wanted.raw")
open("list.txt", "w").write("input.raw\\n")
print(adaptor.__file__)
"""


@pytest.fixture(scope="module")
def emulator() -> Mapping[str, str]:
    return provision_profile("emulator", Progress()).variables


@pytest.fixture(scope="module")
def environment(emulator: Mapping[str, str]) -> dict[str, str]:
    """An SDK of the given headers and the emulator's libraries, and ExecuTorch's Python."""
    folder = store_home() / "test-sdk"
    library = Path(emulator["QNN_SDK_ROOT"]) / "lib/x86_64-linux-clang"
    for name, target in (
        ("qnn/include/QNN", Path(HEADERS)),
        ("qnn/lib/x86_64-linux-clang", library),
        ("libcxx/lib", library),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    (folder / "qnn/lib/aarch64-oe-linux-gcc11.2").mkdir(exist_ok=True)
    (folder / "qnn/sdk.yaml").write_text("product: QNN\nversion: unknown\n")
    paths = [str(ROOT), *find_executorch(folder)]
    return {
        **os.environ,
        "QNN_SDK_ROOT": str(folder / "qnn"),
        "QNN_CI_LIBCXX_ROOT": str(folder / "libcxx"),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def find_executorch(folder: Path) -> list[str]:
    """Where the wheel of the checkout's version is, installed beside when it is not ours."""
    checkout_version = (Path(CHECKOUT) / "version.txt").read_text().strip()
    try:
        if version("executorch") == checkout_version:
            return []
    except PackageNotFoundError:
        pass
    beside = folder / f"executorch-{checkout_version}"
    if not beside.is_dir():
        target = ["--target", str(beside), f"executorch=={checkout_version}"]
        words = ["install", "--quiet", "--no-deps", *target]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return [str(beside)]


def build(environment: Mapping[str, str], tmp_path: Path, *words: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "ci", "build", *words, "--no-doctor", "--json"],
        env=dict(environment),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)["builds"]
    assert isinstance(row, dict)
    return row


def read_floats(path: Path) -> tuple[float, ...]:
    data = path.read_bytes()
    return struct.unpack(f"<{len(data) // 4}f", data)


def test_a_program_lowered_with_the_built_adaptor_runs_in_the_built_runner(
    environment: dict[str, str], emulator: Mapping[str, str], tmp_path: Path
) -> None:
    adaptor = build(environment, tmp_path, "aot")
    assert adaptor["proof"]["program_bytes"] > 10_000
    assert "libquantized_ops_aot_lib.so" in {row["name"] for row in adaptor["artifacts"]}
    runner = build(environment, tmp_path, "runner_checkout")
    paths = os.pathsep.join([adaptor["overlay"], environment["PYTHONPATH"]])
    lowering = {**environment, **emulator, "PYTHONPATH": paths}
    lowered = subprocess.run(
        [sys.executable, "-c", LOWER], env=lowering, cwd=tmp_path, capture_output=True, text=True,
        timeout=600, check=True,
    )  # fmt: skip
    assert lowered.stdout.splitlines()[-1].startswith(adaptor["overlay"])
    program = next(
        row["path"] for row in runner["artifacts"] if row["name"] == "qnn_executor_runner"
    )
    words = ["--model_path=model.pte", "--input_list_path=list.txt", "--output_folder_path=."]
    subprocess.run([program, *words], env={**environment, **emulator}, cwd=tmp_path, check=True)
    expected, got = read_floats(tmp_path / "wanted.raw"), read_floats(tmp_path / "output_0_0.raw")
    worst = max(abs(a - b) for a, b in zip(got, expected, strict=True))
    assert worst < 0.01 * max(map(abs, expected))


def test_the_runner_for_aarch64_linux_is_built(environment: dict[str, str], tmp_path: Path) -> None:
    row = build(environment, tmp_path, "linux")
    assert {artifact["elf"]["machine"] for artifact in row["artifacts"]} == {"aarch64"}
    assert not [finding for artifact in row["artifacts"] for finding in artifact["findings"]
                if finding["severity"] == "error"]  # fmt: skip


def test_a_second_build_of_the_adaptor_runs_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    build(environment, tmp_path, "aot", "--no-proof")
    row = build(environment, tmp_path, "aot", "--no-proof")
    assert row["up_to_date"]
