"""The lane of test-llm: ExecuTorch lowers decoders, and the emulator generates tokens with them. Or
a bundle of LiteRT-LM is run as LiteRT-LM does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ci.cases.policy import LANES, EmulatorPolicy
from ci.cases.pool import Pool
from ci.cases.spec import CaseSpec, match_all, match_socs, require_own_scheme
from ci.executorch.engine import PACKAGES
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.llm.case import ForeignRun, LlmRun
from ci.llm.generation import make_runner
from ci.llm.lowering import LlmEngine, Subject
from ci.llm.recipes import DEFAULT, RECIPES
from ci.llm.request import LlmRequest
from ci.llm.subject import find_program, find_subject
from ci.models.schemes import Scheme, SchemeSet
from ci.verbs.lanes.bundles import find_bundle_soc, plan_bundle
from ci.verbs.lanes.lane import Lane, Plan, Tools
from ci.verbs.options import LOWERING
from provisioning.artifacts.environment import Environment
from provisioning.console.caller import shown_path
from provisioning.console.progress import Progress
from provisioning.manifest.targets import find_any_soc, name_in, read_all_socs, read_socs

DEFAULT_SOC = "SM8750"
IMPORTS = LlmEngine.imports


def select(
    request: LlmRequest, policy: EmulatorPolicy, schemes: SchemeSet, progress: Progress
) -> list[CaseSpec]:
    """Return the requested cases. Raises UsageError for a scheme or a SoC that does not exist."""
    if unused := [name for name in ("models", "suite") if getattr(policy, name)]:
        untested = f"{' and '.join(unused)} of the policy are not tested here"
        progress.step(f"note: {untested}: --model selects decoders")
    if request.bundle:
        soc = find_bundle_soc(request.bundle) or DEFAULT_SOC
        for name in request.socs:
            soc = name_in(name.upper(), read_all_socs())
            find_any_soc(soc)
        return [CaseSpec(shown_path(request.bundle), Scheme.ASIS, soc)]
    socs = match_socs(request.socs, sorted(read_socs())) or [DEFAULT_SOC]
    if request.pte:
        return [CaseSpec(shown_path(request.pte), Scheme.ASIS, socs[0])]
    name = shown_path(request.weights) if request.weights else request.decoder
    chosen = choose_schemes(request.schemes, schemes)
    return [CaseSpec(name, scheme, soc) for scheme in chosen for soc in socs]


@contextlib.contextmanager
def prepare(
    request: LlmRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> Iterator[Plan]:
    """Yield the plan of a run. The files of a known decoder are fetched. Raises UnfitError for a
    missing package, and the same errors as find_program or find_subject."""
    del policy
    if request.bundle:
        yield plan_bundle(request, request.bundle, specs)
        return
    LANE.require_packages(specs)
    usual: dict[str, Any] = {
        "specs": specs,
        "profile": LANE.profile(request.choice),
        "imports": IMPORTS,
        "choice": request.choice,
        # Baselines are for the models of a policy, and no policy's models are tested here.
        "options": {"baselines": None},
    }
    if request.pte:
        job = find_program(request, request.pte)
        yield Plan(
            **usual,
            open=partial(open_tools, None, plain=request.plain),
            make_run=lambda spec, setup: ForeignRun(spec, setup, job),
            work="run and judge",
        )
        return
    subject, show = find_subject(request, progress)
    yield Plan(
        **usual,
        open=partial(open_tools, subject, plain=request.plain),
        make_run=lambda spec, setup: LlmRun(spec, setup, subject, show),
    )


def open_tools(
    subject: Subject | None, environment: Environment, pool: Pool, *, plain: bool
) -> Tools:
    """Return the engine that lowers a decoder, None for a foreign program, and the runner."""
    parts = tuple(describe_toolchain(environment))
    toolchain = name_toolchain(parts, environment) if subject else ()
    engine = LlmEngine(toolchain, subject, plain)
    return Tools(engine=engine, runner=make_runner(pool), parts=parts)


def choose_schemes(globs: Sequence[str], schemes: SchemeSet) -> Sequence[Scheme]:
    """Return the schemes that match ``globs`` or, without globs, the default schemes. Raises
    UsageError for a glob that matches none."""
    for word in globs:
        require_own_scheme(word, [scheme.value for scheme in schemes.schemes], schemes)
    named = match_all("scheme", globs, [scheme.value for scheme in schemes.schemes])
    return [scheme for scheme in schemes.schemes if scheme.value in named] or schemes.default


LANE = Lane(
    session="test_llm",
    policy=LANES["test_llm"],
    schemes=SchemeSet(tuple(RECIPES), tuple(DEFAULT)),
    request=LlmRequest,
    packages=lambda _: (PACKAGES, LOWERING),
    profile=lambda choice: choice.profile,
    select=select,
    prepare=prepare,
)
