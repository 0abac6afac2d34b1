"""Runs all cases of a session and makes the report, including facts about the machine and the
duration of the run."""

from __future__ import annotations

import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from ci.cases.baselines import Baseline, read_baselines, suite_folder
from ci.cases.engine import Engine
from ci.cases.facts import CaseResult, Evidence, Options
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.pool import Pool
from ci.cases.reasons import FIX
from ci.cases.row import make_case
from ci.cases.spec import CaseSpec
from ci.facts.finding import Advice, Cause, Finding, Proof, Question, Remedy
from ci.facts.kinds import INCONCLUSIVE
from ci.judging.causes import NOT_TRIED
from ci.models.numerics import NUMERICS
from ci.models.schemes import Scheme
from ci.models.suite import expect_s
from ci.models.user_models import Metric, find_function, is_function, lacks_function
from ci.report.schema import Case, Host, Phase, Report, Source, Status, Tool, summarize
from ci.report.text import count, name_models
from provisioning.artifacts.choice import list_device_runtimes
from provisioning.artifacts.environment import Environment
from provisioning.console.caller import read_clock
from provisioning.console.command import user_path
from provisioning.console.git import ask_git
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.console.usage import share_memory
from provisioning.console.user_folder import UserFolder
from provisioning.doctor.survey.host import usable_cores
from provisioning.documents import read_json, read_window
from provisioning.errors import MissingToolError, ToolError, UsageError

# The keys of a model's entry with which the messages of its data and its metric start (at_key).
DATA_KEYS = frozenset({"calibration", "inputs", "metric.labels", "metric.function"})
UNRECORDED = (
    "no baselines are recorded for this toolchain, so cases were judged only by limits (--record"
    " records them)"
)


def read_host() -> Host:
    """Return facts about this machine. ``processor`` is the model name in /proc/cpuinfo, or else
    Python's name for the processor."""
    named = re.search(r"^model name\s*: (.*)$", read_window(Path("/proc/cpuinfo")), re.MULTILINE)
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        processor=named[1].strip() if named else platform.processor(),
        cpus=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        libc=" ".join(platform.libc_ver()).strip(),
        python=platform.python_version(),
    )


def started_now(environ: Mapping[str, str] = os.environ) -> str:
    """Return the current time, or the time in SOURCE_DATE_EPOCH, as UTC in ISO 8601. Raises
    UsageError if SOURCE_DATE_EPOCH is invalid."""
    # Filled, because on Linux %Y does not pad the year 5, which SOURCE_DATE_EPOCH can mean.
    return f"{read_clock(environ)[0]:%Y-%m-%dT%H:%M:%S}Z".zfill(20)


def read_source(environ: Mapping[str, str] = os.environ) -> Source:
    """Return the commit, the branch and the pull request from the CI system's variables. If the
    commit or branch is not in the variables, it is read from git. Unknown values are empty.

    For a pull request, GITHUB_SHA is GitHub's merge commit, so the commit is read from the event.
    """
    place = user_path(".")

    def read_first(*names: str) -> str:
        return next((environ[name] for name in names if environ.get(name)), "")

    commit = read_first("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")
    branch = read_first("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "BRANCH_NAME")
    request = read_first("CI_MERGE_REQUEST_IID", "CHANGE_ID")
    if match := re.fullmatch(r"refs/pull/(\d+)/\w+", environ.get("GITHUB_REF", "")):
        request = match[1]
        with suppress(ValueError, KeyError, TypeError):
            event: Any = read_json(Path(environ["GITHUB_EVENT_PATH"]), dict[str, Any])
            commit = str(event["pull_request"]["head"]["sha"])
    with suppress(ToolError, MissingToolError):
        commit = commit or ask_git(place, "rev-parse", "HEAD").decode().strip()
        branch = branch or ask_git(place, "branch", "--show-current").decode().strip()
    return Source(commit=commit, branch=branch, pull_request=request)


@dataclass
class Phases:
    """The durations of a session's phases in seconds."""

    progress: Progress
    rows: list[Phase] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Record the wall-clock time of the block as the duration of phase ``name``."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.rows.append(Phase(name=name, seconds=round(time.monotonic() - began, 3)))

    def wall_s(self) -> float:
        """Return the seconds since this object was created."""
        return round(time.monotonic() - self.started, 3)


def check_data_of(engine: Engine, spec: CaseSpec, metric: Metric | None) -> None:
    """Check the data files and the metric of a case in a worker. Raises UsageError if they do not
    match the model."""
    sets = engine.read_data(spec)
    if metric:
        from ci.models.user_data import check_metric

        check_metric(metric, sets)


def check_functions(specs: Iterable[CaseSpec], pool: Pool, log: Path, timeout_s: float) -> None:
    """Raise UsageError if the file of a user's model lacks its function, before any model is
    lowered. Files that define the function plainly are not imported. If an import fails, the
    model's cases fail later, with the reason."""
    files: dict[str, list[str]] = {}
    for source in dict.fromkeys(spec.source for spec in specs if is_function(spec.reference)):
        file, _, factory = source.reference.rpartition(":")
        for function in (factory, *source.choices.methods):
            if find_function(Path(file), function) is not True:
                files.setdefault(file, []).append(function)
    for file, functions in files.items():
        ended = pool.run(partial(find_missing, file, functions), log, timeout_s, fresh=True)
        if ended.result:
            raise lacks_function(Path(file), *ended.result)


def find_missing(file: str, functions: Sequence[str]) -> tuple[str, list[str]] | None:
    """Import a user's file, and return the first of ``functions`` that it lacks and those that it
    has, or None if it lacks none. Raises FailedError if the import fails."""
    from ci.models.user_code import import_file, list_callables, users_code

    with users_code(file):
        module = import_file(Path(file).resolve())
        missing = [name for name in functions if not callable(getattr(module, name, None))]
    return (missing[0], list_callables(module)) if missing else None


def run_session(
    setup: Setup, phases: Phases, make_run: Callable[[CaseSpec, Setup], CaseRun] = CaseRun
) -> Report:
    """Run every case that was asked for, and return the report. A case that fails does not stop the
    others. ``make_run`` makes the object that runs one case.

    Raises UsageError if a function does not exist or a data file does not match its model,
    StoreError if the disk is full, and UnfitError if no process can be started.
    """
    options, pool, specs = setup.options, setup.pool, setup.options.specs
    clear_beside(options)
    recorded, compared = find_baselines(options, setup.parts)
    setup = replace(setup, options=replace(options, recorded=recorded))
    pool.memory = share_memory(options.jobs)
    check_functions(specs, pool, setup.work / "functions.log", options.timeout_s)
    check_data(setup)
    runs = [make_run(spec, setup) for spec in specs]
    with phases.measure("cases"):
        results = run_cases(runs, pool, options.jobs, phases.progress)
    remarks = () if compared else (UNRECORDED,)
    return make_report(options, setup.parts, results, phases, remarks)


def check_data(setup: Setup) -> None:
    """Check the data files of the models before any model is lowered. Raises UsageError if a file
    does not match its model; the message starts with the file's key in the policy, or without a key
    with the model. If a model's code raises another exception, the model's cases fail later."""
    policy, specs = setup.options.policy, setup.options.specs
    for spec in {spec.model: spec for spec in specs if spec.source.has_data}.values():
        ended = setup.pool.run(
            partial(check_data_of, setup.engine, spec, policy.find_entry(spec.model).metric),
            setup.work / "data.log",
            setup.options.timeout_s,
            fresh=True,
            max_bytes=policy.memory_of(spec.model),
        )
        if isinstance(ended.error, UsageError):
            place = f"models.{spec.model}" if spec.model in policy.models else spec.model
            raise locate_error(ended.error, place)


def locate_error(error: UsageError, place: str) -> UsageError:
    """Return an error about a model's data whose message starts with ``place``, the model's entry
    in the policy or its file, and the data's key. A file next to the model has no key."""
    key, _, text = error.what.partition(": ")
    where, text = (f"{place}.{key}", text) if key in DATA_KEYS else (place, error.what)
    return UsageError(f"{where}: {text}", why=error.why, fix=error.fix)


def find_baselines(options: Options, parts: Sequence[Tool]) -> tuple[Mapping[str, Baseline], bool]:
    """Return the baselines of the cases for the toolchain ``parts``, and whether none are missing.
    The suite's baselines are missing if the run has cases of the suite but this toolchain has no
    baselines file. The same applies to the user's models, if they have a baselines directory. With
    --record, the result is ({}, True)."""
    baselines: dict[str, Baseline] = {}
    compared, users = True, options.baselines
    for folder, is_suite in ((suite_folder(), True), (users, False)):
        run = any(spec.is_ours is is_suite for spec in options.specs)
        is_compared = run and not options.record
        if is_compared and folder and (is_suite or folder.is_dir()):
            # A policy's model may have the name of a model of the suite, whose figures are not its
            # own.
            models_of_policy = options.policy.models if is_suite else ()
            recorded = read_baselines(
                list_tools(parts), options.backend.value, folder, models_of_policy
            )
            compared = compared and bool(recorded)
            baselines |= recorded
    return baselines, compared


def list_tools(parts: Sequence[Tool]) -> tuple[Tool, ...]:
    """Return the toolchain as listed in the report."""
    return (*parts, Tool(name="numerics", version=NUMERICS))


def report_unrun(
    options: Options,
    parts: Sequence[Tool],
    phases: Phases,
    finding: Finding,
    *,
    runner: str,
    library: str,
) -> Report:
    """Return the report for a host that lacks ``library``. All cases are unsupported."""
    clear_beside(options)
    row = partial(make_case, status=Status.UNSUPPORTED, findings=[finding], runner=runner)
    cases = [row(spec, Evidence(lacks=library)) for spec in options.specs]
    return make_report(options, parts, [*map(CaseResult, cases)], phases)


def make_report(
    options: Options,
    parts: Sequence[Tool],
    results: Sequence[CaseResult],
    phases: Phases,
    remarks: Sequence[str] = (),
) -> Report:
    """Return the report of a run, with one row per result in the same order. ``parts`` is the
    toolchain."""
    cases = tuple(compare_schemes(results))
    controls = tuple(control for result in results for control in result.controls)
    noted = tuple(f"{result.case.name}: {result.noted}" for result in results if result.noted)
    runtimes = list_device_runtimes(options.policy.runtimes)
    return Report(
        session=options.session,
        started=options.started,
        host=read_host(),
        source=read_source(),
        toolchain=list_tools(parts),
        thresholds=options.policy.describe_limits(options.specs),
        cases=cases,
        controls=controls,
        summary=summarize(cases, controls, phases.wall_s(), phases.rows),
        command=options.command,
        backend=options.backend.value,
        runtimes=tuple(Tool(name=name, version=text) for name, text in runtimes),
        remarks=(*remarks, *noted),
        unjudged=len(options.specs) - len(cases),
    )


# Questions whose answer may depend on the scheme
SIXTEEN_BIT_SCHEMES = {str(scheme) for scheme in Scheme if scheme.recipe.activation_bits == 16}
OTHER_SCHEMES = (
    *(Question.FAITHFUL, Question.QUANTIZED, Question.TASK, Question.LOWERED, Question.RUN),
)


def compare_schemes(results: Sequence[CaseResult]) -> Iterator[Case]:
    """Yield the cases. A failed one names the other schemes of its model that passed in this run as
    a remedy, or states that none did. What a known fault says of other schemes is added if this run
    does not contradict it."""
    alike: dict[tuple[str, str], list[Case]] = {}
    for result in results:
        alike.setdefault((result.case.model, result.case.soc), []).append(result.case)
    for result in results:
        case = result.case
        cases_of_model = alike[case.model, case.soc]
        case = check_warnings(case, cases_of_model)
        first = (
            case.judgement.findings[0]
            if case.judgement.status is Status.FAILED and case.judgement.findings
            else None
        )
        if first is None:
            yield case
            continue
        # A fault is the cause in this scheme, so only what it claims of other schemes is checked.
        other_cases = [sibling for sibling in cases_of_model if sibling.scheme != case.scheme]
        first = add_claims(first, result.claims, other_cases)
        first = check_remedies(first, case.scheme, cases_of_model)
        # A gate that accepts wrong outputs in this scheme may reject them in another one.
        may_depend = first.question in OTHER_SCHEMES or first.id == INCONCLUSIVE.id
        if len(cases_of_model) > 1 and may_depend:
            if passed := [
                case_of_scheme.scheme
                for case_of_scheme in cases_of_model
                if case_of_scheme.judgement.status is Status.PASSED
            ]:
                text = f"lower it in {' or '.join(passed)}, which passed in this run"
                first = first.explained(Advice(remedies=(Remedy(text=text, proof=Proof.TRIED),)))
            else:
                schemes = ", ".join(case_of_scheme.scheme for case_of_scheme in cases_of_model)
                detail = f"no scheme of this run passed: {schemes}"
                first = structs.replace(first, details=(*first.details, detail))
        yield structs.replace(
            case,
            judgement=structs.replace(
                case.judgement,
                findings=(
                    first,
                    *(
                        check_remedies(finding, case.scheme, cases_of_model)
                        for finding in case.judgement.findings[1:]
                    ),
                ),
            ),
        )


def add_claims(
    finding: Finding, claims: Mapping[str, tuple[str, Sequence[str]]], cases: Sequence[Case]
) -> Finding:
    """Return a finding whose known faults also say which other schemes are right, or which of them
    are wrong in this run. ``cases`` are those of the same model in other schemes, and ``claims`` as
    in CaseResult."""

    def add(cause: Cause) -> Cause:
        text, schemes = claims.get(cause.name, ("", ()))
        wrong = [case.scheme for case in cases if is_wrong(case) and case.scheme not in schemes]
        if text and wrong:
            text = f"in this run, {' and '.join(wrong)} failed, too"
        return structs.replace(cause, text=f"{cause.text}; {text}") if text else cause

    return structs.replace(finding, causes=tuple(map(add, finding.causes)))


def check_remedies(finding: Finding, own_scheme: str, cases: Sequence[Case]) -> Finding:
    """Return a finding whose remedies say which of the other schemes that they name, or mean by
    16-bit activations, failed or passed in this run. ``cases`` are those of the same model.
    Commands stay as they are, and so do lines for a policy, which have schemes in quotes."""
    of_16_bits = [case for case in cases if case.scheme in SIXTEEN_BIT_SCHEMES]
    failed = [
        case.scheme
        for case in cases
        if case.judgement.status is Status.FAILED and case.scheme != own_scheme
    ]

    def check(remedy: Remedy) -> Remedy:
        for status in (Status.PASSED, Status.FAILED):
            schemes = [case.scheme for case in of_16_bits if case.judgement.status is status]
            if schemes and NOT_TRIED in remedy.text:
                tried = f" (in this run, {' and '.join(schemes)} {status.value})"
                return structs.replace(remedy, text=remedy.text.replace(NOT_TRIED, tried))
        return structs.replace(remedy, text=name_failed(remedy.text, failed, "failed, too"))

    return structs.replace(finding, remedies=tuple(map(check, finding.remedies)))


def check_warnings(case: Case, cases: Sequence[Case]) -> Case:
    """Return a case whose warnings of known faults say which of the schemes that their remedies
    name failed in this run. ``cases`` are those of the same model."""
    failed = [
        sibling.scheme
        for sibling in cases
        if sibling.judgement.status is Status.FAILED and sibling.scheme != case.scheme
    ]
    verb = "failed, too" if case.judgement.status is Status.FAILED else "failed"
    warnings = []
    for warning in case.judgement.warnings:
        fault, fix, remedy = warning.partition(FIX)
        warnings.append(f"{fault}{fix}{name_failed(remedy, failed, verb)}")
    return structs.replace(
        case, judgement=structs.replace(case.judgement, warnings=tuple(warnings))
    )


def name_failed(remedy: str, failed: Sequence[str], verb: str) -> str:
    """Return a remedy that says which of the ``failed`` schemes it names. Commands stay as they
    are."""
    named = [scheme for scheme in failed if re.search(rf"(?<![\w\"-]){scheme}\b", remedy)]
    if not named or "`" in remedy:
        return remedy
    return f"{remedy} (in this run, {' and '.join(named)} {verb})"


def is_wrong(case: Case) -> bool:
    """Return whether a program is not faithful to its model, or was not lowered."""
    questions = {finding.question for finding in case.judgement.findings}
    failed = {Question.FAITHFUL, Question.LOWERED, Question.RUN}
    return case.judgement.status is Status.FAILED and not failed.isdisjoint(questions)


def list_parts(environment: Environment) -> tuple[Tool, ...]:
    """Return the artifacts of an environment as rows of the report's toolchain. ``sha256`` is the
    pinned hash of the downloaded file, or None if there is none."""
    return tuple(
        Tool(name=artifact.name, version=artifact.version, sha256=artifact.origin.sha256 or None)
        for artifact in environment.artifacts
    )


def clear_beside(options: Options) -> None:
    """Remove the files that an earlier run left next to its report. Files of the user's stay."""
    if options.files_directory:
        UserFolder(options.files_directory).remove_written()


class CaseQueue:
    """The cases of a run that no thread has taken yet.

    A thread takes the cases of one model one after another, because its worker has already loaded
    and exported the model for the first of them. The models that take longest come first, so that
    all cores are busy until the end; a thread without a model helps another one with its cases.
    """

    def __init__(self, runs: Sequence[CaseRun]) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[str, list[CaseRun]] = {}  # of each model; the longest case is the last
        self.taken_by: dict[int, str] = {}  # the model that a thread works on
        # Sorted, so that the longest case of a model is the last in its list, and pop() takes it
        # first.
        for case_run in sorted(runs, key=expect_case_s):
            self.waiting.setdefault(case_run.spec.reference, []).append(case_run)

    def take(self) -> CaseRun:
        """Return the next case for the calling thread. Raises IndexError if there is none."""
        thread = threading.get_ident()
        with self.lock:
            if not self.waiting:
                raise IndexError("every case is taken")
            model = self.taken_by.pop(thread, "")
            if model not in self.waiting:
                model = self._choose_model()
            self.taken_by[thread] = model
            cases = self.waiting[model]
            case_run = cases.pop()
            if not cases:
                del self.waiting[model]
            return case_run

    def _choose_model(self) -> str:
        """Return the model whose remaining cases take longest, if possible one that no thread works
        on."""
        remaining_s = {model: sum(map(expect_case_s, runs)) for model, runs in self.waiting.items()}
        free = [model for model in self.waiting if model not in self.taken_by.values()]
        return max(free or self.waiting, key=remaining_s.__getitem__)


def expect_case_s(case_run: CaseRun) -> float:
    """Return the expected time to lower a case, in seconds on two cores."""
    return expect_s(case_run.spec.model, case_run.spec.scheme.value)


def run_cases(
    runs: Sequence[CaseRun], pool: Pool, jobs: int, progress: Progress
) -> list[CaseResult]:
    """Run ``jobs`` cases in parallel, in the order of CaseQueue. Return the results in the order of
    ``runs``. After an interrupt, return the results of the
    finished cases, or raise KeyboardInterrupt if there are none."""
    done: dict[CaseSpec, CaseResult] = {}
    names = name_models(case_run.spec.model for case_run in runs)

    def show_name(spec: CaseSpec) -> str:
        return f"{names[spec.model]} {spec.scheme} {spec.soc}"

    # Noted one by one, so that an interrupted run leaves the report of the cases that it judged.
    with progress.bar("cases", len(runs), "") as bar:

        def show(ended: tuple[CaseSpec, CaseResult]) -> None:
            spec, result = ended
            done[spec] = result
            bar.advance(1)
            progress.step(describe_progress(int(bar.done), len(runs), show_name(spec), result))

        def abort() -> None:
            progress.step("stopping the running cases")
            pool.close()

        queue = CaseQueue(runs)

        def run_next() -> tuple[CaseSpec, CaseResult]:
            case_run = queue.take()
            name = show_name(case_run.spec)
            with bar.busy(lambda: f"{name}: {case_run.describe_stage()}"):
                return case_run.spec, case_run.run()

        try:
            # No task is bound to a case: a free thread takes the next one from the queue.
            run_tasks([run_next] * len(runs), jobs, on_done=show, abort=abort)
        except KeyboardInterrupt:
            progress.step(f"interrupted: {len(done)} of {count(len(runs), 'case')} judged")
            if not done:
                raise
    return [done[case_run.spec] for case_run in runs if case_run.spec in done]


def describe_progress(done: int, total: int, name: str, result: CaseResult) -> str:
    """Return one line with a case's ``name``, status, SQNR and remarks. If the case failed, the
    question that it failed follows; the card at the end has the rest. If it is unsupported, its
    headline follows."""
    case = result.case
    figure = f"{case.judgement.sqnr_db:.1f} dB" if case.judgement.sqnr_db is not None else ""
    cause = "" if case.judgement.status is Status.PASSED else case.headline
    if case.judgement.status is Status.FAILED and case.judgement.findings:
        cause = case.judgement.findings[0].lead.removesuffix(": ")
    notes = (
        "cached" if case.program.cached else "",
        case.asked.made_inputs,
        result.remark,
        cause,
    )
    tail = "  ".join(filter(None, notes))
    status = case.judgement.status.value
    return f"  [{done}/{total}] {name:<34} {status:<11} {figure:>8}  {tail}".rstrip()
