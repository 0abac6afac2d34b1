"""``test``: judge models by every runtime that can take them (ExecuTorch, ONNX Runtime, LiteRT),
and compare the results. Each runtime's own verb judges, in a separate process."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ci.cases.policy import LANES, read_emulator_policy
from ci.cases.spec import match_socs, refuse_mistyped, select_cases
from ci.facts.known_fault import read_fault_names
from ci.models.schemes import (
    EXECUTORCH,
    LITERT,
    MODEL_FILES,
    ONNX,
    Scheme,
    SchemeSet,
    read_spelling,
)
from ci.models.suite import LITERT_SUITE
from ci.packages import modules
from ci.packages.modules import RuntimeModules
from ci.report.claim import REPORTS_FIX, claim_reports
from ci.report.document import show_document
from ci.report.export import REPORT_FILES
from ci.report.html import PAGE, write_page
from ci.report.publishing import append_summary
from ci.report.runtimes import TITLES, RuntimesReport, make_document, make_report
from ci.report.schema import Report, Status
from ci.report.write import read_report
from ci.verbs.environments import read_entries, takes
from ci.verbs.lanes.devices import add_missing_device, refuse_device
from ci.verbs.options import JOBS, TRANSLATE, Option, add_options, check_values
from ci.verbs.user_policy import choose_policy
from provisioning.console.caller import SESSION_VARIABLE, install_command, shown_path
from provisioning.console.command import MANY, Outcome, user_path
from provisioning.console.process import Completed, run_process, run_tasks
from provisioning.console.progress import LinesInOrder, Progress
from provisioning.console.usage import RUNS_AT_ONCE
from provisioning.errors import ExitCode, QnnCiError, UnfitError, UsageError
from provisioning.files import explain_writes, write_whole
from provisioning.manifest.targets import read_socs

SESSION = "test"
COMPARISON, REPORT_FILE = "runtimes.json", "report.json"
LOG = "run.log"
ERROR_LINES = 6  # of a runtime that was not run
FIND_MISSING = """
import sys
from importlib.util import find_spec
print(*[name for name in sys.argv[1:] if find_spec(name) is None])
"""
PASSED_ON = ("--timeout-s", "--diagnose", "--no-cache", "--strict-noise", "--offline")
JUDGED = frozenset({ExitCode.OK, ExitCode.FAILED})  # what a verb that judged exits with


@dataclass(frozen=True)
class Model:
    """A model to judge: its name in a policy or what was typed, its path, and the runtimes that the
    policy lists for it."""

    word: str
    path: str
    runtimes: Sequence[str] = ()


@dataclass(frozen=True)
class RuntimeVerb:
    """The verb of a runtime: its lane's schemes, the name of its policies, and the modules that its
    cases import."""

    verb: str
    lane: SchemeSet
    policy: str
    modules: RuntimeModules

    @property
    def session(self) -> str:
        """Return the session of ./nox that runs the verb."""
        return self.verb.replace("-", "_")

    def takes(self, model: Model) -> bool:
        """Return whether the runtime can take a model: a file that its lane compiles, or a
        function. A name of the suite is one that the lane's suite has. A policy may list other
        runtimes."""
        is_file = model.path.endswith(MODEL_FILES)
        is_known = is_file or ".py:" in model.path or model.path in self.lane.suite
        return is_known and takes(self.lane.runtime, model.path, model.runtimes)

    def find_socs(self, word: str) -> list[str]:
        """Return the SoCs that a name or a glob selects among those that the runtime compiles
        for."""
        with suppress(UsageError):
            return match_socs([word], sorted(self.lane.socs()))
        return []

    def find_schemes(self, names: Sequence[str]) -> list[str]:
        """Return this lane's schemes for the requested ones, each once."""
        return [scheme.value for scheme in self.lane.translate(map(Scheme, names))]

    def choose_modules(self, models: Sequence[Model]) -> tuple[tuple[str, ...], str]:
        """Return the modules that those of the models need that the runtime takes, and the extra
        that installs them."""
        paths = [model.path for model in models if self.takes(model)]
        written_files = LITERT_SUITE if self.lane is LITERT else {}
        is_files = all(path.endswith(MODEL_FILES) or path in written_files for path in paths)
        return self.modules.choose(has_functions=not is_files)

    def check_cases(
        self,
        models: Sequence[Model],
        schemes: Sequence[str],
        socs: Sequence[str],
        policy: Path | None,
    ) -> None:
        """Raise ManifestError for an invalid policy, and UsageError for a model that the runtime's
        verb would refuse without compiling it: because it does not exist, or because the policy
        requests what the runtime lacks."""
        limits = read_emulator_policy(policy, self.policy)
        select_cases(
            limits.suite,
            sorted(self.lane.socs()),
            entries=limits.models,
            models=[model.word for model in models if self.takes(model)],
            schemes=self.find_schemes(schemes),
            soc_names=socs,
            lane=self.lane,
            translates=True,
        )


RUNTIMES = {
    "executorch": RuntimeVerb(
        "test-emulator", EXECUTORCH, LANES["test_emulator"], modules.EXECUTORCH
    ),
    "onnxruntime": RuntimeVerb("test-onnx", ONNX, LANES["test_onnx"], modules.ONNX),
    "litert": RuntimeVerb("test-litert", LITERT, LANES["test_litert"], modules.LITERT),
}


@dataclass(frozen=True)
class Turn:
    """What a runtime judges: the Python that runs its verb, and the verb's arguments."""

    name: str
    python: str
    words: tuple[str, ...]

    def place_in(self, folder: Path) -> Path:
        """Return where its report is written."""
        return folder / self.name / RUNTIMES[self.name].session


@dataclass
class RuntimesPlan:
    """What the runtimes do: the turns of those that judge something, why others are ``not_run``,
    with the errors of those that were refused, and the requested SoCs that a runtime lacks."""

    turns: list[Turn] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    errors: list[QnnCiError] = field(default_factory=list)
    unknown_socs: dict[str, tuple[str, ...]] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--model", gaps={"--model": "file.py:factory, file.onnx or file.tflite"})
    add_options(parser, "--scheme", "--soc", "--policy")
    gaps = {"--jobs": "cases", "--reports": f"{SESSION}/"}
    add_options(parser, "--jobs", "--reports", gaps=gaps)
    add_options(parser, *PASSED_ON)
    text = f"judge by this runtime only; repeatable: {', '.join(RUNTIMES)}"
    parser.add_argument("--runtime", choices=[*RUNTIMES], **MANY, help=text)
    text = "the Python that has a runtime's packages, such as litert=.nox/litert-torch/bin/python"
    parser.add_argument("--python", metavar="RUNTIME=PYTHON", **MANY, help=text)
    add_missing_device(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Judge the models by each runtime, and write the comparison next to their reports. The exit
    code is 1 if a case failed, else that of a runtime that could not run, else 0. Raises UsageError
    if no runtime can take the models, and the same errors as refuse_device and plan_turns."""
    check_values(args)
    pythons = parse_pythons(args.python)
    models = list_chosen(args.model, args.policy)
    chosen = choose_runtimes(models, args.runtime)
    refuse_device(args.device, SESSION, [runtime.session for runtime in chosen.values()])
    require_chosen("--runtime", args.runtime, chosen)
    require_chosen("--python", pythons, chosen)
    check_schemes(args.scheme, chosen)
    plan = plan_turns(
        models,
        chosen,
        pythons,
        schemes=args.scheme,
        requested_socs=choose_socs(args.soc, chosen),
        policy=args.policy,
        passed_on=repeat_typed(args.options, vars(args)),
    )
    for name, reason in plan.not_run.items():
        # Now, and not only at the end: the other runtimes may take minutes.
        progress.step(f"warning: {TITLES[name]} is not run: {reason}")
    folder = args.reports / SESSION
    claim_reports(folder)
    remove_earlier(folder)
    reports: dict[str, Report] = {}
    places: dict[str, str] = {}
    codes = [error.exit_code for error in plan.errors]
    not_run = dict(plan.not_run)
    for turn, ended in zip(
        plan.turns, run_turns(plan.turns, args.jobs, folder, progress), strict=True
    ):
        place = turn.place_in(folder)
        if has_judged(ended, place):
            reports[turn.name] = read_report(place)
            places[turn.name] = place.relative_to(folder).as_posix()
            codes.append(ExitCode(ended.returncode))
        else:
            not_run[turn.name] = explain_end(ended)
            codes.append(choose_code(ended.returncode))
    for_all = [name for name, runtime in chosen.items() if all(map(runtime.takes, models))]
    comparison = make_report(
        reports,
        places,
        not_run,
        plan.unknown_socs,
        models=[model.word for model in models],
        for_all=for_all,
        fault_names=read_fault_names(),
    )
    document = make_document(comparison)
    write_whole(folder / COMPARISON, msgspec.json.encode(comparison))
    write_page(document, folder, progress)
    append_summary(document)
    return Outcome(
        show_document(document), msgspec.to_builtins(comparison), find_code(comparison, codes)
    )


def remove_earlier(folder: Path) -> None:
    """Remove the reports of an earlier run, also of runtimes that do not judge now. They would be
    compared, or taken for those of this run, if it wrote none or is interrupted. Raises StoreError
    if that fails."""
    files = [folder / COMPARISON, folder / PAGE]
    for name, runtime in RUNTIMES.items():
        files += [folder / name / runtime.session / file for file in REPORT_FILES]
    with explain_writes(folder, REPORTS_FIX):
        for file in files:
            file.unlink(missing_ok=True)


def repeat_typed(options: Sequence[Option], values: Mapping[str, Any]) -> list[str]:
    """Return the words of the options that are for each runtime's verb, as they were typed."""
    words = []
    for option in options:
        if option.flag in PASSED_ON and option.is_typed(values):
            value = values[option.argument.dest]
            words += [option.flag] if value is True else [option.flag, f"{value:g}"]
    return words


def plan_turns(
    models: Sequence[Model],
    chosen: Mapping[str, RuntimeVerb],
    pythons: Mapping[str, str],
    *,
    schemes: Sequence[str],
    requested_socs: Sequence[str],
    policy: Path | None,
    passed_on: Sequence[str],
) -> RuntimesPlan:
    """Return what each of the ``chosen`` runtimes does, before any of them starts. All verbs have
    the arguments ``passed_on``. Runtimes that lack packages or that refuse the models judge
    nothing. Raises the error of the first one if all of them refuse the models."""
    plan = RuntimesPlan()
    for name, runtime in chosen.items():
        if schemes and not runtime.find_schemes(schemes):
            plan.not_run[name] = f"it has no counterpart of {', '.join(schemes)}"
            continue
        known_socs = runtime.lane.socs()
        socs = [soc for soc in requested_socs if soc in known_socs]
        if unknown := tuple(soc for soc in requested_socs if soc not in known_socs):
            plan.unknown_socs[name] = unknown
            if not socs:
                continue
        python = pythons.get(name, sys.executable)
        try:
            runtime.check_cases(models, schemes, socs, choose_policy(policy))
            require_modules(python, *runtime.choose_modules(models))
        except QnnCiError as error:
            plan.not_run[name] = join_lines(str(error).splitlines())
            plan.errors.append(error)
            continue
        further = [word for soc in socs for word in ("--soc", soc)]
        further += passed_on
        further += ["--policy", str(policy)] if policy else []
        words = list_words(runtime, models, schemes, further)
        plan.turns.append(Turn(name, python, tuple(words)))
    refusals = [error for error in plan.errors if error.exit_code is ExitCode.USAGE]
    if refusals and len(refusals) == len(chosen):
        raise refusals[0]
    return plan


def require_modules(python: str, names: Sequence[str], extra: str) -> None:
    """Raise UnfitError if a Python lacks one of the modules. A Python that does not answer lacks
    none: its verb reports why."""
    if python == sys.executable:
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        command = install_command(extra)
    else:
        ended = run_process([python, "-c", FIND_MISSING, *names], check=False)
        missing = ended.output.split() if ended.returncode == ExitCode.OK else []
        command = install_command(extra, python)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UnfitError(f"{', '.join(missing)} {verb} not installed", fix=command)


def find_code(comparison: RuntimesReport, codes: Sequence[ExitCode]) -> ExitCode:
    """Return DEFECT if a runtime's verb did, FAILED if a case failed, else the first code of a
    runtime that is not OK."""
    if ExitCode.DEFECT in codes:
        return ExitCode.DEFECT
    if any(row.status is Status.FAILED for row in comparison.rows):
        return ExitCode.FAILED
    return next((code for code in codes if code), ExitCode.OK)


def has_judged(ended: Completed, place: Path) -> bool:
    """Return whether a runtime's verb judged its cases, and wrote its report to ``place``. A report
    has a case that showed a defect of this project, too."""
    return ended.returncode in {*JUDGED, ExitCode.DEFECT} and (place / REPORT_FILE).is_file()


def choose_code(code: int) -> ExitCode:
    """Return the exit code for a runtime's process that wrote no report, which exited with
    ``code``. A Python that cannot run this project, because it lacks a package, exits with 1 or 0,
    as if the verb had judged. A signal is a negative code."""
    if code in JUDGED:
        return ExitCode.ENVIRONMENT
    return ExitCode(code) if code in {*ExitCode} else ExitCode.TOOL


def explain_end(ended: Completed) -> str:
    """Return why a runtime has no report: the error of its verb, which comes last, with the lines
    that are indented below it. Of another end, it is how the process ended, and the last lines of
    its output."""
    lines = ended.output.strip().splitlines()[-ERROR_LINES:]
    if lines and ended.returncode in {*ExitCode} - JUDGED:
        starts = [place for place, line in enumerate(lines) if not line.startswith(" ")]
        return join_lines(lines[max(starts, default=0) :])
    end = f"{Path(ended.argv[0]).name} {ended.describe()}, and wrote no report"
    return f"{end}. Its output ends with: {join_lines(lines)}" if lines else end


def join_lines(lines: Iterable[str]) -> str:
    """Return lines of text as a single one."""
    return "; ".join(line.strip() for line in lines)


def list_chosen(words: Sequence[str], policy: Path | None) -> list[Model]:
    """Return the models that the values of --model select, or all of the policy's without any.
    Raises UsageError if there is none."""
    entries = read_entries(choose_policy(policy))
    chosen: dict[str, Model] = {}
    for word in words or entries:
        names = [name for name in entries if fnmatchcase(name.lower(), word.lower())]
        for name in names:
            chosen[name] = Model(name, *entries[name])
        if not names:
            chosen[word] = Model(word, word)
    if not chosen:
        raise UsageError("there is no model to judge", fix="pass --model file.py:factory")
    return [*chosen.values()]


def choose_runtimes(models: Sequence[Model], requested: Sequence[str]) -> dict[str, RuntimeVerb]:
    """Return the runtimes, of the ``requested`` ones if there are any, that take at least one of
    the models. Raises UsageError if a model has none."""
    names = [name for name in RUNTIMES if not requested or name in requested]
    for model in models:
        if not any(RUNTIMES[name].takes(model) for name in names):
            refuse_mistyped(model.path)
            key = f"models.{model.word}.runtimes"
            lists = f"{key} of the policy lists {', '.join(model.runtimes)}"
            usable = "pass file.py:factory, file.onnx or file.tflite, and leave out --runtime"
            raise UsageError(
                f"{model.word} cannot be judged by {list_titles(names)}",
                why=lists if model.runtimes else "",
                fix=f"list {' or '.join(names)} there" if model.runtimes else usable,
            )
    return {
        name: RUNTIMES[name]
        for name in names
        if any(RUNTIMES[name].takes(model) for model in models)
    }


def require_chosen(flag: str, names: Iterable[str], chosen: Collection[str]) -> None:
    """Raise UsageError for a runtime that an option names and that judges nothing in this call."""
    for name in names:
        if name not in chosen:
            raise UsageError(
                f"{flag} {name} has no effect",
                why=f"the models are judged by {list_titles(chosen)}",
                fix=f"leave it out, or pass a model that {TITLES[name]} takes",
            )


def check_schemes(names: Sequence[str], chosen: Mapping[str, RuntimeVerb]) -> None:
    """Raise UsageError for a scheme of which none of the chosen runtimes has a counterpart."""
    scheme_names = [scheme.value for scheme in Scheme]
    for name in names:
        if name not in scheme_names:
            meant = read_spelling(name)
            fix = f"pass --scheme {meant}" if meant else f"use one of: {', '.join(scheme_names)}"
            raise UsageError(f"no scheme {name!r}", fix=fix)
        if not any(runtime.find_schemes([name]) for runtime in chosen.values()):
            raise UsageError(
                f"--scheme {name} has no effect",
                why=f"no counterpart of it is in {list_titles(chosen)}",
                fix="leave it out, or pass another scheme",
            )


def choose_socs(words: Sequence[str], chosen: Mapping[str, RuntimeVerb]) -> list[str]:
    """Return the SoCs that names and globs select, each once, among those that one of the chosen
    runtimes compiles for. Raises UsageError for a name or a glob that selects none."""
    names: list[str] = []
    for word in words:
        selected = [soc for runtime in chosen.values() for soc in runtime.find_socs(word)]
        if not selected:
            known = {soc for runtime in RUNTIMES.values() for soc in runtime.lane.socs()}
            match_socs([word], sorted(known.union(read_socs())))
            raise UsageError(
                f"--soc {word} has no effect",
                why=f"no SoC that it selects is compiled for by {list_titles(chosen)}",
                fix="choose another SoC, or another --runtime",
            )
        names += selected
    return [*dict.fromkeys(names)]


def list_titles(runtimes: Iterable[str]) -> str:
    """Return the titles of runtimes as text."""
    return ", ".join(TITLES[runtime] for runtime in runtimes)


def parse_pythons(words: Sequence[str]) -> dict[str, str]:
    """Return the Python of each runtime that ``words`` name. Raises UsageError for another word."""
    pythons = {}
    for word in words:
        name, _, python = word.partition("=")
        if name not in RUNTIMES or not python:
            raise UsageError(
                f"--python {word}: it is not RUNTIME=PYTHON",
                fix=f"start with one of: {', '.join(f'{runtime}=' for runtime in RUNTIMES)}",
            )
        path = user_path(python)
        if not os.access(path, os.X_OK):
            raise UsageError(f"--python {word}: {shown_path(path)} cannot be run")
        pythons[name] = str(path)
    return pythons


def list_words(
    runtime: RuntimeVerb, models: Sequence[Model], schemes: Sequence[str], further: Sequence[str]
) -> list[str]:
    """Return the arguments of a runtime's verb: the models that it takes, its own schemes, and
    ``further`` words. Without schemes, the verb chooses."""
    words = [runtime.verb]
    for model in filter(runtime.takes, models):
        words += ["--model", model.word]
    for scheme in runtime.find_schemes(schemes):
        words += ["--scheme", scheme]
    return [*words, *further, "--estimate", TRANSLATE]


def run_turns(
    turns: Sequence[Turn], jobs: int, folder: Path, progress: Progress
) -> list[Completed]:
    """Run the verbs of the runtimes side by side, so that together they run ``jobs`` cases at a
    time. Each shows its lines together, in the order of ``turns``."""
    at_once = max(min(jobs, len(turns)), 1)
    shares = {JOBS: str(jobs // at_once), RUNS_AT_ONCE: str(at_once)}
    lines = LinesInOrder(progress.step, len(turns))

    def run(number: int, turn: Turn) -> Completed:
        show = partial(lines.add, number)
        show(f"{TITLES[turn.name]}: {RUNTIMES[turn.name].verb}")
        variables = {**make_variables(os.environ, RUNTIMES[turn.name].session), **shares}
        ended = run_runtime(turn, turn.place_in(folder), variables, show)
        lines.end(number)
        return ended

    return run_tasks([partial(run, number, turn) for number, turn in enumerate(turns)], at_once)


def run_runtime(
    turn: Turn, place: Path, variables: Mapping[str, str], show: Callable[[str], None]
) -> Completed:
    """Run a runtime's verb, which writes its report to ``place``, and show its progress."""
    place.parent.mkdir(parents=True, exist_ok=True)
    argv = [turn.python, "-m", "ci", *turn.words, "--reports", str(place.parent)]
    return run_process(argv, env=variables, log=place.parent / LOG, on_line=show, check=False)


def make_variables(variables: Mapping[str, str], session: str) -> dict[str, str]:
    """Return the variables of a runtime's process, which imports the same copy of this project. If
    a session of ./nox runs this verb, the commands that the process prints call ``session``, which
    runs that runtime alone."""
    project_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [project_root, variables.get("PYTHONPATH", "")]))
    runtime_variables = {**variables, "PYTHONPATH": path}
    if variables.get(SESSION_VARIABLE) == SESSION:
        runtime_variables[SESSION_VARIABLE] = session
    return runtime_variables
