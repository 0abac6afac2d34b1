"""``audit``: list which operators of a model QNN supports, without lowering the model."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ci.audit.operators import Audit, Audited, Found, judge_case, make_annotations, make_document
from ci.audit.operators_files import ask_litert, ask_onnxruntime
from ci.cases.cache import as_compiled
from ci.cases.engine import Engine, Staging
from ci.cases.facts import Options
from ci.cases.forked import run_forked
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import Pool
from ci.cases.request import Request
from ci.cases.session import Phases, check_functions, started_now
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.executorch.toolchain import LIBRARY, describe_toolchain
from ci.litert.engine import LitertEngine
from ci.models.rounding import find_version
from ci.onnx.engine import OnnxEngine
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.report.html import PAGE, write_page
from ci.report.publishing import show_in_ci
from ci.report.text import count_cases, name_case, name_models
from ci.verbs import steps
from ci.verbs.built import require_executorch
from ci.verbs.lanes.emulator import EmulatorRequest
from ci.verbs.lanes.lane import Lane, list_asked
from ci.verbs.localise import make_lane_request
from ci.verbs.options import PARALLEL, RUN, SELECTION, add_options
from ci.verbs.requests import check_arguments
from ci.verbs.trials import open_setup
from provisioning.console.command import Outcome
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import DefectError, ExitCode
from provisioning.files import write_json

SESSION = "audit"


@dataclass(frozen=True)
class AuditJob:
    """A job that quantizes and partitions a model as test-emulator does, but does not compile it.
    ``work`` is a scratch directory. All output is written to ``log``."""

    engine: ExecutorchEngine
    spec: CaseSpec
    work: Path
    log: Path

    def __call__(self) -> tuple[Found, float]:
        """Return the result and the time in seconds. Raises UsageError for an invalid model or
        data, and FailedError if the model fails or the partitioner crashes."""
        began = time.monotonic()
        self.engine.preload(self.spec)
        self.engine.warm_up(self.spec)
        # In a fork, because the partitioner loads QNN, and a crash must not take the worker with
        # it.
        partitioning = run_forked(self.partition, "partitioning")
        return partitioning, time.monotonic() - began

    def partition(self) -> Found:
        """Return which parts of the model QNN accepts. This must run in a fork."""
        from ci.audit.operators_partitions import partition_model
        from ci.models.model import load_digested

        model, _ = load_digested(self.spec.reference, self.spec.source)
        staging = Staging(self.work, self.log, self.work)
        return partition_model(model, self.spec, staging)


@dataclass(frozen=True)
class FileAuditJob:
    """A job that asks ONNX Runtime's provider or LiteRT's plugin about a model. ``work`` is a
    scratch directory. All output is written to ``log``."""

    engine: Engine
    spec: CaseSpec
    work: Path
    log: Path

    def __call__(self) -> tuple[Found, float]:
        """Return the result and the time in seconds."""
        began = time.monotonic()
        if isinstance(self.engine, OnnxEngine):
            answers = ask_onnxruntime(self.engine, self.spec, self.work, self.log)
        elif isinstance(self.engine, LitertEngine):
            answers = ask_litert(self.engine, self.spec, self.work, self.log)
        else:
            raise DefectError(f"{type(self.engine).__name__} cannot be asked about operators")
        return answers, time.monotonic() - began


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gaps = {"--reports": f"{SESSION}/"}
    add_options(parser, *SELECTION, "--runtime", "--shape", *RUN, *PARALLEL, gaps=gaps)
    add_options(parser, "--executorch", "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Audit the requested cases, or list the choices. The exit code is 1 if a case fails. Raises
    UsageError, and UnfitError for a missing package or an unsuitable environment."""
    check_arguments(args, SESSION)
    models = (args.model, args.shape, args.policy)
    lane, request = make_lane_request(args, SESSION, *models, runtime=args.runtime)
    policy, schemes = lane.read_policy(request, progress)
    if request.lists:
        return list_asked(lane, request, policy, schemes, progress)
    is_executorch = isinstance(request, EmulatorRequest)
    if is_executorch:
        specs = steps.select_asked(request, policy, schemes)
    else:
        specs = lane.select(request, policy, schemes, progress)
    check_session(request.directory, ("audit.json", PAGE))
    claim_reports(request.directory)
    if is_executorch:
        lane.require_packages(specs)
        audit = run(specs, policy, request, progress)
    else:
        audit = run_files(lane, specs, policy, request, progress)
    return publish(audit, request.directory, progress)


def run(
    specs: Sequence[CaseSpec], policy: EmulatorPolicy, request: Request, progress: Progress
) -> Audit:
    """Provision, check the environment, then ask ExecuTorch's partitioner about each case."""
    require_executorch(request.executorch)
    chosen, started = request.choice, started_now()
    with steps.enter_environment(
        chosen.profile,
        Phases(progress),
        offline=request.offline,
        imports=ExecutorchEngine.imports,
        choice=chosen,
    ) as (environment, scratch, _):
        progress.step(f"3/4 audit {count_cases(len(specs), request.jobs)}")
        pool = scratch.open(environment.apply(os.environ))
        check_functions(specs, pool, scratch.scratch / "functions.log", request.timeout_s)
        parts = tuple(describe_toolchain(environment))
        qnn = next((part.version for part in parts if part.name == LIBRARY), "")

        def audit(number: int, spec: CaseSpec) -> Audited:
            place = scratch.scratch / f"audit-{number}"
            place.mkdir()
            job = AuditJob(ExecutorchEngine(()), spec, place, place / "log")
            memory = policy.memory_of(spec.model)
            ended = pool.run(job, job.log, request.timeout_s, max_bytes=memory)
            # A model that fails before it is partitioned is not blamed on QNN.
            early = Found(failure=as_compiled(ended).refused) if ended.failure else None
            result, seconds = (early, 0.0) if early else ended.result
            return judge_case(spec, policy, result, seconds, qnn)

        cases = audit_all(audit, specs, request, pool, progress)
    progress.step("4/4 report")
    return Audit(cases=cases, toolchain=parts, started=started, command=request.command)


def run_files(
    lane: Lane[Any],
    specs: list[CaseSpec],
    policy: EmulatorPolicy,
    request: Request,
    progress: Progress,
) -> Audit:
    """Provision, check the environment, then ask the provider or the plugin of a runtime about each
    case."""
    started = started_now()
    with lane.prepare(request, policy, specs, progress) as plan:
        options = Options(policy=policy, specs=plan.specs, timeout_s=request.timeout_s)
        with open_setup(plan, options, progress, offline=request.offline) as setup:
            progress.step(f"3/4 audit {count_cases(len(plan.specs), request.jobs)}")

            def audit(number: int, spec: CaseSpec) -> Audited:
                place = setup.work / f"audit-{number}"
                place.mkdir()
                job = FileAuditJob(setup.engine, spec, place, place / "log")
                memory = policy.memory_of(spec.model)
                ended = setup.pool.run(job, job.log, request.timeout_s, max_bytes=memory)
                # A model that fails before the runtime is asked is not blamed on QNN.
                early = Found(failure=as_compiled(ended).refused) if ended.failure else None
                result, seconds = (early, 0.0) if early else ended.result
                return judge_case(spec, policy, result, seconds, find_qnn(setup.engine, spec))

            cases = audit_all(audit, plan.specs, request, setup.pool, progress)
            parts = setup.parts
    progress.step("4/4 report")
    return Audit(cases=cases, toolchain=parts, started=started, command=request.command)


def find_qnn(engine: Engine, spec: CaseSpec) -> str:
    """Return the version of QNN that an engine uses for a case, "" if it is not known."""
    if isinstance(engine, OnnxEngine):
        return find_version(Path(engine.options(spec)["backend_path"]))
    return find_version(engine.library) if isinstance(engine, LitertEngine) else ""


def audit_all(
    audit: Callable[[int, CaseSpec], Audited],
    specs: Sequence[CaseSpec],
    request: Request,
    pool: Pool,
    progress: Progress,
) -> tuple[Audited, ...]:
    """Audit cases, several at a time, and show each of them when it is done."""
    names = name_models(spec.model for spec in specs)

    def show(case: Audited) -> None:
        line = f"  {name_case(case, names):<34} {case.status.value:<11} {case.headline}"
        progress.step(line.rstrip())

    tasks = [partial(audit, number, spec) for number, spec in enumerate(specs)]
    return tuple(run_tasks(tasks, request.jobs, on_done=show, abort=pool.close))


def publish(audit: Audit, directory: Path, progress: Progress) -> Outcome:
    """Write audit.json and index.html, and show the audit in the CI system's summary of the run."""
    data, document = msgspec.to_builtins(audit), make_document(audit)
    write_json(directory / "audit.json", data)
    write_page(document, directory, progress)
    show_in_ci(document, make_annotations(audit))
    code = ExitCode.FAILED if audit.failed else ExitCode.OK
    return Outcome(show_document(document), data, code, exact=True)
