"""libatomic.so.1, made on machines that lack it: when, in which order, and what it does."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provisioning.artifacts.environment import (
    Environment,
    locate_profile,
    parse_selection,
    provision_profile,
)
from provisioning.artifacts.provision import provision_artifacts
from provisioning.artifacts.sources import Options
from provisioning.console.progress import Progress
from provisioning.elf import loader
from provisioning.elf.reader import read_elf
from provisioning.errors import DownloadError, ExitCode
from provisioning.store.store import Store
from tests.stand_ins.toolchains import World, keep_wheel, make_wheel, make_world

NAME = "libatomic.so.1"
COMPILER = "tiny_zig-1.0-cp311-cp311-manylinux_2_35_x86_64.whl"
MANIFEST = """
name = "libatomic"
summary = "tiny"
default = "1.0"
[licence]
name = "none"
text = "none"
[[releases]]
source = "zig"
version = "1.0"
package = "tiny-zig"
package_version = "1.0"
filename = "{filename}"
platform = "manylinux_2_35_x86_64"
python = "3.11"
size_bytes = {size}
sha256 = "{sha256}"
unpacked_bytes = 100000
layout = [{{ take = "tiny_zig/zig", put = "zig" }}]
output = "lib/libatomic.so.1"
instead = "apt-get install libatomic1"
write = {{ "arguments" = "-O2", "atomic.c" = "compiled" }}
"""


@pytest.fixture
def lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose loader finds nothing."""
    monkeypatch.setattr(loader, "LOADER_CACHE", tmp_path / "none")
    monkeypatch.setattr(loader, "DEFAULT_DIRECTORIES", (str(tmp_path),))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose profile needs the library, and whose index has a compiler that copies."""
    world = make_world(tmp_path)
    for name, value in world.variables.items():
        monkeypatch.setenv(name, value)
    profiles = world.manifests / "profiles.toml"
    libatomic_table = f'[[emulator.artifacts]]\nname = "libatomic"\nunless_library = "{NAME}"\n'
    first = "[[emulator.artifacts]]"
    profiles.write_text(profiles.read_text().replace(first, libatomic_table + first))
    put_compiler(world, "mkdir lib && cp atomic.c lib/libatomic.so.1")
    return world


def put_compiler(world: World, script: str) -> None:
    content = {"tiny_zig/zig": f"#!/bin/sh\n{script}\n".encode()}
    data = make_wheel(world.index / COMPILER, "tiny-zig", content).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    manifest = MANIFEST.format(filename=COMPILER, size=len(data), sha256=digest)
    (world.manifests / "toolchains" / "libatomic.toml").write_text(manifest)


def provision(*, offline: bool = False) -> Environment:
    return provision_profile("emulator", Progress(), offline=offline)


@pytest.mark.usefixtures("lacking")
def test_a_machine_without_libatomic_gets_a_compiled_one_after_qnn_on_the_library_path(
    world: World,
) -> None:
    keep_wheel(world)
    environment = provision()
    library = environment.root("libatomic") / "lib" / NAME
    assert (library.read_text(), library.stat().st_mode & 0o777) == ("compiled", 0o444)
    qnn = environment.root("qnn-runtime") / "lib/x86_64-linux-clang"
    assert environment.variables["LD_LIBRARY_PATH"] == f"{qnn}:{library.parent}"
    assert locate_profile("emulator", Progress()).variables == environment.variables


@pytest.mark.usefixtures("lacking")
def test_a_machine_with_libatomic_fetches_no_compiler(world: World, tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    keep_wheel(world)
    environment = provision()
    assert [artifact.name for artifact in environment.artifacts] == ["qnn-runtime"]
    qnn = environment.root("qnn-runtime") / "lib/x86_64-linux-clang"
    assert environment.variables["LD_LIBRARY_PATH"] == str(qnn)


@pytest.mark.usefixtures("lacking")
@pytest.mark.parametrize("offline", [True, False])
def test_a_missing_libatomic_without_a_compiler_names_the_package_to_install(
    world: World, *, offline: bool
) -> None:
    (world.index / COMPILER).unlink()
    with pytest.raises(DownloadError) as caught:
        provision(offline=offline)
    assert caught.value.exit_code is ExitCode.DOWNLOAD
    assert (NAME in caught.value.what, "libatomic1" in caught.value.fix) == (True, True)
    assert not list((world.home / "store").iterdir())
    assert not list((world.home / "downloads").glob("*.whl"))


# -- the library of manifests/ ------------------------------------------------------------------

Function = Callable[..., bool]
ORDER = 5  # __ATOMIC_SEQ_CST
SIZE = 1 << 22  # so large that without a lock calls of two threads meet


@pytest.fixture(scope="module")
def library() -> Path:
    (request,) = parse_selection(["libatomic"], Options())
    try:
        (provisioned,) = provision_artifacts([request], Store(), Progress())
    except DownloadError as error:
        pytest.skip(f"ziglang cannot be had: {error.why}")
    return provisioned.root / "lib" / NAME


@pytest.fixture
def functions(library: Path) -> Iterator[Callable[[str], Function]]:
    loaded = ctypes.CDLL(str(library))

    def find(name: str) -> Function:
        function = getattr(loaded, name)
        function.restype = ctypes.c_bool
        return lambda size, *words: bool(function(ctypes.c_size_t(size), *words))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield find
    sys.setswitchinterval(interval)


def test_compiled_libatomic_defines_the_symbol_version_that_qnn_needs(library: Path) -> None:
    elf = read_elf(library)
    assert (elf.soname, elf.needed) == (NAME, ())
    assert set(elf.version_defs) - {NAME} == {"LIBATOMIC_1.0"}


def test_compiled_libatomic_never_loads_a_half_stored_value(
    functions: Callable[[str], Function],
) -> None:
    load, store = functions("__atomic_load"), functions("__atomic_store")
    times, shared = 50, ctypes.create_string_buffer(SIZE)

    def write(byte: bytes) -> None:
        value = ctypes.create_string_buffer(byte * SIZE, SIZE)
        for _ in range(times):
            store(SIZE, shared, value, ORDER)

    def read() -> set[bytes]:
        copy, values = ctypes.create_string_buffer(SIZE), set()
        for _ in range(times):
            load(SIZE, shared, copy, ORDER)
            values.add(copy.raw)
        return values

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        list(pool.map(write, (b"\x55", b"\xaa")))
        loaded_values = set().union(*(future.result() for future in reading))
    assert loaded_values <= {byte * SIZE for byte in (b"\0", b"\x55", b"\xaa")}
