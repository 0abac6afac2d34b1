"""``verify-evidence``: check that a program passed, and that its limits were strict enough."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from ci.cases.policy import LANES, read_emulator_policy
from ci.report.evidence import (
    CASE,
    NamedCase,
    Statement,
    find_faults,
    parse_statement,
)
from ci.report.schema import Threshold
from provisioning.console.command import Outcome, user_path
from provisioning.console.installation import install_command
from provisioning.console.progress import Progress
from provisioning.documents import decode_json, read_user_file
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import ExitCode, UnfitError, UsageError
from provisioning.files import hash_file
from provisioning.manifest.targets import Backend

LIMIT_BYTES = 16 << 20
ISSUER = "https://token.actions.githubusercontent.com"
IN_TOTO = "application/vnd.in-toto+json"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("program", type=user_path, help="the .pte, or the ONNX context model")
    add(
        "--evidence",
        type=user_path,
        required=True,
        metavar="FILE",
        help="the file SHA256.intoto.json",
    )
    add(
        "--policy",
        type=user_path,
        metavar="FILE",
        help="check that the program passed under the limits of this policy, or stricter ones",
    )
    add(
        "--bundle",
        type=user_path,
        metavar="FILE",
        help="the Sigstore bundle with the signature of the evidence",
    )
    add(
        "--repository",
        default="",
        metavar="OWNER/NAME",
        help="the repository whose workflow must have signed the evidence",
    )
    add(
        "--ref",
        default="main",
        help="the branch, or the ref such as refs/tags/v1, that the workflow must have run for;"
        " default: main",
    )
    add(
        "--workflow",
        default="",
        metavar="FILE",
        help="the file in .github/workflows that must have been run; default: any of that ref",
    )


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    if bool(args.bundle) != bool(REPOSITORY.fullmatch(args.repository)):
        raise UsageError(
            "--bundle and --repository OWNER/NAME belong together",
            why="a signature proves nothing unless you know who signed",
        )
    if not args.program.is_file():
        raise UsageError(f"cannot read the program {args.program}", why="it is not a file")
    data = read_user_file(args.evidence, "the evidence", LIMIT_BYTES)
    case, described = NamedCase(), dict[str, Any]()
    try:
        statement = parse_statement(data)
    except ValueError as error:
        faults = [f"{args.evidence.name} is not a statement of a test result: {error}"]
    else:
        case, described = statement.predicate.read_case(), statement.predicate.describe(CASE)
        faults = list(compare(statement, args.program, args.policy))
    if args.bundle:
        bundle = read_user_file(args.bundle, "the bundle", LIMIT_BYTES)
        ref = args.ref if args.ref.startswith("refs/") else f"refs/heads/{args.ref}"
        faults += find_signature_faults(bundle, data, args.repository, ref, args.workflow)
    signer = (
        f"signed by {args.repository} for {args.ref}"
        if args.bundle
        else "not signed: anyone could have written this evidence"
    )
    # The evidence's text is on separate lines, so that it cannot look like the verdict.
    lines = [
        f"{args.program.name} does not match its evidence"
        if faults
        else f"{args.program.name} passed ({signer})"
    ]
    lines += [f"  case: {case.name}"] * (not faults)
    lines += [f"  {one}" for one in faults]
    lines += [f"  warning: {' '.join(one.split())}" for one in case.warnings if not faults]
    return Outcome(
        "".join(f"{one}\n" for one in lines),
        {"fits": not faults, "faults": faults, "signed": bool(args.bundle), "case": described},
        ExitCode.FAILED if faults else ExitCode.OK,
    )


def compare(statement: Statement, program: Path, policy: Path | None) -> Iterator[str]:
    """Yield a message for each mismatch between a statement and the program, or between the
    statement and the policy, if there is one."""
    build = find_qnn_build(program)
    wanted = partial(find_limits, policy) if policy else None
    yield from find_faults(statement, hash_file(program), build.text if build else "", wanted)


def find_limits(path: Path, case: Mapping[str, str]) -> Threshold:
    """Return a policy's limits for a case. Raises ManifestError for an invalid policy or for one
    without limits for the case, and ValueError for an unknown session, backend or scheme."""
    if case["session"] not in LANES:
        raise ValueError(f"there is no session {case['session']}")
    policy = read_emulator_policy(path, LANES[case["session"]])
    scheme = policy.find_scheme(case["model"], case["scheme"])
    return policy.for_backend(Backend(case["backend"])).limits_of(case["model"], scheme)


class SignedFile(Struct, frozen=True):
    digest: dict[str, str]


class Signed(Struct, frozen=True):
    """The signed part of a bundle: the files that it is about."""

    subject: tuple[SignedFile, ...]


def find_signature_faults(
    bundle: bytes, signed: bytes, repository: str, ref: str, workflow: str = ""
) -> Iterator[str]:
    """Yield the first reason, if any, why a Sigstore bundle does not prove that a workflow of a
    GitHub repository signed a file, in a run for the branch or tag ``ref``. ``workflow`` is the
    name of the workflow's file, or empty for any workflow.

    Nothing is fetched: the trust root comes from sigstore's cache in the user's home directory, or
    else from the package sigstore. Raises UnfitError if that package is missing.
    """
    if not importlib.util.find_spec("sigstore"):
        raise UnfitError(
            "this Python has no sigstore",
            why="the package sigstore verifies the signature of the evidence",
            fix=install_command("evidence"),
        )
    from sigstore.errors import Error, VerificationError
    from sigstore.models import Bundle
    from sigstore.verify import Verifier, policy

    logging.getLogger("sigstore").setLevel(logging.ERROR)  # it warns that it is offline
    home = f"https://github.com/{repository}"
    asked: list[policy.VerificationPolicy] = [
        policy.OIDCIssuer(ISSUER),
        policy.OIDCSourceRepositoryURI(home),
        policy.OIDCSourceRepositoryRef(ref),
    ]
    if workflow:  # the one that was triggered, which may call others
        path = f".github/workflows/{Path(workflow).name}"
        asked.append(policy.OIDCBuildConfigURI(f"{home}/{path}@{ref}"))
    wanted = policy.AllOf(asked)
    try:
        verifier = Verifier.production(offline=True)
        kind, payload = verifier.verify_dsse(Bundle.from_json(bundle), wanted)
        subjects = decode_json(payload, Signed).subject if kind == IN_TOTO else ()
        digests = {one.digest.get("sha256") for one in subjects}
    except (Error, VerificationError, ValueError, LookupError, TypeError) as error:
        yield f"the signature of the evidence is not valid: {error}"
        return
    if hashlib.sha256(signed).hexdigest() not in digests:
        yield "the bundle contains a signature for other files"
