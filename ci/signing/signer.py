"""Run a signer on one library, find the file that it wrote, and explain its failures.

The Hexagon SDK's elfsigner.py takes ``-i FILE -o DIRECTORY`` or ``-t SERIAL -o DIRECTORY``. It
reads the user's consent from stdin, and leaves a log next to its output. Its exit status is
unreliable, so the file that it wrote is verified even if the status is 0.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ci.signing.masking import Masker, mask_arguments, read_serial
from ci.signing.record import Program
from provisioning.console.command import user_command, user_program
from provisioning.console.process import run_process
from provisioning.documents import CONTENT_BYTES, read_bytes
from provisioning.errors import ToolError, UnfitError, UsageError
from provisioning.files import hash_file

# ExecuTorch's script also pipes `yes` into the signer. A prompt for a secret does not accept this.
ANSWERS = "y\n" * 20
QUESTION = re.compile(r"(\[y/n\]|[?:])\s*$", re.IGNORECASE)
# Drop variables that would make the signer load another Python's modules; write no bytecode into
# the SDK.
DROPPED = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
ADDED = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}

PYTHON_VARIABLE = "QNN_CI_SIGNER_PYTHON"
# The newest first; Python 3.12 removed imp.
PATH_PYTHONS = ("python3.11", "python3.10", "python3.9")
# Run with -W ignore: importing imp prints a DeprecationWarning, and the output is parsed.
PROBE = "import imp, sys; print('probed', '.'.join(map(str, sys.version_info[:3])))"
PROBE_TIMEOUT_S = 20.0


class Failure(str, Enum):
    """The ways in which signers have been seen to fail."""

    EXITED = "the signer failed"
    HUNG = "the signer did not finish"
    PROMPT = "the signer asks for unexpected input"
    WRONG_PYTHON = "the signer needs a Python below 3.12"
    NO_OUTPUT = "the signer wrote nothing"
    ELSEWHERE = "the signer wrote to the wrong place"
    TRUNCATED = "the signer's output is truncated"
    UNCHANGED = "the signer's output is not signed"
    EXPIRED = "the signer's certificate is not valid today"
    WRONG_HASH = "the signer's output has hashes that do not match"
    ALTERED = "the signer changed loadable content"
    ENCRYPTED = "the signer's output is encrypted"
    INVALID = "the signer's output is inconsistent"
    UNRECOGNISED = "no published scheme verifies the signature"


class SignerError(ToolError):
    """A signer failed. ``failure`` is the kind of failure."""

    def __init__(self, failure: Failure, library: str, *, why: str, fix: str = "") -> None:
        fix = fix or "run the signer by hand on this library and read its log"
        super().__init__(f"{library}: {failure.value}", why=why, fix=fix)
        self.failure = failure


@dataclass(frozen=True)
class Interpreter:
    """A Python that can import the module imp, and its version."""

    path: Path
    version: str


def find_interpreter(option: str = "") -> Interpreter:
    """Return a Python that can run the SDK's signer.

    Only ``option`` is tried or, if it is empty, the Python in the variable QNN_CI_SIGNER_PYTHON. If
    neither is set, return the first suitable Python that ``_list_pythons`` yields. Raises
    UnfitError if no tried Python is suitable.
    """
    named = option or os.environ.get(PYTHON_VARIABLE, "")
    for program in [user_program(named)] if named else _list_pythons():
        path = shutil.which(program)
        interpreter = _probe_interpreter(Path(path)) if path else None
        if interpreter:
            return interpreter
    fault = f"{named} is not a" if named else "there is no"
    raise UnfitError(
        f"{fault} usable Python below 3.12",
        why="the Hexagon SDK's signer imports the module imp, which Python 3.12 removed",
        fix=f"set --signer-python or {PYTHON_VARIABLE} to a Python older than 3.12, or omit both"
        if named
        else "install Python 3.11 (`uv python install 3.11`), or pass a Python older than 3.12 with"
        f" --signer-python or {PYTHON_VARIABLE}",
    )


def _list_pythons() -> Iterator[str]:
    """Yield the running Python, the names in PATH_PYTHONS, and the path of a Python older than 3.12
    that uv finds, if uv is installed. (uv also finds Pythons that pyenv installed.)
    """
    yield from (sys.executable, *PATH_PYTHONS)
    if uv := shutil.which("uv"):
        answer = run_process(
            [uv, "python", "find", "<3.12"], timeout_s=PROBE_TIMEOUT_S, check=False
        )
        # uv may print messages before the path.
        yield from answer.output.splitlines()[-1:]


def _probe_interpreter(path: Path) -> Interpreter | None:
    """Return the interpreter at ``path``, or None if it cannot be run or cannot import imp."""
    try:
        ended = run_process(
            [path, "-W", "ignore", "-c", PROBE], timeout_s=PROBE_TIMEOUT_S, check=False
        )
    # A name on PATH may be a broken link or a wrapper; the next one is tried.
    except ToolError:
        return None
    answer = ended.output.split()
    fits = ended.returncode == 0 and answer[:1] == ["probed"]
    return Interpreter(path, answer[1]) if fits else None


@dataclass(frozen=True)
class Signer:
    """The command of a signer. ``words`` may contain {input} and {output}, and ``timeout_s`` limits
    the time for one library. ``python`` is the Python that runs the SDK's signer, or None for a
    different signer.
    """

    words: tuple[str, ...]
    timeout_s: float
    python: Interpreter | None = None

    def argv(self, source: Path, output: Path, serial: str = "") -> list[str]:
        """Return the command for one library, or for the test signature of the device ``serial``.

        The paths replace {input} and {output}. If the command has neither placeholder, -i (for a
        test signature, -t) and -o are added. Raises UsageError for a test signature if the command
        has a placeholder.
        """
        filled = [
            word.replace("{input}", str(source)).replace("{output}", str(output))
            for word in self.words
        ]
        if filled == [*self.words]:
            subject = ["-t", serial] if serial else ["-i", str(source)]
            return [*filled, *subject, "-o", str(output)]
        if serial:
            raise UsageError(
                "--testsig needs a signer without {input} and {output}",
                why="a test signature is made from a serial number, not from a file, so the signer "
                "gets the options -t and -o instead",
                fix="remove {input} and {output} from --signer",
            )
        return filled

    def list_arguments(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return ``argv`` without the program files of the command, and with secrets masked."""
        # The record lists these files apart, with their hashes.
        programs = {self.words[0], *(word for word in self.words if os.path.isfile(word))}  # noqa: PTH113
        return tuple(mask_arguments([word for word in argv if word not in programs]))

    def list_programs(self) -> tuple[Program, ...]:
        """Return the files in the command.

        The Python that runs the SDK's signer is left out; the record states its version instead.
        """
        files = [Path(word) for word in self.words if os.path.isfile(word)]  # noqa: PTH113
        ours = self.python.path if self.python else None
        return tuple(Program(str(path), hash_file(path)) for path in files if path != ours)


def parse_signer(command: str, timeout_s: float) -> Signer:
    """Return the signer for the option ``--signer``. ``command`` is split like a shell command, but
    run without a shell.

    Raises UsageError if ``command`` is empty or cannot be split, and UnfitError if its program is
    not found.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--signer {command!r} cannot be parsed", why=str(error)) from error
    if not words:
        raise UsageError("--signer is empty")
    words = user_command(words)
    if not shutil.which(words[0]):
        raise UnfitError(f"the signer {words[0]} was not found", fix="correct --signer or PATH")
    return Signer(tuple(words), timeout_s)


def run_signer(signer: Signer, argv: Sequence[str], scratch: Path, name: str, mask: Masker) -> str:
    """Run ``argv`` in ``scratch`` and return its output, with secrets masked.

    Raises SignerError if it cannot be started, fails or times out.
    """
    # The rest stays: signers read keys and servers from variables.
    environment = {key: value for key, value in os.environ.items() if key not in DROPPED}
    try:
        ended = run_process(
            argv,
            env={**environment, **ADDED},
            cwd=scratch,
            timeout_s=signer.timeout_s,
            input_text=ANSWERS,
            check=False,
        )
    except ToolError as error:
        raise SignerError(Failure.EXITED, name, why=mask(f"{error.what}: {error.why}")) from error
    if ended.is_good:
        return mask(ended.output)
    printed = mask(ended.tail).strip() or "(nothing)"
    last = printed.splitlines()[-1]
    failure, fix = Failure.EXITED, ""
    why = f"the signer {ended.describe()} and printed:\n{printed}"
    # A signer that waits for an answer looks like one that hangs; what it printed last tells them
    # apart.
    if ended.exceeded and QUESTION.search(last):
        failure = Failure.PROMPT
        why = f"after {ended.wall_s:.0f} s the signer was still waiting for an answer to: {last}"
        fix = "configure the signer so that it asks only for consent to its terms"
    elif ended.exceeded:
        failure = Failure.HUNG
        why = f"the signer was stopped after {ended.wall_s:.0f} s; its last output: {last}"
        fix = "check whether the signer can reach its server, or raise the limit with --timeout"
    elif "No module named 'imp'" in ended.output:
        failure, why = Failure.WRONG_PYTHON, last
        fix = "run the signer with Python 3.11 or earlier"
    raise SignerError(failure, name, why=why, fix=fix)


def find_output(scratch: Path, output: Path, source: Path, before: bytes, mask: Masker) -> Path:
    """Return the file that the signer wrote into the directory ``output`` for ``source``.

    ``source`` is the signer's copy of the input, and ``before`` is the original content of that
    copy. The serial number in the file name of a test signature may have leading zeros. Raises
    SignerError if there is no such file.
    """
    name, serial = mask(source.name), read_serial(source.name)
    candidates = [
        path
        for path in sorted(scratch.rglob("*"))
        if path.name == source.name or (serial and read_serial(path.name) == serial)
    ]
    written = [path for path in candidates if path.parent == output]
    # A link is not accepted: the caller renames the result, which would move only the link.
    if written and written[0].is_file() and not written[0].is_symlink():
        if written[0].stat().st_size > CONTENT_BYTES:
            why = f"it is longer than {CONTENT_BYTES} bytes"
            raise SignerError(Failure.INVALID, name, why=why)
        return written[0]
    elsewhere = [path for path in candidates if path not in {*written, source}]
    # A signer that ignores {output} may have signed its input in place.
    if source.exists() and read_bytes(source, CONTENT_BYTES) != before:
        elsewhere.append(source)
    if elsewhere:
        places = ", ".join(str(path.relative_to(scratch)) for path in elsewhere)
        why = f"the signer wrote {places} instead of a file in {output.relative_to(scratch)}/"
        fix = "correct --signer: {input} is the file to sign, {output} the directory to write to"
        raise SignerError(Failure.ELSEWHERE, name, why=mask(why), fix=fix)
    contents = ", ".join(sorted(path.name for path in output.rglob("*"))) or "nothing"
    why = f"the signer exited with status 0, but its output directory contains {contents}"
    raise SignerError(Failure.NO_OUTPUT, name, why=mask(why))
