"""``matrix``: print a plan's jobs as the matrix of a GitHub workflow, as one line of JSON."""

from __future__ import annotations

import argparse
import json

from ci.gate.plan import render_matrix
from ci.gate.results import read_plan
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=user_path, help="plan.json, as `plan --out` writes it")


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    """Return the matrix as one line of JSON. Raises UsageError if the plan cannot be read."""
    matrix = render_matrix(read_plan(args.plan).jobs)
    return Outcome(json.dumps(matrix, separators=(",", ":")) + "\n", matrix, exact=True)
