"""``python -m tests.mutants [PACKAGE ...]``; ``nox -s mutants`` calls it."""

from __future__ import annotations

import sys

from provisioning.console.command import Verb, run_program

VERBS = {
    "mutants": Verb("tests.mutants.run", "plant small faults, see which tests notice", "mutants")
}

if __name__ == "__main__":
    sys.exit(run_program("python -m tests", VERBS, ["mutants", *sys.argv[1:]]))
