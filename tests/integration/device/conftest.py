"""A board behind a real sshd and a phone behind the stand-in for adbd, both on loopback."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ci.device.connection import Device, open_device
from provisioning.store.store import store_home
from tests.programs import find_program, require_programs

SLOW_LINK = Path(__file__).parents[2] / "stand_ins/slow_link.py"
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


PORTS = 500  # for each worker of pytest


def free_port() -> int:
    """Return a port for a program that binds it later. It is below those that the kernel gives to
    programs that bind no certain one. Once adb started no server of its own, probably because
    another test's had got the port meanwhile."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    last = lowest - PORTS * worker
    for port in random.sample(range(last - PORTS, last), PORTS):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    pytest.fail(f"no port of {last - PORTS} to {last} is free")


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


def write_sshd(parent: Path, client: Path, port: int, path: str, home: str = ".") -> Path:
    """Write the configuration of an sshd with its own keys to ``parent``/sshd, which is returned,
    and into the directory ``client`` an ssh that knows it as the host ``board``. What it runs has
    ``path`` as PATH, and starts in ``home`` instead of the user's. Its link is as slow as the file
    ``parent``/slow says."""
    folder = parent / "sshd"
    folder.mkdir(mode=0o700)
    for name in ("host", "key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/key.pub\nPidFile none\nUsePAM no\n"
        # The usual exchange of keys takes most of a connection's time on a busy machine.
        f"PasswordAuthentication no\nKexAlgorithms curve25519-sha256\n"
        f"SetEnv PATH={path}\n"
        f"ForceCommand cd '{home}' && exec sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
    )
    key = (folder / "host.pub").read_text().split()[:2]
    (folder / "known").write_text(f"[127.0.0.1]:{port} {' '.join(key)}\n")
    user = pwd.getpwuid(os.getuid()).pw_name
    (folder / "config").write_text(
        f"Host board\nHostName 127.0.0.1\nPort {port}\nUser {user}\nIdentityFile {folder}/key\n"
        f"UserKnownHostsFile {folder}/known\nIdentitiesOnly yes\n"
        f"Match exec \"test -f '{parent}/slow'\"\n"
        f"ProxyCommand {sys.executable} {SLOW_LINK} %h %p '{parent}/slow'\n"
    )
    client.mkdir(parents=True, exist_ok=True)
    # OpenSSH takes the home from the password file: a test's configuration has to be named.
    real = shutil.which("ssh")
    tool(client, "ssh", f'#!/bin/sh\nexec {real} -F {folder}/config "$@"\n')
    if os.getuid() == 0:  # sshd of root asks for it, as Debian's unit makes it
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return folder


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """sshd as this user, with keys and known_hosts of its own."""
    require_programs("sshd", "ssh", package="openssh-server, openssh-client")
    programs = tmp_path / "bin"
    programs.mkdir()
    client = tmp_path / "client"
    port = free_port()
    folder = write_sshd(tmp_path, client, port, f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("PATH", f"{client}:{os.environ['PATH']}")
    words = [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "log").open("w") as log:
        processes = [subprocess.Popen(words, stderr=log, stdout=log)]

        def reboot() -> None:
            for pid in list_tree(processes[-1].pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes[-1].wait()
            processes.append(subprocess.Popen(words, stderr=log, stdout=log))
            wait_for(port, folder / "log", fail=True)

        try:
            wait_for(port, folder / "log")
            place = tmp_path / "on board"
            device = open_device("ssh:board", str(place))
            yield Lab(device, place, programs, tmp_path / "slow", reboot)
        finally:
            processes[-1].terminate()
            processes[-1].wait()


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


def wait_for(port: int, log: Path, *, fail: bool = False) -> None:
    for _ in range(300 if fail else 100):
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    (pytest.fail if fail else pytest.skip)(f"it did not start: {log.read_text()}")


Connect = Callable[..., str]
# What repeats the same code over the other transport, and all instants of a kill, run by night.
WHOLE = os.environ.get("QNN_CI_NIGHTLY", "")
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
def connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phones: list[subprocess.Popen[str]]
) -> Iterator[Connect]:
    """Start phones, and connect the real adb client, with a server of its own, to them."""
    require_programs("adb", package="adb")
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free_port()))
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


@pytest.fixture
def phone(tmp_path: Path, connect: Connect, phones: list[subprocess.Popen[str]]) -> Lab:
    serial = connect()
    root = tmp_path / "phone0"
    place = root / "on phone"

    def reboot() -> None:
        phones[0].send_signal(signal.SIGUSR1)
        assert phones[0].stdout
        assert phones[0].stdout.readline()  # it listens again
        # Until adb has noticed that the old connection broke, it may drop the new one with it.
        for _ in range(100):
            subprocess.run(["adb", "disconnect", serial], check=False, capture_output=True)
            subprocess.run(["adb", "connect", serial], check=True, capture_output=True)
            state = ["adb", "-s", serial, "get-state"]
            if subprocess.run(state, check=False, capture_output=True).stdout == b"device\n":
                return
            time.sleep(0.05)
        pytest.fail(f"{serial} did not come back")

    device = open_device(f"adb:{serial}", str(place))
    return Lab(device, place, root / "bin", root / "bytes_per_s", reboot)


@pytest.fixture(params=["board", "phone"])
def lab(request: pytest.FixtureRequest) -> Lab:
    requested_lab: Lab = request.getfixturevalue(request.param)
    return requested_lab
