"""Work on a user's files is done in processes with limits, not in the one of the verb."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci.cases.limited import TIMEOUT_S, run_limited
from ci.cases.spec import CaseSpec
from ci.inspect.files import unpack_files
from ci.litert.reading import ask_quantized, fit_litert
from ci.llm import tiny
from ci.llm.subject import read_dimensions
from ci.llm.tokenizers import TextQuestion, ask_tokenizer
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from provisioning.documents import read_user_file
from provisioning.errors import DefectError, ExitCode, FailedError, QnnCiError, UsageError
from tests.stand_ins.clocks import expire_when
from tests.stand_ins.waits import wait_for_end, wait_for_text

ROOT = Path(__file__).parents[3]
TINY = Path(tiny.__file__).parent


def test_a_result_is_returned_whatever_the_job_prints() -> None:
    assert run_limited(partial(print, "a line"), "it") is None
    assert run_limited(partial(sorted, (3, 1)), "it") == [1, 3]


@pytest.mark.parametrize(
    ("job", "error", "message"),
    [
        (partial(time.sleep, 600), UsageError, "it cannot be read\n  why: did not end within 1 s"),
        (partial(list, range(1 << 27)), UsageError, "the process needs more than 0.25 GiB"),
        (os.abort, UsageError, "the process that reads it was killed by SIGABRT"),
        (partial(os._exit, 3), UsageError, "the process that reads it exited with 3"),
        (partial(json.loads, "{"), FailedError, "JSONDecodeError"),
        (partial(read_user_file, Path("/gone"), "it"), UsageError, "fix: correct the path"),
        (partial(unpack_files, None, None), DefectError, "unexpected"),
    ],
)
def test_a_job_that_fails_or_exceeds_a_limit_is_an_error(
    job: Callable[[], Any], error: type[QnnCiError], message: str
) -> None:
    with pytest.raises(error) as caught:
        run_limited(job, "it", timeout_s=1 if "within" in message else 600, max_bytes=1 << 28)
    assert type(caught.value) is error
    assert message in str(caught.value)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_job(tmp_path: Path, number: signal.Signals) -> None:
    started = tmp_path / "started"
    job = (
        "import os, pathlib, time;"
        f"pathlib.Path({str(started)!r}).write_text(f'{{os.getpid()}}\\n'); time.sleep(600)"
    )
    code = f"""
import functools
from ci.cases.limited import TIMEOUT_S, run_limited
from provisioning.console.interrupts import catch_signals
catch_signals()
run_limited(functools.partial(exec, {job!r}), "it")
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        pid = int(wait_for_text(started))
        run.send_signal(number)
        assert "KeyboardInterrupt" in run.communicate()[1]
    wait_for_end(pid)


MODULES = {"onnx", "onnxruntime", "torch", "tokenizers", "sentencepiece", "ai_edge_litert"}
CALL = f"""
import sys
from ci.__main__ import main
code = main(sys.argv[1:])
print(int(code), *sorted({MODULES} & sys.modules.keys()), file=sys.stderr)
"""


def call_verb(folder: Path, *words: str) -> tuple[str, str]:
    """Return what a verb prints, and its exit code with the modules in MODULES that it imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", CALL, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    *lines, last = ended.stderr.splitlines()
    return ended.stdout + "\n".join(lines), last


def test_verbs_do_not_read_onnx_files_in_their_own_process(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed in this environment")
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,4] x, float[m,4] z) => (float[n,4] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "net.onnx").read_bytes()[:40])
    (tmp_path / ".git").mkdir()
    for words, code, message in (
        (["inspect", "net.onnx"], ExitCode.FAILED, "no EPContext node"),
        (["init", "--model", "net.onnx", "--policy-only"], ExitCode.OK, "whose sizes vary"),
        (["test-onnx", "--model", "net.onnx"], ExitCode.USAGE, "--shape x=1,4"),
        (["test-onnx", "--model", "cut.onnx"], ExitCode.USAGE, "is not an ONNX model"),
        (["mend", "--model", "cut.onnx"], ExitCode.USAGE, "is not an ONNX model"),
    ):
        shown, last = call_verb(tmp_path, *words)
        assert message in shown, shown
        assert last == str(int(code)), (words, last, shown)


def test_init_does_not_read_litert_files_in_its_own_process(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    from ci.litert.suite import make_model

    (tmp_path / "net.tflite").write_bytes(make_model("convolution_int8"))
    (tmp_path / ".git").mkdir()
    shown, last = call_verb(tmp_path, "init", "--model", "net.tflite", "--policy-only")
    assert last == str(int(ExitCode.OK)), shown
    assert "[models.net.limits.asis]" in (tmp_path / "qnn.toml").read_text()


def test_a_file_on_which_litert_crashes_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    from tests.unit.ci.litert.test_control_flow import make_composite

    path = tmp_path / "net.tflite"
    path.write_bytes(make_composite("itself"))
    spec = CaseSpec("net", Scheme.FP16, "SM8650", Source(str(path)))
    with pytest.raises(UsageError, match="net cannot be read") as raised:
        fit_litert(spec, "net", 60)
    assert "the process that reads it was killed by SIGSEGV" in raised.value.why


WORDS = {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "a": 2, "u": 3}, "unk_token": "u"}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": WORDS,
}
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
BPE = {
    "type": "BPE",
    "vocab": {"a": 0, "b": 1},
    "merges": [["a", "b"]],
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
# Files with which the tokenizers package panics, or takes gigabytes and minutes.
HOSTILE = {
    "panics as it is read": {"model": BPE},
    "panics in encode": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "has no end": {"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 8}},
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        # By day, another test has a job that needs too much memory.
        pytest.param(name, change, marks=[pytest.mark.nightly] * (name == "has no end"))
        for name, change in HOSTILE.items()
    ],
)
def test_a_hostile_tokenizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: dict[str, Any]
) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed in this environment")
    monkeypatch.setattr("ci.llm.tokenizers.MEMORY_BYTES", 1 << 29)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**TOKENIZER, **change}))
    with pytest.raises(UsageError, match=r"tokenizer\.json cannot be (read|used)"):
        ask_tokenizer(TextQuestion(path, "the model", 4, ("a a",)), path)


def test_the_verb_refuses_a_hostile_tokenizer(tmp_path: Path) -> None:
    for package in ("torch", "executorch", "tokenizers"):
        pytest.importorskip(package, reason=f"{package} is not installed in this environment")
    (tmp_path / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "model": BPE}))
    files = ["--weights", str(TINY / "weights.bin"), "--tokenizer", "tokenizer.json"]
    shown, last = call_verb(tmp_path, "test-llm", *files)
    assert "the tokenizer tokenizer.json cannot be read" in shown
    assert "Traceback" not in shown
    assert last == str(int(ExitCode.USAGE))


HANGING_ONCE = """
import importlib, os, threading
from pathlib import Path

def hang_once(*arguments):
    hung = Path({hung!r})
    if not hung.exists():
        hung.touch()
        threading.Event().wait()
    return original(*arguments)

if "QNN_CI_LIMITED" in os.environ:  # in the process that reads the file
    module = importlib.import_module("ci.{module}")
    original, module.{name} = module.{name}, hang_once
"""
RAISE = "use a smaller model, or raise --timeout-s"


def read_to_fit(path: Path, timeout_s: float) -> object:
    spec = CaseSpec("net", Scheme.ASIS, "SM8650", Source(str(path)))
    return fit_litert(spec, path.name, timeout_s)


def read_for_init(path: Path, _: float) -> object:
    return ask_quantized(path)


@pytest.mark.parametrize(
    ("read", "step", "limit_s", "fix"),
    [
        (read_to_fit, "litert.source.read_litert", 7, RAISE),
        (read_to_fit, "litert.split.list_unknown", 7, RAISE),
        (read_to_fit, "litert.source.load_litert", 7, RAISE),
        (read_for_init, "litert.source.read_litert", TIMEOUT_S, ""),
        (read_for_init, "litert.source.is_quantized", TIMEOUT_S, ""),
        (read_dimensions, "llm.subject.require_form", 7, RAISE),
    ],
)
def test_a_file_whose_reading_does_not_end_in_time_is_refused(
    read: Callable[[Path, float], object],
    step: str,
    limit_s: float,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = TINY / "weights.bin"
    if read is read_dimensions:
        pytest.importorskip("torch", reason="torch is not installed in this environment")
    else:
        pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
        from ci.litert.suite import make_model

        path = tmp_path / "net.tflite"
        path.write_bytes(make_model("dense"))
    hung, (module, _, name) = tmp_path / "hung", step.rpartition(".")
    code = HANGING_ONCE.format(hung=str(hung), module=module, name=name)
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with monkeypatch.context() as patch:
        expire_when(patch, hung.exists)
        with pytest.raises(UsageError, match="cannot be read") as raised:
            read(path, 7)
    assert raised.value.why.startswith(f"did not end within {limit_s:g} s")
    assert raised.value.fix.endswith(fix)
    assert read(path, 600) is not None
