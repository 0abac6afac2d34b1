"""``python -m tests.bench NAME``; ``nox -s bench -- NAME`` calls it."""

from __future__ import annotations

import sys

from provisioning.console.command import Verb, run_program

VERBS = {"bench": Verb("tests.bench.run", "measure one part side by side with its peer", "bench")}

if __name__ == "__main__":
    sys.exit(run_program("python -m tests", VERBS, ["bench", *sys.argv[1:]]))
