"""The session of the lane, once its environment is there; imported when something is to be run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ci.cases.judged import SessionOptions
from ci.cases.pipeline import CaseRun, RunSetup
from ci.cases.pool import ScratchPool
from ci.cases.session import Phases, Session
from ci.cases.spec import CaseSpec
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.llm.case import LlmRun, Show
from ci.llm.lowering import LlmEngine, Subject
from ci.llm.runtime import make_runner
from ci.report.schema import Report
from provisioning.artifacts.environment import Environment

SESSION = "test_llm"
IMPORTS = LlmEngine.imports


def run_specs(
    specs: Sequence[CaseSpec],
    subject: Subject,
    show: Show,
    options: SessionOptions,
    *,
    environment: Environment,
    phases: Phases,
    scratch: ScratchPool,
) -> Report:
    """Lower, run and judge a decoder in each of its schemes. Raises StoreError if there is no
    room."""
    parts = tuple(describe_toolchain(environment))
    pool = scratch.open(environment.apply(os.environ))

    def make_run(spec: CaseSpec, setup: RunSetup) -> CaseRun:
        return LlmRun(spec, setup, subject, show)

    session = Session(
        name=SESSION,
        specs=specs,
        engine=LlmEngine(name_toolchain(parts, environment), subject),
        runner=make_runner(pool),
        parts=parts,
        options=options,
        make_run=make_run,
    )
    return session.run(pool, scratch.scratch, phases)
