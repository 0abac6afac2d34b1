"""``test-upstream``: run ExecuTorch's own QNN tests with pytest on the emulator, and judge what
they compare by this project's gate, too."""

from __future__ import annotations

import argparse
from functools import partial

from ci.models.suite import DEFAULT_SOC
from ci.upstream.session import UpstreamRequest
from ci.upstream.suites import SUITES
from ci.verbs.lanes.lane import run_lane
from ci.verbs.lanes.upstream import LANE
from ci.verbs.options import add_option, add_options, name_path
from ci.verbs.requests import check_arguments, make_request
from provisioning.console.command import DIR, FLAG, HOW, MANY, WHAT, Outcome
from provisioning.console.progress import Progress

# Options of earlier releases, with what to use instead.
OUTDATED = {
    "resume": "--resume has no effect any more: use --last-failed, or choose tests with -k",
    "repeat": "--repeat has no effect any more: run the tests again with --last-failed",
    "judge_again": "--judge-again has no effect any more: each run judges zeros, too",
    "unused_policy": "--policy has no effect any more: deselect tests with -k or --deselect",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser)
    gaps = {"--suite": "another test suite; default: upstream", "--filter": "tests"}
    add_options(parser, "--suite", choices=[*SUITES], default="upstream", always=True, gaps=gaps)
    add_options(parser, "--filter", gaps=gaps)
    add(WHAT, "-k EXPRESSION", "pytest's expression for names of tests", default="")
    add(WHAT, "--deselect TEST", "leave out a test, by pytest's name; repeatable", **MANY)
    add(WHAT, "--last-failed", "run only the tests that failed in the last run", **FLAG)
    soc = f"the SoC, for the suite upstream; the other suites set theirs; default: {DEFAULT_SOC}"
    add(WHAT, "--soc", soc, default="", type=str.upper, again=str)
    source = "run the tests of this ExecuTorch checkout instead of the wheel's"
    add(WHAT, "--source", source, **DIR, again=name_path, digest=True)
    add_options(parser, "--timeout-s", text="time limit for each test, in seconds")
    add_options(parser, "--jobs", "--offline", gaps={"--jobs": "tests"})
    add(HOW, "--resume", "no longer has an effect", **FLAG)
    add(HOW, "--repeat N", "no longer has an effect", default=None)
    add(HOW, "--judge-again", "no longer has an effect", nargs="?", const=True)
    add(HOW, "--policy FILE", "no longer has an effect", default=None, dest="unused_policy")
    add_options(parser, "--reports", gaps={"--reports": "SUITE/"})
    add_options(parser, "--base", "--sarif", "--executorch", "--sdk", "--adaptor")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run a suite. Raises the same errors as read_request and run_lane."""
    return run_lane(LANE, read_request(args, progress), progress)


def read_request(args: argparse.Namespace, progress: Progress) -> UpstreamRequest:
    """Return the request of a call, and warn about options that have no effect any more. Raises the
    same errors as check_arguments."""
    for name, warning in OUTDATED.items():
        if getattr(args, name):
            progress.step(f"warning: {warning}")
    suite = SUITES[args.suite]
    check_arguments(args, suite.name)
    return make_request(
        UpstreamRequest,
        args,
        suite.name,
        # The command that repeats a test names the SoC only if it is not the suite's.
        parsed={"soc": "" if args.soc == suite.soc else args.soc},
        suite=suite,
        socs=(args.soc,) if args.soc else (),
        filters=tuple(args.filter),
        expression=args.k,
        strict_noise=True,  # each test is a search for faults
        judges=True,
    )
