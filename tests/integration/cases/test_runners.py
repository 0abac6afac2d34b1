from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ci.cases.engine import INPUTS, Compiled, Delegation, Program, RunError, RunNotes
from ci.cases.runners import SPEED, ProgramRunner, find_program
from ci.models.lowering_options import ONE_RUN, RunOptions
from ci.models.tensors import FILE, TensorInfo
from ci.models.user_models import Source
from provisioning.errors import MissingToolError, UsageError
from tests.stand_ins.lanes import SPEC
from tests.stand_ins.waits import wait_for_end


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "a folder" / "run.sh"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.delenv("QNN_CI_CALLER_DIR", raising=False)
    monkeypatch.chdir(path.parent)
    return path


@pytest.mark.parametrize(
    "word",
    ["./run.sh", "../a folder/run.sh", "'../a folder/run.sh' run.sh ./run.sh x", "sh run.sh"],
)
def test_relative_paths_in_a_runner_command_become_absolute(runner: Path, word: str) -> None:
    program = find_program(word, {"A": "b"})
    assert isinstance(program, ProgramRunner)
    assert program.environment == {"A": "b"}
    assert {word for word in program.argv if "run.sh" in word} == {str(runner)}
    assert Path(program.argv[0]).is_absolute()
    python = runner.parent / "venv-python"  # the link itself is started, not its target
    python.symlink_to(sys.executable)
    program = find_program("./venv-python x", {})
    assert isinstance(program, ProgramRunner)
    assert [*program.argv] == [str(python), "x"]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        *(
            (command, "it is not a program that can be started")
            for command in ("./gone.sh", "gone", "")
        ),
        ("'", "No closing quotation"),
    ],
)
def test_a_runner_that_is_not_there_is_a_usage_error(runner: Path, word: str, why: str) -> None:
    with pytest.raises(UsageError, match="no runner") as caught:
        find_program(word, {})
    assert caught.value.why == why


def test_a_runner_without_its_interpreter_is_a_missing_tool(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/no/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(MissingToolError, match="cannot start") as caught:
        run_script(tmp_path, script, start=())
    assert "interpreter" in caught.value.fix


WRITES = "for word; do case $word in --output*) cp {0} ${{word#*=}}/output_0_0.raw;; esac; done"


def write_script(folder: Path, *lines: str) -> Path:
    """A runner that writes a right output, and does the rest."""
    np.ones(3, np.float32).tofile(folder / "right.raw")
    script = folder / "run.sh"
    script.write_text("\n".join([WRITES.format(folder / "right.raw"), *lines, ""]))
    return script


LEFT = "were killed: (sh|sleep)"  # a fork is "sh" until it starts sleep


@pytest.mark.parametrize(
    ("start", "ending", "message"),
    [
        ("", "exit 0", LEFT),
        ("setsid ", "exit 0", LEFT),
        ("", "exit 3", "exited with 3"),
        ("setsid ", "sleep 600", "did not end within"),
        ("setsid ", "kill -SEGV $$", "was killed by SIGSEGV"),
        ("", "trap 'exit 0' TERM; sleep 600 & wait", "did not end within"),
    ],
)
def test_what_a_runner_leaves_running_is_ended_and_fails_the_run(
    tmp_path: Path, start: str, ending: str, message: str
) -> None:
    """The run fails although its outputs are right."""
    pid = tmp_path / "pid"
    child = f"{start}sh -c 'echo $$ >{pid}; exec sleep 600' >/dev/null 2>&1 </dev/null &"
    script = write_script(tmp_path, child, f"while [ ! -s {pid} ]; do :; done", ending)
    limit_s = 2.0 if "within" in message else 60.0
    with pytest.raises(RunError, match=message):
        run_script(tmp_path, script, limit_s=limit_s)
    wait_for_end(int(pid.read_text()))


def test_stale_input_and_output_files_are_removed_before_a_run(tmp_path: Path) -> None:
    script = write_script(tmp_path)
    stale = tmp_path / "work" / "artifact" / INPUTS / FILE.format(7, 0)
    stale.parent.mkdir(parents=True)
    stale.touch()
    assert run_script(tmp_path, script) == [1.0, 1.0, 1.0]
    assert [file.name for file in stale.parent.iterdir()] == [FILE.format(0, 0)]
    script.write_text("exit 0\n")
    with pytest.raises(RunError, match="was not written"):
        run_script(tmp_path, script)


def test_a_runner_gets_the_entry_s_flags_and_its_mean_time_is_noted(tmp_path: Path) -> None:
    flags_file = tmp_path / "flags"
    speed = "for word; do case $word in --perf*) echo 1.25 >${word#*=};; esac; done"
    script = write_script(tmp_path, f'echo "$PWD $*" >{flags_file}', speed)
    run_script(tmp_path, script)
    words = flags_file.read_text().split()
    assert [word.partition("=")[0] for word in words] == [
        *(f"{tmp_path}/work", "--model_path", "--input_list_path", "--output_folder_path")
    ]
    notes: list[RunNotes] = []
    run_script(tmp_path, script, RunOptions(warm_up=2, iteration=9, lpai_fps=30), notes)
    assert " --warm_up=2 --iteration=9 --lpai_fps=30 " in flags_file.read_text()
    assert notes[0].run_ms == 1.25
    script = write_script(tmp_path)
    for text in ("much", None):  # of a runner that writes no number, or no file
        file = tmp_path / "work" / SPEED
        file.unlink() if text is None else file.write_text(text)
        run_script(tmp_path, script, RunOptions(iteration=9), notes)
        assert notes[-1] == RunNotes()


def run_script(
    folder: Path,
    script: Path,
    options: RunOptions = ONE_RUN,
    notes: list[RunNotes] | None = None,
    start: Sequence[str] = ("sh",),
    limit_s: float = 60.0,
) -> list[float]:
    (folder / "work" / "artifact").mkdir(parents=True, exist_ok=True)
    info = TensorInfo("float32", (3,))
    compiled = Compiled(
        program="p",
        binary="p",
        size_bytes=1,
        sets=1,
        inputs=(info,),
        outputs=(info,),
        delegation=Delegation(1, 0, 1),
    )
    path, log = folder / "work/artifact/p", folder / "log"
    spec = replace(SPEC, source=Source(run=options))
    program = Program(spec, path, compiled, folder / "work", log)
    runner = ProgramRunner([*start, str(script)], os.environ)
    with runner.open(program, limit_s) as opened:
        ((output,),) = opened.run([[np.ones(3, np.float32)]])
        if notes is not None:
            notes.append(opened.finish())
    return [*output]
