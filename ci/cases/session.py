"""The main job: provision, check, lower the suite, run it on an emulator, judge, report."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ci.cases.baselines import Baseline, read_baselines
from ci.cases.engine import LowerJob
from ci.cases.memo import seem_known
from ci.cases.pipeline import (
    CaseResult,
    CaseRun,
    RunSetup,
    SessionOptions,
    describe_limits,
    programs_home,
)
from ci.cases.pool import Pool
from ci.cases.runners import PythonRunner, find_runner
from ci.cases.scratch_pool import Workshop
from ci.cases.spec import CaseSpec
from ci.executorch.toolchain import describe_parts
from ci.models.numerics import NUMERICS
from ci.models.suite import expect_s
from ci.report.host import read_host, started_now
from ci.report.schema import Case, Phase, Report, Status, Tool, summarize
from provisioning.artifacts.choice import list_device_runtimes
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.console.threads import run_tasks
from provisioning.doctor.finding import Finding
from provisioning.files import digest_sources
from provisioning.manifest.backends import read_backends

SESSION = "test_emulator"
HOST_LIBRARIES = "lib/x86_64-linux-clang/*.so*"
LOWERING = ("backends/qualcomm", "exir")
PACKAGES = ("torch", "executorch", "torchao", "numpy")


@dataclass
class Phases:
    """Where the time goes."""

    progress: Progress
    rows: list[Phase] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Time a block, in seconds of wall clock."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.rows.append(Phase(name=name, seconds=round(time.monotonic() - began, 3)))

    def wall_s(self) -> float:
        return round(time.monotonic() - self.started, 3)


def run_session(
    specs: Sequence[CaseSpec],
    environment: Environment,
    options: SessionOptions,
    phases: Phases,
    workshop: Workshop,
) -> Report:
    """Run every case; what one does never stops another.

    Raises what finding the runner raises, and StoreError where there is no room.
    """
    started = started_now()
    tools = describe_tools(environment)
    variables = environment.apply(os.environ)
    pool = workshop.open_pool(variables)
    runner = find_runner(options.runner, pool, variables, phases.progress)
    device = read_backends()[options.backend].device
    setup = RunSetup(
        options=options,
        pool=pool,
        runner=runner,
        toolchain=name_toolchain(tools, environment),
        work=workshop.scratch,
        baselines=find_baselines(options, tools),
        device=device if isinstance(runner, PythonRunner) else "",
    )
    return report_runs([CaseRun(spec, setup) for spec in specs], setup, phases, tools, started)


def choose_imports(
    specs: Sequence[CaseSpec],
    options: SessionOptions,
    kind: type[LowerJob],
    running: tuple[str, ...],
    making: tuple[str, ...],
) -> tuple[str, ...]:
    """What the pool imports for all of its forks: what ``making`` programs needs, too, unless all
    seem to be there. Where one is not, the process that makes it imports that."""
    known = options.use_cache and seem_known(specs, kind, programs_home())
    return running if known else (*running, *making)


def find_baselines(options: SessionOptions, tools: tuple[Tool, ...]) -> Mapping[str, Baseline]:
    """What a run is compared with: nothing where it is to be recorded."""
    return {} if options.record else read_baselines(tools, options.backend.value)


def report_runs(
    runs: Sequence[CaseRun],
    setup: RunSetup,
    phases: Phases,
    tools: tuple[Tool, ...],
    started: str,
    *,
    session: str = SESSION,
) -> Report:
    """The report of what is run now. Raises StoreError where there is no room."""
    options, specs = setup.options, [one.spec for one in runs]
    clear_beside(options)
    with phases.measure("cases"):
        results = run_cases(runs, setup.pool, options.jobs, phases.progress)
    return make_report(
        specs, results, phases, options, session=session, started=started, tools=tools
    )


def clear_beside(options: SessionOptions) -> None:
    """Remove what an earlier run left beside its report: it is not this one's."""
    if options.beside:
        shutil.rmtree(options.beside, ignore_errors=True)


def report_unrun(
    specs: Sequence[CaseSpec],
    environment: Environment,
    options: SessionOptions,
    phases: Phases,
    lacks: Finding,
) -> Report:
    """The report of a host on which nothing is lowered for the backend, and why."""
    clear_beside(options)
    library = read_backends()[options.backend].library
    reason = f"{lacks.id}: {lacks.what}\n  why: {lacks.why}\n  fix: {lacks.fix}"
    results = [
        CaseResult(
            Case(
                model=spec.model,
                scheme=spec.scheme.value,
                soc=spec.soc,
                status=Status.UNSUPPORTED,
                reason=reason,
                choices=str(spec.source.choices),
                lacks=library,
                runner=options.runner,
            )
        )
        for spec in specs
    ]
    tools = describe_tools(environment)
    return make_report(
        specs, results, phases, options, session=SESSION, started=started_now(), tools=tools
    )


def make_report(
    specs: Iterable[CaseSpec],
    results: Sequence[CaseResult],
    phases: Phases,
    options: SessionOptions,
    *,
    session: str,
    started: str,
    tools: tuple[Tool, ...],
) -> Report:
    """The report of a session's results, in their order."""
    cases = tuple(result.case for result in results)
    controls = tuple(control for result in results for control in result.controls)
    return Report(
        session=session,
        started=started,
        host=read_host(),
        toolchain=tools,
        thresholds=describe_limits(options.policy, specs),
        cases=cases,
        controls=controls,
        summary=summarize(cases, controls, phases.wall_s(), phases.rows),
        command=options.command,
        backend=options.backend.value,
        runtimes=tuple(Tool(name=name, version=text) for name, text in list_device_runtimes()),
    )


def name_toolchain(tools: tuple[Tool, ...], environment: Environment) -> tuple[str, ...]:
    """What decides about a program besides the model: versions, digests, ExecuTorch's own code, and
    of an installation that is used in place, which has no digest, its libraries by size and time.
    """
    adopted = (artifact.root for artifact in environment.artifacts if artifact.adopted)
    stamps = [
        f"{path.relative_to(root)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for root in adopted
        for path in sorted(root.glob(HOST_LIBRARIES))
    ]
    named = (f"{tool.name} {tool.version} {tool.sha256 or ''}" for tool in tools)
    return (*named, digest_executorch(), *stamps)


def digest_executorch() -> str:
    """SHA-256 over the Python that lowers and its QNN adaptor: PYTHONPATH may put an overlay or a
    checkout before the wheel, whose version says nothing of them."""
    spec = importlib.util.find_spec("executorch")
    roots = map(Path, spec.submodule_search_locations or ()) if spec else ()
    parts = (root / part for root in roots for part in LOWERING)
    return digest_sources(*(part for part in parts if part.is_dir()))


def run_cases(
    runs: Sequence[CaseRun], pool: Pool, jobs: int, progress: Progress
) -> list[CaseResult]:
    """Run ``jobs`` cases at a time; results come in the order of ``runs``."""
    with progress.bar("cases", len(runs), "") as bar:

        def show(ended: tuple[CaseSpec, CaseResult]) -> None:
            _, result = ended
            bar.advance(1)
            progress.step(describe_progress(int(bar.done), len(runs), result))

        def abort() -> None:
            progress.step("ending what runs")
            pool.close()

        waiting = WaitingCases(runs)

        def run() -> tuple[CaseSpec, CaseResult]:
            one = waiting.take()
            spec = one.spec
            with bar.busy(f"{Path(spec.model).name} {spec.scheme.value} {spec.soc}"):
                return spec, one.run()

        done = dict(run_tasks([run] * len(runs), jobs, on_done=show, abort=abort))
    return [done[one.spec] for one in runs]


class WaitingCases:
    """Cases that no thread has taken. Each takes those of one model after the other, for its worker
    keeps what schemes share; of several models the longest, lest one core ends alone."""

    def __init__(self, runs: Sequence[CaseRun]) -> None:
        self._runs = sorted(runs, key=lambda one: expect_lower_s(one.spec), reverse=True)
        self._models: dict[int, str] = {}  # that each thread is at
        self._lock = threading.Lock()

    def take(self) -> CaseRun:
        """One of the model that this thread is at, else of one that no other is at."""
        with self._lock:
            own = self._models.pop(threading.get_ident(), None)
            others = set(self._models.values())
            models = [one.spec.model for one in self._runs]
            places = range(len(models))
            place = min(places, key=lambda n: (models[n] != own, models[n] in others))
            self._models[threading.get_ident()] = models[place]
            return self._runs.pop(place)


def expect_lower_s(spec: CaseSpec) -> float:
    """How long a case is likely to take."""
    return expect_s(spec.model, spec.scheme.value)


def describe_progress(done: int, total: int, result: CaseResult) -> str:
    """One line: which case ended, how, and why it failed."""
    case = result.case
    figure = f"{case.sqnr_db:.1f} dB" if case.sqnr_db is not None else ""
    notes = ["cached" if case.cached else "", result.remark]
    if case.status is not Status.PASSED:
        notes.append(case.reason.splitlines()[0] if case.reason else "")
    tail = "  ".join(note for note in notes if note)
    name = f"{Path(case.model).name} {case.scheme} {case.soc}"
    return f"  [{done}/{total}] {name:<34} {case.status.value:<11} {figure:>8}  {tail}".rstrip()


def describe_tools(
    environment: Environment, distributions: Sequence[str] = PACKAGES
) -> tuple[Tool, ...]:
    """Artifacts with the digest of their source, and the packages that take part."""
    artifacts = [
        Tool(name=artifact.name, version=artifact.version, sha256=artifact.origin.sha256 or None)
        for artifact in environment.artifacts
    ]
    packages = [Tool(name=name, version=importlib.metadata.version(name)) for name in distributions]
    parts = describe_parts(environment) if "executorch" in distributions else ()
    return (*artifacts, *packages, *parts, Tool(name="numerics", version=NUMERICS))
