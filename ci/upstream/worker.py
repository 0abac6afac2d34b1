"""Runs upstream's tests. The fork server imports this module and calls ``before_forks``, which
collects a suite once for all workers.

Each test runs in a fork of a worker of ci.cases.pool, so it cannot affect other tests.

Programs run on the emulator with ExecuTorch's Python runtime instead of qnn_executor_runner.
Upstream's tests start an executable for each program. The executable that ``run_here`` writes
passes its arguments to a process that was forked before the test began. That process has loaded
torch but not QNN's compiler, and forks again for each program. The executable prints the output or
the error to stdout, and exits with 0, FAILED or, if the fork dies, DEAD.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.config import _prepareconfig
from _pytest.raises import RaisesExc

from ci.cases.forked import note_step, run_forked
from ci.executorch import internals
from ci.executorch.lower import list_refusals
from ci.executorch.patches import warm_up
from ci.executorch.runtime import SCALAR_TYPES, convert_input, overwrite_freed_memory
from ci.models.tensors import read_array
from ci.upstream.capture import capture, watch_backend_suite, watch_delegate, watch_rework
from ci.upstream.journal import LOG, Entry, Ran
from ci.upstream.record import write_checks
from ci.upstream.suites import (
    SOURCE,
    SUITE,
    SUITES,
    MissingPackageError,
    find_executorch,
    install_stubs,
)
from provisioning.console.process import end_with_parent
from provisioning.documents import read_text
from provisioning.errors import FailedError, QnnCiError, describe_exception
from provisioning.quoting import script_word

ADDRESS = "QNN_CI_EMULATOR"  # the abstract socket address (unix(7)) for calls

# As qnn_executor_runner: it exits with 1 for a truncated program, and with 134 if it aborts, such
# as for a missing library.
FAILED, DEAD = 1, 134
LACKING = "lacking.txt"  # in a test's directory: the flags of its calls that this runner lacks
CLIENT = Path(__file__).with_name("templates") / "client.txt"


@contextmanager
def serve_programs(keep: Path) -> Iterator[None]:
    """Run a process that serves the executable's calls until the block ends. It copies each program
    to the directory ``keep``."""
    address = f"qnn-ci-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{address}")
    listener.listen()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(parent)
        for number in range(sys.maxsize):
            line, _ = listener.accept()
            with line, line.makefile("rw") as stream:
                place, *words = json.loads(stream.read())
                call = partial(run_call, Path(place), words, keep / f"{number}.pte")
                try:
                    answer = 0, run_forked(call, "running the program")
                except QnnCiError as error:
                    died = "without a result" in str(error)
                    answer = DEAD if died else FAILED, f"E {error}"
                json.dump(answer, stream)
    listener.close()
    os.environ[ADDRESS] = address
    try:
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def run_call(place: Path, words: Sequence[str], keep: Path) -> str:
    """Run a program as qnn_executor_runner would with the arguments ``words`` in the directory
    ``place``, and return a message. ``keep`` is the path for a copy of the program. Raises
    FailedError for a sample with the wrong number of inputs, or for an unknown argument. The file
    LACKING next to ``keep`` names such arguments."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    for name in ("model_path", "input_list_path", "output_folder_path"):
        parser.add_argument(f"--{name}", type=place.joinpath, required=True)
    parser.add_argument("--method_index", type=int, default=0)
    args, unknown = parser.parse_known_args(list(words))
    keep.parent.mkdir(parents=True, exist_ok=True)
    if unknown:
        message = f"this runner has no {' '.join(unknown)[:100]}"
        (keep.parent / LACKING).write_text(message, encoding="utf-8")
        raise FailedError(message)
    shutil.copyfile(args.model_path, keep)
    overwrite_freed_memory()
    _ = internals.quantized_kernels
    program = internals.pybindings._load_program(str(args.model_path))
    method = program.load_method(program.get_method_name(args.method_index))
    meta = method.method_meta()
    metas = [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]
    lines = [line for line in read_text(args.input_list_path).splitlines() if line.strip()]
    for number, line in enumerate(lines or [""]):
        files = [args.input_list_path.parent / name for name in line.split()]
        if len(files) != len(metas):
            raise FailedError(
                f"sample {number} has the wrong number of inputs:"
                f" {len(files)} instead of {len(metas)}"
            )
        inputs = []
        for file, meta in zip(files, metas, strict=True):
            dtype = str(SCALAR_TYPES[int(meta.dtype())]).removeprefix("torch.")
            inputs.append(convert_input(read_array(file, dtype), meta))
        outputs = [value for value in method(inputs) if isinstance(value, torch.Tensor)]
        for index, tensor in enumerate(outputs):
            # The bytes in their order in memory, as the C++ runner writes them.
            flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
            path = args.output_folder_path / f"output_{number}_{index}.raw"
            path.write_bytes(flat.contiguous().view(torch.uint8).numpy().tobytes())
    return f"{len(lines)} samples were run"


SEED = 1126  # the seed that upstream uses in tests/rework
# The path where tests/rework expects the runner. The other suites use QNN_EXECUTOR_RUNNER.
RUNNER = "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"
WATCHES = {
    "upstream": watch_delegate,
    "upstream-rework": watch_rework,
    "backend-suite": watch_backend_suite,
}
MAX_MESSAGE = 2000
# The steps of backends/test/suite, by the names of its results.
STEPS = {
    "SKIPPED": "the model does not run or is not exported",
    "QUANTIZE_FAIL": "quantize",
    "LOWER_FAIL": "lower",
    "PTE_LOAD_FAIL": "load",
    "PTE_RUN_FAIL": "run",
    "OUTPUT_MISMATCH_FAIL": "compare",
    "UNKNOWN_FAIL": "write the program",
}
LOWERING = ("quantize", "lower")


# The tests that the fork server collected: pytest's items by the tests' names.
collected: dict[str, Any] = {}


class Listener:
    """A pytest plugin that records how a test and its subtests ended, and the errors of the
    collection. It leaves out those that passed."""

    def __init__(self) -> None:
        self.ends: list[tuple[Ran, str]] = []
        self.errors: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
        """Note the end of a phase of a test, or of a subtest, that did not pass."""
        report = yield
        if not report.passed:
            self.ends.append(describe_end(item, report, call.excinfo))
        return report

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that pytest could not collect."""
        if report.failed:
            self.errors.append(f"{report.nodeid}: {str(report.longrepr)[-MAX_MESSAGE:]}")


listener = Listener()


def before_forks() -> None:
    """Collect the suite that the environment variable SUITE specifies, and wrap its functions so
    that comparisons are recorded."""
    suite = SUITES[os.environ[SUITE]]
    root = Path(os.environ.get(SOURCE) or find_executorch())
    os.dup2(2, 1)  # stdout is for the verb's output; a worker logs both
    install_stubs()
    config = _prepareconfig(
        [
            *(str(root / place) for place in suite.places),
            *("-c", os.devnull, "--rootdir", str(root), "--import-mode=importlib", "-v"),
            *("-o", "python_files=test_*.py test.py"),
            *("-p", "no:cacheprovider", "--assert=plain", "-p", "no:capture"),
            *("-p", "no:faulthandler", "-p", "no:warnings", "-p", "no:timeout"),
        ],
        [listener],
    )
    config._do_configure()
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    session.perform_collect()
    warm_up(plain=False)
    is_file = len(suite.places) == 1 and suite.places[0].endswith(".py")
    for item in session.items:
        name = item.nodeid.rpartition("/")[2].partition("::")[2] if is_file else item.nodeid
        collected[name] = item
    if suite.name in WATCHES:
        WATCHES[suite.name]()


def run_here(name: str, directory: Path) -> Entry:
    """Run a test in this process, write its comparisons to ``directory``, and return its result.
    This process writes its log to the file LOG in ``directory``."""
    work = directory / "work"
    work.mkdir(parents=True, exist_ok=True)
    # So `directory` must be absolute: comparisons were written to the work directory once, and were
    # removed with it.
    os.chdir(work)
    client = work / RUNNER
    client.parent.mkdir(parents=True, exist_ok=True)
    text = read_text(CLIENT).format(python=script_word(sys.executable), address=ADDRESS)
    client.write_text(text, encoding="utf-8")
    client.chmod(0o755)
    os.environ["QNN_EXECUTOR_RUNNER"] = str(client)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(SEED)
    item = collected[name]
    refusal = find_refusal(item)  # before the test removes it from its parameters
    with serve_programs(directory):
        began = time.monotonic()
        note_step("running the test")
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        test_s = time.monotonic() - began
        note_step("predicting the noise of the test's outputs")
        write_checks(directory, capture.checks)
    ran, message = choose_end(listener.ends)
    lacking = directory / LACKING
    if ran is Ran.FAILED and lacking.is_file():
        ran, message = Ran.LACKING, read_text(lacking)
    count = len(capture.checks)
    return Entry(
        test=name,
        ran=ran,
        message=message,
        test_s=round(test_s, 3),
        comparisons=count,
        refusal="" if count or ran is not Ran.PASSED else refusal,
    )


def find_refusal(item: Any) -> str:
    """Return the error that a test of tests/rework expects, or "" if it expects none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    expected = params.get("kwargs", {})
    expected = expected.get("expected") if isinstance(expected, dict) else None
    if not isinstance(expected, RaisesExc):
        return ""
    pattern = getattr(expected.match, "pattern", expected.match) or ""
    named = pattern or " ".join(map(str, getattr(expected.check, "args", ())))
    return f"upstream expects the model to be refused: {named}"


def choose_end(ends: Sequence[tuple[Ran, str]]) -> tuple[Ran, str]:
    """Return the end of a test: the first of ``ends`` that is not SKIPPED, or else the first. A
    test with no such end passed."""
    failed = (end for end in ends if end[0] is not Ran.SKIPPED)
    return next(failed, ends[0] if ends else (Ran.PASSED, ""))


def describe_end(item: Any, report: Any, raised: Any) -> tuple[Ran, str]:
    """Return how a test of pytest's ended that did not pass, and why. ``raised`` is pytest's
    information on its exception, or None."""
    error: BaseException | None = raised.value if raised else None
    ran = Ran.FAILED if report.failed else Ran.SKIPPED
    chain = [error] if error else []
    while chain and (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    lacking = [str(exception) for exception in chain if isinstance(exception, MissingPackageError)]
    if report.failed and lacking:
        return Ran.LACKING, lacking[0]
    summaries = getattr((getattr(item, "funcargs", {}) or {}).get("test_runner"), "_results", ())
    if summaries and not summaries[-1].result.is_success():
        return ran, describe_summary(summaries[-1])
    if error is None:
        return ran, str(report.longrepr)[-MAX_MESSAGE:]
    if hasattr(report, "wasxfail"):
        reason = report.wasxfail.removeprefix("reason: ")
        return ran, ": ".join(filter(None, ("upstream expects it to fail", reason)))
    if report.skipped:
        return ran, str(error)
    at = "" if str(error) else f": {raised.traceback[-1].statement}"  # a bare assertion
    return ran, f"{describe_exception(error)}{at}"


def describe_summary(summary: Any) -> str:
    """Return the step at which a test of backends/test/suite failed or was skipped, and its error.
    The suite itself raises only ``Test failure.``"""
    if summary.error is None:
        runner = importlib.import_module("executorch.backends.test.suite.runner")
        left = sorted(runner.UNSUPPORTED_PORTABLE_OPS & {*summary.undelegated_op_counts})
        on_cpu = f"{' or '.join(left)} on the CPU" if left else "3-D convolution"
        return f"its suite runs no {on_cpu}"
    step = STEPS[summary.result.name]
    log = Path("..") / LOG  # this process is in WORK
    lines = list_refusals(summary.error, log) if step in LOWERING else []
    return f"{step}: " + "\n".join(lines or [describe_exception(summary.error)])
