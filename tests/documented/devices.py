"""A phone and a board for a reader's command: the real adb and ssh, and what they reach."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.documented.place import Place
from tests.integration.device.conftest import SSHD, free_port, start_phone, wait_for, write_sshd


@contextmanager
def phone(place: Place) -> Iterator[Place]:
    """An adb server with one phone, a stand-in for adbd."""
    variables = {"ANDROID_ADB_SERVER_PORT": str(free_port())}
    place = replace(place, set_variables=variables)
    process = start_phone(place.folder / "phone")
    try:
        assert process.stdout
        port = process.stdout.readline().split()[1]
        connected = place.run(f"adb connect 127.0.0.1:{port}", 60)
        assert connected.code == 0, connected.text
        yield place
    finally:
        place.run("adb kill-server", 60)
        process.terminate()
        process.communicate()


@contextmanager
def board(place: Place) -> Iterator[Place]:
    """sshd as this user, which ssh knows as ``board``."""
    port = free_port()
    board_home = place.folder / "board"
    board_home.mkdir()
    client = place.home / ".local" / "bin"
    folder = write_sshd(place.folder, client, port, "/usr/bin:/bin", str(board_home))
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log
        ) as process,
    ):
        try:
            wait_for(port, folder / "log", fail=True)
            yield place
        finally:
            process.terminate()
