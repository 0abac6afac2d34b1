"""``explain [FILE...]``: name the causes of a failure in a log, with their remedies and sources.
``explain QNN1203`` describes a finding."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ci.cases.policy import read_emulator_policy
from ci.explain.explain import Explanation, explain
from ci.explain.render import annotate, render, render_entry
from ci.explain.rules import Rule, make_rules, read_rules
from ci.facts.kinds import Kind, read_kinds
from ci.inspect.bundle_log import BundleExplanation, LogFacts, explain_bundle
from ci.report.filled import fill_text
from ci.report.providers import Provider
from ci.report.runtimes import TITLES
from provisioning.console.command import FLAG, Outcome, nonempty_word, user_path
from provisioning.console.progress import Progress
from provisioning.documents import open_regular
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.targets import find_any_soc, name_in, read_all_socs

STDIN = "-"
FINDING = re.compile(r"QNN\d+")
PART_BYTES = 1 << 20
MOST_BYTES = 256 << 20
LOGS = (".log", ".txt", ".out", ".err", ".logcat")
ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ", b"BZh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "a log, logcat or CI log, a directory of them, or - for standard input (the default);"
        " or the id of a finding, such as QNN1203"
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help=text)
    text = "a policy whose [[advice]] rows are additional rules"
    parser.add_argument("--policy", type=user_path, help=text)
    text = "the bundle that the log is about: a folder for Genie, or a .litertlm file"
    parser.add_argument("--bundle", type=user_path, metavar="BUNDLE", help=text)
    text = "with --bundle: the SoC of the phone; default: the one that the log names"
    parser.add_argument("--soc", type=nonempty_word, metavar="SOC", help=text)
    text = "with --bundle: QNN's libraries or version on the phone; default: as the log says"
    options = ("--qnn-runtime", "--runtime-dir")
    parser.add_argument(*options, type=nonempty_word, metavar="QNN", help=text)
    # An earlier name: for other verbs, --runtime is the runtime of a model.
    parser.add_argument("--runtime", type=nonempty_word, help=argparse.SUPPRESS)
    parser.add_argument("--github", **FLAG, help="print the causes as GitHub annotations")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Explain logs, or describe findings. The exit code is 1 if a cause was found, otherwise 0.
    Raises UsageError if a log cannot be read, or if a finding does not exist."""
    rules = read_rules()
    if args.policy:  # a team's rules come first
        rules = (*make_rules(read_emulator_policy(args.policy).advice), *rules)
    if args.files and all(map(FINDING.fullmatch, args.files)):
        entries = [find_entry(name, rules) for name in args.files]
        described: dict[str, Any] = {"logs": [], "findings": [], "kinds": []}
        for entry in entries:
            place = "kinds" if isinstance(entry, Kind) else "findings"
            described[place].append(msgspec.to_builtins(entry))
        return Outcome("\n".join(map(render_entry, entries)), described)
    qnn_runtime = replace_runtime(args.runtime or "", args.qnn_runtime or "", progress)
    request = BundleRequest(args.bundle, args.soc or "", qnn_runtime)
    request.check(len(args.files), github=args.github)
    explanations = []
    facts = LogFacts()
    for name in list_logs(args.files or [STDIN]):
        progress.step(f"reading {'standard input' if name == STDIN else name}")
        explanations.append(read_log(name, rules, facts if request.path else None))
    failed = any(explanation.causes for explanation in explanations)
    if args.github:
        text = Provider({"GITHUB_ACTIONS": "true"}).annotate(list(annotate(explanations)))
    else:
        text = "\n".join(map(render, explanations))
    data: dict[str, Any] = {"logs": msgspec.to_builtins(explanations)}
    if request.path:
        progress.step(f"reading {request.path.name}")
        bundle = request.explain(request.path, facts)
        failed |= bundle.has_errors
        text += "\n" + fill_text("verbs/templates/bundle_log.txt.j2", log=bundle)
        data["bundle"] = msgspec.to_builtins(bundle)
    code = ExitCode.FAILED if failed else ExitCode.OK
    return Outcome(text, data, code, exact=args.github)


def replace_runtime(word: str, qnn_runtime: str, progress: Progress) -> str:
    """Return where QNN's libraries are: the value of --qnn-runtime, or of its old name --runtime.
    Raises UsageError for both options together, and for a --runtime that is a model's runtime."""
    if not word:
        return qnn_runtime
    if word in TITLES:
        raise UsageError(
            f"--runtime {word} has no effect here: the runtime is that of the bundle",
            fix="leave it out",
        )
    if qnn_runtime:
        raise UsageError(
            f"--runtime {word} and --qnn-runtime {qnn_runtime} are both QNN's libraries",
            fix="leave one of them out",
        )
    progress.step(f"--runtime is now called --qnn-runtime: pass --qnn-runtime {word}")
    return word


@dataclass(frozen=True)
class BundleRequest:
    """The bundle that a log is about, or None; and the SoC and the libraries of QNN to compare it
    with."""

    path: Path | None
    soc: str
    qnn_runtime: str

    def check(self, logs: int, *, github: bool) -> None:
        """Raise UsageError for options that do not work together: a bundle belongs to one log."""
        if self.path is None:
            if self.soc or self.qnn_runtime:
                option = "--soc" if self.soc else "--qnn-runtime"
                raise UsageError(f"{option} has no effect without --bundle", fix="pass --bundle")
            return
        if github or logs > 1:
            obstacle = "--github" if github else "several logs"
            raise UsageError(f"--bundle cannot be used with {obstacle}", fix="pass one log")
        if not self.path.exists():
            raise UsageError(f"--bundle {self.path} does not exist", fix="correct the path")
        if self.soc:
            find_any_soc(name_in(self.soc.upper(), read_all_socs()))

    def explain(self, path: Path, facts: LogFacts) -> BundleExplanation:
        """Return what the bundle at ``path`` says about a log."""
        soc = name_in(self.soc.upper(), read_all_socs()) if self.soc else ""
        return explain_bundle(path, facts, soc, self.qnn_runtime)


def find_entry(name: str, rules: tuple[Rule, ...]) -> Rule | Kind:
    """Return the rule or the kind of finding with the id ``name``. Raises UsageError if there is
    none."""
    for rule in rules:
        if rule.finding_id == name:
            return rule
    for kind in read_kinds():
        if kind.id == name:
            return kind
    raise UsageError(
        f"no finding of a case or of a log has the id {name}",
        fix="docs/reference/findings.md lists those of cases, docs/reference/troubleshooting.md"
        " those of logs, and docs/reference/checks.md those of the doctor",
    )


def list_logs(names: list[str]) -> Iterator[str]:
    """Yield the path of each log. A directory in ``names`` stands for all files below it that have
    the suffix of a log. Raises UsageError if a directory contains no log."""
    for name in names:
        path = user_path(name) if name != STDIN else Path(STDIN)
        if not path.is_dir():
            yield str(path)
            continue
        logs = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in LOGS and file.is_file()
        )
        if not logs:
            raise UsageError(
                f"{path} contains no logs",
                why=f"the name of a log ends in one of {', '.join(LOGS)}",
                fix="pass the paths of the log files",
            )
        yield from map(str, logs)


def read_log(name: str, rules: tuple[Rule, ...], facts: LogFacts | None = None) -> Explanation:
    """Explain a file, or standard input; ``facts`` notes what it says of a bundle. Raises
    UsageError if it cannot be read."""
    parts = facts.read(read_parts(name)) if facts else read_parts(name)
    try:
        return explain("standard input" if name == STDIN else name, parts, rules)
    except OSError as error:
        raise UsageError(
            f"cannot read {name}", why=error.strerror or str(error), fix="pass the path of a log"
        ) from error


def open_log(path: Path) -> BinaryIO:
    """Open a regular file, or a pipe such as that of ``<(adb logcat)``. Raises OSError."""
    return path.open("rb") if path.is_fifo() else open_regular(path)


def read_parts(name: str) -> Iterator[bytes]:
    """Yield the bytes of a file, or of standard input, in chunks. Raises UsageError for an archive
    or a terminal, and OSError if the file cannot be read."""
    if name == STDIN and sys.stdin.isatty():
        raise UsageError(
            "there is no log",
            why="standard input is a terminal",
            fix="pass a file, or pipe a log into the command",
        )
    with nullcontext(sys.stdin.buffer) if name == STDIN else open_log(Path(name)) as file:
        require_size(name, _measure(file))
        part = file.read(PART_BYTES)
        if part.startswith(ARCHIVES):
            fix = "unpack it, and pass the directory"
            raise UsageError(f"{name} is an archive or a compressed file, not a plain log", fix=fix)
        size = 0
        while part:
            size += len(part)
            require_size(name, size)  # /dev/zero as standard input has no end
            yield part
            part = file.read(PART_BYTES)


def _measure(file: BinaryIO) -> int:
    """Return how many bytes of a file are still to be read: 0 for a pipe or a terminal."""
    try:
        status = os.fstat(file.fileno())
        return status.st_size - file.tell() if stat.S_ISREG(status.st_mode) else 0
    except (OSError, ValueError):  # not a file of the system
        return 0


def require_size(name: str, size_bytes: int) -> None:
    """Raise UsageError if a log is longer than MOST_BYTES."""
    if size_bytes > MOST_BYTES:
        raise UsageError(
            f"{'standard input' if name == STDIN else name} is longer than {MOST_BYTES} bytes",
            fix="pass the part with the failure, such as the output of `tail -c 100M`",
        )
