"""``localise``: find the operator where a program loses accuracy, by lowering parts of its
model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from ci.audit.localise import Localised, Localiser, OnnxParts, TorchParts
from ci.audit.localise_report import choose_exit, data_of, render_cases
from ci.cases.judged import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import EMULATOR, EmulatorPolicy
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.models.schemes import EXECUTORCH, ONNX
from ci.onnx.engine import OnnxEngine
from ci.report.text import name_models
from ci.verbs.environments import are_files
from ci.verbs.lanes import onnx
from ci.verbs.lanes.steps import (
    read_limits,
    require_forward,
    select_asked,
)
from ci.verbs.lanes.trials import Tools, open_tools, prepare_onnx, prepare_torch
from ci.verbs.options import RUN, add_option, add_options, check_values, least
from ci.verbs.user_policy import choose_policy
from provisioning.console.command import WHAT, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.files import require_writable
from provisioning.manifest.targets import Backend

LIMIT = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser, group=WHAT)
    add_options(parser, "--model", required=True)
    add_options(parser, "--shape", "--scheme", "--soc")
    limit = f"maximum number of programs to lower per case; default: {LIMIT}"
    add("--limit", text=limit, type=int, default=LIMIT, metavar="N", check=least(1))
    add(
        "--reproducer",
        text="write the smallest wrong part of the model to OUT.py, and its weights and inputs to"
        " OUT.pt; for an .onnx file, to OUT.onnx and OUT.npz",
        type=user_path,
        metavar="OUT",
    )
    add_options(parser, "--no-cache", group=WHAT)
    add_options(parser, *RUN, "--sdk", "--adaptor")
    parser.set_defaults(record=False)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    check_values(args)
    args.strict_noise = True
    is_onnx = are_files(args.model, choose_policy(args.policy))
    lane, limits = (ONNX, onnx.PROFILE) if is_onnx else (EXECUTORCH, EMULATOR)
    policy = read_limits(args, limits, progress).for_backend(Backend.HTP)
    specs = [*onnx.fit_files(select_asked(args, policy, lane), onnx.parse_shapes(args.shape))]
    require_forward(specs)
    prepare = partial(prepare_onnx, policy=policy, command="qnn-ci localise")
    specs, tools = (prepare if is_onnx else prepare_torch)(args, specs, progress)
    if args.reproducer:
        check_reproducer(args.reproducer, len(specs), lane.suffix or ".py")
    cases = localise(specs, policy, tools, args, progress)
    return Outcome(render_cases(cases) + "\n", data_of(cases), choose_exit(cases))


def check_reproducer(file: Path, cases: int, suffix: str) -> None:
    """Raise UsageError if the file's name does not end in ``suffix`` or if there are several cases,
    and StoreError if the file's directory cannot be written."""
    if file.suffix != suffix:
        raise UsageError(
            f"--reproducer {file} does not end with {suffix}",
            why="a reproducer is a Python file, or an .onnx file if the model is one",
            fix=f"name it OUT{suffix}",
        )
    if cases > 1:
        raise UsageError(
            f"--reproducer is for one case, and {cases} are selected",
            fix="select one --model, --scheme and --soc",
        )
    require_writable(file.parent)


def localise(
    specs: Sequence[CaseSpec],
    policy: EmulatorPolicy,
    tools: Tools,
    args: argparse.Namespace,
    progress: Progress,
) -> list[Localised]:
    """Provision, check the environment, and localise one case after the other."""
    options = Options(policy=policy, timeout_s=args.timeout_s, use_cache=not args.no_cache)
    found = []
    with open_tools(tools, specs, args, progress) as (pool, scratch, engine, runner):
        names = name_models(spec.model for spec in specs)
        for number, spec in enumerate(specs):
            progress.step(
                f"3/4 localise {names[spec.model]} {spec.scheme.value} {spec.soc}, at most"
                f" {args.limit} programs"
            )
            setup = Setup(
                options=options,
                engine=engine,
                runner=runner,
                pool=pool,
                work=scratch / f"localise-{number}",
            )
            parts = (
                OnnxParts(engine, setup.work / "model")
                if isinstance(engine, OnnxEngine)
                else TorchParts(cast(ExecutorchEngine, engine))
            )
            found.append(Localiser(spec, setup, parts, progress).run(args.limit, args.reproducer))
    progress.step("4/4 report")
    return found
