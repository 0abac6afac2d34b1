"""The lane as a session: the cases, their pool and cache, and the report."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ci.emulator.runner import PythonRunner
from ci.emulator.session import Phases, describe_tools, find_baselines, report_runs
from ci.emulator.workshop import Workshop
from ci.lowering.cases import CaseSpec
from ci.onnx.case import LaneOptions, OnnxRun, OnnxSetup
from ci.report.host import started_now
from ci.report.schema import Report
from provisioning.artifacts.environment import Environment

SESSION = "test_onnx"
IMPORTS = ("ci.onnx.lookup", "ci.onnx.making.compile", "ci.onnx.sessions.run")
PACKAGES = ("onnxruntime", "onnxruntime-qnn", "onnx", "onnxscript", "torch", "numpy")
RUNTIME = "qnn-runtime"


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
