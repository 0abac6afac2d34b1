"""The dev shell as a user calls it, through the verb's code in a process of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker.client import DockerClient
from docker.errors import APIError

from tests.stand_ins.waits import wait_until

ROOT = Path(__file__).parents[3]
CALL = """
import sys
from pathlib import Path
from ci.images.build import Built
from ci.images.definition import Base, Image, ImagePlan
from ci.images.engine import connect_engine
from ci.images.shell import ShellRequest, run_shell
from provisioning.console.interrupts import catch_signals
image, checkout, frozen, *words = sys.argv[1:]
plan = ImagePlan("tiny", Image("", "", 1), "tiny", Base("tiny", "3.11"), "tiny", Path(checkout))
request = ShellRequest(plan, Built("tiny", image, 0, False), tuple(words), frozen == "frozen")
catch_signals()
with connect_engine() as client:
    try:
        code = run_shell(client, request)
    except KeyboardInterrupt:
        code = 130
sys.exit(code)
"""
# The engine sets a terminal's size after the program has started. A key that comes while the shell
# starts a program is lost to that program, so it starts none at the end.
SIZE_THEN_WAIT = """
trap 'exit 5' INT
until [ "$(stty size)" = "33 77" ]; do :; done
echo has its size
while :; do :; done
"""


class Shell:
    """Calls of the dev shell in one checkout and one store."""

    def __init__(self, engine: DockerClient, image: str, base: Path) -> None:
        self.engine, self.image = engine, image
        self.checkout, self.home = base / "a checkout:1", base / "home"
        self.checkout.mkdir()
        (self.home / "store").mkdir(parents=True)
        self.env = {**os.environ, "QNN_CI_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        self.env.pop("QNN_CI_CALLER_DIR", None)
        for name in [name for name in self.env if name.startswith("PIP_")]:
            del self.env[name]

    def argv(self, *words: str, frozen: str = "") -> list[str]:
        return [sys.executable, "-c", CALL, self.image, str(self.checkout), frozen, *words]

    def run(
        self, *words: str, text: str = "", frozen: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words, frozen=frozen),
            env=self.env,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    def containers(self) -> list[str]:
        label = "executorch-qnn-ci.shell=tiny"
        labelled = self.engine.containers.list(
            all=True, filters={"label": label}, ignore_removed=True
        )
        return [str(container.id) for container in labelled if self.is_mine(container.attrs)]

    def is_mine(self, attrs: dict[str, dict[str, list[str]]]) -> bool:
        return f"QNN_CI_CHECKOUT={self.checkout}" in attrs["Config"]["Env"]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.containers()) == count)


@pytest.fixture
def shell(engine: DockerClient, busybox: str, tmp_path: Path) -> Iterator[Shell]:
    new_shell = Shell(engine, busybox, tmp_path)
    yield new_shell
    for volume in engine.volumes.list(filters={"label": "executorch-qnn-ci.shell=tiny"}):
        with suppress(APIError):  # a test that failed may have left what uses it
            volume.remove(force=True)


def test_a_command_in_the_shell_image_keeps_its_streams_and_exit_code(shell: Shell) -> None:
    ended = shell.run("sh", "-c", "cat; echo out; echo err >&2; exit 7", text="in\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "in\nout\n", "err\n")
    shell.wait_for(0)


def test_files_belong_to_the_caller_with_his_umask(shell: Shell) -> None:
    former = os.umask(0o027)
    try:
        ended = shell.run("sh", "-c", "touch made; echo $PWD")
    finally:
        os.umask(former)
    assert ended.stdout == f"{shell.checkout}\n"
    status = (shell.checkout / "made").stat()
    assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
    assert status.st_mode & 0o777 == 0o640


def test_mirror_and_proxy_variables_of_the_caller_reach_the_container(shell: Shell) -> None:
    shell.env.update(QNN_CI_MIRROR="https://mirror.invalid", HTTPS_PROXY="http://proxy.invalid:1")
    ended = shell.run("sh", "-c", "echo $QNN_CI_MIRROR $HTTPS_PROXY")
    assert ended.stdout == "https://mirror.invalid http://proxy.invalid:1\n"


def test_pip_in_the_container_looks_where_the_callers_pip_does(
    shell: Shell, tmp_path: Path
) -> None:
    """A password in an index's URL is in a file there, not in the container's variables."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "one.whl").write_text("")
    certificates = tmp_path / "company.pem"
    certificates.write_text("certificates")
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\ncert = {certificates}\nfind-links =\n    {wheels}\n    /none\n")
    shell.env.update(PIP_CONFIG_FILE=str(settings), PIP_INDEX_URL="https://me:secret@host/simple")
    ended = shell.run(
        "sh", "-c", f"cat /etc/pip.conf '{certificates}'; ls '{wheels}'; env; touch '{wheels}/new'"
    )
    assert "index-url = https://me:secret@host/simple\n" in ended.stdout
    assert f"find-links = {wheels}\n\t/none\n" in ended.stdout
    assert "certificatesone.whl\n" in ended.stdout
    assert ended.stdout.count("secret") == 1
    assert "Read-only" in ended.stderr


def test_settings_of_pip_that_cannot_be_read_are_an_error(shell: Shell, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global")
    shell.env.update(PIP_CONFIG_FILE=str(settings))
    ended = shell.run("true")
    assert "UnfitError: the shell was not started" in ended.stderr
    shell.wait_for(0)


def test_the_store_is_mounted_writable_or_read_only_if_frozen(shell: Shell) -> None:
    assert shell.run("touch", str(shell.home / "store" / "new")).returncode == 0
    ended = shell.run("touch", str(shell.home / "store" / "newer"), frozen="frozen")
    assert ended.returncode != 0
    assert "Read-only" in ended.stderr
    assert not (shell.home / "store" / "newer").exists()


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGINT],
)
def test_a_killed_caller_leaves_no_container(shell: Shell, number: signal.Signals) -> None:
    argv = shell.argv("sh", "-c", "echo it runs; exec sleep 600")
    with subprocess.Popen(
        argv, env=shell.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"it runs\n"
        shell.wait_for(1)
        process.send_signal(number)
        process.wait()
    assert process.returncode == (-number if number is signal.SIGKILL else 130)
    shell.wait_for(0)


def test_a_terminal_has_the_callers_size_and_passes_keys(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    env = {name: text for name, text in shell.env.items() if name not in {"LINES", "COLUMNS"}}
    with subprocess.Popen(
        shell.argv("sh", "-c", SIZE_THEN_WAIT),
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            read_until(ours, b"has its size")
            os.write(ours, b"\x03")
            process.wait()
        finally:
            process.kill()
    os.close(ours)
    assert process.returncode == 5
    shell.wait_for(0)


def read_until(fd: int, awaited: bytes) -> None:
    output = b""
    while awaited not in output:
        output += os.read(fd, 4096)
