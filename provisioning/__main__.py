"""``python -m provisioning VERB``: pins become verified directories and environments."""

from __future__ import annotations

import sys

from provisioning.console.command import Verb, run_program

VERBS: dict[str, Verb] = {
    "fetch": Verb(
        "provisioning.verbs.fetch", "put artifacts or profiles into the store", "provision"
    ),
    "path": Verb("provisioning.verbs.path", "print where an artifact is"),
    "verify": Verb(
        "provisioning.verbs.verify", "hash the store again; --repair restores what differs"
    ),
    "list": Verb("provisioning.verbs.list", "list artifacts, profiles, and what is in the store"),
    "lock": Verb(
        "provisioning.verbs.lock", "show the hashes of an artifact as a diff; --write pins them"
    ),
    "lock-skels": Verb(
        "provisioning.verbs.lock_skels",
        "show the genuine skels in wheels as a diff; --write pins them",
    ),
    "update": Verb(
        "provisioning.verbs.update", "show the pins of another version as a diff; --write pins it"
    ),
    "gc": Verb(
        "provisioning.verbs.gc", "remove from the store what no profile names and nothing uses"
    ),
    "cache": Verb("provisioning.verbs.cache", "show how large caches are; remove them"),
    "cache-key": Verb(
        "provisioning.verbs.cache_key", "print what a CI system may cache, and its content's name"
    ),
    "env": Verb("provisioning.verbs.env", "print the variables of a profile"),
    "doctor": Verb(
        "provisioning.verbs.doctor",
        "check an environment; each fault comes with its fix",
        "validate",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb; the exit codes are those of provisioning.errors.ExitCode."""
    words = sys.argv[1:] if argv is None else argv
    return run_program("python -m provisioning", VERBS, words)


if __name__ == "__main__":
    sys.exit(main())
