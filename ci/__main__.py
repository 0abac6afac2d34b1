"""``qnn-ci VERB`` or ``python -m ci VERB``: run any verb. The help lists the verbs of provisioning
first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from ci.verbs.environments import OTHERS
from ci.verbs.groups import group_verbs
from ci.verbs.registry import RENAMED, VERBS
from provisioning.console.command import run_program
from provisioning.errors import QnnCiError


def main(argv: list[str] | None = None) -> int:
    """Run one verb, and return its exit code, which is one of provisioning.errors.ExitCode."""
    installed = Path(sys.argv[0]).name == "qnn-ci"
    words = sys.argv[1:] if argv is None else argv
    program = "qnn-ci" if installed else "python -m ci"
    # Tests call verbs in their own process, where torch is imported once at most.
    begin = begin_early if argv is None else None
    try:
        return run_program(
            program, VERBS, words, explain_error, begin, renamed=RENAMED, groups=group_verbs()
        )
    finally:
        if claim := sys.modules.get("ci.report.claim"):  # only some verbs import it
            claim.release_reports()


@contextmanager
def begin_early(verb: str, words: Sequence[str]) -> Iterator[None]:
    """Begin what takes longest in a run on the emulator, the imports of torch, before the modules
    of its verb are imported. A call with an option of OTHERS imports something else, or nothing."""
    unusual = {word.partition("=")[0] for word in words} & OTHERS
    is_usual = verb == "test-emulator" and not unusual and "QNN_CI_SDK" not in os.environ
    with ExitStack() as stack:
        if is_usual and find_spec("executorch"):
            from ci.cases.pool import begin_imports
            from ci.executorch import choose_imports

            with suppress(OSError, QnnCiError):  # the verb reports what it meets itself
                imports = choose_imports(
                    use_cache="--no-cache" not in words, plain="--plain" in words
                )
                stack.enter_context(begin_imports("emulator", imports))
        yield


def explain_error(text: str) -> str:
    """Return the known fix for an error message that contains none, or an empty string if no rule
    matches the message."""
    from ci.explain.render import advise

    return advise(text)


if __name__ == "__main__":
    sys.exit(main())
