"""Run programs on a device: send their files, start the runner there, and fetch the outputs."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from ci.cases.engine import INPUTS, Program, RunError, RunNotes, Sets
from ci.cases.outputs import OUTPUTS, read_outputs
from ci.cases.runners import SPEED
from ci.device.bundle import Bundle, Target
from ci.device.connection import SCRIPTS, Device, DeviceFacts
from ci.device.figures import Start, parse_heat, read_times, summarize_starts
from ci.models.lowering_options import ONE_RUN
from ci.models.tensors import FILE, write_sets
from provisioning.console.process import fill_script
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, ToolError, UnfitError
from provisioning.files import hash_file

LEASE_S, GRACE_S, PAUSE_S = 900, 30.0, 5.0
TAKEN = (90, 91)  # take.sh: another computer has the lease, or is taking it
PROGRAM, LISTED, LOG, LATE = "program.pte", "input_list.txt", "log.txt", "late"
TIMES, MEMORY, BEFORE, AFTER = "times.etdp", "memory.txt", "before.txt", "after.txt"
SYSTEM, SYSTEM_MARK = "system_log.txt", "---- the device's system log\n"
CODE = "code"  # the last file of the archive: if it is there, the others are complete
# Files that are kept if they exist, besides outputs and log.
KEPT = (LATE, SPEED, MEMORY, BEFORE, AFTER, SYSTEM)
STARTS, RUNS = 3, 10  # defaults on a device
MOST_BYTES = 2**30  # the largest file that is accepted
LOG_BYTES = 8 << 20  # of a log; the middle of a longer one is left out
ROOM_BYTES = 64 << 20  # for everything that a run returns besides outputs


def find_no_faults(program: Program, files: Mapping[str, bytes]) -> Iterable[str]:
    """Return nothing: a runner whose files say nothing against its outputs."""
    del program, files
    return ()


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one kind of runner is called on a device, and what it writes besides outputs.

    ``list_files`` returns the files of a program by their names on the device, and ``list_flags``
    the runner's flags besides those that all runners have. ``read_times`` returns the time of
    loading and the times of all executions, in ms, from the files that came back, of which
    ``result_files`` are this kind's. ``find_faults`` returns what these files say against the
    outputs. ``launcher`` is the program that runs the runner, "" if the runner is a program itself.
    """

    list_files: Callable[[Program], Mapping[str, Path]]
    list_flags: Callable[[Program], Mapping[str, Any]]
    read_times: Callable[[Mapping[str, bytes]], tuple[float | None, tuple[float, ...]]]
    result_files: tuple[str, ...]
    find_faults: Callable[[Program, Mapping[str, bytes]], Iterable[str]] = find_no_faults
    launcher: str = ""


EXECUTORCH = Dialect(
    list_files=lambda program: {PROGRAM: program.path},
    list_flags=lambda program: {
        **program.spec.source.run.flags,
        "model_path": PROGRAM,
        "performance_output_path": SPEED,
        "etdump_path": TIMES,
    },
    read_times=lambda files: read_times(files.get(TIMES, b"")),
    result_files=(TIMES,),
)


def name_owner() -> str:
    """Return a name for this process as the owner of a lease."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def are_equal(first: Sets, later: Sets) -> bool:
    """Return whether two starts returned the same outputs. Bytes are compared, because a NaN would
    differ from itself."""
    for first_tensors, later_tensors in zip(first, later, strict=True):
        for first_array, later_array in zip(first_tensors, later_tensors, strict=True):
            if first_array.tobytes() != later_array.tobytes():
                return False
    return True


def is_gone(owner: str) -> bool:
    """Return whether ``owner`` is a process on this computer that has ended."""
    # From the right, since the name of a host may contain hyphens.
    host, _, pid = owner.rpartition("-")[0].rpartition("-")
    return host == socket.gethostname() and pid.isdigit() and not Path(f"/proc/{pid}").exists()


class Holder(NamedTuple):
    """The owner of a lease, and the seconds until it expires. The device reports both, but not
    while another computer is taking the lease."""

    owner: str
    left_s: str


@dataclass
class DeviceRunner:
    """Runs programs on ``device``, one at a time and ``starts`` times each. The files of
    ``bundle``, which include the runner, are in ``directory`` on the device. ``dialect`` is how
    that runner is called. ``sent`` is the number of bytes that were sent for programs. ``owner``
    names this process in the device's lease."""

    device: Device
    bundle: Bundle
    directory: str
    progress: Progress
    starts: int = 1
    sent: int = 0
    dialect: Dialect = EXECUTORCH
    owner: str = field(default_factory=name_owner)
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        """The device's name, such as ``adb:SERIAL``."""
        return self.device.name

    def describe_processor(self, facts: DeviceFacts) -> str:
        """Return what runs the programs on a device with ``facts``."""
        if self.bundle.target is Target.EMULATOR:
            return "the HTP emulator"
        return facts.soc or "an unknown SoC"

    @contextmanager
    def open(
        self, program: Program, timeout_s: float, *, fresh: bool = False
    ) -> Iterator[DeviceProgram]:
        """Yield an object that runs ``program``. One program at a time has the device."""
        del fresh  # each run is a new process anyway
        # Two programs at a time would share the DSP, and each would spoil the other's times.
        with self.turn:
            yield DeviceProgram(self, program, timeout_s)

    def renew(self, seconds: float = LEASE_S) -> None:
        """Take or extend the lease. Raises UnfitError if somebody else has it, and the same errors
        as ``take``."""
        if holder := self.take(seconds):
            raise UnfitError(
                f"{self.device.name} is in use by {holder.owner}",
                why=f"the lease ends in {holder.left_s} seconds, unless it is renewed",
                fix="pass --wait SECONDS to wait for the device",
            )

    def take(self, seconds: float = LEASE_S) -> Holder | None:
        """Take or extend the lease if it is free or expired, if this object owns it, or if its
        owner is a process on this computer that has ended. Otherwise, return its holder. Raises
        UnfitError if the user may not write to the device's directory, and the same errors as
        ``Device.call``."""
        ended_owner = ""
        while True:
            values = {"me": self.owner, "gone": ended_owner, "seconds": int(seconds)}
            script = fill_script(SCRIPTS / "take.sh", place=self.device.place, **values)
            answer = self.device.call(script)
            if not answer.code:
                return None
            if answer.code not in TAKEN:
                raise UnfitError(
                    f"{self.device.name}: cannot write to {self.device.place}",
                    why=answer.message,
                    fix="pass another directory with --place, or remove this one on the device",
                )
            owner, _, left_s = answer.out.decode("utf-8", "replace").strip().partition(" ")
            # The second attempt names the ended owner: the device cannot know that it has ended,
            # and takes the lease from it only if no other process has taken it first.
            if ended_owner == owner or not is_gone(owner):
                return Holder(owner or "another computer", left_s or "a few")
            ended_owner = owner


@contextmanager
def lease_first(runners: Sequence[DeviceRunner], wait_s: float = 0.0) -> Iterator[DeviceRunner]:
    """Lease the first free device until the block ends. Raises the errors of ``take_first``."""
    runner = take_first(runners, wait_s)
    try:
        yield runner
    finally:
        script = fill_script(SCRIPTS / "leave.sh", place=runner.device.place, me=runner.owner)
        with suppress(ToolError, StoreError):  # the lease expires later
            runner.device.call(script)


def take_first(runners: Sequence[DeviceRunner], wait_s: float) -> DeviceRunner:
    """Take the lease of the first device that is free, and return its runner. Raises UnfitError if
    no device becomes free within ``wait_s`` seconds, and the same errors as ``DeviceRunner.take``.
    """
    ends = time.monotonic() + wait_s
    while True:
        leases = []
        for runner in runners:
            holder = runner.take()
            if not holder:
                return runner
            name, (owner, left_s) = runner.device.name, holder
            leases.append(f"{name} is in use by {owner}: the lease ends in {left_s} s")
        if time.monotonic() >= ends:
            raise UnfitError(
                leases[0] if len(leases) == 1 else f"all {len(leases)} devices are in use",
                why="; ".join(leases) if len(leases) > 1 else "",
                fix="pass --wait SECONDS to wait for a device",
            )
        runners[0].progress.step(f"waiting for a device: {'; '.join(leases)}")
        time.sleep(min(PAUSE_S, max(ends - time.monotonic(), 0.1)))


@dataclass
class DeviceProgram:
    """A program on a device. The runner loads it again at each start."""

    runner: DeviceRunner
    program: Program
    timeout_s: float
    used: bool = field(default=False, init=False)
    speed_ms: float | None = field(default=None, init=False)
    starts: list[Start] = field(default_factory=list, init=False)
    unequal: list[int] = field(default_factory=list, init=False)
    faults: dict[str, None] = field(default_factory=dict, init=False)  # each once, in order

    @property
    def is_emulated(self) -> bool:
        """Whether the runner runs in the emulator on this machine, not on a device."""
        return self.runner.bundle.target is Target.EMULATOR

    @property
    def iteration(self) -> int:
        """How often each sample is run: the model's ``iteration``. On a real device, the default
        of 1 is replaced by RUNS."""
        run_options = self.program.spec.source.run
        # One execution says little about the time on a device, and nothing in the emulator.
        is_default = run_options.iteration == ONE_RUN.iteration and not self.is_emulated
        return RUNS if is_default else run_options.iteration

    def run(self, sets: Sets) -> Sets:
        """Send the program and ``sets``, then start the runner ``runner.starts`` times. Return the
        outputs of the first start, and note each later start whose outputs differ from them.

        Raises RunError if a start fails or the connection breaks, UnfitError if somebody else has
        the lease, and StoreError if the device has too little space.
        """
        try:
            self.send(sets)
        except ToolError as error:
            raise self.explain(error) from error
        first = self.run_once(len(sets))
        for number in range(1, self.runner.starts):
            outputs = self.run_once(len(sets))
            if not are_equal(first, outputs):
                self.unequal.append(number + 1)
        return first

    def run_once(self, sets: int) -> Sets:
        """Start the runner once, and return the outputs for each sample. Raises the same errors
        as ``run``."""
        try:
            archive = self.start()
        except ToolError as error:
            raise self.explain(error) from error
        place = self.program.directory
        try:
            late, code = self.unpack(archive, place)
        except (tarfile.TarError, ValueError) as error:
            name = self.runner.device.name
            raise RunError(
                f"{name} did not send the archive of a run: {error}", lacks=name
            ) from error
        # Before the exit code, which is only that of the kill.
        if late:
            raise RunError(
                f"the runner exceeded {self.timeout_s:.0f} s and was stopped on the device"
            )
        if code:
            raise RunError(f"the runner exited with code {code} on the device")
        try:
            return read_outputs(place / OUTPUTS, self.program.compiled, sets)
        except (OSError, ValueError) as error:
            raise RunError(str(error)) from error

    @property
    def place(self) -> str:
        """The program's directory on the device."""
        return f"{self.runner.device.place}/cases/{self.program.spec.slug}"

    def send(self, sets: Sets) -> None:
        """Send the program and its inputs. Raises the same errors as ``DeviceRunner.renew`` and
        ``Device.push``."""
        self.runner.renew(seconds=self.lease_s)
        local = self.program.directory / "to_device"
        write_sets(local / INPUTS, sets)
        names = []
        for number, tensors in enumerate(sets):
            names.append([FILE.format(number, index) for index in range(len(tensors))])
        listed = local / LISTED
        listed.write_text("".join(f"{' '.join(row)}\n" for row in names), encoding="utf-8")
        files = {name: local / INPUTS / name for row in names for name in row}
        files |= {LISTED: listed, **self.runner.dialect.list_files(self.program)}
        digests = {name: hash_file(path) for name, path in files.items()}
        self.runner.sent += self.runner.device.push(self.place, files, digests)

    @property
    def lease_s(self) -> float:
        """How long the lease lasts: a start may take up to the time limit, and its transfers take
        time, too.
        """
        return max(LEASE_S, 2 * self.timeout_s)

    def start(self) -> bytes:
        """Start the runner, and return the files that it wrote as a tar archive. Raises the same
        errors as ``DeviceRunner.renew`` and ``Device.ask``."""
        runner, dialect = self.runner, self.runner.dialect
        # Before each start, so that the lease lasts to its end, whatever the starts before it took.
        runner.renew(seconds=self.lease_s)
        flags = {
            **dialect.list_flags(self.program),
            "iteration": self.iteration,
            "input_list_path": LISTED,
            "output_folder_path": OUTPUTS,
        }
        arguments = [quote(f"--{name}={value}") for name, value in flags.items()]
        script = fill_script(
            SCRIPTS / "run.sh",
            place=self.place,
            directory=runner.directory,
            launcher=dialect.launcher,
            outputs=OUTPUTS,
            log=LOG,
            most_kb=LOG_BYTES // 1000,  # the shell of a phone has numbers of 32 bits
            half=LOG_BYTES // 2,
            late=LATE,
            code=CODE,
            memory=MEMORY,
            before=BEFORE,
            after=AFTER,
            system=SYSTEM,
            result_files=" ".join((*KEPT, *dialect.result_files)),
            limit=int(self.timeout_s),
        )
        outputs = sum(output.size_bytes for output in self.program.compiled.outputs)
        return runner.device.ask(
            f"set -- {quote(runner.bundle.runner)} {' '.join(arguments)}\n{script}",
            # The device ends the runner at its limit. The rest is for the archive, so that a start
            # that was too long still returns its log.
            timeout_s=self.timeout_s + GRACE_S,
            # A board that floods the connection must not fill this machine's memory.
            most_bytes=2 * outputs * self.program.compiled.sets + ROOM_BYTES,
        )

    def unpack(self, archive: bytes, place: Path) -> tuple[bool, int]:
        """Write the outputs and the log of a start. Return whether the runner exceeded the time
        limit, and its exit code. Raises TarError or ValueError if ``archive`` is damaged or
        incomplete.

        Only regular files with the expected names are taken from the archive.
        """
        outputs = place / OUTPUTS
        shutil.rmtree(outputs, ignore_errors=True)  # of an earlier run
        outputs.mkdir()
        contents = dict[str, bytes]()
        # r: accepts no compression, so that a small archive cannot unpack to a large one.
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                # A link in the archive could lead anywhere on this machine.
                if not member.isfile() or member.size > MOST_BYTES or folder not in {"", OUTPUTS}:
                    continue
                data = tar.extractfile(member)
                content = data.read() if data else b""
                if folder and name.endswith(".raw"):
                    (outputs / name).write_bytes(content)
                elif not folder and name in {LOG, *KEPT, *self.runner.dialect.result_files, CODE}:
                    contents[name] = content
        # qnn_executor_runner exits with 0 although it has written nothing, so that the exit code
        # alone proves nothing; without this file, the connection broke.
        if CODE not in contents:
            raise ValueError("the archive is incomplete")
        if LOG in contents:
            system = contents.get(SYSTEM, b"")
            self.program.log.write_bytes(
                contents[LOG] + (SYSTEM_MARK.encode() + system) * bool(system)
            )
        self.note_start(contents)
        return LATE in contents, int(contents[CODE])

    def note_start(self, contents: Mapping[str, bytes]) -> None:
        """Record the times, memory and heat that the files of a start contain."""
        load_ms, runs_ms = self.runner.dialect.read_times(contents)
        sizes = contents.get(MEMORY, b"").split()
        before, after = (
            parse_heat(contents.get(name, b"").decode("utf-8", "replace"))
            for name in (BEFORE, AFTER)
        )
        # VmHWM only grows, so the last line is the largest.
        memory = 1024 * int(sizes[-1]) if sizes and sizes[-1].isdigit() else None
        self.speed_ms = None
        with suppress(ValueError):  # the runner wrote no number
            self.speed_ms = float(contents.get(SPEED, b""))
        self.starts.append(Start(load_ms, runs_ms, memory, before, after))
        # A runner that failed is reported as that.
        if contents.get(CODE, b"").strip() == b"0":
            self.faults |= dict.fromkeys(self.runner.dialect.find_faults(self.program, contents))

    def explain(self, error: ToolError) -> RunError:
        """Return a RunError that blames the device, not the program, for a connection error."""
        message = ": ".join(filter(None, [error.what, error.why]))
        message += f"\n  fix: {error.fix}" if error.fix else ""
        return RunError(message, lacks=self.runner.device.name)

    def finish(self) -> RunNotes:
        """Return the figures of all starts, and the numbers of starts with other outputs."""
        figures = summarize_starts(
            self.starts,
            warm_up=self.program.spec.source.run.warm_up,
            iteration=self.iteration,
            emulated=self.is_emulated,
        )
        faults = [
            f"start {number} on the device returned outputs that differ from the first start's"
            for number in self.unequal
        ]
        return RunNotes(faults=(*self.faults, *faults), run_ms=self.speed_ms, device=figures)
