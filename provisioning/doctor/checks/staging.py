"""A directory as it is pushed to a device: whether all that a program needs is in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.coherence import most_common_build
from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import STAGING, TreeFacts, parse_qnn_name
from provisioning.versions import is_older


class Staging(NamedTuple):
    """What is staged, in its case."""

    tree: TreeFacts
    case: Case

    @property
    def wanted(self) -> tuple[str, ...]:
        """What the profile stages at least."""
        return self.case.fitness.staged

    @property
    def names(self) -> set[str]:
        present = self.tree.links.keys() - self.tree.dangling
        return {file.name for file in self.tree.files} | {
            path.rpartition("/")[2] for path in present
        }


STAGINGS = Subjects(
    lambda case: [Staging(tree, case) for name, tree in case.facts.trees.items() if name == STAGING]
)


@STAGINGS.check(
    "QNN308",
    "the staging directory is not a directory",
    "there is nothing to push",
    "correct --root staging=DIR",
)
def see_no_directory(staging: Staging) -> Iterator[Seen]:
    if not staging.tree.is_directory:
        yield seen("staging", staging.tree.root)


@STAGINGS.check(
    "QNN309",
    "the staging directory holds no library",
    "nothing on the device could load QNN: '{first} not found'",
    "copy the libraries of the SDK for the device into {where}",
    after=("QNN308",),
)
def see_nothing(staging: Staging) -> Iterator[Seen]:
    if not staging.tree.files:
        first = staging.wanted[0] if staging.wanted else "library"
        yield seen("staging", staging.tree.root, first=first)


@STAGINGS.check(
    "QNN310",
    "{subject} is not staged",
    "'library \"{subject}\" not found' on the device",
    "copy {subject} from the SDK's libraries for the device into {where}",
    after=("QNN309",),
)
def see_not_staged(staging: Staging) -> Iterator[Seen]:
    for name in staging.wanted:
        if name not in staging.names:
            yield seen(name, staging.tree.root)


@STAGINGS.check(
    "QNN311",
    "no stub is staged: libQnnHtpVNNStub.so of the device's Hexagon version",
    "libQnnHtp.so talks to the DSP through it: error 4000 or 14001 on the device",
    "copy stub and skel for the device's SoC; --soc NAME tells which (SM8750 has V79)",
    after=("QNN309",),
)
def see_no_stub(staging: Staging) -> Iterator[Seen]:
    pairs = [one for one in map(parse_qnn_name, staging.names) if one and one.is_half]
    if "libQnnHtp.so" in staging.names and not staging.case.soc and not pairs:
        yield seen("libQnnHtpVNNStub.so", staging.tree.root)


@STAGINGS.check(
    "QNN312",
    "{soc} has Hexagon V{hexagon}; {subject} is not staged",
    "nothing can be run on that SoC: error 14001 or 4000",
    "copy {subject} of the same SDK into {where}: the skel is in lib/hexagon-v{hexagon}/unsigned",
    after=("QNN309",),
)
def see_other_soc(staging: Staging) -> Iterator[Seen]:
    if not staging.case.soc or "libQnnHtp.so" not in staging.wanted:
        return
    soc, hexagon = staging.case.soc
    stub, skel = (f"libQnnHtpV{hexagon}{side}.so" for side in ("Stub", "Skel"))
    missing = [name for name in (stub, skel) if name not in staging.names]
    if missing and missing != [skel]:  # a stub alone is told by QNN304
        yield seen(" and ".join(missing), staging.tree.root, soc=soc, hexagon=hexagon)


@STAGINGS.check(
    "QNN313",
    "{subject} was compiled with QNN {compiler}, the libraries beside it are of {runtime}",
    "an older runtime does not read it: 'Unknown QNN BinaryInfo version', error 30010",
    "lower it with QNN {runtime}, or stage the libraries of QNN {compiler} or newer",
    after=("QNN309",),
)
def see_newer_program(staging: Staging) -> Iterator[Seen]:
    usual = most_common_build(staging.tree.files)
    runtime = usual.version if usual else None
    for file in staging.tree.lowered:
        compiler = file.build.version if file.build else None
        if compiler and runtime and is_older(runtime, compiler):
            yield seen(file.name, file.path, compiler=compiler, runtime=runtime)


@STAGINGS.check(
    "QNN315",
    "{subject} was compiled with QNN {compiler}, this profile's SDK is {runtime}",
    "libraries that are staged from it do not read it: 'Unknown QNN BinaryInfo version', 30010",
    "lower it with QNN {runtime} (test_emulator's --sdk), or take the libraries of {compiler}",
    after=("QNN308",),
    severity=Severity.WARNING,
)
def see_program_of_another_profile(staging: Staging) -> Iterator[Seen]:
    """Where libraries lie beside it, QNN313 tells."""
    sdk = staging.case.facts.sdk
    runtime = (sdk.version if sdk else None) or staging.case.pin
    if staging.tree.files or not runtime:
        return
    for file in staging.tree.lowered:
        compiler = file.build.version if file.build else None
        if compiler and is_older(runtime, compiler):
            yield seen(file.name, file.path, compiler=compiler, runtime=runtime)
