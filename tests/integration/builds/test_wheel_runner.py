"""The C++ runner is built with cmake against the installed wheel, and run."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="the executorch wheel is not installed here")

from ci.builds.runner import ensure_wheel_runner
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from tests.programs import missing_programs

pytestmark = [
    pytest.mark.nightly,  # by day, tests/documented builds the runner
    pytest.mark.skipif(bool(missing_programs("g++")), reason=missing_programs("g++")),
]

# Programs of two inputs and two outputs on the CPU, made in a process of its own: torch warns
# at import.
EXPORT = """
import sys, torch
from executorch.exir import to_edge

class Pair(torch.nn.Module):
    def forward(self, x, y):
        return x + y, x * 2.0

batch = torch.export.Dim("batch", min=1, max=4)
for name, rows, shapes in (("fixed", 2, None), ("dynamic", 3, ({0: batch}, {0: batch}))):
    pair = (torch.ones(rows, 3), torch.ones(rows, 3))
    program = to_edge(torch.export.export(Pair(), pair, dynamic_shapes=shapes)).to_executorch()
    open(f"{sys.argv[1]}/{name}.pte", "wb").write(program.buffer)
"""

LOWER = """
import sys, numpy, torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils

class Square(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * x + x)

x = torch.from_numpy(numpy.fromfile(sys.argv[2], numpy.float32)).reshape(2, 3)
options = utils.generate_qnn_executorch_compiler_spec(
    soc_model=QcomChipset.SM8650, backend_options=utils.generate_htp_compiler_spec(use_fp16=True)
)
lowered = utils.to_edge_transform_and_lower_to_qnn(Square(), (x,), options)
open(sys.argv[1], "wb").write(lowered.to_executorch().buffer)
Square()(x).numpy().tofile(sys.argv[3])
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def runner() -> Path:
    first = ensure_wheel_runner(Progress())
    stamp = first.stat().st_mtime_ns
    assert ensure_wheel_runner(Progress()).stat().st_mtime_ns == stamp
    return first


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    subprocess.run([sys.executable, "-c", EXPORT, str(folder)], check=True)
    return folder


def write_floats(path: Path, *values: float) -> Path:
    path.write_bytes(struct.pack(f"<{len(values)}f", *values))
    return path


def read_floats(path: Path) -> tuple[float, ...]:
    data = path.read_bytes()
    return struct.unpack(f"<{len(data) // 4}f", data)


class Case:
    """One call of the runner: defaults that work, changed a flag at a time."""

    def __init__(self, runner: Path, model: Path, folder: Path) -> None:
        self.runner, self.folder = runner, folder
        self.env = dict(os.environ)
        self.out = folder / "out"
        self.out.mkdir()
        x = write_floats(folder / "x.raw", 1, 2, 3, 4, 5, 6)
        y = write_floats(folder / "y.raw", 10, 20, 30, 40, 50, 60)
        self.flags = {
            "model_path": str(model),
            "input_list_path": str(self.write_list(f"{x} {y}\n{y} {x}\n")),
            "output_folder_path": str(self.out),
        }

    def write_list(self, text: str) -> Path:
        path = self.folder / "list.txt"
        path.write_text(text)
        return path

    def run(self, *words: str, **changes: str) -> tuple[int, str]:
        flags = [f"--{name}={value}" for name, value in {**self.flags, **changes}.items()]
        ended = subprocess.run(
            [self.runner, *flags, *words],
            env=self.env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=1200,
            check=False,
        )
        return ended.returncode, ended.stderr


@pytest.fixture
def case(runner: Path, programs: Path, tmp_path: Path) -> Case:
    return Case(runner, programs / "fixed.pte", tmp_path)


def test_every_line_of_the_input_list_writes_its_outputs(case: Case) -> None:
    code, text = case.run()
    assert code == 0, text
    names = sorted(path.name for path in case.out.iterdir())
    assert names == [f"output_{run}_{index}.raw" for run in (0, 1) for index in (0, 1)]
    assert read_floats(case.out / "output_0_0.raw") == (11, 22, 33, 44, 55, 66)
    assert read_floats(case.out / "output_0_1.raw") == (2, 4, 6, 8, 10, 12)
    assert read_floats(case.out / "output_1_1.raw") == (20, 40, 60, 80, 100, 120)


def test_flags_take_one_or_two_dashes_and_time_and_trace_files_are_written(case: Case) -> None:
    speed, dump = case.folder / "speed.txt", case.folder / "run.etdp"
    code, text = case.run(
        "--iteration", "3", "-warm_up=2", "--noshared_buffer",
        performance_output_path=str(speed), etdump_path=str(dump),
    )  # fmt: skip
    assert code == 0, text
    assert 0 < float(speed.read_text()) < 1000
    assert dump.read_bytes()[8:12] == b"ED00"  # the identifier, after a size and an offset


def test_given_shapes_set_sizes_of_dynamic_inputs_and_outputs(case: Case, programs: Path) -> None:
    shapes = case.folder / "shapes.txt"
    shapes.write_text("2, 3\n2, 3\n")
    flags = {"model_path": str(programs / "dynamic.pte"), "input_shape_path": str(shapes)}
    code, text = case.run(**flags, output_shape_path=str(shapes))
    assert code == 0, text
    assert read_floats(case.out / "output_0_0.raw") == (11, 22, 33, 44, 55, 66)
    shapes.write_text("9, 3\n9, 3\n")
    code, text = case.run(**flags, output_shape_path=str(shapes))
    assert (code, "needs more than" in text) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no_such_flag"], "no flag --no_such_flag"),
        (["--lapi_fps=30"], "no flag --lapi_fps; the nearest is --lpai_fps"),
        (["stray"], "'stray' is not a flag"),
        (["--iteration=0"], "--iteration takes a whole number from 1"),
        (["--log_level=9"], "from 0 to 5"),
        (["--log_level=2x"], "from 0 to 5"),
        (["--htp_performance_mode=9"], "from 0 to 8"),
        (["--shared_buffer=perhaps"], "takes true or false"),
        (["--model_path"], "needs a value"),
        (["--method_index=7"], "the number of methods is 1"),
        (["--dump_intermediate_outputs"], "needs --debug_output_path"),
        (["--input_shape_path=x"], "must be used together"),
        (["--model_path=none.pte"], "there is no model none.pte"),
        (["--input_list_path=none.txt"], "cannot read none.txt"),
        (["--output_folder_path=none"], "output directory none does not exist"),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_why(case: Case, words: list[str], message: str) -> None:
    code, text = case.run(*words)
    assert code == 2
    assert message in text
    assert not any(case.out.iterdir())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "is empty"),
        ("{x}", "names 1 file(s), but the number of inputs is 2"),
        ("{x} {none}", "cannot read input"),
        ("{x} {short}", "is 20 bytes long, but the tensor needs 24"),
        ("{x} {long}", "is 28 bytes long, but the tensor needs 24"),
    ],
)
def test_a_wrong_input_list_ends_with_2(case: Case, line: str, message: str) -> None:
    folder = case.folder
    write_floats(folder / "short", *range(5))
    write_floats(folder / "long", *range(7))
    paths = {name: folder / name for name in ("none", "short", "long")}
    case.write_list(line.format(x=folder / "x.raw", **paths) + "\n")
    code, text = case.run()
    assert (code, message in text) == (2, True), text
    assert not any(case.out.iterdir())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_program_ends_with_1(case: Case, programs: Path, share: float) -> None:
    program = (programs / "fixed.pte").read_bytes()
    cut = case.folder / "cut.pte"
    cut.write_bytes(program[: int(len(program) * share)])
    code, text = case.run(model_path=str(cut))
    assert code == 1
    assert "is not a program that this runtime can read" in text


def test_a_full_disk_ends_with_4_and_shared_memory_on_a_host_with_3(case: Case) -> None:
    code, text = case.run(performance_output_path="/dev/full")
    assert (code, "cannot write /dev/full" in text) == (4, True)
    code, text = case.run("--shared_buffer")
    assert (code, "--shared_buffer needs a device" in text) == (3, True)


def test_the_runner_finds_the_wheel_without_a_library_path(runner: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    ended = subprocess.run(
        [runner, "--help"], env=env, capture_output=True, text=True, timeout=1200, check=True
    )
    assert "--input_list_path" in ended.stdout


@pytest.mark.emulator
def test_a_qnn_program_runs_on_the_emulator_and_not_without_its_libraries(
    case: Case, tmp_path: Path
) -> None:
    variables = provision_profile("emulator", Progress()).variables
    model, reference = tmp_path / "qnn.pte", tmp_path / "reference.raw"
    env = {**os.environ, **variables}
    words = [sys.executable, "-c", LOWER, str(model), str(case.folder / "x.raw"), str(reference)]
    subprocess.run(words, env=env, cwd=ROOT, capture_output=True, timeout=1200, check=True)
    case.write_list(f"{case.folder / 'x.raw'}\n")
    case.env = env
    code, text = case.run("--log_level=1", "--htp_performance_mode=2", model_path=str(model))
    assert code == 0, text
    outputs = read_floats(case.out / "output_0_0.raw")
    expected = read_floats(reference)
    assert max(abs(a - b) for a, b in zip(outputs, expected, strict=True)) < 0.02 * max(expected)
    assert max(expected) > 1
    case.env = {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}
    code, text = case.run(model_path=str(model))
    assert (code, "a QNN library cannot be loaded: libQnnSystem.so" in text) == (3, True), text
