"""Attacks on each kind of source at each stage, five each, against a server on loopback.

``list_attacks`` yields them with how each ends: the right tree is in place, or the fetch is refused
with an exit code of 2 to 5. Nothing outside the store changes, nothing half-made stays, and without
the attack the same store gives the right tree.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from provisioning.artifacts.lockfile import project_lock_path
from provisioning.artifacts.sources import ArtifactRequest, Options, wheel
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ExitCode, QnnCiError
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault
from tests.stand_ins.provisioned import provision_one

FILES = {"a.txt": b"a", "lib/one": b"1" * 9000, "lib/two": b"2" * 9000}
AAR_PATH = "g/sdk/1/sdk-1.aar"
WHEEL_NAME = "sdk-1.0-py3-none-any.whl"
SERVED = {"archive": "sdk.zip", "aar": AAR_PATH, "wheel": WHEEL_NAME}
FILENAMES = {"archive": "sdk.zip", "aar": "sdk-1.aar", "wheel": WHEEL_NAME}
RIGHT, REFUSED = "right", "refused"
ENDS = {
    RIGHT: {ExitCode.OK},
    REFUSED: {ExitCode.USAGE, ExitCode.ENVIRONMENT, ExitCode.DOWNLOAD, ExitCode.TOOL},
}
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")


def pack(files: dict[str, bytes], link: str = "") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        if link:
            info = zipfile.ZipInfo("link")
            info.create_system, info.external_attr = 3, 0o120777 << 16
            archive.writestr(info, link)
    return packed.getvalue()


GOOD = pack(FILES)


@dataclass
class Target:
    """An artifact of one kind, its server, and what an attack changes of them."""

    kind: str
    root: Path
    server: BadServer
    repository: Path
    patch: pytest.MonkeyPatch
    row: dict[str, str] = field(default_factory=dict)
    options: Options = field(default_factory=Options)

    @property
    def home(self) -> Path:
        return self.root / "home"

    def write(self) -> None:
        """The manifest, with what ``row`` says otherwise."""
        commit = (self.repository / "commit").read_text()
        pin = {"sha256": hashlib.sha256(GOOD).hexdigest()} if self.kind in SERVED else {}
        usual = {
            "archive": {"url": self.server.url("sdk.zip"), "filename": "sdk.zip"},
            "aar": {"package": "g:sdk", "package_version": "1", "filename": "sdk-1.aar"},
            "wheel": {
                "package": "sdk",
                "package_version": "1.0",
                "filename": WHEEL_NAME,
                "platform": "any",
                "python": "3.11",
            },
            "git": {"url": f"file://{self.repository}/main", "commit": commit},
        }[self.kind]
        row = {"version": "1", **usual, **pin, **self.row}
        name, put, extra = row.pop("name", "sdk"), row.pop("put", ""), row.pop("extra", "")
        lines = [f'{key} = "{text}"' for key, text in row.items() if text]
        if self.kind == "archive":
            lines.append(f'mirrors = ["{self.server.url("second.zip")}"]')
        if self.kind in SERVED:
            lines.append("unpacked_bytes = 100000")
        path = self.root / "manifests/toolchains/sdk.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'name = "{name}"\nsummary = "tiny"\ndefault = "{row["version"]}"\n'
            f'[licence]\nname = "free"\ntext = "none"\n'
            f'[[releases]]\nsource = "{self.kind}"\n' + "\n".join(lines) + f"\n{extra}\n"
            f'layout = [{{ take = "**", put = "{put}" }}]\n'
        )

    def fetch(self) -> Path:
        self.write()
        toolchain = read_toolchain("sdk")
        request = ArtifactRequest(toolchain, toolchain.release(), (), self.options)
        provisioned = provision_one(request, Store(self.home), Progress(), verify=True)
        return provisioned.root

    def check(self, root: Path) -> None:
        files = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and ".git" not in path.parts
        }
        assert files == FILES


Do = Callable[[Target], None]


@dataclass(frozen=True)
class Attack:
    kind: str
    stage: str
    name: str
    do: Do
    ends: str


def answer(*faults: Fault) -> Do:
    """The file meets these faults; the last one for ever if there are several alike."""

    def do(target: Target) -> None:
        served = SERVED.get(target.kind, "r.git/info/refs")
        target.server.faults[served] = list(faults)
        target.server.files.setdefault(served, GOOD)
        if target.kind == "git":
            target.row["url"] = target.server.url("r.git")

    return do


def serve_other(target: Target) -> None:
    target.server.files[SERVED[target.kind]] = GOOD[:-1] + b"x"


def pin_to(data: bytes) -> Do:
    """Archive that is hostile by itself, and pinned as it is."""

    def do(target: Target) -> None:
        target.row["sha256"] = hashlib.sha256(data).hexdigest()
        for name in (SERVED[target.kind], "second.zip"):
            target.server.files[name] = data

    return do


def change_row(**row: str) -> Do:
    return lambda target: target.row.update(row)


def in_tree(change: Callable[[Path], object]) -> Do:
    def do(target: Target) -> None:
        change(target.fetch())

    return do


def nest(depth: int, root: Path) -> None:
    directory_fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=directory_fd)
        below = os.open("d", os.O_RDONLY, dir_fd=directory_fd)
        os.close(directory_fd)
        directory_fd = below
    os.close(directory_fd)


def rewrite(root: Path) -> None:
    (root / "a.txt").chmod(0o644)
    (root / "a.txt").write_bytes(b"b")


def set_variable(name: str, text: str) -> Do:
    def do(target: Target) -> None:
        where = text.replace("ROOT", str(target.root)).replace("URL", target.server.url("")[:-1])
        target.patch.setenv(name, where)

    return do


def place(path: str, make: Callable[[Path, Path], object]) -> Do:
    """Something at a path of the world, made from the canary."""

    def do(target: Target) -> None:
        at = target.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        make(at, target.root / "outside/canary")

    return do


def both(*steps: Do) -> Do:
    def do(target: Target) -> None:
        for step in steps:
            step(target)

    return do


def mistrust(variable: str = "", *, consent: bool = True) -> Do:
    """No hash is known."""

    def do(target: Target) -> None:
        target.row["sha256"] = ""
        target.options = Options(trust_first_use=consent)
        if variable:
            target.patch.setenv(variable, "true")

    return do


def damage_lock(target: Target) -> None:
    target.write()
    path = project_lock_path("sdk", "1")
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"artifact": "sdk", "files": [{"path": "../../x"}]}')


def spoil_repository(path: str, data: bytes | None) -> Do:
    """A copy of the repository of which a file is another one, or gone."""

    def do(target: Target) -> None:
        copy = target.root / "copy"
        shutil.copytree(target.repository / "main", copy, symlinks=True)
        target.row["url"] = f"file://{copy}"
        for match in copy.glob(path):
            match.chmod(0o644) if match.is_file() else None
            match.write_bytes(data) if data is not None else shutil.rmtree(match)

    return do


def fifo(at: Path, canary: Path) -> None:
    del canary
    os.mkfifo(at)


HOSTILE = {
    "leads out": pack({"../../../x": b"x", **FILES}),
    "is absolute": pack({"/etc/x": b"x", **FILES}),
    "has a link out": pack(FILES, "../../../../outside/canary"),
    "clashes with itself": pack({"lib": b"x", **FILES}),
    "is a bomb": pack({"zeros": bytes(200_000), **FILES}),
}
PAGE = bad.whole(b"<!doctype html><html>Sign in</html>", Content_Type="text/html")
TREES: dict[str, Do] = {
    "another byte": in_tree(rewrite),
    "another file": in_tree(lambda root: (root / "more").touch()),
    "a file less": in_tree(lambda root: (root / "lib/one").unlink()),
    "open to all": in_tree(lambda root: root.chmod(0o777)),
}
PATHS: dict[str, tuple[Do, str]] = {
    "a name that leads out": (change_row(name="../../x"), REFUSED),
    "a version that leads out": (change_row(version="../../outside"), REFUSED),
    "a place that leads out": (change_row(put="../../../outside/"), REFUSED),
    "a text that is absolute": (change_row(extra='write = { "/etc/x" = "x" }'), REFUSED),
    "a link that leads out": (change_row(extra='links = { "../../x" = "canary" }'), REFUSED),
}
SMALL = answer(*[bad.whole(b'{"fault": "busy"}')] * 2)
FIRST_USES: dict[str, tuple[Do, str]] = {
    "nobody consents": (mistrust(consent=False), REFUSED),
    **{f"in {name}": (mistrust(name), REFUSED) for name in ("CI", "GITHUB_ACTIONS", "JENKINS_URL")},
    "a small body": (both(mistrust(), SMALL), RIGHT),
}
OWN: dict[tuple[str, str], dict[str, tuple[Do, str]]] = {
    ("git", "transfer"): {
        "broken": (answer(*[bad.status(500)] * 99), REFUSED),
        "missing": (answer(*[bad.status(404)] * 99), REFUSED),
        "a page": (answer(*[PAGE] * 99), REFUSED),
        "no HTTP": (answer(*[bad.raw(bytes(99))] * 99), REFUSED),
        "a loop": (answer(*[bad.redirect("refs")] * 99), REFUSED),
    },
    ("git", "archive"): {
        "another commit": (change_row(commit="1" * 40), REFUSED),
        "a moved tag": (change_row(tag="v1", commit="2" * 40), REFUSED),
        "no objects": (spoil_repository("objects", None), REFUSED),
        "damaged objects": (spoil_repository("objects/??/*", b"x"), REFUSED),
        "no HEAD": (spoil_repository("HEAD", b"x"), REFUSED),
    },
}
LOCKS: dict[str, Do] = {
    "a link at the lock": place("home/locks/sdk.lock", Path.symlink_to),
    "a second name at the lock": place("home/locks/sdk.lock", Path.hardlink_to),
    "a pipe at the lock": place("home/locks/sdk.lock", fifo),
    "a tree that was never finished": place(
        "home/store/.sdk.staging-abcd1234/sdk/x", lambda at, canary: at.symlink_to(canary)
    ),
}
MIRRORS: dict[str, Do] = {
    "a file": set_variable("QNN_CI_MIRROR", "ROOT/outside/canary"),
    "a loop": both(
        place("mirror", lambda at, canary: at.symlink_to(at)),
        set_variable("QNN_CI_MIRROR", "ROOT/mirror"),
    ),
    "zeros": set_variable("QNN_CI_MIRROR", "/dev/zero"),
    "nobody": set_variable("QNN_CI_MIRROR", "http://127.0.0.1:9/m"),
    "a server of pages": set_variable("QNN_CI_MIRROR", "URL/pages"),
}


def list_attacks() -> Iterator[Attack]:
    for kind in ("archive", "wheel", "aar", "git"):
        for name, do in TREES.items():
            yield Attack(kind, "tree", name, do, RIGHT)
        # Deeper than Python's recursion limit. Only a checkout is read in another way than all
        # other trees, and deep ones take seconds.
        depth = 1100 if kind in {"archive", "git"} else 150
        nested = in_tree(partial(nest, depth))
        yield Attack(kind, "tree", f"{depth} directories deep", nested, RIGHT)
        for name, do in LOCKS.items():
            yield Attack(kind, "lock", name, do, RIGHT)
        ends = REFUSED if kind in SERVED else RIGHT  # others have no lock of files
        yield Attack(kind, "lock", "a lock that leads out", damage_lock, ends)
        for name, do in MIRRORS.items():
            yield Attack(kind, "mirror", name, do, RIGHT)
        for name, (do, ends) in (FIRST_USES if kind in {"archive", "aar"} else PATHS).items():
            yield Attack(kind, "trust", name, do, ends)
    for kind, path in SERVED.items():
        ending = REFUSED if kind == "aar" else RIGHT  # which has no second host, and no index
        loop = [bad.redirect(path.rpartition("/")[2])] * 99
        yield Attack(kind, "transfer", "busy", answer(bad.status(503)), RIGHT)
        yield Attack(kind, "transfer", "cut", answer(bad.cut(0.5)), RIGHT)
        yield Attack(kind, "transfer", "a page", answer(PAGE), RIGHT)
        yield Attack(kind, "transfer", "other bytes", serve_other, ending)
        yield Attack(kind, "transfer", "a loop", answer(*loop), ending)
        for name, data in HOSTILE.items():
            yield Attack(kind, "archive", name, pin_to(data), REFUSED)
    for (kind, stage), rows in OWN.items():
        for name, (do, ends) in rows.items():
            yield Attack(kind, stage, name, do, ends)


def list_params() -> Iterator[ParameterSet]:
    for attack in list_attacks():
        name = attack.name.replace(" ", "_")
        yield pytest.param(attack, id=f"{attack.kind}-{attack.stage}-{name}")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository, and the commit that is pinned."""
    root = tmp_path_factory.mktemp("repository")
    for name, data in FILES.items():
        (root / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "work" / name).write_bytes(data)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one"), ("tag", "v1")):
        subprocess.run(["git", "-C", str(root / "work"), *IDENTITY, *words], check=True)
    shutil.copytree(root / "work/.git", root / "main")
    for words in (
        ("config", "core.bare", "true"),
        ("config", "uploadpack.allowAnySHA1InWant", "1"),
    ):
        subprocess.run(["git", "-C", str(root / "main"), *words], check=True)
    argv = ["git", "-C", str(root / "main"), "rev-parse", "HEAD"]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True)
    (root / "commit").write_text(printed.stdout.strip())
    return root


@pytest.fixture(scope="module")
def only_server() -> Iterator[BadServer]:
    with bad.running() as server:
        yield server


@pytest.fixture
def target(
    attack: Attack,
    tmp_path: Path,
    repository: Path,
    only_server: BadServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Target:
    for name in ("CI", "http_proxy", "HTTP_PROXY", "QNN_CI_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/canary").write_bytes(b"alive")
    only_server.faults.clear()
    only_server.files = dict.fromkeys((*SERVED.values(), "second.zip"), GOOD)
    only_server.files |= {f"pages/{name}": b"<html>" for name in (*FILENAMES.values(), "git/x")}
    variables = {
        "QNN_CI_ATTEMPTS": "3",
        "QNN_CI_BACKOFF_S": "0",
        "QNN_CI_MANIFESTS": str(tmp_path / "manifests"),
        "QNN_CI_MAVEN": only_server.url(""),
    }
    if attack.kind == "wheel":
        variables["QNN_CI_MIRROR"] = only_server.url("")
    for name, text in variables.items():
        monkeypatch.setenv(name, text)

    def pip(purpose: str, platforms: object, python: str, words: list[str], **_: object) -> None:
        """An index that has the pinned wheel, unless the attack is on what is pinned."""
        del platforms, python
        if attack.stage == "archive":
            raise DownloadError(purpose, why="no index")
        Path(words[words.index("--dest") + 1], WHEEL_NAME).write_bytes(GOOD)

    monkeypatch.setattr(wheel, "download_with_pip", pip)
    return Target(attack.kind, tmp_path, only_server, repository, monkeypatch)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attack", [*list_params()])
def test_an_attack_on_a_fetch_changes_nothing_outside_and_publishes_no_bad_tree(
    attack: Attack, target: Target
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        target.patch = patch
        attack.do(target)
        try:
            target.check(target.fetch())
            code = ExitCode.OK
        except QnnCiError as error:
            code = error.exit_code
        assert code in ENDS[attack.ends]
        assert code == ExitCode.OK or not list(target.home.glob("store/sdk-*"))
    check_world(target)
    heal(target)
    target.check(target.fetch())
    check_world(target)


def check_world(target: Target) -> None:
    """Nothing outside the store has changed, and nothing half-made is in it."""
    assert (target.root / "outside/canary").read_bytes() == b"alive"
    assert [path.name for path in (target.root / "outside").iterdir()] == ["canary"]
    expected_names = {"outside", "home", "manifests", "copy", "mirror"}
    assert {path.name for path in target.root.iterdir()} <= expected_names
    assert not list(target.home.glob("store/.*"))
    assert not list(target.home.glob("downloads/*.part"))


def heal(target: Target) -> None:
    """The attack is over: files that only it has are gone, and the manifest is right."""
    target.row.clear()
    target.server.faults.clear()
    for name in (*SERVED.values(), "second.zip"):
        target.server.files[name] = GOOD
    project_lock_path("sdk", "1").unlink(missing_ok=True)
