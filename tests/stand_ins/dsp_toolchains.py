"""What signing works on: a Hexagon SDK of which only the signer is there, and small libraries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.signing.signer import find_interpreter
from provisioning.errors import UnfitError
from tests.stand_ins.elfsigner.keys import make_files

STAND_IN = Path(__file__).parent / "elfsigner"
LIBRARY = Path(__file__).parents[1] / "artifacts" / "elf" / "libhexagon.so"
NO_BUILD = ""


def make_signer_sdk(root: Path) -> Path:
    """A Hexagon SDK with the stand-in signer and its keys; skips where no Python can run it."""
    try:
        find_interpreter()
    except UnfitError as error:
        pytest.skip(error.what)
    tools = root / "tools" / "elfsigner"
    tools.mkdir(parents=True)
    for name in ("elfsigner.py", "mbn_writer.py"):
        shutil.copy(STAND_IN / name, tools)
    shutil.copy(LIBRARY, tools / "testsigbase.so")
    for name, data in make_files().items():
        (tools / name).write_bytes(data)
    return root


def make_library(path: Path, hexagon: int, build: str = "v2.49.40.260810104044") -> None:
    """A small Hexagon library of another version and QNN build than the real one that it is."""
    data = bytearray(LIBRARY.read_bytes())
    data[36:40] = hexagon.to_bytes(4, "little")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(data).replace(b"v2.49.40.260810104044", build.encode().ljust(21, b"\0")))


def make_inputs(folder: Path) -> dict[str, Path]:
    """A QNN SDK, Hexagon tools and a build tree with what LPAI v6 and direct mode v81 need."""
    qnn, tools, build = (folder / name for name in ("qairt", "tools", "build-direct"))
    make_library(qnn / "lib/lpai-v6/unsigned/libQnnLpaiSkel.so", 0x79)
    make_library(qnn / "lib/lpai-v6/unsigned/libQnnLpai.so", 0x79)
    make_library(qnn / "lib/hexagon-v81/unsigned/libQnnSystem.so", 0x81)
    pic = tools / "Tools/target/hexagon/lib/v81/G0/pic"
    for name in ("libc++abi.so.1", "libc++.so.1"):
        make_library(pic / name, 0x81, NO_BUILD)
    qualcomm = build / "backends/qualcomm"
    make_library(qualcomm / "qnn_executorch/direct_mode/libqnn_executorch_skel.so", 0x81, NO_BUILD)
    make_library(qualcomm / "libqnn_executorch_backend.so", 0x81, NO_BUILD)
    package = folder / "package/libs/hexagon-v79"
    for name in ("libQnnExampleLpaiOpPackage.so", "libLpaiOpPackageIsland.so"):
        make_library(package / name, 0x79, NO_BUILD)
    (qnn / "sdk.yaml").write_text("product: qairt\nversion: 2.49.40\n")
    return {"qnn": qnn, "tools": tools, "build": build, "package": folder / "package"}
