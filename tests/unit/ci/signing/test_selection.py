"""What is selected to be signed: libraries of the policy by their places, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.signing.selection import (
    Selection,
    check_selection,
    list_op_package,
    list_wanted,
    read_place,
    read_signing_policy,
)
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.pairs import read_pairs
from tests.stand_ins.dsp_toolchains import LIBRARY, make_inputs, make_library

POLICY = read_signing_policy()
DIRECT = Selection(lpai_arch="v6", htp_arch="v81", direct_mode=True)


@pytest.mark.parametrize(
    ("selection", "part"),
    [
        (Selection(direct_mode=True, htp_arch="v81"), "no library to sign"),
        (Selection(lpai_arch="v5"), "LPAI architecture 'v5'"),
        (Selection(lpai_arch="v6", direct_mode=True), "--direct-mode needs"),
        (Selection(files=(Path("a"),), direct_mode=True, htp_arch="v81"), "--direct-mode needs"),
        (Selection(lpai_arch="v6", htp_arch="v80"), "Hexagon architecture 'v80' is unknown"),
        (Selection(lpai_arch="v6"), ""),
        (Selection(files=(Path("a"),)), ""),
        (Selection(op_package=Path("a")), ""),
        (Selection(lpai_arch="v6", htp_arch="v81"), ""),
        (DIRECT, ""),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(selection: Selection, part: str) -> None:
    if not part:
        check_selection(selection, POLICY)
        return
    with pytest.raises(UsageError) as caught:
        check_selection(selection, POLICY)
    assert caught.value.what.startswith(part)


def test_the_policy_lists_what_is_signed() -> None:
    assert [Path(one.path).name for one in POLICY.usual] == ["libQnnLpaiSkel.so"]
    known = [row.arch for row in read_pairs().hexagon]
    assert len(known) == len(set(known))
    assert {"v73", "v75", "v79", "v81", "v85"} <= set(known) <= set(POLICY.hexagon_architectures)


def test_libraries_are_labelled_by_their_roots(tmp_path: Path) -> None:
    """One library of the build is elsewhere below it: it is found by its name."""
    found = make_inputs(tmp_path)
    moved = found["build"] / "other/libqnn_executorch_skel.so"
    moved.parent.mkdir()
    (found["build"] / "backends/qualcomm/qnn_executorch/direct_mode" / moved.name).rename(moved)
    roots = {"qnn_sdk": found["qnn"], "hexagon_tools": found["tools"], "build": found["build"]}
    selection = Selection("v6", "v81", True, found["package"], (LIBRARY,))

    wanted = list_wanted(selection, POLICY, roots)
    pic = "Tools/target/hexagon/lib/v81/G0/pic"
    assert [(one.label, one.hexagon) for one in wanted] == [
        ("{qnn_sdk}/lib/lpai-v6/unsigned/libQnnLpai.so", ""),
        ("{qnn_sdk}/lib/hexagon-v81/unsigned/libQnnSystem.so", "v81"),
        (f"{{hexagon_tools}}/{pic}/libc++abi.so.1", "v81"),
        (f"{{hexagon_tools}}/{pic}/libc++.so.1", "v81"),
        ("{build}/other/libqnn_executorch_skel.so", "v81"),
        ("{build}/backends/qualcomm/libqnn_executorch_backend.so", "v81"),
        (LIBRARY.as_posix(), ""),
        ("{op_package}/libs/hexagon-v79/libLpaiOpPackageIsland.so", "v79"),
        ("{op_package}/libs/hexagon-v79/libQnnExampleLpaiOpPackage.so", "v79"),
    ]
    assert wanted[4].path == moved
    make_library(found["build"] / "third" / moved.name, 0x81)
    with pytest.raises(UnfitError, match=moved.name):  # two of a name are not guessed
        list_wanted(selection, POLICY, roots)


def test_missing_libraries_are_named_by_what_would_hold_them(tmp_path: Path) -> None:
    roots = {"qnn_sdk": None, "hexagon_tools": tmp_path, "build": tmp_path}
    make_library(tmp_path / "mine/libQnnLpai.so", 0x79)  # no library of the build
    selection = Selection("v6", "v81", True, tmp_path / "op")

    with pytest.raises(UnfitError) as caught:
        list_wanted(selection, POLICY, roots)
    lines = caught.value.why.split("\n       ")
    assert len(lines) == 7
    assert lines[0] == (
        "lib/lpai-v6/unsigned/libQnnLpai.so in the QNN SDK (set --qnn-sdk or QNN_SDK_ROOT)"
    )
    assert lines[2] == f"{tmp_path}/Tools/target/hexagon/lib/v81/G0/pic/libc++abi.so.1"
    assert lines[6] == f"{tmp_path}/op (not found)"
    (tmp_path / "op").mkdir()
    with pytest.raises(UnfitError) as caught:
        list_wanted(Selection(op_package=tmp_path / "op"), POLICY, roots)
    assert caught.value.why == f"{tmp_path}/op (contains no library to sign)"
    with pytest.raises(UnfitError) as caught:
        list_wanted(DIRECT, POLICY, dict.fromkeys(roots))
    lines = caught.value.why.split("\n       ")
    pic = "Tools/target/hexagon/lib/v81/G0/pic"
    assert lines[2] == (
        f"{pic}/libc++abi.so.1 in the Hexagon tools (set --hexagon-tools or HEXAGON_TOOLS_ROOT)"
    )
    assert lines[5] == "{build}/backends/qualcomm/libqnn_executorch_backend.so"


def test_two_libraries_of_one_name_are_named(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a/x.so", "b/y.so", "c/x.so", "d/z.so", "e/y.so")]
    for path in files:
        make_library(path, 0x79)

    with pytest.raises(UsageError, match=r"same name: x\.so, y\.so") as caught:
        list_wanted(Selection(files=tuple(files)), POLICY, {})
    assert caught.value.why == "; ".join(str(path) for path in files if path.name != "z.so")
    wanted = list_wanted(Selection(files=tuple(files[1:4])), POLICY, {})
    assert [one.name for one in wanted] == ["y.so", "x.so", "z.so"]


def test_an_op_package_gives_hexagon_libraries_only(tmp_path: Path) -> None:
    for name in ("libs/hexagon-v79/liba.so", "libs/x86_64-linux-clang/liba.so", "libb.so"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = list_op_package(tmp_path, POLICY)
    assert [(one.label, one.hexagon) for one in found] == [
        ("{op_package}/libs/hexagon-v79/liba.so", "v79")
    ]
    plain = list_op_package(tmp_path / "libs" / "x86_64-linux-clang", POLICY)
    assert [one.name for one in plain] == ["liba.so"]
    names = [f"lib{letter}.so" for letter in "hbfaecgd"]
    for name in names:
        (tmp_path / "libs/hexagon-v79" / name).touch()
    (tmp_path / "libs/hexagon-v79/libz.so").mkdir()
    assert [one.name for one in list_op_package(tmp_path, POLICY)] == sorted(names)


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("qairt/lib/hexagon-v75/unsigned/libQnnSystem.so", "v75"),
        ("tools/Tools/target/hexagon/lib/v81/G0/pic/libc++.so.1", "v81"),
        ("somewhere/libQnnHtpV79Skel.so", "v79"),
        ("hexagon-v75/unsigned/hexagon-v79/unsigned/lib.so", "v79"),
        ("qairt/lib/lpai-v6/unsigned/libQnnLpai.so", ""),
        ("v2/build/libmine.so", ""),
        ("build/hexagon-v75", ""),
        ("v75/libmine.so", "v75"),
        ("x-v75/libmine.so", ""),
    ],
)
def test_the_version_that_a_place_says(path: str, version: str) -> None:
    assert read_place(Path(path)) == version
