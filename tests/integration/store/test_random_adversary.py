"""A second adversary that plays at random: servers, kills and tampering in any order.

QNN_CI_TEST_STEPS sets the number of steps (200 in the ordinary suite). What must hold after each:
a reader sees a whole right tree or none, but for one that was tampered with since it was verified;
nothing outside the store changes; a step ends in time, in an error of the tree or well; no file of
the store and no message has a secret. At the end of each play the server is good again, and
everything must come right.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ci.cases.pool import end_fork_server
from provisioning.artifacts.consent import make_lock
from provisioning.artifacts.lockfile import project_lock_path
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError, mask_credentials
from provisioning.files import write_whole
from provisioning.manifest.reader import read_toolchain
from provisioning.store.collect import find_garbage, remove_garbage
from provisioning.store.store import Store
from provisioning.store.tree import encode_record
from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer, Fault
from tests.stand_ins.provisioned import provision_one

STEPS = int(os.environ.get("QNN_CI_TEST_STEPS", "200"))
PLAY_STEPS = 40
MEMORY_LIMIT_KIB = 300 << 10
SECRET = "hunter2"
COMPONENTS = [(), ("host",), ("host", "headers"), ("android",), ("base", "host")]
QUICK = {
    "QNN_CI_TIMEOUT_S": "0.25",
    "QNN_CI_ATTEMPTS": "3",
    "QNN_CI_BACKOFF_S": "0.001",
    "QNN_CI_ACCEPT_LICENCE": "all",
}


def other_bytes(handler: bad.Handler, data: bytes) -> None:
    """As a good server does, and with one byte changed."""
    at = len(data) * 2 // 3
    bad.serve(handler, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def new_etag(handler: bad.Handler, data: bytes) -> None:
    handler.head(200, len(data), ETag=f'"{len(handler.server.requests)}"')
    handler.body(data[: len(data) // 2])
    handler.hang_up()


FAULTS: dict[str, Fault] = {
    "served": bad.serve,
    "cut": bad.cut(0.5),
    "reset": bad.cut(0.3, hard=True),
    "cut without length": bad.cut(0.7, sized=False),
    "500": bad.status(500),
    "404": bad.status(404),
    "429": bad.status(429, Retry_After="0"),
    "patience": bad.status(503, Retry_After="\u00b2"),
    "416": bad.status(416),
    "page": bad.whole(b"<!DOCTYPE html>Sign in", Content_Type="text/html"),
    "empty": bad.whole(b""),
    "whole": bad.whole(),
    "shifted": bad.part(-7),
    "another file": bad.part(ETag='"other"'),
    "other bytes": other_bytes,
    "new ETag": new_etag,
    "chunks": bad.chunked(0.5),
    "not HTTP": bad.raw(b"SSH-2.0\r\n"),
    "nothing": bad.raw(b""),
    "stall": bad.stall(0.5, 0.4),
    "loop": bad.redirect("/sdk.zip"),
    "to a file": bad.redirect("file:///etc/passwd"),
    "compressed": bad.whole(Content_Encoding="gzip"),
}


def damage_byte(path: Path, dice: random.Random) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def cut_file(path: Path, dice: random.Random) -> None:
    path.chmod(0o644)
    os.truncate(path, dice.randrange(path.stat().st_size + 1))


def zero_end(path: Path, dice: random.Random) -> None:
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def remove_file(path: Path, dice: random.Random) -> None:
    path.unlink()


def make_directory(path: Path, dice: random.Random) -> None:
    path.unlink()
    (path / "deep").mkdir(parents=True)


def open_mode(path: Path, dice: random.Random) -> None:
    path.chmod(0o666)


DAMAGES: list[Callable[[Path, random.Random], None]] = [
    damage_byte,
    cut_file,
    zero_end,
    remove_file,
    open_mode,
]


def fetch_in_child(variables: dict[str, str], components: tuple[str, ...], verify: bool) -> None:
    """What a process does that somebody kills."""
    os.environ.update(variables)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    toolchain = read_toolchain("qnn-sdk")
    options = Options(accept_licence=True)
    request = ArtifactRequest(toolchain, toolchain.release(), components, options)
    provision_one(request, Store(), Progress(), verify=verify)


class Stage:
    """What all plays share: a server, a directory, and the count of steps."""

    def __init__(self, directory: Path, server: BadServer) -> None:
        self.directory, self.server = directory, server
        self.plays, self.steps = 0, 0
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload([__name__, "requests"])

    def world(self) -> made.World:
        self.plays += 1
        directory = self.directory / f"play{self.plays}"
        directory.mkdir()
        return made.serve_world(directory, self.server)


class Adversary(RuleBasedStateMachine):
    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        stage = self.stage
        self.server = stage.server
        self.server.faults.clear()
        self.server.requests.clear()
        self.world = stage.world()
        self.outside = self.world.home.parent / "outside"
        (self.outside / "lib").mkdir(parents=True)
        (self.outside / "keep").write_bytes(b"keep")
        (self.outside / "lib/libQnnHtp.so").write_bytes(b"mine")
        self.before = self.look_outside()
        self.said = io.StringIO()
        self.tampered: set[str] = set()
        self.variables = {**self.world.variables, **QUICK}
        os.environ.update(self.variables)
        self.truth = made.sdk_files()

    def look_outside(self) -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (
                path.lstat().st_mode,
                path.lstat().st_mtime_ns,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in sorted(self.outside.rglob("*"))
        }

    @initialize(locked=st.booleans())
    def describe(self, locked: bool) -> None:
        """Two URLs with secrets in them; every file locked, or only the archive pinned."""
        sdk = self.world.home.parent / "sdk.zip"
        self.server.files["mirror.zip"] = self.server.files["sdk.zip"]
        urls = [
            self.server.url(name).replace("//", f"//me:{SECRET}@") + f"?sig={SECRET}"
            for name in ("sdk.zip", "mirror.zip")
        ]
        text = made.describe_sdk(urls, sdk)
        (self.world.manifests / "toolchains/qnn-sdk.toml").write_text(text)
        if locked:
            lock = make_lock(self.request(()), Store(), Progress())
            write_whole(project_lock_path("qnn-sdk", made.VERSION), encode_record(lock))
            shutil.rmtree(self.world.home)

    def request(self, components: tuple[str, ...]) -> ArtifactRequest:
        toolchain = read_toolchain("qnn-sdk")
        options = Options(accept_licence=True)
        return ArtifactRequest(toolchain, toolchain.release(), components, options)

    def fetch(self, components: tuple[str, ...], *, verify: bool) -> bool:
        """Whether it ended well; an error that is not of the tree ends the play."""
        request = self.request(components)
        try:
            found = provision_one(request, Store(), Progress(self.said), verify=verify)
        except QnnCiError as error:
            self.said.write(str(error))
            return False
        if verify or found.fetched:
            self.tampered.discard(found.root.parent.name)
        return True

    @rule(
        components=st.sampled_from(COMPONENTS),
        verify=st.booleans(),
        first=st.lists(st.sampled_from(sorted(FAULTS)), max_size=6),
        second=st.lists(st.sampled_from(sorted(FAULTS)), max_size=4),
    )
    def fetch_from_bad_server(
        self, components: tuple[str, ...], verify: bool, first: list[str], second: list[str]
    ) -> None:
        self.server.faults["sdk.zip"] = [FAULTS[name] for name in first]
        self.server.faults["mirror.zip"] = [FAULTS[name] for name in second]
        self.fetch(components, verify=verify)

    @rule(components=st.sampled_from(COMPONENTS), verify=st.booleans())
    def fetch_from_good_server(self, components: tuple[str, ...], verify: bool) -> None:
        self.server.faults.clear()
        assert self.fetch(components, verify=verify), self.said.getvalue()[-2000:]

    @rule(
        components=st.sampled_from(COMPONENTS),
        verify=st.booleans(),
        delay_ms=st.integers(0, 120),
        faults=st.lists(st.sampled_from(sorted(FAULTS)), max_size=3),
    )
    def kill(
        self, components: tuple[str, ...], verify: bool, delay_ms: int, faults: list[str]
    ) -> None:
        self.server.faults["sdk.zip"] = [FAULTS[name] for name in faults]
        process = self.stage.processes.Process(
            target=fetch_in_child, args=(self.variables, components, verify)
        )
        process.start()
        time.sleep(delay_ms / 1000)
        process.kill()
        process.join()
        process.close()

    def pick(self, dice: random.Random, pattern: str) -> Path | None:
        """A path below the store, none that a link leads to; a file has no other name then."""
        home = self.world.home
        paths = [
            path
            for path in sorted(home.glob(pattern))
            if not any(at.is_symlink() for at in path.parents if at.is_relative_to(home))
        ]
        if not paths:
            return None
        path = dice.choice(paths)
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink > 1:
            data, mode = path.read_bytes(), path.stat().st_mode
            path.unlink()
            path.write_bytes(data)
            path.chmod(mode)
        return path

    def mark(self, path: Path) -> None:
        self.tampered.add(path.relative_to(self.world.home / "store").parts[0])

    @rule(seed=st.integers(0, 1 << 30))
    def tamper_with_a_file(self, seed: int) -> None:
        dice = random.Random(seed)
        path = self.pick(dice, "store/[!.]*/**/*.*")
        if path and path.is_file() and not path.is_symlink():
            self.mark(path)
            dice.choice([*DAMAGES, make_directory])(path, dice)

    @rule(seed=st.integers(0, 1 << 30), hard=st.booleans())
    def put_a_link(self, seed: int, hard: bool) -> None:
        dice = random.Random(seed)
        path = self.pick(dice, "store/[!.]*/qnn-sdk/**/*")
        if path is None or path.is_symlink():
            return
        self.mark(path)
        if path.is_dir():
            shutil.rmtree(path)
            path.symlink_to(self.outside / dice.choice(["lib", "."]))
        else:
            path.unlink()
            (path.hardlink_to if hard else path.symlink_to)(self.outside / "keep")

    @rule(seed=st.integers(0, 1 << 30))
    def replace_a_tree_by_a_link(self, seed: int) -> None:
        path = self.pick(random.Random(seed), "store/[!.]*")
        if path and not path.is_symlink():
            shutil.rmtree(path)
            path.symlink_to(self.outside)

    @rule(seed=st.integers(0, 1 << 30))
    def add_what_does_not_belong(self, seed: int) -> None:
        dice = random.Random(seed)
        path = self.pick(dice, "store/[!.]*/qnn-sdk/")
        if path and path.is_dir() and not path.is_symlink():
            self.mark(path)
            name = dice.choice([".git", "lib/.git/x", "empty", "a/b/c", "\u20ac", "x" * 255])
            target = path / name
            if not os.path.lexists(target) and not any(p.is_symlink() for p in target.parents):
                if dice.random() < 0.5:
                    target.mkdir(parents=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text("x")

    @rule(seed=st.integers(0, 1 << 30))
    def edit_tree_json(self, seed: int) -> None:
        dice = random.Random(seed)
        path = self.pick(dice, "store/[!.]*/tree.json")
        if path is None or path.is_symlink() or path.parent.is_symlink() or not path.is_file():
            return
        self.mark(path)
        changes: list[dict[str, Any]] = [
            {"files": []},
            {"artifact": "other"},
            {"version": "../.."},
            {"source_sha256": "0" * 64},
            {"components": ["none"]},
            {"files": [{"path": "../../outside/keep"}]},
            {"schema_version": 99},
        ]
        try:
            data = json.loads(path.read_text())
        except ValueError:
            return
        path.write_text(json.dumps({**data, **dice.choice(changes)}))

    @rule(seed=st.integers(0, 1 << 30))
    def tamper_with_downloads(self, seed: int) -> None:
        dice = random.Random(seed)
        path = self.pick(dice, "downloads/*") if dice.random() < 0.5 else None
        path = path or self.pick(dice, "downloads/.*.*")
        if path and path.is_file() and not path.is_symlink():
            dice.choice(DAMAGES)(path, dice)

    @rule(seed=st.integers(0, 1 << 30))
    def link_downloads(self, seed: int) -> None:
        dice = random.Random(seed)
        path = self.pick(dice, "downloads/.*.*")
        if path and not path.is_dir():
            path.unlink()
            dice.choice([path.symlink_to, path.hardlink_to])(self.outside / "keep")

    @rule(
        name=st.sampled_from(["locks/qnn-sdk.lock", "licences.json", "pins/x.json", "uses/x"]),
        hard=st.booleans(),
    )
    def link_a_record(self, name: str, hard: bool) -> None:
        path = self.world.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        (path.hardlink_to if hard else path.symlink_to)(self.outside / "keep")

    @rule(what=st.sampled_from(["store", "downloads", "locks", "."]))
    def lose(self, what: str) -> None:
        shutil.rmtree(self.world.home / what, ignore_errors=True)

    @rule(downloads=st.booleans())
    def collect(self, downloads: bool) -> None:
        store = Store()
        named = {self.request(()).key().directory}
        garbage, _ = find_garbage(store, named, {f"qairt-{made.VERSION}.zip"}, downloads=downloads)
        remove_garbage(store, garbage)

    @invariant()
    def nothing_outside_changes(self) -> None:
        self.stage.steps += 1
        after = self.look_outside()
        kept = {name: value[:1] + value[2:] for name, value in after.items()}
        assert kept == {name: value[:1] + value[2:] for name, value in self.before.items()}

    @invariant()
    def a_reader_sees_a_whole_right_tree_or_none(self) -> None:
        for path in (self.world.home / "store").glob("[!.]*"):
            if path.name in self.tampered or path.is_symlink():
                continue
            names = [row["path"] for row in json.loads((path / "tree.json").read_text())["files"]]
            assert names
            for name in names:
                if name in self.truth:
                    assert (path / "qnn-sdk" / name).read_bytes() == self.truth[name]

    @invariant()
    def no_message_has_a_secret(self) -> None:
        said = self.said.getvalue()
        assert SECRET not in said
        assert mask_credentials(said) == said
        self.said.seek(0)
        self.said.truncate()

    def teardown(self) -> None:
        self.server.faults.clear()
        try:
            for components in COMPONENTS:
                assert self.fetch(components, verify=True), self.said.getvalue()[-2000:]
            self.a_reader_sees_a_whole_right_tree_or_none()
            self.nothing_outside_changes()
            for path in self.world.home.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    assert SECRET.encode() not in path.read_bytes(), path
        finally:
            shutil.rmtree(self.world.home.parent)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    sizes = {name: (kind, size // 20) for name, (kind, size) in made.LIBRARY_SIZES.items()}
    monkeypatch.setattr(made, "LIBRARY_SIZES", sizes)
    for name in ("CI", "QNN_SDK_ROOT", "QNN_CI_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with bad.running() as server:
        yield Stage(tmp_path, server)
    end_fork_server()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.timeout(7200)
def test_no_play_of_the_adversary_succeeds(stage: Stage) -> None:
    Adversary.stage = stage
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = settings(
        max_examples=max(1, STEPS // PLAY_STEPS // 2),
        stateful_step_count=PLAY_STEPS,
        deadline=None,
        database=None,
        derandomize="QNN_CI_TEST_STEPS" not in os.environ,
        print_blob=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    while stage.steps < STEPS:
        run_state_machine_as_test(Adversary, settings=options)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MEMORY_LIMIT_KIB
