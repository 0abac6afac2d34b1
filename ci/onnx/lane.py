"""The lane as a session: the cases, their pool and cache, and the report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ci.emulator.baselines import read_baselines
from ci.emulator.pool import Pool
from ci.emulator.runner import PythonRunner
from ci.emulator.session import (
    Phases,
    SessionOptions,
    clear_beside,
    describe_tools,
    make_report,
    run_cases,
)
from ci.emulator.workshop import Workshop
from ci.lowering.cases import CaseSpec
from ci.onnx.case import OnnxRun, OnnxSetup
from ci.report.host import started_now
from ci.report.schema import Report, Tool
from provisioning.artifacts.environment import Environment
from provisioning.store.store import store_home

SESSION = "test_onnx"
IMPORTS = ("ci.onnx.lookup", "ci.onnx.making.compile", "ci.onnx.sessions.run")
PACKAGES = ("onnxruntime", "onnxruntime-qnn", "onnx", "onnxscript", "torch", "numpy")
RUNTIME = "qnn-runtime"


@dataclass(frozen=True, kw_only=True)
class LaneOptions(SessionOptions):
    """``given`` are provider options of the user's; ``embed`` says that the context binary lies in
    the ONNX file. ``saver`` and ``profile`` ask QNN for more."""

    given: Mapping[str, str] = field(default_factory=dict)
    embed: bool = True
    saver: bool = False
    profile: str = ""


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
    clear_beside(options)
    tools = describe_tools(environment, PACKAGES)
    pool = workshop.open_pool(environment.apply(os.environ))
    setup = make_setup(options, tools, environment, pool, workshop)
    with phases.measure("cases"):
        runs = [OnnxRun(spec, setup) for spec in specs]
        results = run_cases(runs, pool, options.jobs, phases.progress)
    return make_report(
        specs, results, phases, options, session=SESSION, started=started, tools=tools
    )


def make_setup(
    options: LaneOptions,
    tools: tuple[Tool, ...],
    environment: Environment,
    pool: Pool,
    workshop: Workshop,
) -> OnnxSetup:
    """What the cases share."""
    (sdk,) = (found.root for found in environment.artifacts if found.name == RUNTIME)
    return OnnxSetup(
        pool=pool,
        runner=PythonRunner(pool, "onnxruntime"),
        policy=options.policy,
        cache=store_home() / "lowered",
        toolchain=tuple(f"{tool.name} {tool.version} {tool.sha256 or ''}" for tool in tools),
        work=workshop.scratch,
        timeout_s=options.timeout_s,
        use_cache=options.use_cache,
        keep=options.keep,
        baselines={} if options.record else read_baselines(tools),
        sdk=sdk,
        given=options.given,
        embed=options.embed,
        saver=options.saver,
        profile=options.profile,
        beside=options.beside,
    )
