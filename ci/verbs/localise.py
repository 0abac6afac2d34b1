"""``localise``: find the operator where a program loses accuracy, and why: the diagnosis of a red
verdict with more time, and with a search for the smallest part that is wrong by itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from ci.audit.localise import (
    Localised,
    Localiser,
    advise_on_part,
    choose_parts,
    describe_smallest,
    reproducer_folder,
)
from ci.audit.localise_search import LEAST_OFF
from ci.cases.facts import Options
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.policy import EmulatorPolicy
from ci.cases.request import Request
from ci.cases.spec import FILE_VERBS, CaseSpec
from ci.diagnosis.experiments import Operator, Smallest
from ci.facts.finding import NO_ADVICE, REMEDY_WORDS, Certainty, Question, name_cause
from ci.mend.experiments import Experiments
from ci.models.schemes import Scheme
from ci.models.suite import DEFAULT_SOC
from ci.onnx.fitting import parse_shapes, refuse_shapes
from ci.report.filled import fill_text
from ci.report.schema import Case, Status
from ci.report.text import name_models
from ci.verbs.lanes import onnx
from ci.verbs.lanes.choice import choose_lane, name_verb
from ci.verbs.lanes.lane import Lane
from ci.verbs.options import RUN, add_option, add_options, check_values, least, refuse_options
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
DIAGNOSE_S = 300.0  # for experiments, ten times as long as after a red verdict
SHOWN = 8
LEAST_LOST_DB = 0.1
CERTAIN = frozenset({Certainty.PROVEN, Certainty.KNOWN})


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
    failed = any(case.wrong or case.refusal or not case.outputs for case in cases)
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
        explain=list_reasons,
    )


def list_reasons(case: Localised) -> list[tuple[str, str]]:
    """Return the causes and remedies of a case as the verdict words them, each with its word."""
    causes = [(name_cause(cause, case.causes), cause.text) for cause in case.causes]
    return [*causes, *((REMEDY_WORDS[remedy.proof], remedy.text) for remedy in case.remedies)]


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
    limit = f"maximum number of programs that the search lowers per case; default: {LIMIT}"
    add("--limit N", limit, type=int, default=LIMIT, check=least(1))
    add(
        "--reproducer OUT",
        "write the smallest wrong part of the model to OUT.py, and its weights and inputs to"
        " OUT.pt; for a file, to OUT.onnx or OUT.tflite, and OUT.npz",
        type=user_path,
    )
    add_options(parser, "--no-cache", group=WHAT)
    gaps = {"--diagnose": f"{DIAGNOSE_S:g}"}
    add_options(parser, "--diagnose", gaps=gaps, group=WHAT, default=DIAGNOSE_S)
    add_options(parser, *RUN, "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Localise the loss of each requested case. The exit code is 1 if an output is wrong, or if a
    case has no program. Raises UsageError, and the same errors as choose_cases and
    open_setup."""
    check_values(args)
    models, runtime = (args.model, args.shape, args.policy), args.runtime
    lane, request = make_lane_request(args, SESSION, *models, runtime=runtime)
    specs, policy = choose_cases(lane, request, progress)
    with lane.prepare(request, policy, specs, progress) as plan:
        if args.reproducer:
            check_reproducer(args.reproducer, len(plan.specs), lane.schemes.suffix or PYTHON)
        options = Options(
            policy=policy,
            specs=plan.specs,
            timeout_s=request.timeout_s,
            use_cache=request.use_cache,
            **plan.options,
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
    refuse_options(args, lane.without, lane.schemes.title)
    # A runtime that was chosen is not that for which the policy lists its schemes.
    values = {"translate_schemes": bool(runtime), **values}
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
        localised_cases.append(CaseSearch(spec, setup, limit, reproducer, progress).run())
    return localised_cases


@dataclass
class CaseSearch:
    """Localises one case. ``localised`` is what the search found, once it has run."""

    spec: CaseSpec
    setup: Setup
    limit: int
    reproducer: Path | None
    progress: Progress
    localised: Localised | None = field(default=None, init=False)

    def run(self) -> Localised:
        """Return the operators at which the case loses accuracy, with the cause. Raises FailedError
        if the model cannot be loaded, exported or quantized, or if the reproducer cannot be
        written."""
        case = self.judge(strict=False)
        if case.judgement.status is Status.PASSED and case.judgement.noise_notes:
            # Even an error that is too small to matter shows which operator is wrong.
            case = self.judge(strict=True)
        # No experiment asked for the search in a case that passes, or whose time was up.
        localised = self.localised or self.find([], ())
        finding = next(iter(case.judgement.findings), None)
        is_refused = case.judgement.status is Status.FAILED and case.program.pte_bytes is None
        if finding and is_refused and localised.outputs and not localised.is_wrong:
            localised = structs.replace(localised, refusal=finding.whole_headline)
        shown = advise_on_part(localised) if localised.is_wrong else NO_ADVICE
        if finding is None:
            return localised.explained(shown)
        is_named = any(cause.certainty in CERTAIN for cause in finding.causes)
        is_shown = any(cause.certainty in CERTAIN for cause in shown.causes)
        if is_shown and not is_named and finding.question is Question.FAITHFUL:
            finding = finding.explained(shown)
        return localised.explained(finding)

    def judge(self, *, strict: bool) -> Case:
        """Return the verdict on the case, with the cause that experiments show. If ``strict``, an
        error above the predicted noise is a failure even if it is too small to matter."""
        options = self.setup.options
        policy, experiments = (
            structs.replace(options.policy, strict_noise=strict),
            options.experiments,
        )
        if isinstance(experiments, Experiments):
            experiments = replace(experiments, search=self.search, note=self.note)
        options = replace(options, policy=policy, experiments=experiments)
        return CaseRun(self.spec, replace(self.setup, options=options)).run().case

    def note(self, experiment: str) -> None:
        """Show an experiment."""
        self.progress.step(f"  {experiment}")

    def search(self, operators: list[Operator], suspected: tuple[str, ...]) -> Smallest | None:
        """Return what ``find`` shows of the smallest part that is wrong by itself; None if there is
        no such part."""
        return describe_smallest(self.find(operators, suspected), operators)

    def find(self, operators: list[Operator], suspected: tuple[str, ...]) -> Localised:
        """Search for the smallest part of the model that is wrong by itself, first in the part with
        the ``suspected`` of the ``operators`` of the float model."""
        # The search finds errors that are too small to matter, too.
        policy = structs.replace(self.setup.options.policy, strict_noise=True)
        setup = replace(self.setup, options=replace(self.setup.options, policy=policy))
        parts = choose_parts(setup.engine, setup.work / "model")
        first = [operator for operator in operators if operator.name in suspected]
        localiser = Localiser(self.spec, setup, parts, self.progress)
        self.localised = localiser.run(self.limit, self.reproducer, first)
        return self.localised
