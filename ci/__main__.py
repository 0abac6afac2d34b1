"""``python -m ci VERB``: build, lower, emulate, compare, sign. ``qnn-ci`` has both tables."""

from __future__ import annotations

import sys

import provisioning.__main__
from provisioning.console.command import Verb, run_program

VERBS: dict[str, Verb] = {
    "test-emulator": Verb(
        "ci.verbs.emulate", "lower models, run them on the HTP emulator, judge, report"
    ),
    "build": Verb("ci.verbs.build", "build adaptors and runners with CMake"),
    "report": Verb("ci.verbs.report", "show a report.json again, or write its other files anew"),
    "parity": Verb("ci.verbs.parity", "report where Buck and CMake describe different builds"),
    "sign": Verb("ci.verbs.sign", "sign and verify the libraries that a device's DSP loads"),
    "verify-signature": Verb(
        "ci.verbs.verify_signature", "prove a signed Hexagon library from its bytes"
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb of ``ci``; the exit codes are those of provisioning.errors.ExitCode."""
    return _run("python -m ci", VERBS, argv)


def main_all(argv: list[str] | None = None) -> int:
    """``qnn-ci``: the verbs of both packages."""
    return _run("qnn-ci", {**provisioning.__main__.VERBS, **VERBS}, argv)


def _run(program: str, verbs: dict[str, Verb], argv: list[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    return run_program(program, verbs, words)


if __name__ == "__main__":
    sys.exit(main())
