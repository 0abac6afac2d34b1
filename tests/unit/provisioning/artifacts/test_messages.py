"""What provisioning tells a user, word by word, and what pip is asked for, on a made artifact."""

from __future__ import annotations

import hashlib
import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.artifacts import choice, consent, pins
from provisioning.artifacts.environment import compose_environment, locate_profile
from provisioning.artifacts.lockfile import (
    Lock,
    damaged_locks,
    find_lock,
    machine_lock_path,
    project_lock_path,
    read_lock,
)
from provisioning.artifacts.provision import Provisioned, check_adopted, check_lock
from provisioning.artifacts.selection import parse_selection
from provisioning.artifacts.sources import (
    ArtifactRequest,
    FillJob,
    Options,
    cannot_fetch,
    require_version,
    wheel,
)
from provisioning.artifacts.sources.local import check_minimum, find_installation, read_sdk_yaml
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError, ToolError
from provisioning.manifest.reader import Profile, read_toolchain
from provisioning.manifest.releases import WheelRelease
from provisioning.store.store import Store
from provisioning.store.tree import TreeEntry, encode_record
from tests.stand_ins import toolchains as made
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.provisioning.artifacts.test_provision import FILES, ask, describe, pack

SNAPSHOTS = Path(__file__).with_name("snapshots")
WHEEL = "tiny_qnn-1.0-cp311-cp311-manylinux_2_35_x86_64.whl"
SHA256 = "5" * 64
LOCK = Lock("sdk", "1.2.3", "u", 1, "0" * 64, "today")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store next to the manifests of an archive and a wheel."""
    manifests = tmp_path / "manifests"
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(manifests))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    for name in ("CI", "TINY_ROOT", "QNN_CI_MIRROR", "QNN_CI_ACCEPT_LICENCE", "QNN_CI_SDK"):
        monkeypatch.delenv(name, raising=False)
    describe(manifests, pack(tmp_path / "vendor.zip", FILES))
    made.describe(
        manifests,
        "tiny",
        f'''
source = "wheel"
package = "tiny-qnn"
package_version = "1.0"
filename = "{WHEEL}"
platform = "manylinux_2_35_x86_64"
python = "3.11"
size_bytes = 5
sha256 = "{SHA256}"
unpacked_bytes = 10
layout = [{{ take = "tiny_qnn/**", put = "" }}]
''',
        version="1.0",
    )
    (manifests / "profiles.toml").write_text(
        '[emulator]\nsummary = "s"\n[[emulator.artifacts]]\nname = "sdk"\n[emulator.variables]\n'
        'TINY_ROOT = "{sdk}"\nLD_LIBRARY_PATH = "{sdk}/lib"\n'
    )
    return Store(tmp_path / "home")


def unpinned() -> ArtifactRequest:
    request = ask()
    return replace(request, release=msgspec.structs.replace(request.release, sha256=""))


def tiny(**options: Any) -> ArtifactRequest:
    toolchain = read_toolchain("tiny")
    return ArtifactRequest(toolchain, toolchain.release(), options=Options(**options))


def job_of(request: ArtifactRequest, store: Store) -> FillJob:
    return FillJob(request, store.home / "root", store, Progress(io.StringIO()))


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def raise_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CI", "1")
        consent.require_trust(unpinned())


def list_refusals(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Callable[[], object]]:
    request, home = ask(), tmp_path / "sdk"
    place = project_lock_path("sdk", "1.2.3")
    write(home / "sdk.yaml", b"version: 1.2.2\n")
    entry = TreeEntry("a", 1, 0o644, "1")
    variables = {"TINY_ROOT": str(home)}
    old = replace(request, minimum="1.3")
    return {
        "an unknown word": lambda: parse_selection(["gone"], Options()),
        "an unknown component": lambda: ask("base", "gone").patterns,
        "no hash": lambda: consent.require_trust(unpinned()),
        "no hash, in CI": lambda: raise_in_ci(monkeypatch),
        "a licence": lambda: consent._ask(tiny(), Progress(io.StringIO())),
        "a contradiction": lambda: consent.check_version(request, home),
        "a library": lambda: consent.check_machines(tmp_path / "libraries"),
        "a lock that lacks a file": lambda: check_lock(
            replace(request, lock=msgspec.structs.replace(LOCK, files=(entry,))), []
        ),
        "another lock": lambda: find_other_lock(request, store),
        "a damaged lock": lambda: read_lock(write(place.with_name("x-1.json"), b"{")),
        "a lock of another name": lambda: read_lock(
            write(place.with_name("x-1.json"), encode_record(LOCK))
        ),
        "an installation": lambda: check_adopted(
            replace(request, lock=msgspec.structs.replace(LOCK, files=(entry, entry))),
            Provisioned("sdk", "1.2.3", home, adopted=True),
        ),
        "an unfit installation": lambda: find_installation(ask("libraries"), variables),
        "an old installation": lambda: find_installation(old, variables),
        "an old one with a reason": lambda: check_minimum(
            replace(old, minimum_reason="for a reason"), "TINY_ROOT", "1.2"
        ),
        "an sdk.yaml": lambda: read_sdk_yaml(write(tmp_path / "y/sdk.yaml", b"a: [").parent),
        "which version": lambda: require_version(job_of(request, store), ""),
        "offline": lambda: wheel.obtain_wheel(tiny(offline=True), store, Progress(io.StringIO())),
        "offline update": lambda: wheel.find_release(job_of(tiny(offline=True), store), "2.0"),
        "not fetched": lambda: raise_error(cannot_fetch(request, store, "it is gone", "wait")),
        "not fetched, without a hash": lambda: raise_error(
            cannot_fetch(unpinned(), store, "it is gone", "wait")
        ),
        "links": lambda: wheel.follow_links({"lib/a.so": "b-1a.so"}, ["lib/c.so", "b-2b.so"]),
        "several links": lambda: wheel.follow_links(
            {"lib/a.so": "b-1a.so"}, ["lib/b-2b.so", "lib/b-3c.so"]
        ),
        "no directory": lambda: choice.read_choice(str(tmp_path / "gone")),
        "no adaptor": lambda: choice.read_choice(adaptor=str(tmp_path / "gone")),
        "a device": lambda: list(choice.list_device_runtimes(["gone"])),
        "a profile": lambda: locate_profile("emulator", Progress(io.StringIO())),
        "not a file": lambda: pins.take_archive(request, tmp_path / "gone", store),
        "another archive": lambda: pins.take_archive(request, tmp_path / "other.zip", store),
        "a row": lambda: pins.rewrite_release("", request, request.release),
        "a row that lacks a value": lambda: pins.rewrite_release(
            (tmp_path / "manifests/toolchains/sdk.toml").read_text(),
            request,
            msgspec.structs.replace(request.release, case_collisions=True),
        ),
        "a default": lambda: pins.rewrite_default("", request, "1.3"),
    }


def find_other_lock(request: ArtifactRequest, store: Store) -> None:
    lock = write(machine_lock_path(store, "sdk", "1.2.3"), encode_record(LOCK))
    try:
        find_lock("sdk", request.release, store)
    finally:
        lock.unlink()


def raise_error(error: QnnCiError) -> None:
    raise error


def test_every_message_says_what_why_and_what_to_do(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "other.zip", b"other")
    write(tmp_path / "libraries/lib/x86_64-linux/a.so", b"no library")
    shown = {}
    for name, call in list_refusals(store, tmp_path, monkeypatch).items():
        with pytest.raises(QnnCiError) as caught:
            call()
        shown[name] = f"{type(caught.value).__name__} {caught.value.exit_code:d} {caught.value}"
    text = "".join(f"{name}\n  {message}\n" for name, message in shown.items())
    text = text.replace(str(tmp_path), "TMP").replace(sys.executable, "PYTHON")
    text = re.sub(r"[0-9a-f]{64}", "HASH", text)
    text = re.sub(r"while parsing.*", "what YAML says", text)
    check_snapshot(SNAPSHOTS / "messages.txt", text)
    (damaged,) = damaged_locks(store)
    assert "x-1.json" in str(damaged)
    for name in ("a", "b"):
        write(machine_lock_path(store, name, "1"), b"no lock")
    found = [Path(one.what.split()[-1]).name for one in damaged_locks(store)[1:]]
    assert found == ["a-1.json", "b-1.json"]


# -- what is recorded, and what pip is asked for -------------------------------------------------


def test_a_licence_is_asked_for_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = read_toolchain("tiny")
    licence = msgspec.structs.replace(toolchain.licence, accept=True)
    request = replace(tiny(), toolchain=msgspec.structs.replace(toolchain, licence=licence))
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(QnnCiError):
        consent.require_acceptance(request, store, Progress(said))
    for named, how in (
        ("a,tiny", "a tiny"),
        ("a  tiny", "a tiny"),
        ("all", "all"),
        ("tiny", "tiny"),
    ):
        monkeypatch.setenv("QNN_CI_ACCEPT_LICENCE", named)
        assert consent._ask(request, Progress(said)) == f"QNN_CI_ACCEPT_LICENCE={how}"
    consent.require_acceptance(request, store, Progress(said))
    monkeypatch.delenv("QNN_CI_ACCEPT_LICENCE")
    consent.require_acceptance(request, store, Progress(said))
    record = msgspec.json.decode((store.home / "licences.json").read_bytes())
    assert record == {
        f"tiny 1.0: {licence.name}": {
            "licence": licence.name,
            "text": licence.text,
            "how": "QNN_CI_ACCEPT_LICENCE=tiny",
            "accepted": "1970-01-02",
        }
    }
    assert said.getvalue() == ""


@pytest.mark.parametrize("named", ["other", "tiny-other", "tin", "TINY", "none", "1", "other,more"])
def test_a_licence_of_something_else_accepts_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("QNN_CI_ACCEPT_LICENCE", named)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(QnnCiError, match="not accepted"):
        consent._ask(tiny(), Progress(io.StringIO()))


@pytest.mark.parametrize("text", ["", "{", "[]", '["tiny 1.0: free"]', '{"tiny 1.0: free": 5}'])
def test_a_damaged_record_of_licences_accepts_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    toolchain = read_toolchain("tiny")
    licence = msgspec.structs.replace(toolchain.licence, accept=True)
    request = replace(tiny(), toolchain=msgspec.structs.replace(toolchain, licence=licence))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    store.home.mkdir(parents=True)
    (store.home / "licences.json").write_text(text)
    with pytest.raises(QnnCiError, match="not accepted"):
        consent.require_acceptance(request, store, Progress(io.StringIO()))
    accepted = replace(request, options=Options(accept_licence=True))
    consent.require_acceptance(accepted, store, Progress(io.StringIO()))
    consent.require_acceptance(request, store, Progress(io.StringIO()))


@pytest.mark.parametrize(
    ("answer", "accepts"), [("y", True), (" YES ", True), ("n", False), ("", False), ("ye", False)]
)
def test_a_terminal_is_asked(
    store: Store, answer: str, accepts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    said = io.StringIO()
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    if accepts:
        assert consent._ask(tiny(), Progress(said)) == "answered yes"
    else:
        with pytest.raises(QnnCiError):
            consent._ask(tiny(), Progress(said))
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(QnnCiError):
        consent._ask(tiny(), Progress())
    licence = read_toolchain("tiny").licence
    assert f"tiny 1.0 is licensed under: {licence.name}\n  text: {licence.text}" in said.getvalue()
    assert "Do you accept it? [y/N]" in said.getvalue()


def test_pip_is_asked_for_one_wheel_by_its_hash(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(argv: list[str], **more: Any) -> None:
        asked.append((argv[3:], more))
        place = Path(argv[argv.index("--dest") + 1])
        if "--requirement" in argv:
            asked.append(Path(argv[argv.index("--requirement") + 1]).read_text())
        write(place / WHEEL, b"bytes")

    monkeypatch.setattr(wheel, "run_process", run)
    said = io.StringIO()
    with pytest.raises(QnnCiError, match="is not the pinned wheel") as caught:
        wheel.obtain_wheel(tiny(), store, Progress(said))
    assert "SHA-256" in caught.value.why
    assert "a different file under this name" in caught.value.fix
    (words, more), pin = asked
    assert more == {"timeout_s": 3600}
    assert pin == f"tiny-qnn==1.0 --hash=sha256:{SHA256}\n"
    folder = words[words.index("--dest") + 1]
    assert [word.replace(folder, "D") for word in words] == [
        *("pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--platform", "manylinux_2_35_x86_64", "--python-version", "3.11"),
        *("--implementation", "cp", "--disable-pip-version-check", "--progress-bar", "off"),
        *("--no-input", "--require-hashes", "--dest", "D"),
        *("--requirement", "D/requirements.txt"),
    ]
    assert f"tiny 1.0: fetching {WHEEL} (" in said.getvalue()
    assert not list(store.downloads.iterdir())


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, "copying 0 MiB of the installed tiny-qnn 1.0"),
        ({"data": b"other"}, "lib/a.so of the installed tiny-qnn does not match the lock"),
        ({"data": b""}, "lib/a.so of the installed tiny-qnn does not match the lock"),
        ({"version": "1.1"}, "fetching"),
        ({"platform": "manylinux_2_35_aarch64"}, "fetching"),
        ({"version": ""}, "fetching"),
    ],
)
def test_files_of_the_installed_wheel_are_used_if_all_match_the_lock(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: dict[str, Any],
    said: str,
) -> None:
    data, mode = b"bytes", 0o444
    own = {"version": "1.0", "platform": "manylinux_2_35_x86_64", "data": data, **installed}
    if own["version"]:
        info = tmp_path / "site" / f"tiny_qnn-{own['version']}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: tiny-qnn\nVersion: {own['version']}\n"
        write(info / "METADATA", metadata.encode())
        write(info / "WHEEL", f"Tag: cp312-cp312-{own['platform']}\n".encode())
        write(info / "RECORD", b"tiny_qnn/lib/a.so,,\n")
        write(tmp_path / "site" / "tiny_qnn" / "lib" / "a.so", own["data"]).chmod(0o700)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(wheel, "run_process", lambda argv, **_: None)  # pip brings nothing
    entry = TreeEntry("lib/a.so", len(data), mode, hashlib.sha256(data).hexdigest())
    request = replace(tiny(), lock=msgspec.structs.replace(LOCK, files=(entry,)))
    told = io.StringIO()
    job = replace(job_of(request, store), progress=Progress(told))
    if said.startswith("copying"):
        assert wheel.fill(job) == (entry,)
        assert (job.root / "lib" / "a.so").read_bytes() == data
    else:
        with pytest.raises(QnnCiError, match="could not be fetched"):
            wheel.fill(job)
    assert said in told.getvalue()


@pytest.mark.parametrize(("version", "days"), [("2.0", 0), ("", 7)])
def test_pip_is_asked_for_another_version_on_any_glibc(
    store: Store, version: str, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> None:
        asked.append(argv)
        write(Path(argv[argv.index("--dest") + 1]) / WHEEL, b"bytes")

    monkeypatch.setattr(wheel, "run_process", run)
    job = job_of(tiny(cooldown_days=days), store)
    release = job.request.release_as(WheelRelease)
    assert wheel._download_version(job, release, version) == job.root / WHEEL
    (words,) = asked
    platforms = [word for word in words if word.startswith("manylinux")]
    assert platforms == [f"manylinux_2_{minor}_x86_64" for minor in range(5, 46)]
    end = words[words.index("--no-input") + 1 :]
    wanted = "tiny-qnn==2.0" if version else "tiny-qnn"
    limit = ["--uploaded-prior-to=P7D"] if days else []
    assert end == ["--dest", str(job.root), wanted, *limit]
    plain = msgspec.structs.replace(release, platform="macosx_11_0_arm64")
    wheel._download_version(job, plain, version)
    assert [word for word in asked[1] if "_0_" in word] == ["macosx_11_0_arm64"]


def test_pip_is_started_with_the_limit_of_a_wheels_size(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(wheel, "run_process", lambda argv, **_: started.append(argv))
    for most in (0, 12345):
        wheel.download_with_pip("x", [], "3.11", [], most_bytes=most)
        usual = wheel.module_command("pip", most_bytes=most)
        assert started[-1][: len(usual)] == usual
    assert started[0] != started[1]


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("a\nERROR: one\nb\nERROR: two \nc", "one; two"),
        ("a\nlast line", "last line"),
        ("", ""),
        (
            "connection broken by 'ProxyError(x)'\nERROR: No matching",
            "the package index cannot be reached (ProxyError); No matching",
        ),
        (
            "WARNING: try again\nconnection broken by 'ProxyError(x)'\nERROR: No matching",
            "the package index cannot be reached (ProxyError); No matching",
        ),
    ],
)
def test_why_pip_failed_is_said_shortly(
    output: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], **_: Any) -> None:
        raise ToolError("pip exited with 1", why=output)

    monkeypatch.setattr(wheel, "run_process", run)
    with pytest.raises(QnnCiError) as caught:
        wheel.download_with_pip("x", [], "3.11", [])
    assert (caught.value.what, caught.value.why) == ("x could not be fetched", why)
    assert caught.value.fix == "check the version, and pip's index and proxy (pip config list)"
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(QnnCiError) as caught:
        wheel.download_with_pip("x", [], "3.11", [])
    assert caught.value.what == "this Python has no pip, which is needed to fetch wheels"
    assert caught.value.why == f"{sys.executable} cannot import it"
    assert caught.value.fix == f"run `{sys.executable} -m ensurepip`"


def test_what_pip_brings_under_another_name_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for brought in ("a.whl, b.whl", ""):

        def run(argv: list[str], brought: str = brought, **_: Any) -> None:
            for name in filter(None, brought.split(", ")):
                write(Path(argv[argv.index("--dest") + 1]) / name, b"bytes")

        monkeypatch.setattr(wheel, "run_process", run)
        with pytest.raises(QnnCiError) as caught:
            wheel.obtain_wheel(tiny(), store, Progress(io.StringIO()))
        assert caught.value.why == f"pip downloaded {brought or 'nothing'}"


# -- words, pins, environments -------------------------------------------------------------------


def test_what_the_caller_names_goes_before_a_profiles_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("MINE", "own")
    monkeypatch.setenv("HOMELY", "~/own")
    monkeypatch.setenv("NONE", "")
    profile = msgspec.convert(
        {
            "summary": "s",
            "artifacts": [{"name": "a"}, {"name": "b", "unless_library": "b.so"}],
            "variables": {
                "ROOT": "{a}/x",
                "LD_LIBRARY_PATH": "{a}/lib",
                "MINE": "{a}",
                "NONE": "n",
            },
            "from_caller": ["MINE", "HOMELY", "NONE"],
        },
        Profile,
    )
    artifacts = tuple(Provisioned(name, "1", Path(f"/{name}")) for name in "ab")
    found = compose_environment("p", profile, artifacts)
    assert (found.profile, found.artifacts) == ("p", artifacts)
    shown = {
        "ROOT": "/a/x",
        "LD_LIBRARY_PATH": "/a/lib:/b/lib",
        "MINE": str(tmp_path / "own"),
        "HOMELY": "/home/me/own",
        "NONE": "n",
    }
    assert found.variables == shown
    assert found.root("b") == Path("/b")
    alone = compose_environment("p", profile, artifacts[:1])
    assert alone.variables == {**shown, "LD_LIBRARY_PATH": "/a/lib"}
