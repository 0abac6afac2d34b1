"""What is signed, and what is not; the checks one by one are in tests/unit/ci/signing."""

from __future__ import annotations

import json
from pathlib import Path

DIRECT = ["--lpai-arch", "v6", "--direct-mode", "--htp-arch", "v81"]


def words_for(toolchains: dict[str, Path]) -> list[str]:
    return [
        "--qnn-sdk", str(toolchains["qnn"]), "--hexagon-tools", str(toolchains["tools"]),
        "--build-dir", str(toolchains["build"]), "--out", "signed",
    ]  # fmt: skip


def test_direct_mode_signs_six_libraries_and_the_op_package(
    verb, toolchains, tmp_path: Path
) -> None:
    words = [*DIRECT, "--op-package-dir", str(toolchains["package"]), *words_for(toolchains)]
    ended = verb.run("sign", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)["record"]
    assert [(library["name"], library["source"]) for library in record["libraries"]] == [
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
    assert verb.run("sign", "--verify", "signed").returncode == 0


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
    assert f"{bad}: damaged; its checksum (SWIV) is " in ended.stderr
    assert not (tmp_path / "other").exists()
