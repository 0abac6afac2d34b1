"""A board behind a real sshd, at the end of a pipe, and a phone behind the stand-in for adbd."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ci.device.connection import Device, open_device
from provisioning.store.home import store_home
from tests.programs import find_program, require_programs
from tests.stand_ins.waits import wait_until

SLOW_LINK = (
    f"env PYTHONPATH='{Path(__file__).parents[3]}' {sys.executable} -m tests.stand_ins.slow_link"
)
SSHD = find_program("sshd") or ""
GETPROP = """#!/bin/sh
case $1 in
  ro.soc.model) cat {root}/soc;; ro.product.model) echo Stand-in;;
  ro.build.version.release) echo 14;;
esac
"""


class Lab(NamedTuple):
    """A device, the directory that is ours on it, and one whose programs it finds first. Its link
    is as slow as ``slow`` says while that file is there; ``reboot`` ends what it runs and breaks
    the link, and returns when it is back."""

    device: Device
    place: Path
    bin: Path
    slow: Path = Path()
    reboot: Callable[[], None] = lambda: None


def tool(folder: Path, name: str, text: str) -> None:
    """Put a program where the device finds it before its own."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def local_lab(tmp_path: Path) -> Lab:
    """A shell of this computer: for what is the same whichever way a device is reached."""
    place, programs = tmp_path / "on device", tmp_path / "bin"
    programs.mkdir()
    client = ("env", f"PATH={programs}:{os.environ['PATH']}", "sh", "-c")
    return Lab(Device("here", client, str(place)), place, programs)


def write_sshd(parent: Path, client: Path, path: str, home: str = ".") -> Path:
    """Write the configuration of an sshd with its own keys to ``parent``/sshd, which is returned,
    and into the directory ``client`` an ssh that knows it as the host ``board``. What it runs has
    ``path`` as PATH, and starts in ``home`` instead of the user's. Its link is as slow as the file
    ``parent``/slow says.

    Each connection has its own sshd at the other end of a pipe, so no port is needed. Their process
    IDs are in the file ``connections``.
    """
    folder = parent / "sshd"
    folder.mkdir(mode=0o700)
    for name in ("host", "key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/key.pub\nPidFile none\nUsePAM no\n"
        # The usual exchange of keys takes most of a connection's time on a busy machine.
        f"PasswordAuthentication no\nKexAlgorithms curve25519-sha256\n"
        f"SetEnv PATH={path}\n"
        f"ForceCommand cd '{home}' && exec sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
    )
    key = (folder / "host.pub").read_text().split()[:2]
    (folder / "known").write_text(f"board {' '.join(key)}\n")
    serve = f"{SSHD} -i -e -f '{folder}/sshd_config' 2>>'{folder}/log'"
    tool(
        folder,
        "connect",
        f"#!/bin/sh\necho $$ >>'{folder}/connections'\n"
        f"[ -f '{parent}/slow' ] && exec {SLOW_LINK} '{parent}/slow' {serve}\nexec {serve}\n",
    )
    user = pwd.getpwuid(os.getuid()).pw_name
    (folder / "config").write_text(
        f"Host board\nHostKeyAlias board\nUser {user}\nIdentityFile {folder}/key\n"
        f"ProxyCommand '{folder}/connect'\n"
        f"Host *\nUserKnownHostsFile {folder}/known\nIdentitiesOnly yes\n"
    )
    client.mkdir(parents=True, exist_ok=True)
    # OpenSSH takes the home from the password file: a test's configuration has to be named.
    real = shutil.which("ssh")
    tool(client, "ssh", f'#!/bin/sh\nexec {real} -F {folder}/config "$@"\n')
    if os.getuid() == 0:  # sshd of root asks for it, as Debian's unit makes it
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return folder


def end_connections(folder: Path) -> None:
    """Kill what runs on the board of ``write_sshd``."""
    connections = folder / "connections"
    for connection in connections.read_text().split() if connections.exists() else ():
        for pid in list_tree(int(connection)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    connections.write_text("")


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """sshd as this user, with keys and known_hosts of its own."""
    require_programs("sshd", "ssh", package="openssh-server, openssh-client")
    programs = tmp_path / "bin"
    programs.mkdir()
    client = tmp_path / "client"
    folder = write_sshd(tmp_path, client, f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("PATH", f"{client}:{os.environ['PATH']}")
    place = tmp_path / "on board"
    device = open_device("ssh:board", str(place))
    yield Lab(device, place, programs, tmp_path / "slow", lambda: end_connections(folder))
    end_connections(folder)


def list_tree(root: int) -> list[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    pids = [root]
    for pid in pids:
        pids += children.get(pid, [])
    return pids


Connect = Callable[..., str]
# What repeats the same code over the other transport runs by night.
PHONE_BY_DAY = pytest.mark.parametrize(
    "lab", [pytest.param("board", marks=pytest.mark.nightly), "phone"], indirect=True
)


@pytest.fixture
def phones() -> list[subprocess.Popen[str]]:
    """The stand-ins that ``connect`` has started."""
    return []


def start_phone(root: Path, fault: str = "", soc: str = "SM8650") -> subprocess.Popen[str]:
    """Start a phone whose files are below ``root``. It prints ``ready`` and its port when it
    listens."""
    (root / "bin").mkdir(parents=True)
    (root / "data/local/tmp").mkdir(parents=True)
    (root / "soc").write_text(f"{soc}\n")
    tool(root / "bin", "getprop", GETPROP.format(root=root))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stand_ins.adbd", "0", str(root), fault],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A directory with a path as short as a socket needs it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def adb_server(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let adb start a server of its own, at a socket without a port."""
    for name in ("ANDROID_ADB_SERVER_ADDRESS", "ANDROID_ADB_SERVER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ADB_SERVER_SOCKET", f"localfilesystem:{short_folder}/adb")


@pytest.fixture
def connect(
    tmp_path: Path,
    adb_server: object,
    monkeypatch: pytest.MonkeyPatch,
    phones: list[subprocess.Popen[str]],
) -> Iterator[Connect]:
    """Start phones, and connect the real adb client, with a server of its own, to them."""
    require_programs("adb", package="adb")
    monkeypatch.setenv("QNN_CI_HOME", str(store_home()))
    monkeypatch.setenv("HOME", str(tmp_path))  # adb's key
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)

    def start(fault: str = "", soc: str = "SM8650") -> str:
        process = start_phone(tmp_path / f"phone{len(phones)}", fault, soc)
        phones.append(process)
        assert process.stdout
        serial = f"127.0.0.1:{process.stdout.readline().split()[1]}"
        connected = subprocess.run(
            ["adb", "connect", serial], check=False, capture_output=True, text=True
        )
        assert connected.returncode == 0, connected.stdout + connected.stderr
        return serial

    yield start
    subprocess.run(["adb", "kill-server"], check=False, capture_output=True)
    for process in phones:
        process.terminate()
        process.communicate()


def switch(phone: subprocess.Popen[str], number: signal.Signals) -> None:
    """Turn a phone off (SIGUSR1) or on (SIGUSR2), and wait until it is."""
    phone.send_signal(number)
    assert phone.stdout
    assert phone.stdout.readline()


@pytest.fixture
def phone(tmp_path: Path, connect: Connect, phones: list[subprocess.Popen[str]]) -> Lab:
    serial = connect()
    root = tmp_path / "phone0"
    place = root / "on phone"

    def is_back() -> bool:
        # Until adb has noticed that the old connection broke, it may drop the new one with it.
        subprocess.run(["adb", "disconnect", serial], check=False, capture_output=True)
        subprocess.run(["adb", "connect", serial], check=True, capture_output=True)
        state = ["adb", "-s", serial, "get-state"]
        return subprocess.run(state, check=False, capture_output=True).stdout == b"device\n"

    def reboot() -> None:
        switch(phones[0], signal.SIGUSR1)
        switch(phones[0], signal.SIGUSR2)
        wait_until(is_back)

    device = open_device(f"adb:{serial}", str(place))
    return Lab(device, place, root / "bin", root / "bytes_per_s", reboot)


@pytest.fixture(params=["board", "phone"])
def lab(request: pytest.FixtureRequest) -> Lab:
    requested_lab: Lab = request.getfixturevalue(request.param)
    return requested_lab
