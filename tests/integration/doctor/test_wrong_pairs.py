"""Versions that do not belong together, through the command line: each pair ends with exit 3 and is
named; the defaults are not. The trees are shapes with the files that state a version."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.artifacts.choice import OverlayRecord, python_tag, write_overlay
from provisioning.errors import ExitCode
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import read_toolchain
from tests.programs import missing_programs
from tests.stand_ins.tiny_toolchains import (
    make_libcxx,
    make_qnn_sdk,
    write,
)

BARE = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
PAIRED = {"QNN105", "QNN505", "QNN602", "QNN904", "QNN905", "QNN906", "QNN907"}
NO_PYTHON = not Path(BARE).is_file()
pytestmark = pytest.mark.skipif(NO_PYTHON, reason=f"{BARE} is not there")


class Shelf:
    """Makes a tree of a version the first time that it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str, version: str) -> Path:
        root = self.folder / name / version
        if not root.exists():
            getattr(self, f"make_{name.replace('-', '_')}")(root, version)
        return root

    def make_qnn_sdk(self, root: Path, version: str) -> None:
        make_qnn_sdk(root)
        write(root / "sdk.yaml", f"product: QNN\nversion: {version}\n")

    def make_executorch(self, root: Path, version: str) -> None:
        write(root / "version.txt", version)
        write(root / "backends/qualcomm/CMakeLists.txt", "")
        for paths in read_toolchain("executorch").components.values():
            for path in paths:
                write(root / path.removesuffix("/**") / "README", "")

    def make_android_ndk(self, root: Path, version: str) -> None:
        write(root / "source.properties", f"Pkg.Desc = Android NDK\nPkg.Revision = {version}\n")
        write(root / "build/cmake/android.toolchain.cmake", "")

    def make_hexagon_sdk(self, root: Path, version: str) -> None:
        del version  # its directory is named after it
        write(root / "build/cmake/hexagon_toolchain.cmake", "")
        (root / "tools/HEXAGON_Tools/19.0.07/Tools/bin").mkdir(parents=True)

    def make_site(self, root: Path, versions: str) -> None:
        for name, version in (pair.split("=") for pair in versions.split(",")):
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            write(root / f"{name}-{version}.dist-info/METADATA", text)
            write(root / name / "__init__.py", "")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(autouse=True)
def caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the caller's shell."""
    for name in list(os.environ):
        if name.startswith(("QNN_", "EXECUTORCH_", "HEXAGON_", "ANDROID_", "PYTHONPATH")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))


def ask_doctor(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shelf: Shelf,
    words: str,
    versions: Mapping[str, str],
) -> tuple[int, dict[str, str]]:
    """Exit code, and what each finding says, of ``doctor`` on trees of these versions."""
    command = ["doctor", "--json", "--python", BARE, *words.split()]
    for name, version in versions.items():
        if name == "site":
            monkeypatch.setenv("PYTHONPATH", str(shelf.find(name, version)))
        elif name == "hexagon-tools":
            monkeypatch.setenv("HEXAGON_TOOLS_ROOT", str(shelf.folder / "tools" / version))
        else:
            command += ["--root", f"{name}={shelf.find(name, version)}"]
    code = main(command)
    verdict = json.loads(capfd.readouterr().out)
    return code, {finding["id"]: finding["what"] for finding in verdict["findings"]}


# More pairs are in tests/unit/provisioning/test_pairs.py: here each kind goes through the verb.
ROWS = [
    ("aot", {"qnn-sdk": "2.36.0", "executorch": "1.5.1"}, "QNN904", "ExecuTorch 1.5.1"),
    ("android", {"android-ndk": "25.2.9519653"}, "QNN602", "25.2.9519653 is older than r26"),
    ("direct --soc SM8850", {"hexagon-sdk": "6.3.0.0"}, "QNN906", "Hexagon SDK 6.3.0.0"),
    ("direct --soc SM8850", {"hexagon-tools": "8.8.06"}, "QNN907", "Hexagon tools 8.8.06"),
    ("emulator", {"site": "executorch=1.5.1,torch=2.9.0"}, "QNN505", "1.5.1 with torch 2.9.0"),
]


@pytest.mark.parametrize(("words", "versions", "code", "named"), ROWS)
def test_versions_that_do_not_fit_together_exit_with_3_and_are_named(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shelf: Shelf,
    words: str,
    versions: Mapping[str, str],
    code: str,
    named: str,
) -> None:
    ended, findings = ask_doctor(capfd, monkeypatch, shelf, words, versions)
    assert (ended, named in findings.get(code, "")) == (ExitCode.ENVIRONMENT, True), findings


DEFAULTS = {
    name: read_toolchain(name).default
    for name in ("qnn-sdk", "executorch", "android-ndk", "hexagon-sdk")
}
OF_PROFILE = {
    "aot": ("qnn-sdk", "executorch"),
    "direct --soc SM8850": ("qnn-sdk", "executorch", "android-ndk", "hexagon-sdk"),
}


@pytest.mark.parametrize("words", OF_PROFILE)
def test_default_versions_are_not_reported_as_a_wrong_pair(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shelf: Shelf, words: str
) -> None:
    versions = {name: DEFAULTS[name] for name in OF_PROFILE[words]}
    pairs = read_pairs()
    site = f"executorch={pairs.default},torch={pairs.find_torch()}"
    _, findings = ask_doctor(capfd, monkeypatch, shelf, words, {**versions, "site": site})
    assert not PAIRED & findings.keys()


def test_direct_mode_for_lpai_names_the_profile_that_has_its_libraries(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = main(["build", "direct", "--json", "--soc", "SM8850", "--dsp-type", "0"])
    error = json.loads(capfd.readouterr().out)
    assert (code, "fetch direct-lpai`" in error["fix"]) == (ExitCode.ENVIRONMENT, True)
    assert "qnn-sdk 2.43.0.260128" in error["what"]


def test_env_aot_exports_the_overlay_that_was_built_for_it(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shelf: Shelf,
    tmp_path: Path,
) -> None:
    libcxx = make_libcxx(tmp_path / "libcxx")
    monkeypatch.setenv("QNN_CI_LIBCXX_ROOT", str(libcxx))
    monkeypatch.setenv("QNN_SDK_ROOT", str(shelf.find("qnn-sdk", "2.37.0.250724")))
    monkeypatch.setenv("EXECUTORCH_ROOT", str(shelf.find("executorch", "1.5.1")))
    overlays = {}
    for name, executorch, sdk, python in (
        ("good", "1.5.1", "2.37.0.250724", python_tag()),
        ("other-checkout", "1.4.1", "2.37.0.250724", python_tag()),
        ("other-sdk", "1.5.1", "2.40.0", python_tag()),
        ("other-python", "1.5.1", "2.37.0.250724", "cpython-39"),
    ):
        overlays[name] = tmp_path / f"builds/aot-{name}/overlay"
        overlays[name].mkdir(parents=True)
        write_overlay(overlays[name], OverlayRecord(executorch, sdk, python))
    assert main(["env", "aot", "--json"]) == ExitCode.OK
    variables = json.loads(capfd.readouterr().out)["variables"]
    assert variables["PYTHONPATH"] == str(overlays["good"])
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert main(["env", "aot", "--shell"]) == ExitCode.OK
    assert f"export PYTHONPATH={overlays['good']}:/mine\n" in capfd.readouterr().out
    (overlays["good"] / "overlay.json").unlink()
    assert main(["env", "aot", "--json"]) == ExitCode.OK
    assert "PYTHONPATH" not in json.loads(capfd.readouterr().out)["variables"]


@pytest.mark.skipif(bool(missing_programs("make", "c++")), reason=missing_programs("make", "c++"))
def test_a_checkout_of_another_version_than_the_installed_wheel_is_no_overlay(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shelf: Shelf,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("QNN_CI_LIBCXX_ROOT", str(make_libcxx(tmp_path / "libcxx")))
    monkeypatch.setenv("QNN_SDK_ROOT", str(shelf.find("qnn-sdk", "2.37.0.250724")))
    monkeypatch.setenv("EXECUTORCH_ROOT", str(shelf.find("executorch", "1.4.1")))
    site = shelf.find("site", "executorch=1.5.1,torch=2.13.0,torchgen=2.13.0,yaml=6.0")
    monkeypatch.setenv("PYTHONPATH", str(site))
    words = ["build", "aot", "--json", "--no-doctor", "--dry-run", "--python", BARE]
    code = main(words)
    error = json.loads(capfd.readouterr().out)
    assert code == ExitCode.ENVIRONMENT
    assert re.findall(r"1\.\d\.1", error["what"]) == ["1.4.1", "1.5.1"]
    assert main([*words, "--install", "checkout"]) == ExitCode.OK
    monkeypatch.setenv("EXECUTORCH_ROOT", str(shelf.find("executorch", "1.5.1")))
    assert main(words) == ExitCode.OK
