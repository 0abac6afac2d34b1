"""Killed at any instant (SIGKILL), init and the end of mend are continued by the same command. What
earlier runs of mend wrote is kept, and named."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from ci.__main__ import main
from ci.mend.mending import Mended
from ci.mend.search import Recipe
from ci.verbs.mend import Output, write_mended
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from tests.stand_ins.kills import read_tree, run_until
from tests.unit.ci.mend.test_policy import mended

USES = "example/executorch-qnn-ci@" + "0a" * 20
USERS = {".gitignore": b"*.pyc\r\n", "notes.txt": b"mine", "qnn.toml": b"# mine\n"}
POOL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,8,14,14] x) => (float[1,8,7,7] y)
    { y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x) }"""
POLICY = '# mine\r\n[models.net]\r\npath = "{}"\r\nschemes = ["{}"]\r\n'


def kill_at_each_instant(
    tmp_path: Path,
    prepare: Callable[[Path], None],
    run: Callable[[Path], object],
    *,
    step: int = 1,
) -> dict[str, bytes | str]:
    """Run a command until it is killed, and again, for each ``step``-th access to a file below its
    directory. Check that the files are then those of a run that is not killed, and return them."""
    unkilled = tmp_path / "0000"
    prepare(unkilled)
    run(unkilled)
    files = read_tree(unkilled)
    instant, kills, is_killed = 1, 0, True
    while is_killed:
        top = tmp_path / f"{instant:04}"
        prepare(top)
        before = read_tree(top)
        is_killed = run_until(instant, lambda top=top: run(top), top)
        between = read_tree(top)
        for name, content in before.items():
            is_ours = name in files and files[name] != content
            assert is_ours or between[name] == content, (instant, name)
        run(top)
        assert read_tree(top) == files, instant
        instant, kills = instant + step, kills + is_killed
    assert kills >= 20 / step  # of the processes
    return files


STEPS = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.nightly)])


@STEPS
@pytest.mark.parametrize("force", [False, True])
def test_init_continues_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool, step: int
) -> None:
    monkeypatch.delenv("QNN_CI_CALLER_DIR", raising=False)

    def prepare(top: Path) -> None:
        (top / ".git").mkdir(parents=True)
        for name, content in USERS.items():
            if force or name != "qnn.toml":
                (top / name).write_bytes(content)

    def run(top: Path) -> None:
        monkeypatch.chdir(top)
        words = ["init", "--uses", USES, *(["--force"] if force else [])]
        assert main(words) == ExitCode.OK

    files = kill_at_each_instant(tmp_path, prepare, run, step=step)
    assert files["notes.txt"] == b"mine"
    assert files[".gitignore"] == b"*.pyc\r\nreports/\r\n/before/\r\n/kept/\r\n/qnn.sarif\r\n"
    assert files.get("qnn.toml.old") == (USERS["qnn.toml"] if force else None)


def make_output(top: Path, *, applies: bool = True) -> Output:
    return Output(top / "mended", top / "qnn.toml", ("net",), applies=applies, timeout_s=60.0)


def test_mend_names_what_earlier_runs_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qnn.toml").write_bytes(POLICY.format("net.py:factory", "8a8w").encode())
    (tmp_path / "other").mkdir()
    (tmp_path / "net.py").touch()
    (tmp_path / "other" / "net.py").touch()
    output = make_output(tmp_path, applies=False)
    earlier = mended(tmp_path / "other", "other/net.py:factory", "8a8w", Recipe(rewrites=("r",)))
    later = mended(tmp_path, "net", "8a8w", Recipe(rewrites=("r",)))
    for case, names_earlier in ((earlier, False), (later, True)):
        stream = StringIO()
        write_mended([case], output, Progress(stream))
        line = "of earlier runs, mended/qnn.toml has net"
        assert (line in stream.getvalue()) == names_earlier


@STEPS
def test_mend_of_pytorch_models_continues_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def prepare(top: Path) -> None:
        (top / "mended").mkdir(parents=True)
        monkeypatch.chdir(top)
        (top / "mended" / "mine.txt").write_text("the user's")
        (top / "net.py").touch()
        (top / "qnn.toml").write_bytes(POLICY.format("net.py:factory", "8a8w").encode())
        (top / "other").mkdir()
        (top / "other" / "net.py").touch()
        earlier = mended(top / "other", "other/net.py:factory", "8a8w", Recipe(rewrites=("r",)))
        write_mended([earlier], make_output(top, applies=False), Progress())

    def run(top: Path) -> None:
        monkeypatch.chdir(top)
        case = mended(top, "net", "8a8w", Recipe(rewrites=("r",)))
        write_mended([case], make_output(top), Progress())

    files = kill_at_each_instant(tmp_path, prepare, run, step=step)
    assert files["mended/mine.txt"] == b"the user's"
    policy = str(files["mended/qnn.toml"])
    assert policy.count("mended_net.py:") == 2  # of both models
    assert b'path = "mended/mended_net.py:net' in files["qnn.toml"]  # type: ignore[operator]


@STEPS
def test_mend_of_onnx_files_continues_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
    onnx = pytest.importorskip("onnx", reason="onnx is not installed in this environment")
    from ci.cases.spec import CaseSpec
    from ci.models.schemes import Scheme
    from ci.models.user_models import Source
    from ci.report.schema import Status
    from tests.unit.ci.mend.test_policy import judged

    samples = np.random.default_rng(0).standard_normal((2, 1, 8, 14, 14)).astype(np.float32)

    def prepare(top: Path) -> None:
        (top / "mended").mkdir(parents=True)
        monkeypatch.chdir(top)
        (top / "mended" / "mine.txt").write_text("the user's")
        (top / "qnn.toml").write_bytes(POLICY.format("net.onnx", "u8").encode())
        onnx.save(onnx.parser.parse_model(POOL), top / "net.onnx")
        np.savez(top / "net.npz", x=samples)

    def run(top: Path) -> None:
        monkeypatch.chdir(top)
        source = Source(f"{top}/net.onnx")
        case = Mended(
            CaseSpec("net", Scheme.U8, "SM8650", source), judged("net", "u8", Status.FAILED)
        )
        case.recipe = Recipe(rewrites=("convolve-average",))
        write_mended([case], make_output(top), Progress())

    files = kill_at_each_instant(tmp_path, prepare, run, step=step)
    assert {"mended/net.onnx", "mended/net.npz", "mended/qnn.toml"} < files.keys()
