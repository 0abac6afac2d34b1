"""Programs that need not import: each call is a fork of one process that has imported all.

A program is a few lines that hand over its words, variables, directory and standard streams, wait,
and end with the fork's exit code.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
HELD = (
    *(f"ci.verbs.{name}" for name in ("gate", "matrix", "plan", "report", "setup")),
    *(f"provisioning.verbs.{name}" for name in ("cache", "doctor", "fetch")),
    *(f"tests.stand_ins.{name}" for name in ("quick_nox", "quick_run", "reports")),
)
PROGRAM = """#!{python} -IS
import _socket, posix, sys

variables = [name + b"=" + value for name, value in posix.environ.items()]
words = [word.encode(errors="surrogateescape") for word in sys.argv]
call = [b"{module}", b"%d" % len(words), *words, posix.getcwdb(), *variables]
streams = b"".join(one.to_bytes(4, sys.byteorder) for one in range(3))
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
server.sendmsg([b"\\0".join(call)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.shutdown(_socket.SHUT_WR)
sys.exit((server.recv(1) or b"\\1")[0])
"""


def make_program(address: Path, module: str) -> str:
    """The text of a program that runs ``main`` of a module in a fork of the server there."""
    return PROGRAM.format(python=sys.executable, module=module, address=str(address))


@contextmanager
def run_server(folder: Path) -> Iterator[Path]:
    """A process that holds HELD and listens at the address, until the end."""
    address = folder / "programs"
    words = [sys.executable, __file__, str(address)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        try:
            yield address
        finally:
            process.kill()


def serve(address: str) -> None:
    """Fork for each call, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        gc.freeze()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            caller, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run_call(caller)
            caller.close()


def run_call(caller: socket.socket) -> None:
    """What a program asks for, in this fork; it does not return."""
    code = 1
    try:
        data, streams, _, _ = socket.recv_fds(caller, 1 << 20, 3)
        while received := caller.recv(1 << 20):
            data += received
        module, count, *fields = map(os.fsdecode, data.split(b"\0"))
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(variable.split("=", 1) for variable in fields[int(count) + 1 :])
        os.chdir(fields[int(count)])
        sys.argv = fields[: int(count)]
        code = importlib.import_module(module).main()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.send(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    for name in HELD:
        importlib.import_module(name)
    serve(sys.argv[1])
