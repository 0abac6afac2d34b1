"""Environments in which cases or small graphs are tried, with one front end: ExecuTorch, ONNX
Runtime or LiteRT."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ci.cases.facts import Options
from ci.cases.pipeline import Setup
from ci.cases.pool import Pool
from ci.cases.session import Phases, check_functions
from ci.diagnosis.experiments import RemedyChoice
from ci.executorch.engine import PACKAGES
from ci.faults.expected import Rerun, rerun
from ci.faults.known import Fault, Frontend
from ci.faults.trial import Trial, TrialJob
from ci.mend.table import read_rewrites
from ci.mend.trials import mend_file, mend_module
from ci.models.schemes import EXECUTORCH, LITERT, ONNX, Scheme
from ci.onnx.options import HTP, choose_options, find_library
from ci.onnx.toolchain import RUNTIMES, choose_profile, list_packages, require_python
from ci.verbs.lanes import lane, litert
from ci.verbs.lanes.lane import Plan
from ci.verbs.options import LITERT_TORCH, LOWERING, ONNX_TORCH
from ci.verbs.steps import enter_environment, require_packages
from provisioning.artifacts.choice import WHEEL, QnnChoice
from provisioning.console.progress import Progress
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import UsageError

IMPORTS = {
    "onnx": ("ci.faults.onnx_graphs",),
    "executorch": ("ci.executorch.runtime", "ci.faults.executorch_runner"),
    "litert": ("ci.faults.litert_runner",),
}
# What each runtime is called in graphs' results
FRONTENDS: Mapping[str, Frontend] = {
    "executorch": "executorch",
    "onnxruntime": "onnx",
    "litert": "litert",
}
LANES = {"onnx": ONNX, "executorch": EXECUTORCH, "litert": LITERT}
USUAL = {
    "onnx": ("fp16", "u8", "u16a8w"),
    "executorch": ("fp16", "8a8w", "16a8w"),
    "litert": ("fp16",),
}


class Bench:
    """Tries graphs with one front end in a provisioned environment. ``qnn`` is the QNN version in
    that environment."""

    def __init__(self, frontend: Frontend, scratch: Path, workers: Pool, root: Path) -> None:
        self.frontend, self.scratch, self.workers, self.root = frontend, scratch, workers, root
        self.qnn = ""

    def make(self, scheme: Scheme, soc: str) -> Trial:
        """Return a Trial, which runs graphs in one scheme."""
        options: Mapping[str, str] = {}
        if self.frontend != "executorch":
            options = choose_options(scheme, soc, {})
            options = {"backend_path": str(find_library(self.root, {})), **options}
        directory = self.scratch / f"{scheme}-{soc}"
        directory.mkdir(exist_ok=True)
        edit = mend_file if self.frontend == "onnx" else mend_module
        job = TrialJob((), self.frontend, scheme, soc, options, edit)
        return Trial(self.workers, job, directory)

    def list_remedies(self, scheme: Scheme) -> list[RemedyChoice]:
        """Return the rewrites that are known to help in a scheme."""
        return [
            RemedyChoice(rewrite.name, rewrite.title, rewrite.reason, rewrite.cures)
            for rewrite in read_rewrites("onnx" if self.frontend == "onnx" else "torch")
            if rewrite.helps_in(scheme)
        ]

    def list_rewrites(self, scheme: str, fault: str) -> list[str]:
        """Return the rewrites that are known to help in a scheme, and to cure a fault."""
        remedies = self.list_remedies(Scheme(scheme))
        return [remedy.name for remedy in remedies if fault in remedy.cures]

    def rerun(self, faults: Sequence[Fault], soc: str, progress: Progress) -> list[Rerun]:
        """Run the graphs of known faults again, and show the result of each."""
        runs = []
        for run in rerun(
            faults,
            self.frontend,
            self.qnn,
            lambda scheme, items: self.make(Scheme(scheme), soc).run(items, 1),
            lambda fault, scheme: self.list_rewrites(scheme, fault.name),
        ):
            progress.step(f"{self.frontend} {run.scheme}: {run.title} is {run.end}")
            runs.append(run)
        return runs


@contextmanager
def open_bench(
    frontend: Frontend,
    choice: QnnChoice,
    progress: Progress,
    *,
    offline: bool = False,
    packages: tuple[Path, ...] = (),
) -> Iterator[Bench]:
    """Provision, check the environment, and start workers that try graphs. ``packages`` are
    directories that are searched before the installed packages. Raises UnfitError for a missing
    package, and the same errors as ``enter_environment``."""
    if frontend == "litert":
        require_python(platform.python_version(), LITERT.title)
        require_packages((*litert.PACKAGES, *litert.CONVERTING_PACKAGES), LITERT_TORCH)
        choice, profile = QnnChoice(), litert.PROFILE
    elif frontend == "onnx":
        require_packages(list_packages(exports=True), ONNX_TORCH)
        # An adaptor is ExecuTorch's: ONNX Runtime calls QNN itself.
        choice = QnnChoice(choice.sdk, WHEEL)
        profile = choose_profile(choice)
    else:
        require_packages(PACKAGES, LOWERING)
        profile = choice.profile
    with enter_environment(
        profile, Phases(progress), offline=offline, imports=IMPORTS[frontend], choice=choice
    ) as (environment, scratch, _):
        search_path = os.pathsep.join(
            filter(None, [*map(str, packages), os.environ.get("PYTHONPATH", "")])
        )
        variables = environment.apply(
            {**os.environ, "PYTHONPATH": search_path} if search_path else os.environ
        )
        roots = [artifact.root for artifact in environment.artifacts if artifact.name in RUNTIMES]
        bench = Bench(frontend, scratch.scratch, scratch.open(variables), roots[0])
        build = find_qnn_build(roots[0] / HTP)
        bench.qnn = (build.version if build else None) or "unknown"
        yield bench


def choose_schemes(frontend: Frontend, names: list[str]) -> list[Scheme]:
    """Return the requested schemes, or the front end's default ones. Raises UsageError for a scheme
    that it does not support."""
    schemes = {scheme.value: scheme for scheme in LANES[frontend].schemes}
    schemes.pop(Scheme.ASIS.value, None)  # it is for files, not for graphs to be quantized
    if wrong := [name for name in names if name not in schemes]:
        raise UsageError(
            f"--scheme {wrong[0]} is not supported by {frontend}",
            fix=f"pass one of {', '.join(schemes)}",
        )
    return [schemes[name] for name in dict.fromkeys(names) or USUAL[frontend]]


@contextmanager
def open_setup(
    plan: Plan, options: Options, progress: Progress, *, offline: bool
) -> Iterator[Setup]:
    """Provision, check the environment and the users' functions, and start workers. Yield what the
    cases of a plan share. Raises the same errors as ``enter_environment`` and
    ``check_functions``."""
    with enter_environment(
        plan.profile, Phases(progress), offline=offline, imports=plan.imports, choice=plan.choice
    ) as (environment, scratch, _):
        setup = lane.open_setup(plan, options, environment, scratch)
        functions_log = setup.work / "functions.log"
        check_functions(options.specs, setup.pool, functions_log, options.timeout_s)
        yield setup
