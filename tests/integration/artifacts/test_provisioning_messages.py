"""Every error message that the pages on provisioning show is one that the program prints."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import provisioning.store.store
from provisioning.artifacts.environment import locate_profile, provision_profile
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.provisioned import provision_one
from tests.stand_ins.toolchains import World
from tests.stand_ins.users import unprivileged

ROOT = Path(__file__).parents[3]
PAGES = ("reference/provisioning.md", "guides/air-gapped.md", "guides/toolchains.md")
TEXT = "\n".join((ROOT / "docs" / page).read_text("utf-8") for page in PAGES)
YES = Options(accept_licence=True)


@pytest.fixture(autouse=True)
def try_twice(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setenv("QNN_CI_BACKOFF_S", "0")
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "2")


def fetch(options: Options = YES, name: str = "qnn-sdk") -> None:
    toolchain = read_toolchain(name)
    request = ArtifactRequest(toolchain, toolchain.release(), (), options)
    provision_one(request, Store(), Progress())


def message_of(work: Callable[[], object]) -> str:
    with pytest.raises(QnnCiError) as caught:
        work()
    return str(caught.value)


def general(text: str, world: World, server: BadServer) -> str:
    """A message without what belongs to one machine or one run."""
    text = text.replace(str(world.home), "~/.cache/executorch-qnn-ci")
    text = text.replace(str(world.home.parent), "/home/me")
    text = text.replace(server.url(""), "https://vendor.example/")
    text = re.sub(r"\b[0-9a-f]{64}\b", "<64 digits>", text)
    return re.sub(r"'[^']*libQnnHtp.so'", "'libQnnHtp.so'", text)


def say_unreachable_index(world: World, server: BadServer) -> str:
    (world.index / made.WHEEL).unlink()
    return message_of(lambda: provision_profile("emulator", Progress()))


def say_no_hash(world: World, server: BadServer) -> str:
    path = world.manifests / "toolchains" / "qnn-sdk.toml"
    path.write_text(made.describe_sdk([server.url("sdk.zip")]))
    return message_of(fetch)


def say_licence(world: World, server: BadServer) -> str:
    return message_of(lambda: fetch(Options()))


def say_other_bytes(world: World, server: BadServer) -> str:
    server.files["sdk.zip"] = server.files["sdk.zip"][:-1] + b"\1"
    return message_of(fetch)


def say_server_down(world: World, server: BadServer) -> str:
    server.faults["sdk.zip"] = [bad.status(503)] * 9
    return message_of(fetch)


def say_offline(world: World, server: BadServer) -> str:
    return message_of(lambda: fetch(Options(offline=True, accept_licence=True)))


def say_hostile(world: World, server: BadServer) -> str:
    data = server.files["sdk.zip"].replace(b"lib/aarch64-android", b"../../../../../home")
    (world.home.parent / "sdk.zip").write_bytes(data)
    path = world.manifests / "toolchains" / "qnn-sdk.toml"
    server.files["sdk.zip"] = data
    url = server.url("sdk.zip")
    path.write_text(made.describe_sdk([url], world.home.parent / "sdk.zip"))
    return message_of(fetch)


def say_no_room(world: World, server: BadServer) -> str:
    usage = shutil.disk_usage("/")._replace(free=20 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provisioning.store.store.shutil, "disk_usage", lambda path: usage)
        return message_of(fetch)


def say_read_only(world: World, server: BadServer) -> str:
    world.home.mkdir(mode=0o555)
    with unprivileged(world.home):
        return message_of(fetch)


def say_missing_profile(world: World, server: BadServer) -> str:
    profiles = world.manifests / "profiles.toml"
    profiles.write_text('[aot]\nsummary = "x"\nartifacts = [{ name = "qnn-sdk" }]\n')
    return message_of(lambda: locate_profile("aot", Progress()))


def say_unfit_installation(world: World, server: BadServer) -> str:
    with pytest.MonkeyPatch.context() as patch:
        root = world.home.parent / "qnn"
        root.mkdir(exist_ok=True)
        patch.setenv("QNN_SDK_ROOT", str(root))
        return message_of(fetch)


def say_no_compiler(world: World, server: BadServer) -> str:
    manifest = ROOT / "manifests" / "toolchains" / "libatomic.toml"
    shutil.copy(manifest, world.manifests / "toolchains")
    return message_of(lambda: fetch(Options(offline=True), "libatomic"))


SCENARIOS = [value for name, value in list(globals().items()) if name.startswith("say_")]


def blocks() -> list[str]:
    error_blocks = re.findall(r"^```error\n(.*?)\n```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(error_blocks) == TEXT.count("```error")
    return error_blocks


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_docs_show_each_message_as_the_program_prints_it(
    world: World, server: BadServer, scenario: Callable[[World, BadServer], str]
) -> None:
    message = general(scenario(world, server), world, server)
    assert message in blocks(), message


def test_the_docs_show_no_message_that_the_program_does_not_print() -> None:
    assert len(blocks()) == len(SCENARIOS)
