"""``qnn-ci VERB`` or ``python -m ci VERB``: run any verb. The help lists the verbs of provisioning
first."""

from __future__ import annotations

import sys
from pathlib import Path

from ci.verbs.registry import VERBS
from provisioning.console.command import run_program


def main(argv: list[str] | None = None) -> int:
    """Run one verb, and return its exit code, which is one of provisioning.errors.ExitCode."""
    installed = Path(sys.argv[0]).name == "qnn-ci"
    words = sys.argv[1:] if argv is None else argv
    try:
        return run_program("qnn-ci" if installed else "python -m ci", VERBS, words, explain_error)
    finally:
        if claim := sys.modules.get("ci.report.claim"):  # only some verbs import it
            claim.release_reports()


def explain_error(text: str) -> str:
    """Return the known fix for an error message that contains none, or an empty string if no rule
    matches the message."""
    from ci.explain.render import advise

    return advise(text)


if __name__ == "__main__":
    sys.exit(main())
