"""The main job for real: ExecuTorch lowers, QNN's HTP emulator runs, the gate judges."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ci.cases.cache import read_artifact
from ci.cases.engine import INPUTS, Program, RunError, Sets
from ci.cases.pipeline import CaseResult, CaseRun
from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.pool import TUNABLES, Pool
from ci.cases.runners import ProgramRunner
from ci.cases.session import check_functions
from ci.cases.spec import CaseSpec, select_cases
from ci.executorch.engine import NAME, ExecutorchEngine, make_runner
from ci.models.schemes import Scheme
from ci.models.tensors import read_sets
from ci.report.schema import Status
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.doctor.survey.programs import read_program
from provisioning.errors import UsageError
from provisioning.files import scratch_directory
from provisioning.store.home import store_home
from tests.bench.emulator import make_home
from tests.build.setups import make_setup
from tests.stand_ins.waits import wait_until

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = ROOT / "tests" / "stand_ins" / "executor_runner.py"
pytestmark = pytest.mark.emulator
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

RunCase = Callable[..., CaseResult]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, Path]]:
    """A pool whose imports all tests share, and a cache of lowered programs."""
    environment = provision_profile("emulator", Progress())
    empty = tmp_path_factory.mktemp("cwd")
    imports = ExecutorchEngine(()).imports
    with closing(Pool(environment.apply(os.environ), empty, imports)) as pool:
        yield pool, tmp_path_factory.mktemp("lowered")


@pytest.fixture
def run_case(shared: tuple[Pool, Path], tmp_path: Path) -> RunCase:
    pool, cache = shared

    def run(
        model: str,
        scheme: Scheme,
        soc: str = "SM8650",
        *,
        fault: str = "",
        policy: EmulatorPolicy | None = None,
        timeout_s: float = 200.0,
    ) -> CaseResult:
        stand_in = ProgramRunner([sys.executable, str(STAND_IN), fault, str(cache)], os.environ)
        setup = make_setup(
            tmp_path,
            ExecutorchEngine(("test",)),
            stand_in if fault else make_runner(pool, timeout_s),
            pool,
            policy=policy or read_emulator_policy(),
            timeout_s=timeout_s,
            keep=tmp_path / "kept",
            cache=cache,
        )
        return CaseRun(CaseSpec(model, scheme, soc), setup).run()

    return run


def run_emulator(
    reports: Path, *words: str, home: Path | None = None, limit_bytes: int = -1
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """The command as a user runs it, and its report."""
    argv = [sys.executable, "-m", "ci", "test-emulator", "--reports", str(reports), *words]
    environment = {**os.environ, **({"QNN_CI_HOME": str(home)} if home else {})}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit[1]))
    try:
        ended = subprocess.run(
            argv,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    file = reports / "test_emulator" / "report.json"
    return ended, json.loads(file.read_text()) if file.is_file() else None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home without programs, in which the first test lowers some."""
    return make_home(tmp_path_factory.mktemp("shared") / "home")


@pytest.mark.nightly
def test_models_pass_and_no_later_run_lowers_any_again(tmp_path: Path, home: Path) -> None:
    """oneDNN once computed the depthwise convolutions of mobilenet in two ways."""
    # One job has all cores as threads, which must not be there when a lowering forks.
    words = ("--model", "mobilenet", "--scheme", "fp16", "--scheme", "8a8w", "--jobs", "1")
    first, report = run_emulator(tmp_path, *words, "--timeout-s", "100", home=home)
    assert first.returncode == 0, first.stderr
    assert (report["summary"]["passed"], report["summary"]["cached"]) == (2, 0)
    kinds = {control["kind"] for control in report["controls"]}
    floating = {"zeros", "noise", "permuted", "other_input", "weakest_channel", "gain"}
    assert kinds == {*floating, "garbage_tail"}
    assert len(report["controls"]) == 14
    assert all(control["rejected"] for control in report["controls"])
    for case in report["cases"]:
        assert case["program"]["fallback_nodes"] == 0
        assert case["program"]["delegated_nodes"] >= case["program"]["partitions"] == 1
        assert case["asked"]["inputs"] >= 4
        assert not case["program"]["cached"]
        taken = case["program"]["footprint"]
        assert None not in taken.values()
        assert case["program"]["pte_bytes"] == taken["program_bytes"] > taken["context_bytes"]
        assert taken["read_bytes"] > taken["graphs"][0]["constant_bytes"] // 2 > 0
        assert 100 << 20 < taken["lowering_memory_bytes"] < 4 << 30
        assert (
            0
            < sum(operator["npu"] for operator in taken["operators"])
            <= case["program"]["delegated_nodes"]
        )
    figures = [case["judgement"]["sqnr_db"] for case in report["cases"]]
    footprints = [case["program"]["footprint"] for case in report["cases"]]
    later, report = run_emulator(tmp_path, *words, "--model", "mlp", "--json", home=home)
    assert later.returncode == 0, later.stderr
    assert json.loads(later.stdout) == report
    assert [case["program"]["cached"] for case in report["cases"]] == [True, True, False, False]
    assert [case["judgement"]["sqnr_db"] for case in report["cases"]][:2] == figures
    assert [case["program"]["footprint"] for case in report["cases"]][:2] == footprints


def find_program(cache: Path, folder: Path) -> tuple[Program, Sets]:
    """The program that a case left in the cache, and its samples."""
    artifact = read_artifact(next(cache.glob("*/*")))
    assert artifact is not None
    directory = cache / artifact.key[:2] / artifact.key
    compiled = artifact.compiled
    sets = read_sets(directory / INPUTS, compiled.inputs, compiled.sets)
    spec = CaseSpec(artifact.model, Scheme(artifact.scheme), artifact.soc)
    path = directory / compiled.program
    return Program(spec, path, compiled, folder, folder / "again.log"), sets


@pytest.mark.nightly
def test_runs_share_a_worker_process_until_one_hangs_or_dies_and_give_equal_bits(
    run_case: RunCase, shared: tuple[Pool, Path], tmp_path: Path
) -> None:
    assert run_case("mlp", Scheme.FP16).case.judgement.status is Status.PASSED
    pool, cache = shared
    program, sets = find_program(cache, tmp_path)
    outputs = sorted((tmp_path / "kept" / "mlp-fp16-SM8650" / "outputs").iterdir())
    expected_outputs = [file.read_bytes() for file in outputs]
    runner = make_runner(pool, 60.0)

    def run(number: int = 1, timeout_s: float = 60.0) -> bool:
        """Open once, run ``number`` times; whether the process had run other programs."""
        with runner.open(program, timeout_s) as opened:
            for _ in range(number):
                outputs_of_run = opened.run(sets)
                assert [
                    tensor.tobytes() for tensors in outputs_of_run for tensor in tensors
                ] == expected_outputs
            return opened.used

    def stop(number: int) -> None:
        worker = pool.idle[NAME, threading.get_ident()]
        os.kill(worker.process.pid, number)

    assert run(3)  # after the case's own
    stop(signal.SIGSTOP)
    with pytest.raises(RunError, match="did not end within 1 s") as caught:
        run(timeout_s=1.0)
    assert caught.value.used
    assert [run(), run()] == [False, True]
    stop(signal.SIGSEGV)
    with pytest.raises(RunError, match="was killed by SIGSEGV without a result"):
        run()
    assert not run()
    with (
        runner.open(program, 60.0) as opened,
        pytest.raises(RunError, match="wrong number of inputs: 0 instead of 1"),
    ):
        opened.run([[]])
    assert run()  # what raised nothing but an exception goes on


def test_freed_memory_of_a_run_is_overwritten_before_the_next_run() -> None:
    script = """
import ctypes, os
from ci.executorch.runtime import overwrite_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def outputs(): return [libc.malloc(size) for size in (64, 4096, 1 << 16, 1 << 20)]
def left(): return [ctypes.string_at(place + 32, 32) for place in outputs()]
is_overwriting = not os.fork() or os.wait() and False
for place, size in zip(made := outputs(), (64, 4096, 1 << 16, 1 << 20)):
    ctypes.memset(place, 7, size)
if is_overwriting: overwrite_freed_memory()
for place in made: libc.free(place)
print(bytes([7] * 32) in left(), flush=True)
"""
    output = subprocess.check_output(
        [sys.executable, "-c", script],
        cwd=ROOT,
        text=True,
        env={**os.environ, "GLIBC_TUNABLES": TUNABLES},
    )
    assert output == "False\nTrue\n"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("zeros", "not faithful: "),
        ("hang", "did not end within 4 s"),
        ("die", "was killed by SIGSEGV"),
        ("missing", "output_1_0.raw was not written"),
    ],
)
def test_a_runner_that_goes_wrong_fails_its_case_with_the_reason(
    run_case: RunCase, fault: str, words: str
) -> None:
    assert run_case("mlp", Scheme.FP16).case.judgement.status is Status.PASSED
    timeout_s = 4.0 if fault == "hang" else 200.0
    case = run_case("mlp", Scheme.FP16, fault=fault, timeout_s=timeout_s).case
    assert case.judgement.status is Status.FAILED
    assert words in case.reason
    assert f"stand-in runner: {fault}" in case.run.log_tail


MODEL = """
import torch
from weights import scale

class Net(torch.nn.Module):
    def forward(self, x):
        return {body}

def factory():
    return Net(), (torch.randn(2, 16, generator=torch.Generator().manual_seed(3)),)
"""


@pytest.fixture
def users_model(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "weights.py").write_text("scale = 3.0\n")
    (folder / "my.py").write_text(MODEL.format(body="torch.relu(x * scale) + x"))
    return folder / "my.py"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x * 0.0001", "near zero"),
        ("torch.special.bessel_j0(x) + x + scale", "unsupported [my.py:7]"),
        ("torch.nn.functional.max_pool2d(x.view(1, 2, 4, 4), 2)", "F.max_pool2d(x, 2, 2)"),
    ],
)
def test_a_model_with_outputs_near_zero_or_operators_on_the_cpu_fails(
    run_case: RunCase, users_model: Path, body: str, words: str
) -> None:
    users_model.write_text(MODEL.format(body=body))
    case = run_case(f"{users_model}:factory", Scheme.A8W8).case
    assert case.judgement.status is Status.FAILED
    assert words in case.reason
    assert "proves nothing" not in case.reason or case.program.lower_s is None


STATEFUL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(4, 8, 1)
        self.register_buffer("total", torch.full((1, 8, 1, 1), 3.0))

    def forward(self, x):
        y = self.conv(x)
        with torch.no_grad():
            self.total.add_(y.mean((2, 3), keepdim=True))
        return y + self.total, None, 7, y.argmax(1)

def factory():
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    return Net().to(memory_format=torch.channels_last), (x,)
"""


def test_a_model_with_state_channels_last_weights_and_all_output_types_passes(
    run_case: RunCase, users_model: Path
) -> None:
    users_model.write_text(STATEFUL)
    case = run_case(f"{users_model}:factory", Scheme.FP16).case
    assert case.judgement.status is Status.PASSED, case.reason


ZOO = """
def make(): ...
for name in ("relu", "tanh"):
    globals()[name] = make
"""


def test_a_model_function_that_its_file_does_not_define_is_refused_before_lowering(
    shared: tuple[Pool, Path], tmp_path: Path
) -> None:
    (tmp_path / "zoo.py").write_text(ZOO)
    (tmp_path / "broken.py").write_text("import no_such_module\nmade = no_such_module")

    def check(*functions: str) -> None:
        models = [f"{tmp_path}/{function}" for function in functions]
        specs = select_cases({}, ["SM8650"], models=models, schemes=["fp16"])
        check_functions(specs, shared[0], tmp_path / "log", 60)

    check("zoo.py:relu", "zoo.py:tanh", "zoo.py:make", "broken.py:made")
    with pytest.raises(UsageError, match="has no function 'tan'") as caught:
        check("zoo.py:relu", "zoo.py:tan")
    assert caught.value.fix == f"write {tmp_path}/zoo.py:tanh"


def test_a_refused_lowering_is_unsupported_only_if_the_policy_lists_it(
    run_case: RunCase, tmp_path: Path
) -> None:
    case = run_case("mlp", Scheme.FP16, "SW6100").case
    assert case.judgement.status is Status.UNSUPPORTED
    assert "doesn't support FP16" in case.reason
    policy = (ROOT / "manifests" / "policies" / "emulator.toml").read_text()
    (tmp_path / "mine.toml").write_text(policy.replace('"SW6100", ', ""))
    mine = read_emulator_policy(tmp_path / "mine.toml")
    case = run_case("mlp", Scheme.FP16, "SW6100", policy=mine).case
    assert case.judgement.status is Status.FAILED
    assert "doesn't support FP16" in case.reason


def test_kept_artifacts_are_complete_and_a_damaged_cache_entry_is_lowered_again(
    run_case: RunCase, shared: tuple[Pool, Path], tmp_path: Path
) -> None:
    assert run_case("mlp", Scheme.A8W8).case.judgement.status is Status.PASSED
    folder = tmp_path / "kept" / "mlp-8a8w-SM8650"
    expected_files = {
        "artifact/program.pte",
        "artifact/quantized/3_0.raw",
        "outputs/output_3_0.raw",
    }
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert expected_files <= files
    kept_program = (folder / "artifact" / "program.pte").read_bytes()
    compiled = json.loads((folder / "artifact" / "artifact.json").read_text())["compiled"]
    (method,) = read_program(folder / "artifact" / "program.pte").methods
    for ports, recorded in ((method.inputs, "inputs"), (method.outputs, "outputs")):
        assert [(port.dtype, list(port.shape)) for port in ports] == [
            (port_row["dtype"], port_row["shape"]) for port_row in compiled[recorded]
        ]
    assert len(method.partitions) == compiled["delegation"]["partitions"]
    assert (method.partitions[0].soc_id, method.partitions[0].hexagon) == (57, 75)
    warm = run_case("mlp", Scheme.A8W8)
    assert (warm.case.judgement.status, warm.case.program.cached) == (Status.PASSED, True)
    policy = read_emulator_policy()
    strict = structs.replace(policy, reference=structs.replace(policy.reference, min_rms=1e9))
    refused = run_case("mlp", Scheme.A8W8, policy=strict)
    assert "the reference proves nothing: output 0 is near zero" in refused.case.reason
    (program,) = [
        path for path in shared[1].rglob("program.pte") if path.read_bytes() == kept_program
    ]
    program.write_bytes(kept_program[:-1] + bytes([kept_program[-1] ^ 1]))
    relowered = run_case("mlp", Scheme.A8W8)
    assert relowered.case.judgement.status is Status.PASSED
    assert not relowered.case.program.cached
    assert relowered.remark == "a damaged cache entry was replaced"


@pytest.mark.nightly
@pytest.mark.parametrize("words", [(), ("--no-cache",)])
def test_a_file_size_limit_ends_a_run_with_exit_code_4(
    tmp_path: Path, home: Path, words: tuple[str, ...]
) -> None:
    """A limit of the file size fails like a full disk: while a cached program is copied for a
    runner, and while a program is lowered."""
    case = ("--model", "mlp", "--scheme", "fp16")
    ended, report = run_emulator(tmp_path, *case, *words, home=home, limit_bytes=20_000)
    assert (ended.returncode, report) == (4, None), ended.stderr
    assert "ulimit -f" in ended.stderr
    assert "Traceback" not in ended.stderr


def find_processes(home: Path) -> list[str]:
    """Command lines of processes that were started with QNN_CI_HOME set to ``home``."""
    marker = f"QNN_CI_HOME={home}\0".encode()
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marker in (entry / "environ").read_bytes():
                commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return commands


def is_lowering(home: Path) -> bool:
    return (home / "lowered").exists()


def is_running(home: Path) -> bool:
    return any("executor_runner.py hang . --model_path" in words for words in find_processes(home))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory with a path as short as a socket wants it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("number", "runner", "is_busy"),
    [
        (signal.SIGINT, "python", is_lowering),
        pytest.param(signal.SIGKILL, "python", is_lowering, marks=pytest.mark.nightly),
        pytest.param(
            signal.SIGINT,
            f"{sys.executable} {STAND_IN} hang .",
            is_running,
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_interrupt_ends_with_130_and_leaves_no_process(
    tmp_path: Path,
    scratch: Path,
    number: signal.Signals,
    runner: str,
    is_busy: Callable[[Path], bool],
) -> None:
    home = make_home(tmp_path / "home")
    if is_busy is is_running:
        (store_home() / "lowered").mkdir(exist_ok=True)
        (home / "lowered").symlink_to(store_home() / "lowered")
    argv = [sys.executable, "-m", "ci", "test-emulator", "--reports", str(tmp_path)]
    argv += ["--model", "mlp", "--scheme", "fp16", "--runner", runner]
    environment = {**os.environ, "QNN_CI_HOME": str(home), "TMPDIR": str(scratch)}
    log = tmp_path / "log"
    with (
        log.open("w") as sink,
        subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=sink, stderr=sink) as process,
    ):
        try:
            wait_until(lambda: is_busy(home) or process.poll() is not None)
            process.send_signal(number)
            code = process.wait()
        finally:
            process.kill()
    assert code == (130 if number == signal.SIGINT else -number), log.read_text()
    assert "Traceback" not in log.read_text()
    wait_until(lambda: not find_processes(home))
    left = [path.name for path in scratch.iterdir()]
    assert (
        all(name.startswith(".qnn-ci.") for name in left) if number == signal.SIGKILL else not left
    )
    with scratch_directory(scratch, "qnn-ci"):  # as the next run begins
        assert len(list(scratch.iterdir())) == 1
