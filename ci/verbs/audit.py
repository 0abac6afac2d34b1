"""``audit``: list which operators of a model QNN supports, without lowering the model."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ci.audit.operators import Audit, Audited, Found, judge_case, make_annotations, make_document
from ci.cases.cache import as_compiled
from ci.cases.engine import Staging
from ci.cases.forked import run_forked
from ci.cases.policy import EMULATOR, EmulatorPolicy
from ci.cases.session import Phases, check_functions, started_now
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.executorch.toolchain import LIBRARY, describe_toolchain
from ci.models.schemes import EXECUTORCH
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.report.html import PAGE, write_page
from ci.report.publishing import show_in_ci
from ci.report.text import count, name_case, name_models
from ci.verbs import steps
from ci.verbs.built import require_executorch
from ci.verbs.emulate import find_candidates
from ci.verbs.options import PARALLEL, RUN, SELECTION, add_options, repeat_command
from provisioning.artifacts import choice
from provisioning.console.command import Outcome
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from provisioning.files import write_json
from provisioning.manifest.targets import Backend

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gaps = {"--model": "or file.py:factory", "--reports": f"{SESSION}/"}
    add_options(parser, *SELECTION, *RUN, *PARALLEL, gaps=gaps)
    add_options(parser, "--executorch", "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Audit the requested cases, or list the choices. The exit code is 1 if a case fails. Raises
    UsageError, and UnfitError for a missing package or an unsuitable environment."""
    steps.check_arguments(args, SESSION)
    policy = steps.read_limits(args, EMULATOR, progress).for_backend(Backend.HTP)
    if args.list:
        return steps.list_asked(args, policy, EXECUTORCH, find_candidates)
    specs = steps.select_asked(args, policy, EXECUTORCH)
    check_session(args.reports / SESSION, ("audit.json", PAGE))
    claim_reports(args.reports / SESSION)
    steps.require_packages(("torch", "executorch"), "lowering")
    audit = run(specs, policy, args, progress)
    return publish(audit, args.reports / SESSION, progress)


def run(
    specs: Sequence[CaseSpec], policy: EmulatorPolicy, args: argparse.Namespace, progress: Progress
) -> Audit:
    """Provision, check the environment, then ask ExecuTorch's partitioner about each case."""
    require_executorch(args.executorch)
    chosen, started = choice.read_choice(args.sdk, args.adaptor), started_now()
    with steps.enter_environment(
        chosen.profile,
        Phases(progress),
        offline=args.offline,
        imports=ExecutorchEngine.imports,
        choice=chosen,
    ) as (environment, scratch, _):
        progress.step(f"3/4 audit {count(len(specs), 'case')}, {args.jobs} at a time")
        pool = scratch.open(environment.apply(os.environ))
        check_functions(specs, pool, scratch.scratch / "functions.log", args.timeout_s)
        parts = tuple(describe_toolchain(environment))
        qnn = next((part.version for part in parts if part.name == LIBRARY), "")

        def audit(number: int, spec: CaseSpec) -> Audited:
            place = scratch.scratch / f"audit-{number}"
            place.mkdir()
            job = AuditJob(ExecutorchEngine(()), spec, place, place / "log")
            memory = policy.memory_of(spec.model)
            ended = pool.run(job, job.log, args.timeout_s, max_bytes=memory)
            # A model that fails before it is partitioned is not blamed on QNN.
            early = Found(failure=as_compiled(ended).refused) if ended.failure else None
            result, seconds = (early, 0.0) if early else ended.result
            return judge_case(spec, policy, result, seconds, qnn)

        names = name_models(spec.model for spec in specs)

        def show(case: Audited) -> None:
            line = f"  {name_case(case, names):<34} {case.status.value:<11} {case.headline}"
            progress.step(line.rstrip())

        tasks = [partial(audit, number, spec) for number, spec in enumerate(specs)]
        cases = tuple(run_tasks(tasks, args.jobs, on_done=show, abort=pool.close))
    progress.step("4/4 report")
    # What a variable chose becomes an option, so that the command in the report repeats the run.
    vars(args).update(chosen.options)
    command = repeat_command(args)
    return Audit(cases=cases, toolchain=parts, started=started, command=command)


def publish(audit: Audit, directory: Path, progress: Progress) -> Outcome:
    """Write audit.json and index.html, and show the audit in the CI system's summary of the run."""
    data, document = msgspec.to_builtins(audit), make_document(audit)
    write_json(directory / "audit.json", data)
    write_page(document, directory, progress)
    show_in_ci(document, make_annotations(audit))
    code = ExitCode.FAILED if audit.failed else ExitCode.OK
    return Outcome(show_document(document), data, code, exact=True)
