"""The lane of test-onnx: ONNX Runtime's QNN provider compiles models, and runs them on the
emulator."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ci.cases.policy import LANES, EmulatorPolicy
from ci.cases.pool import Pool
from ci.cases.request import Request
from ci.cases.session import list_parts
from ci.cases.spec import CaseSpec
from ci.device.onnx_board import require_qnn
from ci.faults.match import match_faults
from ci.graphs.candidates import Candidate
from ci.mend.experiments import make_experiments
from ci.mend.offers import list_unchangeable, suggest_mending
from ci.mend.remedies import make_onnx_trial
from ci.models.schemes import ONNX, SchemeSet
from ci.onnx.engine import OnnxEngine, make_runner
from ci.onnx.fitting import fit_files, fit_schemes, fit_shapes, require_files
from ci.onnx.options import (
    check_sessions,
    choose_options,
    find_library,
)
from ci.onnx.toolchain import (
    DISTRIBUTIONS,
    EXPORTING,
    RUNTIMES,
    choose_profile,
    name_toolchain,
    needs_export,
    require_python,
)
from ci.packages import modules
from ci.report.schema import Report, Tool
from ci.verbs import steps
from ci.verbs.board import BoardChoice, ReadyBoard, ready_board
from ci.verbs.lanes.lane import Lane, Plan, Tools
from provisioning.artifacts import choice
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.elf.qnn_build import find_qnn_build


@dataclass(frozen=True, kw_only=True)
class OnnxRequest(Request):
    """A request with the options of test-onnx."""

    user_options: Mapping[str, str] = field(default_factory=dict)  # of QNN's provider
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of .onnx files' inputs
    saver: bool = False  # whether QNN's Saver writes the API calls as C code
    profile: str = ""  # the level of QNN's profile
    direct: bool = False  # whether sessions load the model without a context binary
    embed: bool = True  # whether the context binary is inside the .onnx file
    board: BoardChoice | None = None  # what runs the programs instead of the emulator


def select(
    request: OnnxRequest, policy: EmulatorPolicy, schemes: SchemeSet, progress: Progress
) -> list[CaseSpec]:
    """Return the requested cases. Raises UsageError for provider options that no session takes, and
    for a policy that lists no .onnx file, unless it was passed as an option."""
    del progress
    if request.judges and not request.is_policy_typed and not request.models:
        require_files(policy, request.policy)
    requested_specs = steps.select_asked(request, policy, schemes)
    specs = list(fit_files(requested_specs, request.shapes))
    for scheme, soc in dict.fromkeys((spec.scheme.base, spec.soc) for spec in specs):
        chosen = choose_options(scheme, soc, request.user_options)
        # Before anything is fetched: a session would refuse them only when its case runs.
        check_sessions(chosen, request.profile, saver=request.saver, direct=request.direct)
    return specs


def fit_requested(
    request: OnnxRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> list[CaseSpec]:
    """Return the cases with fixed shapes and the schemes of their files. Raises the errors of
    require_python, require_packages, fit_shapes and fit_schemes."""
    require_python(platform.python_version(), "ONNX Runtime")
    LANE.require_packages(specs)
    fitted, quantized = fit_shapes(
        specs,
        policy,
        progress,
        request.command,
        judges=request.judges,
        timeout_s=request.timeout_s,
    )
    return fit_schemes(fitted, quantized, policy, request.schemes)


@contextlib.contextmanager
def prepare(
    request: OnnxRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> Iterator[Plan]:
    """Yield the plan of a run. Raises the same errors as fit_requested."""
    specs = fit_requested(request, policy, specs, progress)
    engine = OnnxEngine(
        toolchain=(),
        sdk=Path(),
        user_options=request.user_options,
        embed=request.embed,
        saver=request.saver,
        log_level=request.log_level,
        direct=request.direct,
        exports=needs_export(specs),
    )
    # An adaptor is ExecuTorch's: ONNX Runtime calls QNN itself.
    chosen = choice.QnnChoice(request.choice.sdk, choice.WHEEL)
    options: dict[str, Any] = {
        "find_faults": match_faults,
        "make_remedy_job": make_onnx_trial,
    }
    if not request.board:  # experiments are run on the emulator
        options |= make_experiments("onnx", request.diagnose)
    with lease_board(request, specs, progress) as ready:
        yield Plan(
            specs=specs,
            profile=LANE.profile(chosen),
            imports=engine.imports,
            choice=chosen,
            open=partial(open_tools, engine, request.profile, ready),
            options=options,
            work="compile, run and judge",
            remarks=(ready.describe(),) if ready else (),
            on_device=ready is not None,
        )


def lease_board(
    request: OnnxRequest, specs: Sequence[CaseSpec], progress: Progress
) -> AbstractContextManager[ReadyBoard | None]:
    """Return the context in which the requested board is leased and ready, or one with None. Raises
    the same errors as ready_board."""
    if not request.board:
        return contextlib.nullcontext()
    socs = [*dict.fromkeys(spec.soc for spec in specs)]
    options = request.user_options
    return ready_board(request.board, socs, options, request.log_level, progress)


def suggest(report: Report, plan: Plan, command: str) -> Report:
    """Return the report with the commands that mend its cases."""
    files = {spec.name for spec in plan.specs if spec.is_file}
    unchangeable = list_unchangeable(plan.options)
    return suggest_mending(
        report,
        ONNX,
        command,
        on_device=plan.on_device,
        files=files,
        unchangeable=unchangeable,
    )


def open_tools(
    engine: OnnxEngine,
    profile: str,
    ready: ReadyBoard | None,
    environment: Environment,
    pool: Pool,
) -> Tools:
    """Return the engine for a provisioned environment, and a runner of its programs: a board that
    is ``ready``, or the emulator, which writes QNN's profile if ``profile`` is its level. Raises
    UnfitError if the board's QNN is older than the one that compiles."""
    names = (*DISTRIBUTIONS, *EXPORTING * engine.exports)
    versions = {name: importlib.metadata.version(name) for name in names}
    packages = (Tool(name=name, version=version) for name, version in versions.items())
    parts = (*list_parts(environment), *packages)
    (sdk,) = (artifact.root for artifact in environment.artifacts if artifact.name in RUNTIMES)
    library = find_library(sdk, engine.user_options)
    toolchain = name_toolchain(parts, exports=engine.exports)
    engine = replace(engine, toolchain=toolchain, sdk=sdk)
    emulator = make_runner(engine, pool, profile)
    if not ready:
        return Tools(engine=engine, runner=emulator, parts=parts)
    build = find_qnn_build(library)
    require_qnn(ready.runner.device, ready.python, (build and build.version) or "")
    # The outputs of a board are compared with the emulator's.
    return Tools(engine=engine, runner=ready.runner, parts=parts, emulator=emulator)


def list_nodes(spec: CaseSpec) -> list[Candidate]:
    """Return the nodes of a model that parts can select."""
    require_python(platform.python_version(), "ONNX Runtime")
    LANE.require_packages([spec])
    from ci.onnx.compile import list_nodes

    return list_nodes(spec)


def choose_packages(specs: Sequence[CaseSpec]) -> tuple[tuple[str, ...], str]:
    """Return the packages that cases need, and the dependency group that installs them."""
    return modules.ONNX.choose(has_functions=needs_export(specs))


LANE = Lane(
    session="test_onnx",
    policy=LANES["test_onnx"],
    schemes=ONNX,
    request=OnnxRequest,
    packages=choose_packages,
    profile=choose_profile,
    select=select,
    prepare=prepare,
    fit=fit_requested,
    list_nodes=list_nodes,
    suggest=suggest,
    # An adaptor is ExecuTorch's: ONNX Runtime calls QNN itself.
    without=("--adaptor", "--executorch"),
)
