"""``judge``: judge the outputs that a run kept, in a process that runs none of the run's code."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from ci.cases.baselines import read_baselines, users_folder
from ci.cases.facts import Options
from ci.cases.kept import judge_report
from ci.cases.policy import LANES
from ci.cases.request import Request
from ci.report.claim import claim_reports
from ci.report.write import find_report, read_report
from ci.verbs.options import add_option, add_options, check_values
from ci.verbs.requests import make_request
from ci.verbs.steps import publish, read_limits
from provisioning.console.caller import shown_path
from provisioning.console.command import DIR, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import Backend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("outputs", type=user_path, help="the directory that a run wrote for --keep-artifacts")
    text = "judge the outputs in DIR/CASE/outputs, which a device computed with these programs"
    add_option(parser, "", "--pulled", text, **DIR)
    text = "with --pulled: the name of the device in the report"
    by = "a device elsewhere"
    add_option(parser, "", "--by NAME", text, default=by, needs="--pulled")
    add_options(parser, "--policy", group="", gaps={"--policy": "the policy with the limits"})
    add_options(parser, "--strict-noise")
    add_options(
        parser,
        "--reports",
        default=Path("reports/judged").absolute(),
        text="the directory for the session's report; default: reports/judged",
    )
    add_options(parser, "--base", "--sarif")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Judge kept outputs, and return the new report with its exit code. Raises UsageError for a
    directory without outputs that can be judged."""
    check_values(args)
    require_kept(args.outputs)
    report = read_report(args.outputs)
    if report.session not in LANES or report.backend not in {backend.value for backend in Backend}:
        raise UsageError(
            f"{args.outputs} contains no outputs that can be judged",
            why=f"the report in this directory belongs to {report.title}",
            fix=f"pass a directory that {' or '.join(LANES)} wrote for --keep-artifacts",
        )
    if args.pulled and not any(args.pulled.glob("*/outputs")):
        raise UsageError(
            f"{args.pulled} contains no CASE/outputs directory",
            fix="pass the directory `results` that the bundle's run-cases.sh wrote on the device",
        )
    request = make_request(Request, args, report.session)
    claim_reports(request.directory)

    backend = Backend(report.backend)
    policy = read_limits(request, LANES[report.session], progress).for_backend(backend)
    users = users_folder(request.policy)
    recorded = {
        # A policy's model may have the name of a model of the suite, whose figures are not its own.
        **read_baselines(report.toolchain, backend.value, without=policy.models),
        **(read_baselines(report.toolchain, backend.value, users) if users else {}),
    }
    # Nothing is run, so there is no time to limit.
    options = Options(policy=policy, timeout_s=0, recorded=recorded)
    with TemporaryDirectory() as work:
        judged = judge_report(
            report, args.outputs, options, work=Path(work), pulled=args.pulled, by=args.by
        )
    return publish(judged, request, policy.models, progress)


def require_kept(folder: Path) -> None:
    """Raise UsageError for what is no directory with a report, and has none in a directory below:
    nothing kept outputs there."""
    if find_report(folder).is_file() and folder.is_dir():
        return
    if not any(folder.glob("*/report.json")):
        raise UsageError(
            f"{shown_path(folder)} contains no outputs that a run kept",
            why="judge reads what a run wrote, and runs no model",
            fix="run the model with --keep-artifacts kept, and pass kept",
        )
