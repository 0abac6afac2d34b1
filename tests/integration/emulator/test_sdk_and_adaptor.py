"""--sdk and --adaptor: what does not fit is refused before anything is lowered, with one command.

The adaptor is the installed wheel's own, with single fields changed; the SDK is its runtime.
Set QNN_CI_TEST_SDK to an SDK with headers and EXECUTORCH_ROOT to a checkout of the installed
executorch's version for the whole way: build_aot, then the suite through the overlay.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.artifacts.choice import OverlayRecord, python_tag, write_overlay
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.doctor.survey.python_probe import find_adaptors, probe
from provisioning.elf.qnn_build import HTP_API, find_headers_version
from provisioning.errors import ExitCode
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.backends import make_libcxx

pytestmark = pytest.mark.emulator
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
AARCH64 = 183
PACKAGE = str(probe([], [])["executorch"])
ADAPTOR = next(Path(path) for path in find_adaptors(PACKAGE) if path.endswith(SUFFIX))
SDK, CHECKOUT = os.environ.get("QNN_CI_TEST_SDK", ""), os.environ.get("EXECUTORCH_ROOT", "")
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's shell, and nothing left behind."""
    for name in ("QNN_CI_SDK", "QNN_CI_ADAPTOR", "QNN_SDK_ROOT", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def make_overlay(tmp_path: Path) -> Make:
    """A directory that looks like the installed executorch with an adaptor of its own."""

    def make(
        *edits: elf.Edit, suffix: str = SUFFIX, executorch: str = "1.5.1", sdk: str = "2.37.0"
    ) -> Path:
        place = tmp_path / "overlay" / "executorch" / "backends" / "qualcomm" / "python"
        place.mkdir(parents=True)
        (tmp_path / "overlay" / "executorch" / "lib").symlink_to(Path(PACKAGE) / "lib")
        data = bytearray(ADAPTOR.read_bytes())
        for edit in edits:
            edit(data)
        (place / f"PyQnnManagerAdaptor{suffix}").write_bytes(data)
        write_overlay(tmp_path / "overlay", OverlayRecord(executorch, sdk, python_tag()))
        return tmp_path / "overlay"

    return make


def set_headers(minor: int) -> elf.Edit:
    """As if the adaptor had been compiled with the headers of QNN 2.``minor``."""

    def edit(data: bytearray) -> None:
        for match in HTP_API.finditer(bytes(data)):
            data[match.start(1)] = minor

    return edit


def refuse(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """Run the main job's verb: it must end with 3 before it lowers."""
    code = main(["test-emulator", "--json", "--model", "mlp", *words])
    printed = capfd.readouterr()
    assert code == ExitCode.ENVIRONMENT, printed.err
    assert "3/4" not in printed.err
    error: dict[str, str] = json.loads(printed.out)
    return error


def test_the_qnn_header_version_is_read_from_the_code_of_the_adaptor(tmp_path: Path) -> None:
    assert find_headers_version(ADAPTOR) == "2.37"
    copy = tmp_path / "other.so"
    data = bytearray(ADAPTOR.read_bytes())
    set_headers(51)(data)
    copy.write_bytes(data)
    assert find_headers_version(copy) == "2.51"
    copy.write_bytes(HTP_API.sub(b"", bytes(data)))
    assert find_headers_version(copy) == ""


@pytest.mark.parametrize(
    ("overlay_options", "message"),
    [
        ({"executorch": "1.4.1"}, "QNN901: the QNN adaptor was built from ExecuTorch 1.4.1"),
        ({"suffix": ".cpython-39-x86_64-linux-gnu.so"}, "QNN508: the QNN adaptor is for another"),
    ],
)
def test_an_overlay_of_another_checkout_or_python_is_refused(
    make_overlay: Make,
    capfd: pytest.CaptureFixture[str],
    overlay_options: dict[str, str],
    message: str,
) -> None:
    error = refuse(capfd, "--adaptor", str(make_overlay(**overlay_options)))
    assert message in error["what"]


def test_an_overlay_for_another_machine_is_refused(
    make_overlay: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    overlay = make_overlay(elf.set_u16(elf.E_MACHINE, AARCH64))
    assert "QNN513" in refuse(capfd, "--adaptor", str(overlay))["what"]


def test_an_overlay_for_a_newer_sdk_is_refused_with_the_command_that_builds_one(
    make_overlay: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    error = refuse(capfd, "--adaptor", str(make_overlay(set_headers(51), sdk="2.51.0")))
    assert "QNN902" in error["what"]
    assert "headers of QNN 2.51, but libQnnHtp.so is from 2.49.40" in error["what"]
    assert "ci build aot --sdk " in error["fix"]


def test_a_missing_overlay_names_the_command_that_builds_it(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = provision_profile("emulator", Progress()).root("qnn-runtime")
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    monkeypatch.setenv("QNN_CI_LIBCXX_ROOT", str(make_libcxx(tmp_path / "libcxx", runtime)))
    error = refuse(capfd, "--sdk", str(runtime), "--adaptor", "overlay")
    assert error["what"].startswith("no overlay was built for QNN 2.49.40")
    assert f"ci build aot --sdk {runtime.resolve()}`" in error["fix"]


@pytest.mark.parametrize("words", [("--sdk", "nowhere"), ("--adaptor", "nowhere")])
def test_a_missing_sdk_or_adaptor_directory_is_a_usage_error(
    capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["test-emulator", *words]) == ExitCode.USAGE
    assert "nowhere is not a directory" in capfd.readouterr().err


@pytest.mark.nightly
def test_the_report_names_sdk_and_adaptor_which_are_part_of_the_cache_key(
    make_overlay: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's SDK with an overlay: the first run lowers a small program, the second takes it from
    the cache."""
    runtime = provision_profile("emulator", Progress()).root("qnn-runtime")
    monkeypatch.setenv("QNN_CI_LIBCXX_ROOT", str(make_libcxx(tmp_path / "libcxx", runtime)))
    overlay = make_overlay(lambda data: data.extend(os.urandom(8)))
    shutil.copytree(PACKAGE, overlay / "executorch", symlinks=True, dirs_exist_ok=True,
                    copy_function=link_missing)  # fmt: skip
    words = ["--sdk", str(runtime), "--adaptor", str(overlay), "--reports", str(tmp_path / "r")]
    case = ["--model", "mlp", "--scheme", "fp16"]
    assert main(["test-emulator", *words, *case]) == ExitCode.OK
    report = json.loads((tmp_path / "r" / "test_emulator" / "report.json").read_text())
    tools = {tool["name"]: tool for tool in report["toolchain"]}
    assert tools["qnn-sdk"]["version"] == "2.49.40"
    assert tools["libQnnHtp.so"]["version"].startswith("v2.49.40.2608")
    assert tools["adaptor"]["version"] == "QNN 2.37"
    assert tools["operator-validation"]["version"] == "none"
    assert not report["cases"][0]["program"]["cached"]
    assert f"--adaptor {overlay}" in report["command"]


def link_missing(source: str, target: str) -> str:
    """Link a file of the wheel where the overlay has none of its own."""
    if not Path(target).exists():
        Path(target).symlink_to(source)
    return target
