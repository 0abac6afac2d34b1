"""``qnn-ci VERB`` or ``python -m ci VERB``: run any verb. The help lists the verbs of provisioning
first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ci.verbs.registry import VERBS
from provisioning.console.command import find_verb, order_words, run_program


def main(argv: list[str] | None = None) -> int:
    """Run one verb, and return its exit code, which is one of provisioning.errors.ExitCode."""
    installed = Path(sys.argv[0]).name == "qnn-ci"
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["--environment"]:
        return print_environment(words[1:])
    try:
        return run_program("qnn-ci" if installed else "python -m ci", VERBS, words, explain_error)
    finally:
        if claim := sys.modules.get("ci.report.claim"):  # only some verbs import it
            claim.release_reports()


def print_environment(words: Sequence[str]) -> int:
    """For the noxfile: print the dependency group for a call of a verb or, without arguments, the
    names of all verbs. An unknown verb explains itself in any group."""
    words = order_words(words)
    name = find_verb(VERBS, words[0]) if words else ""
    answer = VERBS[name].choose_environment(words[1:]) if name else "core"
    sys.stdout.write(f"{answer if words else ' '.join(VERBS)}\n")
    return 0


def explain_error(text: str) -> str:
    """Return the known fix for an error message that contains none, or an empty string if no rule
    matches the message."""
    from ci.explain.render import advise

    return advise(text)


if __name__ == "__main__":
    sys.exit(main())
