"""``verify-evidence``: check that a program passed, and that its limits were strict enough."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ci.cases.policy import LANES, read_emulator_policy
from ci.report.evidence import CASE, NamedCase, find_faults, parse_statement
from ci.report.schema import Threshold
from provisioning.console.command import FILE, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.documents import read_user_file
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import ExitCode, UsageError
from provisioning.files import hash_file
from provisioning.manifest.targets import Backend

LIMIT_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("program", type=user_path, help="the .pte, or the ONNX context model")
    add("--evidence", required=True, **FILE, help="the file SHA256.intoto.json")
    text = "check that the program passed under the limits of this policy, or stricter ones"
    add("--policy", **FILE, help=text)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    """Compare a program with its evidence. The exit code is 1 if they do not match. Raises
    UsageError if a file cannot be read."""
    if not args.program.is_file():
        raise UsageError(f"cannot read the program {args.program}", why="it is not a file")
    data = read_user_file(args.evidence, "the evidence", LIMIT_BYTES)
    case, described = NamedCase(), dict[str, Any]()
    try:
        statement = parse_statement(data)
    except ValueError as error:
        faults = [f"{args.evidence.name} is not a statement of a test result: {error}"]
    else:
        case, described = (
            statement.predicate.read_case(),
            statement.predicate.find(CASE).annotations,
        )
        build = find_qnn_build(args.program)
        find_case_limits = partial(find_limits, args.policy) if args.policy else None
        sha256 = hash_file(args.program)
        faults = [*find_faults(statement, sha256, build.text if build else "", find_case_limits)]
    # The evidence's text is on separate lines, so that it cannot look like the verdict.
    lines = [
        f"{args.program.name} does not match its evidence"
        if faults
        else f"{args.program.name} passed (the signature of the evidence was not checked)"
    ]
    lines += [f"  case: {case.name}"] * (not faults)
    lines += [f"  {fault}" for fault in faults]
    lines += [f"  warning: {' '.join(warning.split())}" for warning in case.warnings if not faults]
    verdict = {"fits": not faults, "faults": faults, "case": described}
    code = ExitCode.FAILED if faults else ExitCode.OK
    return Outcome("".join(f"{line}\n" for line in lines), verdict, code)


def find_limits(path: Path, case: Mapping[str, str]) -> Threshold:
    """Return a policy's limits for a case. Raises ManifestError for an invalid policy or for one
    without limits for the case, and ValueError for an unknown session, backend or scheme."""
    if case["session"] not in LANES:
        raise ValueError(f"there is no session {case['session']}")
    policy = read_emulator_policy(path, LANES[case["session"]])
    scheme = policy.find_scheme(case["model"], case["scheme"])
    return policy.for_backend(Backend(case["backend"])).limits_of(case["model"], scheme)
