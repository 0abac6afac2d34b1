"""``test-onnx``: compile models with ONNX Runtime, run them on the emulator and judge their
outputs."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ci.cases.cache import digest_packages
from ci.cases.limited import TIMEOUT_S
from ci.cases.pipeline import Setup
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import Pool, ScratchPool
from ci.cases.qnn_files import PROFILE_CSV
from ci.cases.runners import PooledRunner
from ci.cases.session import Phases, list_parts, run_session
from ci.cases.spec import CaseSpec
from ci.faults.match import match_faults
from ci.graphs.candidates import Candidate
from ci.mend.remedies import make_onnx_trial
from ci.mend.table import suggest_mending
from ci.models.schemes import ONNX, Mixture, Scheme
from ci.models.user_models import Source
from ci.onnx.engine import OnnxEngine, make_runner
from ci.onnx.options import (
    SAVER_LIBRARY,
    check_options,
    choose_options,
    find_backend,
    find_library,
    parse_options,
    profile_options,
)
from ci.onnx.reading import FileFit, check_float_model, fit_file
from ci.report.claim import claim_reports
from ci.report.schema import Report, Tool
from ci.report.text import count, name_models
from ci.verbs import steps
from ci.verbs.options import (
    CASES,
    add_option,
    add_options,
    count_cores,
    name_mending,
    repeat_command,
)
from provisioning.artifacts import choice
from provisioning.artifacts.environment import Environment
from provisioning.console.caller import shown_path
from provisioning.console.command import FLAG, HOW, MANY, RESULTS, Outcome
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError, at_key
from provisioning.quoting import shell_words
from provisioning.versions import is_older

PROFILE = "onnx"
# onnxruntime-qnn has no wheel for Python 3.10.
OLDEST_PYTHON = "3.11"
SESSION = "test_onnx"
EMBEDDED = "1"
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gaps = {"--model": "file.onnx, or file.py:factory", "--reports": f"{SESSION}/"}
    add_options(parser, *CASES, gaps=gaps)
    add = partial(add_option, parser)
    add(HOW, "--option KEY=VALUE", "an option of QNN's execution provider", **MANY, again=str)
    add_options(parser, "--shape")
    saver = "also write the calls to QNN's API as C code, and count QNN's operators"
    add(RESULTS, "--saver", saver, **FLAG)
    text = "also write QNN's profile as CSV; the emulator's cycles are not judged"
    add(
        RESULTS,
        "--profile",
        text,
        nargs="?",
        choices=("basic", "detailed"),
        const="detailed",
        default="",
    )
    direct = "run the model without a context binary, as QNN's CPU backend always does"
    add(HOW, "--direct", direct, **FLAG, again=str)
    add_options(parser, "--sdk")
    embed = "write the context binary next to the ONNX file (0) or inside it (1)"
    add(HOW, "--embed-mode", embed, choices=("0", EMBEDDED), default=EMBEDDED)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the requested cases, or list the choices. Raises UsageError for an option that cannot be
    used, and the same errors as run."""
    steps.check_arguments(args, SESSION)
    user_options = parse_options(args.option)
    # QNN's CPU backend writes no context binary.
    args.direct |= find_backend(user_options) == "cpu"
    # Asked first, because read_limits sets args.policy to the file that it finds.
    is_policy_searched = args.policy is None
    policy = steps.read_limits(args, PROFILE, progress)
    if args.direct and args.embed_mode != EMBEDDED:
        raise UsageError(
            f"--embed-mode {args.embed_mode} cannot be used without a context binary",
            why="--direct and QNN's CPU backend write none",
            fix="leave out --embed-mode",
        )
    if args.estimate and find_backend(user_options) == "cpu":
        raise UsageError(
            "--estimate cannot be used with QNN's CPU backend",
            why="the simulator predicts the time of a program for HTP",
            fix="leave out --estimate",
        )
    if args.list:
        return steps.list_asked(args, policy, ONNX, find_candidates)
    if is_policy_searched and not args.model:
        require_files(policy, args.policy)
    specs = list(fit_files(steps.select_asked(args, policy, ONNX), parse_shapes(args.shape)))
    for scheme, soc in dict.fromkeys((spec.scheme.base, spec.soc) for spec in specs):
        chosen = choose_options(scheme, soc, user_options)
        # Before anything is fetched: a session would refuse them only when its case runs.
        check_sessions(chosen, args.profile, saver=args.saver, direct=args.direct)
    report = run(specs, policy, user_options, args, progress)
    return steps.publish(report, args.reports / SESSION, args, progress)


def find_candidates(spec: CaseSpec) -> list[Candidate]:
    """Return the nodes of a model that parts can select."""
    require_lane([spec])
    from ci.onnx.compile import list_nodes

    return list_nodes(spec)


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
    options: Mapping[str, str], profile: str, *, saver: bool, direct: bool = False
) -> None:
    """Check the options of all ONNX Runtime sessions of a case: the sessions that run the model,
    compile it, or record it with Saver.

    Raises UsageError for the first session with invalid options. The error lists all of them.
    """
    profiling = profile_options(profile, Path(PROFILE_CSV))
    if twice := sorted(profiling.keys() & options.keys()):
        raise UsageError(
            f"--profile and --option {twice[0]} exclude each other", fix="pass only one of them"
        )
    check_options({**options, **profiling})
    if not direct:
        check_options(options, COMPILING)
    if saver:
        check_options({**options, "qnn_saver_path": Path(SAVER_LIBRARY).name})


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


def fit_files(
    specs: Sequence[CaseSpec], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[CaseSpec]:
    """Yield the cases with their shapes. For .onnx files, ``shapes`` override the policy's shapes.
    Raises UsageError if there are ``shapes`` but no case is for an .onnx file."""
    if shapes and not any(spec.is_file for spec in specs):
        raise UsageError("--shape is for .onnx files", fix="pass one with --model")
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
    fits = run_tasks([partial(fit, spec) for spec in files], count_cores())
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


def require_lane(specs: Sequence[CaseSpec]) -> bool:
    """Return whether any case has to be exported from torch. Raises UnfitError for an unsupported
    Python or a missing package."""
    require_python(platform.python_version())
    exports = not all(spec.is_file for spec in specs)
    extra = "onnx-torch" if exports else "onnx"
    steps.require_packages(list_packages(exports=exports), extra)
    return exports


def choose_profile(chosen: choice.QnnChoice) -> str:
    """Return the profile to provision."""
    return PROFILE if chosen.is_usual else SDK_PROFILE


def prepare_cases(
    args: argparse.Namespace,
    specs: list[CaseSpec],
    policy: EmulatorPolicy,
    progress: Progress,
    command: str,
    *,
    judges: bool = False,
    **options: Any,
) -> tuple[list[CaseSpec], OnnxEngine, choice.QnnChoice]:
    """Return the cases with fixed shapes and the schemes of their files, an engine with these
    ``options``, and the chosen QNN. ``judges`` is as for fit_shapes. Raises the errors of
    require_lane, fit_shapes and fit_schemes."""
    engine = OnnxEngine(toolchain=(), sdk=Path(), exports=require_lane(specs), **options)
    # An adaptor is ExecuTorch's: ONNX Runtime calls QNN itself.
    chosen = choice.QnnChoice(choice.read_choice(args.sdk).sdk, choice.WHEEL)
    fitted, quantized = fit_shapes(
        specs, policy, progress, command, judges=judges, timeout_s=args.timeout_s
    )
    return fit_schemes(fitted, quantized, policy, args.scheme), engine, chosen


def prepare_engine(
    engine: OnnxEngine, environment: Environment
) -> tuple[OnnxEngine, tuple[Tool, ...]]:
    """Return the engine for a provisioned environment, and the parts of its toolchain."""
    names = (*DISTRIBUTIONS, *EXPORTING * engine.exports)
    versions = {name: importlib.metadata.version(name) for name in names}
    packages = (Tool(name=name, version=version) for name, version in versions.items())
    parts = (*list_parts(environment), *packages)
    (sdk,) = (artifact.root for artifact in environment.artifacts if artifact.name in RUNTIMES)
    find_library(sdk, engine.user_options)
    toolchain = name_toolchain(parts, exports=engine.exports)
    return replace(engine, toolchain=toolchain, sdk=sdk), parts


def prepare_runner(
    engine: OnnxEngine, environment: Environment, pool: Pool
) -> tuple[OnnxEngine, PooledRunner]:
    """Return the engine for a provisioned environment, and a runner of its programs."""
    ready, _ = prepare_engine(engine, environment)
    return ready, make_runner(ready, pool)


def run(
    specs: list[CaseSpec],
    policy: EmulatorPolicy,
    user_options: Mapping[str, str],
    args: argparse.Namespace,
    progress: Progress,
) -> Report:
    """Provision, check the environment, then run the cases. Show and time each step. Raises
    UnfitError as require_lane does."""
    claim_reports(args.reports / SESSION)
    phases, command = Phases(progress), repeat_command(args)
    specs, engine, chosen = prepare_cases(
        args,
        specs,
        policy,
        progress,
        command,
        judges=True,
        user_options=user_options,
        embed=args.embed_mode == "1",
        saver=args.saver,
        log_level=args.log_level,
        direct=args.direct,
    )
    options = steps.read_options(
        args,
        SESSION,
        policy,
        specs=specs,
        command=command,
        find_faults=match_faults,
        make_remedy_job=make_onnx_trial,
    )

    def run_specs(environment: Environment, scratch: ScratchPool) -> Report:
        ready, parts = prepare_engine(engine, environment)
        pool = scratch.open(environment.apply(os.environ))
        setup = Setup(
            options=options,
            engine=ready,
            runner=make_runner(ready, pool, args.profile),
            pool=pool,
            work=scratch.scratch,
            parts=parts,
        )
        return run_session(setup, phases)

    report = steps.take_steps(
        choose_profile(chosen),
        f"compile, run and judge {count(len(specs), 'case')}, {args.jobs} at a time",
        run_specs,
        phases,
        offline=args.offline,
        imports=engine.imports,
        choice=chosen,
    )
    # mend judges a module of PyTorch as test-emulator does, so its schemes are others.
    files = {spec.name for spec in specs if spec.is_file}
    return suggest_mending(report, "onnx", name_mending(args), mendable=files)
