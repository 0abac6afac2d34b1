"""An SDK with libraries of QNN backends that a wheel does not have, or has to no purpose."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("qnn_lpai.c")
HOST = "lib/x86_64-linux-clang"


def compile_backend(library: Path, *words: str) -> Path:
    """``library``, which hands on to libQnnHtp.so; -DGPU and -DREFUSES are ``words`` for gcc."""
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", *words, str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    return library


def make_sdk(folder: Path, runtime: Path, version: str) -> Path:
    """The libraries of a wheel's ``runtime``, linked, in a tree that says it is ``version``."""
    libraries = folder / HOST
    libraries.mkdir(parents=True)
    for path in (runtime / HOST).iterdir():
        (libraries / path.name).symlink_to(path)
    text = (runtime / "sdk.yaml").read_text("utf-8")
    (folder / "sdk.yaml").write_text(text.replace("version: 2.49.40", f"version: {version}"))
    (folder / "QNN_README.txt").write_text("a stand-in\n")
    return folder


def make_libcxx(folder: Path, runtime: Path) -> Path:
    """The libraries that an SDK does not ship, as profile emulator-sdk asks for them."""
    libraries = folder / "lib"
    libraries.mkdir(parents=True)
    for path in (runtime / HOST).glob("lib[cu][+n]*"):
        shutil.copy(path, libraries, follow_symlinks=False)
    return folder
