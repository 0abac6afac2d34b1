"""The lane's cases: as those of test_emulator, but compiled and run by ONNX Runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ci.cases.artifact import Lowered
from ci.cases.pipeline import CaseResult, CaseRun, RunSetup, SessionOptions
from ci.cases.pool import Ended
from ci.cases.qnn_files import PROFILE_CSV, read_accelerator
from ci.cases.run_job import RunJob
from ci.cases.runners import PythonRunner
from ci.cases.scratch_pool import Workshop
from ci.cases.session import Phases, describe_tools, find_baselines, report_runs
from ci.cases.spec import CaseSpec
from ci.judging.gate import References
from ci.onnx.fallback import QNN
from ci.onnx.job import CONTEXT, PROGRAM, CompileJob, SessionJob, SessionResult
from ci.onnx.target import SAVER_LIBRARY, make_options, profile_options
from ci.report.host import started_now
from ci.report.schema import Report
from provisioning.artifacts.environment import Environment

SESSION = "test_onnx"
RUNNING, COMPILER = ("ci.onnx.run",), "ci.onnx.engine"
PACKAGES = ("onnxruntime", "onnxruntime-qnn", "onnx", "onnxscript", "torch", "numpy")
RUNTIME = "qnn-runtime"


@dataclass(frozen=True, kw_only=True)
class LaneOptions(SessionOptions):
    """``given`` are provider options of the user's; ``embed`` says that the context binary lies in
    the ONNX file. ``saver`` and ``profile``, a level, ask QNN for more."""

    given: Mapping[str, str] = field(default_factory=dict)
    embed: bool = True
    saver: bool = False
    profile: str = ""


@dataclass(frozen=True, kw_only=True)
class OnnxSetup(RunSetup):
    """``sdk`` is the root of QNN's libraries."""

    options: LaneOptions
    sdk: Path


class OnnxRun(CaseRun):
    """Compiles, then runs from the context binary in a process of its own."""

    setup: OnnxSetup
    options: LaneOptions
    lowers_by = "compile"

    def make_job(self, log: Path) -> CompileJob:
        saver = str(self.setup.sdk / SAVER_LIBRARY) if self.options.saver else ""
        return CompileJob(
            **msgspec.structs.asdict(super().make_job(log)),
            options=self.provider_options(),
            embed=self.options.embed,
            saver=saver,
        )

    def provider_options(self) -> dict[str, str]:
        return make_options(self.spec.scheme, self.spec.soc, self.setup.sdk, self.options.given)

    def find_binary(self, artifact: Path) -> Path:
        beside = sorted((artifact / PROGRAM).glob("*.bin"))
        return beside[0] if beside else artifact / PROGRAM / CONTEXT

    def copy_program(self, artifact: Path, given: Path) -> Path:
        return Path(shutil.copytree(artifact / PROGRAM, given / PROGRAM)) / CONTEXT

    def give(self, artifact: Path, lowered: Lowered) -> SessionJob:
        job = super().give(artifact, lowered)
        return SessionJob(
            **msgspec.structs.asdict(job),
            soc=self.spec.soc,
            tensors=lowered.inputs,
            options=self.provider_options()
            | profile_options(self.options.profile, self.directory / PROFILE_CSV),
            strict=not lowered.delegation.fallback_ops,
        )

    def execute(self, job: RunJob, *, fresh: bool = False) -> Ended:
        """Run the context in a fork; no process of the pool itself ever loads QNN."""
        log = self.directory / "run.log"
        ended = self.setup.pool.run("session", job, log, self.options.timeout_s, fresh=fresh)
        return replace(ended, used=False)

    def judge_run(
        self, references: References, lowered: Lowered, run: Ended, remark: str
    ) -> CaseResult:
        self.ran: SessionResult | None = run.result
        if self.ran and self.ran.restarts:
            many = "1 restart" if self.ran.restarts == 1 else f"{self.ran.restarts} restarts"
            remark = f"the session was made anew after {many}"
        if (profile := self.directory / PROFILE_CSV).is_file():
            self.leave(profile)
            parts = lowered.delegation.partitions
            self.figures |= read_accelerator(profile, lowered.sets, parts)
        return super().judge_run(references, lowered, run, remark)

    def delegation_faults(self, lowered: Lowered) -> list[str]:
        """Also what the session's own profile says against the provider."""
        told = list(find_lies(self.ran, lowered)) if self.ran else []
        return [*told, *super().delegation_faults(lowered)]


def find_lies(ran: SessionResult, lowered: Lowered) -> Iterator[str]:
    """How the nodes that were executed differ from those that were compiled."""
    if not ran.providers.get(QNN):
        yield f"QNN executed nothing, by the session's own profile: {describe_providers(ran)}"
        return
    others = sum(len(names) for name, names in ran.providers.items() if name != QNN)
    if others > lowered.delegation.fallback_nodes:
        yield (
            f"{others} nodes ran elsewhere, {lowered.delegation.fallback_nodes} of which were"
            f" compiled so: {describe_providers(ran)}"
        )


def describe_providers(ran: SessionResult) -> str:
    """``CPUExecutionProvider ran node_1, node_2``."""
    told = (
        f"{name} ran {', '.join(nodes[:4])}{' ...' if len(nodes) > 4 else ''}"
        for name, nodes in ran.providers.items()
        if name != QNN
    )
    return "; ".join(told) or "no node is in it"


def run_lane(
    specs: Sequence[CaseSpec],
    environment: Environment,
    options: LaneOptions,
    phases: Phases,
    workshop: Workshop,
) -> Report:
    """Run every case; what one does never stops another.

    Raises StoreError where there is no room.
    """
    started = started_now()
    tools = describe_tools(environment, PACKAGES)
    pool = workshop.open_pool(environment.apply(os.environ))
    (sdk,) = (found.root for found in environment.artifacts if found.name == RUNTIME)
    setup = OnnxSetup(
        options=options,
        pool=pool,
        runner=PythonRunner(pool, "onnxruntime"),
        toolchain=tuple(f"{tool.name} {tool.version} {tool.sha256 or ''}" for tool in tools),
        work=workshop.scratch,
        baselines=find_baselines(options, tools),
        sdk=sdk,
    )
    runs = [OnnxRun(spec, setup) for spec in specs]
    return report_runs(runs, setup, phases, tools, started, session=SESSION)
