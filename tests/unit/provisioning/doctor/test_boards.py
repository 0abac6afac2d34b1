"""Which file of the DSP a board lacks, by what the board answered."""

from __future__ import annotations

import pytest

from provisioning.doctor.checks.board import BOARDS
from provisioning.doctor.facts import BoardFacts
from provisioning.doctor.survey.board import parse_answer, survey_board
from provisioning.errors import UsageError
from tests.unit.provisioning.doctor.cases import within

OLD_NODE = "node=yes /dev/adsprpc-smd"
DSP = "/usr/lib/dsp/cdsp"
WHOLE = (
    "node=yes /dev/fastrpc-cdsp",
    f"file={DSP}/fastrpc_shell_3",
    f"file={DSP}/fastrpc_shell_unsigned_3",
    f"file={DSP}/libc++.so.1",
    f"file={DSP}/libc++abi.so.1",
    "file=/data/qnn/libQnnHtpV68Skel.so",
    "daemon=cdsprpcd",
    "end=",
)


def find_ids(*lines: str, soc: tuple[str, int] | None = None) -> list[str]:
    board = parse_answer("ssh:board", "\n".join(lines))
    return sorted(finding.id for finding in BOARDS.judge_all(within(soc=soc, board=board)))


def without(*names: str, extra_lines: tuple[str, ...] = ()) -> tuple[str, ...]:
    rows = [row for row in WHOLE if not any(row.endswith(name) for name in names)]
    return (*extra_lines, *rows)


@pytest.mark.parametrize(
    ("lines", "soc", "ids"),
    [
        (WHOLE, None, []),
        (WHOLE, ("QCM6490", 68), []),
        (WHOLE, ("SM8650", 75), ["QNN816"]),  # the skel of another Hexagon
        (without("fastrpc-cdsp"), None, ["QNN811"]),
        (without("fastrpc-cdsp", extra_lines=("node=no /dev/fastrpc-cdsp",)), None, ["QNN812"]),
        (without("fastrpc-cdsp", extra_lines=("node=no /a", "node=yes /b")), None, []),
        (without("fastrpc_shell_3"), None, []),
        (without("fastrpc_shell_unsigned_3"), None, ["QNN814"]),
        (without("unsigned_3", extra_lines=(f"file={DSP}/testsig-0x12.so",)), None, []),
        # Without a shell, the whole archive is missing: the C++ library is no other cause.
        (without("_3", "libc++.so.1", "libc++abi.so.1"), None, ["QNN813"]),
        (without("libc++.so.1"), None, ["QNN815"]),
        (without("libc++abi.so.1"), None, ["QNN815"]),
        # QNN's skels for V81 need none of the two.
        (
            without("libc++abi.so.1", "Skel.so", extra_lines=("file=/q/libQnnHtpV81Skel.so",)),
            *(("SM8850", 81), []),
        ),
        # Shells of the ADSP, whose number is 0.
        (without("_3", extra_lines=(f"file={DSP}/fastrpc_shell_0",)), None, ["QNN813"]),
        (
            without("unsigned_3", extra_lines=(f"file={DSP}/fastrpc_shell_unsigned_0",)),
            *(None, ["QNN814"]),
        ),
        (without("Skel.so"), None, ["QNN816"]),
        (without("cdsprpcd"), None, ["QNN817"]),
        (without("cdsprpcd", extra_lines=("daemon=adsprpcd",)), None, ["QNN817"]),
        (without("fastrpc-cdsp", "cdsprpcd", extra_lines=(OLD_NODE, "daemon=adsprpcd")), None, []),
        (without("fastrpc-cdsp", "cdsprpcd", extra_lines=(OLD_NODE,)), None, ["QNN817"]),
        (without("end="), None, ["QNN810"]),  # a broken connection
        (("ssh: connect to host board port 22: Connection refused",), None, ["QNN810"]),
        ((), None, ["QNN810"]),
    ],
)
def test_each_missing_file_is_named(
    lines: tuple[str, ...], soc: tuple[str, int] | None, ids: list[str]
) -> None:
    assert find_ids(*lines, soc=soc) == ids


def test_no_board_is_no_fault() -> None:
    assert list(BOARDS.judge_all(within())) == []


@pytest.mark.parametrize(
    "address", ["board", "ssh:", "ssh:-oProxyCommand=x", "ssh:a b", "adb:", "ssh:h:x"]
)
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"fix: pass ssh:\[USER@\]HOST\[:PORT\]"):
        survey_board(address, {})


def test_the_reason_of_ssh_is_shown() -> None:
    board = parse_answer("ssh:board", "node=yes /dev/x\nConnection closed by remote host\n")
    assert board == BoardFacts("ssh:board", failure="Connection closed by remote host")
