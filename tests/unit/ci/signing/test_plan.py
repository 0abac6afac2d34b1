"""The plan of a run: every check of the request, the inputs and the target, before any signing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.signing.inputs import (
    Input,
    _read_input,
    check_sdk_version,
    explain_file,
    find_sdk_version,
    read_directory_version,
)
from ci.signing.plan import Roots, SignRequest, check_target, list_version_notes, make_plan
from ci.signing.segments import parse_image
from ci.signing.selection import Selection, Wanted, read_signing_policy
from provisioning.errors import QnnCiError, UnfitError, UsageError
from tests.stand_ins.dsp_toolchains import LIBRARY, make_inputs, make_library
from tests.stand_ins.elf_edits import add_swiv
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf
from tests.stand_ins.elfsigner.spoil import put

BUILDS = ("v2.49.40.260810104044", "v2.48.40.260601000000")
FILE = Selection(files=(LIBRARY,))


def request(tmp_path: Path, selection: Selection = FILE, **more: Any) -> SignRequest:
    return SignRequest(selection, **{"roots": Roots(), "target": tmp_path / "out", **more})


def refuse(tmp_path: Path, kind: type[QnnCiError], *args: Selection, **more: Any) -> QnnCiError:
    with pytest.raises(kind) as caught:
        make_plan(request(tmp_path, *args, **more))
    return caught.value


def test_a_plan_of_everything_has_its_notes(tmp_path: Path) -> None:
    found = make_inputs(tmp_path)
    roots = Roots(
        qnn_sdk=found["qnn"],
        hexagon_sdk=tmp_path / "6.0.0.2",
        hexagon_tools=found["tools"],
        build=found["build"],
    )
    plan = make_plan(request(tmp_path, Selection("v6", "v81", True), roots=roots))
    names = [one.wanted.name for one in plan.inputs]
    assert names == [
        "libQnnLpai.so",
        "libQnnSystem.so",
        "libc++abi.so.1",
        "libc++.so.1",
        "libqnn_executorch_skel.so",
        "libqnn_executorch_backend.so",
    ]
    assert plan.notes[0].startswith("Hexagon SDK 6.0.0.2:")
    for name, note in zip(names[1:], plan.notes[1:], strict=True):
        assert note.startswith(f"{name} is built for Hexagon V81")
        assert "libQnnLpai.so is only V79" in note


@pytest.mark.parametrize(("hexagon", "notes"), [(0x75, 0), (0x79, 0), (0x81, 1)])
def test_only_a_newer_hexagon_than_lpai_s_is_noted(
    tmp_path: Path, hexagon: int, notes: int
) -> None:
    libraries = {"libQnnLpai.so": 0x79, "libc++.so.1": hexagon, "b.so": hexagon, "a.so": 0x79}
    files = [tmp_path / name for name in libraries]
    for path in files:
        make_library(path, libraries[path.name])
    plan = make_plan(request(tmp_path, Selection(files=tuple(files[:2]))))
    assert len(plan.notes) == notes
    assert make_plan(request(tmp_path, Selection(files=tuple(files[2:])))).notes == ()


def test_each_check_of_a_request(tmp_path: Path) -> None:
    for timeout_s in (0, -1, float("nan")):
        assert "--timeout" in refuse(tmp_path, UsageError, timeout_s=timeout_s).what
    make_plan(request(tmp_path, timeout_s=0.1))
    refuse(tmp_path, UsageError, Selection())
    refuse(tmp_path, UsageError, Selection(direct_mode=True), serial="0x1")
    assert make_plan(request(tmp_path, Selection(), serial="0x1")).inputs == ()
    (tmp_path / "there").mkdir()
    refuse(tmp_path, UsageError, target=tmp_path / "there")
    make_plan(request(tmp_path, target=tmp_path / "there", force=True, roots=Roots(build=tmp_path)))
    for root in ("qnn_sdk", "hexagon_sdk", "hexagon_tools"):
        roots = Roots(**{root: tmp_path / "there"})
        refuse(tmp_path, UsageError, target=tmp_path / "there/out", force=True, roots=roots)


def test_libraries_that_cannot_be_signed_are_all_listed(
    tmp_path: Path, key: Key, library: bytes
) -> None:
    folder = tmp_path / "hexagon-v75" / "unsigned"
    make_library(folder / "a.so", 0x79)
    make_library(folder / "b.so", 0x75, BUILDS[1])
    make_library(folder / "f.so", 0x75, "")
    (folder / "c.so").write_bytes(sign_elf(put(library, 36, "<I", 0x75), key))
    (folder / "d.so").write_bytes(put(library, 18, "<H", 62))
    (folder / "e.so").write_bytes(put(library, 18, "<H", 7))

    files = tuple(sorted(folder.iterdir()))
    lines = refuse(tmp_path, UnfitError, Selection(files=files)).why.split("\n       ")
    assert sorted(line.removeprefix(f"{folder}/") for line in lines) == [
        "a.so: built for Hexagon v79, not for v75",
        f"a.so: from QNN {BUILDS[0]}; all libraries must be from the same version",
        f"b.so: from QNN {BUILDS[1]}; all libraries must be from the same version",
        "c.so: already signed",
        f"c.so: from QNN {BUILDS[0]}; all libraries must be from the same version",
        "d.so: built for x86-64, not for Hexagon",
        "e.so: built for e_machine 7, not for Hexagon",
    ]


def test_a_library_whose_checksum_is_wrong_is_not_signed(tmp_path: Path) -> None:
    data = bytearray(LIBRARY.read_bytes())
    add_swiv(data)
    whole, damaged = tmp_path / "a.so", tmp_path / "b.so"
    whole.write_bytes(data)
    image = parse_image(memoryview(data))
    data[next(image.loadable()).end - 1] ^= 1
    damaged.write_bytes(data)
    assert len(make_plan(request(tmp_path, Selection(files=(whole,)))).inputs) == 1
    why = refuse(tmp_path, UnfitError, Selection(files=(whole, damaged))).why
    assert why.startswith(f"{damaged}: damaged; its checksum (SWIV) is ")
    assert str(whole) not in why


@pytest.mark.parametrize(
    ("sdk_yaml", "builds", "version"),
    [
        ("2.37.0", BUILDS, "2.37.0"),
        ("", BUILDS, "2.49.40"),
        ("", ("", BUILDS[1]), "2.48.40"),
        ("", ("", ""), "2.30.0"),
        ("", (), "2.30.0"),
    ],
)
def test_the_version_of_an_sdk_is_its_own_then_a_library_s_then_that_of_its_place(
    tmp_path: Path, sdk_yaml: str, builds: tuple[str, ...], version: str
) -> None:
    root = tmp_path / "2.30.0"
    root.mkdir()
    if sdk_yaml:
        (root / "sdk.yaml").write_text(f"version: {sdk_yaml}\n")
    inputs = []
    for number, build in enumerate(builds):
        make_library(tmp_path / f"{number}.so", 0x79, build)
        one = _read_input(Wanted(tmp_path / f"{number}.so", f"{number}.so", ""))
        assert isinstance(one, Input)
        assert one.qnn_build == build
        inputs.append(one)
    assert find_sdk_version(root, inputs).startswith(version)
    assert find_sdk_version(None, inputs).startswith("" if "2.30" in version else "2.4")


def test_a_library_that_names_no_build_fits_any(tmp_path: Path) -> None:
    """The third that names one is compared, too."""
    files = [tmp_path / f"{name}.so" for name in "abcd"]
    for path, build in zip(files, (BUILDS[0], "", BUILDS[0], BUILDS[1]), strict=True):
        make_library(path, 0x79, build)
    assert len(make_plan(request(tmp_path, Selection(files=tuple(files[:3])))).inputs) == 3
    assert f"d.so: from QNN {BUILDS[1]}" in (
        refuse(tmp_path, UnfitError, Selection(files=tuple(files))).why
    )


def test_what_a_file_is_that_does_not_parse(tmp_path: Path) -> None:
    page = tmp_path / "a.so"
    page.write_text("<!DOCTYPE html><html>not found</html>")
    assert "HTML" in explain_file(page)
    assert "HTML" in refuse(tmp_path, UnfitError, Selection(files=(page,))).why
    assert explain_file(LIBRARY) == ""


@pytest.mark.parametrize(
    ("sdk_yaml", "build", "selection", "refused"),
    [
        ("2.37.0", BUILDS[0], "lpai", "2.37.0 cannot be used for LPAI libraries"),
        ("2.48.0", BUILDS[0], "package", "2.48.0 cannot be used for LPAI op packages"),
        ("2.48.0", BUILDS[0], "both", "2.48.0 cannot be used for LPAI op packages"),
        # Without an sdk.yaml the libraries tell; with one it counts before them.
        ("", BUILDS[1], "package", "2.48.40 cannot be used for LPAI op packages"),
        ("2.50.0", BUILDS[1], "package", ""),
        ("", BUILDS[0], "package", ""),
    ],
)
def test_an_sdk_that_is_too_old_is_refused(
    tmp_path: Path, sdk_yaml: str, build: str, selection: str, refused: str
) -> None:
    make_library(tmp_path / "package/a.so", 0x79, build)
    (tmp_path / "qnn").mkdir()
    if sdk_yaml:
        (tmp_path / "qnn/sdk.yaml").write_text(f"version: {sdk_yaml}\n")
    package = tmp_path / "package"
    selected = {
        "lpai": Selection("v6"),
        "package": Selection(op_package=package),
        "both": Selection("v6", op_package=package),
    }
    roots = Roots(qnn_sdk=tmp_path / "qnn")
    if refused:
        error = refuse(tmp_path, UnfitError, selected[selection], roots=roots)
        assert error.what == f"QNN SDK {refused}"
        assert ("2.39" if selection == "lpai" else "2.49") in error.fix
    else:
        make_plan(request(tmp_path, selected[selection], roots=roots))


@pytest.mark.parametrize(
    ("version", "selection", "needs"),
    [
        ("2.30.0", FILE, ""),
        ("2.38.9", Selection("v6"), "LPAI libraries"),
        ("2.39.0", Selection("v6"), ""),
        ("2.48.0", Selection(op_package=Path("p")), "LPAI op packages"),
        ("2.49.0", Selection(op_package=Path("p")), ""),
        ("2.48.0", Selection("v6", op_package=Path("p")), "LPAI op packages"),
        ("", Selection("v6", op_package=Path("p")), ""),
    ],
)
def test_a_selection_needs_an_sdk_from_its_own_version_on(
    version: str, selection: Selection, needs: str
) -> None:
    policy = read_signing_policy()
    if not needs:
        check_sdk_version(version, selection, policy)
        return
    with pytest.raises(UnfitError, match=f"QNN SDK {version} cannot be used for {needs}"):
        check_sdk_version(version, selection, policy)


@pytest.mark.parametrize(
    ("target", "force", "part"),
    [
        ("sdk/out", True, "is inside"),
        ("sdk", True, "is inside"),
        ("to-sdk/out", True, "is inside"),
        ("linked/real/out", True, "is inside"),
        ("linked", True, "contains"),
        (".", True, "contains"),
        ("linked/other", True, ""),
        ("file", True, "is a file or a symbolic link"),
        ("link", True, "is a file or a symbolic link"),
        ("dangling", True, "is a file or a symbolic link"),
        ("there", False, "already exists"),
        ("there", True, ""),
        ("signed", True, ""),
        ("thesis", True, "was not created"),
        ("new", False, ""),
        ("sdk-signed", False, ""),
    ],
)
def test_a_target_is_no_sdk_no_file_and_new_or_forced(
    tmp_path: Path, target: str, force: bool, part: str
) -> None:
    for folder in ("sdk", "there", "linked/real"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "to-sdk").symlink_to(tmp_path / "sdk")
    (tmp_path / "to-real").symlink_to(tmp_path / "linked/real")
    roots = (tmp_path / "sdk", tmp_path / "to-real")
    for name in ("signed/signing.json", "signed/lib.so", "thesis/thesis.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    def check() -> None:
        check_target(tmp_path / target, force=force, protected=iter(roots))

    if not part:
        check()
        return
    with pytest.raises(UsageError, match=part):
        check()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("2.37.0.250724", "2.37.0.250724"),
        ("hexagon-sdk-6.5.0.0-0123456789ab/hexagon-sdk", "6.5.0.0"),
        ("qnn-sdk-2.39.0.250926-deadbeef0123/qnn-sdk", "2.39.0.250926"),
        ("qairt", ""),
    ],
)
def test_the_version_of_a_directory(tmp_path: Path, name: str, version: str) -> None:
    assert read_directory_version(tmp_path / name) == version
    (tmp_path / "current").symlink_to(tmp_path / name)
    assert read_directory_version(tmp_path / "current") == version
    assert read_directory_version(None) == ""


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
def test_an_sdk_or_tools_older_than_the_first_known_are_noted(
    tmp_path: Path, arch: str, sdk: str, tools: str, noted: list[str]
) -> None:
    roots = Roots(hexagon_sdk=tmp_path / sdk, hexagon_tools=tmp_path / tools)
    notes = list_version_notes(arch, roots)
    assert [note.partition(":")[0] for note in notes] == noted
