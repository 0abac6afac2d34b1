"""``localise``: find the operator where a program loses accuracy, by lowering parts of its
model."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ci.audit.localise import (
    Localised,
    Localiser,
    choose_parts,
    reproducer_folder,
)
from ci.audit.localise_search import LEAST_OFF
from ci.cases.judged import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import EmulatorPolicy
from ci.cases.request import Request
from ci.cases.spec import FILE_VERBS, CaseSpec
from ci.models.schemes import Scheme
from ci.models.suite import DEFAULT_SOC
from ci.onnx.fitting import parse_shapes, refuse_shapes
from ci.report.filled import fill_text
from ci.report.text import name_models
from ci.verbs.lanes import onnx
from ci.verbs.lanes.choice import choose_lane, name_verb
from ci.verbs.lanes.lane import Lane
from ci.verbs.options import RUN, add_option, add_options, check_values, least, list_given
from ci.verbs.requests import make_request
from ci.verbs.trials import open_setup
from provisioning.console.caller import shown_path
from provisioning.console.command import WHAT, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError
from provisioning.files import require_writable
from provisioning.quoting import shell_words

SESSION = "localise"
PYTHON = ".py"  # the suffix of reproducers of models that are not in files
LIMIT = 60
SHOWN = 8
LEAST_LOST_DB = 0.1


class Localisation(Struct, frozen=True, kw_only=True):
    """The output of ``qnn-ci localise --json``."""

    cases: tuple[Localised, ...]
    schema_version: Literal[1] = 1


def data_of(cases: Sequence[Localised]) -> Any:
    """Return the data for the JSON output."""
    return msgspec.to_builtins(Localisation(cases=tuple(cases)))


def choose_exit(cases: Iterable[Localised]) -> ExitCode:
    """Return FAILED if an output of a program is wrong, or if a case has no program, otherwise
    OK."""
    failed = any(case.wrong or not case.outputs for case in cases)
    return ExitCode.FAILED if failed else ExitCode.OK


def render_cases(cases: Sequence[Localised]) -> str:
    """Return the results as text for a terminal."""
    return fill_text(
        "verbs/templates/localise.txt.j2",
        cases=cases,
        names=name_models(case.model for case in cases),
        shown=SHOWN,
        least_off=LEAST_OFF,
        least_lost_db=LEAST_LOST_DB,
        shown_path=lambda path: shown_path(Path(path)),
        repeat=repeat_case,
        test=test_reproducer,
    )


def repeat_case(case: Localised) -> str:
    """Return the verb that judges a case, with options that select it."""
    words = ("--model", case.model, "--scheme", case.scheme, "--soc", case.soc)
    return f"{name_verb(case.runtime)} {shell_words(words)}"


def test_reproducer(case: Localised) -> str:
    """Return the verb that rejects a case's reproducer, with its options; "" if the reproducer is a
    Python file, which runs by itself."""
    verb = FILE_VERBS.get(Path(case.reproducer).suffix)
    words = ["--model", shown_path(Path(case.reproducer))]
    if case.scheme == Scheme.FP16:  # a quantized part contains its scheme
        words += ["--scheme", case.scheme]
    if case.soc != DEFAULT_SOC:
        words += ["--soc", case.soc]
    return f"{verb} {shell_words(words)}" if verb else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser, WHAT)
    add_options(parser, "--model", required=True)
    add_options(parser, "--runtime", "--shape", "--scheme", "--soc")
    limit = f"maximum number of programs to lower per case; default: {LIMIT}"
    add("--limit N", limit, type=int, default=LIMIT, check=least(1))
    add(
        "--reproducer OUT",
        "write the smallest wrong part of the model to OUT.py, and its weights and inputs to"
        " OUT.pt; for a file, to OUT.onnx or OUT.tflite, and OUT.npz",
        type=user_path,
    )
    add_options(parser, "--no-cache", group=WHAT)
    add_options(parser, *RUN, "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Localise the loss of each requested case. The exit code is 1 if an output is wrong, or if a
    case has no program. Raises UsageError, and the same errors as choose_cases and
    open_setup."""
    check_values(args)
    # Even an error that is too small to matter shows which operator is wrong.
    models, runtime = (args.model, args.shape, args.policy), args.runtime
    lane, request = make_lane_request(args, SESSION, *models, runtime=runtime, strict_noise=True)
    specs, policy = choose_cases(lane, request, progress)
    with lane.prepare(request, policy, specs, progress) as plan:
        if args.reproducer:
            check_reproducer(args.reproducer, len(plan.specs), lane.schemes.suffix or PYTHON)
        options = Options(
            policy=policy,
            specs=plan.specs,
            timeout_s=request.timeout_s,
            use_cache=request.use_cache,
        )
        with open_setup(plan, options, progress, offline=request.offline) as setup:
            cases = localise(setup, args.limit, args.reproducer, progress)
    progress.step("4/4 report")
    return Outcome(render_cases(cases), data_of(cases), choose_exit(cases))


def make_lane_request(
    args: argparse.Namespace,
    session: str,
    models: Sequence[str],
    shape_words: Sequence[str],
    policy: Path | None,
    *,
    runtime: str,
    **values: Any,
) -> tuple[Lane[Any], Request]:
    """Return the lane of ``runtime`` or, if that is "", of the requested ``models``, and the
    request of a call. ``shape_words`` and ``policy`` are its options, and ``values`` are as for
    make_request. Raises UsageError for an option that has no effect in the lane, and the errors of
    choose_lane."""
    shapes = parse_shapes(shape_words)
    lane = choose_lane(models, policy, runtime)
    for option in list_given(args):
        if option.flag in lane.without:
            raise UsageError(
                f"{option.flag} is not for {lane.schemes.title}",
                why="it would have no effect",
                fix=f"leave out {option.flag}",
            )
    if lane is onnx.LANE:
        return lane, make_request(onnx.OnnxRequest, args, session, shapes=shapes, **values)
    if shapes:
        raise refuse_shapes()
    return lane, make_request(lane.request, args, session, **values)


def choose_cases(
    lane: Lane[Any], request: Request, progress: Progress
) -> tuple[list[CaseSpec], EmulatorPolicy]:
    """Return the requested cases and their policy. Raises UsageError for a model with other methods
    than forward, and the same errors as the lane's ``select``."""
    policy, schemes = lane.read_policy(request, progress)
    specs = lane.select(request, policy, schemes, progress)
    if several := [spec.model for spec in specs if spec.source.choices.methods]:
        raise UsageError(
            f"{several[0]} has several methods", fix="select a model whose only method is forward"
        )
    return specs, policy


def check_reproducer(file: Path, cases: int, suffix: str) -> None:
    """Raise UsageError if the file's name does not end in ``suffix`` or if there are several cases,
    and StoreError if the file's directory cannot be written."""
    if file.suffix != suffix:
        raise UsageError(
            f"--reproducer {file} does not end with {suffix}",
            why="a reproducer is a Python file, or a file of the model's kind if the model is one",
            fix=f"name it OUT{suffix}",
        )
    tensors = file.with_suffix(".pt" if suffix == PYTHON else ".npz")
    reproducer_folder(file).require_ours([file.name, tensors.name])
    if cases > 1:
        raise UsageError(
            f"--reproducer is for one case, and {cases} are selected",
            fix="select one --model, --scheme and --soc",
        )
    require_writable(file.parent)


def localise(
    shared: Setup, limit: int, reproducer: Path | None, progress: Progress
) -> list[Localised]:
    """Localise one case after the other, each with at most ``limit`` programs."""
    localised_cases = []
    specs = shared.options.specs
    names = name_models(spec.model for spec in specs)
    for number, spec in enumerate(specs):
        progress.step(
            f"3/4 localise {names[spec.model]} {spec.scheme} {spec.soc}, at most {limit} programs"
        )
        setup = replace(shared, work=shared.work / f"localise-{number}")
        parts = choose_parts(setup.engine, setup.work / "model")
        localised_cases.append(Localiser(spec, setup, parts, progress).run(limit, reproducer))
    return localised_cases
