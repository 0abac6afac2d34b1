"""``stage``: collect in one directory the files that a device needs, and check them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ci.device.bundle import Bundle, stage
from ci.device.provenance import has_sbom_library
from ci.inspect.files import KEPT_PROGRAMS
from ci.report.text import count
from provisioning.artifacts.environment import parse_selection
from provisioning.artifacts.provision import locate_artifact
from provisioning.artifacts.sources import Options
from provisioning.console.caller import install_command, shown_path
from provisioning.console.command import DIR, FILE, FLAG, MANY, Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.console.user_folder import require_owned
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.reader import list_toolchains, read_profiles
from provisioning.store.home import store_home
from provisioning.store.store import Store

QNN = "qnn-"  # the prefix of artifacts with QNN's libraries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--soc", action="append", required=True, help="the SoC, such as SM8650; repeatable")
    add("--runner", required=True, **FILE, help="the executable that runs programs on the device")
    text = (
        "an artifact or directory with QNN's libraries or libc++_shared.so; repeatable: the"
        " first one that contains a library is used for it"
    )
    add("--runtime", action="append", required=True, metavar="ARTIFACT[@VERSION]|DIR", help=text)
    text = "a program to include, and to check against the libraries; repeatable"
    add("--program", type=user_path, metavar="M.pte", **MANY, help=text)
    text = (
        "the directory that test_emulator wrote for --keep-artifacts; add its programs and"
        " inputs, and a script that runs them on a device without this toolkit"
    )
    add("--cases", **DIR, help=text)
    text = "a directory with statements about the programs, such as reports/test_emulator/evidence"
    add("--evidence", **DIR, help=text)
    add("--signed", **DIR, help="the directory that `sign` wrote, for LPAI")
    add("--out", required=True, **DIR, help="where to write; an existing bundle is replaced")
    text = "rename an existing --out that contains other or changed files, instead of refusing it"
    add("--force", **FLAG, help=text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Write a bundle, and return its files. Raises UsageError for a path that cannot be used, and
    UnfitError for a runtime that is not provisioned."""
    check_files(args.runner, args.program)
    for path in filter(None, (args.cases, args.evidence, args.signed)):
        if not path.is_dir():
            raise UsageError(f"{path} is not a directory")
    require_owned(args.out, force=args.force)
    runtimes = [find_runtime(word, progress) for word in args.runtime]
    bundle = stage(
        args.soc,
        args.runner,
        runtimes,
        args.out,
        programs=args.program,
        cases=args.cases,
        evidence=args.evidence,
        signed=args.signed,
        force=args.force,
        progress=progress,
    )
    data = {**msgspec.to_builtins(bundle), "digest": bundle.digest, "directory": str(args.out)}
    text = render(bundle, args.out)
    if not has_sbom_library():
        install = install_command("device")
        text += f"no SBOM: this Python has no cyclonedx-python-lib ({install})\n"
    return Outcome(text, data)


def check_files(runner: Path, programs: Sequence[Path]) -> None:
    """Raise UsageError unless the runner and all programs are files."""
    if not runner.is_file():
        raise UsageError(
            f"{runner} is not a file",
            fix="run `qnn-ci build android` or `qnn-ci build linux`, and pass the path that it "
            f"prints, which is below {store_home() / 'builds'}",
        )
    for path in programs:
        if not path.is_file():
            raise UsageError(f"{path} is not a file", fix=f"correct the path; {KEPT_PROGRAMS}")


def find_runtime(word: str, progress: Progress) -> Path:
    """Return the directory with a runtime's libraries. ``word`` is a directory, an artifact or a
    profile. From a profile, the QNN artifact is used. Raises UsageError if it is none of these, and
    UnfitError if the artifact is not provisioned."""
    place = user_path(word)
    if place.is_dir():
        return place.absolute()
    profiles, artifacts = read_profiles(), list_toolchains()
    if re.split("[@:+]", word)[0] not in {*profiles, *artifacts}:
        raise UsageError(
            f"{word!r} is neither a directory nor an artifact or profile",
            fix=f"pass a directory with QNN's libraries, or one of: {', '.join(artifacts)}",
        )
    # Nothing is fetched here: what a bundle contains must be provisioned.
    requests = parse_selection([word], Options(offline=True))
    named = [request for request in requests if request.name.startswith(QNN)]
    request = (named or requests)[0]
    artifact = locate_artifact(request, Store(), progress)
    if not artifact:
        raise UnfitError(
            f"{request.label} is not provisioned",
            fix=f"run `qnn-ci fetch {word}`, or pass a directory",
        )
    return artifact.root


def render(bundle: Bundle, out: Path) -> str:
    """Return the files of a bundle with their sizes, as text."""
    lines = [f"{bundle.target.value} for {', '.join(bundle.socs)}, QNN {bundle.qnn or 'unknown'}"]
    lines += [f"  {file.name:<32} {file.size_bytes:>12,} bytes" for file in bundle.files]
    total = sum(file.size_bytes for file in bundle.files)
    lines.append(f"{count(len(bundle.files), 'file')}, {total:,} bytes: {shown_path(out)}")
    return "".join(f"{line}\n" for line in lines)
