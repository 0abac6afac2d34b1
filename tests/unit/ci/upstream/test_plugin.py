"""What the plugin tells of a test, and how a program runs instead of in qnn_executor_runner."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

import torch

from ci.cases.forked import run_forked
from ci.upstream.suites import MissingPackageError
from provisioning.errors import FailedError

# Modules that load ExecuTorch, which takes seconds.
STAND_INS: dict[str, Any] = {
    "ci.executorch.patches": {"warm_up": None},
    "ci.executorch.internals": {},
    "ci.executorch.runtime": {
        "SCALAR_TYPES": {3: torch.int32, 6: torch.float32},
        "convert_input": lambda array, meta: torch.from_numpy(array).reshape(meta.shape),
        "overwrite_freed_memory": lambda: None,
    },
    "ci.upstream.record": {"work_out": None},
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Any]:
    yield from load("ci.upstream.plugin")


@pytest.fixture(scope="module")
def programs() -> Iterator[Any]:
    yield from load("ci.upstream.programs")


def load(name: str) -> Iterator[Any]:
    """Import a module without ExecuTorch."""
    with pytest.MonkeyPatch.context() as patched:
        for replaced, values in STAND_INS.items():
            patched.setitem(sys.modules, replaced, SimpleNamespace(**values))
        patched.delitem(sys.modules, name, raising=False)
        yield importlib.import_module(name)
        del sys.modules[name]


def report(word: str, text: str = "", **fields: Any) -> Any:
    return SimpleNamespace(
        failed=word == "failed",
        skipped=word == "skipped",
        passed=word == "passed",
        longrepr=text,
        sections=[],
        nodeid=f"{word}.py",
        **fields,
    )


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class Summary:
    """The end of a test of backends/test/suite, with the error that it raised."""

    def __init__(self, name: str, error: Exception | None, *left: str) -> None:
        self.result = SimpleNamespace(name=name, is_success=lambda: name == "SUCCESS")
        self.error, self.undelegated_op_counts = error, dict.fromkeys(left, 1)


LACKED = MissingPackageError("needs the package torchvision")
WHOLE = RuntimeError("Test failure.")
SKIP = pytest.skip.Exception("no phone")


@pytest.mark.parametrize(
    ("word", "error", "summary", "end"),
    [
        ("failed", ValueError("first\nsecond"), None, ("failed", "ValueError: first\nsecond")),
        ("failed", AssertionError(), None, ("failed", "AssertionError: assert a")),
        ("failed", None, None, ("failed", "x" * 2000)),
        ("failed", chained(RuntimeError("x"), LACKED), None, ("lacking", str(LACKED))),
        ("skipped", SKIP, None, ("skipped", "skipped by upstream: no phone")),
        ("expected", ValueError("x"), None, ("skipped", "upstream expects it to fail: later")),
        ("failed", WHOLE, Summary("SUCCESS", None), ("failed", "RuntimeError: Test failure.")),
        (
            "failed",
            WHOLE,
            Summary("OUTPUT_MISMATCH_FAIL", AssertionError("far")),
            ("failed", "compare: AssertionError: far"),
        ),
        (
            "failed",
            WHOLE,
            Summary("LOWER_FAIL", ValueError("x")),
            ("failed", "lower: ValueError: x"),
        ),
        (
            "skipped",
            SKIP,
            Summary("SKIPPED", None),
            ("skipped", "its suite runs no 3-D convolution"),
        ),
        (
            "skipped",
            SKIP,
            Summary("SKIPPED", None, "aten::add", "aten::median"),
            ("skipped", "its suite runs no aten::median on the CPU"),
        ),
        (
            "skipped",
            SKIP,
            Summary("SKIPPED", ValueError("rank")),
            ("skipped", "the model does not run or is not exported: ValueError: rank"),
        ),
    ],
)
def test_the_outcome_of_an_upstream_test_states_the_underlying_error(
    worker: Any,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    error: Exception | None,
    summary: Summary | None,
    end: tuple[str, str],
) -> None:
    runner = SimpleNamespace(UNSUPPORTED_PORTABLE_OPS={"aten::median"})
    monkeypatch.setitem(sys.modules, "executorch.backends.test.suite.runner", runner)
    item = SimpleNamespace()
    if summary:
        item.funcargs = {"test_runner": SimpleNamespace(_results=[summary])}
    raised = error and SimpleNamespace(
        value=error, traceback=[SimpleNamespace(statement="assert a")]
    )
    expected = word == "expected"
    test_report = report("skipped", wasxfail="reason: later") if expected else report(word, LONG)
    assert worker.describe_end(item, test_report, raised) == end


LONG = "start" + "x" * 2000


@pytest.mark.parametrize(
    ("ends", "end"),
    [
        ([], ("passed", "")),
        ([("skipped", "a"), ("skipped", "b")], ("skipped", "a")),
        ([("skipped", "a"), ("failed", "b"), ("lacking", "c")], ("failed", "b")),
    ],
)
def test_an_upstream_test_ends_like_its_worst_part(worker: Any, ends: Any, end: Any) -> None:
    assert worker.choose_end(ends) == end


def test_a_flag_that_the_runner_lacks_is_no_failure(worker: Any) -> None:
    error = AssertionError("E this runner has no --etdump_path x")
    raised = SimpleNamespace(value=error, traceback=[])
    assert worker.describe_end(SimpleNamespace(), report("failed"), raised)[0] == "lacking"
    printed = report("failed")
    printed.sections = [("Captured stdout call", "E this runner has no --x")]
    raised = SimpleNamespace(value=AssertionError("1 != 0"), traceback=[])
    assert worker.describe_end(SimpleNamespace(), printed, raised)[0] == "lacking"


def is_refused(word: str, rank: int, error: BaseException) -> bool:
    return f"{word} {rank}" in str(error)


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        (pytest.RaisesExc(ValueError, match="no such rank"), "no such rank"),
        (pytest.RaisesExc(ValueError), ""),
        (pytest.RaisesExc(ValueError, check=partial(is_refused, "rank", 5)), "rank 5"),
        (
            pytest.RaisesExc(ValueError, match="no such rank", check=partial(is_refused, "a", 5)),
            "no such rank",
        ),
        (None, None),
    ],
)
def test_what_upstream_expects_to_be_refused_is_named(
    worker: Any, expected: Any, named: str | None
) -> None:
    item = SimpleNamespace(callspec=SimpleNamespace(params={"kwargs": {"expected": expected}}))
    refusal = "" if named is None else f"upstream expects the model to be refused: {named}"
    assert worker.find_refusal(item) == refusal
    without_refusal: list[dict[str, Any]] = [{}, {"kwargs": {}}, {"kwargs": [expected]}]
    for params in without_refusal:
        item = SimpleNamespace(callspec=SimpleNamespace(params=params))
        assert worker.find_refusal(item) == ""
    assert worker.find_refusal(SimpleNamespace()) == ""


class Runtime:
    """ExecuTorch's runtime with a program whose second method takes two inputs."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get_method_name(self, index: int) -> str:
        return f"method {index}"

    def load_method(self, name: str) -> Any:
        kinds = {"method 0": [6], "method 1": [6, 3]}[name]
        metas = [SimpleNamespace(dtype=lambda kind=kind: kind, shape=(2, 2)) for kind in kinds]
        return Method(metas)


class Method:
    def __init__(self, metas: list[Any]) -> None:
        self.metas = metas

    def method_meta(self) -> Any:
        return SimpleNamespace(
            num_inputs=lambda: len(self.metas), input_tensor_meta=self.metas.__getitem__
        )

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Twice each input in another order in memory, after other values, and something else."""
        outputs = [torch.cat([tensor[:1], 2 * tensor.t()])[1:].t() for tensor in inputs]
        return [7, *outputs]


@pytest.fixture
def place(programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pybindings = SimpleNamespace(_load_program=Runtime)
    internals = SimpleNamespace(pybindings=pybindings, quantized_kernels=None)
    monkeypatch.setattr(programs, "internals", internals)
    monkeypatch.setattr(programs, "overwrite_freed_memory", (tmp_path / "clean").touch)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "m.pte").write_bytes(b"the program")
    for number in range(3):
        np.arange(4 * number, 4 * number + 4, dtype=np.float32).tofile(tmp_path / f"in/{number}")
    np.arange(4, dtype=np.int32).tofile(tmp_path / "in/whole")
    return tmp_path


def call(programs: Any, place: Path, lines: str, *words: str) -> str:
    (place / "in/list.txt").write_text(lines)
    options = ["--model_path", "m.pte", "--input_list_path", "in/list.txt", "--output_folder_path"]
    message: str = programs.run_call(place, [*options, "out", *words])
    return message


def test_each_input_set_writes_its_outputs_in_memory_order(programs: Any, place: Path) -> None:
    assert call(programs, place, "0\n\n \n2\n") == "2 samples were run"
    outputs = {path.name: np.fromfile(path, np.float32) for path in (place / "out").iterdir()}
    assert {name: values.tolist() for name, values in outputs.items()} == {
        "output_0_0.raw": [0, 4, 2, 6],
        "output_1_0.raw": [16, 20, 18, 22],
    }
    assert (place / "clean").exists(), "nothing of an earlier program is in the memory"


def test_the_requested_method_gets_inputs_of_its_types(programs: Any, place: Path) -> None:
    assert call(programs, place, "1 whole\n", "--method_index", "1") == "1 sample was run"
    assert np.fromfile(place / "out/output_0_0.raw", np.float32).tolist() == [8, 12, 10, 14]
    assert np.fromfile(place / "out/output_0_1.raw", np.int32).tolist() == [0, 4, 2, 6]


def test_stand_in_runner_refuses_what_upstreams_runner_refuses(programs: Any, place: Path) -> None:
    with pytest.raises(FailedError, match="sample 1 has the wrong number of inputs: 2 instead"):
        call(programs, place, "0\n1 2\n")
    with pytest.raises(FailedError, match="sample 0 has the wrong number of inputs: 0 instead"):
        call(programs, place, "\n")
    with pytest.raises(FailedError, match="this runner has no --etdump_path x"):
        call(programs, place, "0\n", "--etdump_path", "x")


def test_a_program_that_hangs_is_killed_after_the_time_limit(
    programs: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "run_call", lambda *_: time.sleep(600))
    with pytest.raises(FailedError, match="the process was killed by SIGALRM"):
        run_forked(partial(programs.run_within, 0.2, place, []), "running the program")


def test_tests_compute_with_one_thread_because_their_programs_run_in_forks(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork waits forever for threads of OpenMP that its parent started."""
    monkeypatch.setenv("QNN_CI_SUITE", "upstream")
    monkeypatch.setenv("QNN_CI_SUITE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(worker, "install_stubs", lambda: ())
    plugins: list[Any] = []
    manager = SimpleNamespace(register=plugins.append)
    threads, has_one_dnn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(2)
    try:
        worker.pytest_configure(SimpleNamespace(option=None, pluginmanager=manager))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = has_one_dnn
    assert len(plugins) == 2
