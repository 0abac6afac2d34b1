"""What the steps of provisioning print, and refusals that only happen on the way to a tree."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.artifacts import consent, provision
from provisioning.artifacts.pins import Change, plan_lock, plan_update, take_archive
from provisioning.artifacts.provision import adopt_artifact, provision_artifacts
from provisioning.artifacts.sources import (
    ArtifactRequest,
    FillJob,
    Options,
    aar,
    archive,
    local,
    wheel,
    zig,
)
from provisioning.artifacts.sources.archive import obtain_archive
from provisioning.artifacts.sources.unpacking import judge_archive, unpack_file
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, QnnCiError
from provisioning.manifest.reader import read_toolchain
from provisioning.manifest.releases import ZigRelease
from provisioning.store.store import Store
from tests.stand_ins import elf_edits as elf
from tests.stand_ins import toolchains as made
from tests.stand_ins.provisioned import provision_one
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.provisioning.artifacts.test_messages import (
    job_of,
    raise_error,
    store,
    tiny,
    unpinned,
)
from tests.unit.provisioning.artifacts.test_provision import FILES, ask, describe

__all__ = ["store"]

SNAPSHOTS = Path(__file__).with_name("snapshots")
SKEL = Path(__file__).parents[3] / "artifacts/elf/libhexagon.so"
GIT_ROW = f'source = "git"\nurl = "https://vendor.invalid/x"\ncommit = "{"a" * 40}"\n'


def is_tidy(text: str, tmp_path: Path) -> str:
    """The text without what differs between machines and runs."""
    text = text.replace(str(tmp_path), "TMP")
    text = re.sub(r"[0-9a-f]{40,64}", "HASH", text)
    text = re.sub(r"pinned, [0-9a-f]{16}", "pinned, HASH", text)
    return re.sub(r"[\d,.]+ \w+ (are|is) free", "N are free", text)


def steps_of(job: FillJob) -> str:
    assert isinstance(job.progress.stream, io.StringIO)
    return job.progress.stream.getvalue()


def show(tmp_path: Path, calls: dict[str, Callable[[], object]]) -> str:
    shown = ""
    for name, call in calls.items():
        with pytest.raises(QnnCiError) as caught:
            call()
        error = caught.value
        shown += f"{name}\n  {type(error).__name__} {error.exit_code:d} {error}\n"
    return is_tidy(shown, tmp_path)


def of(request: ArtifactRequest, **fields: object) -> ArtifactRequest:
    release = msgspec.structs.replace(request.release, **fields)
    return replace(request, release=release)


def write_library(root: Path, folder: str, data: bytes | bytearray) -> Path:
    """A directory that has one library."""
    (root / folder).mkdir(parents=True)
    (root / folder / "libA.so").write_bytes(data)
    return root


def write_tar(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name in names:
            packed.addfile(tarfile.TarInfo(name))
    return path


def update_below_a_file(request: ArtifactRequest, file: Path) -> None:
    plan_update(request, "9", Store(file / "home"), Progress(io.StringIO()))


def test_every_refusal_on_the_way_to_a_tree_says_what_why_and_what_to_do(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, quiet = ask(), Progress(io.StringIO())
    damaged = bytearray(SKEL.read_bytes())
    elf.add_swiv(damaged)
    damaged[200] ^= 1
    skels, others = tmp_path / "skels", tmp_path / "others"
    write_library(skels, "lib/hexagon-v75/unsigned", damaged)
    write_library(others, "lib/aarch64-android", made.make_library(62, 9000))
    elsewhere = of(request, layout=[msgspec.structs.replace(request.release.layout[0], take="a/*")])
    stub = of(request, unpacked_bytes=10**9)
    tar = write_tar(tmp_path / "sdk.tar.gz", "other/a")
    big = tmp_path / "big"
    big.mkdir()
    (big / "sdk.yaml").write_bytes(b"#" * (1 << 17))
    (tmp_path / "directory/sdk.yaml").mkdir(parents=True)
    made.describe(tmp_path / "manifests", "code", GIT_ROW)
    code = read_toolchain("code")
    git = ArtifactRequest(code, code.release())
    (tmp_path / "file").touch()
    unknown = {"sha256": "", "filename": "sdk.tar.gz"}

    def fill(request: ArtifactRequest, path: Path) -> object:
        shutil.rmtree(tmp_path / "root", ignore_errors=True)
        (tmp_path / "root").mkdir()
        return unpack_file(path, FillJob(request, tmp_path / "root", store, quiet))

    linked = of(request, links={"lib/link.so": "../../one.so"})
    calls = {
        "a damaged library": lambda: consent.check_machines(skels),
        "another machine": lambda: consent.check_machines(others),
        "nothing selected of a ZIP": lambda: fill(elsewhere, tmp_path / "vendor.zip"),
        "nothing selected of a tarball": lambda: fill(elsewhere, tar),
        "a link out of a ZIP": lambda: fill(linked, tmp_path / "vendor.zip"),
        "nothing to trust in a ZIP": lambda: judge_archive(tmp_path / "vendor.zip", elsewhere),
        "nothing to trust in a tarball": lambda: judge_archive(tar, of(elsewhere, **unknown)),
        "a stub": lambda: judge_archive(tmp_path / "vendor.zip", stub),
        "an archive that is gone": lambda: obtain_archive(
            of(request, url=f"file://{tmp_path}/gone.zip"), store, quiet
        ),
        "the URL of another version": lambda: archive.find_release(
            job_of(of(request, url=f"file://{tmp_path}/vendor.zip?token=secret"), store), "1.3"
        ),
        "no version": lambda: archive.find_release(job_of(request, store), ""),
        "pins that cannot be written": lambda: Change(tmp_path / "file/row", "a", "b").write(),
        "an update that has no room": lambda: update_below_a_file(request, tmp_path / "file"),
        "no lock": lambda: plan_lock(git, store, quiet),
        "not one file": lambda: take_archive(git, tmp_path / "file", store),
        "a large sdk.yaml": lambda: local.read_sdk_yaml(big),
        "an sdk.yaml that is a directory": lambda: local.read_sdk_yaml(tmp_path / "directory"),
        "an installation of nothing": lambda: local.find_installation(
            ask("libraries", "headers"), {"TINY_ROOT": str(skels)}
        ),
        "a copy of nothing": lambda: local.fill(job_of(request, store)),
    }
    text = show(tmp_path, calls)
    other = read_toolchain("tiny")
    licence = msgspec.structs.replace(other.licence, accept=True)
    both = [
        replace(unpinned(), components=("headers",)),
        replace(tiny(), toolchain=msgspec.structs.replace(other, licence=licence)),
    ]
    text += show(tmp_path, {"two": lambda: provision_artifacts(both, store, quiet)})
    monkeypatch.setenv("CI", "1")
    text += show(tmp_path, {"two in CI": lambda: provision_artifacts(both, store, quiet)})
    check_snapshot(SNAPSHOTS / "refusals.txt", text)


def test_a_library_that_cannot_be_compiled_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = read_toolchain("libatomic")
    request = ArtifactRequest(toolchain, toolchain.release())
    gone = DownloadError("the compiler", why="no network")
    monkeypatch.setattr(zig, "obtain_wheel", lambda *words: raise_error(gone))
    job = FillJob(request, tmp_path / "root", Store(tmp_path / "home"), Progress())
    with pytest.raises(DownloadError) as caught:
        zig.fill(job)
    error = caught.value
    assert error.what.startswith(Path(request.release.output).name)  # type: ignore[attr-defined]
    assert error.why == "no network"
    assert error.fix.endswith(f": {request.release.instead}")  # type: ignore[attr-defined]


def test_a_library_is_compiled_by_the_pinned_compiler_from_the_manifests_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = read_toolchain("libatomic")
    request = ArtifactRequest(toolchain, toolchain.release())
    release = request.release_as(ZigRelease)
    job = FillJob(request, tmp_path / "root", Store(tmp_path / "home"), Progress(io.StringIO()))
    job.root.mkdir()
    asked: list[Any] = []

    def unpack(file: Path, whole: FillJob) -> None:
        assert (file, whole.only, whole.request) == (tmp_path / "wheel", None, request)
        for name in ("zig", *release.write):
            (whole.root / name).parent.mkdir(parents=True, exist_ok=True)
            (whole.root / name).write_text(name)

    def compile_it(argv: list[Any], **more: Any) -> None:
        asked.append((argv, more))
        place = more["cwd"]
        assert (place / "zig").stat().st_mode & 0o777 == 0o500
        (place / release.output).parent.mkdir(parents=True, exist_ok=True)
        (place / release.output).write_bytes(b"library")
        (place / release.output).chmod(0o755)  # as a linker does

    monkeypatch.setattr(zig, "obtain_wheel", lambda *words: tmp_path / "wheel")
    monkeypatch.setattr(zig, "unpack_file", unpack)
    monkeypatch.setattr(zig, "run_process", compile_it)
    entries = {entry.path: entry for entry in zig.fill(job)}
    ((argv, more),) = asked
    place = more.pop("cwd")
    assert argv == [place / "zig", "cc", "@arguments"]
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(place), "ZIG_LOCAL_CACHE_DIR": str(place)}
    fix = f"install the library: {release.instead}"
    assert more == {"env": caches, "timeout_s": 300, "fix": fix}
    assert place.parent == tmp_path
    assert not place.exists()
    assert list(entries) == sorted([*release.write, release.output])
    assert (job.root / release.output).read_bytes() == b"library"
    assert {entry.mode for entry in entries.values()} == {0o444}
    assert steps_of(job) == f"{request.label}: compiling {Path(release.output).name}\n"
    (tmp_path / "again").mkdir()
    part = replace(job, root=tmp_path / "again", only=frozenset([release.output]))
    assert [entry.path for entry in zig.fill(part)] == [release.output]


# -- steps ----------------------------------------------------------------------------------------


def test_each_step_is_printed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ""

    def step(name: str, call: Callable[[Progress], object], *, parallel: bool = False) -> None:
        nonlocal shown
        said = io.StringIO()
        try:
            call(Progress(said))
        except QnnCiError as error:
            said.write(f"{type(error).__name__} {error}\n")
        lines = said.getvalue().splitlines()
        shown += "\n".join([name, *(sorted(lines) if parallel else lines), ""])

    def get(*components: str, verify: bool = False) -> Callable[[Progress], object]:
        return lambda progress: provision_one(ask(*components), store, progress, verify=verify)

    step("fetch", get())
    step("fetch again", get())
    root = next(store.trees.glob("*/sdk"))
    for number in range(12):
        (root / f"extra{number:02}").touch()
    step("verify", get(verify=True))
    for number in range(11):
        (root / f"extra{number:02}").touch()
    step("verify eleven", get(verify=True))
    (root / "lib/one.so").unlink()
    step("verify one", get(verify=True))
    (root / "extra").touch()
    with monkeypatch.context() as patch:
        patch.setattr(provision, "_fetch", lambda *words: None)
        step("a repair that repairs nothing", get(verify=True))
    (store.downloads / "sdk.zip").write_bytes(b"short")
    shutil.rmtree(store.trees)
    step("a download that was changed", get("headers", "base"))
    installed = tmp_path / "installed"
    for name, data in FILES.items():
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_bytes(data)
    (installed / "sdk.yaml").write_text("version: 1.2.2\n")
    monkeypatch.setenv("TINY_ROOT", str(installed))
    step("an installation", lambda progress: adopt_artifact(ask(), store, progress))
    (installed / "sdk.yaml").write_text("version: 1.2.3\n")
    step("the pinned version", lambda progress: adopt_artifact(ask(), store, progress))
    monkeypatch.delenv("TINY_ROOT")
    shutil.rmtree(store.home)
    describe(tmp_path / "manifests", tmp_path / "vendor.zip", pinned=False)
    trusted = [ask(trust=True), replace(tiny(offline=True), options=Options(offline=True))]
    step("two", lambda progress: provision_artifacts(trusted, store, progress), parallel=True)
    made.describe(tmp_path / "manifests", "code", GIT_ROW)
    code = read_toolchain("code")
    git = ArtifactRequest(code, code.release(), options=Options(offline=True))
    sdk = ask(trust=True).pinned(store)
    step("a checkout", lambda progress: provision.show_outline([git, sdk], store, progress))
    check_snapshot(SNAPSHOTS / "steps.txt", is_tidy(shown, tmp_path))


# -- files for a mirror, reused files -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wheel", "archive", "aar"])
def test_a_mirror_gets_the_file_that_was_proven(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Readable by all, and from the job's own store."""
    store.downloads.mkdir(parents=True)
    kept = store.downloads / "kept"
    kept.write_bytes(b"bytes")
    kept.chmod(0o600)
    job = job_of(tiny() if kind == "wheel" else ask(), store)
    if kind == "aar":
        monkeypatch.setattr(aar, "locate_job", lambda given: replace(given, root=tmp_path / "own"))
    module = wheel if kind == "wheel" else archive
    asked: list[object] = []
    monkeypatch.setattr(
        module,
        f"obtain_{module.__name__.rpartition('.')[2]}",
        lambda *words: asked.extend(words) or kept,
    )
    (tmp_path / "mirror").mkdir()
    mirror = {"wheel": wheel.mirror, "archive": archive.mirror, "aar": aar.mirror}[kind]
    assert mirror(job, tmp_path / "mirror") == [tmp_path / "mirror/kept"]
    assert (tmp_path / "mirror/kept").read_bytes() == b"bytes"
    assert (tmp_path / "mirror/kept").stat().st_mode & 0o777 == 0o644
    assert asked == [job.request, store, job.progress]


def test_another_version_of_an_aar_has_no_hash_and_its_own_name(store: Store) -> None:
    row = 'source = "aar"\nfilename = "r-2.1.aar"\npackage = "g.q:r"\npackage_version = "2.1"\n'
    manifests = Path(os.environ["QNN_CI_MANIFESTS"])
    made.describe(manifests, "lib", f'{row}sha256 = "{"5" * 64}"\nsize_bytes = 7\n', version="2.1")
    toolchain = read_toolchain("lib")
    job = job_of(ArtifactRequest(toolchain, toolchain.release()), store)
    found = aar.find_release(job, "2.2")
    old = job.request.release
    assert found == msgspec.structs.replace(
        old, version="2.2", package_version="2.2", filename="r-2.2.aar", sha256="", size_bytes=0
    )
    assert aar.find_release(job, "2.1") == old
    with pytest.raises(QnnCiError, match="the version of lib is missing"):
        aar.find_release(job, "")
