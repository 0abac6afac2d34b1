"""The lane of test-onnx: ONNX Runtime's QNN provider compiles models, and runs them on the
emulator."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.cache import digest_packages
from ci.cases.limited import TIMEOUT_S
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import Pool
from ci.cases.qnn_files import PROFILE_CSV
from ci.cases.request import Request
from ci.cases.session import list_parts
from ci.cases.spec import CaseSpec
from ci.faults.match import match_faults
from ci.graphs.candidates import Candidate
from ci.mend.remedies import make_onnx_trial
from ci.mend.table import suggest_mending
from ci.models.schemes import ONNX, Mixture, Scheme, SchemeSet
from ci.models.user_models import Source
from ci.onnx.engine import OnnxEngine, make_runner
from ci.onnx.options import (
    SAVER_LIBRARY,
    check_options,
    choose_options,
    find_library,
    profile_options,
)
from ci.onnx.reading import FileFit, check_float_model, fit_file
from ci.report.schema import Report, Tool
from ci.report.text import name_models
from ci.verbs import options, steps
from ci.verbs.lanes.lane import Lane, Plan, Tools
from provisioning.artifacts import choice
from provisioning.artifacts.environment import Environment
from provisioning.console.caller import shown_path
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError, at_key
from provisioning.quoting import shell_words
from provisioning.versions import is_older

PROFILE = "onnx"
# onnxruntime-qnn has no wheel for Python 3.10.
OLDEST_PYTHON = "3.11"
COMPILING = {"ep.context_enable": "1"}
SDK_PROFILE = "onnx-sdk"
RUNTIMES = (choice.WHEEL_RUNTIME, choice.SDK)
PACKAGES = ("onnx", "onnxruntime", "onnxruntime_qnn")
EXPORTING = ("torch", "onnxscript")  # only for models from PyTorch
DISTRIBUTIONS = ("onnxruntime", "onnxruntime-qnn", "onnx", "numpy")
# Packages that compute something in a compilation or, the second ones, in an export.
# Their content is part of a program's key, since an edit in place changes no version.
COMPILING_PACKAGES = (*PACKAGES, "ml_dtypes", "numpy", "sympy")
EXPORTING_PACKAGES = (*EXPORTING, "onnx_ir")


@dataclass(frozen=True, kw_only=True)
class OnnxRequest(Request):
    """A request with the options of test-onnx."""

    user_options: Mapping[str, str] = field(default_factory=dict)  # of QNN's provider
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of .onnx files' inputs
    saver: bool = False  # whether QNN's Saver writes the API calls as C code
    profile: str = ""  # the level of QNN's profile
    direct: bool = False  # whether sessions load the model without a context binary
    embed: bool = True  # whether the context binary is inside the .onnx file


def select(
    request: OnnxRequest, policy: EmulatorPolicy, schemes: SchemeSet, progress: Progress
) -> list[CaseSpec]:
    """Return the requested cases. Raises UsageError for provider options that no session takes, and
    for a policy that lists no .onnx file, unless it was passed as an option."""
    del progress
    if request.judges and not request.is_policy_typed and not request.models:
        require_files(policy, request.policy)
    asked = steps.select_asked(request, policy, schemes)
    specs = list(fit_files(asked, request.shapes))
    for scheme, soc in dict.fromkeys((spec.scheme.base, spec.soc) for spec in specs):
        chosen = choose_options(scheme, soc, request.user_options)
        # Before anything is fetched: a session would refuse them only when its case runs.
        check_sessions(chosen, request.profile, saver=request.saver, direct=request.direct)
    return specs


@contextlib.contextmanager
def prepare(
    request: OnnxRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> Iterator[Plan]:
    """Yield the plan of a run: the cases with fixed shapes and the schemes of their files. Raises
    the errors of require_python, require_packages, fit_shapes and fit_schemes."""
    require_python(platform.python_version())
    LANE.require_packages(specs)
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
    fitted, quantized = fit_shapes(
        specs,
        policy,
        progress,
        request.command,
        judges=request.judges,
        timeout_s=request.timeout_s,
    )
    specs = fit_schemes(fitted, quantized, policy, request.schemes)
    yield Plan(
        specs=specs,
        profile=LANE.profile(chosen),
        imports=engine.imports,
        choice=chosen,
        open=partial(open_tools, engine, request.profile),
        options={"find_faults": match_faults, "make_remedy_job": make_onnx_trial},
        work="compile, run and judge",
        # mend judges a module of PyTorch as test-emulator does, so its schemes are others.
        mendable={spec.name for spec in specs if spec.is_file},
    )


def suggest(report: Report, plan: Plan, command: str) -> Report:
    """Return the report with the commands that mend its cases."""
    return suggest_mending(report, "onnx", command, mendable=plan.mendable)


def open_tools(engine: OnnxEngine, profile: str, environment: Environment, pool: Pool) -> Tools:
    """Return the engine for a provisioned environment, and a runner of its programs, which writes
    QNN's profile if ``profile`` is its level."""
    names = (*DISTRIBUTIONS, *EXPORTING * engine.exports)
    versions = {name: importlib.metadata.version(name) for name in names}
    packages = (Tool(name=name, version=version) for name, version in versions.items())
    parts = (*list_parts(environment), *packages)
    (sdk,) = (artifact.root for artifact in environment.artifacts if artifact.name in RUNTIMES)
    find_library(sdk, engine.user_options)
    toolchain = name_toolchain(parts, exports=engine.exports)
    ready = replace(engine, toolchain=toolchain, sdk=sdk)
    return Tools(engine=ready, runner=make_runner(ready, pool, profile), parts=parts)


def list_nodes(spec: CaseSpec) -> list[Candidate]:
    """Return the nodes of a model that parts can select."""
    require_python(platform.python_version())
    LANE.require_packages([spec])
    from ci.onnx.compile import list_nodes

    return list_nodes(spec)


def needs_export(specs: Sequence[CaseSpec]) -> bool:
    """Return whether any case has to be exported from torch."""
    return not all(spec.is_file for spec in specs)


def choose_packages(specs: Sequence[CaseSpec]) -> tuple[tuple[str, ...], str]:
    """Return the packages that cases need, and the dependency group that installs them."""
    exports = needs_export(specs)
    return list_packages(exports=exports), options.ONNX_TORCH if exports else options.ONNX


def require_files(policy: EmulatorPolicy, path: Path | None) -> None:
    """Raise UsageError if the user's policy at ``path``, which was found and not passed, has models
    but no .onnx file. In a repository with both kinds, these are in another policy."""
    if not policy.models or any(
        model.path.endswith(ONNX.suffix) for model in policy.models.values()
    ):
        return
    name = shown_path(path or Path())
    raise UsageError(
        f"{name} lists no .onnx file",
        why="its models are PyTorch models, which `qnn-ci test-emulator` tests",
        fix="pass the policy of your .onnx files, such as `qnn-ci test-onnx --policy onnx.toml`; to"
        f" export these models to ONNX, pass `--policy {name}`",
    )


def check_sessions(
    chosen: Mapping[str, str], profile: str, *, saver: bool, direct: bool = False
) -> None:
    """Check the provider options of all ONNX Runtime sessions of a case: the sessions that run the
    model, compile it, or record it with Saver.

    Raises UsageError for the first session with invalid options. The error lists all of them.
    """
    profiling = profile_options(profile, Path(PROFILE_CSV))
    if twice := sorted(profiling.keys() & chosen.keys()):
        raise UsageError(
            f"--profile and --option {twice[0]} exclude each other", fix="pass only one of them"
        )
    check_options({**chosen, **profiling})
    if not direct:
        check_options(chosen, COMPILING)
    if saver:
        check_options({**chosen, "qnn_saver_path": Path(SAVER_LIBRARY).name})


def parse_shapes(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return each input's shape from arguments like ``x=1,3,224,224``. Raises UsageError for an
    argument in any other format."""
    shapes = {}
    for word in words:
        name, _, sizes = word.rpartition("=")
        if not name or not re.fullmatch(r"(?:[1-9]\d{0,9}(?:,[1-9]\d{0,9})*)?", sizes):
            raise UsageError(
                f"--shape {word!r} is not a shape", fix="pass NAME=SIZES, such as x=1,3,224,224"
            )
        shapes[name] = tuple(map(int, sizes.split(","))) if sizes else ()
    return shapes


def refuse_shapes() -> UsageError:
    """Return the error for --shape without an .onnx file."""
    return UsageError("--shape is for .onnx files", fix="pass one with --model")


def fit_files(
    specs: Sequence[CaseSpec], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[CaseSpec]:
    """Yield the cases with their shapes. For .onnx files, ``shapes`` override the policy's shapes.
    Raises UsageError if there are ``shapes`` but no case is for an .onnx file."""
    if shapes and not any(spec.is_file for spec in specs):
        raise refuse_shapes()
    for spec in specs:
        merged = {**dict(spec.source.shapes), **shapes} if spec.is_file else {}
        source = msgspec.structs.replace(spec.source, shapes=tuple(merged.items()))
        yield replace(spec, source=source)


def fit_shapes(
    specs: Sequence[CaseSpec],
    policy: EmulatorPolicy,
    progress: Progress,
    command: str = "",
    *,
    judges: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> tuple[list[CaseSpec], set[str]]:
    """Read the .onnx files of cases, each in a process that may take ``timeout_s`` seconds. Return
    the cases, with a batch of 1 for files whose batch size varies, and the paths of the files that
    are quantized already. ``command`` is the session's command line without the options that select
    cases.

    Raises UsageError if QNN cannot load a file, or if the inputs or outputs of a float model differ
    from those of the quantized model. If the session ``judges`` cases and only some of the files
    cannot be loaded, the reason is shown instead, and their cases fail later.
    """
    quantized: set[str] = set()
    fitted: dict[Source, Source] = {}
    unusable: list[UsageError] = []
    names = name_models(spec.model for spec in specs)
    # Each file is read once. Reversed, so that its first case stands for all of them.
    files = [*{spec.source: spec for spec in reversed(specs) if spec.is_file}.values()]

    def fit(spec: CaseSpec) -> FileFit | UsageError:
        together = [peer for peer in specs if peer.source == spec.source]
        repeating = choose_together(together, command) if command else ""
        entry = spec.model if spec.model in policy.models else ""
        source = msgspec.structs.replace(spec.source, reference=spec.reference)
        try:
            with at_key(entry and f"models.{entry}.path"):
                return fit_file(source, names[spec.model], repeating, entry, timeout_s)
        except UsageError as error:
            return error

    # Each file is read in its own process: a parser in C++ that does not end, takes all memory or
    # aborts would do the same to the verb.
    fits = run_tasks([partial(fit, spec) for spec in files], options.count_cores())
    for spec, fit_or_error in zip(files, fits, strict=True):
        if isinstance(fit_or_error, UsageError):
            unusable.append(fit_or_error)
            continue
        entry = spec.model if spec.model in policy.models else ""
        if batch := fit_or_error.batch:
            option = f"`shapes` in [models.{entry}]" if entry else "--shape"
            note = f"{names[spec.model]}: its batch size ({batch}) varies, so 1 is used"
            progress.step(f"{note}; {option} sets another")
        fitted[spec.source] = msgspec.structs.replace(spec.source, shapes=fit_or_error.shapes)
        with at_key(f"models.{entry}.float_model"):
            if spec.source.float_model:
                source = msgspec.structs.replace(spec.source, reference=spec.reference)
                check_float_model(source, fit_or_error.shapes, timeout_s)
        if fit_or_error.is_quantized:
            quantized.add(spec.reference)
    # One file of several that cannot be used does not end a run of the others.
    if unusable and not (judges and len(unusable) < len({spec.source for spec in specs})):
        raise unusable[-1]
    for error in unusable:
        progress.step(f"{error}")
    cases = [replace(spec, source=fitted.get(spec.source, spec.source)) for spec in specs]
    return cases, quantized


def choose_together(specs: Sequence[CaseSpec], command: str) -> str:
    """Return a run's ``command`` with options that select all these cases of one model."""
    names = [spec.name for spec in specs]
    schemes, socs = {name.scheme for name in names}, {name.soc for name in names}
    words = ["--model", names[0].model]
    # Several schemes or SoCs may be all of the model's: without the option, all are selected.
    if len(schemes) == 1:
        words += ["--scheme", *schemes]
    if len(socs) == 1:
        words += ["--soc", *socs]
    return f"{command} {shell_words(words)}"


def fit_schemes(
    specs: Sequence[CaseSpec],
    quantized: Collection[str],
    policy: EmulatorPolicy,
    requested_schemes: Sequence[str],
) -> list[CaseSpec]:
    """Return the cases, with the scheme ``asis`` for ``quantized`` files, and only for those.
    Raises UsageError if a model has none of the requested schemes."""
    fitted = []
    for spec in specs:
        is_quantized = spec.reference in quantized
        entry = policy.models.get(spec.model)
        schemes = [peer.scheme for peer in specs if peer.model == spec.model]
        chosen = requested_schemes or (entry and entry.schemes)
        if is_quantized and isinstance(spec.scheme, Mixture):
            raise UsageError(
                f"models.{spec.model}.mixtures: {Path(spec.reference).name} is quantized already",
                why=f"{spec.scheme} would quantize it again",
                fix="remove the mixture: the types that the file contains are shown by --list",
            )
        if chosen and all((scheme is Scheme.ASIS) != is_quantized for scheme in schemes):
            place = "--scheme" if requested_schemes else f"models.{spec.model}.schemes"
            raise UsageError(
                f"{place}: {Path(spec.reference).name} is"
                f" {'quantized already' if is_quantized else 'not quantized'}, and {spec.scheme} is"
                f" for models that are{' not' * is_quantized}",
                fix=f"leave out {place}: a quantized file runs unchanged, judged by the limits of"
                " scheme asis"
                if is_quantized
                else f"leave out {place}, or name other schemes",
            )
        if is_quantized:
            fitted.append(replace(spec, scheme=Scheme.ASIS))
        elif spec.scheme is not Scheme.ASIS:
            fitted.append(spec)
    return list(dict.fromkeys(fitted))


def list_packages(*, exports: bool) -> tuple[str, ...]:
    """Return the packages that a run needs. With ``exports``, any model comes from PyTorch."""
    return (*PACKAGES, *EXPORTING * exports)


def require_python(version: str) -> None:
    """Raise UnfitError for a Python that the pinned wheels do not support."""
    if is_older(version, OLDEST_PYTHON):
        raise UnfitError(
            f"this is Python {version}, and the ONNX Runtime lane needs {OLDEST_PYTHON} or later",
            why="onnxruntime-qnn has no wheel for this version of Python",
            fix=f"run nox with Python {OLDEST_PYTHON} or later",
        )


def name_toolchain(parts: Sequence[Tool], *, exports: bool) -> tuple[str, ...]:
    """Return everything except the model that determines a context binary. These are the artifacts
    and packages with their versions, and a digest of the packages that compile and, if any model
    comes from PyTorch, export."""
    packages = (*COMPILING_PACKAGES, *EXPORTING_PACKAGES * exports)
    return (*map(str, parts), digest_packages(packages))


def choose_profile(chosen: choice.QnnChoice) -> str:
    """Return the profile to provision."""
    return PROFILE if chosen.is_usual else SDK_PROFILE


LANE = Lane(
    session="test_onnx",
    schemes=ONNX,
    request=OnnxRequest,
    packages=choose_packages,
    profile=choose_profile,
    select=select,
    prepare=prepare,
    list_nodes=list_nodes,
    suggest=suggest,
)
