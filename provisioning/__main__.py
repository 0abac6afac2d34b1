"""``python -m provisioning VERB``: pins become verified directories and environments."""

from __future__ import annotations

import sys

from provisioning.console.command import Verb, run_program

VERBS: dict[str, Verb] = {
    "fetch": Verb("provisioning.verbs.fetch", "put artifacts or profiles into the store"),
    "path": Verb("provisioning.verbs.path", "the root of an artifact that is in place"),
    "verify": Verb("provisioning.verbs.verify", "hash what is there again; --repair restores"),
    "list": Verb("provisioning.verbs.list", "artifacts, profiles, and what is in the store"),
    "lock": Verb("provisioning.verbs.lock", "pin an artifact file by file, after a diff"),
    "gc": Verb("provisioning.verbs.gc", "free what no profile names and no process uses"),
    "env": Verb("provisioning.verbs.env", "the variables of a profile"),
    "doctor": Verb("provisioning.verbs.doctor", "whether an environment is fit, and every fix"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb; the exit codes are those of provisioning.errors.ExitCode."""
    words = sys.argv[1:] if argv is None else argv
    return run_program("python -m provisioning", VERBS, words)


if __name__ == "__main__":
    sys.exit(main())
