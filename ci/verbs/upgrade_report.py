"""``upgrade-report OLD NEW``: show what a different version of QNN or ExecuTorch changes, before
you change a pin; with --matrix, the results of the known faults with several versions of QNN."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ci.audit.upgrade import Difference, compare, compare_faults, make_document
from ci.cases.policy import LANES, read_emulator_policy
from ci.cases.spec import select_cases
from ci.faults.expected import Rerun, list_tried
from ci.faults.known import FRONTENDS, read_faults
from ci.models import schemes
from ci.onnx.toolchain import list_packages
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.report.html import PAGE, write_page
from ci.report.schema import Report
from ci.report.write import read_report
from ci.verbs.environments import choose_onnx
from ci.verbs.options import (
    LOWERING,
    ONNX_TORCH,
    add_option,
    add_options,
    check_values,
    require_effect,
)
from ci.verbs.sides import (
    EMULATOR,
    FORMS,
    HTP,
    LIBRARIES,
    ONNX,
    Side,
    check_word,
    find_session,
    find_side,
    rerun_faults,
    split_pins,
)
from ci.verbs.steps import require_packages
from ci.verbs.upgrade_matrix import MatrixRequest, find_faults, run_matrix, show_recorded
from ci.verbs.user_policy import OURS, choose_policy
from provisioning.artifacts.choice import SDK_VARIABLE
from provisioning.console.caller import shown_path
from provisioning.console.command import MANY, Outcome
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.console.user_folder import UserFolder
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import ExitCode, QnnCiError, UsageError
from provisioning.manifest.targets import read_socs
from provisioning.versions import is_same, parse_version

SCHEMES = {EMULATOR: schemes.EXECUTORCH, ONNX: schemes.ONNX}
LAST_LINES = 6
MATRIX = "known faults by version"  # a group of the help
OWN = Path(__file__).parents[2]  # where this package is found
OWN_VARIABLES = (SDK_VARIABLE, "QNN_CI_CAUSE_FILE")  # set for this call; not passed to the runs


@dataclass(frozen=True)
class UpgradeRequest:
    """Two versions to compare, and what their runs test. ``policy`` is the policy of both runs, or
    None for this project's own suite."""

    words: tuple[str, str]
    session: str
    models: tuple[str, ...]
    schemes: tuple[str, ...]
    socs: tuple[str, ...]
    policy: Path | None
    reports: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    versions = [
        add("old", metavar="OLD", help=FORMS),
        add("new", metavar="NEW", help="the version that would replace OLD, in the same forms"),
    ]
    text = "a model, in any form that the session's --model accepts; repeatable"
    add_options(parser, "--model", group="", text=text)
    add_options(parser, "--scheme", "--soc", "--policy", group="")
    text = "the session to run for an SDK; default: test_emulator"
    add_option(parser, "", "--session", text, choices=(EMULATOR, ONNX), default=EMULATOR)
    text = (
        "the directory for the report of each run, default: reports/upgrade; with --matrix, the"
        " directory for versions_matrix/, default: reports"
    )
    add_options(parser, "--reports", text=text, default=None)

    class ChooseMatrix(argparse.Action):
        """Sets the option, and makes OLD and NEW optional. With nargs="?" instead, argparse would
        not accept an option between OLD and NEW."""

        def __call__(self, _: Any, namespace: argparse.Namespace, *__: Any) -> None:
            setattr(namespace, self.dest, True)
            for version in versions:
                version.required = False

    text = "run the known faults with several versions of QNN instead, through ONNX Runtime"
    settings: dict[str, Any] = {"action": ChooseMatrix, "nargs": 0, "default": False}
    add_option(parser, MATRIX, "--matrix", text, **settings)
    wheels_help = (
        "a wheel, such as onnxruntime-qnn==2.7.0; repeatable; default: all known wheels, or"
        " none with --sdk"
    )
    needs = {"needs": "--matrix"}
    # args.with would be a syntax error.
    add_option(parser, MATRIX, "--with QNN", wheels_help, dest="sides", **MANY, **needs)
    add_option(
        parser, MATRIX, "--sdk", "an SDK's directory or version; repeatable", **MANY, **needs
    )
    add_option(parser, MATRIX, "--fault", "the name of a fault; repeatable", **MANY, **needs)
    gaps = {"--known": "print the results recorded in faults.toml"}
    add_options(parser, "--known", group=MATRIX, gaps=gaps, **needs)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Compare two versions; with --matrix, show the known faults by version. Raises UsageError,
    UnfitError and DownloadError."""
    check_values(args)
    request = read_request(args)
    if isinstance(request, UpgradeRequest):
        return compare_versions(request, progress)
    return show_recorded(request.faults) if request.known else run_matrix(request, progress)


def read_request(args: argparse.Namespace) -> UpgradeRequest | MatrixRequest:
    """Return what to compare or, with --matrix, what to run. Raises UsageError for an argument that
    is no version, and for options that two reports or the matrix cannot use."""
    if args.matrix:
        matrix_options = ("--with", "--sdk", "--fault", "--known", "--reports")
        require_effect(args, "--matrix", *matrix_options)
        if args.old:
            raise UsageError(
                f"{args.old} cannot be used with --matrix",
                fix="pass a wheel to --with, or an SDK to --sdk",
            )
        faults = find_faults(args.fault)
        if args.known:
            require_effect(args, "--known", "--matrix", "--fault")
        reports = args.reports or Path("reports").absolute()
        return MatrixRequest((*args.sides,), (*args.sdk,), faults, reports, args.known)
    words = (args.old, args.new)
    for word in words:
        check_word(word)
    needs_run = any(find_session(word, args.session) for word in words)
    if not needs_run:
        require_effect(args, "two reports", "--reports")
    return UpgradeRequest(
        words,
        args.session,
        (*args.model,),
        (*args.scheme,),
        (*args.soc,),
        # Chosen here once, so that the runs of both sides have the same policy, wherever they
        # start.
        choose_policy(args.policy) if needs_run else None,
        args.reports or Path("reports/upgrade").absolute(),
    )


def compare_versions(request: UpgradeRequest, progress: Progress) -> Outcome:
    """Run what has no report yet, and compare the two sides. The exit code is 1 if a run or a case
    is missing, or if a status became worse. Raises UsageError, UnfitError and DownloadError."""
    check_session(request.reports, (PAGE,))
    claim_reports(request.reports)
    for word in request.words:
        check_cases(word, request)
    for word in request.words:
        require_engine(word, request)
    old, new = (find_side(word, request.session, progress) for word in request.words)
    if request.policy:
        progress.step(f"policy: {shown_path(request.policy)}")
    noted: list[Difference] = []
    reports = [run_side(side, request, progress, noted) for side in (old, new)]
    builds = [find_qnn(*pair) for pair in zip((old, new), reports, strict=True)]
    # The known faults are QNN's: with the same QNN, their results are the same.
    if all(builds) and builds[0] != builds[1]:
        pairs = zip((old, new), builds, strict=True)
        noted += compare_faults(*[list_ends(*pair, progress, noted) for pair in pairs])
    comparison = compare((old.name, new.name), (reports[0], reports[1]), noted)
    document = make_document(comparison)
    write_page(document, request.reports, progress)
    code = ExitCode.FAILED if comparison.is_worse else ExitCode.OK
    return Outcome(show_document(document), msgspec.to_builtins(comparison), code, exact=True)


def check_cases(word: str, request: UpgradeRequest) -> None:
    """Raise UsageError, as the session does, if the run of an argument cannot have the models,
    schemes and SoCs of the command line."""
    if session := find_session(word, request.session):
        policy = read_emulator_policy(request.policy, LANES[session])
        select_cases(
            policy.suite,
            sorted(read_socs()),
            entries=policy.models,
            models=request.models,
            schemes=request.schemes,
            soc_names=request.socs,
            lane=SCHEMES[session],
        )


def require_engine(word: str, request: UpgradeRequest) -> None:
    """Raise UnfitError if this Python lacks a package that a run of the argument needs and that the
    argument does not name itself."""
    pins = [name for name, _ in split_pins(word)]
    session = find_session(word, request.session)
    if not session:
        return
    needed: tuple[str, ...] = ("torch", "executorch")
    extra = LOWERING
    if session == ONNX:
        options = {"model": request.models, "policy": [str(request.policy or OURS)]}
        extra = choose_onnx(list_words(options))
        needed = list_packages(exports=extra == ONNX_TORCH)
    pinned = {name.replace("-", "_") for name in pins}
    require_packages([name for name in needed if name not in pinned], extra)


def list_words(values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return options with several values as words of a command, each value after its flag."""
    words = []
    for name, values_of_option in values.items():
        for value in values_of_option:
            words += [f"--{name}", value]
    return words


def run_side(
    side: Side, request: UpgradeRequest, progress: Progress, failures: list[Difference]
) -> Report | None:
    """Return the side's report, or else the report of a new run. If the run leaves no report,
    return None and add the reason to ``failures``."""
    if side.report:
        return side.report
    directory = request.reports / side.slug
    report = directory / side.session / "report.json"
    check_session(report.parent)  # what is not a report is the user's
    # A run that fails would otherwise be judged by the report of an earlier one.
    report.unlink(missing_ok=True)
    options: dict[str, Sequence[str]] = {
        "model": request.models,
        "scheme": request.schemes,
        "soc": request.socs,
        "policy": [str(request.policy or OURS)],
        "sdk": [side.sdk] if side.sdk else [],
    }
    words = list_words(options)
    verb = side.session.replace("_", "-")
    argv = [*module_command("ci"), verb, *words, "--reports", str(directory)]
    # PYTHONPATH, because it comes before site-packages: the version under test hides the installed
    # one.
    paths = [*map(str, (*side.packages, OWN)), os.environ.get("PYTHONPATH", "")]
    variables = {name: text for name, text in os.environ.items() if name not in OWN_VARIABLES}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    progress.step(f"{side.name}: {verb} {' '.join(words)}")
    log = request.reports / f"{side.slug}.log"
    folder = UserFolder(request.reports)
    with folder.stage() as scratch:
        ended = run_process(argv, env=variables, check=False, log=scratch / log.name)
        folder.publish(scratch, force=True).say_aside(progress)
    if report.is_file():
        return read_report(report)
    lines = (line.strip() for line in ended.output.splitlines()[-LAST_LINES:])
    failure = f"{ended.describe()}: {' '.join(filter(None, lines))} (whole log: {shown_path(log)})"
    failures.append(Difference(side.name, "run", "a report", failure, "worse"))
    return None


def find_qnn(side: Side, report: Report | None) -> str:
    """Return the QNN version of a side, from its libraries or, if there are none, from its report.
    Return an empty string if neither states one."""
    library = side.tree / LIBRARIES / HTP if side.tree else None
    if library and library.is_file() and (build := find_qnn_build(library)):
        return build.version or ""
    tools = report.toolchain if report else ()
    named = next((tool.version for tool in tools if tool.name == HTP), "")
    return str(parse_version(named)) if named else ""


def list_ends(side: Side, qnn: str, progress: Progress, noted: list[Difference]) -> list[Rerun]:
    """Return the results of the known faults with a side's QNN. They come from faults.toml if it
    lists that version, otherwise from a run through onnxruntime.

    If no run is possible, return an empty list, and add the reason to ``noted``.
    """
    faults = read_faults()
    tried = [rerun for frontend in FRONTENDS for rerun in list_tried(faults, frontend)]
    recorded = [rerun for rerun in tried if is_same(qnn, rerun.qnn)]
    if recorded:
        return recorded
    why = "there is only a report, without libraries to run"
    if side.packages or side.sdk:
        try:
            return rerun_faults(side, faults, progress)[1]
        except QnnCiError as error:
            why = error.what
    untried = f"not tried with QNN {qnn}: {why}"
    noted.append(Difference("known faults", "fault", "", untried, "other"))
    return []
