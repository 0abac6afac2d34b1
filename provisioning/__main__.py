"""``python -m provisioning VERB``: pins become verified directories and environments."""

from __future__ import annotations

import sys

from provisioning.command import Verb, run_command, write_stdout

VERBS: dict[str, Verb] = {
    "fetch": Verb("provisioning.verbs.fetch", "put artifacts or profiles into the store"),
    "env": Verb("provisioning.verbs.env", "the variables of a profile"),
    "doctor": Verb("provisioning.verbs.doctor", "whether an environment is fit, and every fix"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb; the exit codes are those of provisioning.errors.ExitCode."""
    words = sys.argv[1:] if argv is None else argv
    code, text = run_command("python -m provisioning", VERBS, words)
    write_stdout(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
