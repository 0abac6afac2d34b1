"""``python -m provisioning VERB``: fetch and verify pinned artifacts, and set up environments."""

from __future__ import annotations

import sys

from provisioning.console.command import Verb, run_program

HELP = {
    "fetch": "put artifacts, or all artifacts of a profile, into the store",
    "path": "print where an artifact is",
    "verify": "hash the files in the store again; --repair restores those that differ",
    "list": "list artifacts, profiles and the content of the store",
    "lock": "show as a diff how an artifact's lock would change; --write changes it",
    "lock-skels": "show as a diff which genuine skels (QNN's DSP libraries) in wheels are not"
    " listed yet; --write adds them to manifests/policies/skels.toml",
    "update": "show as a diff what would change if another version were pinned; --write pins it",
    "cache": "show the size of each cache, remove caches or what no profile needs, or print the key"
    " and the paths for a CI system's cache",
    "env": "print the environment variables of a profile",
    "doctor": "check an environment, and print faults with their fixes",
}
# Verbs of an earlier release, with the arguments that replace them.
RENAMED = {"cache-key": "cache key", "gc": "cache gc"}
SESSIONS = {"fetch": "provision", "doctor": "validate"}
EXAMPLES = {
    "fetch": ("emulator", "qnn-sdk:headers,host --to mirror"),
    "path": ("qnn-runtime",),
    "verify": ("--repair",),
    "lock": ("qnn-sdk --write",),
    "update": ("qnn-runtime@2.49.40",),
    "cache": ("gc",),
    "env": ("emulator", "emulator --github"),
    "doctor": ("emulator", "android --soc SM8750 --device"),
}
VERBS = {
    name: Verb(
        f"provisioning.verbs.{name.replace('-', '_')}",
        text,
        SESSIONS.get(name, ""),
        examples=EXAMPLES.get(name, ()),
    )
    for name, text in HELP.items()
}


def main(argv: list[str] | None = None) -> int:
    """Run the verb in ``argv`` (by default the process's arguments) and return its exit code, an
    ExitCode of provisioning.errors.
    """
    words = sys.argv[1:] if argv is None else argv
    return run_program("python -m provisioning", VERBS, words, renamed=RENAMED)


if __name__ == "__main__":
    sys.exit(main())
