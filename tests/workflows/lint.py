"""``nox -s lint`` of workflows, actions and shell scripts."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.workflows.document import ROOT, RunBlock, list_actions, list_workflows, read_all
from tests.workflows.rules import judge_document

PROGRAMS = Path(sys.executable).parent
SHEBANGS = (b"#!/bin/sh", b"#!/usr/bin/env bash", b"#!/bin/bash")


def lint(root: Path) -> Iterator[str]:
    """What every linter says of a checkout's .github and of its shell scripts."""
    folder = root / ".github"
    for document in read_all(folder):
        yield from judge_document(document)
        for block in document.run_blocks():
            yield from check_block(block)
    for script in list_scripts(root):
        yield from run_linter("shellcheck", "--severity=style", "--format=gcc", str(script))
    yield from check_schema("vendor.github-workflows", list_workflows(folder))
    yield from check_schema("vendor.github-actions", list_actions(folder))
    yield from check_schema("vendor.dependabot", sorted(folder.glob("dependabot.yml")))
    chooser = folder / "ISSUE_TEMPLATE" / "config.yml"
    forms = sorted({*chooser.parent.glob("*.yml")} - {chooser})
    yield from check_schema("vendor.github-issue-forms", forms)
    yield from check_schema("vendor.github-issue-config", [chooser] if chooser.exists() else [])
    kind = "github" if os.environ.get("GITHUB_ACTIONS") == "true" else "plain"  # annotations
    words = ("--offline", "--quiet", "--persona=auditor", f"--format={kind}")
    yield from run_linter("zizmor", *words, str(folder))


# Set by every runner of GitHub.
SET_BY_RUNNER = re.compile(r"(?:CI|HOME|PATH|GITHUB_\w+|RUNNER_\w+)")


def check_block(block: RunBlock) -> list[str]:
    """What shellcheck says of a run block, a variable that no ``env`` sets included."""
    words = ["--shell=bash", "--severity=style", "--enable=check-unassigned-uppercase", "-"]
    used = set(re.findall(r"\b[A-Z_]+\b", block.text))
    set_names = sorted(block.variables | set(filter(SET_BY_RUNNER.fullmatch, used)))
    assigned = f"read -r {' '.join(set_names)}\nexport {' '.join(set_names)}\n" if set_names else ""
    lines = run_linter("shellcheck", *words, text=f"set -eo pipefail\n{assigned}{block.text}")
    return [f"{block.file.name}: {block.place}: {line}" for line in lines]


def check_schema(name: str, files: list[Path]) -> list[str]:
    """What a schema that check-jsonschema carries says of files."""
    words = ("check-jsonschema", "--builtin-schema", name)
    return run_linter(*words, *map(str, files)) if files else []


def run_linter(program: str, *words: str, text: str = "") -> list[str]:
    """The lines of a linter that found something, nothing of one that did not."""
    ended = subprocess.run(
        [str(PROGRAMS / program), *words], input=text, capture_output=True, text=True, check=False
    )
    if ended.returncode == 0:
        return []
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    return lines or [f"{program} ended with {ended.returncode}"]


def list_scripts(root: Path) -> list[Path]:
    """Shell scripts of a checkout, by their first line or name; a .txt is a template of one."""
    places = [*root.glob("*"), *root.glob(".ci/*"), *root.glob("docker/*"), *root.glob("ci/**/*")]
    files = [path for path in places if path.is_file() and path.suffix != ".txt"]
    return sorted(path for path in files if path.suffix == ".sh" or _is_shell(path))


def _is_shell(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.readline().strip().startswith(SHEBANGS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.workflows")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    findings = list(lint(parser.parse_args().root))
    sys.stdout.write("".join(f"{line}\n" for line in findings))
    return 1 if findings else 0
