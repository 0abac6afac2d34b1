"""--backend for real: ExecuTorch lowers for LPAI and GPU with libraries that hand on to HTP's, and
what is missing, refused or too old is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.cases.pipeline import CaseResult, CaseRun
from ci.cases.policy import read_emulator_policy
from ci.cases.pool import Pool
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine, make_runner
from ci.models.schemes import Scheme
from ci.report.schema import Status
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from provisioning.manifest.targets import Backend, read_backends
from tests.build.setups import make_setup
from tests.programs import missing_programs
from tests.stand_ins.backends import HOST, compile_backend

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(bool(missing_programs("gcc")), reason=missing_programs("gcc")),
]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")


@pytest.fixture(scope="module")
def runtime() -> Path:
    return provision_profile("emulator", Progress()).root("qnn-runtime")


@pytest.fixture(scope="module")
def pool(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Processes in which the libraries of both backends are found."""
    libraries = tmp_path_factory.mktemp("libraries")
    compile_backend(libraries / "libQnnLpai.so")
    compile_backend(libraries / "libQnnGpu.so", "-DGPU")
    variables = {**os.environ, "QNN_SDK_ROOT": str(runtime)}
    variables["LD_LIBRARY_PATH"] = f"{libraries}:{runtime / HOST}"
    imports = ExecutorchEngine.imports
    with closing(Pool(variables, tmp_path_factory.mktemp("cwd"), imports)) as opened:
        yield opened


def run_case(pool: Pool, folder: Path, backend: Backend, spec: CaseSpec) -> CaseResult:
    setup = make_setup(
        folder,
        ExecutorchEngine(("test",), backend),
        make_runner(pool, 200.0, quantizes=backend.is_lpai),
        pool,
        policy=read_emulator_policy().for_backend(backend),
        timeout_s=200.0,
        files_directory=folder / "qnn",
        backend=backend,
        device=read_backends()[backend].device,
    )
    return CaseRun(spec, setup).run()


@pytest.mark.nightly
def test_a_program_for_the_emulator_of_lpai_runs_and_is_judged(pool: Pool, tmp_path: Path) -> None:
    """ExecuTorch quantizes LPAI's inputs on the CPU: that is not a fallback. A device needs another
    program of the same model, which is lowered and not run."""
    spec = CaseSpec("mlp", Scheme.A8W8, "SM8850")
    case = run_case(pool, tmp_path, Backend.LPAI, spec).case
    assert case.judgement.status is Status.PASSED, f"{case.reason}\n{case.run.log_tail}"
    assert (case.program.fallback_nodes, case.program.partitions, case.program.cached) == (
        0,
        1,
        False,
    )
    cached_run = run_case(pool, tmp_path, Backend.LPAI, spec)
    assert cached_run.case.program.cached
    assert len(cached_run.controls) == 7

    unrun = run_case(pool, tmp_path, Backend.LPAI_ARM, spec)
    assert (unrun.case.judgement.status, unrun.case.program.cached) == (
        Status.UNSUPPORTED,
        False,
    ), unrun.case.reason
    assert unrun.controls == ()
    assert unrun.case.reason.startswith(
        "lowered; the program cannot run here: it needs LPAI hardware"
    )
    assert unrun.case.run.lacks == read_backends()[Backend.LPAI_ARM].device
    (program,) = (tmp_path / "qnn" / spec.slug).iterdir()
    assert program.stat().st_size == unrun.case.program.pte_bytes


@pytest.mark.nightly
def test_a_program_for_the_gpu_is_lowered_and_kept(pool: Pool, tmp_path: Path) -> None:
    spec = CaseSpec("mlp", Scheme.FP16, "SM8650")
    case = run_case(pool, tmp_path, Backend.GPU, spec).case
    assert case.judgement.status is Status.UNSUPPORTED, f"{case.reason}\n{case.run.log_tail}"
    assert case.run.lacks == "an Adreno GPU"
    assert (case.program.fallback_nodes, case.program.partitions) == (0, 1)
    assert (tmp_path / "qnn" / spec.slug / "program.pte").is_file()


def test_doctor_refuses_backend_for_a_profile_that_does_not_lower_on_the_host(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "android", "--backend", "gpu"]) == ExitCode.USAGE
    assert "--backend gpu cannot be used with profile android" in capfd.readouterr().err
