"""``doctor --board`` asks a real sshd which of the DSP's files a board has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provisioning.__main__ import main
from provisioning.errors import ExitCode
from tests.integration.device.conftest import end_connections, write_sshd
from tests.programs import require_programs

FILES = (
    *("fastrpc_shell_3", "fastrpc_shell_unsigned_3", "libc++.so.1", "libc++abi.so.1"),
    "libQnnHtpV68Skel.so",
)
OF_FILES = {"QNN813", "QNN814", "QNN815", "QNN816"}


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    main(["doctor", "staged-linux", "--board", "ssh:board", *words, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return {finding["id"]: finding["what"] for finding in findings}


def test_the_doctor_names_the_file_that_a_board_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_programs("sshd", "ssh", package="openssh-server, openssh-client")
    client = tmp_path / "client"
    # FastRPC separates folders by semicolons: the second one is this test's.
    variables = f'"PATH=/usr/bin:/bin" "ADSP_LIBRARY_PATH=/none;{tmp_path}/dsp"'
    sshd = write_sshd(tmp_path, client, "/usr/bin:/bin")
    config = (sshd / "sshd_config").read_text()
    text = config.replace("SetEnv PATH=/usr/bin:/bin", f"SetEnv {variables}")
    (sshd / "sshd_config").write_text(text)
    monkeypatch.setenv("PATH", f"{client}:{os.environ['PATH']}")
    (tmp_path / "dsp").mkdir()
    for name in FILES:
        (tmp_path / "dsp" / name).touch()
    try:
        assert OF_FILES & ask(capsys).keys() == set()
        for name, finding in (
            ("libQnnHtpV68Skel.so", "QNN816"),
            ("libc++.so.1", "QNN815"),
            ("fastrpc_shell_unsigned_3", "QNN814"),
            ("fastrpc_shell_3", "QNN813"),
        ):
            (tmp_path / "dsp" / name).unlink()
            assert finding in ask(capsys)
        (sshd / "host").unlink()  # sshd does not start
        assert set(ask(capsys)) == {"QNN810"}
        assert main(["doctor", "staged-linux", "--board", "board"]) == ExitCode.USAGE
    finally:
        end_connections(sshd)
