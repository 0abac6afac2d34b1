"""A small SDK: its archive, the manifest that describes it, and a store to provision it into."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.__main__ import main
from provisioning.artifacts.lockfile import Lock, project_lock_path
from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.sources import ArtifactRequest, FillJob, Options
from provisioning.artifacts.trust import make_lock
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError
from provisioning.manifest.reader import read_toolchain
from provisioning.store.store import Store
from provisioning.store.tree import encode_record
from tests.stand_ins import toolchains
from tests.stand_ins.provisioned import provision_one

FILES = {
    "sdk.yaml": b"version: 1.2.3\n",
    "include/a.h": b"#pragma once\n",
    "lib/one.so": b"one" * 100,
    "lib/two.so": b"two" * 100,
}
LIBRARIES = ["lib/link.so", "lib/one.so", "lib/two.so"]
WHOLE = sorted([*FILES, "lib/link.so", "note"])
UNSET = (
    *("CI", "GITHUB_ACTIONS", "TINY_ROOT", "QNN_CI_MIRROR", "QNN_CI_ACCEPT_LICENCE", "QNN_CI_SDK"),
    *("QNN_CI_ADAPTOR", "QNN_CI_CALLER_DIR", "QNN_SDK_ROOT", "ANDROID_NDK_ROOT", "PYTHONPATH"),
    *("HEXAGON_SDK_ROOT", "EXECUTORCH_ROOT", "QNN_CI_LIBCXX_ROOT", "http_proxy", "HTTP_PROXY"),
)
ADOPTION = """
[adoption]
variable = "TINY_ROOT"
markers = ["sdk.yaml"]
version_file = "sdk.yaml"
[components]
base = ["*"]
headers = ["include/**"]
libraries = ["lib/**"]
"""
ADDED = 'links = { "lib/link.so" = "one.so" }\nwrite = { "note" = "x" }'
PROFILE = """
[emulator]
summary = "the emulator"
[[emulator.artifacts]]
name = "sdk"
[emulator.variables]
QNN_SDK_ROOT = "{sdk}"
LD_LIBRARY_PATH = "{sdk}/lib"
"""


def pack_zip(
    files: Mapping[str, bytes], prefix: str = "sdk/", links: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of a ZIP with these files and links, the same for the same content."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(prefix + name), data)
        for name, end in (links or {}).items():
            info = zipfile.ZipInfo(prefix + name)
            info.create_system, info.external_attr = 3, 0o120777 << 16
            archive.writestr(info, end)
    return packed.getvalue()


def pack_tar(files: Mapping[str, bytes], prefix: str = "sdk/") -> bytes:
    """The bytes of a compressed tarball with these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def read_tree(root: Path) -> dict[str, bytes]:
    """The content of each file below a directory, except for links."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def names_below(root: Path) -> list[str]:
    """The files and links below a directory."""
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def write(path: Path, data: bytes | str) -> Path:
    """Write a file, also one of the store, which is read-only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def install(root: Path, version: str = "1.2.3") -> Path:
    """An installation of the SDK that a user made."""
    for name, data in (
        FILES | {"note": b"x", "sdk.yaml": f"version: {version}\n".encode()}
    ).items():
        write(root / name, data).chmod(0o600)
    (root / "lib/link.so").symlink_to("one.so")
    return root


def of(request: ArtifactRequest, **fields: object) -> ArtifactRequest:
    """The request with other fields of its release."""
    return replace(request, release=msgspec.structs.replace(request.release, **fields))


@dataclass(frozen=True)
class Ended:
    """How a verb ended: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def run_verb(*words: str) -> Ended:
    """Run a verb of provisioning in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*words])
    return Ended(code, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Workspace:
    """A directory with vendor.zip, manifests that describe it as artifact ``sdk``, and a store."""

    root: Path
    stream: io.StringIO = field(default_factory=io.StringIO)

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def manifest(self) -> Path:
        return self.manifests / "toolchains/sdk.toml"

    @property
    def store(self) -> Store:
        return Store(self.root / "home")

    @property
    def progress(self) -> Progress:
        return Progress(self.stream)

    @property
    def archive(self) -> Path:
        return self.root / "vendor.zip"

    def printed(self) -> str:
        """What provisioning printed since the last call."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text

    def describe(
        self,
        *urls: str,
        archive: Path | None = None,
        filename: str = "sdk.zip",
        version: str = "1.2.3",
        pinned: bool = True,
        added: str = ADDED,
        layout: str = '{ take = "sdk/**", put = "" }',
        tables: str = ADOPTION,
        unpacked_bytes: int = 1_000_000,
    ) -> None:
        """Write the manifest of an archive at these URLs, by default of vendor.zip."""
        file = archive or self.archive
        first, *mirrors = urls or [file.as_uri()]
        data = file.read_bytes()
        pin = f'sha256 = "{hashlib.sha256(data).hexdigest()}"\nsize_bytes = {len(data)}'
        release = f"""
source = "archive"
filename = "{filename}"
url = "{first}"
mirrors = {mirrors}
unpacked_bytes = {unpacked_bytes}
layout = [{layout}]
{added}
{pin if pinned else ""}
"""
        toolchains.describe(self.manifests, "sdk", release, version=version, tables=tables)

    def edit(self, old: str, new: str) -> None:
        """Replace text that is in the manifest."""
        text = self.manifest.read_text()
        assert old in text
        self.manifest.write_text(text.replace(old, new))

    def add_artifact(self, name: str) -> None:
        """Describe the same archive as another artifact, with a download of its own."""
        text = self.manifest.read_text().replace('"sdk"', f'"{name}"')
        self.manifest.with_name(f"{name}.toml").write_text(
            text.replace('"sdk.zip"', f'"{name}.zip"')
        )

    def ask(
        self, *components: str, trust: bool = False, offline: bool = False, accept: bool = True
    ) -> ArtifactRequest:
        return ask("sdk", *components, options=Options(offline, trust, accept))

    def provision(
        self, *components: str, trust: bool = False, offline: bool = False, verify: bool = False
    ) -> Provisioned:
        request = self.ask(*components, trust=trust, offline=offline)
        return provision_one(request, self.store, self.progress, verify=verify)

    def lock(self, **fields: Any) -> Lock:
        """Write the project's lock, with these fields changed."""
        path = project_lock_path("sdk", self.ask().release.version)
        lock = msgspec.structs.replace(make_lock(self.ask(), self.store, Progress()), **fields)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_record(lock))
        return lock

    def job(self, request: ArtifactRequest | None = None) -> FillJob:
        """A job that fills a fresh directory."""
        number = len([*self.root.glob("job-*")])
        root = self.root / f"job-{number}"
        root.mkdir()
        return FillJob(request or self.ask(), root, self.store, self.progress)


def ask(name: str, *components: str, options: Options | None = None) -> ArtifactRequest:
    """A request for the default release of an artifact."""
    toolchain = read_toolchain(name)
    return ArtifactRequest(toolchain, toolchain.release(), components, options or Options())


def make_workspace(root: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace that provisioning uses, with profile ``emulator``."""
    workspace = Workspace(root)
    for name in UNSET:
        monkeypatch.setenv(name, "")  # so that it is undone if the code under test sets it
        monkeypatch.delenv(name)
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(workspace.manifests))
    monkeypatch.setenv("QNN_CI_HOME", str(workspace.store.home))
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "1")
    monkeypatch.setenv("QNN_CI_BACKOFF_S", "0")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    workspace.archive.write_bytes(pack_zip(FILES))
    workspace.describe()
    (workspace.manifests / "profiles.toml").write_text(PROFILE)
    return workspace


def tidy(text: str, root: Path) -> str:
    """The text without what differs between machines and runs."""
    text = text.replace(str(root), "TMP")
    text = re.sub(r"[0-9a-f]{40,64}", "HASH", text)
    text = re.sub(r"(pinned, |archive +)[0-9a-f]{12}([0-9a-f]{4})?\b", r"\1HASH", text)
    text = re.sub(r"(?<=sdk-1\.2\.3-)[0-9a-f]{12}", "KEY", text)
    text = re.sub(r"while parsing.*", "what YAML says", text)
    return re.sub(r"[\d,.]+ \w+ (are|is) free", "N are free", text)


def show_refusals(calls: Mapping[str, Callable[[], object]]) -> str:
    """The error that each call ends with: its kind, its exit code and its message."""
    shown = ""
    for name, call in calls.items():
        with pytest.raises(QnnCiError) as caught:
            call()
        error = caught.value
        shown += f"{name}\n  {type(error).__name__} {error.exit_code:d} {error}\n"
    return shown


@dataclass
class Transcript:
    """Verbs with what they print, as on a terminal."""

    root: Path
    text: str = ""

    def note(self, title: str) -> None:
        self.text += f"# {title}\n"

    def run(self, *words: str) -> Ended:
        ended = run_verb(*words)
        self.text += tidy(f"$ qnn-ci {' '.join(words)}\n", self.root)
        out = json.dumps(ended.data, indent=1) + "\n" if "--json" in words else ended.out
        self.text += tidy(out, self.root) + re.sub(r"(?m)^", "! ", tidy(ended.err, self.root))[:-2]
        self.text += f"exit code {ended.code}\n"
        return ended


# -- git ------------------------------------------------------------------------------------------


def git(root: Path, *words: str) -> str:
    """What git prints in a directory."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    ended = subprocess.run(["git", *who, *words], cwd=root, capture_output=True, check=True)
    return ended.stdout.decode().strip()


def commit(repository: Path, files: Mapping[str, bytes | str] | None = None, *init: str) -> str:
    """Commit files, in a new repository if there is none: the commit."""
    repository.mkdir(parents=True, exist_ok=True)
    if not (repository / ".git").exists():
        git(repository, "init", "--quiet", *init)
    for name, data in (files or {}).items():
        write(repository / name, data)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "more")
    return git(repository, "rev-parse", "HEAD")


# -- pip ------------------------------------------------------------------------------------------


@dataclass
class Pip:
    """A pip that puts ``brings`` into the directory that it is told, and notes its arguments."""

    brings: Mapping[str, bytes]
    commands: list[list[str]] = field(default_factory=list)
    required: str = ""

    def run(self, argv: Sequence[str], **_: object) -> None:
        words = [str(word) for word in argv]
        self.commands.append(words)
        if "--requirement" in words:
            self.required = Path(words[words.index("--requirement") + 1]).read_text()
        for name, data in self.brings.items():
            write(Path(words[words.index("--dest") + 1]) / name, data).chmod(0o600)
