"""``python -m provisioning VERB``: fetch and verify pinned artifacts, and set up environments."""

from __future__ import annotations

import sys

from provisioning.console.command import Verb, run_program

VERBS: dict[str, Verb] = {
    "fetch": Verb(
        "provisioning.verbs.fetch", "put artifacts or profiles into the store", "provision"
    ),
    "path": Verb("provisioning.verbs.path", "print where an artifact is"),
    "verify": Verb(
        "provisioning.verbs.verify",
        "check the hashes in the store; --repair restores files that differ",
    ),
    "list": Verb(
        "provisioning.verbs.list", "list artifacts, profiles and the content of the store"
    ),
    "lock": Verb(
        "provisioning.verbs.lock",
        "show as a diff how an artifact's lock would change; --write changes it",
    ),
    "lock-skels": Verb(
        "provisioning.verbs.lock_skels",
        "show new genuine skels in wheels as a diff; --write pins them",
    ),
    "update": Verb(
        "provisioning.verbs.update",
        "show as a diff what pinning another version changes; --write pins it",
    ),
    "gc": Verb(
        "provisioning.verbs.gc", "remove what no profile needs and no process uses from the store"
    ),
    "cache": Verb("provisioning.verbs.cache", "show the size of each cache, or remove caches"),
    "cache-key": Verb(
        "provisioning.verbs.cache_key", "print the key and the paths for a CI system's cache"
    ),
    "env": Verb("provisioning.verbs.env", "print the environment variables of a profile"),
    "doctor": Verb(
        "provisioning.verbs.doctor",
        "check an environment and print a fix for each problem",
        "validate",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return one of provisioning.errors.ExitCode."""
    words = sys.argv[1:] if argv is None else argv
    return run_program("python -m provisioning", VERBS, words)


if __name__ == "__main__":
    sys.exit(main())
