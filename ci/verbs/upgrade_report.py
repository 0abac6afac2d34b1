"""``upgrade-report OLD NEW``: show what a different version of QNN or ExecuTorch changes, before
you change a pin; with --matrix, the results of the known faults with several versions of QNN."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from ci.audit.upgrade import Difference, compare, compare_faults, make_document
from ci.faults.expected import Rerun, list_tried
from ci.faults.known import RERUNNING, read_faults
from ci.onnx.toolchain import list_packages
from ci.packages.modules import EXECUTORCH
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.report.html import PAGE, write_page
from ci.verbs.environments import choose_onnx
from ci.verbs.options import (
    ONNX_TORCH,
    add_option,
    add_options,
    check_values,
    require_effect,
)
from ci.verbs.sides import (
    EMULATOR,
    FORMS,
    ONNX,
    Side,
    check_word,
    find_session,
    find_side,
    rerun_faults,
    split_pins,
)
from ci.verbs.steps import require_packages
from ci.verbs.upgrade_cures import CureRequest, choose_session, find_cures, make_request
from ci.verbs.upgrade_matrix import MatrixRequest, find_faults, run_matrix, show_recorded
from ci.verbs.upgrade_runs import (
    UpgradeRequest,
    check_cases,
    find_qnn,
    list_words,
    run_side,
)
from ci.verbs.user_policy import OURS, choose_policy
from provisioning.console.caller import shown_path
from provisioning.console.command import FLAG, MANY, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, QnnCiError, UsageError
from provisioning.versions import is_same

MATRIX = "known faults by version"  # a group of the help
# What has an effect with --model and no OLD
CURE_OPTIONS = ("--model", "--scheme", "--soc", "--policy", "--session", "--with", "--reports")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for version in (
        add("old", metavar="[OLD]", help=f"{FORMS}; without OLD and NEW, see --model"),
        add("new", metavar="[NEW]", help="the version that would replace OLD, in the same forms"),
    ):
        # With nargs="?" instead, which writes the brackets, argparse would not accept an option
        # between OLD and NEW.
        version.required = False
    text = (
        "a model, in any form that the session's --model accepts; repeatable; without OLD and NEW,"
        " judge it with the installed version and, if it is red, with all others"
    )
    add_options(parser, "--model", group="", text=text)
    add_options(parser, "--scheme", "--soc", "--policy", group="")
    text = "the session to run for an SDK; default: test_emulator"
    add_option(parser, "", "--session", text, choices=(EMULATOR, ONNX), default=EMULATOR)
    text = (
        "the directory for the report of each run, default: reports/upgrade; with --matrix, the"
        " directory for versions_matrix/, default: reports"
    )
    add_options(parser, "--reports", text=text, default=None)
    text = "run the known faults with several versions of QNN instead, through ONNX Runtime"
    add_option(parser, MATRIX, "--matrix", text, **FLAG)
    wheels_help = (
        "a wheel, such as onnxruntime-qnn==2.7.0; repeatable; default: all known wheels, or"
        " none with --sdk; with --model and no OLD, a version to judge it with"
    )
    needs = {"needs": "--matrix"}
    # args.with would be a syntax error.
    with_needs = {"needs": "--matrix or --model"}
    add_option(parser, MATRIX, "--with QNN", wheels_help, dest="sides", **MANY, **with_needs)
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
    if isinstance(request, CureRequest):
        return find_cures(request, progress)
    if isinstance(request, UpgradeRequest):
        return compare_versions(request, progress)
    return (
        show_recorded(request.faults) if request.shows_recorded else run_matrix(request, progress)
    )


def read_request(args: argparse.Namespace) -> UpgradeRequest | MatrixRequest | CureRequest:
    """Return what to compare, with --matrix, what to run or, with --model alone, what to mend.
    Raises UsageError for an argument that is no version, and for options that two reports or the
    matrix cannot use."""
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
    reports = args.reports or Path("reports/upgrade").absolute()
    if args.model and not (args.old or args.new):
        require_effect(args, "--model alone", *CURE_OPTIONS)
        run = UpgradeRequest(
            ("", ""),
            choose_session(args.model, args.session),
            (*args.model,),
            (*args.scheme,),
            (*args.soc,),
            choose_policy(args.policy),
            reports,
        )
        return make_request(run, args.sides)
    if not args.new:
        raise UsageError(
            "there are no two versions to compare",
            fix="pass OLD and NEW, or --model alone to judge its red cases with all versions",
        )
    if args.sides:
        raise UsageError(
            "--with cannot be used with OLD and NEW",
            why="it would have no effect",
            fix="leave out --with, or OLD and NEW",
        )
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
        reports,
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


def require_engine(word: str, request: UpgradeRequest) -> None:
    """Raise UnfitError if this Python lacks a package that a run of the argument needs and that the
    argument does not name itself."""
    pins = [name for name, _ in split_pins(word)]
    session = find_session(word, request.session)
    if not session:
        return
    needed, extra = EXECUTORCH.choose(has_functions=True)
    if session == ONNX:
        options = {"model": request.models, "policy": [str(request.policy or OURS)]}
        extra = choose_onnx(list_words(options))
        needed = list_packages(exports=extra == ONNX_TORCH)
    pinned = {name.replace("-", "_") for name in pins}
    require_packages([name for name in needed if name not in pinned], extra)


def list_ends(side: Side, qnn: str, progress: Progress, noted: list[Difference]) -> list[Rerun]:
    """Return the results of the known faults with a side's QNN. They come from faults.toml if it
    lists that version, otherwise from a run through onnxruntime.

    If no run is possible, return an empty list, and add the reason to ``noted``.
    """
    faults = read_faults()
    tried = [rerun for frontend in RERUNNING for rerun in list_tried(faults, frontend)]
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
