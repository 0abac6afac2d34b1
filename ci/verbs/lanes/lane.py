"""A lane is one way to judge models: what lowers them, what runs them, and by which limits they are
judged. run_lane is the only way from a verb to a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import structs

from ci.cases.engine import Engine, Runner
from ci.cases.facts import Options
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import Pool, ScratchPool
from ci.cases.request import Request
from ci.cases.session import Phases, run_session
from ci.cases.spec import CaseSpec
from ci.graphs.candidates import Candidate
from ci.models.schemes import SchemeSet
from ci.report.claim import claim_reports
from ci.report.schema import CaseName, Report, ShardMark, Tool
from ci.report.text import count_cases
from ci.verbs import steps
from provisioning.artifacts.choice import QnnChoice
from provisioning.artifacts.environment import Environment
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.doctor.registry import Finding
from provisioning.errors import DefectError
from provisioning.manifest.targets import Backend


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What lowers and runs the cases of a lane, in a provisioned environment. ``parts`` are the
    toolchain in the report. ``device`` and ``emulator`` are as in Setup."""

    engine: Engine
    runner: Runner
    parts: tuple[Tool, ...] = ()
    device: str = ""
    emulator: Runner | None = None


def open_nothing(environment: Environment, pool: Pool) -> Tools:
    """Raise DefectError: a plan with ``run`` has neither an engine nor a runner."""
    del environment, pool
    raise DefectError("the tools of a plan without tools were opened")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a call of a lane runs, known before anything is fetched: the cases, the profile to
    provision, and either how the tools that do the cases are opened, or another way to run."""

    specs: Sequence[CaseSpec]
    profile: str
    imports: Sequence[str]  # the modules that workers import before they fork
    choice: QnnChoice
    open: Callable[[Environment, Pool], Tools] = open_nothing
    make_run: Callable[[CaseSpec, Setup], CaseRun] = CaseRun
    # Runs what lowers, runs and names its cases itself, such as pytest; None if ``open`` does.
    run: Callable[[Options, Environment, ScratchPool, Phases], Report] | None = None
    options: dict[str, Any] = field(default_factory=dict)  # fields of Options that the lane sets
    work: str = "lower, run and judge"  # the third of the four steps, for the terminal
    backend: Backend = Backend.HTP
    tolerated: Collection[str] = ()  # findings of the doctor that are only noted
    # Returns the report for a host that lacks a library; None if such a host is refused.
    refuse: Callable[[Options, Phases, Environment, Finding], Report] | None = None
    shard: ShardMark | None = None
    remarks: tuple[str, ...] = ()  # at the end of the report
    # The cases that mend can judge, None for all; and whether they run on a device.
    mendable: Collection[CaseName] | None = None
    on_device: bool = False
    # Changes what the verb returns after its report is written.
    end: Callable[[Outcome], Outcome] = lambda outcome: outcome


AnyRequest = TypeVar("AnyRequest", bound=Request)


def list_no_nodes(spec: CaseSpec) -> Sequence[Candidate]:
    """Return nothing: a lane without nodes to choose. No lambda, because it is pickled."""
    del spec
    return ()


@dataclass(frozen=True, kw_only=True)
class Lane(Generic[AnyRequest]):
    """A row: one way to judge models. Another lane is a package with an engine and a runner, a
    module with its row, and a verb that makes its request."""

    session: str  # names its reports
    policy: str  # the name of this project's own policy, in manifests/policies
    schemes: SchemeSet
    request: type[AnyRequest]  # Request with the lane's own options
    # Returns the packages that cases import, and the dependency group that installs them.
    packages: Callable[[Sequence[CaseSpec]], tuple[Sequence[str], str]]
    profile: Callable[[QnnChoice], str]  # of manifests/profiles.toml
    # Returns the requested cases. Raises UsageError for what no run can use.
    select: Callable[[AnyRequest, EmulatorPolicy, SchemeSet, Progress], list[CaseSpec]]
    # Reads what the cases are made of, as far as nothing is fetched for it, and returns the plan.
    # In its context, what cases run on is leased.
    prepare: Callable[
        [AnyRequest, EmulatorPolicy, list[CaseSpec], Progress], AbstractContextManager[Plan]
    ]
    # Options of verbs for several lanes that have no effect in this one
    without: Collection[str] = ()
    # Returns the nodes of a model, which --list shows.
    list_nodes: Callable[[CaseSpec], Sequence[Candidate]] = list_no_nodes
    # Returns the cases with what is read in their files. Raises UsageError for a scheme that a file
    # cannot have.
    fit: Callable[[AnyRequest, EmulatorPolicy, list[CaseSpec], Progress], list[CaseSpec]] | None = (
        None
    )
    # Returns the policy and the schemes for the backend of a request.
    limit: Callable[[AnyRequest, EmulatorPolicy, SchemeSet], tuple[EmulatorPolicy, SchemeSet]] = (
        lambda _, policy, schemes: (policy, schemes)
    )
    # Takes a report, the plan and the command that mends its cases; names that command where it
    # helps.
    suggest: Callable[[Report, Plan, str], Report] = lambda report, _plan, _command: report
    brief: bool = False  # whether the terminal shows only what failed of hundreds of cases

    def read_policy(
        self, request: AnyRequest, progress: Progress
    ) -> tuple[EmulatorPolicy, SchemeSet]:
        """Return the policy of a request and the schemes that it has limits for."""
        policy = steps.read_limits(request, self.policy, progress)
        return self.limit(request, policy, self.schemes)

    def require_packages(self, specs: Sequence[CaseSpec]) -> None:
        """Raise UnfitError for a package that the cases need and this Python lacks."""
        steps.require_packages(*self.packages(specs))


def run_lane(lane: Lane[AnyRequest], request: AnyRequest, progress: Progress) -> Outcome:
    """Run and judge the requested cases of a lane, and write the report; with --list, list the
    choices. Raises UsageError for a request that cannot be met and UnfitError for a missing
    package, both before anything is fetched, and the same errors as take_steps and run_session."""
    policy, schemes = lane.read_policy(request, progress)
    if request.lists:
        return list_asked(lane, request, policy, schemes, progress)
    specs = lane.select(request, policy, schemes, progress)
    claim_reports(request.directory)
    phases = Phases(progress)
    with lane.prepare(request, policy, specs, progress) as plan:
        report = run_plan(plan, request, policy, phases)
        report = lane.suggest(report, plan, request.mending)
    runtime = lane.schemes.runtime
    report = structs.replace(
        report,
        cases=tuple(structs.replace(case, runtime=runtime) for case in report.cases),
        shard=plan.shard,
        remarks=(*report.remarks, *plan.remarks),
    )
    outcome = steps.publish(report, request, policy.models, progress, brief=lane.brief)
    return plan.end(outcome)


def list_asked(
    lane: Lane[AnyRequest],
    request: AnyRequest,
    policy: EmulatorPolicy,
    schemes: SchemeSet,
    progress: Progress,
) -> Outcome:
    """Return what --list prints. Raises UsageError for a scheme that no requested file has, as a
    run does."""
    if lane.fit and request.models and request.schemes:
        lane.fit(request, policy, lane.select(request, policy, schemes, progress), progress)
    return steps.list_asked(request, policy, schemes, lane.list_nodes)


def run_plan(plan: Plan, request: Request, policy: EmulatorPolicy, phases: Phases) -> Report:
    """Provision, check the environment, and run the cases of a plan."""
    options = steps.read_options(request, policy, plan.specs, backend=plan.backend, **plan.options)

    def run_cases(environment: Environment, scratch: ScratchPool) -> Report:
        if plan.run:
            return plan.run(options, environment, scratch, phases)
        setup = open_setup(plan, options, environment, scratch)
        return run_session(setup, phases, plan.make_run)

    if plan.run:
        work = f"{plan.work}, {request.jobs} at a time"
    else:
        work = f"{plan.work} {count_cases(len(plan.specs), request.jobs)}"
    return steps.take_steps(
        plan.profile,
        work,
        run_cases,
        phases,
        offline=request.offline,
        imports=plan.imports,
        choice=plan.choice,
        backend=plan.backend,
        tolerated=plan.tolerated,
        refuse=partial(plan.refuse, options, phases) if plan.refuse else None,
    )


def open_setup(
    plan: Plan, options: Options, environment: Environment, scratch: ScratchPool
) -> Setup:
    """Start the workers of a plan, open its tools, and return what its cases share."""
    pool = scratch.open(environment.apply(os.environ))
    tools = plan.open(environment, pool)
    return Setup(
        options=options,
        engine=tools.engine,
        runner=tools.runner,
        pool=pool,
        work=scratch.scratch,
        parts=tools.parts,
        device=tools.device,
        emulator=tools.emulator,
    )
