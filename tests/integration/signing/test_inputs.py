"""What is signed, and every input check before the first one is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.stand_ins.dsp_toolchains import make_library
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import sign_elf

DIRECT = ["--lpai-arch", "v6", "--direct-mode", "--htp-arch", "v81"]


def words_for(toolchains: dict[str, Path]) -> list[str]:
    return [
        "--qnn-sdk", str(toolchains["qnn"]), "--hexagon-tools", str(toolchains["tools"]),
        "--build-dir", str(toolchains["build"]), "--out", "signed",
    ]  # fmt: skip


def test_usual_mode_signs_the_skel(verb, toolchains, tmp_path: Path) -> None:
    ended = verb.run("sign", "--lpai-arch", "v6", *words_for(toolchains))
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in sorted((tmp_path / "signed").glob("*.so*"))] == [
        "libQnnLpaiSkel.so"
    ]


def test_direct_mode_signs_six_libraries_and_the_op_package(
    verb, toolchains, tmp_path: Path
) -> None:
    words = [*DIRECT, "--op-package-dir", str(toolchains["package"]), *words_for(toolchains)]
    ended = verb.run("sign", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)["record"]
    assert [(one["name"], one["source"]) for one in record["libraries"]] == [
        ("libQnnLpai.so", "{qnn_sdk}/lib/lpai-v6/unsigned/libQnnLpai.so"),
        ("libQnnSystem.so", "{qnn_sdk}/lib/hexagon-v81/unsigned/libQnnSystem.so"),
        ("libc++abi.so.1", "{hexagon_tools}/Tools/target/hexagon/lib/v81/G0/pic/libc++abi.so.1"),
        ("libc++.so.1", "{hexagon_tools}/Tools/target/hexagon/lib/v81/G0/pic/libc++.so.1"),
        (
            "libqnn_executorch_skel.so",
            "{build}/backends/qualcomm/qnn_executorch/direct_mode/libqnn_executorch_skel.so",
        ),
        (
            "libqnn_executorch_backend.so",
            "{build}/backends/qualcomm/libqnn_executorch_backend.so",
        ),
        ("libLpaiOpPackageIsland.so", "{op_package}/libs/hexagon-v79/libLpaiOpPackageIsland.so"),
        (
            "libQnnExampleLpaiOpPackage.so",
            "{op_package}/libs/hexagon-v79/libQnnExampleLpaiOpPackage.so",
        ),
    ]
    assert (record["qnn_sdk"], record["hexagon_sdk"]) == ("2.49.40", "6.4.0.2")
    assert verb.run("verify-signature", "signed").returncode == 0


def test_all_missing_libraries_are_listed(verb, tmp_path: Path) -> None:
    for variable in ("HEXAGON_SDK_ROOT", "HEXAGON_TOOLS_ROOT"):
        verb.environment.pop(variable, None)
    words = (*DIRECT, "--qnn-sdk", tmp_path / "none", "--out", "signed")
    ended = verb.run("sign", *words, QNN_CI_HOME=str(tmp_path / "home"))
    assert ended.returncode == 3
    for part in (
        "6 of the libraries to sign are missing",
        "none/lib/lpai-v6/unsigned/libQnnLpai.so",
        "none/lib/hexagon-v81/unsigned/libQnnSystem.so",
        "libc++abi.so.1 of the Hexagon tools (--hexagon-tools or HEXAGON_TOOLS_ROOT is not set)",
        "libc++.so.1 of the Hexagon tools (--hexagon-tools or HEXAGON_TOOLS_ROOT is not set)",
        "build-direct/backends/qualcomm/qnn_executorch/direct_mode/libqnn_executorch_skel.so",
        "build-direct/backends/qualcomm/libqnn_executorch_backend.so",
    ):
        assert part in ended.stderr
    assert not (tmp_path / "signed").exists()


@pytest.mark.parametrize("version", ["2.37.0.250724", "2.38.9"])
def test_lpai_refuses_an_old_sdk_with_the_reason(verb, toolchains, version: str) -> None:
    (toolchains["qnn"] / "sdk.yaml").write_text(f"version: {version}\n")
    ended = verb.run("sign", "--lpai-arch", "v6", *words_for(toolchains))
    assert ended.returncode == 3
    assert f"QNN SDK {version} cannot be used for LPAI libraries" in ended.stderr
    assert "2.39 or later" in ended.stderr


def test_old_sdk_is_refused_even_without_its_lpai_libraries(verb, tmp_path: Path) -> None:
    sdk = tmp_path / "2.37.0.250724"
    sdk.mkdir()
    ended = verb.run("sign", "--lpai-arch", "v6", "--qnn-sdk", sdk)
    assert ended.returncode == 3
    assert "2.39 or later" in ended.stderr


def test_version_in_the_library_counts_when_the_sdk_says_none(verb, tmp_path: Path) -> None:
    sdk = tmp_path / "qnn"
    make_library(sdk / "lib/lpai-v6/unsigned/libQnnLpaiSkel.so", 0x79, "v2.37.0.250724175447")
    ended = verb.run("sign", "--lpai-arch", "v6", "--qnn-sdk", sdk)
    assert ended.returncode == 3
    assert "QNN SDK 2.37.0 cannot be used" in ended.stderr


def test_op_package_needs_a_later_sdk(verb, toolchains) -> None:
    (toolchains["qnn"] / "sdk.yaml").write_text("version: 2.48.0\n")
    words = ["--lpai-arch", "v6", "--op-package-dir", str(toolchains["package"])]
    ended = verb.run("sign", *words, *words_for(toolchains))
    assert ended.returncode == 3
    assert "QNN SDK 2.48.0 cannot be used for LPAI op packages" in ended.stderr


def test_all_unfit_inputs_are_listed(verb, toolchains, tmp_path: Path) -> None:
    qnn, build = toolchains["qnn"], toolchains["build"]
    make_library(qnn / "lib/hexagon-v81/unsigned/libQnnSystem.so", 0x79)
    make_library(qnn / "lib/lpai-v6/unsigned/libQnnLpai.so", 0x79, "v2.48.40.260601000000")
    signed = build / "backends/qualcomm/libqnn_executorch_backend.so"
    signed.write_bytes(sign_elf(signed.read_bytes(), make_key()))
    other = build / "backends/qualcomm/qnn_executorch/direct_mode/libqnn_executorch_skel.so"
    other.write_bytes((Path(__file__).parents[2] / "artifacts/elf/libaarch64.so").read_bytes())
    libcxx = toolchains["tools"] / "Tools/target/hexagon/lib/v81/G0/pic/libc++.so.1"
    libcxx.write_bytes(b"<html>no such file</html>")
    ended = verb.run("sign", *DIRECT, *words_for(toolchains))
    assert ended.returncode == 3
    for part in (
        "libQnnSystem.so: is Hexagon v79, its place says v81",
        "libQnnLpai.so: is from QNN v2.48.40.260601000000, others are not",
        "libqnn_executorch_backend.so: is already signed",
        "libqnn_executorch_skel.so: is of machine aarch64, not Hexagon",
        "libc++.so.1 is an HTML page",
    ):
        assert part in ended.stderr
    assert not (tmp_path / "signed").exists()


def test_same_name_from_two_places_is_refused(verb, libraries, tmp_path: Path) -> None:
    other = tmp_path / "other" / libraries[0].name
    make_library(other, 0x69)
    ended = verb.run("sign", *libraries, other)
    assert ended.returncode == 2
    assert "two libraries to sign have the same name: libfirst.so" in ended.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "nothing is selected"),
        (["--lpai-arch", "v5"], "LPAI architecture 'v5' is not supported"),
        (["--lpai-arch", "v6", "--direct-mode"], "--direct-mode needs"),
        (["--lpai-arch", "v6", "--htp-arch", "v99"], "no Hexagon architecture 'v99'"),
        (["--testsig", "1", "--timeout", "0"], "--timeout is not more than 0"),
        (["--testsig", "hello"], "the serial number is not a number"),
        (["--testsig", "0x123456789"], "does not fit in 32 bits"),
        (["--signer", "'", "--testsig", "1"], "cannot be split"),
    ],
)
def test_wrong_words_are_usage_errors(verb, words: list[str], part: str) -> None:
    ended = verb.run("sign", *words)
    assert ended.returncode == 2
    assert part in ended.stderr


def test_signing_into_an_sdk_is_refused(verb, toolchains, take_snapshot) -> None:
    qnn = toolchains["qnn"]
    before = take_snapshot(qnn)
    words = ["--lpai-arch", "v6", "--qnn-sdk", str(qnn), "--out", str(qnn / "lib/lpai-v6/signed")]
    ended = verb.run("sign", *words)
    assert ended.returncode == 2
    assert "never written into an SDK" in ended.stderr
    assert take_snapshot(qnn) == before


def test_existing_output_is_kept_unless_forced(verb, libraries, take_snapshot, tmp_path) -> None:
    out = tmp_path / "signed"
    words = ("sign", "--out", out, libraries[0])
    assert verb.run(*words).returncode == 0
    before = take_snapshot(out)
    ended = verb.run(*words)
    assert ended.returncode == 2
    assert "exists and is kept" in ended.stderr
    assert take_snapshot(out) == before
    assert verb.run("sign", "--force", "--out", out, libraries[1]).returncode == 0
    assert sorted(path.name for path in out.glob("*.so")) == ["libsecond.so"]


def test_old_hexagon_sdk_and_tools_are_notes(verb, toolchains, hexagon_sdk, tmp_path) -> None:
    words = [*DIRECT, *words_for(toolchains), "--dry-run"]
    tools = tmp_path / "HEXAGON_Tools"
    for sdk_version, tools_version, notes in (
        ("6.4.0.0", "19.0.04", []),
        ("6.0.0.2", "19.0.04", ["Hexagon SDK 6.0.0.2: the first known to work with v81 is 6.4.0"]),
        ("6.5.0.0", "8.8.02", ["Hexagon tools 8.8.02: the first known to work with v81 is 19.0"]),
    ):
        sdk, fitted = tmp_path / sdk_version, tools / tools_version
        sdk.mkdir()
        (sdk / "tools").symlink_to(hexagon_sdk / "tools")
        fitted.mkdir(parents=True, exist_ok=True)
        if not (fitted / "Tools").exists():
            (fitted / "Tools").symlink_to(toolchains["tools"] / "Tools")
        ended = verb.run("sign", *words, "--hexagon-sdk", sdk, "--hexagon-tools", fitted)
        assert ended.returncode == 0, ended.stderr
        assert re.findall(r"note: (.*: the first known.*)", ended.stderr) == notes


@pytest.mark.parametrize("version", ["v73", "v75", "v85", "v89"])
def test_every_hexagon_version_is_known(verb, toolchains, version: str) -> None:
    words = ["--lpai-arch", "v6", "--htp-arch", version, *words_for(toolchains), "--dry-run"]
    ended = verb.run("sign", *words)
    assert ended.returncode == 0, ended.stderr


def test_libraries_for_a_newer_dsp_than_that_of_lpai_are_noted(verb, toolchains) -> None:
    words = [*words_for(toolchains), "--dry-run"]
    mixed = verb.run("sign", *DIRECT, *words)
    assert mixed.returncode == 0
    notes = [line for line in mixed.stderr.splitlines() if "does not load it" in line]
    assert len(notes) == 5
    assert "note: libQnnSystem.so is Hexagon V81, libQnnLpai.so V79" in notes[0]
    make_library(toolchains["qnn"] / "lib/lpai-v6/unsigned/libQnnLpai.so", 0x81)
    assert "does not load it" not in verb.run("sign", *DIRECT, *words).stderr


def test_damaged_skel_is_not_signed(verb, skels, tmp_path: Path) -> None:
    good, bad = tmp_path / "good" / skels["v79"].name, tmp_path / "bad" / skels["v79"].name
    for path in (good, bad):
        path.parent.mkdir()
        path.write_bytes(skels["v79"].read_bytes())
    data = bytearray(bad.read_bytes())
    data[len(data) // 2] ^= 1
    bad.write_bytes(data)
    assert verb.run("sign", "--out", "signed", good).returncode == 0
    ended = verb.run("sign", "--out", "other", bad)
    assert ended.returncode == 3
    assert f"{bad}: is damaged: its checksum (SWIV) is " in ended.stderr
    assert not (tmp_path / "other").exists()


def test_sdk_yaml_that_is_not_text_is_an_error_with_its_name(verb, toolchains) -> None:
    (toolchains["qnn"] / "sdk.yaml").write_bytes(b"version: \xff\xfe2.49\n")
    ended = verb.run("sign", "--lpai-arch", "v6", *words_for(toolchains))
    assert ended.returncode == 3
    assert "qairt/sdk.yaml cannot be read" in ended.stderr


def test_no_name_of_a_root_is_left_in_what_is_shown(verb, toolchains) -> None:
    shown = verb.run("sign", *DIRECT, *words_for(toolchains), "--dry-run")
    assert str(toolchains["qnn"] / "lib/lpai-v6/unsigned/libQnnLpai.so") in shown.stdout
    for variable in ("HEXAGON_SDK_ROOT", "HEXAGON_TOOLS_ROOT"):
        verb.environment.pop(variable, None)
    missing = verb.run("sign", *DIRECT, "--out", "signed", QNN_CI_HOME=str(verb.directory / "home"))
    assert missing.returncode == 3
    assert (
        "lib/lpai-v6/unsigned/libQnnLpai.so of the QNN SDK (--qnn-sdk or QNN_SDK_ROOT is not set)"
        in missing.stderr
    )
    for ended in (shown, missing):
        assert "{" not in ended.stdout + ended.stderr
