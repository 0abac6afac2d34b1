"""Runs programs on a device: a Runner like any other, whose files go there and come back."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from ci.cases.engine import INPUTS, Program, RunError, RunNotes, Sets
from ci.cases.outputs import read_outputs
from ci.cases.runners import OUTPUTS, SPEED
from ci.device.bundle import Bundle
from ci.device.connection import Device
from ci.models.tensors import FILE, write_sets
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, ToolError, UnfitError
from provisioning.files import hash_file

LEASE_S, GRACE_S = 900, 30.0
PROGRAM, LISTED, LOG, LATE = "program.pte", "input_list.txt", "log.txt", "late"
MOST_BYTES = 2**30  # of what comes back besides outputs: logs

# A lease is a directory with one line, until when and whose. Taking over one that has expired is a
# rename, which only one of several can do.
TAKE = """
mkdir -p {place}; cd {place}; now=$(date +%s)
if [ -f lease/held ]; then
  read -r until owner < lease/held
  if [ "$owner" != {owner} ] && [ "$owner" != {gone} ] && [ "$now" -lt "$until" ]; then
    echo "$owner $((until - now))"; exit 90
  fi
  if [ "$owner" != {owner} ]; then mv lease lease.{owner} && rm -r lease.{owner} || exit 91; fi
fi
if [ ! -d lease ]; then mkdir lease || exit 91; fi
echo "$((now + {seconds})) {owner}" > lease/held
"""
LEAVE = """
cd {place}; read -r until owner < lease/held && [ "$owner" = {owner} ] && rm -r lease; true
"""

# The runner is ended on the device itself, so that it stops whatever becomes of this computer.
RUN = """
cd {case}; rm -rf {outputs} {log} {late} {speed}; mkdir {outputs}
export LD_LIBRARY_PATH={libraries}:$LD_LIBRARY_PATH ADSP_LIBRARY_PATH={libraries}
( exec {command} ) > {log} 2>&1 < /dev/null &
runner=$!
( sleep {limit}; touch {late}; kill -9 $runner ) > /dev/null 2>&1 < /dev/null &
watch=$!
wait $runner && code=0 || code=$?
kill $watch 2>/dev/null || true
echo "$code" > {outputs}/code
tar -c -f - {outputs} {log} $(ls {late} {speed} 2>/dev/null)
"""


def name_owner() -> str:
    """Return what a lease of this process is known by."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_gone(owner: str) -> bool:
    """Whether a lease is of a process of this computer that has ended."""
    host, _, rest = owner.rpartition("-")[0].rpartition("-")
    return host == socket.gethostname() and rest.isdigit() and not Path(f"/proc/{rest}").exists()


@dataclass
class DeviceRunner:
    """Runs programs one at a time on ``device``, with the runner of ``bundle``, which is in
    ``directory`` on it. Other computers wait for its lease, or fail after ``wait_s`` seconds."""

    device: Device
    bundle: Bundle
    directory: str
    progress: Progress
    wait_s: float = 0.0
    sent: int = 0
    owner: str = field(default_factory=name_owner)
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return self.device.name

    @contextmanager
    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> Iterator[DeviceProgram]:
        del fresh  # each run has its own process
        with self.turn:
            yield DeviceProgram(self, program, timeout_s)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold the device for as long as the block takes. Raises UnfitError if another has it."""
        self.renew(self.wait_s)
        try:
            yield
        finally:
            script = LEAVE.format(place=quote(self.device.place), owner=quote(self.owner))
            with suppress(ToolError, StoreError):  # then it ends by itself
                self.device.call(script)

    def renew(self, wait_s: float = 0.0, seconds: float = LEASE_S) -> None:
        """Take the lease, or take it for longer. Raises UnfitError if another computer has it."""
        ends, gone = time.monotonic() + wait_s, ""
        while True:
            script = TAKE.format(
                place=quote(self.device.place),
                owner=quote(self.owner),
                gone=quote(gone),
                seconds=int(seconds),
            )
            answer = self.device.call(script)
            if not answer.code:
                return
            owner, _, left = answer.out.decode("utf-8", "replace").strip().partition(" ")
            if gone != owner and is_gone(owner):
                gone = owner
                continue
            if time.monotonic() >= ends:
                raise UnfitError(
                    f"{self.device.name} is in use by {owner or 'another computer'}",
                    why=f"it keeps its lease for {left or 'a few'} s more, and may renew it",
                    fix="wait for it: --wait SECONDS",
                )
            self.progress.step(f"{self.device.name}: waiting for {owner}, {left} s")
            time.sleep(min(5.0, max(ends - time.monotonic(), 0.1)))


@dataclass
class DeviceProgram:
    """A program and its inputs on a device; it is loaded anew for each run."""

    runner: DeviceRunner
    program: Program
    timeout_s: float
    used: bool = field(default=False, init=False)
    speed_ms: float | None = field(default=None, init=False)

    def run(self, sets: Sets) -> Sets:
        """Send what the device lacks, run, and read what came back. Raises RunError; StoreError if
        the device has no room."""
        try:
            archive = self.start(sets)
        except ToolError as error:
            raise RunError(f"{error.what}: {error.why}\n  fix: {error.fix}") from error
        place = self.program.directory
        late, code = self.unpack(archive, place)
        if late:
            raise RunError(f"the runner was ended on the device after {self.timeout_s:.0f} s")
        if code:
            raise RunError(f"the runner exited with {code} on the device")
        try:
            return read_outputs(place / OUTPUTS, self.program.compiled, len(sets))
        except (OSError, ValueError) as error:
            raise RunError(str(error)) from error

    def start(self, sets: Sets) -> bytes:
        """Return what the run left on the device, as a tar archive."""
        runner, spec = self.runner, self.program.spec
        device = runner.device
        runner.renew(seconds=max(LEASE_S, 2 * self.timeout_s))
        local = self.program.directory / "to_device"
        write_sets(local / INPUTS, sets)
        names = [
            [FILE.format(number, index) for index in range(len(tensors))]
            for number, tensors in enumerate(sets)
        ]
        listed = local / LISTED
        listed.write_text("".join(f"{' '.join(row)}\n" for row in names), encoding="utf-8")
        files = {name: local / INPUTS / name for row in names for name in row}
        files |= {LISTED: listed, PROGRAM: self.program.path}
        case = f"{device.place}/cases/{spec.slug}"
        digests = {name: hash_file(path) for name, path in files.items()}
        runner.sent += device.push(case, files, digests)
        flags = {
            **spec.source.run.flags,
            "model_path": PROGRAM,
            "input_list_path": LISTED,
            "output_folder_path": OUTPUTS,
            "performance_output_path": SPEED,
        }
        command = [shell_path(f"{runner.directory}/{runner.bundle.runner}")]
        command += [quote(f"--{name}={value}") for name, value in flags.items()]
        script = RUN.format(
            case=quote(case),
            outputs=OUTPUTS,
            log=LOG,
            late=LATE,
            speed=SPEED,
            libraries=shell_path(runner.directory),
            command=" ".join(command),
            limit=int(self.timeout_s),
        )
        return device.ask(script, timeout_s=self.timeout_s + GRACE_S)

    def unpack(self, archive: bytes, place: Path) -> tuple[bool, int]:
        """Write the outputs and the log of a run; return whether it was ended, and its exit code.

        Nothing but plain files by the names that a run gives is taken from a device's archive.
        """
        outputs = place / OUTPUTS
        shutil.rmtree(outputs, ignore_errors=True)  # of an earlier run
        outputs.mkdir()
        late, code = False, -1
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                if not member.isfile() or member.size > MOST_BYTES or folder not in {"", OUTPUTS}:
                    continue
                data = tar.extractfile(member)
                content = data.read() if data else b""
                if folder and name == "code":
                    code = int(content.strip() or b"-1")
                elif folder and name.endswith(".raw"):
                    (outputs / name).write_bytes(content)
                elif name == LOG:
                    self.program.log.write_bytes(content)
                elif name == SPEED:
                    self.speed_ms = parse_speed(content)
                elif name == LATE:
                    late = True
        return late, code

    def finish(self) -> RunNotes:
        return RunNotes(run_ms=self.speed_ms)


def parse_speed(content: bytes) -> float | None:
    """Return the milliseconds that a runner wrote; None for anything else."""
    try:
        return float(content)
    except ValueError:
        return None


def shell_path(directory: str) -> str:
    """Return a directory as a shell takes it, absolute on the device."""
    return quote(directory) if directory.startswith("/") else f'"$HOME"/{quote(directory)}'
