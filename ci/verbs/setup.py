"""``setup``: provision and check a profile, and export its environment to a job's later steps."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ci.report.annotation import Annotation, Level
from ci.report.export import describe_fix, is_verdict
from ci.report.providers import Provider, group, mask_secrets
from ci.report.text import name_some
from provisioning.artifacts.environment import (
    DROPPED_VARIABLES,
    provision_profile,
    render_shell,
)
from provisioning.artifacts.provision import Provisioned
from provisioning.console.command import FILE, MANY, Outcome, user_path, user_program
from provisioning.console.progress import Progress
from provisioning.console.streams import user_stderr
from provisioning.console.terminal import write_message, write_through
from provisioning.console.user_folder import require_output, write_output
from provisioning.doctor.examine import examine
from provisioning.doctor.verdict_text import render_verdict
from provisioning.errors import ExitCode
from provisioning.verbs.fetch import add_options, read_options

TITLE = "setup-qnn"
SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", nargs="?", default="emulator", help="PROFILE[+ARTIFACT@VERSION]")
    text = "where to write the doctor's verdict; default: reports/setup/doctor.json"
    parser.add_argument("--report", default=Path("reports/setup/doctor.json"), **FILE, help=text)
    text = "a path that a cache restored and that has to be checked; repeatable"
    parser.add_argument("--cached", type=user_path, metavar="PATH", **MANY, help=text)
    parser.add_argument("--python", type=user_program, help="the Python interpreter to check")
    add_options(parser)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Provision and check a profile, and export its environment to the CI system. The exit code is
    3 if the doctor reports an error; then nothing is exported except the outputs."""
    require_output(args.report, is_verdict, describe_fix("--report"))
    provider = Provider()
    # First, because everything that follows may print them.
    mask_secrets(provider, os.environ)
    before = {path: identify(path) for path in args.cached}
    with group(provider, progress, f"provision {args.profile}"):
        environment = provision_profile(
            args.profile, progress, verify=True, options=read_options(args)
        )
    with group(provider, progress, f"doctor {args.profile}"):
        python = Path(args.python) if args.python else None
        verdict = examine(args.profile, environment, python=python, progress=progress)
    data = json.dumps(verdict.data(), indent=1).encode() + b"\n"
    write_output(args.report, data, is_verdict, describe_fix("--report"))
    artifacts = environment.artifacts
    changed = [path for path, state in before.items() if identify(path) != state]
    replaced = [path for path in changed if before[path] and path.is_file()]
    notes = [*describe_repairs(artifacts, replaced)]
    for error in verdict.errors:
        text = f"{error.id}: {error.what}. Fix: {error.fix}"
        notes.append(Annotation(Level.ERROR, text, TITLE))
    # A shell may evaluate stdout.
    write_through(user_stderr(), provider.annotate(notes) if notes else "")
    outputs = {
        "roots": json.dumps({artifact.name: str(artifact.root) for artifact in artifacts}),
        "versions": json.dumps({artifact.name: artifact.version for artifact in artifacts}),
        "report": str(args.report.absolute()),
        "changed": json.dumps(bool(changed)),
        "repaired": json.dumps(any(note.level is Level.WARNING for note in notes)),
    }
    if verdict.fit:
        stale = [name for name in DROPPED_VARIABLES if os.environ.get(name)]
        variables = {**dict.fromkeys(stale, ""), **environment.variables}
        program = Path(sys.argv[0])
        # Later steps can call qnn-ci only if it is an installed program, and not `python -m ci`.
        programs = [program.absolute().parent] if program.name == "qnn-ci" else []
        # If the CI system cannot export the environment, a shell can evaluate what is printed.
        exported = provider.export(variables, programs, outputs)
        roots = (f"{tool.name} {tool.version}  {tool.root}\n" for tool in artifacts)
        text = "".join(roots) if exported else render_shell(environment)
        return Outcome(text, verdict.data(), exact=True)
    provider.export({}, [], outputs)
    write_message(render_verdict(verdict))  # a shell may evaluate stdout
    return Outcome("", verdict.data(), ExitCode.ENVIRONMENT)


def identify(path: Path) -> tuple[int, int] | None:
    """Return a path's inode and modification time, which change when the file is replaced, or None
    if the path does not exist."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


def describe_repairs(
    artifacts: Iterable[Provisioned], replaced: Iterable[Path]
) -> Iterator[Annotation]:
    """Yield a warning for each artifact in the store that was repaired. Also yield one for each
    file from a cache that was replaced because its content did not match its pin."""
    for artifact in artifacts:
        if artifact.repaired:
            damaged = name_some(artifact.repaired, SHOWN)
            name = f"{artifact.name} {artifact.version}"
            text = f"{name} in the store was damaged and has been repaired: {damaged}"
            yield Annotation(Level.WARNING, text, TITLE)
    for path in replaced:
        text = f"{path.name} from a cache was damaged and has been fetched again"
        yield Annotation(Level.WARNING, text, TITLE)
