"""A phone behind Jumpstarter: a real exporter on loopback, a real `jmp shell`, and deploy in it.

QNN_CI_TEST_JUMPSTARTER names the bin directory of a virtual environment with jumpstarter-cli,
jumpstarter-driver-composite, jumpstarter-driver-adb and jumpstarter-driver-network. The exporter's
file and the script are those of docs/guides/device-lab.md.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ci.device.bundle import Target
from tests.integration.device.conftest import Connect, tool
from tests.integration.device.test_verbs import write_bundle
from tests.stand_ins.waits import wait_until

BIN = os.environ.get("QNN_CI_TEST_JUMPSTARTER", "")
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guides/device-lab.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.skipif(not BIN, reason="QNN_CI_TEST_JUMPSTARTER names no environment")


def read_block(title: str, language: str) -> str:
    """The block of a language that follows a title of the page."""
    match = re.search(rf"## {title}\n.*?```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert match
    return match[1]


def free_port() -> int:
    """Return a port for a program that binds it later. It is below those that the kernel gives to
    programs that bind no certain one."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(lowest - 500, lowest), 500):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    pytest.fail(f"no port of {lowest - 500} to {lowest} is free")


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def adb_server(monkeypatch: pytest.MonkeyPatch) -> str:
    """The port of adb's server, which the exporter is to serve."""
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", port := str(free_port()))
    return port


def test_deploy_works_in_a_shell_of_jumpstarter(
    adb_server: str, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect()
    tool(tmp_path / "phone0/bin", "uname", "#!/bin/sh\necho aarch64\n")
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the tunnel's state is in one file there
    listener, tunnel = free_port(), free_port()
    exporter = tmp_path / "exporter.yaml"
    exporter.write_text(read_block("The exporter", "yaml").replace("5037", adb_server))
    write_bundle(tmp_path / "bundle", Target.ANDROID)
    script = tmp_path / "deploy.sh"
    tool(tmp_path, "qnn-ci", f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m ci "$@"\n')
    command = f"qnn-ci deploy --json --device adb: --bundle bundle --place {tmp_path}/phone0/there"
    text = read_block("A script", "sh").replace("15037", str(tunnel))
    text = text.replace("qnn-ci deploy --device adb: --bundle bundle", command)
    assert command in text
    script.write_text(text.replace("--bundle bundle", f"--bundle {tmp_path}/bundle"))
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith("ANDROID_ADB")
    }
    plain["PATH"] = f"{tmp_path}:{plain['PATH']}"
    address = ["--tls-grpc-insecure"]
    words = ["--exporter-config", str(exporter), "--tls-grpc-listener", f"127.0.0.1:{listener}"]
    with (tmp_path / "exporter.log").open("w") as log:
        process = subprocess.Popen(
            ["jmp", "run", *words, *address], env=plain, stdout=log, stderr=log
        )
        try:
            wait_until(lambda: listens(listener))
            shell = ["jmp", "shell", "--tls-grpc", f"127.0.0.1:{listener}", *address, "--"]
            out, err = tmp_path / "out", tmp_path / "err"
            with out.open("w") as stdout, err.open("w") as stderr:
                ended = subprocess.run(
                    [*shell, "sh", str(script)],
                    env=plain,
                    cwd=tmp_path,
                    stdout=stdout,
                    stderr=stderr,
                    check=False,
                )
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    assert ended.returncode == 0, err.read_text() + (tmp_path / "exporter.log").read_text()
    assert not listens(tunnel)  # the script ended it
    output = out.read_text()
    result = json.loads(output[output.index("{\n") : output.rindex("}") + 1])
    assert (result["facts"]["soc"], result["sent_bytes"]) == ("SM8650", 10)
    assert (tmp_path / "phone0/there/bundles").is_dir()
