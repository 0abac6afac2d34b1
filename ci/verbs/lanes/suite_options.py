"""The options of ``test-emulator --suite``, in a separate module so that --help imports no test
suite."""

from __future__ import annotations

import argparse

from ci.upstream.suites import SUITES, Suite
from provisioning.console.command import user_path
from provisioning.errors import UsageError

OUTPUTS = "outputs"
FAULTS = "faults"
JUDGED = (OUTPUTS, "zeros", "noise")


def add_suite_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for running ExecuTorch's test suites."""
    add = parser.add_argument_group("ExecuTorch's own QNN test suites").add_argument
    add("--suite", choices=[*SUITES, FAULTS], help="tests of ExecuTorch's wheel, or faults")
    add("--filter", action="append", default=[], metavar="GLOB", help="only tests with this name")
    add("--source", type=user_path, metavar="DIR", help="run the tests of this checkout instead")
    add("--resume", action="store_true", help="continue an interrupted run")
    add(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="run each test N times, to find flaky tests",
    )
    add(
        "--judge-again",
        nargs="?",
        const=OUTPUTS,
        choices=JUDGED,
        help="run nothing; judge the kept outputs again, or zeros or noise instead of them",
    )


def check_suite_arguments(args: argparse.Namespace, suite: Suite) -> None:
    """Raise UsageError for options that apply to cases but not to suites."""
    others = {
        "--model": args.model,
        "--scheme": args.scheme,
        "--plan": args.plan,
        "--device": args.device or args.any,
        "--record": args.record,
        "--keep-artifacts": args.keep_artifacts,
        "--backend": args.backend != "htp",
        "--runner": args.runner != "python",
    }
    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"{given[0]} with --suite", fix="leave it out; choose tests with --filter")
    if suite.fixed_soc and args.soc:
        raise UsageError(f"--soc with --suite {suite.name}", why="its tests set the SoC themselves")
    if len(args.soc) > 1:
        raise UsageError("--suite accepts only one --soc", fix="run it once per SoC")
    places = [args.source / one for one in suite.places] if args.source else []
    if missing := [one for one in places if not one.exists()]:
        raise UsageError(f"--source {args.source} has no {missing[0]}")
    if args.repeat < 1:
        raise UsageError(f"--repeat {args.repeat}", fix="1 or more")
