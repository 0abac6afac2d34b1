"""Check the files of a Linux board with which its DSP starts a process."""

from __future__ import annotations

import re
from typing import NamedTuple

from provisioning.doctor.facts import BoardFacts
from provisioning.doctor.registry import Case, Subjects, seen

# The number is that of the DSP in the kernel's driver (drivers/misc/fastrpc.c): 3 is the CDSP, 4 a
# second one. Those of the ADSP (0) and of others start no process of QNN.
SHELL, UNSIGNED = re.compile(r"fastrpc_shell_[34]"), re.compile(r"fastrpc_shell_unsigned_[34]")
CXX, CXX_ABI = re.compile(r"libc\+\+\.so\.1"), re.compile(r"libc\+\+abi\.so\.1")
FIRST_WITHOUT_CXX = 81  # QNN's skels for V81 need none; those for V85 were not seen
SIGNATURE = re.compile(r"testsig-\w+\.so")
SKEL = re.compile(r"libQnnHtpV(\d+)Skel\.so")


class Board(NamedTuple):
    """A board, and the requirements for it."""

    facts: BoardFacts
    case: Case

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Return whether a file has such a name."""
        return any(pattern.fullmatch(file.rpartition("/")[2]) for file in self.facts.files)

    def has_skel(self) -> bool:
        """Return whether there is the skel for the requested SoC, or any."""
        if not self.case.soc:
            return self.has(SKEL)
        return self.has(re.compile(rf"libQnnHtpV{self.case.soc[1]}Skel\.so"))

    def has_daemon(self) -> bool:
        """Return whether the daemon of the CDSP runs. Older kernels have one node for all DSPs,
        which adsprpcd may serve alone."""
        daemons = self.facts.daemons
        is_shared = not any("fastrpc-cdsp" in node for node in self.facts.nodes)
        return "cdsprpcd" in daemons or (is_shared and "adsprpcd" in daemons)

    @property
    def missing_cxx(self) -> str:
        """The libraries of the DSP's C++ runtime that are missing, "" if all exist or the skel
        needs none."""
        if self.case.soc and self.case.soc[1] >= FIRST_WITHOUT_CXX:
            return ""
        libraries = {"libc++.so.1": CXX, "libc++abi.so.1": CXX_ABI}
        return " and ".join(name for name, pattern in libraries.items() if not self.has(pattern))

    @property
    def skel(self) -> str:
        """The name of the skel."""
        return f"libQnnHtpV{self.case.soc[1] if self.case.soc else 'NN'}Skel.so"


BOARDS = Subjects(
    lambda case: [Board(case.facts.board, case)] if case.facts.board else [],
    lambda board: seen(f"board {board.facts.address}", board.facts.address, board=board),
)
BOARDS.when(
    QNN810=lambda board: board.facts.failure,
    QNN811=lambda board: not board.facts.nodes,
    QNN812=lambda board: board.facts.nodes and not any(board.facts.nodes.values()),
    QNN813=lambda board: not (board.has(SHELL) or board.has(UNSIGNED)),
    QNN814=lambda board: board.has(SHELL) and not board.has(UNSIGNED) and not board.has(SIGNATURE),
    QNN815=lambda board: board.missing_cxx,
    QNN816=lambda board: not board.has_skel(),
    QNN817=lambda board: not board.has_daemon(),
)
