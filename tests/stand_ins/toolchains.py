"""A small artifact of every kind, with the manifests that describe it."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

WHEEL = "tiny_qnn-1.0-cp311-cp311-manylinux_2_35_x86_64.whl"
LIBRARIES = {
    "tiny_qnn/libQnnHtp.so": b"\x7fELF htp " * 40_000,
    "tiny_qnn/libQnnSystem.so": b"\x7fELF system " * 9_000,
    "tiny_qnn.libs/libc++-1a.so.1.0": b"\x7fELF libc++ " * 5_000,
    "tiny_qnn/LICENSE": b"Do as you like.\n",
    "tiny_qnn/__init__.py": b"",
}


@dataclass(frozen=True)
class World:
    """Manifests, a package index and a store of their own."""

    manifests: Path
    index: Path
    home: Path

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs to live in this world."""
        return {
            "QNN_CI_MANIFESTS": str(self.manifests),
            "QNN_CI_HOME": str(self.home),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_CONFIG_FILE": "/dev/null",
        }


def make_world(directory: Path) -> World:
    """A world with profile ``emulator`` out of one tiny wheel."""
    world = World(directory / "manifests", directory / "index", directory / "home")
    (world.manifests / "toolchains").mkdir(parents=True)
    world.index.mkdir()
    wheel = make_wheel(world.index / WHEEL)
    (world.manifests / "toolchains" / "qnn-runtime.toml").write_text(describe_wheel(wheel))
    (world.manifests / "profiles.toml").write_text(PROFILES)
    return world


PROFILES = """
[emulator]
summary = "the emulator"
[[emulator.artifacts]]
name = "qnn-runtime"
[emulator.variables]
QNN_SDK_ROOT = "{qnn-runtime}"
LD_LIBRARY_PATH = "{qnn-runtime}/lib/x86_64-linux-clang"
"""


def make_wheel(path: Path) -> Path:
    """A wheel that pip takes."""
    files = dict(LIBRARIES)
    info = "tiny_qnn-1.0.dist-info"
    files[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: tiny-qnn\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\n"
        b"Tag: cp311-cp311-manylinux_2_35_x86_64\n"
    )
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def describe_wheel(wheel: Path) -> str:
    """The manifest of make_wheel's wheel."""
    data = wheel.read_bytes()
    return f"""
name = "qnn-runtime"
summary = "tiny"
source = "wheel"
default = "9.9.9"
[licence]
name = "none"
text = "LICENSES/LICENSE"
[[releases]]
version = "9.9.9"
package = "tiny-qnn"
package_version = "1.0"
filename = "{wheel.name}"
platform = "manylinux_2_35_x86_64"
python = "3.11"
size_bytes = {len(data)}
sha256 = "{hashlib.sha256(data).hexdigest()}"
unpacked_bytes = 2000000
layout = [
    {{ take = "tiny_qnn/lib*.so", put = "lib/x86_64-linux-clang/" }},
    {{ take = "tiny_qnn.libs/lib*", put = "lib/x86_64-linux-clang/" }},
    {{ take = "tiny_qnn/LICENSE", put = "LICENSES/" }},
]
links = {{ "lib/x86_64-linux-clang/libc++.so.1" = "libc++-1a.so.1.0" }}
write = {{ "sdk.yaml" = "version: 9.9.9\\n" }}
"""
