"""Ask a Linux board over ssh which of the files are there that its DSP needs to start a process.

The list is that of FastRPC's daemon and shell (github.com/qualcomm/fastrpc, and the package
hexagon-dsp-binaries): device nodes, the shell, the DSP's C++ library, the skel, and a signature.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from provisioning.console.process import fill_script, run_process
from provisioning.doctor.facts import BoardFacts
from provisioning.errors import ToolError, UnfitError, UsageError

SCRIPT = Path(__file__).with_name("board.sh")
TIMEOUT_S = 60.0
ADDRESS = re.compile(
    r"ssh:(?P<host>(?!-)[^\s:\[\]]+|(?:[^\s:\[\]]+@)?\[[0-9a-fA-F:.%\w]+\])(?::(?P<port>\d+))?"
)
# A check has no terminal for a question about a password or an unknown host key.
OPTIONS = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "StrictHostKeyChecking=yes",
    "-o",
    "ConnectTimeout=20",
)


def survey_board(address: str, variables: Mapping[str, str]) -> BoardFacts:
    """Return facts about the board ``ssh:[USER@]HOST[:PORT]``. Raises UsageError for another form
    of address, and UnfitError if there is no ssh."""
    match = ADDRESS.fullmatch(address)
    if not match:
        raise UsageError(f"--board {address} names no board", fix="pass ssh:[USER@]HOST[:PORT]")
    ssh = shutil.which("ssh", path=variables.get("PATH", ""))
    if ssh is None:
        fix = "install OpenSSH's client (Debian, Ubuntu: openssh-client)"
        raise UnfitError("ssh is not on PATH", fix=fix)
    host = match["host"].replace("[", "").replace("]", "")
    port = ["-p", match["port"]] if match["port"] else []
    argv = [ssh, *OPTIONS, *port, "--", host, fill_script(SCRIPT)]
    try:
        output = run_process(argv, env=variables, timeout_s=TIMEOUT_S, check=False).output
    except ToolError as error:
        output = str(error)
    return parse_answer(address, output)


def parse_answer(address: str, output: str) -> BoardFacts:
    """Return facts about a board from what the script printed, with the last line as the reason if
    it did not reach its end."""
    rows = [line.strip().partition("=") for line in output.splitlines() if line.strip()]
    if ("end", "=", "") not in rows:
        last = "".join(rows[-1]) if rows else "it printed nothing"
        return BoardFacts(address, failure=last)
    nodes = (value.partition(" ") for key, _, value in rows if key == "node")
    return BoardFacts(
        address,
        nodes={path: access == "yes" for access, _, path in nodes},
        files=tuple(value for key, _, value in rows if key == "file"),
        daemons=tuple(value for key, _, value in rows if key == "daemon"),
    )
