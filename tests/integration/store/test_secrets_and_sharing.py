"""No secret in any file or message; a store that others share or own is said, and readable."""

from __future__ import annotations

import base64
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.stand_ins import bad_server as bad
from tests.stand_ins import toolchains as made
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.forks import Run
from tests.stand_ins.toolchains import World

SECRETS = ("hunter2", "s1gnature")


@pytest.fixture(autouse=True)
def accept_licences(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "2")
    monkeypatch.setenv("QNN_CI_ACCEPT_LICENCE", "all")


def run_private(*words: str) -> int:
    """The exit code of a verb of a user whose files nobody else may read."""
    command = [sys.executable, "-m", "provisioning", *words]
    return subprocess.run(command, capture_output=True, check=False, umask=0o077).returncode


def secret_url(server: BadServer, name: str) -> str:
    return server.url(name).replace("//", "//me:hunter2@") + "?X-Amz-Signature=s1gnature"


def find_secrets(*places: Path) -> list[str]:
    """Files below these places that hold a secret, or have one in their name."""
    return [
        str(path)
        for place in places
        for path in place.rglob("*")
        for secret in SECRETS
        if secret in str(path)
        or (path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes())
    ]


def test_no_secret_of_a_url_is_written_or_shown(
    world: World, server: BadServer, tmp_path: Path, run: Run
) -> None:
    text = made.describe_sdk([secret_url(server, "gone.zip"), secret_url(server, "sdk.zip")])
    (world.manifests / "toolchains/qnn-sdk.toml").write_text(text)
    ended_runs = [run("fetch", "qnn-sdk", "--trust-first-use"), run("lock", "qnn-sdk", "--write")]
    ended_runs += [run("verify"), run("list", "--json"), run("fetch", "qnn-sdk:host", "--json")]
    ended_runs.append(run("fetch", "qnn-sdk", "--to", str(tmp_path / "mirror")))
    assert [ended.returncode for ended in ended_runs] == [0] * 6, ended_runs[0].stderr
    shutil.rmtree(world.home)
    server.files.clear()
    ended_runs.append(run("fetch", "qnn-sdk"))
    assert ended_runs[-1].returncode == 4
    shown = "".join(ended.stdout + ended.stderr for ended in ended_runs)
    assert not any(secret in shown for secret in SECRETS), shown
    places = (world.home, world.manifests / "locks", tmp_path / "mirror")
    assert find_secrets(*places) == []


def test_lock_shows_an_old_pin_without_the_secret_in_its_url(
    world: World, server: BadServer, run: Run
) -> None:
    assert run("lock", "qnn-sdk", "--write").returncode == 0
    path = next((world.manifests / "locks").iterdir())
    path.write_text(path.read_text().replace(server.url("sdk.zip"), secret_url(server, "sdk.zip")))
    shown = run("lock", "qnn-sdk")
    assert '-  "url"' in shown.stdout.replace('- "url"', '-  "url"')
    assert not any(secret in shown.stdout + shown.stderr for secret in SECRETS)


def test_no_secret_of_a_git_url_is_written_or_shown(
    world: World, server: BadServer, tmp_path: Path, run: Run
) -> None:
    url = server.url("executorch.git").replace("//", "//me:hunter2@s1gnature'@")
    made.describe_git(world.manifests, url, "1" * 40)
    ended = run("fetch", "executorch")
    assert ended.returncode == 4
    assert "127.0.0.1" in ended.stderr
    assert not any(secret in ended.stdout + ended.stderr for secret in SECRETS), ended.stderr
    assert find_secrets(world.home) == []


@pytest.mark.parametrize("through_mirror", [False, True])
def test_no_password_of_a_git_url_is_in_the_list_of_processes(
    world: World, server: BadServer, monkeypatch: pytest.MonkeyPatch, through_mirror: bool, run: Run
) -> None:
    authorizations: list[str] = []
    arguments: list[bytes] = []

    def look(handler: bad.Handler, data: bytes) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                arguments.append(path.read_bytes())
        authorizations.append(handler.headers.get("Authorization", ""))
        handler.head(404 if authorizations[-1] else 401, 0, WWW_Authenticate='Basic realm="x"')

    login = server.url("").replace("//", "//me:hunter%322@")
    url = f"{login}executorch.git"
    if through_mirror:
        monkeypatch.setenv("QNN_CI_MIRROR", login)
        url = "https://gone.invalid/executorch.git"
    made.describe_git(world.manifests, url, "1" * 40)
    server.usual = look
    for name in ("executorch.git/info/refs", "git/gone.invalid/executorch.git/info/refs"):
        server.files[name] = b"x"
    for words in (("fetch", "executorch"), ("update", "executorch")):
        authorizations.clear()
        assert run(*words).returncode == 4
        assert f"Basic {base64.b64encode(b'me:hunter22').decode()}" in authorizations
    assert any(b"remote-http" in argument for argument in arguments)
    assert not any(b"hunter" in argument for argument in arguments)


def test_a_checkout_holds_no_credentials(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """The remote is the URL without credentials; the git configuration of the user redirects it to
    a path."""
    main = tmp_path / "main"
    for words in (
        ["init", "-q", str(main)],
        ["-C", str(main), "commit", "-q", "--allow-empty", "-m", "one"],
        ["-C", str(main), "tag", "v1.0"],
    ):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, *words], check=True)
    words = ["git", "-C", str(main), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    made.describe_git(world.manifests, "https://me:hunter2@vendor.invalid/main", commit)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").write_text(
        f'[url "file://{main}"]\n insteadOf = "https://vendor.invalid/main"\n'
        '[protocol "file"]\n allow = always\n'
    )
    ended = run("fetch", "executorch")
    assert ended.returncode == 0, ended.stderr
    (config,) = world.home.glob("store/*/executorch/.git/config")
    assert "https://vendor.invalid/main" in config.read_text()
    assert find_secrets(world.home) == []


def test_a_shared_store_stays_readable_and_writable_whatever_the_umask(
    world: World, server: BadServer
) -> None:
    world.home.mkdir(mode=0o777)
    world.home.chmod(0o777)
    assert run_private("fetch", "libcxx") == 0
    for path in [*(world.home / "store").rglob("*")]:
        if not path.is_symlink():
            expected_mode = 0o005 if path.is_dir() else 0o004
            assert stat.S_IMODE(path.stat().st_mode) & 0o005 == expected_mode, path
    words = ("fetch", "qnn-sdk")
    text = made.describe_sdk([server.url("sdk.zip")])
    (world.manifests / "toolchains/qnn-sdk.toml").write_text(text)
    assert run_private(*words, "--trust-first-use") == 0
    records = [world.home / "licences.json", *(world.home / "pins").iterdir()]
    for path in [*records, *(world.home / "downloads").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, path
    for name in ("store", "downloads", "locks", "pins"):
        assert stat.S_IMODE((world.home / name).stat().st_mode) == 0o777
    assert stat.S_IMODE((world.home / "locks/libcxx.lock").stat().st_mode) == 0o666


def test_gc_keeps_trees_that_a_living_shell_exported(world: World, run: Run) -> None:
    """/proc does not show the variables that a shell exported after its start."""
    script = f'eval "$({sys.executable} -m provisioning env aot --shell)"; echo set; read line'
    shell = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert shell.stdin
    assert shell.stdout
    try:
        assert shell.stdout.readline() == "set\n"
        profiles = world.manifests / "profiles.toml"
        profiles.write_text(made.PROFILES)
        output = run("cache", "gc").stdout
        assert f"process {shell.pid} uses it" in output
        assert len(list((world.home / "store").iterdir())) == 2
    finally:
        shell.communicate("done\n")
    run("cache", "gc")
    assert not list((world.home / "store").iterdir())
