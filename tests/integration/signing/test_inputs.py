"""What is signed, and every input check before the first one is."""

from __future__ import annotations

import json
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
        ("libqnn_executorch_backend.so", "{build}/backends/qualcomm/libqnn_executorch_backend.so"),
        ("libLpaiOpPackageIsland.so", "{op_package}/libs/hexagon-v79/libLpaiOpPackageIsland.so"),
        (
            "libQnnExampleLpaiOpPackage.so",
            "{op_package}/libs/hexagon-v79/libQnnExampleLpaiOpPackage.so",
        ),
    ]
    assert (record["qnn_sdk"], record["hexagon_sdk"]) == ("2.49.40", "6.4.0.2")
    assert verb.run("verify-signature", "signed").returncode == 0


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


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "nothing is selected"),
        (["--lpai-arch", "v6", "--direct-mode"], "--direct-mode needs"),
        (["--testsig", "1", "--timeout", "0"], "--timeout is not more than 0"),
        (["--testsig", "hello"], "the serial number is not a number"),
        (["--signer", "'", "--testsig", "1"], "cannot be split"),
    ],
)
def test_wrong_arguments_are_usage_errors(verb, words: list[str], part: str) -> None:
    ended = verb.run("sign", *words)
    assert ended.returncode == 2
    assert part in ended.stderr


def test_unfit_inputs_are_all_listed_and_nothing_is_written(verb, toolchains, take_snapshot):
    """One by one they are in tests/unit/ci/signing/test_plan.py."""
    qnn, build = toolchains["qnn"], toolchains["build"]
    make_library(qnn / "lib/hexagon-v81/unsigned/libQnnSystem.so", 0x79)
    signed = build / "backends/qualcomm/libqnn_executorch_backend.so"
    signed.write_bytes(sign_elf(signed.read_bytes(), make_key()))
    libcxx = toolchains["tools"] / "Tools/target/hexagon/lib/v81/G0/pic/libc++.so.1"
    libcxx.write_bytes(b"<html>no such file</html>")
    before = take_snapshot(verb.directory)
    ended = verb.run("sign", *DIRECT, *words_for(toolchains))
    assert ended.returncode == 3
    for part in (
        "libQnnSystem.so: is Hexagon v79, its place says v81",
        "libqnn_executorch_backend.so: is already signed",
        "libc++.so.1 is an HTML page",
    ):
        assert part in ended.stderr
    assert take_snapshot(verb.directory) == before


def test_missing_libraries_are_listed_with_their_roots_by_name(verb, toolchains) -> None:
    shown = verb.run("sign", *DIRECT, *words_for(toolchains), "--dry-run")
    assert shown.returncode == 0
    assert str(toolchains["qnn"] / "lib/lpai-v6/unsigned/libQnnLpai.so") in shown.stdout
    assert shown.stderr.count("does not load it") == 5
    for variable in ("HEXAGON_SDK_ROOT", "HEXAGON_TOOLS_ROOT"):
        verb.environment.pop(variable, None)
    missing = verb.run("sign", *DIRECT, "--out", "signed", QNN_CI_HOME=str(verb.directory / "home"))
    assert missing.returncode == 3
    assert "4 of the libraries to sign are missing" in missing.stderr
    assert "libQnnLpai.so of the QNN SDK (--qnn-sdk or QNN_SDK_ROOT is not set)" in missing.stderr
    for ended in (shown, missing):
        assert "{" not in ended.stdout + ended.stderr


def test_an_sdk_is_neither_too_old_nor_written_into(verb, toolchains, take_snapshot) -> None:
    qnn = toolchains["qnn"]
    before = take_snapshot(qnn)
    words = ["--lpai-arch", "v6", "--qnn-sdk", str(qnn)]
    inside = verb.run("sign", *words, "--out", qnn / "lib/lpai-v6/signed")
    assert inside.returncode == 2
    assert "never written into an SDK" in inside.stderr
    assert take_snapshot(qnn) == before
    (qnn / "sdk.yaml").write_text("version: 2.38.9\n")
    old = verb.run("sign", *words)
    assert (old.returncode, "2.39 or later" in old.stderr) == (3, True)
    (qnn / "sdk.yaml").write_bytes(b"version: \xff\xfe2.49\n")
    unreadable = verb.run("sign", *words)
    assert unreadable.returncode == 3
    assert "qairt/sdk.yaml cannot be read" in unreadable.stderr
