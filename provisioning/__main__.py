"""``python -m provisioning VERB``: turn pins into verified directories and environments."""

from __future__ import annotations

import sys

from provisioning.console.command import Verb, run_program

VERBS: dict[str, Verb] = {
    "fetch": Verb(
        "provisioning.verbs.fetch", "put artifacts or profiles into the store", "provision"
    ),
    "path": Verb("provisioning.verbs.path", "print where an artifact is"),
    "verify": Verb(
        "provisioning.verbs.verify", "hash the store again; --repair restores files that differ"
    ),
    "list": Verb(
        "provisioning.verbs.list", "list artifacts, profiles and the content of the store"
    ),
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
        "provisioning.verbs.gc", "remove from the store whatever no profile names and nothing uses"
    ),
    "cache": Verb("provisioning.verbs.cache", "show how large caches are; remove them"),
    "cache-key": Verb(
        "provisioning.verbs.cache_key", "print the key and the paths of a CI system's cache"
    ),
    "env": Verb("provisioning.verbs.env", "print the variables of a profile"),
    "doctor": Verb(
        "provisioning.verbs.doctor",
        "check an environment and print a fix for each fault",
        "validate",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return one of provisioning.errors.ExitCode."""
    words = sys.argv[1:] if argv is None else argv
    return run_program("python -m provisioning", VERBS, words)


if __name__ == "__main__":
    sys.exit(main())
