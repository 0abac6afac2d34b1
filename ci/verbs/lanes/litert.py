"""The lane of test-litert: LiteRT's plugin for Qualcomm compiles .tflite files, and QNN's emulator
runs them. litert-torch writes the files of PyTorch models."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from ci.cases.cache import digest_packages
from ci.cases.policy import LANES, EmulatorPolicy
from ci.cases.pool import Pool
from ci.cases.request import Request
from ci.cases.session import list_parts
from ci.cases.spec import CaseSpec, require_fitting_schemes
from ci.faults.match import match_faults
from ci.graphs.candidates import Candidate
from ci.litert.engine import LitertEngine, make_runner
from ci.litert.reading import LitertFit, fit_litert
from ci.mend.experiments import make_experiments
from ci.mend.offers import list_unchangeable, suggest_mending
from ci.models.schemes import LITERT, AnyScheme, Scheme, SchemeSet
from ci.models.suite import DEFAULT_SOC
from ci.models.user_models import ModelEntry, list_scheme_tables
from ci.onnx.toolchain import require_python
from ci.packages import modules
from ci.report.schema import Report, Tool
from ci.report.text import name_models
from ci.verbs import options, steps
from ci.verbs.lanes.lane import Lane, Plan, Tools
from provisioning.artifacts import choice
from provisioning.artifacts.environment import Environment
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import read_litert_socs

PROFILE = "litert"
PACKAGES, CONVERTING_PACKAGES = modules.LITERT.for_files, modules.LITERT.converting
DISTRIBUTIONS = ("ai-edge-litert", "onnxruntime", "onnxruntime-qnn", "onnx", "numpy")
CONVERTING = ("torch", "litert-torch", "litert-converter", "jax")  # only for models from PyTorch


@dataclass(frozen=True, kw_only=True)
class LitertRequest(Request):
    """A request of test-litert, which adds no options."""


def select(
    request: LitertRequest, policy: EmulatorPolicy, schemes: SchemeSet, progress: Progress
) -> list[CaseSpec]:
    """Return the requested cases. Raises UsageError for a PyTorch model that would have to be
    quantized."""
    del progress
    specs = []
    for spec in steps.select_asked(request, policy, schemes):
        if spec.is_function:
            spec = _choose_float(spec, request.schemes)
        specs.append(spec)
    return list(dict.fromkeys(specs))


def _choose_float(spec: CaseSpec, requested: Sequence[str]) -> CaseSpec:
    if Scheme.ASIS in requested:
        raise UsageError(
            f"{spec.model} is a PyTorch model, which is converted in float, and {Scheme.ASIS} is"
            " for files that are quantized",
            fix=f"pass --scheme {Scheme.FP16}, or quantize the model with LiteRT's tools, and pass"
            " the .tflite file",
        )
    return replace(spec, scheme=Scheme.FP16)


def fit_requested(
    request: LitertRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> list[CaseSpec]:
    """Return the cases with the schemes of their files. Raises UnfitError for a Python without
    wheels, and the same errors as require_packages and fit_cases."""
    require_python(platform.python_version(), "LiteRT")
    LANE.require_packages(specs)
    return fit_cases(specs, request, progress, policy.models)


@contextlib.contextmanager
def prepare(
    request: LitertRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> Iterator[Plan]:
    """Yield the plan of a run. Raises the same errors as fit_requested."""
    fitted = fit_requested(request, policy, specs, progress)
    engine = LitertEngine(
        toolchain=(),
        sdk=Path(),
        timeout_s=request.timeout_s,
        converts=any(spec.is_function for spec in specs),
    )
    yield Plan(
        specs=fitted,
        profile=PROFILE,
        imports=engine.imports,
        # An adaptor is ExecuTorch's: LiteRT calls QNN itself.
        choice=choice.QnnChoice(choice.WHEEL, choice.WHEEL),
        open=partial(open_tools, engine),
        options={
            "find_faults": match_faults,
            **make_experiments("torch", request.diagnose, only_float=True, front_end="litert"),
        },
        remarks=tuple(list_without_htp(fitted)),
        work="compile, run and judge",
        # A quantized file is not rewritten. With its float model, it is changed otherwise.
        mendable={spec.name for spec in fitted if spec.scheme is not Scheme.ASIS},
    )


def suggest(report: Report, plan: Plan, command: str) -> Report:
    """Return the report with the commands that mend its cases."""
    return suggest_mending(
        report,
        LITERT,
        command,
        mendable=plan.mendable,
        files={spec.name for spec in plan.specs if spec.is_file},
        rows_of_kind="litert",
        in_float={spec.name for spec in plan.specs if spec.source.float_model},
        unchangeable=list_unchangeable(plan.options),
    )


def fit_cases(
    specs: Sequence[CaseSpec],
    request: LitertRequest,
    progress: Progress,
    entries: Mapping[str, ModelEntry] = MappingProxyType({}),
) -> list[CaseSpec]:
    """Read the files of cases, each in a process with limits. Return the cases with the scheme that
    each file has: asis if it is quantized, and fp16 if it is not. A PyTorch model is converted only
    when its case runs, and stays as it is.

    Raises UsageError if a file cannot be used. If only some of several files cannot be used, the
    reason is shown instead, and their cases fail later. Also raises the error of check_limits for
    the policy's models, which are ``entries``.
    """
    names = name_models(spec.model for spec in specs)
    read_specs = [spec for spec in specs if not spec.is_function]
    by_source = {(spec.reference, spec.source): spec for spec in reversed(read_specs)}

    def fit(spec: CaseSpec) -> LitertFit | UsageError:
        try:
            return fit_litert(spec, names[spec.model], request.timeout_s)
        except UsageError as error:
            return error

    tasks = [partial(fit, spec) for spec in by_source.values()]
    fits = dict(zip(by_source, run_tasks(tasks, options.count_cores()), strict=True))
    unusable = [fit for fit in fits.values() if isinstance(fit, UsageError)]
    if unusable and len(unusable) == len(fits) and len(read_specs) == len(specs):
        raise unusable[-1]
    for key, fit_or_error in fits.items():
        name = names[by_source[key].model]
        if isinstance(fit_or_error, UsageError):
            progress.step(f"{name}: {fit_or_error}")
        elif fit_or_error.free:
            free = ", ".join(fit_or_error.free)
            progress.step(
                f"{name}: sizes that may change ({free}) are compiled as 1: LiteRT's plugin does so"
                " without a message"
            )
    quantized = {
        reference
        for (reference, _), fit_or_error in fits.items()
        if isinstance(fit_or_error, LitertFit) and fit_or_error.is_quantized
    }
    readable_specs = [
        spec for spec in read_specs if isinstance(fits[spec.reference, spec.source], LitertFit)
    ]
    require_fitting_schemes(readable_specs, quantized, request.schemes, entries, Scheme.FP16)
    fitted = [
        spec if spec.is_function else _choose_scheme(spec, fits[spec.reference, spec.source])
        for spec in specs
    ]
    for spec in fitted:
        is_read = isinstance(fits.get((spec.reference, spec.source)), LitertFit)
        if is_read and spec.model in entries:
            check_limits(spec, entries[spec.model])
    check_socs(fitted, names, progress)
    return list(dict.fromkeys(fitted))


def check_socs(specs: Sequence[CaseSpec], names: Mapping[str, str], progress: Progress) -> None:
    """Raise UsageError if all cases are for SoCs for which QNN compiles nothing of them: float
    models need float16. If only some are, the reason is shown, and these cases fail later. Also
    show for which SoCs QNN knows no HTP."""
    cure = "quantize it to int8 or int16 before, or "
    answers = (find_refusal(spec.soc, spec.scheme, names[spec.model], cure) for spec in specs)
    refusals = [refusal for refusal in answers if refusal]
    if refusals and len(refusals) == len(specs):
        raise refusals[0]
    for refusal in refusals:
        progress.step(str(refusal))
    for remark in list_without_htp(specs):
        progress.step(f"warning: {remark}")


def find_refusal(soc: str, scheme: AnyScheme, name: str, cure: str = "") -> UsageError | None:
    """Return why QNN compiles nothing of a model in a scheme for an SoC, or None. ``name`` is that
    of the model, and ``cure`` what can be done, besides another SoC, if it is a float model."""
    facts = read_litert_socs()[soc]
    other_soc = f"choose another SoC, such as --soc {DEFAULT_SOC}"
    if not facts.compiled:
        return UsageError(
            f"nothing can be compiled for {soc}",
            why=f"LiteRT's plugin takes the name, but QNN does not know its number, {facts.id}",
            fix=other_soc,
        )
    if scheme is Scheme.FP16 and not facts.float16:
        return UsageError(
            f"{name} is a float model, which HTP computes in float16, and {soc} has no float16",
            why="QNN takes no operator of it, so that all of it would stay on the CPU",
            fix=f"{cure}{other_soc}",
        )
    return None


def list_without_htp(specs: Sequence[CaseSpec]) -> list[str]:
    """Return a remark on the SoCs of cases for which QNN compiles although it knows no HTP of
    them."""
    socs = read_litert_socs()
    rows = {spec.soc: socs[spec.soc] for spec in specs}
    names = [name for name, soc in rows.items() if soc.compiled and not soc.hexagon]
    if not names:
        return []
    remark = (
        f"QNN knows no HTP of {', '.join(names)}, and compiles for V68 with 16 MiB of VTCM instead:"
        " a device may have no NPU that runs the program"
    )
    return [remark]


def check_limits(spec: CaseSpec, entry: ModelEntry) -> None:
    """Raise UsageError for limits in the ``entry`` of a file that are for the other scheme: a file
    is compiled as it is."""
    for table, scheme in list_scheme_tables(entry):
        if scheme != spec.scheme.value:
            kind = "is quantized" if spec.scheme is Scheme.ASIS else "is a float model"
            raise UsageError(
                f"models.{spec.model}.{table}.{scheme} has no effect",
                why=f"{Path(spec.reference).name} {kind}, of which the scheme is {spec.scheme}",
                fix=f"write {table}.{spec.scheme}",
            )


def _choose_scheme(spec: CaseSpec, fit: LitertFit | UsageError) -> CaseSpec:
    if isinstance(fit, UsageError):
        return spec
    return replace(spec, scheme=Scheme.ASIS if fit.is_quantized else Scheme.FP16)


def list_nodes(spec: CaseSpec) -> list[Candidate]:
    """Return the operators of a model. Raises the same errors as read_litert."""
    require_python(platform.python_version(), "LiteRT")
    LANE.require_packages([spec])
    from ci.litert.source import list_nodes

    return list_nodes(spec)


def choose_packages(specs: Sequence[CaseSpec]) -> tuple[Sequence[str], str]:
    """Return the packages that cases import, and the extra that installs them."""
    return modules.LITERT.choose(has_functions=any(spec.is_function for spec in specs))


def open_tools(engine: LitertEngine, environment: Environment, pool: Pool) -> Tools:
    """Return the engine for a provisioned environment, and a runner of its programs."""
    names = (*DISTRIBUTIONS, *CONVERTING * engine.converts)
    versions = {name: importlib.metadata.version(name) for name in names}
    packages = (Tool(name=name, version=version) for name, version in versions.items())
    parts = (*list_parts(environment), *packages)
    (sdk,) = (
        artifact.root for artifact in environment.artifacts if artifact.name == choice.WHEEL_RUNTIME
    )
    digest = digest_packages((*PACKAGES, *CONVERTING_PACKAGES * engine.converts))
    ready = replace(engine, toolchain=(*map(str, parts), digest), sdk=sdk)
    return Tools(engine=ready, runner=make_runner(ready, pool), parts=parts)


LANE = Lane(
    session="test_litert",
    policy=LANES["test_litert"],
    schemes=LITERT,
    request=LitertRequest,
    packages=choose_packages,
    profile=lambda _: PROFILE,
    select=select,
    prepare=prepare,
    fit=fit_requested,
    list_nodes=list_nodes,
    suggest=suggest,
    without=("--sdk", "--adaptor", "--executorch"),  # LiteRT's plugin works with one version of QNN
)
