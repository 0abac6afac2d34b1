"""The plan of a run: the libraries that are selected, and every check before any signing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.signing.mbn import parse_image
from ci.signing.plan import VARIABLES, Roots, SignPlan, SignRequest, find_roots, make_plan
from ci.signing.selection import Selection, SigningPolicy, list_requested
from provisioning.artifacts.environment import profile_requests
from provisioning.artifacts.sources import Options
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from provisioning.manifest.reader import read_policy, read_profile
from provisioning.store.store import Store
from provisioning.store.tree import Tree
from tests.build.signing import outcome, show
from tests.stand_ins.dsp_toolchains import LIBRARY, make_inputs, make_library
from tests.stand_ins.elf_edits import add_swiv
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf
from tests.stand_ins.elfsigner.spoil import put
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
POLICY = read_policy("signing", SigningPolicy)
BUILDS = ("v2.49.40.260810104044", "v2.48.40.260601000000")
FILE = Selection(files=(LIBRARY,))
DIRECT = Selection("v6", "v81", True)
ALL = set(VARIABLES)
PIC = "Tools/target/hexagon/lib/v81/G0/pic"


@pytest.fixture(autouse=True)
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def plan(tmp_path: Path, selection: Selection = FILE, **changes: Any) -> SignPlan:
    fields = {"roots": Roots(), "target": tmp_path / "out", **changes}
    return make_plan(SignRequest(selection, **fields))


def judge(tmp_path: Path, selection: Selection = FILE, **changes: Any) -> str:
    """The names of the libraries and the notes of a plan, or why there is none."""

    def describe() -> str:
        sign_plan = plan(tmp_path, selection, **changes)
        names = ", ".join(entry.requested.name for entry in sign_plan.inputs) or "no library"
        return "\n".join([f"signs {names}", *sign_plan.notes])

    text = str(outcome(describe))
    return text.replace(str(tmp_path), "TMP").replace(str(LIBRARY.parent), "ELF")


# What is selected


def test_selections_of_libraries_to_sign_read_as_their_snapshot(tmp_path: Path) -> None:
    folders = make_inputs(tmp_path)
    (tmp_path / "empty").mkdir()
    roots = Roots(folders["qnn"], tmp_path / "6.0.0.2", folders["tools"], folders["build"])
    files = (LIBRARY,)
    selections = {
        "LPAI": Selection("v6"),
        "LPAI with a Hexagon architecture": Selection("v6", "v81"),
        "direct mode": DIRECT,
        "an op package": Selection(op_package=folders["package"]),
        "a file": FILE,
        "LPAI, an op package and a file": Selection("v6", "", False, folders["package"], files),
        "nothing": Selection(),
        "only a mode": Selection(htp_arch="v81", direct_mode=True),
        "another LPAI": Selection("v5"),
        "direct mode without a Hexagon architecture": Selection("v6", direct_mode=True),
        "direct mode without LPAI": Selection("", "v81", True, files=files),
        "another Hexagon architecture": Selection("v6", "v80"),
        "an op package that is missing": Selection(op_package=tmp_path / "none"),
        "an op package without libraries": Selection(op_package=tmp_path / "empty"),
    }
    texts = {
        name: judge(tmp_path, selection, roots=roots) for name, selection in selections.items()
    }
    (tmp_path / "old").mkdir()
    (tmp_path / "old/sdk.yaml").write_text("version: 2.37.0\n")
    texts |= {
        "LPAI of an SDK that is too old and lacks it": judge(
            tmp_path, Selection("v6"), roots=Roots(qnn_sdk=tmp_path / "old")
        ),
        "direct mode without roots": judge(tmp_path, DIRECT),
        "direct mode without a QNN SDK": judge(
            tmp_path, DIRECT, roots=Roots(hexagon_tools=folders["tools"], build=tmp_path / "empty")
        ),
        "a test signature alone": judge(tmp_path, Selection(), serial="0x1"),
        "a test signature and only a mode": judge(
            tmp_path, Selection(direct_mode=True), serial="0x1"
        ),
        **{
            f"timeout {limit}": judge(tmp_path, timeout_s=limit)
            for limit in (0, -1, float("nan"), 0.1)
        },
    }
    check_snapshot(SNAPSHOTS / "selections.txt", show(texts))


def test_libraries_to_sign_are_labelled_relative_to_their_roots(tmp_path: Path) -> None:
    """One library is in another folder of the build: it is found by its name."""
    folders = make_inputs(tmp_path)
    moved = folders["build"] / "other/libqnn_executorch_skel.so"
    moved.parent.mkdir()
    (folders["build"] / "backends/qualcomm/qnn_executorch/direct_mode" / moved.name).rename(moved)
    roots = {
        "qnn_sdk": folders["qnn"],
        "hexagon_tools": folders["tools"],
        "build": folders["build"],
    }
    selection = Selection("v6", "v81", True, folders["package"], (LIBRARY,))

    libraries = list_requested(selection, POLICY, roots)
    assert [(library.label, library.hexagon) for library in libraries] == [
        ("{qnn_sdk}/lib/lpai-v6/unsigned/libQnnLpai.so", ""),
        ("{qnn_sdk}/lib/hexagon-v81/unsigned/libQnnSystem.so", "v81"),
        (f"{{hexagon_tools}}/{PIC}/libc++abi.so.1", "v81"),
        (f"{{hexagon_tools}}/{PIC}/libc++.so.1", "v81"),
        ("{build}/other/libqnn_executorch_skel.so", "v81"),
        ("{build}/backends/qualcomm/libqnn_executorch_backend.so", "v81"),
        (LIBRARY.as_posix(), ""),
        ("{op_package}/libs/hexagon-v79/libLpaiOpPackageIsland.so", "v79"),
        ("{op_package}/libs/hexagon-v79/libQnnExampleLpaiOpPackage.so", "v79"),
    ]
    assert libraries[4].path == moved
    make_library(folders["build"] / "third" / moved.name, 0x81)
    with pytest.raises(UnfitError, match=moved.name):  # two of a name are not guessed
        list_requested(selection, POLICY, roots)


def test_two_libraries_to_sign_with_one_name_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a/x.so", "b/y.so", "c/x.so", "d/z.so", "e/y.so")]
    for path in files:
        make_library(path, 0x79)
    text = judge(tmp_path, Selection(files=tuple(files)))
    assert "same name: x.so, y.so" in text
    assert "why: TMP/a/x.so; TMP/b/y.so; TMP/c/x.so; TMP/e/y.so\n" in text


# The libraries


def test_libraries_that_cannot_be_signed_are_all_listed(
    tmp_path: Path, key: Key, library: bytes
) -> None:
    folder = tmp_path / "hexagon-v75" / "unsigned"
    make_library(folder / "a.so", 0x79)
    make_library(folder / "b.so", 0x75, BUILDS[1])
    make_library(folder / "f.so", 0x75, "")
    undamaged = bytearray(library)
    add_swiv(undamaged)
    damaged = bytearray(undamaged)
    damaged[next(parse_image(memoryview(undamaged)).loadable()).end - 1] ^= 1
    files = {
        folder / "c.so": sign_elf(put(library, 36, "<I", 0x75), key),
        folder / "d.so": put(library, 18, "<H", 62),
        folder / "e.so": put(library, 18, "<H", 7),
        folder / "g.so": b"<!DOCTYPE html><html>not found</html>",
        tmp_path / "whole.so": bytes(undamaged),
        tmp_path / "damaged.so": bytes(damaged),
    }
    for path, data in files.items():
        path.write_bytes(data)
    listed = judge(tmp_path, Selection(files=tuple(sorted(folder.iterdir()))))
    checksum_error = judge(
        tmp_path, Selection(files=(tmp_path / "whole.so", tmp_path / "damaged.so"))
    )
    assert judge(tmp_path, Selection(files=(tmp_path / "whole.so",))) == "signs whole.so"
    check_snapshot(
        SNAPSHOTS / "inputs.txt", show({"many": listed, "a wrong checksum": checksum_error})
    )


# The target


TARGETS = {
    "sdk/out": "is inside",
    "sdk": "is inside",
    "to-sdk/out": "is inside",
    "linked/real/out": "is inside",
    "linked": "contains",
    ".": "contains",
    "file": "is a file or a symbolic link",
    "link": "is a file or a symbolic link",
    "dangling": "is a file or a symbolic link",
    "thesis": "was not created",
    "linked/other": "",
    "there": "",
    "signed": "",
    "new": "",
    "sdk-signed": "",
}


def test_a_signing_target_must_be_new_or_forced_and_outside_the_sdks(tmp_path: Path) -> None:
    for folder in ("sdk", "there", "linked/real", "signed", "thesis"):
        (tmp_path / folder).mkdir(parents=True)
    links = {"to-sdk": "sdk", "to-real": "linked/real", "link": "there", "dangling": "nowhere"}
    for name, to in links.items():
        (tmp_path / name).symlink_to(tmp_path / to)
    for name in ("signed/signing.json", "signed/lib.so", "thesis/thesis.txt", "file"):
        (tmp_path / name).touch()
    sdk, real = tmp_path / "sdk", tmp_path / "to-real"
    for roots in (Roots(sdk, real), Roots(real, None, sdk), Roots(None, sdk, real)):
        for name, part in TARGETS.items():
            text = judge(tmp_path, target=tmp_path / name, force=True, roots=roots)
            assert text.startswith("UsageError" if part else "signs "), name
            assert part in text, name
    for name in ("there", "signed", "thesis"):
        assert "already exists" in judge(tmp_path, target=tmp_path / name)
    assert judge(tmp_path, target=tmp_path / "new").startswith("signs ")


# The roots


def put_in_store(name: str) -> Path:
    """An empty artifact of profile lpai, published as a fetch publishes it."""
    (request,) = [
        candidate
        for candidate in profile_requests(read_profile("lpai"), Options(offline=True))
        if candidate.toolchain.name == name
    ]
    store, key = Store(), request.key()
    with store.stage(key) as staged:
        tree = Tree(name, request.release.version, "0" * 64, request.components, ())
        return store.publish(key, staged, tree).root


def test_a_root_comes_from_the_option_then_the_variable_then_the_store(tmp_path: Path) -> None:
    tools = "tools/HEXAGON_Tools/19.0.07"

    def find(needed: set[str], qnn_sdk: str = "", **environment: str) -> list[Path | None]:
        options = {"qnn_sdk": Path(qnn_sdk)} if qnn_sdk else {}
        roots = find_roots(options, tmp_path, environment, needed, Progress())
        assert roots.build == tmp_path
        return [roots.qnn_sdk, roots.hexagon_sdk, roots.hexagon_tools]

    assert find(ALL) == [None, None, None]
    qnn, hexagon = put_in_store("qnn-sdk"), put_in_store("hexagon-sdk")
    assert find(ALL) == [qnn, hexagon, hexagon / tools]
    assert find(ALL, "/mine", QNN_SDK_ROOT="/theirs") == [Path("/mine"), hexagon, hexagon / tools]
    named = find(ALL, QNN_SDK_ROOT="/theirs", HEXAGON_SDK_ROOT="/hexagon")
    assert named == [Path("/theirs"), Path("/hexagon"), Path("/hexagon") / tools]
    assert find({"hexagon_tools"}) == [None, None, hexagon / tools]
    assert find({"hexagon_sdk"}) == [None, hexagon, None]
    assert find(set()) == [None, None, None]
