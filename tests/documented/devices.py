"""A phone and a board for a reader's command: the real adb and ssh, and what they reach."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.documented.place import Place
from tests.integration.device.conftest import end_connections, start_phone, write_sshd


@contextmanager
def phone(place: Place) -> Iterator[Place]:
    """An adb server with one phone, a stand-in for adbd."""
    process = start_phone(place.folder / "phone")
    with tempfile.TemporaryDirectory() as folder:  # a path as short as a socket needs it
        variables = {"ADB_SERVER_SOCKET": f"localfilesystem:{folder}/adb"}
        place = replace(place, set_variables=variables)
        assert process.stdout
        port = process.stdout.readline().split()[1]
        try:
            connected = place.run(f"adb connect 127.0.0.1:{port}", 600)
            assert connected.code == 0, connected.text
            yield place
        finally:
            place.run("adb kill-server", 600)
            process.terminate()
            process.communicate()


@contextmanager
def board(place: Place) -> Iterator[Place]:
    """sshd as this user, which ssh knows as ``board``."""
    board_home = place.folder / "board"
    board_home.mkdir()
    client = place.home / ".local" / "bin"
    folder = write_sshd(place.folder, client, "/usr/bin:/bin", str(board_home))
    yield place
    end_connections(folder)
