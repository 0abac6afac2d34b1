"""A small artifact of every kind, with the manifests that describe it."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.stand_ins.bad_server import BadServer

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


def serve_world(directory: Path, server: BadServer) -> World:
    """A world whose SDK and libc++ come from ``server``, pinned by hash."""
    world = make_world(directory)
    sdk, llvm = make_sdk(directory / "sdk.zip"), make_llvm(directory / "llvm.tar.xz")
    server.files |= {"sdk.zip": sdk.read_bytes(), "llvm.tar.xz": llvm.read_bytes()}
    folder = world.manifests / "toolchains"
    (folder / "qnn-sdk.toml").write_text(describe_sdk([server.url("sdk.zip")], sdk))
    (folder / "libcxx.toml").write_text(describe_libcxx(server.url("llvm.tar.xz"), llvm))
    (world.manifests / "profiles.toml").write_text(PROFILES + AOT)
    return world


def make_world(directory: Path) -> World:
    """A world with profile ``emulator`` out of one tiny wheel."""
    world = World(directory / "manifests", directory / "index", directory / "home")
    (world.manifests / "toolchains").mkdir(parents=True)
    world.index.mkdir()
    wheel = make_wheel(world.index / WHEEL)
    (world.manifests / "toolchains" / "qnn-runtime.toml").write_text(describe_wheel(wheel))
    (world.manifests / "profiles.toml").write_text(PROFILES)
    return world


def keep_wheel(world: World) -> None:
    """Put the wheel among the downloads of the store, as an earlier fetch does: pip, which takes a
    second, is not needed."""
    downloads = world.home / "downloads"
    downloads.mkdir(parents=True)
    shutil.copy(world.index / WHEEL, downloads)
    (world.home / "locks").mkdir(exist_ok=True)
    (world.home / "locks" / f"{WHEEL}.fetched").touch()


PROFILES = """
[emulator]
summary = "the emulator"
[[emulator.artifacts]]
name = "qnn-runtime"
[emulator.variables]
QNN_SDK_ROOT = "{qnn-runtime}"
LD_LIBRARY_PATH = "{qnn-runtime}/lib/x86_64-linux-clang"
"""


def make_wheel(
    path: Path, package: str = "tiny-qnn", content: Mapping[str, bytes] = LIBRARIES
) -> Path:
    """A wheel that pip takes, of the version that its name says."""
    path.write_bytes(pack_wheel(path.name, package, tuple(content.items())))
    return path


@lru_cache(maxsize=8)
def pack_wheel(name: str, package: str, content: tuple[tuple[str, bytes], ...]) -> bytes:
    files, version = dict(content), name.split("-")[1]
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\n"
        b"Tag: cp311-cp311-manylinux_2_35_x86_64\n"
    )
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # the same bytes
    return packed.getvalue()


def describe_wheel(wheel: Path) -> str:
    """The manifest of make_wheel's wheel."""
    data = wheel.read_bytes()
    return f"""
name = "qnn-runtime"
summary = "tiny"
default = "9.9.9"
[licence]
name = "none"
text = "LICENSES/LICENSE"
[[releases]]
source = "wheel"
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


VERSION = "2.37.0.250724"
SDK = {
    "sdk.yaml": b"version: 2.37.0.250724175447\n",
    "LICENSE.pdf": b"%PDF terms\n",
    "include/QNN/QnnInterface.h": b"#pragma once\n" * 300,
    "include/QNN/HTP/QnnHtpDevice.h": b"#define QNN_HTP 1\n" * 500,
    "bin/envsetup.sh": b"#!/bin/bash\n",
}
LIBRARY_SIZES = {
    "lib/x86_64-linux-clang/libQnnHtp.so": (62, 900_000),
    "lib/x86_64-linux-clang/libQnnSystem.so": (62, 300_000),
    "lib/aarch64-android/libQnnHtp.so": (183, 700_000),
    "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so": (164, 500_000),
}


@lru_cache(maxsize=32)
def make_library(machine: int, size: int, version: str = VERSION) -> bytes:
    """An ELF header of a machine, one segment, a version string, and bytes that deflate by half."""
    wide = machine != 164
    head = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    if wide:
        head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
        head += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 1 << 16)
    else:
        head += struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, 52, 0, 0x75, 52, 32, 1, 40, 0, 0)
        head += struct.pack("<IIIIIIII", 1, 0, 0, 0, size, size, 5, 1 << 12)
    text = f"v{version}175447_124859".encode() + b"\0"
    noise = random.Random(machine * size).randbytes(size // 2)
    return (head + text + noise + bytes(size)).ljust(size)[:size]


def make_sdk(path: Path, version: str = VERSION, *, machine_of_first: int = 62) -> Path:
    """A ZIP in the shape of Qualcomm's."""
    files = sdk_files(version, machine_of_first=machine_of_first)
    path.write_bytes(pack_sdk(tuple(files.items())))
    return path


@lru_cache(maxsize=8)
def pack_sdk(files: tuple[tuple[str, bytes], ...]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            info = zipfile.ZipInfo(f"qairt/{VERSION}/{name}")
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = (0o100755 if name.endswith(".sh") else 0o100644) << 16
            archive.writestr(info, data)
        link = zipfile.ZipInfo(f"qairt/{VERSION}/lib/x86_64-linux-clang/libQnn.so")
        link.create_system = 3
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "libQnnHtp.so")
    return packed.getvalue()


def sdk_files(version: str = VERSION, *, machine_of_first: int = 62) -> dict[str, bytes]:
    """The files of make_sdk's archive, below its prefix."""
    files = {name: data.replace(VERSION.encode(), version.encode()) for name, data in SDK.items()}
    for at, (name, (machine, size)) in enumerate(LIBRARY_SIZES.items()):
        files[name] = make_library(machine if at else machine_of_first, size, version)
    return files


def describe_sdk(urls: list[str], archive: Path | None = None) -> str:
    """The manifest of make_sdk's archive; pinned when ``archive`` is given."""
    pin = ""
    if archive:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        pin = f'size_bytes = {archive.stat().st_size}\nsha256 = "{digest}"'
    return f"""
name = "qnn-sdk"
summary = "tiny"
default = "{VERSION}"
[licence]
name = "Terms"
text = "LICENSE.pdf"
accept = true
[adoption]
variable = "QNN_SDK_ROOT"
markers = ["sdk.yaml"]
version_file = "sdk.yaml"
[components]
base = ["*"]
headers = ["include/**"]
host = ["lib/x86_64-linux-clang/**"]
android = ["lib/aarch64-android/**"]
[[releases]]
source = "archive"
version = "{VERSION}"
filename = "qairt-{VERSION}.zip"
url = "{urls[0]}"
mirrors = {urls[1:]}
unpacked_bytes = 20000000
layout = [{{ take = "qairt/{VERSION}/**", put = "" }}]
{pin}
"""


def describe(
    manifests: Path, name: str, release: str, *, version: str = "1", tables: str = ""
) -> None:
    """Write the manifest of an artifact that is free, of one release; ``tables`` come before it."""
    (manifests / "toolchains").mkdir(parents=True, exist_ok=True)
    (manifests / "toolchains" / f"{name}.toml").write_text(f"""
name = "{name}"
summary = "tiny"
default = "{version}"
[licence]
name = "free"
text = "none"
{tables}
[[releases]]
version = "{version}"
{release}
""")


def describe_git(manifests: Path, url: str, commit: str, tables: str = "") -> None:
    """Write the manifest of executorch 1.0 at a commit that its tag names."""
    release = f'source = "git"\nurl = "{url}"\ntag = "v1.0"\ncommit = "{commit}"'
    describe(manifests, "executorch", release, version="1.0", tables=tables)


def describe_libcxx(url: str, archive: Path) -> str:
    """The manifest of a tarball of which two files are wanted."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return f"""
name = "libcxx"
summary = "tiny"
default = "14.0.0"
[licence]
name = "free"
text = "none"
[[releases]]
source = "archive"
version = "14.0.0"
filename = "llvm.tar.xz"
url = "{url}"
size_bytes = {archive.stat().st_size}
sha256 = "{digest}"
layout = [
    {{ take = "llvm/lib/libc++.so.1.0", put = "lib/" }},
    {{ take = "llvm/lib/libunwind.so.1.0", put = "lib/" }},
]
links = {{ "lib/libc++.so.1" = "libc++.so.1.0" }}
"""


def make_llvm(path: Path) -> Path:
    """A tarball with two wanted files and much that is not."""
    path.write_bytes(pack_llvm())
    return path


@lru_cache
def pack_llvm() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name in ("bin/clang", "lib/libc++.so.1.0", "lib/libunwind.so.1.0", "share/doc"):
            data = make_library(62, 50_000)
            info = tarfile.TarInfo(f"llvm/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


AOT = """
[aot]
summary = "host libraries and headers"
artifacts = [
    { name = "qnn-sdk", components = ["base", "headers", "host"] },
    { name = "libcxx" },
]
[aot.variables]
QNN_SDK_ROOT = "{qnn-sdk}"
LD_LIBRARY_PATH = "{qnn-sdk}/lib/x86_64-linux-clang:{libcxx}/lib"
"""
