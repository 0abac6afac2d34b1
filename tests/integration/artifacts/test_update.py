"""Another version becomes the pin with one command, from a package index, a server, git."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from provisioning.files import hash_file
from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.forks import Forks, Run
from tests.stand_ins.toolchains import World

ROOT = Path(__file__).parents[3]
HOST = "lib/x86_64-linux-clang"
MANIFEST = """# Why this one: a comment that stays.
name = "qnn-runtime"
summary = "tiny"
default = "2.49.40"
[licence]
name = "none"
text = "LICENSES/LICENSE"
[package_versions]
"2.50.40" = "2.6.0"
[[releases]]
source = "wheel"
version = "2.49.40"
package = "tiny-qnn"
package_version = "2.5.0" # what the index calls it
filename = "{filename}"
platform = "manylinux_2_35_x86_64"
python = "3.11"
size_bytes = 1
sha256 = "{sha256}"
unpacked_bytes = 1000
layout = [
    {{ take = "tiny_qnn/lib*.so", put = "lib/x86_64-linux-clang/" }},
    {{ take = "tiny_qnn.libs/lib*", put = "lib/x86_64-linux-clang/" }},
]
[releases.links]
"lib/x86_64-linux-clang/libc++.so.1" = "libc++-71bc274c.so.1.0"
[releases.write]
"sdk.yaml" = '''
version: 2.49.40
origin: tiny-qnn 2.5.0
'''
"""


def wheel_name(version: str, glibc: int = 35) -> str:
    return f"tiny_qnn-{version}-cp311-cp311-manylinux_2_{glibc}_x86_64.whl"


def make_wheel(directory: Path, version: str, qnn: str, digest: str, glibc: int = 35) -> Path:
    libraries = {
        "tiny_qnn/libQnnHtp.so": made.make_library(62, 90_000, f"{qnn}.260901"),
        "tiny_qnn/libQnnSystem.so": made.make_library(62, 30_000, f"{qnn}.260901"),
        f"tiny_qnn.libs/libc++-{digest}.so.1.0": b"\x7fELF libc++ " * 500,
        "tiny_qnn/__init__.py": b"",
    }
    return made.make_wheel(directory / wheel_name(version, glibc), content=libraries)


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad.running() as server:
        yield server


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The URL of a package index, served from the directory ``served``."""
    handler = partial(QuietHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def guess_type(self, path: str) -> str:
        json_page = "application/vnd.pypi.simple.v1+json"
        return json_page if path.endswith(".json") else super().guess_type(path)

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        page = Path(self.translate_path(self.path)) / "index.json"
        if page.is_file():
            self.path += "index.json"
        super().do_GET()


@pytest.fixture
def world(tmp_path: Path, index: str) -> World:
    """A package index with two versions over HTTP; the older one is pinned."""
    world = made.make_world(tmp_path)
    page = tmp_path / "served" / "simple" / "tiny-qnn" / "index.html"
    page.parent.mkdir(parents=True)
    old = make_wheel(tmp_path / "served", "2.5.0", "2.49.40", "71bc274c")
    wheels = [old, make_wheel(tmp_path / "served", "2.6.0", "2.50.40", "0539aa51", glibc=36)]
    rows = "".join(f'<a href="/{path.name}">{path.name}</a>' for path in wheels)
    page.write_text(f"<!DOCTYPE html><html><body>{rows}</body></html>")
    manifest = world.manifests / "toolchains" / "qnn-runtime.toml"
    manifest.write_text(MANIFEST.format(filename=old.name, sha256=hash_file(old)))
    return world


@pytest.fixture
def run(world: World, index: str, verbs: Forks) -> Run:
    """A verb that asks that index."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "CI"))
    }
    pip = {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": "/dev/null"}
    home = {"QNN_CI_MANIFESTS": str(world.manifests), "QNN_CI_HOME": str(world.home)}
    return partial(verbs.run_module, "provisioning", cwd=ROOT, env={**variables, **pip, **home})


def manifest_of(world: World) -> str:
    return (world.manifests / "toolchains" / "qnn-runtime.toml").read_text()


def test_one_command_updates_a_wheel_pin_with_its_lock(world: World, index: str, run: Run) -> None:
    before = manifest_of(world)
    (world.manifests.parent / "pyproject.toml").write_text('a = "2.49.40"\nb = "12.49.40.1"\n')
    shown = run("update", "qnn-runtime")
    assert shown.returncode == 0, shown.stderr
    assert manifest_of(world) == before
    assert "nothing was written; add --write" in shown.stdout
    assert "ci upgrade-report tiny-qnn==2.5.0 tiny-qnn==2.6.0`" in shown.stderr
    for old, new in (
        ('default = "2.49.40"', 'default = "2.50.40"'),
        ('package_version = "2.5.0" # what', 'package_version = "2.6.0" # what'),
        (wheel_name("2.5.0"), wheel_name("2.6.0", 36)),
        ('platform = "manylinux_2_35_x86_64"', 'platform = "manylinux_2_36_x86_64"'),
        ("libc++-71bc274c.so.1.0", "libc++-0539aa51.so.1.0"),
        ("origin: tiny-qnn 2.5.0", "origin: tiny-qnn 2.6.0"),
    ):
        assert any(old in line for line in shown.stdout.splitlines() if line[:1] == "-"), old
        assert any(new in line for line in shown.stdout.splitlines() if line[:1] == "+"), new
    assert "+++ b/manifests/locks/qnn-runtime-2.50.40.json" in shown.stdout
    assert re.findall(r"^  (\S+:\d+): ", shown.stdout, re.MULTILINE) == ["pyproject.toml:1"]
    assert run("update", "qnn-runtime", "--write").stdout == shown.stdout.replace(
        "nothing was written; add --write\n", ""
    )
    assert "# Why this one: a comment that stays." in manifest_of(world)
    (lock,) = (world.manifests / "locks").iterdir()
    assert lock.name == "qnn-runtime-2.50.40.json"
    ended = run("fetch", "emulator", "--verify", "--json")
    (artifact,) = json.loads(ended.stdout)["artifacts"]
    root = Path(artifact["root"])
    assert (artifact["version"], artifact["fetched"]) == ("2.50.40", True)
    assert (root / HOST / "libc++.so.1").resolve().name == "libc++-0539aa51.so.1.0"
    assert (root / "sdk.yaml").read_text() == "version: 2.50.40\norigin: tiny-qnn 2.6.0\n"
    second_update = run("update", "qnn-runtime", "--write")
    assert second_update.stdout == "nothing changed\n"


def test_the_newest_version_that_is_another_release_already_becomes_the_default(
    world: World, run: Run
) -> None:
    manifest_before = manifest_of(world)
    assert run("update", "qnn-runtime", "--write").returncode == 0
    text = f"{manifest_before}[[releases]]{manifest_of(world).partition('[[releases]]')[2]}"
    (world.manifests / "toolchains" / "qnn-runtime.toml").write_text(text)
    updated = run("update", "qnn-runtime", "--write")
    assert updated.returncode == 0, updated.stderr
    assert manifest_of(world) == text.replace('default = "2.49.40"', 'default = "2.50.40"')
    assert run("update", "qnn-runtime", "--write").stdout == "nothing changed\n"


@pytest.mark.parametrize(
    "version",
    [
        "2.6.0",
        "2.50.40",
        "v2.50.40",
    ],
)
def test_a_wheel_has_the_version_of_qnn_and_that_of_its_package(
    world: World, run: Run, version: str
) -> None:
    shown = run("update", f"qnn-runtime@{version}")
    assert shown.returncode == 0, shown.stderr
    assert '+default = "2.50.40"' in shown.stdout
    assert '+package_version = "2.6.0" # what' in shown.stdout


def test_a_version_of_qnn_in_an_unknown_wheel_is_explained(world: World, run: Run) -> None:
    refused = run("update", "qnn-runtime@2.60.40")
    assert refused.returncode == 4
    assert "of tiny-qnn, of which 2.5.0 contains qnn-runtime 2.49.40" in refused.stderr
    assert "update qnn-runtime`" in refused.stderr


def write_times(world: World, **days_ago: int) -> None:
    """Let the index say when each version came, as PEP 700 has it."""
    served = world.home.parent / "served"
    files = []
    for path in sorted(served.glob("*.whl")):
        age = timedelta(days=days_ago["v" + path.name.split("-")[1].replace(".", "_")])
        files.append(
            {
                "filename": path.name,
                "url": f"/{path.name}",
                "hashes": {},
                "size": path.stat().st_size,
                "upload-time": f"{datetime.now(timezone.utc) - age:%Y-%m-%dT%H:%M:%SZ}",
            }
        )
    page = {
        "meta": {"api-version": "1.1"},
        "name": "tiny-qnn",
        "versions": ["2.5.0", "2.6.0"],
        "files": files,
    }
    (served / "simple" / "tiny-qnn" / "index.json").write_text(json.dumps(page))


def test_update_skips_a_version_that_was_released_too_recently(
    world: World, index: str, run: Run
) -> None:
    write_times(world, v2_5_0=60, v2_6_0=3)
    young = run("update", "qnn-runtime", "--cooldown", "14")
    assert (young.returncode, young.stdout) == (0, "nothing changed\n"), young.stderr
    assert "2.50.40" in run("update", "qnn-runtime", "--cooldown", "2", "--write").stdout
    named = run("update", "qnn-runtime@2.6.0", "--cooldown", "14")
    assert named.returncode == 4, "a version that was named must be old enough, too"
    early = run("update", "qnn-runtime", "--cooldown", "14")
    assert (early.returncode, early.stdout) == (0, "nothing changed\n"), early.stderr
