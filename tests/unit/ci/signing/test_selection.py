"""Places, the policy's data, and versions that they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.signing.inputs import read_directory_version
from ci.signing.plan import list_version_notes
from ci.signing.policy import read_signing_policy
from ci.signing.roots import Roots
from ci.signing.selection import list_op_package, read_place
from provisioning.manifest.pairs import read_pairs


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("qairt/lib/hexagon-v75/unsigned/libQnnSystem.so", "v75"),
        ("tools/Tools/target/hexagon/lib/v81/G0/pic/libc++.so.1", "v81"),
        ("somewhere/libQnnHtpV79Skel.so", "v79"),
        ("qairt/lib/lpai-v6/unsigned/libQnnLpai.so", ""),
        ("v2/build/libmine.so", ""),
    ],
)
def test_version_that_a_place_says(path: str, version: str) -> None:
    assert read_place(Path(path)) == version


def test_policy_lists_what_is_signed() -> None:
    policy = read_signing_policy()
    assert [Path(one.path).name for one in policy.usual] == ["libQnnLpaiSkel.so"]
    assert {Path(one.path).name for one in policy.direct} == {
        "libQnnLpai.so",
        "libQnnSystem.so",
        "libc++abi.so.1",
        "libc++.so.1",
        "libqnn_executorch_skel.so",
        "libqnn_executorch_backend.so",
    }
    known = [row.arch for row in read_pairs().hexagon]
    assert len(known) == len(set(known))
    assert {"v73", "v75", "v79", "v81", "v85"} <= set(known) <= set(policy.hexagon_architectures)


def test_op_package_takes_hexagon_libraries_only(tmp_path: Path) -> None:
    for name in ("libs/hexagon-v79/liba.so", "libs/x86_64-linux-clang/liba.so", "libb.so"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    policy = read_signing_policy()
    found = list_op_package(tmp_path, policy)
    assert [(one.label, one.hexagon) for one in found] == [
        ("{op_package}/libs/hexagon-v79/liba.so", "v79")
    ]
    plain = list_op_package(tmp_path / "libs" / "x86_64-linux-clang", policy)
    assert [one.name for one in plain] == ["liba.so"]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("2.37.0.250724", "2.37.0.250724"),
        ("hexagon-sdk-6.5.0.0-0123456789ab/hexagon-sdk", "6.5.0.0"),
        ("qnn-sdk-2.39.0.250926-deadbeef0123/qnn-sdk", "2.39.0.250926"),
        ("qairt", ""),
    ],
)
def test_version_of_a_directory(tmp_path: Path, name: str, version: str) -> None:
    assert read_directory_version(tmp_path / name) == version


@pytest.mark.parametrize(
    ("arch", "sdk", "tools", "noted"),
    [
        ("v81", "6.0.0.2", "19.0.04", ["Hexagon SDK 6.0.0.2"]),
        ("v81", "6.4.0.2", "19.0.04", []),
        ("v81", "6.4.0.2", "8.8.02", ["Hexagon tools 8.8.02"]),
        ("v79", "6.0.0", "8.8", []),
        ("v75", "1.0", "8.6.02", ["Hexagon SDK 1.0", "Hexagon tools 8.6.02"]),
        ("v73", "1.0", "8.6.02", []),  # no SDK is known to be the first
        ("v89", "1.0", "1.0", []),
        ("", "1.0", "1.0", []),
    ],
)
def test_versions_table_notes_what_is_older(
    tmp_path: Path, arch: str, sdk: str, tools: str, noted: list[str]
) -> None:
    roots = Roots(hexagon_sdk=tmp_path / sdk, hexagon_tools=tmp_path / tools)
    notes = list_version_notes(arch, roots)
    assert [note.partition(":")[0] for note in notes] == noted
