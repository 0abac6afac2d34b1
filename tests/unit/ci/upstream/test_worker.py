"""What a worker tells of a test, and how it runs a program instead of qnn_executor_runner."""

from __future__ import annotations

import importlib
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")

import torch

from ci.cases.forked import run_forked
from ci.upstream import suites
from ci.upstream.journal import Ran
from ci.upstream.stubs import MissingPackageError
from provisioning.errors import FailedError, StoreError

# Modules that load ExecuTorch, which takes seconds.
STAND_INS: dict[str, Any] = {
    "ci.executorch.lower": {
        "list_refusals": lambda error, log: ["QNN refused", f"{error!r} in {log}"]
    },
    "ci.executorch.patches": {"warm_up": None},
    "ci.executorch.internals": {},
    "ci.executorch.runtime": {
        "SCALAR_TYPES": {3: torch.int32, 6: torch.float32},
        "convert_input": lambda array, meta: torch.from_numpy(array).reshape(meta.shape),
        "overwrite_freed_memory": lambda: None,
    },
    "ci.upstream.record": {"write_seen": None},
}


@pytest.fixture(scope="module")
def modules() -> Iterator[Any]:
    names = ("ci.upstream.emulator", "ci.upstream.worker")
    with pytest.MonkeyPatch.context() as patched:
        for name, values in STAND_INS.items():
            patched.setitem(sys.modules, name, SimpleNamespace(**values))
        for name in names:
            patched.delitem(sys.modules, name, raising=False)
        emulator, worker = (importlib.import_module(name) for name in names)
        yield SimpleNamespace(emulator=emulator, worker=worker)
        for name in names:
            del sys.modules[name]


def report(word: str, text: str = "", **more: Any) -> Any:
    return SimpleNamespace(
        failed=word == "failed",
        skipped=word == "skipped",
        passed=word == "passed",
        longrepr=text,
        nodeid=f"{word}.py",
        **more,
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
    ("word", "error", "summary", "told"),
    [
        ("failed", ValueError("first\nsecond"), None, ("failed", "ValueError: first\nsecond")),
        ("failed", AssertionError(), None, ("failed", "AssertionError: assert a")),
        ("failed", None, None, ("failed", "x" * 2000)),
        ("failed", chained(RuntimeError("x"), LACKED), None, ("lacking", str(LACKED))),
        ("skipped", SKIP, None, ("skipped", "no phone")),
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
            ("failed", "lower: QNN refused\nValueError('x') in ../log.txt"),
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
def test_an_end_states_the_error_behind_what_upstream_raises(
    modules: Any,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    error: Exception | None,
    summary: Summary | None,
    told: tuple[str, str],
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
    given = report("skipped", wasxfail="reason: later") if expected else report(word, LONG)
    assert modules.worker.describe_end(item, given, raised) == told


LONG = "start" + "x" * 2000


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([], ("passed", "")),
        ([("skipped", "a"), ("skipped", "b")], ("skipped", "a")),
        ([("skipped", "a"), ("failed", "b"), ("lacking", "c")], ("failed", "b")),
    ],
)
def test_a_test_ends_as_its_worst_part(modules: Any, ends: Any, told: Any) -> None:
    assert modules.worker.choose_end([(Ran(one), text) for one, text in ends]) == told


def test_a_file_that_cannot_be_collected_is_an_error(modules: Any) -> None:
    listener = modules.worker.Listener()
    for one in (report("passed"), report("failed", LONG), report("skipped")):
        listener.pytest_collectreport(one)
    assert listener.errors == [f"failed.py: {'x' * 2000}"]


def is_refused(word: str, rank: int, error: BaseException) -> bool:
    return f"{word} {rank}" in str(error)


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        (pytest.RaisesExc(ValueError, match="no such rank"), "no such rank"),
        (pytest.RaisesExc(ValueError, match=re.compile("of a pattern")), "of a pattern"),
        (pytest.RaisesExc(ValueError), ""),
        (pytest.RaisesExc(ValueError, check=partial(is_refused, "rank", 5)), "rank 5"),
        (
            pytest.RaisesExc(ValueError, match="no such rank", check=partial(is_refused, "a", 5)),
            "no such rank",
        ),
        (None, None),
        ("no such rank", None),
    ],
)
def test_what_upstream_expects_to_be_refused_is_named(
    modules: Any, expected: Any, named: str | None
) -> None:
    item = SimpleNamespace(callspec=SimpleNamespace(params={"kwargs": {"expected": expected}}))
    told = "" if named is None else f"upstream expects the model to be refused: {named}"
    assert modules.worker.find_refusal(item) == told
    others: list[dict[str, Any]] = [{}, {"kwargs": {}}, {"kwargs": [expected]}]
    for params in others:
        item = SimpleNamespace(callspec=SimpleNamespace(params=params))
        assert modules.worker.find_refusal(item) == ""
    assert modules.worker.find_refusal(SimpleNamespace()) == ""


class Item:
    """A test of pytest's that compares ``count`` times and leaves ``ends``. It can call the runner
    with a flag that it does not have."""

    lacking: Path | None = None

    def __init__(self, worker: Any, count: int, *ends: Any, expected: Any = None) -> None:
        self.worker, self.count, self.ends = worker, count, ends
        self.callspec = SimpleNamespace(params={"kwargs": {"expected": expected}})
        self.config = SimpleNamespace(hook=self)
        self.random: list[float] = []

    def pytest_runtest_protocol(self, *, item: Item, nextitem: None) -> None:
        assert (item, nextitem) == (self, None)
        self.callspec.params.clear()
        self.runner = Path(os.environ["QNN_EXECUTOR_RUNNER"])
        self.place = Path.cwd()
        self.drawn = (float(torch.rand(1)), float(np.random.rand()), random.random())
        self.worker.capture.seen.extend(range(self.count))
        self.worker.listener.ends.extend(self.ends)
        if self.lacking:
            self.lacking.write_text("no --flag")


REFUSED = pytest.RaisesExc(ValueError, match="no rank")
REFUSAL = "upstream expects the model to be refused: no rank"


@pytest.mark.parametrize(
    ("count", "word", "expected", "refusal"),
    [
        (2, "passed", None, ""),
        (0, "passed", REFUSED, REFUSAL),
        (1, "passed", REFUSED, ""),
        (0, "failed", REFUSED, ""),
        (1, "lacking", None, ""),
    ],
)
def test_a_test_runs_in_its_own_directory_with_upstreams_seed(
    modules: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    word: str,
    expected: Any,
    refusal: str,
) -> None:
    worker, written, served = modules.worker, [], []

    @contextmanager
    def serve(directory: Path) -> Iterator[None]:
        served.append(directory)
        yield
        served.append("ended")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_EXECUTOR_RUNNER", "another")
    monkeypatch.setattr(worker, "capture", SimpleNamespace(seen=[]))
    monkeypatch.setattr(worker, "listener", worker.Listener())
    monkeypatch.setattr(worker, "serve_programs", serve)
    monkeypatch.setattr(worker, "write_seen", lambda *given: written.append((*given, *served)))
    directory = tmp_path / "kept/test"
    drawn = []
    for _ in range(2):
        ends = [] if word == "passed" else [(Ran.FAILED, "its end")]
        item = Item(worker, count, *ends, expected=expected)
        item.lacking = directory / "lacking.txt" if word == "lacking" else None
        monkeypatch.setitem(worker.collected.items, "one", item)
        worker.capture.seen.clear()
        end = worker.run_here("one", directory)
        drawn.append(item.drawn)
        assert (item.place, item.runner.is_relative_to(item.place)) == (directory / "work", True)
        assert item.runner.is_file()
        assert os.access(item.runner, os.X_OK)
    told = {"failed": "its end", "lacking": "no --flag"}.get(word, "")
    assert (end.ran, end.message, end.comparisons, end.refusal) == (word, told, count, refusal)
    assert 0 <= end.test_s < 60
    assert drawn[0] == drawn[1]
    assert written[0] == (directory, [*range(count)], directory)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FailedError("running the program ended without a result: SIGABRT"), 134),
        (FailedError("input set 0 has the wrong number of inputs"), 1),
        (FailedError("running the program raised ValueError: no result"), 1),
        (StoreError("the disk is full"), 1),
        (None, 0),
    ],
)
def test_a_program_that_dies_ends_as_by_sigabrt(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, code: int
) -> None:
    def run(call: Any, what: str) -> str:
        if error:
            raise error
        return f"{what}: {call()}"

    monkeypatch.setattr(modules.emulator, "run_forked", run)
    monkeypatch.setattr(modules.emulator, "run_call", lambda *given: repr(given))
    words = ["--model_path", "m.pte"]
    found, text = modules.emulator.answer_call(tmp_path, words, tmp_path / "0.pte")
    given = (tmp_path, words, tmp_path / "0.pte")
    assert found == code
    assert text == (f"E {error}" if error else f"running the program: {given!r}")


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

    def __call__(self, given: list[Any]) -> list[Any]:
        """Twice each input in another order in memory, after other values, and something else."""
        others = [torch.cat([one[:1], 2 * one.t()])[1:].t() for one in given]
        return [7, *others]


@pytest.fixture
def place(modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pybindings = SimpleNamespace(_load_program=Runtime)
    internals = SimpleNamespace(pybindings=pybindings, quantized_kernels=None)
    monkeypatch.setattr(modules.emulator, "internals", internals)
    monkeypatch.setattr(modules.emulator, "overwrite_freed_memory", (tmp_path / "clean").touch)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "m.pte").write_bytes(b"the program")
    for number in range(3):
        np.arange(4 * number, 4 * number + 4, dtype=np.float32).tofile(tmp_path / f"in/{number}")
    np.arange(4, dtype=np.int32).tofile(tmp_path / "in/whole")
    return tmp_path


def call(modules: Any, place: Path, lines: str, *words: str) -> str:
    (place / "in/list.txt").write_text(lines)
    given = ["--model_path", "m.pte", "--input_list_path", "in/list.txt", "--output_folder_path"]
    told: str = modules.emulator.run_call(place, [*given, "out", *words], place / "kept/0.pte")
    return told


def test_each_input_set_has_its_outputs_in_their_order_in_memory(modules: Any, place: Path) -> None:
    assert call(modules, place, "0\n\n \n2\n") == "2 input sets were run"
    found = {path.name: np.fromfile(path, np.float32) for path in (place / "out").iterdir()}
    assert {name: values.tolist() for name, values in found.items()} == {
        "output_0_0.raw": [0, 4, 2, 6],
        "output_1_0.raw": [16, 20, 18, 22],
    }
    assert (place / "kept/0.pte").read_bytes() == b"the program"
    assert (place / "clean").exists(), "nothing of an earlier program is in the memory"


def test_the_method_that_is_asked_for_gets_inputs_of_its_types(modules: Any, place: Path) -> None:
    assert call(modules, place, "1 whole\n", "--method_index", "1") == "1 input sets were run"
    assert np.fromfile(place / "out/output_0_0.raw", np.float32).tolist() == [8, 12, 10, 14]
    assert np.fromfile(place / "out/output_0_1.raw", np.int32).tolist() == [0, 4, 2, 6]


def test_a_call_that_the_runner_would_refuse_is_refused(modules: Any, place: Path) -> None:
    with pytest.raises(FailedError, match="input set 1 has the wrong number of inputs: 2 instead"):
        call(modules, place, "0\n1 2\n")
    with pytest.raises(FailedError, match="input set 0 has the wrong number of inputs: 0 instead"):
        call(modules, place, "\n")
    with pytest.raises(FailedError, match="this runner has no --etdump_path x") as caught:
        call(modules, place, "0\n", "--etdump_path", "x")
    assert (place / "kept/lacking.txt").read_text() == str(caught.value)


def test_the_executable_passes_its_call_on_and_ends_as_the_program(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program is kept under another name."""
    emulator, calls = modules.emulator, []

    def answer(place: Path, words: list[str], keep: Path) -> tuple[int, str]:
        calls.append((place, words, keep))
        return len(calls) - 1, f"output {len(calls)}"

    monkeypatch.setattr(emulator, "sys", SimpleNamespace(executable=sys.executable, maxsize=2))
    monkeypatch.setattr(emulator, "answer_call", answer)
    monkeypatch.setenv(emulator.ADDRESS, f"qnn-ci-test-{os.getpid()}")
    client = tmp_path / "new" / "runner"
    emulator.write_client(client)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{os.environ[emulator.ADDRESS]}")
        listener.listen()
        serving = threading.Thread(target=emulator._answer_calls, args=(listener, tmp_path / "k"))
        serving.start()
        for code, words in enumerate((["--model_path", "a b.pte"], [])):
            done = subprocess.run(
                [client, *words], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (code, f"output {code + 1}\n"), done.stderr
        serving.join(10)
    assert calls == [
        (tmp_path, ["--model_path", "a b.pte"], tmp_path / "k/0.pte"),
        (tmp_path, [], tmp_path / "k/1.pte"),
    ]


def test_a_test_runs_in_a_fork_of_the_worker(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_here(name: str, directory: Path) -> tuple[str, Path, bool]:
        return name, directory, os.getpid() == parent

    parent = os.getpid()
    monkeypatch.setattr(modules.worker, "run_here", run_here)
    assert modules.worker.run_test("C::a", tmp_path) == ("C::a", tmp_path, False)
    monkeypatch.setattr(modules.worker, "run_here", lambda *_: os._exit(9))
    with pytest.raises(FailedError, match="C::a: the process"):
        modules.worker.run_test("C::a", tmp_path)


TINY = """
import os
import torchsr.models

os.write(1, b"chatter")


class TestTiny:
    def test_a(self): ...

    def test_b(self): ...
"""


@pytest.mark.parametrize(("is_file", "is_installed"), [(True, True), (False, False)])
def test_a_suite_is_collected_with_stubs_and_is_then_watched(
    modules: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_file: bool,
    is_installed: bool,
) -> None:
    """In a fork, because it changes the process. Tests of one file are named without it. What is
    printed meanwhile is not on stdout, which is for the verb's output."""
    worker, watched = modules.worker, []
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_tiny.py").write_text(TINY)
    for name in ("broken", "other"):
        (folder / f"test_{name}.py").write_text("import no_such_module\n")
    (folder / "other.py").write_text("def test_of_another_file(): ...\n")
    suite = suites.Suite("tiny", ("tests/test_tiny.py",) if is_file else ("tests",))
    others = suites.Suite("other", ("gone.py",))
    monkeypatch.setattr(worker, "SUITES", {"other": others, "tiny": suite})
    monkeypatch.setattr(
        worker,
        "WATCHES",
        {name: partial(watched.append, name) for name in ("other", "tiny")},
    )
    monkeypatch.setattr(worker, "warm_up", lambda *, plain: watched.append(plain))
    other = tmp_path / "other"
    monkeypatch.setattr(worker, "find_executorch", lambda: tmp_path if is_installed else other)
    monkeypatch.setenv(suites.SUITE, "tiny")
    monkeypatch.setenv(suites.SOURCE, "" if is_installed else str(tmp_path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it takes most of the time

    def collect() -> Any:
        worker.before_forks()
        found = worker.collected
        return [*found.items], found.errors, watched, found.config is not None

    names, errors, done, has_config = run_forked(collect)
    place = "" if is_file else "tests/test_tiny.py::"
    assert names == [f"{place}TestTiny::test_{one}" for one in "ab"]
    assert [one.partition(":")[0] for one in errors] == (
        [] if is_file else ["tests/test_broken.py", "tests/test_other.py"]
    )
    assert (done, has_config) == ([False, "tiny"], True)
    printed = capfd.readouterr()
    assert ("chatter" in printed.out, "chatter" in printed.err) == (False, True)
